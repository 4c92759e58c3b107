/* test_gpu.c - compares replicas on emulated GPUs (test/cuda) with replicas on CPUs. With
 * TRAINERD_TEST_CUDA=1 the tests run on the GPUs of the plugin on the library path; tests that need
 * more GPUs than there are are skipped. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "base/check.h"
#include "base/fault.h"
#include "engine/residual.h"
#include "harness/emulated_gpus.h"
#include "harness/lacking.h"
#include "harness/ring.h"
#include "op/op.h"
#include "train/fixture.h"

enum { FEW = 12, BUCKET = 4096 /* bytes: about twenty buckets in a step */ };

static bool has_gpus(uint32_t n)
{
    struct device there[DEVICE_MAX];

    return gpus_there(n, there);
}

/* Trains on `gpus` GPUs (0: on one CPU) and returns the open fixture. */
static struct fixture *trained(uint32_t gpus, uint32_t lanes, void (*change)(struct fixture *f))
{
    static const char *const names[] = {
        [1] = "cuda:0",     [2] = "cuda:0,1",         [3] = "cuda:0,1,2",
        [4] = "cuda:0,1,2,3", [8] = "cuda:0,1,2,3,4,5,6,7",
    };
    struct fixture *f = fixture_new(gpus > 0 ? gpus : 1, lanes);
    struct err err;
    uint32_t n;

    f->opts.run.steps = FEW;
    f->opts.bucket_bytes = BUCKET;
    if (gpus > 0 && device_parse(names[gpus], 0, f->devices, &n, &err) < 0)
        fail_msg("%s", err.text);
    if (change != NULL)
        change(f);
    run(f);
    if (f->end != TRAIN_COMPLETE)
        fail_msg("%s", f->text);
    assert_int_equal(f->steps, FEW);
    assert_int_equal(train_sync(f->train, &err), 0);
    return f;
}

static void expect_near(const struct fixture *got, const struct fixture *want)
{
    size_t n = want->train->engine->memory.state_bytes / sizeof(float);
    const float *a = got->train->engine->memory.state, *b = want->train->engine->memory.state;

    for (uint64_t k = 1; k <= FEW; k++)
        if (!(fabs(got->losses[k] - want->losses[k]) <= 1e-3))
            fail_msg("loss of step %d is %g, the CPU's %g", (int)k, got->losses[k],
                     want->losses[k]);
    for (size_t i = 0; i < n; i++)
        /* rounding may change a ReLU or the maximum of a window */
        if (!(fabsf(a[i] - b[i]) <= 2e-2f))
            fail_msg("float %zu of the state is %g, the CPU has %g", i, (double)a[i], (double)b[i]);
}

/* ---- the tests ---- */

static void buckets_are_all_reduced_once_with_any_lanes_and_replicas(void **state)
{
    /* With an odd number of lanes a lane's slot changes from step to step: some calls are captured
     * while others are repeated. */
    static const struct { uint32_t gpus, lanes; } rows[] = { { 1, 1 }, { 1, 4 }, { 2, 2 }, { 2, 4 }, { 2, 16 } };

    (void)state;
    for (size_t i = ring_count(1, 0); i < sizeof(rows) / sizeof(rows[0]) && has_gpus(rows[i].gpus);
         i += ring_count(2, 1)) {
        struct fixture *cpu = trained(0, rows[i].lanes, NULL),
                       *gpu = trained(rows[i].gpus, rows[i].lanes, NULL);

        expect_near(gpu, cpu);
        fixture_free(cpu);
        fixture_free(gpu);
    }
}

static void three_lanes(struct fixture *f)
{
    f->opts.global_batch = 36;
    f->opts.lanes = 6;
}

static void odd_share(struct fixture *f)
{
    f->opts.global_batch = 36;
    f->opts.lanes = f->opts.replicas = 3;
    f->opts.min_replicas = 1;
}

