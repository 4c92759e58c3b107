/* test_advice.c - one injected cause of each kind names exactly that kind and culprit; warnings begin,
 * end and repeat as documented; healthy windows give no advice. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "base/rng.h"
#include "daemon/advice.h"

enum { TASKS = 4, MOST = 16 };

static const struct advice_limits limits = {
    .at = { [ADVICE_REDUCE_SHARE] = 0.2, [ADVICE_DATA_SHARE] = 0.1, [ADVICE_H2D_MS] = 5,
            [ADVICE_DEVICE_USE] = 0.7, [ADVICE_LANE_SPREAD] = 1.25 },
    .window_steps = 50, .window_seconds = 10, .repeat_seconds = 600,
};
static const uint64_t SECOND_US = 1000000;
static const struct rng_key key = { .seed = 77 };

struct group {
    char names[MOST][16];
    struct rdzv_window windows[MOST];
    struct advice_task tasks[MOST];
    struct advice_group g;
    struct advice_state state;
    struct rdzv_advice list[ADVICE_KINDS];
    uint64_t now_us;
};

/* Tasks that compute 0.1 s and wait 5 ms in a step. */
static void begin(struct group *x, uint32_t n)
{
    memset(x, 0, sizeof(*x));
    x->now_us = 1000 * SECOND_US;
    x->g = (struct advice_group){ x->tasks, n };
    for (uint32_t i = 0; i < n; i++) {
        snprintf(x->names[i], sizeof(x->names[i]), "worker %u", i);
        x->tasks[i] = (struct advice_task){ x->names[i], &x->windows[i] };
        x->windows[i] = (struct rdzv_window){ .number = 1, .generation = 1, .steps = 50,
                                              .seconds = 0.105, .reduce = 0.05, .lanes = 2,
                                              .lane_seconds = 0.05, .idle = -1, .copy_ms = -1 };
    }
}

static uint32_t judge(struct group *x)
{
    x->now_us += 10 * SECOND_US;
    return advice_judge(&x->state, &limits, &x->g, x->now_us, x->list);
}

/* Judges two windows, and expects one sentence. */
static void expect(struct group *x, const char *kind, const char *culprit)
{
    uint32_t n = judge(x);

    assert_int_equal(n, 0);
    n = judge(x);
    for (uint32_t i = 0; i < n; i++)
        print_message("%s, %s: %s; %s\n", x->list[i].kind, x->list[i].culprit, x->list[i].text,
                      x->list[i].remedy);
    assert_int_equal(n, 1);
    assert_string_equal(x->list[0].kind, kind);
    assert_string_equal(x->list[0].culprit, culprit);
    assert_true(x->list[0].text[0] != '\0' && x->list[0].remedy[0] != '\0');
}

static void add_wait(struct group *x, uint32_t task, uint32_t rank, double late, double slow,
                     double rate)
{
    struct rdzv_window *w = &x->windows[task];

    assert_true(w->n_waits < RDZV_WAITS_MAX);
    w->waits[w->n_waits++] = (struct rdzv_wait){ rank, late, slow, rate, 0 };
    w->late += late;
    w->slow += slow;
    w->seconds += late + slow;
    w->reduce = (w->late + w->slow) / w->seconds;
}

/* The exchange of halving and doubling: in each round a task waits for its partner, which is late
 * because it computes longer, or because it had to wait in the rounds before. ready: when each task has
 * computed; link: the seconds of each message between two tasks. */
static void run_rounds(struct group *x, double *ready, double (*link)(uint32_t a, uint32_t b))
{
    uint32_t n = x->g.n;

    for (uint32_t distance = 1; distance < n; distance *= 2) {
        double after[MOST];

        for (uint32_t i = 0; i < n; i++) {
            uint32_t other = i ^ distance;
            double late = ready[other] > ready[i] ? ready[other] - ready[i] : 0;
            double slow = link(i, other) / distance;

            if (late + slow > 0)
                add_wait(x, i, other, late, slow, slow > 0 ? 1e6 / link(i, other) : 0);
            after[i] = ready[i] + late + slow;
        }
        memcpy(ready, after, sizeof(after));
    }
}

