/* progress.c - where the replicas of this task are, for whoever watches that they move.
 *
 * Each replica notes what it enters and when, and how long the phases of its kind took lately. It is
 * the only one that writes; readers take no lock: they look again if it wrote meanwhile. */
#include "train/train_priv.h"

#include "base/clock.h"

enum {
    KNOWN = 3,      /* so many times a phase has to be seen before it has a limit */
    FADES = 16,     /* a phase that is shorter takes 1/16 of what is remembered away */
    LEAST_MS = 1000,
};

static const struct {
    uint8_t order; /* within what is done for a step; tasks compare it */
    char name[TRAIN_PHASE_BYTES];
    bool steady; /* takes about as long every time. Not what has a deadline of its own: readers, which
                    try again while storage has a bad moment, and calls between tasks */
} phases[N_PHASES] = {
    [PHASE_REST] = { 0, "rest", false },
    [PHASE_START] = { 1, "start", false },
    [PHASE_LOAD] = { 2, "load", false },
    [PHASE_CONNECT] = { 3, "connect", false },
    [PHASE_AGREE] = { 4, "agree", false },
    [PHASE_TRANSFER] = { 5, "transfer", false },
    [PHASE_BETWEEN] = { 17, "between steps", false },
    [PHASE_BEGIN] = { 10, "begin", true },
    [PHASE_DATA] = { 11, "wait for samples", false },
    [PHASE_LANE] = { 11, "forward and backward", true },
    [PHASE_PERMISSION] = { 12, "wait for permission", false },
    [PHASE_REDUCE] = { 13, "reduce", false },
    [PHASE_COPY] = { 14, "copy for a checkpoint", false },
    [PHASE_CHECK] = { 15, "check the gradient", true },
    [PHASE_LOCATE] = { 15, "look for the first NaN", false },
    [PHASE_UPDATE] = { 16, "update", true },
    [PHASE_EVALUATE] = { 18, "evaluate", true },
    [PHASE_EVALUATION_SUMS] = { 19, "reduce the evaluation", false },
    [PHASE_SAVE] = { 20, "save", false },
    [PHASE_EXPORT] = { 21, "export", false },
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
    end_write(p);
}

struct seen {
    uint64_t step, since_ns, longest_ns;
    uint32_t phase, times;
};

static struct seen look(const struct place *p)
{
    struct seen s;
    uint64_t version;

    do {
        version = __atomic_load_n(&p->version, __ATOMIC_ACQUIRE);
        s = (struct seen){ .step = LOAD(p->step), .since_ns = LOAD(p->since_ns),
                           .phase = LOAD(p->phase) };
        s.longest_ns = LOAD(p->longest_ns[s.phase]);
        s.times = LOAD(p->seen[s.phase]);
        __atomic_thread_fence(__ATOMIC_ACQUIRE);
    } while (version % 2 != 0 || version != LOAD(p->version));
    return s;
}

static uint64_t place_of(const struct seen *s)
{
    return s->step << 8 | phases[s->phase].order;
}

/* Who holds up the others; of those equally far the one that has been at it longest. */
static bool is_further_behind(const struct seen *a, const struct seen *b)
{
    if (place_of(a) != place_of(b))
        return place_of(a) < place_of(b);
    return a->since_ns < b->since_ns;
}

static uint64_t limit_ms(const struct train *t, const struct seen *s)
{
    double deadline = (double)LOAD(t->deadline_ms);
    double ms = (double)s->longest_ns * t->opts->stuck_factor / 1e6;

    if (!phases[s->phase].steady || s->times < KNOWN || ms <= 0)
        return 0;
    ms = ms > LEAST_MS ? ms : LEAST_MS;
    return (uint64_t)(ms < deadline ? ms : deadline);
}

void train_progress(const struct train *t, struct train_progress *out)
{
    struct seen worst = look(&t->replicas[0].place);

    for (uint32_t i = 1; i < t->opts->n_devices; i++) {
        struct seen s = look(&t->replicas[i].place);

        if (is_further_behind(&s, &worst))
            worst = s;
    }
    *out = (struct train_progress){ .step = worst.step,
                                    .place = place_of(&worst),
                                    .phase = phases[worst.phase].name,
                                    .since_ns = worst.since_ns,
                                    .limit_ms = limit_ms(t, &worst) };
}
