#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "base/check.h"
#include "base/err.h"
#include "harness/gradcheck.h"
#include "harness/op_oracle.h"

/* ---- the formulas, in double ---- */

#define ONE(name_, expr_)                                                                          \
    static double name_(const double *in, uint32_t n)                                              \
    {                                                                                              \
        double x = in[0];                                                                          \
                                                                                                   \
        (void)n;                                                                                   \
        return (expr_);                                                                            \
    }
ONE(neg, -x)
ONE(magnitude, fabs(x))
ONE(sign, x > 0 ? 1 : x < 0 ? -1 : x)
ONE(lower, floor(x))
ONE(upper, ceil(x))
ONE(nearest, nearbyint(x))
ONE(exponential, exp(x))
ONE(logarithm, log(x))
ONE(root, sqrt(x))
ONE(reciprocal, 1 / x)
ONE(error_function, erf(x))
ONE(sine, sin(x))
ONE(cosine, cos(x))
ONE(tangent, tan(x))
ONE(arc_sine, asin(x))
ONE(arc_cosine, acos(x))
ONE(arc_tangent, atan(x))
ONE(hyperbolic_sine, sinh(x))
ONE(hyperbolic_cosine, cosh(x))
ONE(area_sine, log(x + sqrt(x * x + 1)))
ONE(area_cosine, log(x + sqrt(x * x - 1)))
ONE(area_tangent, 0.5 * log((1 + x) / (1 - x)))
ONE(shrink, fabs(x) > 0.5 ? x : 0)
ONE(shrink_soft, x < -2 ? x + 1.5 : x > 2 ? x - 1.5 : 0)
ONE(leaky, x < 0 ? (double)0.01f * x : x)
ONE(leaky_02, x < 0 ? (double)0.2f * x : x)
ONE(thresholded, x > 1 ? x : 0)
ONE(elu, x < 0 ? expm1(x) : x)
ONE(elu_02, x < 0 ? (double)0.2f * expm1(x) : x)
ONE(selu, 1.05070102214813232421875 * (x <= 0 ? 1.67326319217681884765625 * expm1(x) : x))
ONE(celu, fmax(0, x) + fmin(0, expm1(x)))
ONE(celu_02, fmax(0, x) + fmin(0, (double)0.2f * expm1(x / (double)0.2f)))
ONE(hard_sigmoid, fmax(0, fmin(1, (double)0.2f * x + 0.5)))
ONE(hard_sigmoid_03, fmax(0, fmin(1, (double)0.3f * x + (double)0.4f)))
ONE(hard_swish, x * fmax(0, fmin(1, x / 6 + 0.5)))
ONE(softplus, log1p(exp(-fabs(x))) + fmax(x, 0))
ONE(softsign, x / (1 + fabs(x)))
ONE(mish, x * tanh(log1p(exp(x))))
ONE(gelu, x * 0.5 * erfc(-x * M_SQRT1_2))
ONE(gelu_tanh, 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))))
ONE(clip_pm1, fmin(fmax(x, -1), 1))

static const struct op_attr alpha_02[] = { { .name = "alpha", .type = OP_ATTR_FLOAT, .f = 0.2f } };
static const struct op_attr alpha_beta[] = { { .name = "alpha", .type = OP_ATTR_FLOAT, .f = 0.3f },
                                             { .name = "beta", .type = OP_ATTR_FLOAT, .f = 0.4f } };
static const struct op_attr lambd_bias[] = { { .name = "lambd", .type = OP_ATTR_FLOAT, .f = 2 },
                                             { .name = "bias", .type = OP_ATTR_FLOAT, .f = 1.5f } };
static const struct op_attr by_tanh[] = {
    { .name = "approximate", .type = OP_ATTR_STRING, .s = "tanh" } };
static const struct op_attr limits[] = { { .name = "min", .type = OP_ATTR_FLOAT, .f = -1 },
                                         { .name = "max", .type = OP_ATTR_FLOAT, .f = 1 } };

