/* test_precision.c - every precision on emulated GPUs, and the loss scale of float16, which
 * influences only whether gradients overflow. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "base/cancel.h"
#include "harness/emulated_gpus.h"
#include "op/op.h"
#include "train/fixture.h"

enum { FEW = 6 };

static const struct loss_scale_rule usual = { .initial = 65536, .min = 1, .max = 16777216, .growth_interval = 2000 };

static uint64_t overflows; /* number of reported overflows */
static double told_scale;  /* reported with the last step */

static void listen(void *arg, const struct train_event *e)
{
    if (e->kind == TRAIN_OVERFLOWED)
        overflows = e->all;
    if (e->kind == TRAIN_STEP)
        told_scale = e->report->loss_scale;
    fixture_event(arg, e);
}

/* Returns a fixture with `precision` on `gpus` GPUs, 0: on a CPU. It has not run. */
static struct fixture *prepared(uint32_t gpus, enum plan_precision precision)
{
    struct fixture *f = fixture_new(gpus > 0 ? gpus : 1, 4);
    struct err err;
    uint32_t n;

    f->opts.run.steps = FEW;
    f->opts.global_batch = 8;
    f->opts.run.precision = precision;
    f->opts.on_event = listen;
    if (precision == PLAN_FLOAT16)
        f->opts.run.loss_scale = usual;
    if (gpus > 0 && device_parse(gpus == 1 ? "cuda:0" : "cuda:0,1", 0, f->devices, &n, &err) < 0)
        fail_msg("%s", err.text);
    overflows = 0;
    return f;
}

static struct fixture *trained(struct fixture *f)
{
    struct err err;

    run(f);
    if (f->end != TRAIN_COMPLETE)
        fail_msg("%s", f->text);
    assert_int_equal(train_sync(f->train, &err), 0);
    return f;
}

static bool same_state(const struct fixture *a, const struct fixture *b)
{
    return memcmp(a->train->engine->memory.state, b->train->engine->memory.state,
                  a->train->engine->memory.state_bytes) == 0;
}

static void losses_of_each_precision_are_close_but_not_equal_to_float32(void **state)
{
    static const struct { enum plan_precision precision; double near; } rows[] = {
        { PLAN_TF32, 2e-3 }, { PLAN_FLOAT16, 5e-3 }, { PLAN_BFLOAT16, 3e-2 }
    };
    struct fixture *wide = trained(prepared(1, PLAN_FLOAT32));

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct fixture *f = trained(prepared(1, rows[i].precision));
        const char *name = plan_precision_name(rows[i].precision);

        for (uint64_t k = 1; k <= FEW; k++)
            if (!(fabs(f->losses[k] - wide->losses[k]) <= rows[i].near))
                fail_msg("%s: loss of step %d is %g, in float32 %g", name, (int)k, f->losses[k],
                         wide->losses[k]);
        if (f->losses[1] == wide->losses[1])
            fail_msg("%s: nothing was computed so", name);
        assert_int_equal(overflows, 0);
        assert_true(told_scale == (rows[i].precision == PLAN_FLOAT16 ? 65536 : 0));
        fixture_free(f);
    }
    fixture_free(wide);
}

static void precision_of_gpus_only_is_refused_on_a_cpu(void **state)
{
    static const enum plan_precision theirs[] = { PLAN_TF32, PLAN_FLOAT16 };

    (void)state;
    for (size_t i = 0; i < sizeof(theirs) / sizeof(theirs[0]); i++) {
        struct fixture *f = prepared(0, theirs[i]);
        struct cancel cancel = { 0 };
        struct err err;

        assert_int_equal(train_open(&f->opts, &cancel, &f->train, &err), ERR_UNSUPPORTED);
        assert_non_null(strstr(err.text, "is supported by GPUs only"));
        assert_non_null(strstr(err.text, plan_precision_name(theirs[i])));
        fixture_free(f);
    }
}

/* ---- without overflow the scale changes no bit: float32 with a rule for the scale ---- */

static void clipped(struct fixture *f)
{
    f->opts.optimizer.type = OPTIM_ADAMW;
    f->opts.optimizer.hyper = (struct optim_hyper){ .beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-6, .weight_decay = 0.01 };
    f->opts.optimizer.schedule.learning_rate = 0.002;
    f->opts.run.clip_value = 0.05;
    f->opts.run.clip_norm = 0.5;
}

/* Uses a mean whose divisor is known only after the all-reduce. */
static void adapted(struct fixture *f)
{
    static const float weights[10] = { 40, 30, 20, 40, 30, 20, 40, 30, 20, 40 };
    static const struct op_attr attrs[] = {
        { .name = "class_weights", .type = OP_ATTR_FLOATS, .n = 10, .floats = weights },
    };

    f->loss.attrs = attrs;
    f->loss.n_attrs = 1;
    f->opts.mean_of_weights = true;
    f->opts.run.clip_value = 0.01;
    f->opts.optimizer.type = OPTIM_LARS;
    f->opts.optimizer.hyper = (struct optim_hyper){ .momentum = 0.9, .trust_coefficient = 0.1, .weight_decay = 0.001 };
    f->opts.run.clip_norm = 0;
    f->opts.run.log_every_steps = 2;
}

