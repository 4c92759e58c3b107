/* The losses and metrics other than plain cross entropy: against their formulas in double, and
 * against differences. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "base/err.h"
#include "harness/gradcheck.h"

enum { N = 5, C = 7, P = 3, ROWS = N * P };

static const float weights[N] = { 1, 0.5f, 0, 2, 1.25f };
static const float class_weights[C] = { 1, 2, 0, 0.5f, 1, 3, 0.25f };
static int64_t labels[ROWS];

static const struct op_attr attrs[] = {
    { .name = "ignore_index", .type = OP_ATTR_INT, .i = -100 },
    { .name = "class_weights", .type = OP_ATTR_FLOATS, .n = C, .floats = class_weights },
    { .name = "label_smoothing", .type = OP_ATTR_FLOAT, .f = 0.125f },
};

static void fill_labels(bool with_ignored)
{
    for (int i = 0; i < ROWS; i++)
        labels[i] = with_ignored && i % 4 == 1 ? -100 : (i * 5 + 2) % C;
}

/* Score of class c, for either position of the class axis. */
static double score(const float *x, bool is_last, int i, int p, int c)
{
    return (double)(is_last ? x[(i * P + p) * C + c] : x[(i * C + c) * P + p]);
}

/* PyTorch's definition, element by element. */
static double class_loss(const char *op, const float *x, bool is_last, uint32_t n_attrs,
                         double *weight)
{
    double total = 0;

    *weight = 0;
    for (int i = 0; i < N; i++)
        for (int p = 0; p < P; p++) {
            int64_t l = labels[i * P + p];
            double e = n_attrs > 2 ? 0.125 : 0, sum = 0, hard, soft = 0, w = (double)weights[i] / P;
            double v[C];

            if (n_attrs > 0 && l == -100)
                continue;
            for (int c = 0; c < C; c++) {
                v[c] = n_attrs > 1 ? (double)class_weights[c] : 1;
                sum += exp(score(x, is_last, i, p, c));
            }
            if (strcmp(op, "NegativeLogLikelihood") == 0)
                sum = 1; /* the scores are logarithms */
            hard = v[l] * (log(sum) - score(x, is_last, i, p, (int)l));
            for (int c = 0; c < C; c++)
                soft += v[c] * (log(sum) - score(x, is_last, i, p, c));
            total += w * ((1 - e) * hard + e / C * soft);
            *weight += w * v[l];
        }
    return total;
}

static struct gradcheck_case class_case(const char *op, bool is_last, uint32_t n_attrs)
{
    struct gradcheck_case gc = {
        .domain = "trainerd", .op = op, .opset = 13, .n_in = 3, .n_out = 2, .seed = 4,
        .no_dout = OP_OUT(1),
        .run = { .loss_scale = 0.125f },
        .attrs = attrs, .n_attrs = n_attrs,
        .in = { { .shape = GRADCHECK_SHAPE(N, C, P), .lo = -3, .hi = 3 },
                { .dtype = TENSOR_I64, .shape = GRADCHECK_SHAPE(N, P), .data = labels },
                { .shape = GRADCHECK_SHAPE(N), .data = weights } },
    };

    if (is_last)
        gc.in[0].shape = shape_of(3, (int64_t)N, (int64_t)P, (int64_t)C);
    return gc;
}

static void class_losses_follow_formula_in_both_layouts_with_every_attribute(void **state)
{
    static const struct {
        const char *op;
        uint32_t n_attrs;
    } rows[] = { { "SoftmaxCrossEntropy", 0 },   { "SoftmaxCrossEntropy", 1 },
                 { "SoftmaxCrossEntropy", 2 },   { "SoftmaxCrossEntropy", 3 },
                 { "NegativeLogLikelihood", 0 }, { "NegativeLogLikelihood", 2 } };

    (void)state;
    for (size_t t = 0; t < COUNT_OF(rows); t++)
        for (int is_last = 0; is_last < 2; is_last++) {
            struct gradcheck_case gc = class_case(rows[t].op, is_last, rows[t].n_attrs);
            struct gradcheck_result r;
            struct err err = { 0 };
            double want[2];

            fill_labels(rows[t].n_attrs > 0);
            assert_int_equal(gradcheck_forward(&gc, &r, &err), 0);
            want[0] =
                0.125 * class_loss(rows[t].op, r.in[0].data, is_last, rows[t].n_attrs, &want[1]);
            want[1] *= 0.125;
            gradcheck_near(rows[t].op, r.out[0].data, &want[0], 1, 3e-7);
            gradcheck_near("weight", r.out[1].data, &want[1], 1, 1e-7);
            gradcheck_free(&r);
            gradcheck_run(&gc);
        }
}

