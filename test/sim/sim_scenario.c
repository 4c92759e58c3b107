/* sim_scenario.c - random scenarios: a small cluster, some faults, then no more faults. After the
 * faults all running tasks must form one view, or, where that is impossible, each must log which
 * tasks are missing; no step that a survivor holds is lost; and all tasks complete the job. */
#include "sim/sim_priv.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum fault {
    KILL,
    KILL_TWO,
    POWER_OFF,
    STOP_AND_GO,
    PARTITION,
    CUT_ONE_WAY,
    CUT_CONTROL,
    CUT_DATA,
    CUT_LARGE,
    RESET,
    STORAGE_ALL,
    STORAGE_ONE,
    STORAGE_SLOW,
    CLOCK,
    LEAVE,
    STUCK,
    DEVICE,
    STORAGE_RELEASED,
    REGROUP,
    SICK_HOST,
    GENERATION,
    FAULTS,
};
/* Relative frequencies of the faults. */
static const uint8_t weights[FAULTS] = {
    [KILL] = 8,
    [KILL_TWO] = 4,
    [POWER_OFF] = 3,
    [STOP_AND_GO] = 5,
    [PARTITION] = 7,
    [CUT_ONE_WAY] = 3,
    [CUT_CONTROL] = 3,
    [CUT_DATA] = 3,
    [CUT_LARGE] = 2,
    [RESET] = 4,
    [STORAGE_ALL] = 2,
    [STORAGE_ONE] = 3,
    [STORAGE_SLOW] = 1,
    [CLOCK] = 1,
    [LEAVE] = 2,
    [STUCK] = 1,
    [DEVICE] = 2,
    [STORAGE_RELEASED] = 3,
    [REGROUP] = 4,
    [SICK_HOST] = 2,
    [GENERATION] = 1,
};

static uint64_t below(struct sim *s, uint64_t n)
{
    return sim_random(s, n);
}

static void cut_pair(struct sim *s, uint32_t a, uint32_t b, enum sim_plane plane)
{
    sim_cut(s, a, b, plane);
    sim_cut(s, b, a, plane);
}

static void go_on(struct sim *s)
{
    for (uint32_t i = 0; i < s->opts.world; i++)
        if (s->tasks[i].is_stopped)
            sim_continue(s, i);
}

static enum fault choose(struct sim *s)
{
    uint64_t sum = 0, n;
    int f;

    for (f = 0; f < FAULTS; f++)
        sum += weights[f];
    n = below(s, sum);
    for (f = 0; n >= weights[f]; f++)
        n -= weights[f];
    return (enum fault)f;
}

/* The data path of a host is dead, and processes of its task start there one after the other. */
static void sick_host(struct sim *s, uint32_t rank)
{
    sim_cut(s, SIM_ALL, rank, SIM_DATA);
    for (uint64_t n = 1 + below(s, 3); n > 0; n--) {
        sim_advance(s, below(s, 5000));
        sim_kill(s, rank);
        sim_advance(s, below(s, 500));
        sim_start(s, rank);
    }
}

/* A process that is no task of the job claims to be `from`. */
static void invent_generation(struct sim *s, uint32_t from, uint32_t to)
{
    struct member_status ours, theirs = { .incarnation = 1 + below(s, 1000),
                                          .generation = (uint64_t)1 << (32 + below(s, 31)),
                                          .leader = MEMBER_NO_RANK };

    if (s->tasks[to].node == NULL || s->tasks[to].is_stopped)
        return;
    sim_print(s, to, "is told generation %" PRIu64, theirs.generation);
    member_node_probed(s->tasks[to].node, from, &theirs, &ours, sim_clock(s, to));
    sim_drain(s, to);
}

