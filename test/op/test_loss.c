#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/err.h"
#include "harness/gradcheck.h"
#include "harness/op_rig.h"

enum { MAX_N = 70, MAX_C = 700 };

struct batch {
    int64_t n, c;
    int64_t label[MAX_N];
    float weight[MAX_N];
};

static void batch_fill(struct batch *b, int64_t n, int64_t c)
{
    int64_t i;

    b->n = n;
    b->c = c;
    for (i = 0; i < n; i++) {
        b->label[i] = (i * 37 + 5) % c;
        b->weight[i] = i % 5 == 3 ? 0.0f : 0.25f * (float)(1 + i % 3);
    }
}

static struct gradcheck_case case_of(const char *op, const struct batch *b)
{
    return (struct gradcheck_case){
        .domain = "trainerd", .op = op, .opset = 13, .n_in = 3, .seed = 21,
        .run = { .loss_scale = 0.125f },
        .in = { { .shape = GRADCHECK_SHAPE(b->n, b->c), .lo = -4, .hi = 4 },
                { .dtype = TENSOR_I64, .shape = GRADCHECK_SHAPE(b->n), .data = b->label },
                { .shape = GRADCHECK_SHAPE(b->n), .data = b->weight } },
    };
}

/* sum_i w_i (log sum_j e^x_ij - x_i,label) and its gradient, in double. */
static double reference(const float *x, const struct batch *b, double *dx)
{
    double total = 0;
    int64_t i, j;

    for (i = 0; i < b->n; i++, x += b->c, dx += b->c) {
        double sum = 0, max = -INFINITY, w = (double)b->weight[i];

        for (j = 0; j < b->c; j++)
            max = fmax(max, (double)x[j]);
        for (j = 0; j < b->c; j++)
            sum += exp((double)x[j] - max);
        if (w != 0)
            total += w * (log(sum) + max - (double)x[b->label[i]]);
        for (j = 0; j < b->c; j++)
            dx[j] = w == 0 ? 0 : w * (exp((double)x[j] - max) / sum - (j == b->label[i]));
    }
    return total;
}

static const struct {
    int64_t n, c;
} sizes[] = { { 1, 1 }, { 1, 2 }, { 3, 10 }, { 16, 10 }, { 7, 17 }, { 64, 33 }, { 5, 700 },
              { 0, 10 } };

static void loss_and_gradient_follow_formula(void **state)
{
    static double dx[MAX_N * MAX_C];
    static struct batch b;
    size_t t, i;

    (void)state;
    for (t = 0; t < COUNT_OF(sizes); t++) {
        struct gradcheck_case gc;
        struct gradcheck_result r;
        struct err err = { 0 };
        double want, outer;

        batch_fill(&b, sizes[t].n, sizes[t].c);
        gc = case_of("SoftmaxCrossEntropy", &b);
        assert_int_equal(gradcheck_backward(&gc, &r, &err), 0);
        want = 0.125 * reference(r.in[0].data, &b, dx);
        assert_int_equal(r.out[0].shape.rank, 0);
        gradcheck_near("loss", r.out[0].data, &want, 1, 2e-7);
        outer = 0.125 * (double)*(float *)r.dout[0].data;
        for (i = 0; i < (size_t)(b.n * b.c); i++)
            dx[i] *= outer;
        gradcheck_near("dx", r.din[0].data, dx, (size_t)(b.n * b.c), 3e-8);
        gradcheck_free(&r);
    }
}

static void gradients_match_differences(void **state)
{
    static struct batch b;
    size_t t;

    (void)state;
    for (t = 0; t < COUNT_OF(sizes); t++) {
        struct gradcheck_case gc;

        batch_fill(&b, sizes[t].n, sizes[t].c);
        gc = case_of("SoftmaxCrossEntropy", &b);
        gradcheck_run(&gc);
        gc.eval = true;
        gradcheck_run(&gc);
    }
}

static void huge_logits_neither_overflow_nor_lose_precision(void **state)
{
    static const float x[3][3] = { { 1e30f, -1e30f, 0 }, { 1000, 999, 998 }, { -3e38f, 3e38f, 0 } };
    static const struct batch b = { 3, 3, { 0, 1, 1 }, { 1, 1, 1 } };
    struct gradcheck_case gc = case_of("SoftmaxCrossEntropy", &b);
    static double dx[9];
    struct gradcheck_result r;
    struct err err = { 0 };
    double want;
    size_t i;

    (void)state;
    gc.in[0].data = x;
    assert_int_equal(gradcheck_backward(&gc, &r, &err), 0);
    want = 0.125 * reference(&x[0][0], &b, dx);
    assert_true(want > 0.17 && want < 0.18); /* (log(1 + e^-1 + e^-2) + 1) / 8 */
    gradcheck_near("loss", r.out[0].data, &want, 1, 1e-7);
    for (i = 0; i < 9; i++)
        dx[i] *= 0.125 * (double)*(float *)r.dout[0].data;
    gradcheck_near("dx", r.din[0].data, dx, 9, 3e-8);
    gradcheck_free(&r);
}

