/* progress.c - where the threads of this task are that make its steps, for whoever watches that they
 * move: replicas, and those that reduce for them.
 *
 * Each of them notes in a place of its own what it enters and when, and how long it worked lately in
 * phases of that kind. It is the only one that writes there; readers take no lock: they look again if
 * it wrote meanwhile.
 *
 * Where all are in the same phase it counts who waits for whom. A thread that waits for peers says so,
 * and says it again: it is a little further than one that works there, and takes as long as it takes.
 * If it does not say it any more, it hangs. A thread that waits for another one of this task is asked
 * after that one. So of tasks that reduce the same bucket the one that hangs, in whatever thread, has the
 * least place, and all others wait.
 *
 * Until all go on from one state what each holds says nothing about how far it is. */
#include "train/train_priv.h"

#include "base/clock.h"

enum {
    KNOWN = 3,      /* so many times a phase has to be seen before it has a limit */
    FADES = 16,     /* a phase that is shorter takes 1/16 of what is remembered away */
    SIGN_MS = 1000,  /* who waits for peers says so more often */
    LEAST_MS = 3000, /* a machine that has too much to do may let nobody in for a second or two */
    ORDER_BITS = 5,
    FIRST_ORDER = 10, /* of a step; what is before it brings a generation together */
    BUCKET_BITS = 14, /* or chunks, in a place: 10^12 steps stay below 2^60; those behind the last of these count as it */
};

/* How long work there may take. */
enum limit {
    OWN,      /* it has the deadline itself, and then an error that says more: readers, which try again while
                 storage has a bad moment */
    DEADLINE, /* it happens once in a generation */
    LEARNED,  /* about as long every time */
};

static const struct {
    uint8_t order; /* within what is done for a step, below 2^ORDER_BITS; tasks compare it */
    char name[TRAIN_PHASE_BYTES];
    enum limit limit;
} phases[N_PHASES] = {
    [PHASE_REST] = { 0, "rest", OWN },
    [PHASE_START] = { 1, "start", DEADLINE },
    [PHASE_LOAD] = { 2, "load", DEADLINE },
    [PHASE_CONNECT] = { 3, "connect", DEADLINE },
    [PHASE_NCCL] = { 4, "connect GPUs (NCCL)", DEADLINE },
    [PHASE_AGREE] = { 5, "agree", DEADLINE },
    [PHASE_TRANSFER] = { 6, "transfer", DEADLINE },
    [PHASE_BETWEEN] = { 17, "between steps", OWN },
    [PHASE_BEGIN] = { 10, "begin", LEARNED },
    [PHASE_DATA] = { 11, "wait for samples", OWN },
    [PHASE_LANE] = { 11, "forward and backward", LEARNED },
    [PHASE_PERMISSION] = { 12, "wait for permission", OWN },
    [PHASE_REDUCE] = { 13, "reduce", LEARNED },
    [PHASE_COPY] = { 14, "copy for a checkpoint", OWN },
    [PHASE_CHECK] = { 15, "check the gradient", LEARNED },
    [PHASE_LOCATE] = { 15, "look for the first NaN", OWN },
    [PHASE_UPDATE] = { 16, "update", LEARNED },
    [PHASE_EVALUATION_DATA] = { 18, "wait for samples to evaluate", OWN },
    [PHASE_EVALUATE] = { 18, "evaluate", LEARNED },
    [PHASE_EVALUATION_SUMS] = { 19, "reduce the evaluation", LEARNED },
    [PHASE_SAVE] = { 20, "save", OWN },
    [PHASE_EXPORT] = { 21, "export", OWN },
};

#define LOAD(x_) __atomic_load_n(&(x_), __ATOMIC_RELAXED)
#define STORE(x_, value_) __atomic_store_n(&(x_), (value_), __ATOMIC_RELAXED)

/* Up to now it did what it does. */
static void add_work(struct place *p, uint64_t now)
{
    if (p->standing == STANDS_AT_WORK && now - p->since_ns > p->worked_ns)
        STORE(p->worked_ns, now - p->since_ns);
}

