/* sim_storage.c - random scenarios in which the storage fails: in a small cluster the storage
 * hangs, fails or becomes slow on some tasks at a time, on the leader more often than on the
 * others, and at the end on all. As long as one task of the group can write:
 *
 *   - a checkpoint that is due is published at most LATE_MS after the fault;
 *   - no process ends before the end of the job, and then each ends with 0;
 *   - the numbers of leases and generations stay small: each retry waits.
 *
 * If the storage fails on every task after the last step, all tasks end with 138 and the reason,
 * and the job completes after they are started again. */
#include "sim/sim_priv.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum {
    LATE_MS = 25000, /* each task that fails costs two seconds and a new view; a lease that hangs,
                        four more */
    SAVE_STEPS = 10,
    STEP_MS = 40,
    LEASES_A_SECOND = 2,
    GENERATIONS_A_SECOND = 2,
};

static uint32_t leader_of(const struct sim *s)
{
    for (uint32_t i = 0; i < s->opts.world; i++)
        if (s->tasks[i].node != NULL && member_node_state(s->tasks[i].node) == MEMBER_LEADING)
            return i;
    return 0;
}

static enum sim_storage draw_fault(struct sim *s)
{
    return sim_random(s, 2) == 0 ? SIM_STORAGE_HANGS : SIM_STORAGE_FAILS;
}

/* Injects failures; at least one task can still write. */
static void fail_some(struct sim *s)
{
    uint32_t world = s->opts.world - s->opts.n_ps; /* parameter servers write nothing */
    uint32_t good = (uint32_t)sim_random(s, world), leader = leader_of(s);

    if (good == leader && sim_random(s, 4) > 0)
        good = (leader + 1) % world;
    for (uint32_t i = 0; i < world; i++) {
        bool fails = i != good && (i == leader || sim_random(s, 3) == 0);
        enum sim_storage how = fails ? draw_fault(s) : SIM_STORAGE_FINE;

        if (s->tasks[i].storage != how)
            sim_storage(s, i, how);
    }
    if (sim_random(s, 5) == 0)
        sim_storage_ms(s, 1 + sim_random(s, 300));
}

/* Expects that a checkpoint newer than the present step is published in time. */
static void expect_checkpoint(struct sim *s)
{
    uint64_t step = sim_newest(s), until = s->now_ms + LATE_MS;

    while (sim_checkpoint(s) <= step && s->now_ms < until && !s->is_broken)
        sim_advance(s, 100);
    if (sim_checkpoint(s) <= step)
        sim_fail_run(s, "a task can write, and no checkpoint after step %" PRIu64 " appears within %d ms; the newest is "
                   "of step %" PRIu64, step, LATE_MS, sim_checkpoint(s));
}

static void expect_few(struct sim *s, size_t leases, uint64_t generation, uint64_t begin_ms)
{
    uint64_t seconds = 3 + (s->now_ms - begin_ms) / 1000, newest = 0;

    for (size_t i = 1; i < s->groups.n; i++)
        newest =
            s->groups.at[i]->view.generation > newest ? s->groups.at[i]->view.generation : newest;
    if (s->records.n - leases > LEASES_A_SECOND * seconds)
        sim_fail_run(s, "%zu leases were taken in %" PRIu64 " s", s->records.n - leases, seconds);
    if (newest - generation > GENERATIONS_A_SECOND * seconds)
        sim_fail_run(s, "%" PRIu64 " generations in %" PRIu64 " s", newest - generation, seconds);
}

static void expect_all_alive(struct sim *s)
{
    for (uint32_t i = 0; i < s->opts.world; i++)
        if (s->tasks[i].node == NULL)
            sim_fail_run(s, "%s ended with %d: %s", s->names[i], s->tasks[i].exit_code,
                         s->tasks[i].exit_text);
}

static void expect_codes(struct sim *s, int code)
{
    for (uint32_t i = 0; i < s->opts.world && !s->is_broken; i++)
        if (s->tasks[i].exit_code != code ||
            (code == 138 && strstr(s->tasks[i].exit_text, "worker ") == NULL &&
             strstr(s->tasks[i].exit_text, "ps ") == NULL))
            sim_fail_run(s, "%s ended with %d, expected %d: %s", s->names[i], s->tasks[i].exit_code,
                         code, s->tasks[i].exit_text);
}

static void end_well(struct sim *s)
{
    sim_steps(s, sim_newest(s) + 3);
    if (!sim_until_ended(s, 60000) && !s->is_broken)
        sim_fail_run(s, "a task can write, and the job is not completed");
    expect_codes(s, 0);
}

static void end_badly(struct sim *s)
{
    sim_supervise(s, 0);
    sim_steps(s, sim_newest(s) + 3);
    for (uint32_t i = 0; i < s->opts.world; i++)
        sim_storage(s, i, draw_fault(s));
    if (!sim_until_ended(s, 5 * s->opts.deadline_ms + 30000) && !s->is_broken)
        sim_fail_run(s, "no task can write, and they do not end");
    expect_codes(s, 138);
    sim_storage(s, SIM_ALL, SIM_STORAGE_FINE);
    for (uint32_t i = 0; i < s->opts.world; i++)
        sim_start(s, i);
    if (!sim_until_ended(s, 60000) && !s->is_broken)
        sim_fail_run(s, "the storage works again, and the job is not completed");
    expect_codes(s, 0);
}

static void play(struct sim *s)
{
    if (!sim_until_together(s, s->opts.world, 5000) || !sim_until_step(s, 3, 60000)) {
        sim_fail_run(s, "the cluster does not train");
        return;
    }
    for (uint64_t faults = 1 + sim_random(s, 4); faults > 0 && !s->is_broken; faults--) {
        uint64_t generation = s->groups.at[s->groups.n - 1]->view.generation, begin_ms = s->now_ms;
        size_t leases = s->records.n;

        fail_some(s);
        sim_advance(s, sim_random(s, 3000));
        expect_checkpoint(s);
        expect_few(s, leases, generation, begin_ms);
        expect_all_alive(s);
        if (sim_random(s, 3) == 0)
            sim_storage(s, SIM_ALL, SIM_STORAGE_FINE);
    }
    if (s->is_broken)
        return;
    if (sim_random(s, 3) > 0)
        end_well(s);
    else
        end_badly(s);
}

const char *sim_storage_scenario(uint64_t seed, bool tell)
{
    static char finding[2 * TEXT];
    struct sim_opts o = { .world = 2 + (uint32_t)(seed % 4),
                          .seed = seed,
                          .min_world = seed / 4 % 2 == 0 ? 1 : 2 + (uint32_t)(seed % 4),
                          .rejoin_ms = 300,
                          .deadline_ms = 20000,
                          .step_ms = STEP_MS,
                          .save_every = SAVE_STEPS,
                          .tell = tell };
    struct sim *s;
    bool is_broken;

    o.no_lease = o.min_world == o.world;
    o.n_ps = (uint32_t)(seed / 8 % 3);
    o.world += o.n_ps;
    s = sim_new(&o);
    play(s);
    is_broken = sim_finding(s) != NULL;
    if (is_broken)
        snprintf(finding, sizeof(finding), "seed %" PRIu64 ": %s", seed, sim_finding(s));
    if (tell)
        printf("%s", sim_log(s));
    sim_free(s);
    return is_broken ? finding : NULL;
}
