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
#include "harness/op_rig.h"

#define D (int64_t)

enum { SCORES, LABELS, WEIGHTS };

struct loss {
    struct shape x;
    const char *reduction; /* NULL: attribute absent, which means the mean */
    bool weighted, log_prob, narrow; /* narrow: int32 labels */
    int64_t ignored;                 /* NONE: no attribute */
};

enum { NOBODY = 1000000 };

static const struct loss cases[] = {
    { GRADCHECK_SHAPE(7, 5), NULL, false, false, false, NOBODY },
    { GRADCHECK_SHAPE(7, 5), "sum", true, true, true, NOBODY },
    { GRADCHECK_SHAPE(7, 5), "mean", true, true, false, 2 },
    { GRADCHECK_SHAPE(7, 5), "none", false, true, false, -100 },
    { GRADCHECK_SHAPE(3, 601), "mean", true, true, false, NOBODY },
    { GRADCHECK_SHAPE(4, 1), "mean", false, false, false, NOBODY },
    { GRADCHECK_SHAPE(1, 3), "none", true, false, false, NOBODY },
    { GRADCHECK_SHAPE(2, 4, 3), "mean", true, true, false, 1 },
    { GRADCHECK_SHAPE(2, 3, 5, 7), "none", true, true, true, -1 },
    { GRADCHECK_SHAPE(2, 3, 1, 257), "mean", false, true, false, 0 },
    { GRADCHECK_SHAPE(1, 3, 2, 2, 3), "sum", true, false, false, NOBODY },
    { GRADCHECK_SHAPE(0, 3), "sum", true, true, false, NOBODY },
    { GRADCHECK_SHAPE(0, 3, 4), "none", false, false, false, NOBODY },
};

struct built {
    struct gradcheck_case gc;
    struct op_attr attrs[2];
    int64_t wide[2048];
    int32_t narrow[2048];
    size_t n, classes, space;
};

static void set(struct built *b, const struct loss *c, bool softmax)
{
    struct shape at = { 0 };
    size_t i;
    uint32_t k;

    memset(b, 0, sizeof(*b));
    b->gc = (struct gradcheck_case){ .op = softmax ? "SoftmaxCrossEntropyLoss"
                                                   : "NegativeLogLikelihoodLoss",
                                     .opset = 13, .attrs = b->attrs, .n_in = c->weighted ? 3 : 2,
                                     .n_out = softmax && c->log_prob ? 2 : 1, .seed = 8,
                                     .probes = 60 };
    if (c->reduction != NULL)
        b->attrs[b->gc.n_attrs++] = (struct op_attr){ .name = "reduction", .type = OP_ATTR_STRING,
                                                      .s = c->reduction };
    if (c->ignored != NOBODY)
        b->attrs[b->gc.n_attrs++] = (struct op_attr){ .name = "ignore_index", .type = OP_ATTR_INT,
                                                      .i = c->ignored };
    b->n = (size_t)c->x.dim[0];
    b->classes = (size_t)c->x.dim[1];
    b->space = 1;
    for (k = 0; k < c->x.rank; k++) {
        if (k != 1)
            at.dim[at.rank++] = c->x.dim[k];
        b->space *= k > 1 ? (size_t)c->x.dim[k] : 1;
    }
    for (i = 0; i < b->n * b->space; i++) {
        b->wide[i] = (int64_t)(i * 7 % b->classes);
        if (c->ignored != NOBODY && i % 4 == 1)
            b->wide[i] = c->ignored;
        b->narrow[i] = (int32_t)b->wide[i];
    }
    b->gc.in[SCORES] = (struct gradcheck_tensor){ .shape = c->x, .lo = -4, .hi = 4 };
    b->gc.in[LABELS] = (struct gradcheck_tensor){ .dtype = c->narrow ? TENSOR_I32 : TENSOR_I64,
                                                  .shape = at,
                                                  .data = c->narrow ? (void *)b->narrow
                                                                    : (void *)b->wide };
    b->gc.in[WEIGHTS] = (struct gradcheck_tensor){ .shape = shape_of(1, c->x.dim[1]), .lo = 0.5,
                                                   .hi = 2 };
}