static double fast_link(uint32_t a, uint32_t b)
{
    (void)a;
    (void)b;
    return 0.001;
}

static double slow_pair(uint32_t a, uint32_t b)
{
    return (a == 2 && b == 3) || (a == 3 && b == 2) ? 0.1 : 0.001;
}

static double slow_cable(uint32_t a, uint32_t b)
{
    return a == 3 || b == 3 ? 0.1 : 0.001;
}

static double slow_everywhere(uint32_t a, uint32_t b)
{
    (void)a;
    (void)b;
    return 0.1;
}

static void late_task_is_named_however_far_its_lateness_spreads(void **state)
{
    (void)state;
    for (uint32_t n = 2; n <= MOST; n *= 2)
        for (uint32_t slow = 0; slow < n; slow++) {
            struct group x;
            double ready[MOST] = { 0 };
            char name[16];

            begin(&x, n);
            ready[slow] = 0.1;
            x.windows[slow].lanes = 4; /* twice the lanes, at the same time each */
            x.windows[slow].seconds += 0.1;
            run_rounds(&x, ready, fast_link);
            snprintf(name, sizeof(name), "worker %u", slow);
            expect(&x, "reduce_share", name);
            assert_non_null(strstr(x.list[0].text,
                                   "computes 4 lanes in 50 ms each, the median task 2 in 50 ms"));
            assert_non_null(strstr(x.list[0].remedy, "train.lanes"));
        }
}

static void task_that_is_late_because_of_checkpoints_is_told_so(void **state)
{
    double ready[MOST] = { [0] = 0.1 };
    struct group x;

    (void)state;
    begin(&x, TASKS);
    x.windows[0].seconds += 0.1;
    x.windows[0].checkpoint = 0.45;
    run_rounds(&x, ready, fast_link);
    expect(&x, "reduce_share", "worker 0");
    assert_non_null(strstr(x.list[0].text, "checkpoints in 45 %"));
    assert_non_null(strstr(x.list[0].remedy, "checkpoint.every_steps"));
}

static void slow_link_is_named_with_its_rate_beside_the_median(void **state)
{
    (void)state;
    for (uint32_t n = 4; n <= MOST; n *= 2) {
        struct group x;
        double ready[MOST] = { 0 };

        begin(&x, n);
        run_rounds(&x, ready, slow_pair);
        expect(&x, "reduce_share", "link between worker 2 and worker 3");
        assert_non_null(
            strstr(x.list[0].text, "carries 10 MB/s, the median of the others 1e+03 MB/s"));
    }
}

static void only_link_of_two_tasks_is_named(void **state)
{
    double ready[MOST] = { 0 };
    struct group x;

    (void)state;
    begin(&x, 2);
    run_rounds(&x, ready, slow_everywhere);
    expect(&x, "reduce_share", "link between worker 0 and worker 1");
    assert_null(strstr(x.list[0].text, "median"));
}

static void slow_cable_of_a_host_names_its_task(void **state)
{
    double ready[MOST] = { 0 };
    struct group x;

    (void)state;
    begin(&x, 4);
    run_rounds(&x, ready, slow_cable);
    expect(&x, "reduce_share", "network of worker 3");
    /* three tasks that all exchange with each other */
    begin(&x, 3);
    for (uint32_t i = 0; i < 2; i++) {
        add_wait(&x, i, 2, 0, 0.1, 5e6);
        add_wait(&x, 2, i, 0, 0.1, 5e6);
    }
    expect(&x, "reduce_share", "network of worker 2");
}