static const struct function {
    const char *op;
    uint32_t opset;
    double (*f)(const double *x, uint32_t n);
    double lo, hi, tol;
    const struct op_attr *attrs;
    uint32_t n_attrs;
} functions[] = {
    { "Neg", 13, neg, -6, 6, 0, NULL, 0 },
    { "Abs", 13, magnitude, -6, 6, 0, NULL, 0 },
    { "Sign", 13, sign, -6, 6, 0, NULL, 0 },
    { "Floor", 13, lower, -6.2, 6.1, 0, NULL, 0 },
    { "Ceil", 13, upper, -6.2, 6.1, 0, NULL, 0 },
    { "Round", 11, nearest, -6.2, 6.1, 0, NULL, 0 },
    { "Exp", 13, exponential, -6, 6, 1.2e-7, NULL, 0 },
    { "Log", 13, logarithm, 0.5, 6, 1.2e-7, NULL, 0 },
    { "Sqrt", 13, root, 0.5, 6, 6e-8, NULL, 0 },
    { "Reciprocal", 13, reciprocal, 0.5, 6, 6e-8, NULL, 0 },
    { "Reciprocal", 13, reciprocal, -6, -0.5, 6e-8, NULL, 0 },
    { "Erf", 13, error_function, -6, 6, 1.2e-7, NULL, 0 },
    { "Sin", 7, sine, -60, 60, 6e-8, NULL, 0 },
    { "Cos", 7, cosine, -60, 60, 6e-8, NULL, 0 },
    { "Tan", 7, tangent, -1.3, 1.3, 1.2e-7, NULL, 0 },
    { "Asin", 7, arc_sine, -0.9, 0.9, 6e-8, NULL, 0 },
    { "Acos", 7, arc_cosine, -0.9, 0.9, 1.2e-7, NULL, 0 },
    { "Atan", 7, arc_tangent, -6, 6, 6e-8, NULL, 0 },
    { "Sinh", 9, hyperbolic_sine, -6, 6, 6e-8, NULL, 0 },
    { "Cosh", 9, hyperbolic_cosine, -6, 6, 6e-8, NULL, 0 },
    { "Asinh", 9, area_sine, -6, 6, 6e-8, NULL, 0 },
    { "Acosh", 9, area_cosine, 1.2, 6, 6e-8, NULL, 0 },
    { "Atanh", 9, area_tangent, -0.9, 0.9, 1.2e-7, NULL, 0 },
    { "Shrink", 9, shrink, -6.1, 6.2, 0, NULL, 0 },
    { "Shrink", 9, shrink_soft, -6.1, 6.2, 6e-8, lambd_bias, 2 },
    { "LeakyRelu", 16, leaky, -6, 6, 6e-8, NULL, 0 },
    { "LeakyRelu", 11, leaky_02, -6, 6, 6e-8, alpha_02, 1 },
    { "ThresholdedRelu", 10, thresholded, -6, 6.1, 0, NULL, 0 },
    { "Elu", 11, elu, -6, 6, 2.4e-7, NULL, 0 },
    { "Elu", 11, elu_02, -6, 6, 2.4e-7, alpha_02, 1 },
    { "Selu", 11, selu, -6, 6, 4e-7, NULL, 0 },
    { "Celu", 12, celu, -6, 6, 2.4e-7, NULL, 0 },
    { "Celu", 12, celu_02, -6, 6, 2.4e-7, alpha_02, 1 },
    { "HardSigmoid", 11, hard_sigmoid, -6.1, 6.2, 1.2e-7, NULL, 0 },
    { "HardSigmoid", 11, hard_sigmoid_03, -6.1, 6.2, 1.2e-7, alpha_beta, 2 },
    { "HardSwish", 14, hard_swish, -6.1, 6.2, 1.8e-7, NULL, 0 },
    { "Softplus", 11, softplus, -30, 30, 1.2e-7, NULL, 0 },
    { "Softsign", 11, softsign, -6, 6, 1.2e-7, NULL, 0 },
    { "Mish", 18, mish, -25, 25, 4e-7, NULL, 0 },
    { "Gelu", 20, gelu, -6, 6, 4e-7, NULL, 0 },
    { "Gelu", 20, gelu_tanh, -6, 6, 4e-7, by_tanh, 1 },
    { "Clip", 6, clip_pm1, -6.1, 6.2, 0, limits, 2 },
};