static void three_lanes_of_a_gpu_are_all_reduced(void **state)
{
    struct fixture *cpu, *gpu;

    (void)state;
    if (!has_gpus(2))
        skip_lacking("no two emulated GPUs");
    cpu = trained(0, 6, three_lanes);
    gpu = trained(2, 6, three_lanes);
    expect_near(gpu, cpu);
    fixture_free(cpu);
    fixture_free(gpu);
}

/* One GPU has two of the three lanes, the other has one; both capture the all-reduce in the same
 * step. */
static void gpus_with_unequal_shares_of_the_lanes_all_reduce_together(void **state)
{
    struct fixture *cpu, *gpu;

    (void)state;
    if (!has_gpus(2))
        skip_lacking("no two emulated GPUs");
    cpu = trained(0, 3, odd_share);
    gpu = trained(2, 3, odd_share);
    assert_int_not_equal(gpu->train->replicas[0].device->n_lanes,
                         gpu->train->replicas[1].device->n_lanes);
    expect_near(gpu, cpu);
    fixture_free(cpu);
    fixture_free(gpu);
}

/* ---- the order of lanes ---- */

static void in_order(struct fixture *f)
{
    f->opts.deterministic = true;
    f->opts.global_batch = 96;
    f->opts.health.check_gradients = true;
    fixture_small_model(f);
}

static void in_order_with_few_lanes(struct fixture *f)
{
    in_order(f);
    f->opts.bucket_bytes = 1 << 20; /* one bucket, which does not fill it */
}

static bool states_differ(const struct fixture *a, const struct fixture *b)
{
    return memcmp(a->train->engine->memory.state, b->train->engine->memory.state,
                  a->train->engine->memory.state_bytes) != 0;
}

static void expect_equal(const struct fixture *got, const struct fixture *want, uint32_t gpus)
{
    for (uint64_t k = 1; k <= FEW; k++)
        if (memcmp(&got->losses[k], &want->losses[k], sizeof(got->losses[k])) != 0)
            fail_msg("%u GPUs: loss of step %d is %a, that of one GPU %a", gpus, (int)k,
                     got->losses[k], want->losses[k]);
    if (states_differ(got, want))
        fail_msg("%u GPUs: the state differs from that of one GPU", gpus);
}

static void unordered(struct fixture *f)
{
    in_order(f);
    f->opts.deterministic = false;
}

static void sums_in_the_order_of_lanes_have_the_same_bits_on_any_number_of_gpus(void **state)
{
    /* 24 lanes on 8 GPUs: 4, 4, 4, 4, 2, 2, 2, 2; on 3: 8 each */
    static const uint32_t gpus[] = { 2, 3, 4, 8 };
    struct fixture *one;

    (void)state;
    if (!has_gpus(8))
        skip_lacking("no eight emulated GPUs");
    one = trained(1, 24, in_order);
    for (size_t i = 0; i < sizeof(gpus) / sizeof(gpus[0]); i++) {
        struct fixture *many = trained(gpus[i], 24, in_order);

        expect_equal(many, one, gpus[i]);
        fixture_free(many);
    }
    fixture_free(one);
}

static void vector_smaller_than_a_bucket_is_summed_in_order(void **state)
{
    struct fixture *one, *many;

    (void)state;
    if (!has_gpus(4))
        skip_lacking("no four emulated GPUs");
    one = trained(1, 8, in_order_with_few_lanes);
    many = trained(4, 8, in_order_with_few_lanes);
    expect_equal(many, one, 4);
    fixture_free(many);
    fixture_free(one);
}

/* The emulated NCCL adds rank after rank: the option is what makes the bits equal. */
static void sums_of_nccl_depend_on_the_number_of_gpus(void **state)
{
    struct fixture *one, *many;

    (void)state;
    if (!has_gpus(8) || fixture_on_gpus()) /* the order of the real NCCL may happen to be the tree */
        skip_lacking("no eight emulated GPUs");
    one = trained(1, 8, unordered);
    many = trained(8, 8, unordered);
    assert_true(states_differ(many, one));
    fixture_free(many);
    fixture_free(one);
}

/* The sum of the lanes differs much from the mean, so that clipping too early would change the
 * result. */