static void links_that_are_equally_slow_name_no_single_task(void **state)
{
    (void)state;
    for (uint32_t n = 4; n <= MOST; n *= 2) {
        double ready[MOST] = { 0 };
        struct group x;

        begin(&x, n);
        run_rounds(&x, ready, slow_everywhere);
        expect(&x, "reduce_share", "no single task");
    }
}

static void two_tasks_that_are_equally_late_name_no_single_task(void **state)
{
    double ready[MOST] = { [1] = 0.1, [2] = 0.098 };
    struct group x;

    (void)state;
    begin(&x, 4);
    run_rounds(&x, ready, fast_link);
    expect(&x, "reduce_share", "no single task");
    assert_non_null(strstr(x.list[0].text, "worker 1 and worker 2"));
}

/* Each of two tasks waits in turn for the other one. */
static void begin_in_turns(struct group *x, double late)
{
    begin(x, 2);
    add_wait(x, 0, 1, late, 0, 0);
    add_wait(x, 1, 0, late, 0, 0);
}

/* The work of a step is too small. */
static void waits_in_turn_name_no_task(void **state)
{
    struct group x;

    (void)state;
    begin_in_turns(&x, 0.05);
    expect(&x, "reduce_share", "no task");
    assert_non_null(strstr(x.list[0].remedy, "larger global batch"));
}

/* Other processes delay both tasks. */
static void waits_in_turn_on_busy_hosts_are_not_counted(void **state)
{
    struct group x;

    (void)state;
    begin_in_turns(&x, 0.05);
    x.windows[0].others = x.windows[1].steal = 0.5;
    for (int i = 0; i < 4; i++)
        assert_int_equal(judge(&x), 0);
    x.windows[1].steal = 0.1; /* worker 0 waits for a host that is not busy */
    expect(&x, "reduce_share", "no task");
    assert_non_null(strstr(x.list[0].text, "worker 0 waits "));
}

/* No other process has delayed a task for a time that is so short. */
static void short_waits_in_turn_on_busy_hosts_are_counted(void **state)
{
    struct group x;

    (void)state;
    begin_in_turns(&x, 0.001);
    for (uint32_t i = 0; i < 2; i++) {
        x.windows[i].seconds = 0.003;
        x.windows[i].reduce = 0.33;
        x.windows[i].others = 0.9;
    }
    expect(&x, "reduce_share", "no task");
}

/* Each task waits for a processor, so messages and lanes take long on all of them; no task, link or clock is to
 * blame, although the numbers of a window differ. */
static void begin_busy(struct group *x, uint32_t n, double delay)
{
    begin(x, n);
    for (uint32_t i = 0; i < n; i++) {
        x->windows[i].delay = delay * (1 + 0.2 * i / n);
        x->windows[i].others = 0.9;
    }
}

static void expect_busy(struct group *x, const char *kind, const char *culprit)
{
    expect(x, kind, culprit);
    assert_non_null(strstr(x->list[0].text, "wait for processors"));
    assert_non_null(strstr(x->list[0].remedy, "end other processes"));
    assert_null(strstr(x->list[0].remedy, "cable"));
    assert_null(strstr(x->list[0].remedy, "turbostat"));
}

static void busy_hosts_the_wait_for_processors_is_the_cause(void **state)
{
    struct group x;

    (void)state;
    begin_busy(&x, TASKS, 0.05); /* the processor of worker 3 was taken while it sent */
    add_wait(&x, 0, 3, 0, 0.08, 1e6);
    expect_busy(&x, "reduce_share", "no single task");
    begin_busy(&x, TASKS, 0.05); /* worker 3 began late */
    for (uint32_t i = 0; i < 3; i++)
        add_wait(&x, i, 3, 0.08, 0, 0);
    expect_busy(&x, "reduce_share", "no single task");
    begin_busy(&x, TASKS, 0.05);
    x.windows[2].lane_seconds = 0.075;
    expect_busy(&x, "lane_spread", "no single task");
    begin_busy(&x, TASKS, 0.05);
    x.windows[2].data = 0.3;
    expect_busy(&x, "data_share", "no single task");
}