static void labels_of_one_position_may_be_a_column(void **state)
{
    struct gradcheck_case gc = class_case("SoftmaxCrossEntropy", false, 0);

    (void)state;
    fill_labels(false);
    gc.in[0].shape = shape_of(2, (int64_t)N, (int64_t)C);
    gc.in[1].shape = shape_of(2, (int64_t)N, (int64_t)1);
    gradcheck_run(&gc);
}

/* Logits [N, C, C] and labels [N, C] fit with the classes as either axis, which gives two losses. */
static void logits_that_fit_in_both_layouts_need_a_stated_class_axis(void **state)
{
    static int64_t square[N * C];
    struct op_attr axis = { .name = "class_axis", .type = OP_ATTR_INT };
    static const char *const ops[] = { "SoftmaxCrossEntropy", "NegativeLogLikelihood", "Accuracy" };

    (void)state;
    for (size_t t = 0; t < COUNT_OF(ops); t++) {
        struct gradcheck_case gc = class_case(ops[t], false, 0);
        struct gradcheck_result r;
        struct err err = { 0 };

        gc.in[0].shape = shape_of(3, (int64_t)N, (int64_t)C, (int64_t)C);
        gc.in[1].shape = shape_of(2, (int64_t)N, (int64_t)C);
        gc.in[1].data = square;
        assert_int_equal(gradcheck_forward(&gc, &r, &err), ERR_INPUT);
        assert_non_null(
            strstr(err.text, "the classes as axis 1 and with the classes as the last axis"));
        assert_non_null(strstr(err.text, "\"class_axis\": \"last\" in /model/loss"));
    }
    for (int is_last = 0; is_last < 2; is_last++) {
        struct gradcheck_case gc = class_case("SoftmaxCrossEntropy", false, 0);
        struct gradcheck_result r;
        struct err err = { 0 };
        double want = 0;

        axis.i = is_last ? -1 : 1;
        gc.attrs = &axis;
        gc.n_attrs = 1;
        gc.in[0].shape = shape_of(3, (int64_t)N, (int64_t)C, (int64_t)C);
        gc.in[1].shape = shape_of(2, (int64_t)N, (int64_t)C);
        gc.in[1].data = square;
        for (int i = 0; i < N * C; i++)
            square[i] = (i * 5 + 1) % C;
        assert_int_equal(gradcheck_forward(&gc, &r, &err), 0);
        for (int i = 0; i < N; i++)
            for (int p = 0; p < C; p++) {
                const float *x = (const float *)r.in[0].data + i * C * C;
                double sum = 0;

                for (int c = 0; c < C; c++)
                    sum += exp((double)x[is_last ? p * C + c : c * C + p]);
                want +=
                    (double)weights[i] / C *
                    (log(sum) -
                     (double)x[is_last ? p * C + square[i * C + p] : square[i * C + p] * C + p]);
            }
        want *= 0.125;
        gradcheck_near("square logits", r.out[0].data, &want, 1, 3e-7);
        gradcheck_free(&r);
        gradcheck_run(&gc);
    }
}

static void stated_class_axis_that_the_labels_do_not_fit_is_rejected(void **state)
{
    const struct op_attr axis = { .name = "class_axis", .type = OP_ATTR_INT, .i = -1 };
    struct gradcheck_case gc = class_case("SoftmaxCrossEntropy", false, 0);
    struct gradcheck_result r;
    struct err err = { 0 };

    (void)state;
    fill_labels(false);
    gc.attrs = &axis;
    gc.n_attrs = 1;
    assert_int_equal(gradcheck_forward(&gc, &r, &err), ERR_INPUT);
    assert_non_null(strstr(err.text, "the classes as the last axis, as \"class_axis\" states"));
}

static void class_weights_of_wrong_size_are_rejected(void **state)
{
    struct gradcheck_case gc = class_case("SoftmaxCrossEntropy", false, 2);
    struct gradcheck_result r;
    struct err err = { 0 };

    (void)state;
    fill_labels(false);
    gc.in[0].shape = shape_of(3, (int64_t)N, (int64_t)C + 1, (int64_t)P);
    assert_int_equal(gradcheck_forward(&gc, &r, &err), ERR_INPUT);
    assert_non_null(strstr(err.text, "7 class weights for 8 classes"));
}

/* ---- elements ---- */

static float p; /* attribute of the op under test */

static double entropy(double x, double t)
{
    double s = 1 / (1 + exp(-x));

    return -((double)p * t * log(s) + (1 - t) * log(1 - s));
}

static double square(double x, double t)
{
    return (x - t) * (x - t);
}

static double absolute(double x, double t)
{
    return fabs(x - t);
}

static double huber(double x, double t)
{
    double d = fabs(x - t);

    return d <= (double)p ? d * d / 2 : (double)p * (d - (double)p / 2);
}