/* log_softmax(x) or x itself, for class k of element i. */
static double score(const struct built *b, const float *x, size_t i, size_t k, bool softmax)
{
    size_t first = i / b->space * b->classes * b->space + i % b->space, j;
    double sum = 0;

    for (j = 0; j < b->classes && softmax; j++)
        sum += exp((double)x[first + j * b->space] - (double)x[first + k * b->space]);
    return softmax ? -log(sum) : (double)x[first + k * b->space];
}

static void expect_loss(const struct built *b, const struct loss *c,
                        const struct gradcheck_result *r, bool softmax)
{
    size_t all = b->n * b->space, i, k;
    double *each = calloc(all + 1, sizeof(*each)), sum = 0, weights = 0;
    double *log_prob = calloc(all * b->classes + 1, sizeof(*log_prob));
    const float *x = r->in[SCORES].data, *w = r->in[WEIGHTS].data;

    for (i = 0; i < all; i++) {
        double weight = b->wide[i] == c->ignored ? 0 : w != NULL ? (double)w[b->wide[i]] : 1;

        if (weight != 0)
            each[i] = -weight * score(b, x, i, (size_t)b->wide[i], softmax);
        sum += each[i];
        weights += weight;
        for (k = 0; k < b->classes; k++)
            log_prob[i / b->space * b->classes * b->space + k * b->space + i % b->space] =
                score(b, x, i, k, softmax);
    }
    if (c->reduction != NULL && strcmp(c->reduction, "none") == 0) {
        assert_int_equal(tensor_elements(&r->out[0]), all);
        assert_int_equal(r->out[0].shape.rank, c->x.rank - 1);
        gradcheck_near("loss", r->out[0].data, each, all, 1e-6);
    } else {
        sum /= c->reduction == NULL || strcmp(c->reduction, "mean") == 0 ? weights : 1;
        assert_int_equal(r->out[0].shape.rank, 0);
        gradcheck_near("loss", r->out[0].data, &sum, 1, 1e-6);
    }
    if (r->out[1].data != NULL)
        gradcheck_near("log_prob", r->out[1].data, log_prob, all * b->classes, 1e-6);
    free(each);
    free(log_prob);
}

static void both_losses_follow_definition(void **state)
{
    size_t i;
    int softmax;

    (void)state;
    for (i = 0; i < COUNT_OF(cases); i++)
        for (softmax = 0; softmax < 2; softmax++) {
            struct built b;
            struct gradcheck_result r;
            struct err err = { 0 };

            set(&b, &cases[i], softmax);
            if (gradcheck_forward(&b.gc, &r, &err) < 0)
                fail_msg("case %zu: %s", i, err.text);
            expect_loss(&b, &cases[i], &r, softmax);
            gradcheck_free(&r);
        }
}

static void gradients_from_loss_and_log_prob_match_differences(void **state)
{
    size_t i;
    int softmax;

    (void)state;
    for (i = 0; i < COUNT_OF(cases); i++)
        for (softmax = 0; softmax < 2; softmax++) {
            struct built b;

            set(&b, &cases[i], softmax);
            if (b.n * b.classes > 1000) {
                b.gc.step = 1.0 / 8; /* a single score has little influence */
                b.gc.probes = 20;
            }
            gradcheck_run(&b.gc);
            if (b.gc.n_out < 2)
                continue;
            b.gc.no_dout = OP_OUT(0);
            gradcheck_run(&b.gc);
            b.gc.no_dout = OP_OUT(1);
            gradcheck_run(&b.gc);
            b.gc.unread = OP_OUT(0);
            gradcheck_run(&b.gc);
        }
}

