#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/check.h"
#include "base/err.h"
#include "harness/gradcheck.h"
#include "harness/op_oracle.h"

#define INT(name_, i_) (struct op_attr){ .name = name_, .type = OP_ATTR_INT, .i = i_ }
#define FLOAT(name_, f_) (struct op_attr){ .name = name_, .type = OP_ATTR_FLOAT, .f = f_ }
#define D (int64_t)

enum { X, SCALE, BIAS };

/* ---- LayerNormalization and RMSNormalization ---- */

struct layer {
    struct shape x;
    int axis;
    bool has_bias;
    uint32_t n_out;
    const char *domain; /* of RMSNormalization; NULL: LayerNormalization */
};

static const struct layer layers[] = {
    { GRADCHECK_SHAPE(7, 17), -1, true, 1, NULL },
    { GRADCHECK_SHAPE(2, 3, 5), -1, false, 3, NULL },
    { GRADCHECK_SHAPE(3, 4, 5), 1, true, 3, NULL },
    { GRADCHECK_SHAPE(2, 64), 0, true, 2, NULL },
    { GRADCHECK_SHAPE(70, 3), -1, true, 1, NULL },
    { GRADCHECK_SHAPE(2, 1, 130), 2, true, 3, NULL },
    { GRADCHECK_SHAPE(2, 3, 4, 5), -2, true, 1, NULL },
    /* rows of one: the result depends only on epsilon */
    { GRADCHECK_SHAPE(5, 1), -1, true, 3, NULL },
    { GRADCHECK_SHAPE(0, 6), -1, true, 3, NULL },
    { GRADCHECK_SHAPE(7, 17), -1, false, 1, "trainerd" },
    { GRADCHECK_SHAPE(2, 3, 40), 1, false, 1, "trainerd" },
    { GRADCHECK_SHAPE(5, 1), -1, false, 1, "trainerd" },
};

struct built {
    struct gradcheck_case gc;
    struct op_attr attrs[3];
};

static size_t row_of(const struct layer *l)
{
    size_t n = 1, k = (size_t)(l->axis < 0 ? l->axis + (int)l->x.rank : l->axis);

    for (; k < l->x.rank; k++)
        n *= (size_t)l->x.dim[k];
    return n;
}

static void set_layer(struct built *b, const struct layer *l)
{
    uint32_t k, first = (uint32_t)(l->axis < 0 ? l->axis + (int)l->x.rank : l->axis);
    struct shape *s;

    memset(b, 0, sizeof(*b));
    b->attrs[0] = FLOAT("epsilon", 1e-3f);
    b->attrs[1] = INT("axis", l->axis);
    b->gc = (struct gradcheck_case){ .op = "LayerNormalization", .opset = 17, .attrs = b->attrs,
                                     .n_attrs = 2, .n_in = l->has_bias ? 3 : 2,
                                     .n_out = l->n_out, .seed = 21 };
    if (l->domain != NULL) {
        b->gc.op = "RMSNormalization";
        b->gc.domain = l->domain;
    }
    b->gc.in[X] = (struct gradcheck_tensor){ .shape = l->x, .lo = -1, .hi = 3 };
    s = &b->gc.in[SCALE].shape;
    for (k = first; k < l->x.rank; k++)
        s->dim[s->rank++] = l->x.dim[k];
    b->gc.in[BIAS].shape = *s;
}