static double agrees(double x, double t)
{
    return (x > 0) == (t > 0.5);
}

static const struct {
    const char *op, *attr;
    float p;
    double (*formula)(double x, double t);
    double scale; /* loss_scale; BinaryAccuracy is a count */
} elements[] = {
    { "BinaryCrossEntropy", NULL, 1, entropy, 0.125 },
    { "BinaryCrossEntropy", "pos_weight", 3, entropy, 0.125 },
    { "MeanSquaredError", NULL, 0, square, 0.125 },
    { "MeanAbsoluteError", NULL, 0, absolute, 0.125 },
    { "Huber", NULL, 1, huber, 0.125 },
    { "Huber", "delta", 0.25f, huber, 0.125 },
    { "BinaryAccuracy", NULL, 0, agrees, 1 },
};

static void element_losses_follow_formula(void **state)
{
    static const int64_t sizes[] = { 1, 3, 700, 9001 };

    (void)state;
    for (size_t t = 0; t < COUNT_OF(elements); t++)
        for (size_t k = 0; k < COUNT_OF(sizes); k++) {
            struct op_attr attr = { .name = elements[t].attr, .type = OP_ATTR_FLOAT, .f = elements[t].p };
            struct gradcheck_case gc = {
                .domain = "trainerd", .op = elements[t].op, .opset = 13, .n_in = 3, .n_out = 2, .seed = 9,
                .no_dout = OP_OUT(1), .not_wanted = OP_IN(1), .probes = 40,
                .step = 1.0 / 512, .tol = 1e-2, /* kinks */
                .run = { .loss_scale = 0.125f },
                .attrs = &attr, .n_attrs = elements[t].attr != NULL,
                .in = { { .shape = GRADCHECK_SHAPE(N, sizes[k]), .lo = -3, .hi = 3 },
                        { .shape = GRADCHECK_SHAPE(N, sizes[k], 1), .lo = 0, .hi = 1 },
                        { .shape = GRADCHECK_SHAPE(N), .data = weights } },
            };
            struct gradcheck_result r;
            struct err err = { 0 };
            double want = 0, weight = 0;

            p = elements[t].p;
            assert_int_equal(gradcheck_forward(&gc, &r, &err), 0);
            for (int i = 0; i < N; i++) {
                double sum = 0;

                for (int64_t j = 0; j < sizes[k]; j++)
                    sum += elements[t].formula((double)((float *)r.in[0].data)[i * sizes[k] + j],
                                               (double)((float *)r.in[1].data)[i * sizes[k] + j]);
                want += (double)weights[i] * sum / (double)sizes[k];
                weight += (double)weights[i];
            }
            want *= elements[t].scale;
            weight *= elements[t].scale;
            gradcheck_near(elements[t].op, r.out[0].data, &want, 1, 1e-6);
            gradcheck_near("weight", r.out[1].data, &weight, 1, 1e-7);
            gradcheck_free(&r);
            if (elements[t].formula != agrees)
                gradcheck_run(&gc);
        }
}

static void huge_logits_neither_overflow_nor_lose_precision(void **state)
{
    static const float x[4] = { 1000, -1000, 90, -90 }, t[4] = { 1, 1, 0, 0 }, ones[4] = { 1, 1, 1, 1 };
    struct gradcheck_case gc = {
        .domain = "trainerd", .op = "BinaryCrossEntropy", .opset = 13, .n_in = 3,
        .in = { { .shape = GRADCHECK_SHAPE(4), .data = x },
                { .shape = GRADCHECK_SHAPE(4), .data = t },
                { .shape = GRADCHECK_SHAPE(4), .data = ones } },
        .not_wanted = OP_IN(1),
    };
    struct gradcheck_result r;
    struct err err = { 0 };
    double want = 1090;

    (void)state;
    assert_int_equal(gradcheck_backward(&gc, &r, &err), 0);
    gradcheck_near("loss", r.out[0].data, &want, 1, 1e-7);
    for (int i = 0; i < 4; i++) {
        double slope = (double)*(float *)r.dout[0].data * (i == 1 ? -1 : i == 2 ? 1 : 0);

        gradcheck_near("dx", (float *)r.din[0].data + i, &slope, 1, 1e-7);
    }
    gradcheck_free(&r);
}

/* ---- the area under the curve ---- */