static void one_fault(struct sim *s)
{
    uint32_t world = s->opts.world, a = (uint32_t)below(s, world), b = (uint32_t)below(s, world);
    enum sim_storage how = below(s, 2) ? SIM_STORAGE_HANGS : SIM_STORAGE_FAILS;

    switch (choose(s)) {
    case KILL:
        sim_kill(s, a);
        break;
    case KILL_TWO:
        sim_kill(s, a);
        sim_kill(s, b);
        break;
    case POWER_OFF:
        sim_power_off(s, a);
        break;
    case STOP_AND_GO:
        sim_pause(s, a);
        break;
    case PARTITION:
        sim_partition(s, 1 + below(s, (1u << world) - 1));
        break;
    case CUT_ONE_WAY:
        sim_cut(s, a, below(s, 2) ? b : SIM_ALL, SIM_BOTH);
        break;
    case CUT_CONTROL:
        cut_pair(s, a, b, SIM_CONTROL);
        break;
    case CUT_DATA:
        cut_pair(s, a, b, SIM_DATA);
        break;
    case CUT_LARGE:
        sim_cut(s, a, below(s, 2) ? b : SIM_ALL, SIM_LARGE);
        break;
    case RESET:
        sim_reset(s, a, b);
        break;
    case STORAGE_ALL:
        sim_storage(s, SIM_ALL, how);
        break;
    case STORAGE_ONE:
        sim_storage(s, a, how);
        break;
    case STORAGE_SLOW:
        sim_storage_ms(s, 200 + below(s, 1500));
        break;
    case CLOCK:
        sim_clock_jumps(s, a, below(s, 8000));
        break;
    case LEAVE:
        sim_stop(s, a, false);
        break;
    case STUCK:
        sim_stuck(s, a);
        break;
    case DEVICE:
        sim_fail(s, a, MEMBER_FAIL_LOCAL, "the device of worker is broken");
        break;
    case STORAGE_RELEASED:
        sim_storage(s, SIM_ALL, SIM_STORAGE_FINE);
        break;
    case REGROUP:
        for (uint32_t i = 0; i < world; i++)
            sim_regroup(s, i); /* the leader, or two that believe to lead */
        break;
    case SICK_HOST:
        sick_host(s, a);
        break;
    case GENERATION:
        invent_generation(s, a, b);
        break;
    case FAULTS:
        break;
    }
}

static void calm(struct sim *s, bool some_stay_dead)
{
    sim_print(s, SIM_ALL, "calm");
    sim_heal(s);
    go_on(s);
    sim_storage(s, SIM_ALL, SIM_STORAGE_FINE);
    sim_storage_ms(s, 2);
    for (uint32_t i = 0; i < s->opts.world && !some_stay_dead; i++)
        if (s->tasks[i].is_off)
            sim_start(s, i);
}

/* Returns the number of tasks of the ranks [from, to) that run or will be started again. */
static uint32_t expected_of(const struct sim *s, uint32_t from, uint32_t to)
{
    uint32_t n = 0;

    for (uint32_t i = from; i < to; i++) {
        int code = s->tasks[i].exit_code;
        bool comes = code == SIM_RUNNING || code == 138 || code == SIM_KILLED;

        n += s->tasks[i].node != NULL ||
             (comes && !s->tasks[i].is_off && (s->opts.restart_ms > 0 || code == SIM_RUNNING));
    }
    return n;
}

static uint32_t expected(const struct sim *s)
{
    return expected_of(s, 0, s->opts.world);
}

/* Whether the tasks that run or will be started again can form a group. */
static bool can_train(const struct sim *s)
{
    uint32_t all = s->opts.world - s->opts.n_ps, n = expected_of(s, 0, all);

    return n > 0 && n >= s->opts.min_world && (!s->opts.no_lease || 2 * n > all) &&
           expected_of(s, all, s->opts.world) >= s->opts.min_ps;
}

/* Returns the number of tasks whose training hangs. In a first step the watchdog finds each only at
 * the deadline, one after the other. */
static uint32_t n_stuck(const struct sim *s)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < s->opts.world; i++)
        n += s->tasks[i].was_stuck;
    return n;
}

/* The tasks cannot form a group: each must log the reason, or have ended with the reason. */
static void expect_reasons(struct sim *s)
{
    sim_advance(s, 8000 + s->opts.rejoin_ms);
    for (uint32_t i = 0; i < s->opts.world && !s->is_broken; i++) {
        const struct sim_task *t = &s->tasks[i];

        if (t->node == NULL || t->started_ms + 6000 > s->now_ms)
            continue;
        if (t->said_ms + 3 * MEMBER_LOG_MS < s->now_ms ||
            (strstr(t->said, "worker ") == NULL && strstr(t->said, "ps ") == NULL))
            sim_fail_run(s, "%s waits and does not log the missing task; its last line: %s",
                         s->names[i], t->said);
    }
}

static void remember(struct sim *s)
{
    for (uint32_t i = 0; i < s->opts.world; i++) {
        s->tasks[i].calm_serial = s->tasks[i].node != NULL ? s->tasks[i].serial : 0;
        s->tasks[i].calm_held = s->tasks[i].held;
    }
}

/* The group holds every step that a surviving process held. */
static void expect_no_loss(struct sim *s)
{
    for (uint32_t i = 0; i < s->opts.world; i++) {
        const struct sim_task *t = &s->tasks[i];

        if (t->node != NULL && t->calm_serial == t->serial && t->calm_held > sim_newest(s))
            sim_fail_run(s, "%s held step %" PRIu64 ", and the group goes on from %" PRIu64,
                         s->names[i], t->calm_held, sim_newest(s));
    }
}