/* [rows, n] in double */
static void expect_rows(const struct gradcheck_result *r, size_t n, bool rms, double tol)
{
    size_t rows = (size_t)tensor_elements(&r->in[X]) / n, i, k;
    const float *x = r->in[X].data, *scale = r->in[SCALE].data, *bias = r->in[BIAS].data;
    double *y = calloc(rows * n + 1, sizeof(*y)), *mean = calloc(rows + 1, sizeof(*mean));
    double *rstd = calloc(rows + 1, sizeof(*rstd));

    for (i = 0; i < rows; i++) {
        double var = 0;

        for (k = 0; k < n && !rms; k++)
            mean[i] += (double)x[i * n + k] / (double)n;
        for (k = 0; k < n; k++)
            var += ((double)x[i * n + k] - mean[i]) * ((double)x[i * n + k] - mean[i]);
        rstd[i] = 1 / sqrt(var / (double)n + (double)1e-3f);
        for (k = 0; k < n; k++)
            y[i * n + k] = ((double)x[i * n + k] - mean[i]) * rstd[i] * (double)scale[k] +
                           (bias != NULL ? (double)bias[k] : 0);
    }
    gradcheck_near("y", r->out[0].data, y, rows * n, tol);
    if (r->out[1].data != NULL)
        gradcheck_near("mean", r->out[1].data, mean, rows, 1e-6);
    if (r->out[2].data != NULL)
        gradcheck_near("rstd", r->out[2].data, rstd, rows, 1e-6);
    free(y);
    free(mean);
    free(rstd);
}

static void rows_are_normalised_and_scaled(void **state)
{
    size_t i;

    (void)state;
    for (i = 0; i < COUNT_OF(layers); i++) {
        struct built b;
        struct gradcheck_result r;
        struct err err = { 0 };

        set_layer(&b, &layers[i]);
        if (gradcheck_forward(&b.gc, &r, &err) < 0)
            fail_msg("case %zu: %s", i, err.text);
        expect_rows(&r, row_of(&layers[i]), layers[i].domain != NULL, 2e-6);
        gradcheck_free(&r);
        b.gc.eval = true;
        assert_int_equal(gradcheck_forward(&b.gc, &r, &err), 0);
        expect_rows(&r, row_of(&layers[i]), layers[i].domain != NULL, 2e-6);
        gradcheck_free(&r);
    }
}

static void gradients_from_all_outputs_match_differences(void **state)
{
    size_t i;

    (void)state;
    for (i = 0; i < COUNT_OF(layers); i++) {
        struct built b;

        set_layer(&b, &layers[i]);
        b.gc.probes = 40;
        gradcheck_run(&b.gc);
        if (layers[i].n_out < 2)
            continue;
        b.gc.unread = OP_OUT(0);
        gradcheck_run(&b.gc);
        b.gc.unread = 0;
        b.gc.no_dout = OP_OUT(0) | OP_OUT(1);
        gradcheck_run(&b.gc);
        b.gc.no_dout |= OP_OUT(2);
        gradcheck_run(&b.gc);
    }
}

static void long_rows_and_large_mean_keep_precision(void **state)
{
    struct layer l = { GRADCHECK_SHAPE(2, 10007), -1, true, 3, NULL };
    struct built b;
    struct gradcheck_result r;
    struct err err = { 0 };

    (void)state;
    set_layer(&b, &l);
    assert_int_equal(gradcheck_forward(&b.gc, &r, &err), 0);
    expect_rows(&r, 10007, false, 2e-6);
    gradcheck_free(&r);
    b.gc.in[X].lo = 9999; /* a mean of 1e4 has a spacing of 1e-3, so x has lost that precision */
    b.gc.in[X].hi = 10001;
    assert_int_equal(gradcheck_forward(&b.gc, &r, &err), 0);
    expect_rows(&r, 10007, false, 3e-3);
    gradcheck_free(&r);
}

/* More rows than a GPU processes at once, rows of whole packs, rows too long for registers. */
static void gradients_of_many_and_long_rows_match_differences(void **state)
{
    static const struct layer large[] = {
        { GRADCHECK_SHAPE(1700, 24), -1, true, 1, NULL },
        { GRADCHECK_SHAPE(5, 768), -1, true, 3, NULL },
        { GRADCHECK_SHAPE(3, 2304), -1, true, 1, NULL },
        { GRADCHECK_SHAPE(2, 4601), -1, false, 1, "trainerd" },
    };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(large); i++) {
        struct built b;

        set_layer(&b, &large[i]);
        b.gc.probes = 3;
        gradcheck_run(&b.gc);
    }
}

/* The normalised tensor is a sum of two: y equals the norm of the sum, and both summands receive
 * the gradients of the norm and of the other readers of the sum. */