static void mean_of_what_counts(struct fixture *f)
{
    static const float weights[10] = { 40, 30, 20, 40, 30, 20, 40, 30, 20, 40 };
    static const struct op_attr attrs[] = {
        { .name = "class_weights", .type = OP_ATTR_FLOATS, .n = 10, .floats = weights },
    };

    f->loss.attrs = attrs;
    f->loss.n_attrs = 1;
    f->opts.mean_of_weights = true;
    f->opts.run.clip_value = 0.01;
}

/* ---- codes ---- */

static struct code_settings code; /* of the next run */

static void coded(struct fixture *f)
{
    in_order(f);
    f->opts.global_batch = 64;
    f->opts.deterministic = false; /* codes follow the tree over lanes in any case */
    f->opts.bucket_bytes = 1500;   /* rounded up to whole blocks */
    f->opts.code = code;
}

/* GPUs that have parts of groups, one group, and several of them, unequally on three GPUs. */
static void codes_have_the_same_bits_on_any_number_of_gpus(void **state)
{
    static const uint32_t gpus[] = { 2, 3, 4 }, groups[] = { 2, 4, 8, 1 };
    struct fixture *plain;

    (void)state;
    if (!has_gpus(4))
        skip_lacking("no four emulated GPUs");
    code = (struct code_settings){ 0 };
    plain = trained(1, 8, coded);
    for (int kind = CODE_BFLOAT16; kind < CODE_KINDS; kind++) {
        struct fixture *one;

        code = (struct code_settings){ .kind = (enum code_kind)kind,
                                       .groups = groups[kind - CODE_BFLOAT16] };
        one = trained(1, 8, coded);
        assert_true(states_differ(one, plain));
        for (size_t i = 0; i < sizeof(gpus) / sizeof(gpus[0]); i++) {
            struct fixture *many = trained(gpus[i], 8, coded);

            expect_equal(many, one, gpus[i]);
            fixture_free(many);
        }
        fixture_free(one);
    }
    fixture_free(plain);
}

static const struct code_settings with_residuals[] = {
    { .kind = CODE_TOP_K, .groups = 4, .fraction = 0.1, .copy_every_steps = 5 },
    { .kind = CODE_POWER_SGD, .groups = 4, .rank = 2, .copy_every_steps = 5 },
};

static bool has_residuals(const struct fixture *f)
{
    const struct engine *e = f->train->engine;
    size_t n = residual_floats(e) * e->opts->code->groups, found = 0;

    for (size_t i = 0; i < n; i++)
        found += residual_of_group(e, 0)[i] != 0;
    return n > 0 && found > n / 4;
}

/* The state that is compared has the residuals of all groups. */
static void codes_with_residuals_have_the_same_bits_on_any_number_of_gpus(void **state)
{
    static const uint32_t gpus[] = { 2, 3, 4 };

    (void)state;
    if (!has_gpus(4))
        skip_lacking("no four emulated GPUs");
    for (size_t k = 0; k < COUNT_OF(with_residuals); k++) {
        struct fixture *one, *cpu;

        code = with_residuals[k];
        one = trained(1, 8, coded);
        cpu = trained(0, 8, coded);
        assert_true(has_residuals(one));
        expect_near(one, cpu);
        for (size_t i = 0; i < COUNT_OF(gpus); i++) {
            struct fixture *many = trained(gpus[i], 8, coded);

            expect_equal(many, one, gpus[i]);
            fixture_free(many);
        }
        fixture_free(one);
        fixture_free(cpu);
    }
}

static void code_with_residuals_that_codes_no_parameter_has_the_bits_of_float32(void **state)
{
    (void)state;
    if (!has_gpus(2))
        skip_lacking("no two emulated GPUs");
    for (size_t k = 0; k < COUNT_OF(with_residuals); k++) {
        struct fixture *plain, *many;

        code = (struct code_settings){ 0 };
        plain = trained(1, 8, coded);
        code = with_residuals[k];
        code.min_bytes = 1 << 30;
        many = trained(2, 8, coded);
        expect_equal(many, plain, 2);
        fixture_free(plain);
        fixture_free(many);
    }
}

