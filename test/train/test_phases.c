/* test_phases.c - tests which period contains a step, and what is due in it. The expected periods are
 * written by hand, or made by a loop over the formula. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/err.h"
#include "optim/optim.h"
#include "train/model.h"
#include "train/phases.h"
#include "train/train_types.h"

enum { LANES = 8, STEPS = 40 };

static const struct train_phase mixed[] = {
    { .until_step = 5, .mode = TRAIN_SYNC },
    { .until_step = 15, .mode = TRAIN_LOCAL_SGD, .groups = 2, .sync_every = 4 },
    { .until_step = 17, .mode = TRAIN_SYNC },
    { .until_step = 26, .mode = TRAIN_LOCAL_SGD, .groups = 4, .sync_every = 3, .inner_slots = TRAIN_SLOTS_RESET },
    { .mode = TRAIN_SYNC },
};

static struct train_opts opts_of(const struct train_phase *phases, uint32_t n)
{
    static const struct device cpu = { .kind = DEVICE_CPU };

    return (struct train_opts){ .lanes = LANES,
                                .devices = &cpu,
                                .n_devices = 1,
                                .run = { .phases = phases, .n_phases = n } };
}

static struct phases opened(const struct train_phase *phases, uint32_t n,
                            const struct optim_schedule *s, uint64_t steps)
{
    struct train_opts o = opts_of(phases, n);
    struct phases p;
    struct err err;

    if (phases_open(&p, &o, s, steps, &err) < 0)
        fail_msg("%s", err.text);
    return p;
}

/* Writes "1 2 3 4 5 9 13 15 ...": the last step of each period. */
static void ends_of(struct phases *p, char *text, size_t n)
{
    size_t at = 0;

    for (uint64_t k = 1; k <= p->total_steps; k = phases_period(p, k).last + 1)
        at += (size_t)snprintf(text + at, n - at, "%llu ",
                               (unsigned long long)phases_period(p, k).last);
}

static void periods_of_mixed_phases_end_at_outer_steps_and_at_the_end_of_a_phase(void **state)
{
    struct phases p = opened(mixed, 5, NULL, STEPS);
    char text[512];

    (void)state;
    ends_of(&p, text, sizeof(text));
    assert_string_equal(
        text, "1 2 3 4 5 9 13 15 16 17 20 23 26 27 28 29 30 31 32 33 34 35 36 37 38 39 40 ");
}

/* In any order, so that no result depends on the call before. */
static void period_of_any_step_is_that_of_a_pass_over_all_steps(void **state)
{
    const struct optim_schedule s = { .type = OPTIM_COSINE, .learning_rate = 0.1, .total_steps = 200 };
    const struct train_phase phases[] = {
        { .until_step = 7, .mode = TRAIN_SYNC },
        { .until_step = 60, .mode = TRAIN_LOCAL_SGD, .groups = 2, .sync_rule = { .base = 2, .alpha = 0.2 } },
        { .until_step = 61, .mode = TRAIN_SYNC },
        { .until_step = 150, .mode = TRAIN_LOCAL_SGD, .groups = 2, .sync_every = 7 },
        { .mode = TRAIN_LOCAL_SGD, .groups = 8, .sync_rule = { .base = 3, .alpha = 0.1 } },
    };
    struct phases pass = opened(phases, 5, &s, 200), p = opened(phases, 5, &s, 200);
    struct period all[201];

    (void)state;
    for (uint64_t k = 1; k <= 200; k++)
        all[k] = phases_period(&pass, k);
    for (uint64_t i = 0; i < 5000; i++) {
        uint64_t k = 1 + i * 7919 % 200;
        struct period x = phases_period(&p, k);

        assert_true(x.before < k && k <= x.last);
        assert_memory_equal(&x, &all[k], sizeof(x));
    }
}

static void outer_steps_are_counted_over_all_phases(void **state)
{
    struct phases p = opened(mixed, 5, NULL, STEPS);
    static const struct {
        uint64_t step, outer_step;
        uint32_t phase;
        bool is_local, ends_phase;
    } rows[] = {
        { 1, 0, 0, false, false }, { 5, 0, 0, false, true },  { 6, 1, 1, true, false },
        { 9, 1, 1, true, false },  { 10, 2, 1, true, false }, { 15, 3, 1, true, true },
        { 16, 3, 2, false, false }, { 17, 3, 2, false, true }, { 18, 4, 3, true, false },
        { 26, 6, 3, true, true },  { 27, 6, 4, false, false }, { 40, 6, 4, false, true },
    };

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
        struct period x = phases_period(&p, rows[i].step);

        assert_int_equal(x.outer_step, rows[i].outer_step);
        assert_int_equal(x.phase, rows[i].phase);
        assert_int_equal(x.is_local, rows[i].is_local);
        assert_int_equal(phases_ends_phase(&p, &x), rows[i].ends_phase);
    }
}

/* H = max(base, floor((alpha / rate)^2)), with the rate of the first step of the period, in the warm-up
 * that of its end. */
static void quadratic_rule_has_the_lengths_of_its_formula(void **state)
{
    const struct optim_schedule s = { .type = OPTIM_COSINE, .learning_rate = 0.008, .warmup_steps = 100,
                                      .total_steps = 5000 };
    const struct train_phase phase = { .mode = TRAIN_LOCAL_SGD, .groups = 2,
                                       .sync_rule = { .base = 4, .alpha = 0.0175 } };
    struct phases p = opened(&phase, 1, &s, 5000);
    uint64_t before = 0, longest = 0, n = 0;

    (void)state;
    while (before < 5000) {
        double t = (double)(before + 1), u = (t - 100) / (5000 - 100);
        double rate = t <= 100 ? 0.008 : 0.008 * 0.5 * (1 + cos(M_PI * u));
        double h = floor((0.0175 / rate) * (0.0175 / rate));
        uint64_t left = 5000 - before, length = h < 4 ? 4 : h > (double)left ? left : (uint64_t)h;
        struct period x = phases_period(&p, before + 1);

        length = length < left ? length : left;
        assert_int_equal(x.before, before);
        assert_int_equal(x.last, before + length);
        before = x.last;
        longest = length > longest ? length : longest;
        n++;
    }
    assert_true(longest > 400 && n > 300);
}

