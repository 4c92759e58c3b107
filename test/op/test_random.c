/* Ops that draw random numbers: determined by seed, step, lane and node, of the right distribution,
 * on both devices. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "base/check.h"
#include "base/crc32c.h"
#include "base/err.h"
#include "base/rng.h"
#include "harness/gradcheck.h"

static const struct rng_key key = { 77, 12, 3, 4 };

static struct gradcheck_case case_of(const char *op, uint32_t n_in)
{
    return (struct gradcheck_case){ .op = op, .opset = 17, .n_in = n_in, .seed = 9, .stream = 4,
                                    .run = { .seed = 77, .step = 12, .lane = 3 } };
}

static struct gradcheck_result run(const struct gradcheck_case *gc)
{
    struct gradcheck_result r;
    struct err err = { 0 };

    if (gradcheck_forward(gc, &r, &err) < 0)
        fail_msg("%s", err.text);
    return r;
}

static void refused(const struct gradcheck_case *gc, const char *part)
{
    struct gradcheck_result r;
    struct err err = { 0 };

    assert_true(gradcheck_forward(gc, &r, &err) < 0);
    if (strstr(err.text, part) == NULL)
        fail_msg("'%s' is not in: %s", part, err.text);
}

static void uniform_numbers_follow_random_words(void **state)
{
    static const int64_t shape[] = { 3, 5, 7, 2 };
    const struct op_attr attrs[] = {
        { .name = "low", .type = OP_ATTR_FLOAT, .f = -1.5f },
        { .name = "high", .type = OP_ATTR_FLOAT, .f = 2.25f },
        { .name = "seed", .type = OP_ATTR_FLOAT, .f = 5 }, /* has no effect */
        { .name = "shape", .type = OP_ATTR_INTS, .ints = shape, .n = 4 },
    };
    struct gradcheck_case gc = case_of("RandomUniform", 0), like = case_of("RandomUniformLike", 1);
    struct gradcheck_result r, s;
    size_t i;

    (void)state;
    gc.attrs = like.attrs = attrs;
    gc.n_attrs = 4;
    like.n_attrs = 3;
    like.in[0].shape = (struct shape)GRADCHECK_SHAPE(3, 5, 7, 2);
    r = run(&gc);
    s = run(&like);
    for (i = 0; i < 210; i++)
        assert_true(((float *)r.out[0].data)[i] == -1.5f + 3.75f * rng_f32(&key, i));
    assert_memory_equal(r.out[0].data, s.out[0].data, 210 * sizeof(float));
    gradcheck_free(&r);
    gradcheck_free(&s);
}

/* Box and Muller in double, with the functions of the C library. */
static double normal(uint64_t i)
{
    double a = ((double)(rng_u32(&key, i & ~1ull) >> 8) + 1) * 0x1p-24;
    double b = (double)(rng_u32(&key, i | 1) >> 8) * 0x1p-24, pi = acos(-1);
    double radius = sqrt(-2 * log(a));

    return (i & 1) == 0 ? radius * cos(2 * pi * b) : radius * sin(2 * pi * b);
}

static void normal_numbers_follow_box_muller(void **state)
{
    enum { N = 100001 };
    const struct op_attr attrs[] = { { .name = "mean", .type = OP_ATTR_FLOAT, .f = 0.5f },
                                     { .name = "scale", .type = OP_ATTR_FLOAT, .f = 2 } };
    struct gradcheck_case gc = case_of("RandomNormalLike", 1);
    struct gradcheck_result r;
    double sum = 0, squares = 0, fourth = 0;
    const float *y;
    uint64_t i;

    (void)state;
    gc.attrs = attrs;
    gc.n_attrs = 2;
    gc.in[0].shape = (struct shape)GRADCHECK_SHAPE(N);
    r = run(&gc);
    y = r.out[0].data;
    for (i = 0; i < N; i++) {
        double z = ((double)y[i] - 0.5) / 2;

        assert_true(fabs(z - normal(i)) < 2e-6);
        sum += z;
        squares += z * z;
        fourth += z * z * z * z;
    }
    assert_true(fabs(sum / N) < 5 / sqrt(N));
    assert_true(fabs(squares / N - 1) < 5 * sqrt(2.0 / N));
    assert_true(fabs(fourth / N - 3) < 5 * sqrt(96.0 / N));
    gradcheck_free(&r);
}

/* The same checksum on CPUs and GPUs, with any instruction set. */
static void normal_numbers_have_same_bits_on_all_devices(void **state)
{
    static const int64_t shape[] = { 4096 };
    const struct op_attr attr = { .name = "shape", .type = OP_ATTR_INTS, .ints = shape, .n = 1 };
    struct gradcheck_case gc = case_of("RandomNormal", 0);
    struct gradcheck_result r;

    (void)state;
    gc.attrs = &attr;
    gc.n_attrs = 1;
    r = run(&gc);
    assert_int_equal(crc32c(0, r.out[0].data, 4096 * sizeof(float)), 0x69d91756);
    gradcheck_free(&r);
}