static void finish(struct sim *s, uint64_t calm_ms)
{
    uint32_t world = s->opts.world;

    sim_steps(s, sim_newest(s) + 3);
    if (!s->opts.no_lease && below(s, 3) == 0) {
        sim_advance(s, below(s, 6 * s->opts.step_ms));
        sim_kill(s, (uint32_t)below(s, world));
    }
    if (!sim_until_ended(s, 15000 + s->opts.rejoin_ms + 35000 * n_stuck(s)) && !s->is_broken) {
        if (!can_train(s) || (s->complete_step != 0 && s->opts.no_lease))
            return; /* too few tasks are left, or a task that joined too late cannot see that the
                       job is done */
        sim_fail_run(s, "the job is not completed: %u tasks live, %s", sim_alive(s),
                     s->complete_step != 0 ? "its last checkpoint is written"
                                           : "no last checkpoint");
    }
    for (uint32_t i = 0; i < world && !s->is_broken; i++) {
        int code = s->tasks[i].exit_code;
        bool was_gone = s->tasks[i].ended_ms <= calm_ms && s->opts.restart_ms == 0;

        /* Without shared storage, a task that is alone at the end cannot see that the job is
           done. */
        if (code == 138 && (!can_train(s) || s->opts.restart_ms == 0 || s->opts.no_lease))
            continue;
        if (code != 0 && !(code == 143 && s->tasks[i].was_told_to_stop) && !s->tasks[i].is_off &&
            !was_gone && code != SIM_KILLED && (s->opts.restart_ms > 0 || !s->tasks[i].was_stuck))
            sim_fail_run(s, "the job is complete, and %s ended with %d: %s", s->names[i], code,
                         s->tasks[i].exit_text);
    }
}

/* Without faults the group must not change: an alarm would be false. */
static void expect_stable(struct sim *s)
{
    uint32_t first = 0;
    uint64_t generation;

    while (first < s->opts.world && s->tasks[first].node == NULL)
        first++;
    sim_advance(s, 2000); /* effects of the last fault may be in progress */
    if (!sim_until_together(s, sim_alive(s), 8000))
        return; /* a task was asked to leave */
    generation = sim_generation(s, first);
    sim_advance(s, 2000);
    for (uint32_t i = 0; i < s->opts.world && !s->is_broken; i++)
        if (s->tasks[i].node == NULL || s->tasks[i].was_told_to_stop)
            return; /* that task may leave only now */
    if (!s->is_broken && sim_generation(s, first) != generation)
        sim_fail_run(s, "the group broke without a fault: %s",
                     member_node_cause(s->tasks[first].node));
}

/* All tasks are asked to stop within a moment, or one task is asked to stop the job: the state of
 * the group is saved. */
static void all_leave(struct sim *s)
{
    uint64_t newest, begin = s->now_ms;

    if (below(s, 3) == 0)
        sim_stop(s, (uint32_t)below(s, s->opts.world), true);
    else
        for (uint32_t i = 0; i < s->opts.world; i++) {
            sim_stop(s, i, false);
            if (below(s, 2) == 0)
                sim_advance(s, below(s, 60));
        }
    newest = sim_newest(s);
    sim_advance(s, s->opts.grace_ms + 3000);
    for (uint32_t i = 0; i < s->opts.world && !s->is_broken && n_stuck(s) == 0; i++) {
        const struct sim_task *t = &s->tasks[i];

        if (t->was_told_to_stop &&
            (t->node != NULL || (t->exit_code != 143 && t->ended_ms >= begin)))
            sim_fail_run(s, "all were asked to stop, but %s %s", s->names[i],
                         t->node != NULL ? "continues" : t->exit_text);
    }
    /* Survivors of a broken step differ by one step, and the leader saves its own state. */
    if (!s->is_broken && sim_alive(s) == 0 && sim_checkpoint(s) + 1 < newest && n_stuck(s) == 0)
        sim_fail_run(s,
                   "all have left from step %" PRIu64 ", and that of step %" PRIu64
                   " is the newest saved",
                   newest, sim_checkpoint(s));
}

static struct sim_opts draw(uint64_t seed, bool tell)
{
    struct sim die = { .random = (seed + 7) * 0x9e3779b97f4a7c15u };
    struct sim_opts o = { .world = 2 + (uint32_t)below(&die, below(&die, 20) == 0 ? 12 : 5),
                          .seed = seed,
                          .tell = tell };

