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
#include "harness/gradcheck.h"
#include "harness/op_oracle.h"
#include "harness/op_rig.h"

#define INT(name_, i_) { .name = (name_), .type = OP_ATTR_INT, .i = (i_) }

static void unravel(const struct shape *s, size_t i, int64_t *at)
{
    uint32_t k;

    for (k = s->rank; k-- > 0; i /= (size_t)s->dim[k])
        at[k] = (int64_t)(i % (size_t)s->dim[k]);
}

/* ---- the formulas: over n values in double ---- */

#define OVER(name_, start_, step_, end_)                                                           \
    static double name_(const double *x, size_t n)                                                 \
    {                                                                                              \
        double y = (start_);                                                                       \
        size_t i;                                                                                  \
                                                                                                   \
        for (i = 0; i < n; i++)                                                                    \
            y = (step_);                                                                           \
        return (end_);                                                                             \
    }
OVER(sum, 0, y + x[i], y)
OVER(mean, 0, y + x[i], y / (double)n)
OVER(whole_mean, 0, y + x[i], trunc(y / (double)n))
OVER(l1, 0, y + fabs(x[i]), y)
OVER(l2, 0, y + x[i] * x[i], sqrt(y))
OVER(squares, 0, y + x[i] * x[i], y)
OVER(log_sum, 0, y + x[i], log(y))
OVER(log_sum_exp, 0, y + exp(x[i]), log(y))
OVER(product, 1, y *x[i], y)
OVER(greatest, -INFINITY, fmax(y, x[i]), y)
OVER(least, INFINITY, fmin(y, x[i]), y)

static const struct reduction {
    const char *op;
    uint32_t as_input; /* from this opset on the axes are input 1 */
    double (*f)(const double *x, size_t n);
    double (*of_ints)(const double *x, size_t n);
    double lo, hi, tol;
} reductions[] = {
    { "ReduceSum", 13, sum, sum, -1, 1, 2e-7 },
    { "ReduceMean", 18, mean, whole_mean, -1, 1, 2e-7 },
    { "ReduceL1", 18, l1, NULL, -1, 1, 2e-7 },
    { "ReduceL2", 18, l2, NULL, -1, 1, 2e-7 },
    { "ReduceSumSquare", 18, squares, NULL, -1, 1, 2e-7 },
    { "ReduceLogSum", 18, log_sum, NULL, 0.5, 1.5, 2e-7 },
    { "ReduceLogSumExp", 18, log_sum_exp, NULL, -2, 2, 3e-7 },
    { "ReduceProd", 18, product, product, 0.5, 1.6, 3e-7 },
    { "ReduceMax", 18, greatest, greatest, -1, 1, 0 },
    { "ReduceMin", 18, least, least, -1, 1, 0 },
};

static const struct form {
    struct shape in;
    int64_t axes[4], n; /* n -1: no axes */
} forms[] = {
    { GRADCHECK_SHAPE(7), { 0 }, 1 },
    { GRADCHECK_SHAPE(3, 37), { 1 }, 1 },
    { GRADCHECK_SHAPE(37, 3), { 0 }, 1 },
    { GRADCHECK_SHAPE(2, 3, 4, 5), { 2, 3 }, 2 },
    { GRADCHECK_SHAPE(2, 3, 4, 5), { 1 }, 1 },
    { GRADCHECK_SHAPE(2, 3, 4, 5), { 0, -1, 2 }, 3 },
    { GRADCHECK_SHAPE(3, 2, 5), { -3, -1 }, 2 },
    { GRADCHECK_SHAPE(3, 2, 4, 8), { 1, 3 }, 2 },
    { GRADCHECK_SHAPE(2, 3, 4), { 0 }, -1 },
    { GRADCHECK_SHAPE(1, 5, 1), { 0, 2 }, 2 },
    { { 0 }, { 0 }, -1 },
};

/* Returns true if axis k is reduced. axes: 99 is never an axis. */
static bool goes(const struct form *f, uint32_t k)
{
    int64_t i;

    for (i = 0; i < f->n; i++)
        if (f->axes[i] == k || f->axes[i] + f->in.rank == k)
            return true;
    return f->n < 0;
}

static struct shape kept(const struct form *f, bool keep)
{
    struct shape y = { 0 };
    uint32_t k;

    for (k = 0; k < f->in.rank; k++)
        if (!goes(f, k) || keep)
            y.dim[y.rank++] = goes(f, k) ? 1 : f->in.dim[k];
    return y;
}