static void norm_with_residual_outputs_sum(void **state)
{
    static const struct layer sums[] = {
        { GRADCHECK_SHAPE(7, 17), -1, true, 2, NULL },      { GRADCHECK_SHAPE(3, 4, 10), 1, true, 2, NULL },
        { GRADCHECK_SHAPE(0, 6), -1, true, 2, NULL },       { GRADCHECK_SHAPE(5, 1), -1, false, 2, NULL },
        { GRADCHECK_SHAPE(2, 768), -1, true, 2, NULL },     { GRADCHECK_SHAPE(1, 8200), -1, true, 2, NULL },
        { GRADCHECK_SHAPE(2, 1031), -1, false, 2, "rms" },  { GRADCHECK_SHAPE(9, 24), -1, false, 2, "rms" },
    };
    size_t i, k;

    (void)state;
    for (i = 0; i < COUNT_OF(sums); i++) {
        size_t elements = (size_t)tensor_elements(&(struct tensor){ .shape = sums[i].x });
        struct gradcheck_result r;
        struct err err = { 0 };
        struct built b;
        float *sum;

        set_layer(&b, &sums[i]);
        b.gc.op = sums[i].domain != NULL ? "RMSNormAdd" : "LayerNormAdd";
        b.gc.domain = "trainerd";
        b.gc.opset = 1;
        b.gc.n_in = 4;
        b.gc.in[BIAS].absent = !sums[i].has_bias;
        b.gc.in[3] = (struct gradcheck_tensor){ .shape = sums[i].x, .lo = -2, .hi = 1 };
        if (gradcheck_forward(&b.gc, &r, &err) < 0)
            fail_msg("case %zu: %s", i, err.text);
        sum = r.in[X].data;
        for (k = 0; k < elements; k++)
            sum[k] += ((const float *)r.in[3].data)[k];
        assert_true(elements == 0 || memcmp(sum, r.out[1].data, elements * sizeof(*sum)) == 0);
        free(r.out[1].data);
        r.out[1].data = NULL;
        expect_rows(&r, row_of(&sums[i]), sums[i].domain != NULL, 2e-6);
        gradcheck_free(&r);
        b.gc.probes = elements > 1000 ? 3 : 30;
        gradcheck_run(&b.gc);
        if (elements > 1000)
            continue;
        b.gc.no_dout = OP_OUT(1);
        gradcheck_run(&b.gc);
        b.gc.no_dout = OP_OUT(0);
        gradcheck_run(&b.gc);
        b.gc.no_dout = 0;
        b.gc.eval = true;
        b.gc.unread = OP_OUT(1);
        assert_int_equal(gradcheck_forward(&b.gc, &r, &err), 0);
        for (k = 0, sum = r.in[X].data; k < elements; k++)
            sum[k] += ((const float *)r.in[3].data)[k];
        expect_rows(&r, row_of(&sums[i]), sums[i].domain != NULL, 2e-6);
        gradcheck_free(&r);
        b.gc.in[3].shape.dim[0] += 1;
        oracle_refused(&b.gc, ERR_INPUT, "as input 0");
    }
}

static void scale_and_bias_accept_only_leading_ones(void **state)
{
    struct built b;

    (void)state;
    set_layer(&b, &layers[2]);
    b.gc.in[SCALE].shape = shape_of(3, D 1, D 4, D 5);
    gradcheck_run(&b.gc);
    b.gc.in[BIAS].shape = shape_of(1, D 5);
    oracle_refused(&b.gc, ERR_UNSUPPORTED, "LayerNormalization 'checked' (opset 17): input 2 has "
                                           "shape [5]; expected that of a row, [4, 5]");
    b.gc.in[SCALE].shape = shape_of(3, D 3, D 4, D 5);
    oracle_refused(&b.gc, ERR_UNSUPPORTED, "input 1 has shape [3, 4, 5]");
}