static void masked_logits_have_no_effect(void **state)
{
    static const float x[2][5] = { { 1, -INFINITY, 2, -INFINITY, -INFINITY },
                                   { -INFINITY, -INFINITY, -INFINITY, -INFINITY, 7 } };
    static const struct batch b = { 2, 5, { 0, 4 }, { 1, 1 } };
    struct gradcheck_case gc = case_of("SoftmaxCrossEntropy", &b);
    struct gradcheck_result r;
    struct err err = { 0 };
    double want = 0.125 * log(1 + exp(1)), dx[10] = { 0 };

    (void)state;
    gc.in[0].data = x;
    assert_int_equal(gradcheck_backward(&gc, &r, &err), 0);
    gradcheck_near("loss", r.out[0].data, &want, 1, 1e-7);
    dx[2] = 0.125 * (double)*(float *)r.dout[0].data / (1 + exp(-1));
    dx[0] = -dx[2];
    gradcheck_near("dx", r.din[0].data, dx, 10, 3e-8);
    gradcheck_free(&r);
}

/* Rows of the length of a vocabulary, at unaligned addresses. */
static void loss_over_vocabulary_follows_formula(void **state)
{
    static struct batch b;
    struct gradcheck_case gc;

    (void)state;
    batch_fill(&b, 3, 20011);
    gc = case_of("SoftmaxCrossEntropy", &b);
    gc.probes = 4;
    gradcheck_run(&gc);
    gc = case_of("Accuracy", &b);
    gradcheck_run(&gc);
}

static void sample_of_weight_zero_has_no_effect_even_if_nan(void **state)
{
    static const float x[3][2] = { { 1, 2 }, { NAN, INFINITY }, { 0, 0 } };
    static const struct batch b = { 3, 2, { 0, 1, 1 }, { 1, 0, 2 } };
    struct gradcheck_case gc = case_of("SoftmaxCrossEntropy", &b);
    struct gradcheck_result r;
    struct err err = { 0 };
    double want = 0.125 * (log(exp(1) + exp(2)) - 1 + 2 * log(2));

    (void)state;
    gc.in[0].data = x;
    assert_int_equal(gradcheck_backward(&gc, &r, &err), 0);
    gradcheck_near("loss", r.out[0].data, &want, 1, 1e-7);
    assert_true(((float *)r.din[0].data)[2] == 0 && ((float *)r.din[0].data)[3] == 0);
    gradcheck_free(&r);
    gc = case_of("Accuracy", &b);
    gc.in[0].data = x;
    assert_int_equal(gradcheck_forward(&gc, &r, &err), 0);
    assert_true(*(float *)r.out[0].data == 0);
    gradcheck_free(&r);
}

static void nan_logit_propagates_to_loss(void **state)
{
    static const float x[2][2] = { { 1, 2 }, { NAN, 0 } };
    static const struct batch b = { 2, 2, { 0, 1 }, { 1, 1 } };
    struct gradcheck_case gc = case_of("SoftmaxCrossEntropy", &b);
    struct gradcheck_result r;
    struct err err = { 0 };

    (void)state;
    gc.in[0].data = x;
    assert_int_equal(gradcheck_forward(&gc, &r, &err), 0);
    assert_true(isnan(*(float *)r.out[0].data));
    gradcheck_free(&r);
}

static void label_out_of_range_is_rejected_with_sample_and_value(void **state)
{
    static const char *const ops[] = { "SoftmaxCrossEntropy", "Accuracy" };
    static const int64_t wrong[] = { 10, -1, INT64_MAX, INT64_MIN };
    static struct batch b;
    size_t o, t;

    (void)state;
    for (o = 0; o < COUNT_OF(ops); o++)
        for (t = 0; t < COUNT_OF(wrong); t++) {
            struct gradcheck_case gc;
            struct gradcheck_result r;
            struct err err = { 0 };
            char value[64];

            batch_fill(&b, 8, 10);
            b.label[3] = wrong[t]; /* weight 0: an invalid label is rejected nevertheless */
            gc = case_of(ops[o], &b);
            assert_int_equal(gradcheck_forward(&gc, &r, &err), ERR_INPUT);
            snprintf(value, sizeof(value), "sample 3 of this batch of 8 has label %lld;",
                     (long long)wrong[t]);
            assert_non_null(strstr(err.text, value));
            assert_non_null(strstr(err.text, "10 classes"));
        }
}