static void rate_of_zero_ends_the_period_with_the_phase(void **state)
{
    const struct optim_schedule s = { .type = OPTIM_STEP, .learning_rate = 0, .step_size = 10, .gamma = 1,
                                      .total_steps = STEPS };
    const struct train_phase phases[] = {
        { .until_step = 30, .mode = TRAIN_LOCAL_SGD, .groups = 2, .sync_rule = { .base = 4, .alpha = 1 } },
        { .mode = TRAIN_SYNC },
    };
    struct phases p = opened(phases, 2, &s, STEPS);

    (void)state;
    assert_int_equal(phases_period(&p, 1).last, 30);
}

static void slot_steps_count_from_the_last_outer_step_that_resets(void **state)
{
    struct phases p = opened(mixed, 5, NULL, STEPS);
    /* averaged until step 17; zero after 20, 23 and 26 */
    static const uint64_t rows[][2] = { { 1, 1 },   { 9, 9 },  { 15, 15 }, { 18, 18 }, { 20, 20 },
                                        { 21, 1 },  { 23, 3 }, { 24, 1 },  { 26, 3 },  { 27, 1 },
                                        { 40, 14 } };

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++)
        assert_int_equal(phases_slot_steps(&p, rows[i][0]), rows[i][1]);
}

static void evaluation_of_a_step_in_a_period_is_due_at_its_outer_step(void **state)
{
    struct phases p = opened(mixed, 5, NULL, STEPS);
    const struct train_opts o = { .run.eval_every_epochs = 1 };
    const struct model m = { .opts = &o, .eval_samples = 1, .steps_per_epoch = 7, .total_steps = STEPS };
    char text[128] = "";

    (void)state;
    for (uint64_t k = 1; k <= STEPS; k = phases_period(&p, k).last + 1) {
        uint64_t last = phases_period(&p, k).last;

        if (phases_evaluate(&p, &m, last))
            snprintf(text + strlen(text), sizeof(text) - strlen(text), "%llu ",
                     (unsigned long long)last);
    }
    assert_string_equal(text, "9 15 23 28 35 40 "); /* after steps 7, 14, 21, 28, 35, and the last one */
}

static void job_without_phases_has_periods_of_one_step(void **state)
{
    struct phases p = opened(NULL, 0, NULL, STEPS);
    struct period x = phases_period(&p, 9);

    (void)state;
    assert_int_equal(x.before, 8);
    assert_int_equal(x.last, 9);
    assert_false(x.is_local);
    assert_null(phases_of(&p, &x));
    assert_false(phases_ends_phase(&p, &x));
    assert_int_equal(phases_slot_steps(&p, 9), 9);
    assert_int_equal(phases_period(&p, 0).last, 0);
}

static void refused(const struct train_opts *o, int code, const char *text)
{
    struct phases p;
    struct err err;

    assert_int_equal(phases_open(&p, o, NULL, STEPS, &err), code);
    if (strstr(err.text, text) == NULL)
        fail_msg("\"%s\" lacks \"%s\"", err.text, text);
}

static void unsupported_combination_is_refused_with_place_and_remedy(void **state)
{
    static const struct device gpu = { .kind = DEVICE_CUDA };
    static const struct ps_settings ps = { .tables = PS_TABLES_AUTO, .replicas = 1 };
    struct train_phase phases[] = { { .until_step = STEPS, .mode = TRAIN_SYNC },
                                    { .mode = TRAIN_LOCAL_SGD, .groups = 2, .sync_every = 4 } };
    struct train_opts o = opts_of(phases, 2);

    (void)state;
    refused(&o, ERR_INPUT,
            "/train/phases/0/until_step: the job ends after step 40, so phase 1 has no steps");
    phases[0].until_step = 5;
    o.n_devices = 2;
    refused(&o, ERR_UNSUPPORTED,
            "/train/phases/1/mode: \"local_sgd\" needs one replica in each task");
    o.n_devices = 1;
    o.devices = &gpu;
    refused(&o, ERR_UNSUPPORTED, "/train/phases/1/mode: \"local_sgd\" trains on CPUs alone");
    o = opts_of(phases, 2);
    o.ps = &ps;
    refused(&o, ERR_UNSUPPORTED,
            "/train/phases/1/mode: groups of \"local_sgd\" have weights of their own");
    o = opts_of(phases, 2);
    o.lanes = 12;
    refused(&o, ERR_INPUT,
            "/train/phases/1/groups: 2 groups cannot have equal aligned blocks of 12 lanes");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(periods_of_mixed_phases_end_at_outer_steps_and_at_the_end_of_a_phase),
        cmocka_unit_test(period_of_any_step_is_that_of_a_pass_over_all_steps),
        cmocka_unit_test(outer_steps_are_counted_over_all_phases),
        cmocka_unit_test(quadratic_rule_has_the_lengths_of_its_formula),
        cmocka_unit_test(rate_of_zero_ends_the_period_with_the_phase),
        cmocka_unit_test(slot_steps_count_from_the_last_outer_step_that_resets),
        cmocka_unit_test(evaluation_of_a_step_in_a_period_is_due_at_its_outer_step),
        cmocka_unit_test(job_without_phases_has_periods_of_one_step),
        cmocka_unit_test(unsupported_combination_is_refused_with_place_and_remedy),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