static struct gradcheck_case case_of(const struct function *f, const struct shape *shape)
{
    return (struct gradcheck_case){
        .op = f->op, .opset = f->opset, .attrs = f->attrs, .n_attrs = f->n_attrs, .n_in = 1,
        .seed = 5, .in = { { .shape = *shape, .lo = f->lo, .hi = f->hi, .apart = true } } };
}

static void values_follow_formula_for_every_length(void **state)
{
    static const int64_t lengths[] = { 0, 1, 2, 15, 16, 17, 63, 100, 1001 };
    size_t k, l;

    (void)state;
    for (k = 0; k < COUNT_OF(functions); k++)
        for (l = 0; l < COUNT_OF(lengths); l++) {
            struct shape shape = shape_of(1, lengths[l]);
            const struct gradcheck_case gc = case_of(&functions[k], &shape);

            oracle_elementwise(&gc, functions[k].f, functions[k].tol);
        }
}

static void gradients_match_differences_in_any_layout(void **state)
{
    static const struct shape shapes[] = { GRADCHECK_SHAPE(2, 3, 5, 7), { 0 },
                                           GRADCHECK_SHAPE(0), GRADCHECK_SHAPE(17) };
    size_t k, i;

    (void)state;
    for (k = 0; k < COUNT_OF(functions); k++)
        for (i = 0; i < COUNT_OF(shapes); i++) {
            struct gradcheck_case gc = case_of(&functions[k], &shapes[i]);

            if (functions[k].f == lower || functions[k].f == upper || functions[k].f == nearest)
                gc.in[0].lo = 0.1, gc.in[0].hi = 0.4; /* away from jumps */
            if (functions[k].f == shrink || functions[k].f == shrink_soft)
                gc.in[0].lo = i == 0 ? 2.1 : -0.4, gc.in[0].hi = i == 0 ? 6 : 0.4;
            gradcheck_run(&gc);
        }
}

static void nan_propagates_and_limits_are_reached(void **state)
{
    static const float x[6] = { NAN, INFINITY, -INFINITY, -0.0f, 1000, -1000 };
    static const struct {
        const char *op;
        uint32_t opset;
        float y[6];
    } want[] = {
        { "Abs", 13, { NAN, INFINITY, INFINITY, 0, 1000, 1000 } },
        { "Sqrt", 13, { NAN, INFINITY, NAN, -0.0f, 31.6227766f, NAN } },
        { "Log", 13, { NAN, INFINITY, NAN, -INFINITY, 6.90775528f, NAN } },
        { "Erf", 13, { NAN, 1, -1, -0.0f, 1, -1 } },
        { "LeakyRelu", 13, { NAN, INFINITY, -INFINITY, -0.0f, 1000, -10 } },
        { "Elu", 13, { NAN, INFINITY, -1, -0.0f, 1000, -1 } },
        { "HardSigmoid", 13, { NAN, 1, 0, 0.5f, 1, 0 } },
        { "Softplus", 13, { NAN, INFINITY, 0, 0.693147181f, 1000, 0 } },
        { "Softsign", 13, { NAN, NAN, NAN, -0.0f, 0.999000999f, -0.999000999f } },
    };
    size_t k;

    (void)state;
    for (k = 0; k < COUNT_OF(want); k++) {
        const struct gradcheck_case gc = { .op = want[k].op, .opset = want[k].opset, .n_in = 1,
                                           .in = { { .shape = GRADCHECK_SHAPE(6), .data = x } } };
        struct gradcheck_result r;
        struct err err = { 0 };
        double y[6];
        size_t i;

        for (i = 0; i < 6; i++)
            y[i] = (double)want[k].y[i];
        assert_int_equal(gradcheck_forward(&gc, &r, &err), 0);
        gradcheck_near(want[k].op, r.out[0].data, y, 6, 1e-7);
        gradcheck_free(&r);
    }
}

