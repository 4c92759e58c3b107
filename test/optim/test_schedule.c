#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>

#include "optim/optim.h"

/* The optimizers' half of the header is the other test's. */
#pragma GCC diagnostic ignored "-Wunused-variable"
#pragma GCC diagnostic ignored "-Wunused-const-variable"
#include "optim/reference.h"

enum { N_SCHEDULES = sizeof(reference_schedules) / sizeof(*reference_schedules) };

static void rates_are_those_of_pytorch_schedulers(void **state)
{
    (void)state;
    for (size_t k = 0; k < N_SCHEDULES; k++) {
        const struct optim_schedule *s = &reference_schedules[k].schedule;

        for (uint64_t t = 1; t <= s->total_steps; t++) {
            double rate = optim_rate(s, t), expected = reference_schedules[k].rates[t - 1];

            if (fabs(rate - expected) > 1e-14)
                fail_msg("schedule %zu, step %d: %.17g, expected %.17g", k, (int)t, rate, expected);
        }
    }
}

/* And nothing else moves. */
static void the_momentum_of_one_cycle_is_that_of_pytorch(void **state)
{
    (void)state;
    for (size_t k = 0; k < sizeof(reference_cycles) / sizeof(*reference_cycles); k++) {
        const struct reference_cycle *r = &reference_cycles[k];

        for (uint64_t t = 1; t <= r->schedule.total_steps + 2; t++) {
            struct optim_hyper h = { .momentum = r->own, .beta1 = r->own, .beta2 = 0.5 };
            double expected = t <= r->schedule.total_steps ? r->values[t - 1] : r->own;
            bool beta = r->schedule.cycles == OPTIM_CYCLES_BETA1;

            optim_cycle(&r->schedule, t, &h);
            if (fabs((beta ? h.beta1 : h.momentum) - expected) > 1e-14)
                fail_msg("cycle %zu, step %d: %.17g, expected %.17g", k, (int)t,
                         beta ? h.beta1 : h.momentum, expected);
            assert_true((beta ? h.momentum : h.beta1) == r->own && h.beta2 == 0.5);
        }
    }
}

static void the_ends_are_exact(void **state)
{
    struct optim_schedule s = { .type = OPTIM_COSINE, .learning_rate = 0.7, .warmup_steps = 3,
                                .total_steps = 1000003, .final_fraction = 0.125 };

    (void)state;
    assert_true(optim_rate(&s, 1) == 0.7 * (1.0 / 3));
    assert_true(optim_rate(&s, 3) == 0.7);
    assert_true(optim_rate(&s, 500003) == 0.7 * (0.125 + 0.875 / 2));
    assert_true(optim_rate(&s, 1000003) == 0.7 * 0.125);
    assert_true(optim_rate(&s, 1000004) == 0.7 * 0.125);
    assert_true(optim_rate(&s, UINT64_MAX) == 0.7 * 0.125);
    s.warmup_steps = 0;
    assert_true(optim_rate(&s, 1) == 0.7);
    s.total_steps = 1; /* no room to fall */
    assert_true(optim_rate(&s, 1) == 0.7);
    assert_true(optim_rate(&s, 2) == 0.7 * 0.125);
    s.total_steps = 5;
    s.warmup_steps = 10; /* stopped while warming up */
    assert_true(optim_rate(&s, 5) == 0.35);
    assert_true(optim_rate(&s, 11) == 0.7 * 0.125);
}

/* Half a cosine against the C library, and falling all the way. */
static void the_cosine_is_one(void **state)
{
    struct optim_schedule s = { .type = OPTIM_COSINE, .learning_rate = 1, .total_steps = 100001 };
    double before = 2;

    (void)state;
    for (uint64_t t = 1; t <= s.total_steps; t++) {
        double rate = optim_rate(&s, t), u = (double)(t - 1) / 100000;

        assert_true(fabs(rate - (1 + cos(3.14159265358979323846 * u)) / 2) < 4e-16);
        assert_true(rate < before);
        before = rate;
    }
}

static void a_plateau_follows_pytorch_and_counts_an_evaluation_once(void **state)
{
    enum { N = sizeof(reference_losses) / sizeof(*reference_losses) };

    (void)state;
    for (size_t k = 0; k < sizeof(reference_plateaus) / sizeof(*reference_plateaus); k++) {
        const struct reference_plateau *r = &reference_plateaus[k];
        struct optim_schedule s = { .type = OPTIM_PLATEAU, .learning_rate = 0.3, .gamma = r->gamma,
                                    .threshold = r->threshold, .patience = r->patience,
                                    .final_fraction = r->final_fraction, .total_steps = 1000 };

        assert_true(optim_rate(&s, 1) == 0.3);
        for (uint64_t i = 0; i < N; i++) {
            struct optim_plateau before;

            optim_record_evaluation(&s, 7 * (i + 1), reference_losses[i]);
            assert_true(fabs(optim_rate(&s, 7 * (i + 1) + 1) - r->rates[i]) < 1e-15);
            before = s.plateau;
            optim_record_evaluation(&s, 7 * (i + 1), 0.001); /* again, as a resumed run may */
            assert_memory_equal(&before, &s.plateau, sizeof(before));
        }
        assert_true(s.plateau.reductions > 1);
    }
}

static void other_schedules_do_not_hear_of_evaluations(void **state)
{
    struct optim_schedule s = { .type = OPTIM_COSINE, .learning_rate = 1, .total_steps = 10 };

    (void)state;
    optim_record_evaluation(&s, 3, 7);
    assert_true(s.plateau.step == 0 && !s.plateau.has_best);
}

static void a_step_schedule_goes_on_for_ever(void **state)
{
    struct optim_schedule s = { .type = OPTIM_STEP, .learning_rate = 0.5, .step_size = 3,
                                .gamma = 0.1 };

    (void)state;
    for (uint64_t t = 1; t <= 60; t++) {
        double expected = 0.5 * pow(0.1, (double)((t - 1) / 3));

        assert_true(fabs(optim_rate(&s, t) - expected) <= 1e-14 * expected);
    }
    assert_true(optim_rate(&s, UINT64_MAX) == 0);
}

static void the_linear_rule_scales_by_the_batch(void **state)
{
    (void)state;
    assert_true(optim_scale_linear(0.1, 8192, 256) == 0.1 * 8192 / 256);
    assert_true(optim_scale_linear(0.3, 64, 64) == 0.3);
}

static void the_square_root_rule_scales_by_its_root(void **state)
{
    (void)state;
    assert_true(optim_scale_sqrt(0.1, 1024, 64) == 0.1 * 4);
    assert_true(optim_scale_sqrt(0.3, 64, 64) == 0.3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rates_are_those_of_pytorch_schedulers),
        cmocka_unit_test(the_momentum_of_one_cycle_is_that_of_pytorch),
        cmocka_unit_test(the_ends_are_exact),
        cmocka_unit_test(the_cosine_is_one),
        cmocka_unit_test(a_step_schedule_goes_on_for_ever),
        cmocka_unit_test(the_linear_rule_scales_by_the_batch),
        cmocka_unit_test(the_square_root_rule_scales_by_its_root),
        cmocka_unit_test(a_plateau_follows_pytorch_and_counts_an_evaluation_once),
        cmocka_unit_test(other_schedules_do_not_hear_of_evaluations),
    };

    return cmocka_run_group_tests_name("optim/schedule", tests, NULL, NULL);
}