static void large_scores_neither_overflow_nor_lose_precision(void **state)
{
    static const float x[] = { 1000, 999, -1000, 0, 0, 0 };
    static const int64_t label[] = { 1, 2 };
    static const double want[] = { 1.3132616875182228, 1.0986122886681098 };
    struct loss c = { GRADCHECK_SHAPE(2, 3), "none", false, false, false, NOBODY };
    struct built b;
    struct gradcheck_result r;
    struct err err = { 0 };

    (void)state;
    set(&b, &c, true);
    b.gc.in[SCORES].data = x;
    b.gc.in[LABELS].data = label;
    assert_int_equal(gradcheck_forward(&b.gc, &r, &err), 0);
    gradcheck_near("loss", r.out[0].data, want, 2, 1e-6);
    gradcheck_free(&r);
}

static void mean_over_no_labels_is_nan_with_zero_gradient(void **state)
{
    struct loss c = { GRADCHECK_SHAPE(2, 3), "mean", false, false, false, 1 };
    static const int64_t ignored[] = { 1, 1 };
    struct built b;
    struct gradcheck_result r;
    struct err err = { 0 };
    int softmax, i;

    (void)state;
    for (softmax = 0; softmax < 2; softmax++) {
        set(&b, &c, softmax);
        b.gc.in[LABELS].data = ignored;
        assert_int_equal(gradcheck_backward(&b.gc, &r, &err), 0);
        assert_true(isnan(*(float *)r.out[0].data));
        for (i = 0; i < 6; i++)
            assert_true(((float *)r.din[0].data)[i] == 0);
        gradcheck_free(&r);
    }
}

static void label_out_of_range_is_rejected(void **state)
{
    struct built b;

    (void)state;
    set(&b, &cases[2], true);
    b.wide[3] = 5;
    oracle_refused(&b.gc, ERR_INPUT, "SoftmaxCrossEntropyLoss: label 3 of this batch is 5; the "
                                     "scores have 5 classes, so labels are 0 to 4");
    b.wide[3] = -1;
    b.gc.op = "NegativeLogLikelihoodLoss";
    b.gc.n_out = 1;
    oracle_refused(&b.gc, ERR_INPUT, "NegativeLogLikelihoodLoss: label 3 of this batch is -1");
}

static void invalid_attributes_are_rejected_with_node(void **state)
{
    struct built b;

    (void)state;
    set(&b, &cases[2], true);
    b.attrs[0].s = "median";
    oracle_refused(&b.gc, ERR_INPUT, "SoftmaxCrossEntropyLoss 'checked' (opset 13): attribute "
                                     "'reduction' is 'median'");
    set(&b, &cases[2], true);
    b.gc.in[LABELS].shape = shape_of(2, D 7, D 1);
    oracle_refused(&b.gc, ERR_INPUT, "input 1, the labels, has shape [7, 1]; expected [7]");
    b.gc.in[LABELS] = (struct gradcheck_tensor){ .shape = shape_of(1, D 7) };
    oracle_refused(&b.gc, ERR_INPUT, "the labels, is float32; expected int64 or int32");
    set(&b, &cases[2], true);
    b.gc.in[WEIGHTS].shape.dim[0] = 4;
    oracle_refused(&b.gc, ERR_INPUT, "the weights, has 4 elements; expected one for each of 5");
    set(&b, &cases[2], true);
    b.gc.in[SCORES].shape.rank = 1;
    oracle_refused(&b.gc, ERR_INPUT, "input 0 has shape [7]");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(both_losses_follow_definition),
        cmocka_unit_test(gradients_from_loss_and_log_prob_match_differences),
        cmocka_unit_test(large_scores_neither_overflow_nor_lose_precision),
        cmocka_unit_test(mean_over_no_labels_is_nan_with_zero_gradient),
        cmocka_unit_test(label_out_of_range_is_rejected),
        cmocka_unit_test(invalid_attributes_are_rejected_with_node),
    };

    return cmocka_run_group_tests_name("op/onnx_loss", tests, NULL, NULL);
}