/* Copies the x of output `o` to xs; returns their number. */
static size_t those_of(const struct form *f, const struct tensor *x, const int64_t *y_at,
                       double *xs)
{
    size_t n = (size_t)tensor_elements(x), i, m = 0;

    for (i = 0; i < n; i++) {
        int64_t at[TENSOR_MAX_RANK];
        uint32_t k, j = 0;
        bool mine = true;

        unravel(&x->shape, i, at);
        for (k = 0; k < f->in.rank; k++)
            if (!goes(f, k))
                mine = at[k] == y_at[j++] && mine;
        if (mine)
            xs[m++] = oracle_at(x, i);
    }
    return m;
}

static void make_case(const struct reduction *r, const struct form *f, uint32_t opset, bool keep,
                      struct op_attr *attrs, struct gradcheck_case *gc)
{
    *gc = (struct gradcheck_case){ .op = r->op, .opset = opset, .attrs = attrs, .n_attrs = 1,
                                   .n_in = 1, .seed = 2, .step = 1.0 / 128,
                                   .in = { { .shape = f->in, .lo = r->lo, .hi = r->hi,
                                             .apart = true } } };
    attrs[0] = (struct op_attr)INT("keepdims", keep);
    if (f->n >= 0 && opset < r->as_input) {
        attrs[1] = (struct op_attr){ .name = "axes", .type = OP_ATTR_INTS, .ints = f->axes,
                                     .n = (size_t)f->n };
        gc->n_attrs = 2;
    } else if (f->n >= 0) {
        gc->in[gc->n_in++] = (struct gradcheck_tensor){ .dtype = TENSOR_I64, .data = f->axes,
                                                        .shape = GRADCHECK_SHAPE(f->n),
                                                        .constant = true };
    }
}

static void expect_reduced(const struct gradcheck_case *gc, const struct form *f, bool keep,
                           double (*over)(const double *x, size_t n), double tol)
{
    struct shape without = kept(f, false), y = kept(f, keep);
    struct gradcheck_result r;
    struct err err = { 0 };
    double xs[128];
    size_t n, i;

    if (gradcheck_forward(gc, &r, &err) < 0)
        fail_msg("%s: %s", gc->op, err.text);
    assert_true(shape_equal(&r.out[0].shape, &y));
    n = (size_t)tensor_elements(&r.out[0]);
    for (i = 0; i < n; i++) {
        int64_t at[TENSOR_MAX_RANK];
        double want, got = oracle_at(&r.out[0], i);

        unravel(&without, i, at);
        want = over(xs, those_of(f, &r.in[0], at, xs));
        if (!(fabs(got - want) <= tol * (1 + fabs(want))))
            fail_msg("%s: element %zu of %zu is %.9g, expected %.9g", gc->op, i, n, got, want);
    }
    gradcheck_free(&r);
}

static void reductions_follow_formula_over_any_axes(void **state)
{
    size_t i, k, v;

    (void)state;
    for (i = 0; i < COUNT_OF(reductions); i++)
        for (k = 0; k < COUNT_OF(forms); k++)
            for (v = 0; v < 8; v++) {
                const struct reduction *r = &reductions[i];
                bool keep = v % 2 == 0;
                struct op_attr attrs[2];
                struct gradcheck_case gc;

                make_case(r, &forms[k], v < 4 ? 11 : 18, keep, attrs, &gc);
                gc.layout = v % 4 < 2 ? TENSOR_PLAIN : TENSOR_CHANNELS_LAST;
                expect_reduced(&gc, &forms[k], keep, r->f, r->tol);
                if (r->of_ints == NULL)
                    continue;
                gc.in[0] = (struct gradcheck_tensor){ .dtype = TENSOR_I64, .shape = forms[k].in,
                                                      .lo = 1, .hi = r->f == product ? 2 : 9 };
                expect_reduced(&gc, &forms[k], keep, r->of_ints, 0);
                gc.in[0].dtype = TENSOR_I32;
                expect_reduced(&gc, &forms[k], keep, r->of_ints, 0);
            }
}

static void gradients_of_reductions_match_differences(void **state)
{
    size_t i, k, v;

    (void)state;
    for (i = 0; i < COUNT_OF(reductions); i++)
        for (k = 0; k < COUNT_OF(forms); k++)
            for (v = 0; v < 2; v++) {
                struct op_attr attrs[2];
                struct gradcheck_case gc;

                make_case(&reductions[i], &forms[k], v == 0 ? 11 : 18, v == 0, attrs, &gc);
                gradcheck_run(&gc);
            }
}