    o.min_world = below(&die, 3) == 0 ? 1 + (uint32_t)below(&die, o.world) : 1;
    o.no_lease = below(&die, 5) >= 3;
    o.rejoin_ms = below(&die, 4) == 0 ? 1 + below(&die, 3000) : 1 + below(&die, 600);
    o.deadline_ms = 20000;
    o.grace_ms = 2000;
    o.step_ms = 10 + below(&die, 60);
    o.delay_ms = below(&die, 3) == 0 ? 1 + below(&die, 20) : 1 + below(&die, 3);
    o.store_ms = 1 + below(&die, 8);
    o.transfer_ms = 1 + below(&die, 60);
    o.tick_ms = MEMBER_TICK_MS + 10 * below(&die, 4);
    o.start_ms = below(&die, 300);
    o.open_ms = below(&die, 2) * below(&die, 400);
    o.restart_ms = below(&die, 5) == 0 ? 0 : 50 + below(&die, 600);
    o.save_every = below(&die, 2) * (5 + below(&die, 20));
    o.drift = (uint32_t)below(&die, 2) * (uint32_t)below(&die, 11);
    o.probe_trouble = below(&die, 2) == 0 ? 0 : 2 + (uint32_t)below(&die, 10);
    o.handshake_ms = below(&die, 3) == 0 ? 1 + below(&die, 200) : 0;
    return o;
}

/* Returns true while a leader has a task in quarantine: the test waits for its end. */
static bool is_quarantined(const struct sim *s)
{
    struct member_peer p;

    for (uint32_t i = 0; i < s->opts.world; i++)
        for (uint32_t k = 0; s->tasks[i].node != NULL && k < s->opts.world; k++) {
            member_node_peer(s->tasks[i].node, k, &p);
            if (p.is_present && p.quarantine_until_ms != 0 &&
                member_node_state(s->tasks[i].node) == MEMBER_LEADING)
                return true;
        }
    return false;
}

static void play(struct sim *s)
{
    uint32_t n;
    uint64_t limit, calm_ms;

    sim_advance(s, below(s, 4) == 0 ? below(s, 400) : 400 + below(s, 600));
    for (uint64_t faults = 1 + below(s, 5); faults > 0 && !s->is_broken; faults--) {
        one_fault(s);
        sim_advance(s, below(s, 3) == 0   ? below(s, 30)
                       : below(s, 4) == 0 ? below(s, 6000)
                                          : below(s, 1200));
        if (below(s, 4) == 0)
            sim_heal(s);
        if (below(s, 4) == 0)
            go_on(s);
    }
    calm(s, below(s, 4) == 0);
    remember(s);
    calm_ms = s->now_ms;
    limit = 8000 + 2 * s->opts.rejoin_ms + 35000 * n_stuck(s);
    if (s->is_broken)
        return;
    n = expected(s);
    sim_print(s, SIM_ALL, "%u tasks must form a group", n);
    if (n == 0)
        return;
    if (!can_train(s)) {
        expect_reasons(s);
        return;
    }
    for (uint64_t until = s->now_ms + limit; !sim_until_together(s, n, 1000);) {
        n = expected(s); /* a task that was asked to leave may end only now */
        if (s->is_broken || !can_train(s))
            return;
        if (is_quarantined(s))
            until = s->now_ms + limit;
        if (s->now_ms >= until) {
            sim_fail_run(s,
                       "%u tasks live and are not one group %" PRIu64 " ms after the last "
                       "fault",
                       n, limit);
            return;
        }
    }
    expect_no_loss(s);
    if (below(s, 4) == 0 && n_stuck(s) == 0)
        expect_stable(s);
    if (below(s, 6) == 0)
        all_leave(s);
    else
        finish(s, calm_ms);
}

static const char *run(const struct sim_opts *opts)
{
    static char finding[2 * TEXT];
    struct sim_opts o = *opts;
    struct sim *s = sim_new(&o);
    bool is_broken;

    sim_print(s, SIM_ALL,
            "seed %" PRIu64 ": world %u with %u ps, min_world %u, min_ps %u, %s, rejoin %" PRIu64 " ms, step %" PRIu64
            " ms, delay %" PRIu64 " ms, restart %" PRIu64 " ms",
            o.seed, o.world, o.n_ps, o.min_world, o.min_ps,
            o.no_lease ? "no shared storage" : "shared storage", o.rejoin_ms, o.step_ms, o.delay_ms, o.restart_ms);
    play(s);
    is_broken = sim_finding(s) != NULL;
    if (is_broken)
        snprintf(finding, sizeof(finding), "%s", sim_finding(s));
    if (o.tell)
        printf("%s", sim_log(s));
    sim_free(s);
    return is_broken ? finding : NULL;
}

const char *sim_random_scenario(uint64_t seed, bool tell)
{
    struct sim_opts o = draw(seed, tell);

    return run(&o);
}

const char *sim_ps_scenario(uint64_t seed, bool tell)
{
    struct sim_opts o = draw(seed, tell);

    o.n_ps = 1 + (uint32_t)(seed % 3);
    o.min_ps = 1 + (uint32_t)(seed / 3 % o.n_ps);
    o.replicas = (uint32_t)(seed / 9 % 3);
    o.world += o.n_ps;
    return run(&o);
}