static void one_busy_host_its_processors_are_named(void **state)
{
    struct group x;

    (void)state;
    begin_busy(&x, TASKS, 0.002);
    x.windows[3].delay = 0.07;
    for (uint32_t i = 0; i < 3; i++)
        add_wait(&x, i, 3, 0.08, 0, 0);
    expect_busy(&x, "reduce_share", "processors of worker 3");
    assert_non_null(strstr(x.list[0].text, "worker 3 is ready and waits 70 ms of a step for one"));
}

/* The queue of a switch port is short: the first segment of a message is lost, so its receiver sees nothing of the
 * message until it is sent again, as from a late task. */
static void begin_lossy(struct group *x, double losses)
{
    begin(x, TASKS);
    add_wait(x, 0, 1, 0.002, 0.001, 2e8);
    add_wait(x, 1, 0, 0.002, 0.001, 2e8);
    add_wait(x, 2, 3, 0.2, 0, 0);
    add_wait(x, 3, 2, 0.2, 0, 0);
    x->windows[2].waits[0].losses = losses;
    x->windows[3].waits[0].losses = losses;
    add_wait(x, 0, 2, 0.15, 0, 0); /* worker 2 waited before */
    add_wait(x, 1, 3, 0.15, 0, 0);
}

static void link_that_loses_whole_messages_is_named(void **state)
{
    struct group x;

    (void)state;
    begin_lossy(&x, 5);
    expect(&x, "reduce_share", "link between worker 2 and worker 3");
    assert_non_null(strstr(x.list[0].text, "loses packets (10 are sent again in a step)"));
    assert_non_null(strstr(x.list[0].remedy, "test cable"));
    begin_lossy(&x, 5); /* also if the hosts are busy */
    for (uint32_t i = 0; i < TASKS; i++)
        x.windows[i].delay = 0.1;
    expect(&x, "reduce_share", "link between worker 2 and worker 3");
    begin_lossy(&x, 0.3); /* a few retransmissions prove nothing */
    (void)judge(&x);
    assert_int_equal(judge(&x), 1);
    assert_null(strstr(x.list[0].culprit, "link"));
    begin_lossy(&x, 0);
    add_wait(&x, 2, 0, 0.2, 0, 0); /* both links of worker 2 */
    x.windows[0].waits[1].losses = x.windows[2].waits[0].losses = x.windows[3].waits[0].losses = 5;
    expect(&x, "reduce_share", "network of worker 2");
    assert_non_null(strstr(x.list[0].text, "lose packets"));
}

/* The waits for processors are shorter than what the slow link and the slow task cost. */
static void busy_hosts_a_longer_cause_is_named(void **state)
{
    struct group x;

    (void)state;
    begin_busy(&x, TASKS, 0.01);
    add_wait(&x, 2, 3, 0, 0.1, 1e6);
    add_wait(&x, 3, 2, 0, 0.1, 1e6);
    add_wait(&x, 0, 1, 0, 0.001, 1e8);
    expect(&x, "reduce_share", "link between worker 2 and worker 3");
    begin_busy(&x, TASKS, 0.01);
    x.windows[3].lane_seconds = 0.1;
    expect(&x, "lane_spread", "worker 3");
}

static void late_task_of_busy_hosts_is_named(void **state)
{
    (void)state;
    for (uint32_t n = 2; n <= MOST; n *= 2)
        for (uint32_t slow = 0; slow < n; slow++) {
            struct group x;
            double ready[MOST] = { 0 };
            char name[16];

            begin(&x, n);
            for (uint32_t i = 0; i < n; i++) {
                x.windows[i].others = 0.9;
                ready[i] = 0.005 * (double)rng_f32(&key, slow * MOST + i);
            }
            ready[slow] = 0.1;
            run_rounds(&x, ready, fast_link);
            snprintf(name, sizeof(name), "worker %u", slow);
            expect(&x, "reduce_share", name);
        }
}