static uint64_t reported_bytes, overflows; /* of a run */

static void add_bytes(void *arg, const struct train_event *e)
{
    if (e->kind == TRAIN_STEP)
        reported_bytes += e->report->coded_bytes;
    overflows += e->kind == TRAIN_OVERFLOWED;
    fixture_event(arg, e);
}

static void counted(struct fixture *f)
{
    coded(f);
    f->opts.on_event = add_bytes;
}

/* Trains with `code` on two GPUs. *wire: the bytes that they have sent to each other. */
static struct fixture *trained_on_a_counted_wire(uint64_t *wire)
{
    char path[128], line[64];
    struct fixture *f;
    FILE *file;

    reported_bytes = *wire = 0;
    snprintf(path, sizeof(path), "%s/trainerd-traffic-%d", fixture_root, (int)getpid());
    setenv("EMULATED_NCCL_TRAFFIC", path, 1);
    f = trained(2, 8, counted);
    unsetenv("EMULATED_NCCL_TRAFFIC");
    file = fopen(path, "r");
    assert_non_null(file);
    while (fgets(line, sizeof(line), file) != NULL)
        *wire += strtoull(strchr(line, ' '), NULL, 10);
    fclose(file);
    unlink(path);
    return f;
}

/* Two ranks with a group each send every slice once to its owner, and its sum once to the other rank. */
static void codes_on_the_wire_have_the_bytes_of_the_formula(void **state)
{
    struct fixture *f;
    uint64_t wire, want;

    (void)state;
    if (!has_gpus(2) || fixture_on_gpus())
        skip_lacking("no two emulated GPUs");
    code = (struct code_settings){ .kind = CODE_INT8, .groups = 2 };
    f = trained_on_a_counted_wire(&wire);
    want = 2 * (2 * 260 + (f->train->engine->memory.grads - 512) * sizeof(float)) * FEW;
    fixture_free(f);
    assert_int_equal(wire, want);
    assert_int_equal(reported_bytes, want);
}

static void coded_loss_scale(struct fixture *f)
{
    coded(f);
    f->opts.run.precision = PLAN_FLOAT16;
    /* the first steps overflow, and are left out */
    f->opts.run.loss_scale = (struct loss_scale_rule){ .initial = 0x1p26, .min = 1, .max = 0x1p30, .growth_interval = 4 };
    f->opts.optimizer.average.decay = 0.9;
    f->opts.run.clip_norm = 0.5;
    f->opts.on_event = add_bytes;
}

static void coded_clipped_mean(struct fixture *f)
{
    mean_of_what_counts(f);
    coded(f);
}

static void codes_are_combined_with_loss_scales_clipping_and_means(void **state)
{
    void (*const changes[])(struct fixture *) = { coded_loss_scale, coded_clipped_mean };

    (void)state;
    if (!has_gpus(2))
        skip_lacking("no two emulated GPUs");
    for (size_t k = 0; k < 1 + COUNT_OF(with_residuals); k++) {
        code = (struct code_settings){ .kind = CODE_INT4, .groups = 2 };
        if (k > 0)
            code = with_residuals[k - 1];
        overflows = 0;
        for (size_t i = 0; i < sizeof(changes) / sizeof(changes[0]); i++) {
            struct fixture *one = trained(1, 8, changes[i]), *many = trained(2, 8, changes[i]);

            expect_equal(many, one, 2);
            fixture_free(many);
            fixture_free(one);
        }
        assert_true(overflows > 0);
    }
}

static void growing_loss_scale(struct fixture *f)
{
    coded(f);
    f->opts.run.loss_scale = (struct loss_scale_rule){ .initial = 256, .min = 1, .max = 0x1p20, .growth_interval = 3 };
}

