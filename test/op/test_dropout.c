#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/err.h"
#include "base/rng.h"
#include "harness/gradcheck.h"

static const uint8_t yes = 1, no = 0;

/* Opset 13, training_mode a constant true; `ratio` must outlive the case. */
static struct gradcheck_case case_of(const struct shape *shape, const float *ratio)
{
    return (struct gradcheck_case){
        .op = "Dropout", .opset = 13, .n_in = 3, .n_out = 2, .seed = 9, .stream = 4,
        .run = { .seed = 77, .step = 12, .lane = 3 },
        .in = { { .shape = *shape, .lo = 1, .hi = 2 },
                { .data = ratio, .constant = true },
                { .dtype = TENSOR_BOOL, .data = &yes, .constant = true } },
    };
}

static struct gradcheck_result run(const struct gradcheck_case *gc)
{
    struct gradcheck_result r;
    struct err err = { 0 };

    if (gradcheck_backward(gc, &r, &err) < 0)
        fail_msg("%s", err.text);
    return r;
}

static void elements_are_scaled_or_zero_by_random_word(void **state)
{
    static const float ratio = 0.3f;
    const struct shape shape = GRADCHECK_SHAPE(3, 5, 7, 2);
    const struct rng_key key = { 77, 12, 3, 4 };
    struct gradcheck_case gc = case_of(&shape, &ratio);
    uint32_t layout;
    size_t i;

    (void)state;
    for (layout = TENSOR_PLAIN; layout <= TENSOR_CHANNELS_LAST; layout++) {
        struct gradcheck_result r;

        gc.layout = layout;
        r = run(&gc);
        assert_int_equal(r.out[1].dtype, TENSOR_BOOL);
        for (i = 0; i < 3 * 5 * 7 * 2; i++) {
            bool kept = rng_u32(&key, i) >= (uint32_t)((double)ratio * 0x1p32 + 0.5);
            float scale = kept ? (float)(1 / (1 - (double)ratio)) : 0;

            assert_true(((float *)r.out[0].data)[i] == ((float *)r.in[0].data)[i] * scale);
            assert_true(((float *)r.din[0].data)[i] == ((float *)r.dout[0].data)[i] * scale);
            assert_int_equal(((uint8_t *)r.out[1].data)[i], kept);
        }
        gradcheck_free(&r);
    }
}

/* Means of 100 000 draws are within five standard deviations of the ratio. */
static void share_of_dropped_elements_matches_ratio(void **state)
{
    static const float ratios[] = { 0.1f, 0.5f, 0.9f };
    enum { N = 100000 };
    const struct shape shape = GRADCHECK_SHAPE(N);
    size_t k, i;

    (void)state;
    for (k = 0; k < COUNT_OF(ratios); k++) {
        struct gradcheck_case gc = case_of(&shape, &ratios[k]);
        struct gradcheck_result r = run(&gc);
        double p = (double)ratios[k], off;
        size_t dropped = 0, pairs = 0;

        for (i = 0; i < N; i++)
            dropped += ((uint8_t *)r.out[1].data)[i] == 0;
        for (i = 1; i < N; i++)
            pairs += ((uint8_t *)r.out[1].data)[i] == 0 && ((uint8_t *)r.out[1].data)[i - 1] == 0;
        off = fabs((double)dropped / N - p);
        assert_true(off < 5 * sqrt(p * (1 - p) / N));
        off = fabs((double)pairs / (N - 1) - p * p); /* adjacent elements are independent */
        assert_true(off < 5 * sqrt(3 * p * p * (1 - p * p) / N));
        gradcheck_free(&r);
    }
}

static size_t differing(const struct gradcheck_result *a, const struct gradcheck_result *b)
{
    size_t n = (size_t)tensor_elements(&a->out[1]), i, count = 0;

    for (i = 0; i < n; i++)
        count += ((uint8_t *)a->out[1].data)[i] != ((uint8_t *)b->out[1].data)[i];
    return count;
}

static void mask_depends_on_seed_step_lane_and_node(void **state)
{
    static const float half = 0.5f;
    const struct shape shape = GRADCHECK_SHAPE(1000);
    struct gradcheck_case gc = case_of(&shape, &half), others[5];
    struct gradcheck_result base = run(&gc);
    size_t i;

    (void)state;
    for (i = 0; i < COUNT_OF(others); i++)
        others[i] = gc;
    others[0].run.loss_scale = 3; /* has no effect */
    others[1].run.seed++;
    others[2].run.step++;
    others[3].run.lane++;
    others[4].stream++;
    for (i = 0; i < COUNT_OF(others); i++) {
        struct gradcheck_result r = run(&others[i]);
        size_t count = differing(&base, &r);

        if (i == 0 ? count != 0 : count < 400 || count > 600)
            fail_msg("variant %zu: %zu of 1000 elements differ", i, count);
        gradcheck_free(&r);
    }
    gradcheck_free(&base);
}

static void gradients_match_differences_in_any_layout(void **state)
{
    static const float ratio = 0.4f;
    const struct shape shapes[] = { GRADCHECK_SHAPE(2, 3, 4, 5), GRADCHECK_SHAPE(1),
                                    GRADCHECK_SHAPE(0, 4), GRADCHECK_SHAPE(6, 7, 3) };
    size_t i;

    (void)state;
    for (i = 0; i < COUNT_OF(shapes); i++) {
        struct gradcheck_case gc = case_of(&shapes[i], &ratio);

        gradcheck_run(&gc);
        gc.unread = OP_OUT(1);
        gradcheck_run(&gc);
        gc.eval = true;
        gradcheck_run(&gc);
    }
}