static void sign_ops_accept_integers_and_reject_bool(void **state)
{
    static const int64_t x[4] = { 5, -3, 0, INT64_MIN };
    static const int32_t x32[4] = { 5, -3, 0, INT32_MIN };
    static const int64_t neg_[4] = { -5, 3, 0, INT64_MIN }, abs_[4] = { 5, 3, 0, INT64_MIN },
                         sign_[4] = { 1, -1, 0, -1 }, abs32[4] = { 5, 3, 0, INT32_MIN },
                         not_[3] = { 1, 0, 0 };
    static const uint8_t flags[3] = { 0, 1, 1 };
    struct gradcheck_case gc = { .opset = 13, .n_in = 1,
                                 .in = { { .dtype = TENSOR_I64, .shape = GRADCHECK_SHAPE(4),
                                           .data = x } } };

    (void)state;
    gc.op = "Neg";
    oracle_ints(&gc, &gc.in[0].shape, neg_);
    gc.op = "Sign";
    oracle_ints(&gc, &gc.in[0].shape, sign_);
    gc.op = "Abs";
    oracle_ints(&gc, &gc.in[0].shape, abs_);
    gc.in[0].dtype = TENSOR_I32;
    gc.in[0].data = x32;
    oracle_ints(&gc, &gc.in[0].shape, abs32);
    gc.op = "Not";
    oracle_refused(&gc, ERR_INPUT, "input 0 is int32; expected bool");
    gc.in[0] = (struct gradcheck_tensor){ .dtype = TENSOR_BOOL, .shape = GRADCHECK_SHAPE(3),
                                          .data = flags };
    oracle_ints(&gc, &gc.in[0].shape, not_);
}

static void clip_with_one_limit_passes_gradient_inside(void **state)
{
    static const float lo = -1, hi = 2, x[5] = { -3, -1, 0, 2, 5 }, ones[5] = { 1, 1, 1, 1, 1 };
    static const float both[5] = { -1, -1, 0, 2, 2 }, low[5] = { -1, -1, 0, 2, 5 },
                       high[5] = { -3, -1, 0, 2, 2 }, crossed[5] = { -1, -1, -1, -1, -1 };
    static const double slopes[5] = { 0, 0, 1, 0, 0 };
    static const int64_t wide[3] = { -9, 0, 9 }, wide_lo = -2, clipped[3] = { -2, 0, 9 };
    struct gradcheck_case gc = { .op = "Clip", .opset = 13, .n_in = 3, .dout = { ones },
                                 .in = { { .shape = GRADCHECK_SHAPE(5), .data = x },
                                         { .shape = { 0 }, .data = &lo },
                                         { .shape = { 0 }, .data = &hi } } };
    struct gradcheck_result r;
    struct err err = { 0 };

    (void)state;
    oracle_floats(&gc, &gc.in[0].shape, both);
    assert_int_equal(gradcheck_backward(&gc, &r, &err), 0);
    gradcheck_near("dx", r.din[0].data, slopes, 5, 0);
    gradcheck_free(&r);
    gc.in[2].absent = true;
    oracle_floats(&gc, &gc.in[0].shape, low);
    gc.in[1].absent = true;
    oracle_floats(&gc, &gc.in[0].shape, x);
    gc.in[2].absent = false;
    oracle_floats(&gc, &gc.in[0].shape, high);
    gc.in[1].absent = false;
    gc.in[1].data = &hi;
    gc.in[2].data = &lo;
    oracle_floats(&gc, &gc.in[0].shape, crossed);
    gc.in[0] = (struct gradcheck_tensor){ .shape = GRADCHECK_SHAPE(2, 3, 5, 7), .lo = -6.1,
                                          .hi = 6.2, .apart = true };
    gc.dout[0] = NULL;
    gradcheck_run(&gc);
    gc.in[1].shape = shape_of(1, (int64_t)2);
    gc.in[1].data = x;
    oracle_refused(&gc, ERR_INPUT, "limit 1 is not one number");
    gc = (struct gradcheck_case){ .op = "Clip", .opset = 12, .n_in = 2,
                                  .in = { { .dtype = TENSOR_I64, .shape = GRADCHECK_SHAPE(3),
                                            .data = wide },
                                          { .dtype = TENSOR_I64, .data = &wide_lo } } };
    oracle_ints(&gc, &gc.in[0].shape, clipped);
    gc.in[1].dtype = TENSOR_I32;
    oracle_refused(&gc, ERR_INPUT, "input 1 is int32; expected int64");
}

/* Derivatives at jumps and where a root or a power has none. The expected values are those of
 * torch.autograd (1.13) for the function of the same name; HardSwish (F.hardswish) has those of
 * 2.8, where 1.13 has -0.5 and 1.5. */
