/* test_balance.c - when lanes move between tasks, over synthetic windows: a group in which a step takes
 * the longest time that a task computes its lanes, and some time for messages. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/check.h"
#include "base/rng.h"
#include "daemon/balance.h"

enum { WORLD = 4, LANES = 64, WINDOW_S = 10 };

struct group {
    struct balance b;
    struct balance_limits limits;
    struct balance_division division; /* present */
    double seconds[WORLD];            /* of a lane */
    double spare;                     /* longest time of lanes that spare lanes leave; 0: there are none */
    double rest, second;              /* seconds of a step for other work; and if a task has two pieces */
    uint64_t generation, now_s;
    uint32_t n_moves;
    uint64_t moved_s[64];
    struct balance_move move; /* the last one */
};

static void init(struct group *g)
{
    memset(g, 0, sizeof(*g));
    g->limits = (struct balance_limits){ .gain = 0.1, .seconds = 60 };
    g->generation = 1;
    for (uint32_t r = 0; r < WORLD; r++)
        g->seconds[r] = 0.01;
}

/* Lanes of a rank, counted here. */
static uint32_t lanes_of(const struct group *g, uint32_t rank)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < g->division.n; i++)
        n += g->division.pieces[i].rank == rank ? g->division.pieces[i].n : 0;
    return g->division.n > 0 ? n : LANES / WORLD;
}

static double step_of(const struct group *g)
{
    double longest = 0;

    for (uint32_t r = 0; r < WORLD; r++)
        if (lanes_of(g, r) * g->seconds[r] > longest)
            longest = lanes_of(g, r) * g->seconds[r];
    if (g->spare > 0 && g->spare < longest)
        longest = g->spare;
    return longest + g->rest + (g->division.n > WORLD ? g->second : 0);
}

/* One window passes. */
static void pass(struct group *g, uint64_t steps)
{
    const struct balance_window w = { .generation = g->generation,
                                      .steps = steps,
                                      .step_seconds = step_of(g),
                                      .seconds = g->seconds,
                                      .world = WORLD,
                                      .lanes = LANES,
                                      .most = 32,
                                      .pieces = g->division.pieces,
                                      .n_pieces = g->division.n };

    g->now_s += WINDOW_S;
    if (!balance_judge(&g->b, &g->limits, &w, 1000 * g->now_s, &g->move))
        return;
    g->division = g->move.to;
    g->generation++;
    g->moved_s[g->n_moves++] = g->now_s;
    assert_true(g->n_moves < COUNT_OF(g->moved_s));
}

static void pass_until(struct group *g, uint64_t s)
{
    while (g->now_s < s)
        pass(g, 50);
}

static double noise(uint32_t *at)
{
    const struct rng_key key = { .seed = 20261128 };

    return rng_f32(&key, (*at)++);
}

static void spare_lanes_shorten_steps_the_prediction_is_above_the_time_of_the_lanes(void **state)
{
    struct group g;

    (void)state;
    init(&g);
    g.seconds[3] = 0.05; /* 16 lanes take 0.8 s, and the best division needs 0.2 s */
    g.spare = 0.25;
    pass_until(&g, 40);
    assert_int_equal(g.n_moves, 1);
    assert_true(g.move.before == 0.25);
    assert_true(g.move.after >= 0.19 && g.move.after <= 0.21);
}

static void slow_task_loses_lanes_once(void **state)
{
    struct group g;

    (void)state;
    init(&g);
    g.seconds[3] = 0.02;
    pass_until(&g, 600);
    assert_int_equal(g.n_moves, 1);
    assert_int_equal(g.moved_s[0], 40); /* the first window is warm-up, three are judged */
    assert_true(step_of(&g) <= 0.2);    /* 20 lanes; it was 0.32 */
    assert_true(g.move.before == 0.32);
    assert_true(g.move.after > 0.1999 && g.move.after < 0.2001 && !g.move.returns);
    assert_true(g.b.trial.patience == 60); /* the gain came */
    /* the task recovers: equal shares are better by 20 % */
    g.seconds[3] = 0.01;
    pass_until(&g, 1200);
    assert_int_equal(g.n_moves, 2);
    assert_int_equal(g.division.n, 0);
}

static void group_of_equal_tasks_moves_nothing(void **state)
{
    struct group g;

    (void)state;
    init(&g);
    pass_until(&g, 1000);
    assert_int_equal(g.n_moves, 0);
    g.seconds[2] = 0.0105; /* 5 % */
    pass_until(&g, 2000);
    assert_int_equal(g.n_moves, 0);
}

static void small_part_of_a_step_moves_nothing(void **state)
{
    struct group g;

    (void)state;
    init(&g);
    g.seconds[3] = 0.02;
    g.rest = 2; /* 0.12 of 2.3 s */
    pass_until(&g, 1000);
    assert_int_equal(g.n_moves, 0);
}