static void slow_link_of_busy_hosts_is_named(void **state)
{
    double ready[MOST] = { 0 };
    struct group x;

    (void)state;
    begin(&x, 4);
    for (uint32_t i = 0; i < 4; i++)
        x.windows[i].others = 0.9;
    run_rounds(&x, ready, slow_pair);
    expect(&x, "reduce_share", "link between worker 2 and worker 3");
}

static void waits_that_are_not_counted_name_no_single_task(void **state)
{
    struct group x;

    (void)state;
    begin(&x, TASKS);
    x.windows[2].reduce = 0.4;
    expect(&x, "reduce_share", "no single task");
    assert_non_null(strstr(x.list[0].text, "NCCL"));
}

static void slow_data_of_one_task_names_it_and_of_all_tasks_none(void **state)
{
    struct group x;

    (void)state;
    begin(&x, TASKS);
    x.windows[1].data = 0.3;
    expect(&x, "data_share", "worker 1");
    assert_non_null(strstr(x.list[0].text, "for decoding"));
    assert_non_null(strstr(x.list[0].remedy, "data.threads"));
    begin(&x, TASKS);
    x.windows[1].data = 0.3;
    x.windows[1].storage = 0.4;
    expect(&x, "data_share", "worker 1");
    assert_non_null(strstr(x.list[0].text, "wait for storage (40 %"));
    assert_non_null(strstr(x.list[0].remedy, "iostat"));
    begin(&x, TASKS);
    for (uint32_t i = 0; i < TASKS; i++)
        x.windows[i].data = 0.3 + 0.001 * i;
    expect(&x, "data_share", "no single task");
    begin(&x, 1);
    x.windows[0].data = 0.3;
    expect(&x, "data_share", "worker 0");
}

static void slow_copies_to_a_gpu_name_its_task(void **state)
{
    struct group x;

    (void)state;
    begin(&x, TASKS);
    for (uint32_t i = 0; i < TASKS; i++)
        x.windows[i].copy_ms = i == 2 ? 9 : 1;
    expect(&x, "h2d_ms", "GPUs of worker 2");
}

static void idle_gpus_name_their_task_and_the_largest_gap(void **state)
{
    static const struct {
        double data, reduce;
        const char *gap;
    } rows[] = { { 0.01, 0.01, "most for the host" },
                 { 0.01, 0.19, "most for the host" },
                 { 0.09, 0.19, "most for the all-reduce" } };

    (void)state;
    for (size_t r = 0; r < COUNT_OF(rows); r++) {
        struct group x;

        begin(&x, TASKS);
        for (uint32_t i = 0; i < TASKS; i++)
            x.windows[i].idle = i == 0 ? (r == 2 ? 0.4 : 0.5) : 0.1;
        x.windows[0].data = rows[r].data;
        x.windows[0].reduce = rows[r].reduce;
        expect(&x, "device_use", "GPUs of worker 0");
        assert_non_null(strstr(x.list[0].text, rows[r].gap));
    }
}

/* The slow task has fewer lanes, so no task waits. */
static void slow_lanes_name_their_task_with_the_load_of_its_host(void **state)
{
    struct group x;

    (void)state;
    begin(&x, TASKS);
    x.windows[3].lane_seconds = 0.1;
    x.windows[3].lanes = 1;
    x.windows[3].others = 0.6;
    x.windows[3].steal = 0.05;
    expect(&x, "lane_spread", "worker 3");
    assert_non_null(strstr(x.list[0].text, "2 times as long"));
    assert_non_null(strstr(x.list[0].text, "use 60 %"));
    assert_non_null(strstr(x.list[0].text, "hypervisor takes 5 %"));
}