static void gradients_at_kinks_match_pytorch(void **state)
{
    static const struct op_attr alpha_2[] = { { .name = "alpha", .type = OP_ATTR_FLOAT, .f = 2 } };
    static const struct op_attr sixth[] = { { .name = "alpha", .type = OP_ATTR_FLOAT, .f = 0.25f },
                                            { .name = "beta", .type = OP_ATTR_FLOAT, .f = 0.5f } };
    static const struct op_attr reaches_2[] = { { .name = "lambd", .type = OP_ATTR_FLOAT, .f = 2 },
                                                { .name = "bias", .type = OP_ATTR_FLOAT, .f = 2 } };
    static const float ones[4] = { 1, 1, 1, 1 }, slope = 0.25f, square = 2, half = 0.5f, zero = 0;
    static const struct kink {
        const char *op;
        uint32_t opset, n;
        float x[4];
        double dx[4];
        const struct op_attr *attrs;
        uint32_t n_attrs;
        const float *operand; /* input 1, one number; NULL: none */
    } kinks[] = {
        { "Relu", 13, 2, { -0.0f, 0 }, { 0, 0 }, NULL, 0, NULL },
        { "LeakyRelu", 13, 2, { -0.0f, 0 }, { (double)0.2f, (double)0.2f }, alpha_02, 1, NULL },
        { "PRelu", 13, 2, { -0.0f, 0 }, { 0.25, 0.25 }, NULL, 0, &slope },
        { "Elu", 13, 2, { -0.0f, 0 }, { 2, 2 }, alpha_2, 1, NULL },
        { "Celu", 13, 2, { -0.0f, 0 }, { 1, 1 }, alpha_2, 1, NULL },
        { "Selu", 13, 2, { -0.0f, 0 }, { 1.7580993408473766, 1.7580993408473766 }, NULL, 0, NULL },
        { "ThresholdedRelu", 13, 2, { 1, 0 }, { 0, 0 }, NULL, 0, NULL },
        { "HardSigmoid", 13, 3, { -2, 0, 2 }, { 0, 0.25, 0 }, sixth, 2, NULL },
        { "HardSwish", 14, 3, { -3, 0, 3 }, { 0, 0.5, 1 }, NULL, 0, NULL },
        { "Shrink", 13, 2, { -2, 2 }, { 0, 0 }, reaches_2, 2, NULL },
        { "Clip", 6, 2, { -1, 1 }, { 0, 0 }, limits, 2, NULL },
        { "Abs", 13, 2, { -0.0f, 0 }, { 0, 0 }, NULL, 0, NULL },
        { "Sign", 13, 1, { 0 }, { 0 }, NULL, 0, NULL },
        { "Softsign", 13, 2, { -0.0f, 0 }, { 1, 1 }, NULL, 0, NULL },
        { "Sqrt", 13, 1, { 0 }, { INFINITY }, NULL, 0, NULL },
        { "Log", 13, 1, { 0 }, { INFINITY }, NULL, 0, NULL },
        { "Pow", 13, 1, { 0 }, { 0 }, NULL, 0, &square },
        { "Pow", 13, 1, { 0 }, { INFINITY }, NULL, 0, &half },
        { "Pow", 13, 1, { 0 }, { 0 }, NULL, 0, &zero },
        { "Max", 13, 2, { -0.0f, 0 }, { 0.5, 0.5 }, NULL, 0, &zero },
        { "Min", 13, 2, { -0.0f, 0 }, { 0.5, 0.5 }, NULL, 0, &zero },
        { "ReduceMax", 13, 3, { 1, 1, 0 }, { 0.5, 0.5, 0 }, NULL, 0, NULL },
        { "ReduceProd", 13, 3, { 0, 2, 3 }, { 6, 0, 0 }, NULL, 0, NULL },
        { "ReduceL1", 13, 2, { 0, 1 }, { 0, 1 }, NULL, 0, NULL },
        { "ReduceL2", 13, 2, { 0, 0 }, { 0, 0 }, NULL, 0, NULL },
    };
    size_t i;

    (void)state;
    for (i = 0; i < COUNT_OF(kinks); i++) {
        const struct kink *k = &kinks[i];
        const struct gradcheck_case gc = { .op = k->op, .opset = k->opset, .attrs = k->attrs,
                                           .n_attrs = k->n_attrs, .n_in = k->operand != NULL ? 2 : 1,
                                           .dout = { ones },
                                           .in = { { .shape = shape_of(1, (int64_t)k->n), .data = k->x },
                                                   { .shape = { 0 }, .data = k->operand } } };
        struct gradcheck_result r;
        struct err err = { 0 };

        if (gradcheck_backward(&gc, &r, &err) != 0)
            fail_msg("%s: %s", k->op, err.text);
        gradcheck_near(k->op, r.din[0].data, k->dx, k->n, 2e-7);
        gradcheck_free(&r);
    }
}