static void first_steps_of_a_generation_do_not_count(void **state)
{
    struct group g;

    (void)state;
    init(&g);
    g.seconds[3] = 0.02;
    for (int i = 0; i < 100; i++) {
        pass(&g, 6); /* 20 steps are in the fourth window; the fifth to seventh are judged */
        g.generation += i % 6 == 5;
    }
    assert_int_equal(g.n_moves, 0);
    for (int i = 0; i < 8 && g.n_moves == 0; i++)
        pass(&g, 6);
    assert_int_equal(g.n_moves, 1);
}

/* Slow for 30 s, then fast for 30 s: the gain does not come, so the waits grow. */
static void alternating_slowness_moves_few_lanes(void **state)
{
    (void)state;
    for (uint64_t half = 10; half <= 60; half += 10)
        for (uint64_t shift = 0; shift < 2 * half; shift += 10) {
            struct group g;

            init(&g);
            while (g.now_s < 300) {
                g.seconds[3] = (g.now_s + shift) / half % 2 == 0 ? 0.02 : 0.01;
                pass(&g, 50);
            }
            assert_in_range(g.n_moves, 0, 3);
            while (g.now_s < 3600) {
                g.seconds[3] = (g.now_s + shift) / half % 2 == 0 ? 0.02 : 0.01;
                pass(&g, 50);
            }
            assert_in_range(g.n_moves, 0, half <= 20 ? 0 : 12);
            for (uint32_t i = 1; i < g.n_moves; i++)
                assert_true(g.moved_s[i] - g.moved_s[i - 1] >= 60);
        }
}

/* Another process takes cores from one task for up to two windows, now from this and now from that one. */
static void stolen_cores_move_nothing(void **state)
{
    uint32_t at = 0;

    (void)state;
    for (int run = 0; run < 200; run++) {
        uint32_t victim = 0, n = 0; /* windows in a row; 0: no task is slow */
        struct group g;

        init(&g);
        while (g.now_s < 600) {
            if (n == 2 || noise(&at) < 0.4) {
                victim = (victim + 1 + (uint32_t)(noise(&at) * (WORLD - 1))) % WORLD;
                n = noise(&at) < 0.7;
            } else if (n > 0) {
                n++;
            }
            for (uint32_t r = 0; r < WORLD; r++)
                g.seconds[r] = 0.01 * (1 + 0.2 * noise(&at)) * (n > 0 && r == victim ? 2 : 1);
            pass(&g, 50);
        }
        assert_int_equal(g.n_moves, 0);
    }
}

static void moves_that_gain_nothing_become_rare_and_are_undone(void **state)
{
    struct group g;

    (void)state;
    init(&g);
    g.seconds[3] = 0.02;
    g.second = 0.2; /* the second sums cost more than the lanes save */
    pass_until(&g, 100);
    assert_int_equal(g.n_moves, 1);
    assert_true(g.b.trial.patience == 120);
    pass_until(&g, 200);
    assert_int_equal(g.n_moves, 2);
    assert_true(g.move.returns && g.division.n == 0);
    assert_int_equal(g.moved_s[1], g.moved_s[0] + 120);
    pass_until(&g, 4 * 3600);
    assert_true(g.b.trial.patience == TRIAL_MAX_SECONDS);
    assert_in_range(g.n_moves, 3, 24);
    for (uint32_t i = 12; i < g.n_moves; i++)
        assert_true(g.moved_s[i] - g.moved_s[i - 1] >= TRIAL_MAX_SECONDS);
}

static void other_group_forgets_the_prediction(void **state)
{
    struct group g;

    (void)state;
    init(&g);
    g.seconds[3] = 0.02;
    pass_until(&g, 40);
    assert_int_equal(g.n_moves, 1);
    /* a task was lost and returned: equal shares in a new generation */
    g.division.n = 0;
    g.generation++;
    pass_until(&g, 90);
    assert_true(g.b.trial.patience == 60); /* nothing was compared with the prediction */
    assert_int_equal(g.n_moves, 1);
    pass_until(&g, 120);
    assert_int_equal(g.n_moves, 2);
    assert_true(g.moved_s[1] - g.moved_s[0] >= 60);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(spare_lanes_shorten_steps_the_prediction_is_above_the_time_of_the_lanes),
        cmocka_unit_test(slow_task_loses_lanes_once),
        cmocka_unit_test(group_of_equal_tasks_moves_nothing),
        cmocka_unit_test(small_part_of_a_step_moves_nothing),
        cmocka_unit_test(first_steps_of_a_generation_do_not_count),
        cmocka_unit_test(alternating_slowness_moves_few_lanes),
        cmocka_unit_test(stolen_cores_move_nothing),
        cmocka_unit_test(moves_that_gain_nothing_become_rare_and_are_undone),
        cmocka_unit_test(other_group_forgets_the_prediction),
    };

    return cmocka_run_group_tests_name("daemon/balance", tests, NULL, NULL);
}
