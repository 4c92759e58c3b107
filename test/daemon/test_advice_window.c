/* test_advice_window.c - windows of steps that a test makes up. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>

#include "base/check.h"
#include "base/group_view.h"
#include "daemon/advice_window.h"
#include "opts/advice.h"
#include "train/train.h"

enum { STEPS = 4 };

static const struct advice_limits limits = { .window_steps = STEPS };
static const struct group_member members[] = { { .rank = 3 }, { .rank = 5 } };
static const struct group_view view = { .generation = 8, .members = members, .n_members = 2 };

static bool is_near(double a, double b)
{
    return fabs(a - b) < 1e-9;
}

static void window_has_the_means_of_its_steps(void **state)
{
    struct advice_window *w = advice_window_new(&limits, 2);
    const double idle[] = { 0.25, (double)NAN };
    struct train_step_report s = { .steps = 1, .ns = 900, .lanes = 5, .own_lanes = 2,
                                   .device_idle = idle };
    struct rdzv_window out;

    (void)state;
    advice_window_begin(w, &view);
    advice_window_step(w, &s); /* the first step belongs to no window */
    s.ns = 0;
    advice_window_step(w, &s); /* another task finished this step */
    for (uint64_t i = 0; i < STEPS; i++) {
        assert_false(advice_window_take(w, &out));
        s.ns = 1000 + 200 * i; /* 5200 in all */
        s.data_ns = 100;
        s.reduce_ns = 260;
        s.copy_ns = 40;
        advice_window_step(w, &s);
    }
    assert_true(advice_window_take(w, &out));
    assert_false(advice_window_take(w, &out));
    assert_true(out.number == 1 && out.generation == 8 && out.steps == STEPS && out.lanes == 5);
    assert_true(is_near(out.seconds, 1300e-9) && is_near(out.data, 400.0 / 5200));
    assert_true(is_near(out.reduce, 1040.0 / 5200) && is_near(out.checkpoint, 160.0 / 5200));
    assert_true(is_near(out.lane_seconds, (5200.0 - 400 - 1040 - 160) * 1e-9 / (STEPS * 2)));
    assert_true(is_near(out.idle, 0.25) && out.copy_ms == -1 && out.n_waits == 0);
    for (uint64_t i = 0; i < STEPS; i++)
        advice_window_step(w, &s);
    assert_true(advice_window_take(w, &out) && out.number == 2);
    /* a generation drops the window that is open */
    for (uint64_t i = 0; i < STEPS - 1; i++)
        advice_window_step(w, &s);
    advice_window_begin(w, &view);
    advice_window_step(w, &s);
    advice_window_step(w, &s);
    assert_false(advice_window_take(w, &out));
    advice_window_free(w);
}

/* Such a task computes lanes that its helper contributes, until it receives the offer. */
static void lane_time_has_no_time_of_lanes_that_a_helper_contributed(void **state)
{
    struct advice_window *w = advice_window_new(&limits, 2);
    const struct train_step_report s = { .steps = 1, .ns = 1000, .data_ns = 100, .reduce_ns = 200,
                                         .lanes = 2, .own_lanes = 2, .spare_given = 2, .spare_given_ns = 300 };
    struct rdzv_window out;

    (void)state;
    advice_window_begin(w, &view);
    for (int i = 0; i < STEPS + 1; i++)
        advice_window_step(w, &s);
    assert_true(advice_window_take(w, &out));
    assert_true(is_near(out.lane_seconds, 200e-9));
    advice_window_free(w);
}

static void window_lasts_until_both_limits_are_reached(void **state)
{
    const struct advice_limits hour = { .window_steps = 1, .window_seconds = 3600 };
    struct advice_window *w = advice_window_new(&hour, 1);
    const struct train_step_report s = { .steps = 1, .ns = 1000, .own_lanes = 1 };
    struct rdzv_window out;

    (void)state;
    advice_window_begin(w, &view);
    for (int i = 0; i < 1000; i++)
        advice_window_step(w, &s);
    assert_false(advice_window_take(w, &out));
    advice_window_free(w);
}

/* The durations are known to 2^(1/4). */
static void slowest_of_100_copies_is_the_99th_percentile(void **state)
{
    struct advice_window *w = advice_window_new(&limits, 1);
    struct train_step_report s = { .steps = 1, .ns = 1000, .own_lanes = 1 };
    float ms[100];
    struct rdzv_window out;

    (void)state;
    for (int slow = 0; slow < 2; slow++) {
        advice_window_begin(w, &view);
        advice_window_step(w, &s);
        s.n_feeds = COUNT_OF(ms);
        s.feed_ms = ms;
        for (int i = 0; i < STEPS; i++) {
            for (size_t k = 0; k < COUNT_OF(ms); k++)
                ms[k] = (int)k <= slow - 1 ? 40 : 1;
            advice_window_step(w, &s);
        }
        assert_true(advice_window_take(w, &out));
        assert_true(out.copy_ms >= (slow ? 40 : 1) && out.copy_ms <= (slow ? 48 : 1.2));
    }
    advice_window_free(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(window_has_the_means_of_its_steps),
        cmocka_unit_test(lane_time_has_no_time_of_lanes_that_a_helper_contributed),
        cmocka_unit_test(window_lasts_until_both_limits_are_reached),
        cmocka_unit_test(slowest_of_100_copies_is_the_99th_percentile),
    };

    return cmocka_run_group_tests_name("daemon/advice_window", tests, NULL, NULL);
}
