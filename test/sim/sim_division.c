/* sim_division.c - random divisions of a cluster with parameter servers: no packet passes between the
 * two sides, so each side knows only that the other is silent.
 *
 *   - A side that can train and has every row trains, if the other one has not every row or cannot
 *     train; the other side then takes no step.
 *   - Otherwise one side trains, if one can: after LIMIT_MS at most.
 *   - After the division all tasks train together.
 *
 * A side has every row if it lacks fewer parameter servers of the last group than hold each row. */
#include "sim/sim_priv.h"

#include <inttypes.h>
#include <stdio.h>

enum {
    LIMIT_MS = MEMBER_SILENCE_MS + MEMBER_EXPIRY_MS + MEMBER_ROWS_MS + 3000,
    BESIDE_MS = 10000, /* a side that must not train is watched for this time */
    DIVISIONS = 2,
};

struct side {
    uint64_t ranks; /* mask */
    bool can_train, has_rows;
};

static struct side side_of(const struct sim *s, uint64_t ranks)
{
    uint32_t n_trainers = 0, n_ps = 0,
             copies = s->opts.replicas < s->opts.n_ps ? s->opts.replicas : s->opts.n_ps;

    for (uint32_t i = 0; i < s->opts.world; i++)
        *(sim_is_ps(s, i) ? &n_ps : &n_trainers) += ranks >> i & 1;
    return (struct side){ .ranks = ranks,
                          .can_train = n_trainers >= s->opts.min_world && n_ps >= s->opts.min_ps,
                          .has_rows = s->opts.n_ps - n_ps < copies };
}

static uint64_t newest_of(const struct sim *s, uint64_t ranks)
{
    uint64_t newest = 0;

    for (uint32_t i = 0; i < s->opts.world; i++)
        if (ranks >> i & 1 && s->tasks[i].held > newest)
            newest = s->tasks[i].held;
    return newest;
}

/* The tasks of a broken step may differ by one, so a side trains if it holds `step` or a newer one. */
static const struct side *training_side(const struct sim *s, const struct side sides[2],
                                        uint64_t step)
{
    for (int i = 0; i < 2; i++)
        if (newest_of(s, sides[i].ranks) >= step)
            return &sides[i];
    return NULL;
}

static void expect_side(struct sim *s, const struct side sides[2], uint64_t step)
{
    bool any = sides[0].can_train || sides[1].can_train;
    const struct side *trains = NULL, *other;

    for (uint64_t until = s->now_ms + LIMIT_MS + s->opts.rejoin_ms;
         trains == NULL && s->now_ms < until && !s->is_broken;) {
        sim_advance(s, 100);
        trains = training_side(s, sides, step);
    }
    if (s->is_broken)
        return;
    if (trains == NULL) {
        if (any)
            sim_fail_run(s, "no side of a divided cluster trains after %" PRIu64 " ms",
                         LIMIT_MS + s->opts.rejoin_ms);
        return;
    }
    other = trains == &sides[0] ? &sides[1] : &sides[0];
    if (!trains->has_rows && other->can_train && other->has_rows)
        sim_fail_run(s, "side %" PRIx64 " trains and lacks rows, and side %" PRIx64 " has all",
                     trains->ranks, other->ranks);
    sim_advance(s, BESIDE_MS);
    if (newest_of(s, other->ranks) >= step)
        sim_fail_run(s, "both sides of a divided cluster train");
}

static void divide(struct sim *s)
{
    uint64_t all = (1u << s->opts.world) - 1, mask = 1 + sim_random(s, all - 1);
    struct side sides[2] = { side_of(s, mask), side_of(s, all & ~mask) };
    uint64_t limit_ms = 8000 + 2 * s->opts.rejoin_ms;

    sim_partition(s, mask);
    expect_side(s, sides, sim_newest(s) + 2);
    sim_heal(s);
    for (uint32_t i = 0; i < s->opts.world; i++)
        sim_start(s, i); /* a task without a group may have ended at its deadline */
    if (!s->is_broken && !sim_until_together(s, s->opts.world, limit_ms))
        sim_fail_run(s, "the tasks are not one group %" PRIu64 " ms after the division", limit_ms);
}

static struct sim_opts draw(uint64_t seed, bool tell)
{
    struct sim die = { .random = (seed + 7) * 0x9e3779b97f4a7c15u };
    uint32_t n_trainers = 2 + (uint32_t)sim_random(&die, 4),
             n_ps = 2 + (uint32_t)sim_random(&die, 4);

    return (struct sim_opts){ .world = n_trainers + n_ps,
                              .n_ps = n_ps,
                              .min_world = sim_random(&die, 4) == 0 ? 1 + (uint32_t)sim_random(&die, n_trainers) : 1,
                              .min_ps = sim_random(&die, 4) == 0 ? 1 + (uint32_t)sim_random(&die, n_ps) : 1,
                              .replicas = 1 + (uint32_t)sim_random(&die, 3),
                              .seed = seed,
                              .rejoin_ms = 1 + sim_random(&die, 2000),
                              .deadline_ms = 60000,
                              .step_ms = 10 + sim_random(&die, 60),
                              .delay_ms = 1 + sim_random(&die, 5),
                              .store_ms = 1 + sim_random(&die, 8),
                              .save_every = 10,
                              .drift = (uint32_t)sim_random(&die, 2) * (uint32_t)sim_random(&die, 11),
                              .tell = tell };
}

const char *sim_division_scenario(uint64_t seed, bool tell)
{
    static char finding[2 * TEXT];
    struct sim_opts o = draw(seed, tell);
    struct sim *s = sim_new(&o);
    bool is_broken;

    sim_print(s, SIM_ALL,
              "seed %" PRIu64 ": world %u with %u ps, replicas %u, min_world %u, min_ps %u", seed,
              o.world, o.n_ps, o.replicas, o.min_world, o.min_ps);
    if (!sim_until_together(s, o.world, 10000) || !sim_until_step(s, 5, 10000))
        sim_fail_run(s, "the cluster does not train");
    for (int i = 0; i < DIVISIONS && !s->is_broken; i++) {
        sim_advance(s, 500 + sim_random(s, 1000));
        divide(s);
    }
    is_broken = sim_finding(s) != NULL;
    if (is_broken)
        snprintf(finding, sizeof(finding), "%s", sim_finding(s));
    if (tell)
        printf("%s", sim_log(s));
    sim_free(s);
    return is_broken ? finding : NULL;
}