static void inconsistent_inputs_are_rejected(void **state)
{
    static struct batch b;
    struct gradcheck_case gc;
    struct gradcheck_result r;
    struct err err = { 0 };

    (void)state;
    batch_fill(&b, 8, 10);
    gc = case_of("SoftmaxCrossEntropy", &b);
    gc.in[1].shape = shape_of(1, (int64_t)7);
    assert_int_equal(gradcheck_forward(&gc, &r, &err), ERR_INPUT);
    assert_non_null(strstr(err.text, "predictions [8, 10], labels [7] and weights [8]"));
    gc = case_of("SoftmaxCrossEntropy", &b);
    gc.in[0].shape = shape_of(3, (int64_t)8, (int64_t)10, (int64_t)1);
    assert_int_equal(gradcheck_forward(&gc, &r, &err), ERR_INPUT);
    gc = case_of("Accuracy", &b);
    gc.in[1].dtype = TENSOR_F32;
    gc.in[1].data = NULL;
    assert_int_equal(gradcheck_forward(&gc, &r, &err), ERR_INPUT);
    assert_non_null(strstr(err.text, "int64"));
}

static void accuracy_counts_first_maximum_with_weight(void **state)
{
    static const float x[7][4] = {
        { 0, 3, 1, 2 },                     /* predicts 1: correct */
        { 0, 3, 3, 2 },                     /* a tie: predicts 1, not 2 */
        { 3, 3, 3, 3 },                     /* predicts 0: correct */
        { 0, NAN, 1, 5 },                   /* NaN: never correct */
        { -INFINITY, -INFINITY, -INFINITY, -INFINITY }, /* predicts 0: correct */
        { 1, 2, 3, INFINITY },              /* correct */
        { NAN, NAN, NAN, NAN },             /* never correct */
    };
    static const struct batch b = { 7, 4, { 1, 2, 0, 3, 0, 3, 0 },
                                    { 1, 10, 2, 100, 4, 0.5f, 1000 } };
    struct gradcheck_case gc = case_of("Accuracy", &b);
    struct gradcheck_result r;
    struct err err = { 0 };

    (void)state;
    gc.in[0].data = x;
    assert_int_equal(gradcheck_forward(&gc, &r, &err), 0);
    assert_true(*(float *)r.out[0].data == 7.5f); /* loss_scale has no effect */
    gradcheck_free(&r);
}

static void accuracy_matches_linear_search_for_every_size(void **state)
{
    static struct batch b;
    size_t t;

    (void)state;
    for (t = 0; t < COUNT_OF(sizes); t++) {
        struct gradcheck_case gc;
        struct gradcheck_result r;
        struct err err = { 0 };
        float want = 0;
        int64_t i, j;

        batch_fill(&b, sizes[t].n, sizes[t].c);
        gc = case_of("Accuracy", &b);
        assert_int_equal(gradcheck_forward(&gc, &r, &err), 0);
        for (i = 0; i < b.n; i++) {
            const float *x = (const float *)r.in[0].data + i * b.c;
            int64_t best = 0;

            for (j = 1; j < b.c; j++)
                best = x[j] > x[best] ? j : best;
            want += best == b.label[i] ? b.weight[i] : 0;
        }
        assert_true(*(float *)r.out[0].data == want);
        gradcheck_free(&r);
    }
}

static void accuracy_over_many_samples_is_exact(void **state)
{
    enum { N = 1 << 20 };
    static int64_t label[N];
    static float weight[N], x[N];
    struct gradcheck_case gc = {
        .domain = "trainerd", .op = "Accuracy", .opset = 13, .n_in = 3,
        .in = { { .shape = GRADCHECK_SHAPE(N, 1), .data = x },
                { .dtype = TENSOR_I64, .shape = GRADCHECK_SHAPE(N), .data = label },
                { .shape = GRADCHECK_SHAPE(N), .data = weight } },
    };
    struct gradcheck_result r;
    struct err err = { 0 };
    size_t i;

    (void)state;
    for (i = 0; i < N; i++)
        weight[i] = i == 0 ? 1 << 23 : 1; /* from 2^23 on floats have no fraction */
    assert_int_equal(gradcheck_forward(&gc, &r, &err), 0);
    assert_true(*(float *)r.out[0].data == (float)((1 << 23) + N - 1));
    gradcheck_free(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(loss_and_gradient_follow_formula),
        cmocka_unit_test(gradients_match_differences),
        cmocka_unit_test(huge_logits_neither_overflow_nor_lose_precision),
        cmocka_unit_test(masked_logits_have_no_effect),
        cmocka_unit_test(loss_over_vocabulary_follows_formula),
        cmocka_unit_test(sample_of_weight_zero_has_no_effect_even_if_nan),
        cmocka_unit_test(nan_logit_propagates_to_loss),
        cmocka_unit_test(label_out_of_range_is_rejected_with_sample_and_value),
        cmocka_unit_test(inconsistent_inputs_are_rejected),
        cmocka_unit_test(accuracy_counts_first_maximum_with_weight),
        cmocka_unit_test(accuracy_matches_linear_search_for_every_size),
        cmocka_unit_test(accuracy_over_many_samples_is_exact),
    };

    return cmocka_run_group_tests_name("op/loss", tests, NULL, NULL);
}