/* dx: values of torch.clamp(x, lo, hi).sum().backward() of PyTorch 2.15 with numbers as bounds. */
static void clip_limit_gradients_match_pytorch(void **state)
{
    static const struct {
        float lo, hi;
        bool no_lo, no_hi;
        double dx[5], dlo, dhi;
    } cases[] = {
        { -1, 1, false, false, { 0, 0, 1, 0, 0 }, 1, 1 }, { 2, 1, false, false, { 0 }, 0, 5 },
        { 1, 1, false, false, { 0, 0, 0, 0, 0 }, 0, 1 },  { -1, 0, false, true, { 0, 0, 1, 1, 1 }, 1, 0 },
        { 0, 1, true, false, { 1, 1, 1, 0, 0 }, 0, 1 },
    };
    static const float x[5] = { -2, -1, 0, 1, 3 }, ones[5] = { 1, 1, 1, 1, 1 };
    struct gradcheck_case gc;
    size_t i;

    (void)state;
    for (i = 0; i < COUNT_OF(cases); i++) {
        struct gradcheck_result r;
        struct err err = { 0 };

        gc = (struct gradcheck_case){ .op = "Clip", .opset = 13, .n_in = 3, .dout = { ones },
                                      .in = { { .shape = GRADCHECK_SHAPE(5), .data = x },
                                              { .data = &cases[i].lo, .absent = cases[i].no_lo },
                                              { .data = &cases[i].hi, .absent = cases[i].no_hi } } };
        assert_int_equal(gradcheck_backward(&gc, &r, &err), 0);
        gradcheck_near("dx", r.din[0].data, cases[i].dx, 5, 0);
        if (!cases[i].no_lo)
            gradcheck_near("dlo", r.din[1].data, &cases[i].dlo, 1, 0);
        if (!cases[i].no_hi)
            gradcheck_near("dhi", r.din[2].data, &cases[i].dhi, 1, 0);
        gradcheck_free(&r);
    }
    gc = (struct gradcheck_case){ .op = "Clip", .opset = 13, .n_in = 3, .seed = 7,
                                  .in = { { .shape = GRADCHECK_SHAPE(2, 3, 5, 71), .lo = -3, .hi = 3 },
                                          { .lo = -1.5, .hi = -1 },
                                          { .shape = GRADCHECK_SHAPE(1), .lo = 1, .hi = 1.5 } } };
    gc.step = 1e-4;
    gc.tol = 3e-2;
    gradcheck_run(&gc);
}

static void gelu_with_unknown_approximation_is_rejected(void **state)
{
    static const struct op_attr other = { .name = "approximate", .type = OP_ATTR_STRING,
                                          .s = "sigmoid" };
    const struct gradcheck_case gc = { .op = "Gelu", .opset = 20, .attrs = &other, .n_attrs = 1,
                                       .n_in = 1, .in = { { .shape = GRADCHECK_SHAPE(3) } } };

    (void)state;
    oracle_refused(&gc, ERR_INPUT, "approximate is 'sigmoid'; expected none or tanh");
}

/* ---- LogSoftmax ---- */