static void empty_axes_give_neutral_element_and_noop_attribute_is_honoured(void **state)
{
    static const float x[3] = { 1, 2, 3 };
    static const float starts[] = { 0, NAN, 0, 0, 0, -INFINITY, -INFINITY, 1, -INFINITY, INFINITY };
    static const struct op_attr noop[] = { INT("noop_with_empty_axes", 1) };
    static const int64_t one = 1;
    const struct shape three = GRADCHECK_SHAPE(3, 1);
    size_t i;

    (void)state;
    for (i = 0; i < COUNT_OF(reductions); i++) {
        float want[3] = { starts[i], starts[i], starts[i] };
        struct gradcheck_case gc = {
            .op = reductions[i].op, .opset = 18, .n_in = 2,
            .in = { { .shape = GRADCHECK_SHAPE(3, 0) },
                    { .dtype = TENSOR_I64, .shape = GRADCHECK_SHAPE(1), .data = &one,
                      .constant = true } } };

        oracle_floats(&gc, &three, want);
        gradcheck_run(&gc);
    }
    for (i = 0; i < COUNT_OF(reductions); i++) {
        float want[3];
        struct gradcheck_case gc = { .op = reductions[i].op, .opset = 18, .n_in = 1, .attrs = noop,
                                     .n_attrs = 1, .in = { { .shape = GRADCHECK_SHAPE(3, 1),
                                                             .data = x } } };
        size_t k;

        for (k = 0; k < 3; k++) {
            double alone = (double)x[k];

            want[k] = (float)reductions[i].f(&alone, 1);
        }
        if (reductions[i].f != log_sum_exp && reductions[i].f != log_sum)
            oracle_floats(&gc, &three, want);
        gradcheck_run(&gc);
    }
}

static void equal_extremes_share_gradient_and_products_handle_zeros(void **state)
{
    static const float x[6] = { 2, 5, 5, 1, 5, NAN }, ones[2] = { 6, 1 };
    static const float zeros[6] = { 0, 3, 2, 0, 4, 0 };
    static const double shares[6] = { 0, 3, 3, 0, 0, 1 }, others[6] = { 36, 0, 0, 0, 0, 0 };
    static const struct op_attr keep[] = { INT("keepdims", 0) };
    static const int64_t one = 1;
    struct gradcheck_case gc = { .op = "ReduceMax", .opset = 18, .n_in = 2, .attrs = keep,
                                 .n_attrs = 1, .dout = { ones },
                                 .in = { { .shape = GRADCHECK_SHAPE(2, 3), .data = x },
                                         { .dtype = TENSOR_I64, .shape = GRADCHECK_SHAPE(1),
                                           .data = &one, .constant = true } } };
    struct gradcheck_result r;
    struct err err = { 0 };

    (void)state;
    assert_int_equal(gradcheck_backward(&gc, &r, &err), 0);
    assert_true(isnan(((float *)r.out[0].data)[1]));
    gradcheck_near("dx", r.din[0].data, shares, 6, 0);
    gradcheck_free(&r);
    gc.op = "ReduceProd";
    gc.in[0].data = zeros;
    assert_int_equal(gradcheck_backward(&gc, &r, &err), 0);
    gradcheck_near("dx", r.din[0].data, others, 6, 0);
    gradcheck_free(&r);
}