static void loss_scale_without_overflow_changes_no_bit(void **state)
{
    static void (*const changes[])(struct fixture *f) = { clipped, adapted };

    (void)state;
    for (size_t i = 0; i < sizeof(changes) / sizeof(changes[0]); i++)
        for (uint32_t gpus = 0; gpus < 2; gpus++) {
            struct fixture *one = prepared(gpus, PLAN_FLOAT32),
                           *scaled = prepared(gpus, PLAN_FLOAT32);

            one->opts.run.steps = scaled->opts.run.steps = 3;
            scaled->opts.run.loss_scale = usual;
            scaled->opts.run.loss_scale.growth_interval = 1;
            changes[i](one);
            changes[i](scaled);
            trained(one);
            trained(scaled);
            assert_true(told_scale == 8 * 65536);
            assert_memory_equal(one->losses, scaled->losses, sizeof(one->losses));
            assert_true(same_state(one, scaled));
            fixture_free(one);
            fixture_free(scaled);
        }
}

/* ---- overflow ---- */

/* 2^30 times the gradient of a mean over 8 samples overflows float16, and so does half of it. */
static struct fixture *overflowing(uint32_t gpus, uint64_t stop_after)
{
    struct fixture *f = prepared(gpus, PLAN_FLOAT16);

    f->opts.run.loss_scale = (struct loss_scale_rule){
        .initial = 0x1p30, .min = 1, .max = 0x1p30, .growth_interval = 3
    };
    f->stop_after = stop_after;
    return f;
}

static void overflow_changes_only_the_scale(void **state)
{
    struct fixture *f = overflowing(2, 2), *fresh = prepared(1, PLAN_FLOAT32);
    struct err err;

    (void)state;
    fixture_open(fresh);
    run(f);
    assert_int_equal(f->end, TRAIN_PAUSED);
    assert_int_equal(train_sync(f->train, &err), 0);
    assert_true(same_state(f, fresh));
    assert_int_equal(overflows, f->held);
    assert_true(told_scale == ldexp(1, 30 - (int)f->held));
    assert_int_equal(f->train->health.skips, 0);
    /* the loss itself is not scaled */
    assert_true(isfinite(f->losses[1]) && fabs(f->losses[1] - 2.3) < 1);
    fixture_free(f);
    fixture_free(fresh);
}

/* The state depends on the job and the step, also after a checkpoint between two increases of the
 * scale. */
static void scale_and_count_resume_from_a_checkpoint(void **state)
{
    struct fixture *all[] = { overflowing(1, 0), overflowing(1, 8), overflowing(1, 0) };
    struct fixture *whole = all[0], *first = all[1], *second = all[2];
    uint64_t at;

    (void)state;
    for (int i = 0; i < 3; i++) {
        all[i]->opts.run.steps = 12;
        all[i]->opts.run.loss_scale.initial = 0x1p21;
    }
    first->opts.checkpoint.directory = second->opts.checkpoint.directory = first->checkpoints;
    trained(whole);
    assert_in_range(overflows, 2, 10);
    overflows = 0;
    run(first);
    at = first->held;
    assert_int_equal(first->end, TRAIN_PAUSED);
    assert_int_equal(train_save(first->train, 20000, &(struct err){ 0 }), 0);
    trained(second);
    assert_int_equal(second->steps, 12 - at);
    assert_true(same_state(whole, second));
    assert_true(whole->train->state.facts.scale.scale == second->train->state.facts.scale.scale);
    assert_int_equal(whole->train->state.facts.scale.good, second->train->state.facts.scale.good);
    fixture_free(second);
    fixture_free(first);
    fixture_free(whole);
}

static void overflow_at_the_minimum_scale_is_an_error_and_located(void **state)
{
    struct fixture *f = overflowing(1, 0);

    (void)state;
    f->opts.run.loss_scale.min = 0x1p29;
    f->opts.health.non_finite = TRAIN_STOP;
    run(f);
    assert_int_equal(f->end, TRAIN_FAILED);
    assert_int_equal(f->held, 1); /* one step was skipped to reduce the scale */
    assert_non_null(strstr(f->text, "with a loss scale of 536870912, the least,"));
    assert_non_null(strstr(f->text, "holds NaN or infinity"));
    assert_non_null(strstr(f->text, "lane 0 (positions"));
    assert_non_null(strstr(f->text, "the gradient of 'logits' float16"));
    fixture_free(f);
}

static void policy_skip_continues_from_the_state_of_the_gpu(void **state)
{
    struct fixture *f = overflowing(1, 0), *fresh = prepared(1, PLAN_FLOAT32);

    (void)state;
    f->opts.run.steps = 3;
    f->opts.run.loss_scale.min = 0x1p30;
    f->opts.health.non_finite = TRAIN_SKIP;
    f->opts.checkpoint.directory = f->checkpoints;
    f->opts.checkpoint.every_steps = 1;
    fixture_open(fresh);
    trained(f);
    assert_int_equal(f->train->health.skips, 3);
    assert_int_equal(overflows, 0);
    assert_true(f->saves > 0);
    assert_true(same_state(f, fresh));
    fixture_free(f);
    fixture_free(fresh);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(losses_of_each_precision_are_close_but_not_equal_to_float32),
        cmocka_unit_test(precision_of_gpus_only_is_refused_on_a_cpu),
        cmocka_unit_test(loss_scale_without_overflow_changes_no_bit),
        cmocka_unit_test(overflow_changes_only_the_scale),
        cmocka_unit_test(scale_and_count_resume_from_a_checkpoint),
        cmocka_unit_test(overflow_at_the_minimum_scale_is_an_error_and_located),
        cmocka_unit_test(policy_skip_continues_from_the_state_of_the_gpu),
    };

    (void)argc;
    emulated_gpus(argv);
    return cmocka_run_group_tests_name("train/precision", tests, NULL, NULL);
}