static const struct sample {
    uint32_t opset;
    int64_t axis; /* 99: no attribute */
    struct shape shape;
    size_t outer, k, inner;
} samples[] = {
    { 13, 99, GRADCHECK_SHAPE(4, 37), 4, 37, 1 },
    { 13, -1, GRADCHECK_SHAPE(2, 3, 1), 6, 1, 1 },
    { 13, 1, GRADCHECK_SHAPE(2, 5, 7), 2, 5, 7 },
    { 13, 0, GRADCHECK_SHAPE(3, 71), 1, 3, 71 },
    { 13, -3, GRADCHECK_SHAPE(4, 3, 2), 1, 4, 6 },
    { 11, 99, GRADCHECK_SHAPE(2, 3, 5), 2, 15, 1 },
    { 11, 2, GRADCHECK_SHAPE(2, 3, 5), 6, 5, 1 },
    { 13, 0, GRADCHECK_SHAPE(1000), 1, 1000, 1 },
    { 13, 99, GRADCHECK_SHAPE(0, 3), 0, 3, 1 },
};

static void log_softmax_along_axis_follows_formula(void **state)
{
    static double want[1000];
    size_t i, o, j, k;

    (void)state;
    for (i = 0; i < COUNT_OF(samples); i++) {
        const struct sample *s = &samples[i];
        const struct op_attr axis = { .name = "axis", .type = OP_ATTR_INT, .i = s->axis };
        const struct gradcheck_case gc = { .op = "LogSoftmax", .opset = s->opset, .attrs = &axis,
                                           .n_attrs = s->axis != 99, .n_in = 1, .seed = i,
                                           .in = { { .shape = s->shape, .lo = -9, .hi = 9 } } };
        struct gradcheck_result r;
        struct err err = { 0 };

        assert_int_equal(gradcheck_forward(&gc, &r, &err), 0);
        for (o = 0; o < s->outer; o++)
            for (j = 0; j < s->inner; j++) {
                const float *x = (float *)r.in[0].data + o * s->k * s->inner + j;
                double sum = 0;

                for (k = 0; k < s->k; k++)
                    sum += exp((double)x[k * s->inner]);
                for (k = 0; k < s->k; k++)
                    want[(o * s->k + k) * s->inner + j] = (double)x[k * s->inner] - log(sum);
            }
        gradcheck_near("LogSoftmax", r.out[0].data, want, s->outer * s->k * s->inner, 3e-7);
        gradcheck_free(&r);
        gradcheck_run(&gc);
    }
}

static void is_nan_and_is_inf_distinguish_values(void **state)
{
    static const float x[6] = { NAN, INFINITY, -INFINITY, 0, 3e38f, -NAN };
    static const struct op_attr only[2] = {
        { .name = "detect_negative", .type = OP_ATTR_INT, .i = 0 },
        { .name = "detect_positive", .type = OP_ATTR_INT, .i = 0 },
    };
    static const int64_t nan[6] = { 1, 0, 0, 0, 0, 1 }, both[6] = { 0, 1, 1, 0, 0, 0 },
                         above[6] = { 0, 1, 0, 0, 0, 0 }, below[6] = { 0, 0, 1, 0, 0, 0 },
                         none[6] = { 0 };
    const struct shape shape = GRADCHECK_SHAPE(6);
    struct gradcheck_case gc = { .op = "IsNaN", .opset = 13, .n_in = 1,
                                 .in = { { .shape = shape, .data = x } } };

    (void)state;
    oracle_ints(&gc, &shape, nan);
    gc.op = "IsInf";
    oracle_ints(&gc, &shape, both);
    gc.attrs = only;
    gc.n_attrs = 1;
    oracle_ints(&gc, &shape, above);
    gc.attrs = only + 1;
    oracle_ints(&gc, &shape, below);
    gc.attrs = only;
    gc.n_attrs = 2;
    oracle_ints(&gc, &shape, none);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_follow_formula_for_every_length),
        cmocka_unit_test(gradients_match_differences_in_any_layout),
        cmocka_unit_test(nan_propagates_and_limits_are_reached),
        cmocka_unit_test(is_nan_and_is_inf_distinguish_values),
        cmocka_unit_test(sign_ops_accept_integers_and_reject_bool),
        cmocka_unit_test(clip_with_one_limit_passes_gradient_inside),
        cmocka_unit_test(gradients_at_kinks_match_pytorch),
        cmocka_unit_test(clip_limit_gradients_match_pytorch),
        cmocka_unit_test(gelu_with_unknown_approximation_is_rejected),
        cmocka_unit_test(log_softmax_along_axis_follows_formula),
    };

    return cmocka_run_group_tests_name("op/act_ops", tests, NULL, NULL);
}