/* Large enough for kernels that divide and split the work. */
static void large_reductions_follow_formula(void **state)
{
    static const struct form large[] = {
        { GRADCHECK_SHAPE(2, 4501), { 1 }, 1 },    { GRADCHECK_SHAPE(1001, 5), { 0 }, 1 },
        { GRADCHECK_SHAPE(1001, 3), { 1 }, 1 },    { GRADCHECK_SHAPE(4, 20, 3, 16), { 1, 3 }, 2 },
        { GRADCHECK_SHAPE(2, 33, 300), { 1 }, 1 }, { GRADCHECK_SHAPE(3, 20, 49), { 0, 2 }, 2 },
        { GRADCHECK_SHAPE(2, 17001), { 1 }, 1 },
    };
    static const char *const ops[] = { "ReduceSum", "ReduceLogSumExp", "ReduceMax" };
    size_t i, k;

    (void)state;
    for (i = 0; i < COUNT_OF(ops); i++)
        for (k = 0; k < COUNT_OF(large); k++) {
            const struct reduction r = { ops[i], 18, NULL, NULL, -2, 2, 0 };
            struct op_attr attrs[2];
            struct gradcheck_case gc;
            struct gradcheck_result res;
            struct err err = { 0 };
            double sum = 0, want = 0;
            int64_t e;

            make_case(&r, &large[k], 18, true, attrs, &gc);
            gc.in[0].apart = false;
            gc.probes = 1;
            gc.tol = 0.1; /* one of thousands of elements changes the result by little more than the
                             last bit of a float */
            if (large[k].in.dim[1] < 10000)
                gradcheck_run(&gc);
            if (i > 0)
                continue;
            assert_int_equal(gradcheck_forward(&gc, &res, &err), 0);
            for (e = 0; e < tensor_elements(&res.in[0]); e++)
                want += oracle_at(&res.in[0], (size_t)e);
            for (e = 0; e < tensor_elements(&res.out[0]); e++)
                sum += oracle_at(&res.out[0], (size_t)e);
            assert_true(fabs(sum - want) <=
                        1e-6 * (fabs(want) + (double)tensor_elements(&res.out[0])));
            gradcheck_free(&res);
        }
}

static void log_sum_exp_propagates_infinities_and_nan(void **state)
{
    static const float x[5][4] = {
        { -INFINITY, -INFINITY, -INFINITY, -INFINITY }, { -INFINITY, 3, -INFINITY, -INFINITY },
        { 1, NAN, 2, -INFINITY },                       { INFINITY, 1, -INFINITY, 1 },
        { INFINITY, NAN, 1, -INFINITY },
    };
    static const float want[5] = { -INFINITY, 3, NAN, INFINITY, NAN };
    static const int64_t one = 1;
    const struct shape five = GRADCHECK_SHAPE(5, 1);
    struct gradcheck_case gc = { .op = "ReduceLogSumExp", .opset = 18, .n_in = 2,
                                 .in = { { .shape = GRADCHECK_SHAPE(5, 4), .data = x },
                                         { .dtype = TENSOR_I64, .shape = GRADCHECK_SHAPE(1),
                                           .data = &one, .constant = true } } };
    struct gradcheck_result r;
    struct err err = { 0 };
    size_t i;

    (void)state;
    assert_int_equal(gradcheck_forward(&gc, &r, &err), 0);
    assert_true(shape_equal(&r.out[0].shape, &five));
    for (i = 0; i < 5; i++) {
        float got = ((float *)r.out[0].data)[i];

        assert_true(isnan(want[i]) ? isnan(got) : got == want[i]);
    }
    gradcheck_free(&r);
}

static void large_exponents_do_not_overflow_and_long_sums_keep_precision(void **state)
{
    enum { MANY = 200003 };
    static const float big[4] = { 1000, 1000, 999, -INFINITY };
    static const float log_of[1] = { 1000.861995f };
    static const double ones = MANY;
    const struct shape one = GRADCHECK_SHAPE(1);
    struct gradcheck_case gc = { .op = "ReduceLogSumExp", .opset = 18, .n_in = 1,
                                 .in = { { .shape = GRADCHECK_SHAPE(4), .data = big } } };
    float *x = malloc(MANY * sizeof(*x));
    struct gradcheck_result r;
    struct err err = { 0 };
    size_t i;

    (void)state;
    oracle_floats(&gc, &one, log_of);
    assert_non_null(x);
    for (i = 0; i < MANY; i++)
        x[i] = 1 + (i % 2 == 0 ? 0.3f : -0.3f);
    x[MANY - 1] = 1;
    gc.op = "ReduceSum";
    gc.in[0] = (struct gradcheck_tensor){ .shape = GRADCHECK_SHAPE(MANY), .data = x };
    assert_int_equal(gradcheck_forward(&gc, &r, &err), 0);
    gradcheck_near("sum", r.out[0].data, &ones, 1, 1e-7);
    gradcheck_free(&r);
    free(x);
}