/* Values of a kind around its limit: below, beyond, between end and begin, below the end. */
static void warning_begins_after_two_windows_and_ends_below_three_quarters(void **state)
{
    static const struct {
        enum advice_kind kind;
        size_t at;
        double beyond, between, below;
    } rows[] = {
        { ADVICE_REDUCE_SHARE, offsetof(struct rdzv_window, reduce), 0.21, 0.16, 0.14 },
        { ADVICE_DATA_SHARE, offsetof(struct rdzv_window, data), 0.11, 0.08, 0.07 },
        { ADVICE_H2D_MS, offsetof(struct rdzv_window, copy_ms), 5.5, 4, 3.5 },
        { ADVICE_DEVICE_USE, offsetof(struct rdzv_window, idle), 0.31, 0.24, 0.21 },
        { ADVICE_LANE_SPREAD, offsetof(struct rdzv_window, lane_seconds), 0.0635, 0.06, 0.059 },
    };

    (void)state;
    for (size_t r = 0; r < COUNT_OF(rows); r++) {
        struct group x;
        double *value;

        begin(&x, TASKS);
        value = (double *)(void *)((char *)&x.windows[1] + rows[r].at);
        const struct {
            double value;
            uint32_t n;
        } steps[] = { { rows[r].beyond, 0 }, { rows[r].below, 0 }, { rows[r].beyond, 0 },
                      { rows[r].between, 0 }, { rows[r].beyond, 0 }, { rows[r].beyond, 1 },
                      { rows[r].between, 1 }, { rows[r].between, 1 }, { rows[r].below, 0 },
                      { rows[r].between, 0 }, { rows[r].beyond, 0 }, { rows[r].beyond, 1 } };
        for (size_t i = 0; i < COUNT_OF(steps); i++) {
            *value = steps[i].value;
            assert_int_equal(judge(&x), steps[i].n);
            if (steps[i].n > 0)
                assert_string_equal(x.list[0].kind, advice_kind_name(rows[r].kind));
        }
    }
}

static void sentence_is_issued_again_after_repeat_seconds_only(void **state)
{
    struct group x;
    uint64_t first;

    (void)state;
    begin(&x, TASKS);
    x.windows[1].data = 0.3;
    (void)judge(&x);
    assert_int_equal(judge(&x), 1);
    first = x.list[0].time_us;
    assert_int_equal(first, x.now_us);
    for (uint64_t until = first + 590 * SECOND_US; x.now_us < until;) {
        assert_int_equal(judge(&x), 1);
        assert_int_equal(x.list[0].time_us, first);
    }
    assert_int_equal(judge(&x), 1); /* after 600 s */
    assert_int_equal(x.list[0].time_us, x.now_us);
    /* The warning ends and begins again: that is the same one. */
    first = x.now_us;
    x.windows[1].data = 0;
    assert_int_equal(judge(&x), 0);
    x.windows[1].data = 0.3;
    (void)judge(&x);
    assert_int_equal(judge(&x), 1);
    assert_int_equal(x.list[0].time_us, first);
}

static void new_culprit_is_issued_at_once_and_each_one_after_repeat_seconds_only(void **state)
{
    struct group x;
    uint64_t vague, first;

    (void)state;
    begin(&x, TASKS);
    for (uint32_t i = 0; i < TASKS; i++)
        x.windows[i].data = 0.3;
    (void)judge(&x);
    assert_int_equal(judge(&x), 1);
    assert_string_equal(x.list[0].culprit, "no single task");
    vague = x.list[0].time_us;
    x.windows[1].data = 0.6;
    assert_int_equal(judge(&x), 1);
    assert_string_equal(x.list[0].culprit, "worker 1");
    first = x.list[0].time_us;
    assert_int_equal(first, x.now_us);
    x.windows[1].data = 0.3; /* an issue that was logged already */
    assert_int_equal(judge(&x), 1);
    assert_int_equal(x.list[0].time_us, vague);
    for (uint32_t i = 2; i < 30; i++) { /* at most two tasks in turns, not more log lines */
        x.windows[1].data = i % 2 ? 0.6 : 0.3;
        assert_int_equal(judge(&x), 1);
        assert_int_equal(x.list[0].time_us, i % 2 ? first : vague);
    }
}