static void expect_identity(const struct gradcheck_case *gc)
{
    struct gradcheck_result r = run(gc);
    size_t n = (size_t)tensor_elements(&r.in[0]), i;

    assert_memory_equal(r.out[0].data, r.in[0].data, tensor_bytes(&r.in[0]));
    if (r.din[0].data != NULL)
        assert_memory_equal(r.din[0].data, r.dout[0].data, tensor_bytes(&r.in[0]));
    for (i = 0; r.out[1].data != NULL && i < n; i++)
        assert_true(r.out[1].dtype == TENSOR_BOOL ? ((uint8_t *)r.out[1].data)[i] == 1
                                                  : ((float *)r.out[1].data)[i] == 1);
    gradcheck_free(&r);
}

static void dropout_drops_only_in_training_mode(void **state)
{
    static const float half = 0.5f, zero = 0;
    const struct shape shape = GRADCHECK_SHAPE(4, 9);
    struct gradcheck_case gc = case_of(&shape, &half);

    (void)state;
    gc.eval = true;
    expect_identity(&gc);
    gc = case_of(&shape, &half);
    gc.in[2].data = &no;
    expect_identity(&gc);
    gc = case_of(&shape, &half);
    gc.in[2].absent = true;
    expect_identity(&gc);
    gc = case_of(&shape, &half);
    gc.n_in = 1; /* neither ratio nor training_mode */
    expect_identity(&gc);
    gc = case_of(&shape, &zero);
    expect_identity(&gc);
}

static void dropout_before_opset_12_drops_in_every_training_plan(void **state)
{
    const struct op_attr attr = { .name = "ratio", .type = OP_ATTR_FLOAT, .f = 0.25f };
    struct gradcheck_case gc = { .op = "Dropout", .opset = 7, .attrs = &attr, .n_attrs = 1,
                                 .n_in = 1, .n_out = 2, .no_dout = OP_OUT(1),
                                 .in = { { .shape = GRADCHECK_SHAPE(4000), .lo = 1, .hi = 2 } } };
    struct gradcheck_result r = run(&gc);
    size_t i, dropped = 0;

    (void)state;
    assert_int_equal(r.out[1].dtype, TENSOR_F32);
    for (i = 0; i < 4000; i++) {
        bool kept = ((float *)r.out[0].data)[i] != 0;

        dropped += !kept;
        assert_true(((float *)r.out[1].data)[i] == (kept ? 1.0f : 0.0f));
    }
    assert_in_range(dropped, 850, 1150);
    gradcheck_free(&r);
    gc.eval = true;
    expect_identity(&gc);
    gc.opset = 11;
    expect_identity(&gc);
}

static void ratio_one_drops_all_including_infinities(void **state)
{
    static const float one = 1, x[3] = { INFINITY, NAN, 2 };
    static const double zeros[3] = { 0 };
    const struct shape shape = GRADCHECK_SHAPE(3);
    struct gradcheck_case gc = case_of(&shape, &one);
    struct gradcheck_result r;

    (void)state;
    gc.in[0].data = x;
    r = run(&gc);
    gradcheck_near("y", r.out[0].data, zeros, 3, 0);
    gradcheck_near("dx", r.din[0].data, zeros, 3, 0);
    gradcheck_free(&r);
}

static void expect_refused(const struct gradcheck_case *gc, int code, const char *part)
{
    struct gradcheck_result r;
    struct err err = { 0 };

    assert_int_equal(gradcheck_forward(gc, &r, &err), code);
    if (strstr(err.text, part) == NULL)
        fail_msg("\"%s\" is not in \"%s\"", part, err.text);
}

static void inputs_unknown_at_load_are_rejected(void **state)
{
    static const float half = 0.5f, two = 2, nan = NAN;
    const struct shape shape = GRADCHECK_SHAPE(3);
    struct gradcheck_case gc = case_of(&shape, &half);

    (void)state;
    gc.in[1].constant = false;
    expect_refused(&gc, ERR_UNSUPPORTED, "ratio is computed by the graph");
    gc = case_of(&shape, &half);
    gc.in[2].constant = false;
    expect_refused(&gc, ERR_UNSUPPORTED, "training_mode is computed by the graph");
    gc = case_of(&shape, &two);
    expect_refused(&gc, ERR_INPUT, "ratio is 2; expected 0 to 1");
    gc = case_of(&shape, &nan);
    expect_refused(&gc, ERR_INPUT, "ratio is");
    gc = case_of(&shape, &half);
    gc.in[2].dtype = TENSOR_F32;
    gc.in[2].data = &half;
    expect_refused(&gc, ERR_INPUT, "training_mode is float32; expected bool");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(elements_are_scaled_or_zero_by_random_word),
        cmocka_unit_test(share_of_dropped_elements_matches_ratio),
        cmocka_unit_test(mask_depends_on_seed_step_lane_and_node),
        cmocka_unit_test(gradients_match_differences_in_any_layout),
        cmocka_unit_test(dropout_drops_only_in_training_mode),
        cmocka_unit_test(dropout_before_opset_12_drops_in_every_training_plan),
        cmocka_unit_test(ratio_one_drops_all_including_infinities),
        cmocka_unit_test(inputs_unknown_at_load_are_rejected),
    };

    return cmocka_run_group_tests_name("op/dropout", tests, NULL, NULL);
}