static void invalid_attributes_are_rejected_with_node(void **state)
{
    struct layer none = { GRADCHECK_SHAPE(3, 0), -1, true, 1, NULL };
    struct built b;

    (void)state;
    set_layer(&b, &layers[0]);
    b.attrs[1].i = 2;
    oracle_refused(&b.gc, ERR_INPUT, "LayerNormalization 'checked' (opset 17): axis is 2");
    b.attrs[1].i = -3;
    oracle_refused(&b.gc, ERR_INPUT, "axis is -3");
    set_layer(&b, &layers[0]);
    b.attrs[0].f = -1;
    oracle_refused(&b.gc, ERR_INPUT, "epsilon is -1");
    b.attrs[0] = INT("stash_type", 16);
    oracle_refused(&b.gc, ERR_UNSUPPORTED, "stash_type is 16");
    set_layer(&b, &layers[0]);
    b.gc.in[SCALE].absent = true;
    oracle_refused(&b.gc, ERR_INPUT, "input 1 is missing");
    set_layer(&b, &none);
    oracle_refused(&b.gc, ERR_INPUT, "have no elements");
}

/* ---- InstanceNormalization and GroupNormalization ---- */

struct group {
    struct shape x;
    int64_t groups; /* 0: InstanceNormalization */
    uint32_t opset;
};

static const struct group groups[] = {
    { GRADCHECK_SHAPE(2, 3, 7), 0, 11 },        { GRADCHECK_SHAPE(2, 5, 4, 3), 0, 13 },
    { GRADCHECK_SHAPE(1, 130, 3, 2), 0, 13 },   { GRADCHECK_SHAPE(2, 3, 2, 2, 5), 0, 6 },
    { GRADCHECK_SHAPE(2, 1, 1, 1), 0, 13 },     { GRADCHECK_SHAPE(0, 2, 3, 3), 0, 13 },
    { GRADCHECK_SHAPE(2, 6, 5), 3, 18 },        { GRADCHECK_SHAPE(2, 6, 3, 5), 2, 18 },
    { GRADCHECK_SHAPE(2, 6, 3, 5), 1, 20 },     { GRADCHECK_SHAPE(3, 12, 4, 4), 4, 21 },
    { GRADCHECK_SHAPE(1, 256, 2, 1), 8, 21 },   { GRADCHECK_SHAPE(4, 6), 2, 21 },
    { GRADCHECK_SHAPE(2, 6, 3, 5), 6, 21 },     { GRADCHECK_SHAPE(2, 2, 65, 70), 1, 21 },
};

static void set_group(struct built *b, const struct group *g)
{
    int64_t n = g->groups == 0 || g->opset >= 21 ? g->x.dim[1] : g->groups;

    memset(b, 0, sizeof(*b));
    b->attrs[0] = FLOAT("epsilon", 1e-3f);
    b->attrs[1] = INT("num_groups", g->groups);
    b->gc = (struct gradcheck_case){ .op = g->groups == 0 ? "InstanceNormalization"
                                                          : "GroupNormalization",
                                     .opset = g->opset, .attrs = b->attrs,
                                     .n_attrs = g->groups == 0 ? 1 : 2, .n_in = 3, .seed = 4,
                                     .probes = 60 };
    b->gc.in[X] = (struct gradcheck_tensor){ .shape = g->x, .lo = -1, .hi = 3 };
    b->gc.in[SCALE].shape = b->gc.in[BIAS].shape = shape_of(1, n);
}

static void expect_groups(const struct group *g, const struct gradcheck_result *r)
{
    size_t n = (size_t)g->x.dim[0], c = (size_t)g->x.dim[1], space = 1, i, k;
    size_t all = g->groups == 0 ? c : (size_t)g->groups, row, per_scale;
    const float *x = r->in[X].data, *scale = r->in[SCALE].data, *bias = r->in[BIAS].data;
    double *y;

    for (k = 2; k < g->x.rank; k++)
        space *= (size_t)g->x.dim[k];
    row = c / all * space;
    per_scale = c / (size_t)r->in[SCALE].shape.dim[0];
    y = calloc(n * c * space + 1, sizeof(*y));
    for (i = 0; i < n * all; i++) {
        double mean = 0, var = 0;

        for (k = 0; k < row; k++)
            mean += (double)x[i * row + k] / (double)row;
        for (k = 0; k < row; k++)
            var += pow((double)x[i * row + k] - mean, 2) / (double)row;
        for (k = 0; k < row; k++) {
            size_t s = (i * row + k) / space % c / per_scale;

            y[i * row + k] =
                ((double)x[i * row + k] - mean) / sqrt(var + (double)1e-3f) * (double)scale[s] +
                (double)bias[s];
        }
    }
    gradcheck_near("y", r->out[0].data, y, n * c * space, 3e-6);
    free(y);
}