static void issue_is_recorded_once_and_the_oldest_culprit_is_forgotten(void **state)
{
    struct advice_issues issues = { 0 };
    struct rdzv_advice x = { .culprit = "" };

    (void)state;
    for (uint32_t i = 0; i <= ADVICE_ISSUES; i++) {
        snprintf(x.culprit, sizeof(x.culprit), "worker %u", i);
        x.time_us = 100 + i;
        assert_true(advice_record(&issues, &x));
        assert_false(advice_record(&issues, &x));
    }
    snprintf(x.culprit, sizeof(x.culprit), "worker 1");
    x.time_us = 101;
    assert_false(advice_record(&issues, &x));
    snprintf(x.culprit, sizeof(x.culprit), "worker 0");
    x.time_us = 100;
    assert_true(advice_record(&issues, &x));
}

static void new_leader_does_not_repeat_what_the_former_one_issued(void **state)
{
    struct group x;

    (void)state;
    begin(&x, TASKS);
    advice_was_issued(&x.state, &(struct rdzv_advice){ .kind = "data_share",
                                                       .culprit = "worker 1",
                                                       .time_us = x.now_us - SECOND_US });
    advice_was_issued(&x.state, &(struct rdzv_advice){ .kind = "a kind of a later version", .time_us = 5 });
    x.windows[1].data = 0.3;
    (void)judge(&x);
    assert_int_equal(judge(&x), 1);
    assert_int_equal(x.list[0].time_us, 999 * SECOND_US);
}

static void limit_of_zero_switches_a_kind_off(void **state)
{
    struct advice_limits none = limits;
    struct group x;

    (void)state;
    memset(none.at, 0, sizeof(none.at));
    begin(&x, TASKS);
    x.windows[1].data = x.windows[1].idle = 0.9;
    x.windows[1].reduce = 0.9;
    x.windows[1].copy_ms = x.windows[1].lane_seconds = 100;
    for (int i = 0; i < 4; i++)
        assert_int_equal(advice_judge(&x.state, &none, &x.g, x.now_us, x.list), 0);
}

static void tasks_without_a_window_are_ignored(void **state)
{
    struct group x;

    (void)state;
    begin(&x, TASKS);
    x.windows[1].data = 0.3;
    x.tasks[1].window = NULL;
    for (int i = 0; i < 3; i++)
        assert_int_equal(judge(&x), 0);
    for (uint32_t i = 0; i < TASKS; i++)
        x.tasks[i].window = NULL;
    assert_int_equal(judge(&x), 0);
}

/* A wait may name a task that has no window, such as one that has left. */
static void random_windows_are_judged_without_a_crash(void **state)
{
    struct group x;

    (void)state;
    for (uint32_t round = 0; round < 20000; round++) {
        uint32_t at = round * 1000;

#define RANDOM() ((double)rng_f32(&key, at++))
        begin(&x, 1 + round % MOST);
        for (uint32_t i = 0; i < x.g.n; i++) {
            struct rdzv_window *w = &x.windows[i];

            w->reduce = RANDOM();
            w->data = RANDOM();
            w->idle = RANDOM();
            w->lanes = (uint32_t)(5 * RANDOM());
            w->n_waits = (uint32_t)(5.99 * RANDOM());
            for (uint32_t k = 0; k < w->n_waits; k++)
                w->waits[k] = (struct rdzv_wait){ (uint32_t)(RANDOM() * x.g.n), RANDOM(), RANDOM(),
                                                  RANDOM() < 0.5 ? 0 : 1e8 * RANDOM(),
                                                  RANDOM() < 0.5 ? 0 : 9 * RANDOM() };
            x.tasks[i].window = RANDOM() < 0.9 ? w : NULL;
        }
        for (int i = 0; i < 2; i++)
            for (uint32_t n = judge(&x), k = 0; k < n; k++)
                assert_true(x.list[k].culprit[0] != '\0' && x.list[k].remedy[0] != '\0');
    }
}

