/* progress.c - where the replicas of this task are, for whoever watches that they move.
 *
 * Each replica notes what it enters and when, and how long the phases of its kind took lately. It is
 * the only one that writes; readers take no lock: they look again if it wrote meanwhile. */
#include "train/train_priv.h"

#include "base/clock.h"

enum {
    KNOWN = 3,      /* so many times a phase has to be seen before it has a limit */
    TIMES = 8,      /* as long as the longest of the recent ones is not suspicious yet */
    FADES = 16,     /* a phase that is shorter takes 1/16 of what is remembered away */
    LEAST_MS = 1000,
};

static const struct {
    const char *name;
    bool steady; /* takes about as long every time */
    bool waits;  /* for others: they are to blame */
} phases[N_PHASES] = {
    [PHASE_REST] = { "rest", false, true },
    [PHASE_START] = { "start", false, true },
    [PHASE_LOAD] = { "load", false, false },
    [PHASE_CONNECT] = { "connect", false, false },
    [PHASE_AGREE] = { "agree", false, true },
    [PHASE_TRANSFER] = { "transfer", false, false },
    [PHASE_BETWEEN] = { "between steps", false, false },
    [PHASE_BEGIN] = { "begin", true, false },
    [PHASE_DATA] = { "wait for samples", true, false },
    [PHASE_LANE] = { "forward and backward", true, false },
    [PHASE_PERMISSION] = { "wait for permission", false, false },
    [PHASE_REDUCE] = { "reduce", true, true },
    [PHASE_UPDATE] = { "update", true, false },
    [PHASE_EVALUATE] = { "evaluate", true, false },
    [PHASE_EVALUATION_SUMS] = { "reduce the evaluation", false, true },
    [PHASE_SAVE] = { "save", false, false },
    [PHASE_EXPORT] = { "export", false, false },
};

#define LOAD(x_) __atomic_load_n(&(x_), __ATOMIC_RELAXED)
#define STORE(x_, value_) __atomic_store_n(&(x_), (value_), __ATOMIC_RELAXED)

static void learn(struct place *p, uint64_t ns)
{
    uint64_t longest = LOAD(p->longest_ns[p->phase]);

    longest -= longest / FADES;
    STORE(p->longest_ns[p->phase], ns > longest ? ns : longest);
    STORE(p->seen[p->phase], p->seen[p->phase] + 1);
}

static void begin_write(struct place *p)
{
    STORE(p->version, p->version + 1);
    __atomic_thread_fence(__ATOMIC_RELEASE);
}

static void end_write(struct place *p)
{
    __atomic_store_n(&p->version, p->version + 1, __ATOMIC_RELEASE);
}

static void enter(struct place *p, uint64_t step, enum phase phase)
{
    uint64_t now = clock_ns();

    begin_write(p);
    learn(p, now - p->since_ns);
    STORE(p->step, step);
    STORE(p->phase, (uint32_t)phase);
    STORE(p->since_ns, now);
    STORE(p->count, p->count + 1);
    end_write(p);
}

void progress_enter(struct replica *r, enum phase phase)
{
    enter(&r->place, r->place.step, phase);
}

void progress_step(struct replica *r, uint64_t step)
{
    enter(&r->place, step, PHASE_BEGIN);
}

void progress_start(struct replica *r)
{
    struct place *p = &r->place;

    begin_write(p);
    for (int i = 0; i < N_PHASES; i++) {
        STORE(p->longest_ns[i], 0);
        STORE(p->seen[i], 0);
    }
    STORE(p->step, r->train->held_step);
    STORE(p->phase, (uint32_t)PHASE_START);
    STORE(p->since_ns, clock_ns());
    STORE(p->count, p->count + 1);
    end_write(p);
}

struct seen {
    uint64_t step, since_ns, count, longest_ns;
    uint32_t phase, times;
};

static struct seen look(const struct place *p)
{
    struct seen s;
    uint64_t version;

    do {
        version = __atomic_load_n(&p->version, __ATOMIC_ACQUIRE);
        s = (struct seen){ .step = LOAD(p->step), .since_ns = LOAD(p->since_ns),
                           .count = LOAD(p->count), .phase = LOAD(p->phase) };
        s.longest_ns = LOAD(p->longest_ns[s.phase]);
        s.times = LOAD(p->seen[s.phase]);
        __atomic_thread_fence(__ATOMIC_ACQUIRE);
    } while (version % 2 != 0 || version != LOAD(p->version));
    return s;
}

/* Who holds up the others: of those who do not wait for others the one that has been at it longest. */
static bool is_further_behind(const struct seen *a, const struct seen *b)
{
    if (phases[a->phase].waits != phases[b->phase].waits)
        return phases[b->phase].waits;
    return a->since_ns < b->since_ns;
}

static uint64_t limit_ms(const struct train *t, const struct seen *s)
{
    uint64_t deadline = LOAD(t->deadline_ms), ms = s->longest_ns * TIMES / 1000000;

    if (!phases[s->phase].steady || s->times < KNOWN)
        return 0;
    ms = ms > LEAST_MS ? ms : LEAST_MS;
    return ms < deadline ? ms : deadline;
}

void train_progress(const struct train *t, struct train_progress *out)
{
    struct seen worst = look(&t->replicas[0].place);
    uint64_t count = worst.count;

    for (uint32_t i = 1; i < t->opts->n_devices; i++) {
        struct seen s = look(&t->replicas[i].place);

        count += s.count;
        if (is_further_behind(&s, &worst))
            worst = s;
    }
    *out = (struct train_progress){ .step = worst.step,
                                    .place = count,
                                    .phase = phases[worst.phase].name,
                                    .since_ns = worst.since_ns,
                                    .limit_ms = limit_ms(t, &worst) };
}