static void invalid_axes_are_rejected(void **state)
{
    static const int64_t far = 2, twice[2] = { 0, -2 };
    struct gradcheck_case gc = { .op = "ReduceSum", .opset = 13, .n_in = 2,
                                 .in = { { .shape = GRADCHECK_SHAPE(2, 3) },
                                         { .dtype = TENSOR_I64, .shape = GRADCHECK_SHAPE(1),
                                           .data = &far, .constant = true } } };

    (void)state;
    oracle_refused(&gc, ERR_INPUT, "axis is 2; expected -2 to 1");
    gc.in[1].data = twice;
    gc.in[1].shape.dim[0] = 2;
    oracle_refused(&gc, ERR_INPUT, "axis 0 is repeated");
    gc.in[1].constant = false;
    oracle_refused(&gc, ERR_UNSUPPORTED, "input 1 is computed by the graph");
    gc.in[0].dtype = TENSOR_BOOL;
    oracle_refused(&gc, ERR_UNSUPPORTED, "input 0 is bool; supported are float32, int32, int64");
}

/* ---- along one axis ---- */

/* Compares the index of a maximum, and sums, with a loop. */
static void long_axes_and_many_sequences_match_loop(void **state)
{
    static const struct {
        struct shape in;
        int64_t axis;
    } samples[] = { { GRADCHECK_SHAPE(3, 2501), 1 }, { GRADCHECK_SHAPE(2, 1500, 3), 1 },
                    { GRADCHECK_SHAPE(3, 5, 801), 1 } };
    size_t i, v;

    (void)state;
    for (i = 0; i < COUNT_OF(samples); i++)
        for (v = 0; v < 5; v++) { /* v 4: ArgMax */
            const struct op_attr sum[] = { INT("exclusive", v % 2 == 1), INT("reverse", v >= 2) };
            const struct op_attr arg[] = { INT("axis", samples[i].axis), INT("select_last_index", 1) };
            struct gradcheck_case gc = {
                .op = v == 4 ? "ArgMax" : "CumSum", .opset = 14, .attrs = v == 4 ? arg : sum, .n_attrs = 2,
                .n_in = v == 4 ? 1 : 2, .seed = v, .probes = 1,
                .in = { { .dtype = v == 4 ? TENSOR_I64 : TENSOR_F32, .shape = samples[i].in, .lo = -50, .hi = 50 },
                        { .dtype = TENSOR_I64, .data = &samples[i].axis, .constant = true } } };
            int64_t k = samples[i].in.dim[1],
                    inner = samples[i].in.rank > 2 ? samples[i].in.dim[2] : 1, o, j, e;
            struct gradcheck_result r;
            struct err err = { 0 };

            assert_int_equal(gradcheck_forward(&gc, &r, &err), 0);
            for (o = 0; o < samples[i].in.dim[0]; o++)
                for (j = 0; j < inner; j++) {
                    size_t from = (size_t)(o * k * inner + j);
                    double all = 0, most = -INFINITY;
                    int64_t best = -1;

                    for (e = 0; e < k; e++) {
                        size_t at = from + (size_t)((v == 2 || v == 3 ? k - 1 - e : e) * inner);
                        double x = oracle_at(&r.in[0], at), before = all;

                        all += x;
                        best = x >= most ? e : best;
                        most = fmax(most, x);
                        if (v < 4)
                            assert_true(fabs(oracle_at(&r.out[0], at) -
                                             (v % 2 == 1 ? before : all)) <= 1e-2);
                    }
                    if (v == 4)
                        assert_int_equal(((int64_t *)r.out[0].data)[o * inner + j], best);
                }
            gradcheck_free(&r);
            if (v == 1 || v == 2)
                gradcheck_run(&gc);
        }
}