/* Steps of equal tasks with some jitter, as on hosts with other processes. */
static void healthy_windows_give_no_advice(void **state)
{
    struct group x;
    uint32_t at = 0;

    (void)state;
    begin(&x, MOST);
    for (uint32_t round = 0; round < 20000; round++) {
        for (uint32_t i = 0; i < MOST; i++) {
            struct rdzv_window *w = &x.windows[i];

            w->reduce = 0.19 * RANDOM();
            w->data = 0.09 * RANDOM();
            w->idle = 0.29 * RANDOM();
            w->copy_ms = 4.9 * RANDOM();
            w->lane_seconds = 0.05 * (1 + 0.24 * RANDOM());
            w->n_waits = 1;
            w->waits[0] = (struct rdzv_wait){ (i + 1) % MOST, 0.1 * RANDOM(), 0.1 * RANDOM(), 1e8, 0 };
        }
        /* one window beyond a limit is no warning */
        if (round % 2 == 0)
            x.windows[round % MOST].reduce = x.windows[round % MOST].data = RANDOM();
        assert_int_equal(judge(&x), 0);
    }
#undef RANDOM
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(late_task_is_named_however_far_its_lateness_spreads),
        cmocka_unit_test(task_that_is_late_because_of_checkpoints_is_told_so),
        cmocka_unit_test(slow_link_is_named_with_its_rate_beside_the_median),
        cmocka_unit_test(only_link_of_two_tasks_is_named),
        cmocka_unit_test(slow_cable_of_a_host_names_its_task),
        cmocka_unit_test(links_that_are_equally_slow_name_no_single_task),
        cmocka_unit_test(two_tasks_that_are_equally_late_name_no_single_task),
        cmocka_unit_test(waits_in_turn_name_no_task),
        cmocka_unit_test(waits_in_turn_on_busy_hosts_are_not_counted),
        cmocka_unit_test(short_waits_in_turn_on_busy_hosts_are_counted),
        cmocka_unit_test(busy_hosts_the_wait_for_processors_is_the_cause),
        cmocka_unit_test(one_busy_host_its_processors_are_named),
        cmocka_unit_test(link_that_loses_whole_messages_is_named),
        cmocka_unit_test(busy_hosts_a_longer_cause_is_named),
        cmocka_unit_test(late_task_of_busy_hosts_is_named),
        cmocka_unit_test(slow_link_of_busy_hosts_is_named),
        cmocka_unit_test(waits_that_are_not_counted_name_no_single_task),
        cmocka_unit_test(slow_data_of_one_task_names_it_and_of_all_tasks_none),
        cmocka_unit_test(slow_copies_to_a_gpu_name_its_task),
        cmocka_unit_test(idle_gpus_name_their_task_and_the_largest_gap),
        cmocka_unit_test(slow_lanes_name_their_task_with_the_load_of_its_host),
        cmocka_unit_test(warning_begins_after_two_windows_and_ends_below_three_quarters),
        cmocka_unit_test(sentence_is_issued_again_after_repeat_seconds_only),
        cmocka_unit_test(new_culprit_is_issued_at_once_and_each_one_after_repeat_seconds_only),
        cmocka_unit_test(issue_is_recorded_once_and_the_oldest_culprit_is_forgotten),
        cmocka_unit_test(new_leader_does_not_repeat_what_the_former_one_issued),
        cmocka_unit_test(limit_of_zero_switches_a_kind_off),
        cmocka_unit_test(tasks_without_a_window_are_ignored),
        cmocka_unit_test(random_windows_are_judged_without_a_crash),
        cmocka_unit_test(healthy_windows_give_no_advice),
    };

    return cmocka_run_group_tests_name("daemon/advice", tests, NULL, NULL);
}