/* In float32 a multiplication of all gradients by a power of two is exact. */
static void residuals_do_not_contain_the_loss_scale(void **state)
{
    (void)state;
    if (!has_gpus(1))
        skip_lacking("no emulated GPU");
    for (size_t k = 0; k < COUNT_OF(with_residuals); k++) {
        struct fixture *scaled, *plain;

        code = with_residuals[k];
        scaled = trained(1, 8, growing_loss_scale);
        plain = trained(1, 8, coded);
        expect_equal(scaled, plain, 1);
        fixture_free(scaled);
        fixture_free(plain);
    }
}

/* A GPU sends the message of its group to the other one; or half of the factors as a summand, and half as a sum, as of
 * the numbers that are not coded. */
static void residual_codes_on_the_wire_have_the_bytes_of_the_formula(void **state)
{
    (void)state;
    if (!has_gpus(2) || fixture_on_gpus())
        skip_lacking("no two emulated GPUs");
    for (size_t k = 0; k < COUNT_OF(with_residuals); k++) {
        const struct residual_layout *l;
        uint64_t wire, want, plain;
        struct fixture *f;

        code = with_residuals[k];
        code.groups = 2;
        f = trained_on_a_counted_wire(&wire);
        l = &f->train->engine->residual;
        want = code.kind == CODE_TOP_K ? l->message : l->p_floats + l->q_floats;
        plain = (f->train->engine->memory.grads - l->floats + 15) / 16 * 16;
        assert_int_equal(reported_bytes, 2 * want * sizeof(float) * FEW);
        assert_int_equal(wire, 2 * (want + plain) * sizeof(float) * FEW);
        fixture_free(f);
    }
}

static void all_of_it(struct fixture *f)
{
    f->opts.optimizer.type = OPTIM_ADAMW;
    f->opts.optimizer.hyper = (struct optim_hyper){ .beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-6, .weight_decay = 0.01 };
    f->opts.optimizer.schedule.learning_rate = 0.002;
    f->opts.optimizer.average.decay = 0.9;
    f->opts.run.clip_value = 0.05;
    f->opts.run.clip_norm = 0.5;
}

static void clipping_and_averages_equal_those_of_the_cpu(void **state)
{
    struct fixture *cpu = trained(0, 4, all_of_it), *gpu = trained(1, 4, all_of_it);

    (void)state;
    expect_near(gpu, cpu);
    fixture_free(cpu);
    fixture_free(gpu);
}

static void values_are_clipped_after_their_mean_is_computed(void **state)
{
    struct fixture *cpu = trained(0, 4, mean_of_what_counts),
                   *gpu = trained(1, 4, mean_of_what_counts);

    (void)state;
    expect_near(gpu, cpu);
    fixture_free(cpu);
    fixture_free(gpu);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(buckets_are_all_reduced_once_with_any_lanes_and_replicas),
        cmocka_unit_test(three_lanes_of_a_gpu_are_all_reduced),
        cmocka_unit_test(gpus_with_unequal_shares_of_the_lanes_all_reduce_together),
        cmocka_unit_test(sums_in_the_order_of_lanes_have_the_same_bits_on_any_number_of_gpus),
        cmocka_unit_test(vector_smaller_than_a_bucket_is_summed_in_order),
        cmocka_unit_test(sums_of_nccl_depend_on_the_number_of_gpus),
        cmocka_unit_test(codes_have_the_same_bits_on_any_number_of_gpus),
        cmocka_unit_test(codes_with_residuals_have_the_same_bits_on_any_number_of_gpus),
        cmocka_unit_test(code_with_residuals_that_codes_no_parameter_has_the_bits_of_float32),
        cmocka_unit_test(codes_on_the_wire_have_the_bytes_of_the_formula),
        cmocka_unit_test(codes_are_combined_with_loss_scales_clipping_and_means),
        cmocka_unit_test(residuals_do_not_contain_the_loss_scale),
        cmocka_unit_test(residual_codes_on_the_wire_have_the_bytes_of_the_formula),
        cmocka_unit_test(clipping_and_averages_equal_those_of_the_cpu),
        cmocka_unit_test(values_are_clipped_after_their_mean_is_computed),
    };

    (void)argc;
    emulated_gpus(argv);
    return cmocka_run_group_tests_name("train/gpu", tests, NULL, NULL);
}