static void arg_max_selects_first_or_last_of_ties_and_nan(void **state)
{
    static const float x[8] = { 1, 7, 7, 0, 3, NAN, 9, NAN };
    static const int32_t ints[8] = { 1, 7, 7, 0, 0, 1, 9, 0 };
    static const int64_t max_first[2] = { 1, 1 }, max_last[2] = { 2, 3 }, min_first[2] = { 3, 1 },
                         down[4] = { 1, 1, 1, 1 }, int_max[2] = { 1, 2 },
                         int_min_last[2] = { 3, 3 };
    static const struct op_attr last[] = { INT("axis", -1), INT("keepdims", 0),
                                           INT("select_last_index", 1) };
    const struct shape two = GRADCHECK_SHAPE(2), keep = GRADCHECK_SHAPE(1, 4);
    struct gradcheck_case gc = { .op = "ArgMax", .opset = 13, .n_in = 1, .attrs = last,
                                 .n_attrs = 2, .in = { { .shape = GRADCHECK_SHAPE(2, 4),
                                                         .data = x } } };

    (void)state;
    oracle_ints(&gc, &two, max_first);
    gc.n_attrs = 3;
    oracle_ints(&gc, &two, max_last);
    gc.op = "ArgMin";
    gc.n_attrs = 2;
    oracle_ints(&gc, &two, min_first);
    gc.in[0] = (struct gradcheck_tensor){ .dtype = TENSOR_I32, .shape = GRADCHECK_SHAPE(2, 4),
                                          .data = ints };
    gc.n_attrs = 3;
    oracle_ints(&gc, &two, int_min_last);
    gc.opset = 11;
    gc.op = "ArgMax";
    gc.n_attrs = 2;
    oracle_ints(&gc, &two, int_max);
    gc.in[0] = (struct gradcheck_tensor){ .dtype = TENSOR_I64, .shape = GRADCHECK_SHAPE(2, 4),
                                          .data = (int64_t[]){ 1, 2, 3, 4, 5, 6, 7, 8 } };
    gc.n_attrs = 0;
    oracle_ints(&gc, &keep, down);
    gc.in[0].shape = shape_of(2, (int64_t)0, (int64_t)4);
    oracle_refused(&gc, ERR_INPUT, "axis 0 has no elements to choose from");
}

/* CumSum, or CumProd. */
static void check_cumulative(bool multiplies)
{
    static const struct shape shapes[] = { GRADCHECK_SHAPE(7), GRADCHECK_SHAPE(2, 5, 3),
                                           GRADCHECK_SHAPE(4, 1), GRADCHECK_SHAPE(0, 3) };
    size_t i, v, e;

    for (i = 0; i < COUNT_OF(shapes); i++)
        for (v = 0; v < 8; v++) {
            int64_t axis = v < 4 ? 0 : -1;
            bool exclusive = v % 2 == 1, reverse = v % 4 >= 2;
            const struct op_attr attrs[] = { INT("exclusive", exclusive), INT("reverse", reverse) };
            struct gradcheck_case gc = {
                .op = multiplies ? "CumProd" : "CumSum", .opset = multiplies ? 26 : 14, .attrs = attrs, .n_attrs = 2, .n_in = 2,
                .in = { { .dtype = v == 3 ? TENSOR_I64 : TENSOR_F32, .shape = shapes[i],
                          .lo = multiplies ? -2 : -5, .hi = multiplies ? 2 : 5 },
                        { .dtype = TENSOR_I64, .data = &axis, .constant = true } } };
            struct gradcheck_result r;
            struct err err = { 0 };
            uint32_t a = axis < 0 ? shapes[i].rank - 1 : 0;

            assert_int_equal(gradcheck_forward(&gc, &r, &err), 0);
            for (e = 0; e < (size_t)tensor_elements(&r.out[0]); e++) {
                int64_t at[TENSOR_MAX_RANK], j, here, inner = 1;
                double want = multiplies ? 1 : 0;
                uint32_t k;

                unravel(&shapes[i], e, at);
                for (k = a + 1; k < shapes[i].rank; k++)
                    inner *= shapes[i].dim[k];
                here = at[a];
                for (j = 0; j < shapes[i].dim[a]; j++)
                    if ((reverse ? j > here : j < here) || (j == here && !exclusive)) {
                        double x = oracle_at(&r.in[0], (size_t)((int64_t)e + (j - here) * inner));

                        want = multiplies ? want * x : want + x;
                    }
                assert_true(fabs(oracle_at(&r.out[0], e) - want) <= 1e-6 * (1 + fabs(want)));
            }
            gradcheck_free(&r);
            gradcheck_run(&gc);
        }
}

static void cum_sum_supports_exclusive_and_reverse(void **state)
{
    (void)state;
    check_cumulative(false);
}

static void cum_prod_supports_exclusive_and_reverse(void **state)
{
    (void)state;
    check_cumulative(true);
}

/* dx of a zero is the product of the others, also if there are two zeros. */
static void cum_prod_gradients_with_zeros_match_definition(void **state)
{
    static const float x[] = { 2, 0, 3, 4, 2, 0, 3, 0 }, dy[] = { 1, 1, 1, 1, 1, 1, 1, 1 };
    static const double want[] = { 1, 2 * (1 + 3 + 3 * 4), 0, 0, 1, 2 * (1 + 3), 0, 0 };
    static const int64_t axis = 1;
    struct gradcheck_case gc = { .op = "CumProd", .opset = 26, .n_in = 2,
                                 .in = { { .shape = GRADCHECK_SHAPE(2, 4), .data = x },
                                         { .dtype = TENSOR_I64, .data = &axis, .constant = true } },
                                 .dout = { dy } };
    struct gradcheck_result r;
    struct err err = { 0 };

    (void)state;
    assert_int_equal(gradcheck_backward(&gc, &r, &err), 0);
    gradcheck_near("dx", r.din[0].data, want, 8, 1e-6);
    gradcheck_free(&r);
}