static void groups_are_normalised_in_any_layout(void **state)
{
    size_t i;

    (void)state;
    for (i = 0; i < COUNT_OF(groups); i++) {
        struct built b;
        struct gradcheck_result r;
        struct err err = { 0 };

        set_group(&b, &groups[i]);
        for (b.gc.layout = TENSOR_PLAIN; b.gc.layout <= TENSOR_CHANNELS_LAST; b.gc.layout++) {
            if (gradcheck_forward(&b.gc, &r, &err) < 0)
                fail_msg("case %zu: %s", i, err.text);
            expect_groups(&groups[i], &r);
            gradcheck_free(&r);
        }
    }
}

static void gradients_of_groups_match_differences_in_any_layout(void **state)
{
    size_t i;

    (void)state;
    for (i = 0; i < COUNT_OF(groups); i++) {
        struct built b;

        set_group(&b, &groups[i]);
        if (tensor_elements(&(struct tensor){ .shape = groups[i].x }) > 2000)
            b.gc.probes = 6;
        gradcheck_run(&b.gc);
    }
}

static void invalid_groups_are_rejected_with_node(void **state)
{
    struct group g = groups[7];
    struct built b;

    (void)state;
    set_group(&b, &g);
    b.attrs[1].i = 4;
    oracle_refused(&b.gc, ERR_INPUT, "GroupNormalization 'checked' (opset 18): num_groups is 4; "
                                     "expected a divisor of the 6 channels");
    b.gc.n_attrs = 1;
    oracle_refused(&b.gc, ERR_INPUT, "attribute 'num_groups' is missing");
    set_group(&b, &g);
    b.gc.in[SCALE].shape = shape_of(1, D 6);
    oracle_refused(&b.gc, ERR_INPUT, "input 1 (scale) has 6 elements; expected one for each of 2 "
                                     "groups");
    g.opset = 21;
    set_group(&b, &g);
    b.gc.in[BIAS].shape = shape_of(1, D 2);
    oracle_refused(&b.gc, ERR_INPUT, "input 2 (bias) has 2 elements; expected one for each of 6 "
                                     "channels");
    set_group(&b, &groups[0]);
    b.gc.in[X].shape = shape_of(2, D 2, D 3);
    oracle_refused(&b.gc, ERR_INPUT, "InstanceNormalization 'checked' (opset 11): input 0 has "
                                     "shape [2, 3]; expected n, c and space");
    b.gc.in[X].shape = shape_of(3, D 2, D 3, D 0);
    oracle_refused(&b.gc, ERR_INPUT, "nothing to normalise");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_normalised_and_scaled),
        cmocka_unit_test(gradients_from_all_outputs_match_differences),
        cmocka_unit_test(long_rows_and_large_mean_keep_precision),
        cmocka_unit_test(gradients_of_many_and_long_rows_match_differences),
        cmocka_unit_test(norm_with_residual_outputs_sum),
        cmocka_unit_test(scale_and_bias_accept_only_leading_ones),
        cmocka_unit_test(invalid_attributes_are_rejected_with_node),
        cmocka_unit_test(groups_are_normalised_in_any_layout),
        cmocka_unit_test(gradients_of_groups_match_differences_in_any_layout),
        cmocka_unit_test(invalid_groups_are_rejected_with_node),
    };

    return cmocka_run_group_tests_name("op/row_norm", tests, NULL, NULL);
}