static void area_under_curve_by_histogram_matches_pair_count(void **state)
{
    enum { SAMPLES = 300 };
    static float ones[SAMPLES], t[SAMPLES];
    struct gradcheck_case gc = {
        .domain = "trainerd", .op = "AreaUnderCurve", .opset = 13, .n_in = 3, .n_out = 2, .seed = 3,
        .in = { { .shape = GRADCHECK_SHAPE(SAMPLES, 1), .lo = -4, .hi = 4 },
                { .shape = GRADCHECK_SHAPE(SAMPLES), .data = t },
                { .shape = GRADCHECK_SHAPE(SAMPLES), .data = ones } },
    };
    struct gradcheck_result r;
    struct err err = { 0 };
    double right = 0, pairs = 0, below = 0, ordered = 0, with = 0;
    const float *x, *bins;
    size_t n, i, k;

    (void)state;
    for (i = 0; i < SAMPLES; i++) {
        ones[i] = 1;
        t[i] = i * 7 % 10 < 3;
    }
    assert_int_equal(gradcheck_forward(&gc, &r, &err), 0);
    x = r.in[0].data;
    for (i = 0; i < SAMPLES; i++)
        for (k = 0; k < SAMPLES; k++)
            if (t[i] > t[k]) {
                right += x[i] > x[k] ? 1 : x[i] == x[k] ? 0.5 : 0;
                pairs++;
            }
    bins = r.out[0].data;
    n = (size_t)tensor_elements(&r.out[0]) / 2;
    for (i = 0; i < n; i++) {
        ordered += (double)bins[i] * (below + (double)bins[n + i] / 2);
        below += (double)bins[n + i];
        with += (double)bins[i];
    }
    assert_true(with + below == SAMPLES);
    assert_true(fabs(ordered / (with * below) - right / pairs) < 1e-3);
    /* labels are independent of the scores */
    assert_true(right / pairs > 0.4 && right / pairs < 0.6);
    gradcheck_free(&r);
}

/* ---- sums of losses ---- */

static void loss_sum_weights_inputs_of_any_shape(void **state)
{
    static const float factors[] = { 2, -0.5f, 1 };
    static const struct op_attr attr = {
        .name = "factors", .type = OP_ATTR_FLOATS, .n = 3, .floats = factors
    };
    struct gradcheck_case gc = {
        .domain = "trainerd", .op = "WeightedSum", .opset = 13, .n_in = 3, .attrs = &attr, .n_attrs = 1,
        .in = { { .shape = { .rank = 0 } },
                { .shape = GRADCHECK_SHAPE(3, 2) },
                { .shape = GRADCHECK_SHAPE(0, 4) } },
    };
    struct gradcheck_result r;
    struct err err = { 0 };
    double want;

    (void)state;
    assert_int_equal(gradcheck_forward(&gc, &r, &err), 0);
    want = 2 * (double)*(float *)r.in[0].data;
    for (int i = 0; i < 6; i++)
        want -= 0.5 * (double)((float *)r.in[1].data)[i];
    gradcheck_near("sum", r.out[0].data, &want, 1, 1e-6);
    gradcheck_free(&r);
    gc.in[2].shape = shape_of(1, (int64_t)5);
    gradcheck_run(&gc);
}

static void graph_loss_is_weighted_by_samples(void **state)
{
    static const float one_number = 3;
    struct gradcheck_case gc = {
        .domain = "trainerd", .op = "MeanLoss", .opset = 13, .n_in = 2, .run = { .loss_scale = 0.125f },
        .in = { { .shape = GRADCHECK_SHAPE(1), .data = &one_number },
                { .shape = GRADCHECK_SHAPE(N), .data = weights } },
    };
    struct gradcheck_result r;
    struct err err = { 0 };
    double want = 3 * 0.125 * 4.75;

    (void)state;
    assert_int_equal(gradcheck_forward(&gc, &r, &err), 0);
    gradcheck_near("loss", r.out[0].data, &want, 1, 1e-7);
    gradcheck_free(&r);
    gradcheck_run(&gc);
    gc.in[0].shape = shape_of(1, (int64_t)2);
    gc.in[0].data = NULL;
    assert_int_equal(gradcheck_forward(&gc, &r, &err), ERR_INPUT);
    assert_non_null(strstr(err.text, "expected one number"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(class_losses_follow_formula_in_both_layouts_with_every_attribute),
        cmocka_unit_test(labels_of_one_position_may_be_a_column),
        cmocka_unit_test(logits_that_fit_in_both_layouts_need_a_stated_class_axis),
        cmocka_unit_test(stated_class_axis_that_the_labels_do_not_fit_is_rejected),
        cmocka_unit_test(class_weights_of_wrong_size_are_rejected),
        cmocka_unit_test(element_losses_follow_formula),
        cmocka_unit_test(huge_logits_neither_overflow_nor_lose_precision),
        cmocka_unit_test(area_under_curve_by_histogram_matches_pair_count),
        cmocka_unit_test(loss_sum_weights_inputs_of_any_shape),
        cmocka_unit_test(graph_loss_is_weighted_by_samples),
    };

    return cmocka_run_group_tests_name("op/losses", tests, NULL, NULL);
}