static void top_k_matches_stable_sort(void **state)
{
    static const struct {
        struct shape in;
        int64_t axis, k;
    } samples[] = {
        { GRADCHECK_SHAPE(37), -1, 5 },     { GRADCHECK_SHAPE(37), 0, 37 },
        { GRADCHECK_SHAPE(3, 16), 1, 1 },   { GRADCHECK_SHAPE(2, 9, 5), 1, 4 },
        { GRADCHECK_SHAPE(4, 6), 0, 3 },    { GRADCHECK_SHAPE(4, 6), 1, 0 },
        { GRADCHECK_SHAPE(0, 6), 1, 2 },     { GRADCHECK_SHAPE(601, 10), 1, 4 },
        { GRADCHECK_SHAPE(1, 2100), 1, 2060 },
    };
    size_t i, v;

    (void)state;
    for (i = 0; i < COUNT_OF(samples); i++)
        for (v = 0; v < 3; v++) { /* v 2: many equal elements */
            const struct op_attr attrs[] = { INT("axis", samples[i].axis), INT("largest", v != 1) };
            struct gradcheck_case gc = {
                .op = "TopK", .opset = 11, .attrs = attrs, .n_attrs = 2, .n_in = 2, .n_out = 2,
                .seed = v, .probes = samples[i].in.dim[0] > 100 ? 1 : 40,
                .in = { { .shape = samples[i].in, .apart = v != 2 },
                                   { .dtype = TENSOR_I64, .shape = GRADCHECK_SHAPE(1),
                                     .data = &samples[i].k, .constant = true } } };
            static float few[6010];
            struct gradcheck_result r;
            struct err err = { 0 };
            int64_t a = samples[i].axis < 0 ? samples[i].in.rank - 1 : samples[i].axis;
            int64_t e, m, k, inner = 1;

            for (e = 0; e < 6010; e++)
                few[e] = (float)(e * 7 % 5);
            gc.in[0].data = v == 2 ? few : NULL;
            assert_int_equal(gradcheck_forward(&gc, &r, &err), 0);
            for (k = a + 1; k < samples[i].in.rank; k++)
                inner *= samples[i].in.dim[k];
            for (e = 0; e < tensor_elements(&r.out[0]); e++) {
                int64_t at[TENSOR_MAX_RANK], before = 0, from, mine;
                double value;

                unravel(&r.out[0].shape, (size_t)e, at);
                mine = ((int64_t *)r.out[1].data)[e];
                assert_true(mine >= 0 && mine < samples[i].in.dim[a]);
                from = e / (samples[i].k * inner) * samples[i].in.dim[a] * inner + e % inner;
                value = oracle_at(&r.in[0], (size_t)(from + mine * inner));
                assert_true(oracle_at(&r.out[0], (size_t)e) == value);
                for (m = 0; m < samples[i].in.dim[a]; m++) {
                    double other = oracle_at(&r.in[0], (size_t)(from + m * inner));

                    before +=
                        (v == 1 ? other < value : other > value) || (other == value && m < mine);
                }
                assert_int_equal(before, at[a]);
            }
            gradcheck_free(&r);
            if (v != 2)
                gradcheck_run(&gc);
        }
}