/* A phase is over. */
static void learn(struct place *p)
{
    uint64_t longest = LOAD(p->longest_ns[p->phase]), ns = p->worked_ns;

    longest -= longest / FADES;
    STORE(p->longest_ns[p->phase], ns > longest ? ns : longest);
    STORE(p->seen[p->phase], p->seen[p->phase] + 1);
    STORE(p->worked_ns, 0);
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

static void be_at(struct place *p, uint64_t step, enum phase phase, uint32_t bucket, enum standing standing,
                  uint64_t now)
{
    STORE(p->step, step);
    STORE(p->phase, (uint32_t)phase);
    STORE(p->bucket, bucket);
    STORE(p->standing, (uint32_t)standing);
    STORE(p->since_ns, now);
    STORE(p->sign_ns, now);
}

static void enter(struct place *p, uint64_t step, enum phase phase, uint32_t bucket)
{
    uint64_t now = clock_ns();

    begin_write(p);
    add_work(p, now);
    learn(p);
    be_at(p, step, phase, bucket, STANDS_AT_WORK, now);
    end_write(p);
}

void progress_enter(struct replica *r, enum phase phase)
{
    enter(&r->place, r->place.step, phase, 0);
}

void progress_step(struct replica *r, uint64_t step)
{
    enter(&r->place, step, PHASE_BEGIN, 0);
}

void progress_chunk(struct replica *r, uint32_t chunk)
{
    enter(&r->place, r->place.step, PHASE_TRANSFER, chunk);
}

void progress_bucket(struct place *p, uint64_t step, uint32_t bucket)
{
    enter(p, step, PHASE_REDUCE, bucket);
}

void progress_stand(struct place *p, enum standing standing)
{
    uint64_t now = clock_ns();

    begin_write(p);
    if (p->standing != standing) {
        add_work(p, now);
        STORE(p->standing, (uint32_t)standing);
        STORE(p->since_ns, now);
    }
    STORE(p->sign_ns, now);
    end_write(p);
}

static _Thread_local struct place *own;

void progress_thread(struct place *p)
{
    own = p;
}

void progress_peers(bool waits)
{
    progress_stand(own, waits ? STANDS_FOR_PEERS : STANDS_AT_WORK);
}

bool progress_meet(struct replica *r, struct gate *gate)
{
    bool whole;

    if (gate->n > 1)
        progress_stand(&r->place, STANDS_AT_HOME);
    whole = gate_wait(gate);
    if (gate->n > 1)
        progress_stand(&r->place, STANDS_AT_WORK);
    return whole;
}

static void start(struct place *p, uint64_t step, enum standing standing)
{
    begin_write(p);
    for (int i = 0; i < N_PHASES; i++) {
        STORE(p->longest_ns[i], 0);
        STORE(p->seen[i], 0);
    }
    STORE(p->worked_ns, 0);
    be_at(p, step, PHASE_START, 0, standing, clock_ns());
    end_write(p);
}

void progress_start(struct replica *r)
{
    start(&r->place, r->train->held_step, STANDS_AT_WORK);
    start(&r->reducer.place, r->train->held_step, STANDS_AT_HOME);
}

struct seen {
    uint64_t step, since_ns, sign_ns, longest_ns;
    uint32_t phase, bucket, standing, times;
};

static struct seen look(const struct place *p)
{
    struct seen s;
    uint64_t version, now;

    do {
        version = __atomic_load_n(&p->version, __ATOMIC_ACQUIRE);
        s = (struct seen){ .step = LOAD(p->step), .since_ns = LOAD(p->since_ns),
                           .sign_ns = LOAD(p->sign_ns), .phase = LOAD(p->phase),
                           .bucket = LOAD(p->bucket), .standing = LOAD(p->standing) };
        s.longest_ns = LOAD(p->longest_ns[s.phase]);
        s.times = LOAD(p->seen[s.phase]);
        __atomic_thread_fence(__ATOMIC_ACQUIRE);
    } while (version % 2 != 0 || version != LOAD(p->version));
    now = clock_ns();
    if (s.standing == STANDS_FOR_PEERS && now > s.sign_ns + SIGN_MS * UINT64_C(1000000)) {
        s.standing = STANDS_AT_WORK; /* at what, nobody knows */
        s.since_ns = s.sign_ns;
    }
    return s;
}

static uint64_t place_of(const struct seen *s)
{
    uint64_t last = (1 << BUCKET_BITS) - 1, bucket = s->bucket < last ? s->bucket : last;
    uint64_t step = phases[s->phase].order < FIRST_ORDER ? 0 : s->step;

    return ((step << ORDER_BITS | phases[s->phase].order) << BUCKET_BITS | bucket) << 1 |
           (s->standing == STANDS_FOR_PEERS);
}

/* Who holds up the others; of those equally far the one that has been at it longest. */
static bool is_further_behind(const struct seen *a, const struct seen *b)
{
    if ((a->standing == STANDS_AT_HOME) != (b->standing == STANDS_AT_HOME))
        return b->standing == STANDS_AT_HOME;
    if (place_of(a) != place_of(b))
        return place_of(a) < place_of(b);
    return a->since_ns < b->since_ns;
}

static uint64_t limit_ms(const struct train *t, const struct seen *s)
{
    double deadline = (double)LOAD(t->deadline_ms);
    double ms = (double)s->longest_ns * t->opts->stuck_factor / 1e6;

    if (phases[s->phase].limit == OWN || s->standing == STANDS_FOR_PEERS)
        return 0;
    if (phases[s->phase].limit == DEADLINE || s->times < KNOWN || ms <= 0)
        return (uint64_t)deadline;
    ms = ms > LEAST_MS ? ms : LEAST_MS;
    return (uint64_t)(ms < deadline ? ms : deadline);
}

void train_progress(const struct train *t, struct train_progress *out)
{
    struct seen worst = look(&t->replicas[0].place);

    for (uint32_t i = 0; i < 2 * t->opts->n_devices; i++) {
        const struct replica *r = &t->replicas[i / 2];
        struct seen s = look(i % 2 == 0 ? &r->place : &r->reducer.place);

        if (is_further_behind(&s, &worst))
            worst = s;
    }
    *out = (struct train_progress){ .step = worst.step,
                                    .place = place_of(&worst),
                                    .phase = phases[worst.phase].name,
                                    .since_ns = worst.since_ns,
                                    .limit_ms = limit_ms(t, &worst) };
}