static void bernoulli_is_one_below_probability(void **state)
{
    static const enum tensor_dtype types[] = { TENSOR_F32, TENSOR_BOOL, TENSOR_I32, TENSOR_I64 };
    size_t k, i;

    (void)state;
    for (k = 0; k < COUNT_OF(types); k++) {
        const struct op_attr attr = { .name = "dtype", .type = OP_ATTR_INT, .i = types[k] };
        struct gradcheck_case gc = case_of("Bernoulli", 1);
        struct gradcheck_result r;

        gc.attrs = &attr;
        gc.n_attrs = 1;
        gc.in[0] = (struct gradcheck_tensor){ .shape = GRADCHECK_SHAPE(13, 31), .lo = -0.2, .hi = 1.2 };
        r = run(&gc);
        assert_int_equal(r.out[0].dtype, types[k]);
        for (i = 0; i < 13 * 31; i++) {
            int one = rng_f32(&key, i) < ((float *)r.in[0].data)[i];
            const void *y = r.out[0].data;

            assert_int_equal(types[k] == TENSOR_F32   ? (int)((const float *)y)[i]
                             : types[k] == TENSOR_I32 ? ((const int32_t *)y)[i]
                             : types[k] == TENSOR_I64 ? (int)((const int64_t *)y)[i]
                                                      : ((const uint8_t *)y)[i],
                             one);
        }
        gradcheck_free(&r);
    }
}

static void multinomial_frequencies_match_softmax(void **state)
{
    enum { N = 40000 };
    static const float logits[] = { 0, 1, -INFINITY, -2, 90, 91, 89, -1000 };
    const struct op_attr attr = { .name = "sample_size", .type = OP_ATTR_INT, .i = N };
    struct gradcheck_case gc = case_of("Multinomial", 1);
    struct gradcheck_result r;
    size_t row, i;

    (void)state;
    gc.attrs = &attr;
    gc.n_attrs = 1;
    gc.in[0] = (struct gradcheck_tensor){ .shape = GRADCHECK_SHAPE(2, 4), .data = logits };
    r = run(&gc);
    assert_int_equal(r.out[0].dtype, TENSOR_I32);
    for (row = 0; row < 2; row++) {
        double total = 0;
        size_t count[4] = { 0 };

        for (i = 0; i < 4; i++)
            total += exp((double)logits[4 * row + i] - 91);
        for (i = 0; i < N; i++) {
            int32_t y = ((int32_t *)r.out[0].data)[row * N + i];

            assert_in_range(y, 0, 3);
            count[y]++;
        }
        for (i = 0; i < 4; i++) {
            double p = exp((double)logits[4 * row + i] - 91) / total;

            assert_true(fabs((double)count[i] / N - p) <= 5 * sqrt(p * (1 - p) / N));
        }
    }
    gradcheck_free(&r);
}

static void draws_depend_on_seed_step_lane_and_node(void **state)
{
    static const int64_t shape[] = { 1000 };
    const struct op_attr attr = { .name = "shape", .type = OP_ATTR_INTS, .ints = shape, .n = 1 };
    struct gradcheck_case gc = case_of("RandomNormal", 0), others[5];
    struct gradcheck_result base;
    size_t i, k;

    (void)state;
    gc.attrs = &attr;
    gc.n_attrs = 1;
    base = run(&gc);
    for (i = 0; i < COUNT_OF(others); i++)
        others[i] = gc;
    others[0].eval = true; /* evaluation draws, too */
    others[1].run.seed++;
    others[2].run.step++;
    others[3].run.lane++;
    others[4].stream++;
    for (i = 0; i < COUNT_OF(others); i++) {
        struct gradcheck_result r = run(&others[i]);
        size_t same = 0;

        for (k = 0; k < 1000; k++)
            same += ((float *)base.out[0].data)[k] == ((float *)r.out[0].data)[k];
        assert_true(i == 0 ? same == 1000 : same < 5);
        gradcheck_free(&r);
    }
    gradcheck_free(&base);
}

static void invalid_draws_are_rejected(void **state)
{
    const struct op_attr low = { .name = "low", .type = OP_ATTR_FLOAT, .f = 2 };
    const struct op_attr wide = { .name = "dtype", .type = OP_ATTR_INT, .i = TENSOR_F64 };
    const struct op_attr none = { .name = "sample_size", .type = OP_ATTR_INT, .i = 0 };
    struct gradcheck_case gc = case_of("RandomUniformLike", 1);

    (void)state;
    gc.in[0].shape = (struct shape)GRADCHECK_SHAPE(4, 4);
    gc.n_attrs = 1;
    gc.attrs = &low;
    refused(&gc, "low is 2 and high is 1");
    gc.attrs = &wide;
    refused(&gc, "model.float()");
    gc.op = "Multinomial";
    gc.attrs = &none;
    refused(&gc, "at least 1");
    gc.in[0].shape = (struct shape)GRADCHECK_SHAPE(4, 0);
    gc.n_attrs = 0;
    refused(&gc, "at least 1");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(uniform_numbers_follow_random_words),
        cmocka_unit_test(normal_numbers_follow_box_muller),
        cmocka_unit_test(normal_numbers_have_same_bits_on_all_devices),
        cmocka_unit_test(bernoulli_is_one_below_probability),
        cmocka_unit_test(multinomial_frequencies_match_softmax),
        cmocka_unit_test(draws_depend_on_seed_step_lane_and_node),
        cmocka_unit_test(invalid_draws_are_rejected),
    };

    return cmocka_run_group_tests_name("op/random", tests, NULL, NULL);
}
