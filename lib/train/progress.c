/* progress.c - the places of the threads that compute the steps of this task (replicas, and their
 * reducer threads), for a watchdog.
 *
 * Tasks compare the number that place_of() makes of a place. In one phase, a thread that waits for
 * peers ranks just above a thread that works, and has no deadline. So of the tasks that reduce one
 * bucket, the task that hangs, in whatever thread, has the lowest number, and all others wait.
 *
 * Before the first step of a generation the number does not contain the held step, because that
 * step differs between tasks. */
#include "train/progress.h"

#include "engine/engine.h"
#include "train/train_types.h"

enum {
    KNOWN = 3,       /* number of measurements before a phase has a limit */
    LEAST_MS = 3000, /* on a busy machine a thread may not run for a second or two */
    ORDER_BITS = 5,
    /* first phase of a step; lower orders are phases at the start of a generation */
    FIRST_ORDER = 10,
    /* buckets or chunks in a place: 10^12 steps stay below 2^60; later buckets count as the last */
    BUCKET_BITS = 14,
};

/* The limit of the work in a phase. */
enum limit {
    OWN, /* the work has its own deadline and a more precise error: readers, which retry
            while the storage fails */
    DEADLINE, /* the phase occurs once in a generation: train.deadline_seconds */
    LEARNED,  /* a multiple of the measured duration */
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
    [PHASE_WRITER] = { 12, "wait for the last checkpoint", OWN },
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

static uint64_t place_of(const struct place_view *s)
{
    uint64_t last = (1 << BUCKET_BITS) - 1, bucket = s->bucket < last ? s->bucket : last;
    uint64_t step = phases[s->phase].order < FIRST_ORDER ? 0 : s->step;

    return ((step << ORDER_BITS | phases[s->phase].order) << BUCKET_BITS | bucket) << 1 |
           (s->wait == PLACE_WAITS_PEERS);
}

/* Returns true if `a` blocks the others more than `b` does: it has a lower place, or the same place
 * for a longer time. */
static bool is_further_behind(const struct place_view *a, const struct place_view *b)
{
    if ((a->wait == PLACE_WAITS_LOCAL) != (b->wait == PLACE_WAITS_LOCAL))
        return b->wait == PLACE_WAITS_LOCAL;
    if (place_of(a) != place_of(b))
        return place_of(a) < place_of(b);
    return a->since_ns < b->since_ns;
}

static uint64_t limit_ms(const struct place_view *s, uint64_t deadline_ms, double stuck_factor)
{
    double deadline = (double)deadline_ms;
    double ms = (double)s->longest_ns * stuck_factor / 1e6;

    if (phases[s->phase].limit == OWN || s->wait == PLACE_WAITS_PEERS)
        return 0;
    if (phases[s->phase].limit == DEADLINE || s->times < KNOWN || ms <= 0)
        return deadline_ms;
    ms = ms > LEAST_MS ? ms : LEAST_MS;
    return (uint64_t)(ms < deadline ? ms : deadline);
}

void progress_of(const struct engine *e, uint64_t deadline_ms, double stuck_factor,
                 struct train_progress *out)
{
    struct place_view worst = place_read(&e->replicas[0]->place);

    for (uint32_t i = 0; i < 2 * e->opts->n_devices; i++) {
        const struct engine_replica *r = e->replicas[i / 2];
        struct place_view s = place_read(i % 2 == 0 ? &r->place : &r->helper_place);

        if (is_further_behind(&s, &worst))
            worst = s;
    }
    *out = (struct train_progress){ .step = worst.step,
                                    .place = place_of(&worst),
                                    .phase = phases[worst.phase].name,
                                    .since_ns = worst.since_ns,
                                    .limit_ms = limit_ms(&worst, deadline_ms, stuck_factor) };
}