static void top_k_treats_nan_as_largest_and_rejects_too_large_k(void **state)
{
    static const float x[5] = { 1, NAN, INFINITY, -2, NAN }, y[4] = { NAN, NAN, INFINITY, 1 };
    static const float least[2] = { -2, 1 };
    static const int64_t places[4] = { 1, 4, 2, 0 };
    static const int64_t four = 4, two = 2, six = 6;
    static const struct op_attr smallest = INT("largest", 0);
    const struct shape of_four = GRADCHECK_SHAPE(4), of_two = GRADCHECK_SHAPE(2);
    struct gradcheck_case gc = { .op = "TopK", .opset = 11, .n_in = 2, .n_out = 2,
                                 .unread = OP_OUT(1), .attrs = &smallest,
                                 .in = { { .shape = GRADCHECK_SHAPE(5), .data = x },
                                         { .dtype = TENSOR_I64, .shape = GRADCHECK_SHAPE(1),
                                           .data = &four, .constant = true } } };
    struct gradcheck_result r;
    struct err err = { 0 };

    (void)state;
    oracle_floats(&gc, &of_four, y);
    gc.unread = 0;
    assert_int_equal(gradcheck_forward(&gc, &r, &err), 0);
    assert_memory_equal(r.out[1].data, places, sizeof(places));
    gradcheck_free(&r);
    gc.unread = OP_OUT(0); /* only the indices are used */
    assert_int_equal(gradcheck_forward(&gc, &r, &err), 0);
    assert_memory_equal(r.out[1].data, places, sizeof(places));
    gradcheck_free(&r);
    gc.unread = OP_OUT(1);
    gc.n_attrs = 1;
    gc.in[1].data = &two;
    oracle_floats(&gc, &of_two, least);
    gc.in[1].data = &six;
    oracle_refused(&gc, ERR_INPUT, "k is 6; axis 0 has 5 elements");
}

static void top_k_orders_integers_exactly(void **state)
{
    static const int64_t big[5] = { INT64_MAX - 1, INT64_MIN, INT64_MAX, 0, INT64_MAX }, two = 2;
    static const int64_t most[2] = { INT64_MAX, INT64_MAX }, first[2] = { 2, 4 }, least[2] = { INT64_MIN, 0 };
    static const int32_t narrow[5] = { 3, -7, 3, 5, 0 };
    static const int64_t narrow_most[2] = { 5, 3 };
    static const uint64_t unsigned_[5] = { 1, 2, 3, 4, 5 };
    static const struct op_attr smallest = INT("largest", 0);
    const struct shape of_two = GRADCHECK_SHAPE(2);
    struct gradcheck_case gc = { .op = "TopK", .opset = 11, .n_in = 2, .n_out = 2, .attrs = &smallest,
                                 .in = { { .dtype = TENSOR_I64, .shape = GRADCHECK_SHAPE(5), .data = big },
                                         { .dtype = TENSOR_I64, .shape = GRADCHECK_SHAPE(1),
                                           .data = &two, .constant = true } } };
    struct gradcheck_result r;
    struct err err = { 0 };

    (void)state;
    if (rig_on_gpu())
        return; /* GPUs support only float32 */
    oracle_ints(&gc, &of_two, most);
    assert_int_equal(gradcheck_forward(&gc, &r, &err), 0);
    assert_memory_equal(r.out[1].data, first, sizeof(first));
    gradcheck_free(&r);
    gc.n_attrs = 1;
    oracle_ints(&gc, &of_two, least);
    gc.n_attrs = 0;
    gc.in[0].dtype = TENSOR_I32;
    gc.in[0].data = narrow;
    oracle_ints(&gc, &of_two, narrow_most);
    gc.in[0].dtype = TENSOR_U64;
    gc.in[0].data = unsigned_;
    oracle_refused(&gc, ERR_UNSUPPORTED, "input 0 is uint64; supported are float32, int32, int64");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reductions_follow_formula_over_any_axes),
        cmocka_unit_test(gradients_of_reductions_match_differences),
        cmocka_unit_test(empty_axes_give_neutral_element_and_noop_attribute_is_honoured),
        cmocka_unit_test(equal_extremes_share_gradient_and_products_handle_zeros),
        cmocka_unit_test(large_reductions_follow_formula),
        cmocka_unit_test(log_sum_exp_propagates_infinities_and_nan),
        cmocka_unit_test(large_exponents_do_not_overflow_and_long_sums_keep_precision),
        cmocka_unit_test(invalid_axes_are_rejected),
        cmocka_unit_test(arg_max_selects_first_or_last_of_ties_and_nan),
        cmocka_unit_test(long_axes_and_many_sequences_match_loop),
        cmocka_unit_test(cum_sum_supports_exclusive_and_reverse),
        cmocka_unit_test(cum_prod_supports_exclusive_and_reverse),
        cmocka_unit_test(cum_prod_gradients_with_zeros_match_definition),
        cmocka_unit_test(top_k_matches_stable_sort),
        cmocka_unit_test(top_k_orders_integers_exactly),
        cmocka_unit_test(top_k_treats_nan_as_largest_and_rejects_too_large_k),
    };

    return cmocka_run_group_tests_name("op/reduce", tests, NULL, NULL);
}
