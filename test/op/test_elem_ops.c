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
#include "harness/op_rig.h"

/* ---- the formulas, in double ---- */

#define TWO(name_, expr_)                                                                          \
    static double name_(const double *x, uint32_t n)                                               \
    {                                                                                              \
        double a = x[0], b = x[1];                                                                 \
                                                                                                   \
        (void)n;                                                                                   \
        return (expr_);                                                                            \
    }
TWO(sub, a - b)
TWO(quotient, a / b)
TWO(power, pow(a, b))
TWO(c_rest, fmod(a, b))
TWO(truncated, trunc(a / b))
TWO(python_rest, a - b * floor(a / b))
TWO(prelu, a < 0 ? a * b : a)
TWO(equal, a == b)
TWO(greater, a > b)
TWO(greater_or_equal, a >= b)
TWO(less, a < b)
TWO(less_or_equal, a <= b)
TWO(both, a != 0 && b != 0)
TWO(either, a != 0 || b != 0)
TWO(one_of, (a != 0) != (b != 0))

static double choice(const double *x, uint32_t n)
{
    (void)n;
    return x[0] != 0 ? x[1] : x[2];
}

#define MANY(name_, start_, step_, end_)                                                           \
    static double name_(const double *x, uint32_t n)                                               \
    {                                                                                              \
        double y = (start_);                                                                       \
        uint32_t i;                                                                                \
                                                                                                   \
        for (i = 0; i < n; i++)                                                                    \
            y = (step_);                                                                           \
        return (end_);                                                                             \
    }
MANY(greatest, -INFINITY, isnan(y) || isnan(x[i]) ? NAN : fmax(y, x[i]), y)
MANY(least, INFINITY, isnan(y) || isnan(x[i]) ? NAN : fmin(y, x[i]), y)
MANY(total, 0, y + x[i], y)
MANY(average, 0, y + x[i], y / n)

static const struct pair {
    struct shape a, b;
} pairs[] = {
    { { 0 }, { 0 } },
    { GRADCHECK_SHAPE(1), { 0 } },
    { GRADCHECK_SHAPE(33), GRADCHECK_SHAPE(33) },
    { GRADCHECK_SHAPE(9, 35), GRADCHECK_SHAPE(35) },
    { GRADCHECK_SHAPE(35), GRADCHECK_SHAPE(9, 35) },
    { GRADCHECK_SHAPE(101), { 0 } },
    { { 0 }, GRADCHECK_SHAPE(3, 37) },
    { GRADCHECK_SHAPE(9, 1), GRADCHECK_SHAPE(1, 21) },
    { GRADCHECK_SHAPE(2, 3, 4, 5), GRADCHECK_SHAPE(3, 1, 1) },
    { GRADCHECK_SHAPE(2, 1, 4, 1), GRADCHECK_SHAPE(3, 1, 5) },
    { GRADCHECK_SHAPE(0, 3), GRADCHECK_SHAPE(3) },
    { GRADCHECK_SHAPE(3), GRADCHECK_SHAPE(4, 0, 3) },
};

/* ---- two operands of float32 ---- */

static const struct op_attr like_c = { .name = "fmod", .type = OP_ATTR_INT, .i = 1 };

static const struct binary {
    const char *op;
    uint32_t opset;
    double (*f)(const double *x, uint32_t n);
    double a_lo, a_hi, b_lo, b_hi; /* ranges away from poles and jumps */
    double tol;
    const struct op_attr *attr;
} binaries[] = {
    { "Sub", 13, sub, -1, 1, -1, 1, 6e-8, NULL },
    { "Div", 13, quotient, -1, 1, 1, 2, 6e-8, NULL },
    { "Div", 14, quotient, -1, 1, -3, -1, 6e-8, NULL },
    { "Pow", 11, power, 0.5, 2, -2, 3, 6e-8, NULL },
    { "Pow", 15, power, 1, 4, 0.2, 0.9, 6e-8, NULL },
    { "Mod", 13, c_rest, 4.2, 4.8, 1.7, 1.9, 2e-7, &like_c },
};

static struct gradcheck_case binary_case(const struct binary *b, const struct pair *p)
{
    return (struct gradcheck_case){
        .op = b->op, .opset = b->opset, .n_in = 2, .seed = 3, .attrs = b->attr,
        .n_attrs = b->attr != NULL,
        .in = { { .shape = p->a, .lo = b->a_lo, .hi = b->a_hi },
                { .shape = p->b, .lo = b->b_lo, .hi = b->b_hi } },
    };
}

static void binary_ops_follow_formula_and_gradient(void **state)
{
    size_t i, k;

    (void)state;
    for (i = 0; i < COUNT_OF(binaries); i++)
        for (k = 0; k < COUNT_OF(pairs); k++) {
            struct gradcheck_case gc = binary_case(&binaries[i], &pairs[k]);

            oracle_elementwise(&gc, binaries[i].f, binaries[i].tol);
            gradcheck_run(&gc);
            gc.in[1].plain = true;
            gc.layout = TENSOR_CHANNELS_LAST;
            oracle_elementwise(&gc, binaries[i].f, binaries[i].tol);
        }
}

static void integer_exponents_match_general_power(void **state)
{
    static const float exponents[] = { 2, 3, 1, 0, -1, 0.5f };
    static const int64_t wide[3] = { 2, -1, 3 };
    static const int32_t narrow[3] = { 0, 3, 2 };
    struct gradcheck_case gc = { .op = "Pow", .opset = 13, .n_in = 2, .seed = 8,
                                 .in = { { .shape = GRADCHECK_SHAPE(5, 7), .lo = 0.4, .hi = 3 },
                                         { .shape = { 0 }, .constant = true } } };
    size_t i;

    (void)state;
    for (i = 0; i < COUNT_OF(exponents); i++) {
        gc.in[1].data = &exponents[i];
        gc.in[0].lo = exponents[i] >= 1 && exponents[i] == floorf(exponents[i]) ? -3 : 0.4;
        oracle_elementwise(&gc, power, 6e-8);
        gradcheck_run(&gc);
        gc.in[1].constant = false;
        gc.not_wanted = OP_IN(1); /* undefined for a negative base */
        gradcheck_run(&gc);
        gc.in[1].constant = true;
    }
    gc.in[0].shape = shape_of(2, (int64_t)5, (int64_t)3);
    gc.in[1] = (struct gradcheck_tensor){ .dtype = TENSOR_I64, .shape = GRADCHECK_SHAPE(3),
                                          .data = wide };
    oracle_elementwise(&gc, power, 6e-8);
    gradcheck_run(&gc);
    gc.in[1] = (struct gradcheck_tensor){ .dtype = TENSOR_I32, .shape = GRADCHECK_SHAPE(3),
                                          .data = narrow };
    oracle_elementwise(&gc, power, 6e-8);
}

static void power_gradients_at_corners_are_limits(void **state)
{
    static const float a[4] = { 0, 0, 2, -1.5f }, b[4] = { 2, 0, 0, 3 }, ones[4] = { 1, 1, 1, 1 };
    static const double da[4] = { 0, 0, 0, 6.75 }, db[3] = { 0, -INFINITY, 0.693147180559945 };
    struct gradcheck_case gc = { .op = "Pow", .opset = 13, .n_in = 2, .dout = { ones },
                                 .in = { { .shape = GRADCHECK_SHAPE(4), .data = a },
                                         { .shape = GRADCHECK_SHAPE(4), .data = b } } };
    struct gradcheck_result r;
    struct err err = { 0 };

    (void)state;
    assert_int_equal(gradcheck_backward(&gc, &r, &err), 0);
    gradcheck_near("da", r.din[0].data, da, 4, 1e-6);
    gradcheck_near("db", r.din[1].data, db, 3, 1e-6);
    gradcheck_free(&r);
}

static void prelu_applies_slope_per_channel_below_zero(void **state)
{
    static const struct pair slopes[] = {
        { GRADCHECK_SHAPE(2, 3, 4, 5), GRADCHECK_SHAPE(3, 1, 1) },
        { GRADCHECK_SHAPE(2, 3, 4, 5), GRADCHECK_SHAPE(1) },
        { GRADCHECK_SHAPE(7, 9), GRADCHECK_SHAPE(9) },
        { GRADCHECK_SHAPE(7), GRADCHECK_SHAPE(7) },
        { { 0 }, { 0 } },
        { GRADCHECK_SHAPE(0, 3), GRADCHECK_SHAPE(3) },
    };
    struct gradcheck_case gc = { .op = "PRelu", .opset = 16, .n_in = 2, .seed = 4 };
    size_t i;

    (void)state;
    for (i = 0; i < COUNT_OF(slopes); i++) {
        gc.in[0] = (struct gradcheck_tensor){ .shape = slopes[i].a, .apart = true };
        gc.in[1] = (struct gradcheck_tensor){ .shape = slopes[i].b };
        oracle_elementwise(&gc, prelu, 6e-8);
        gradcheck_run(&gc);
    }
    gc.in[0].shape = shape_of(1, (int64_t)3);
    gc.in[1].shape = shape_of(2, (int64_t)2, (int64_t)3);
    oracle_refused(&gc, ERR_INPUT, "slope [2, 3] does not broadcast to the input [3]");
}

/* ---- integers and bool ---- */

static void integer_division_truncates_and_mod_supports_both_signs(void **state)
{
    static const int64_t a[8] = { 7, -7, 7, -7, 0, INT64_MIN, 6, -1 };
    static const int64_t b[8] = { 2, 2, -2, -2, 5, -1, 3, INT64_MAX };
    static const int64_t quotients[8] = { 3, -3, -3, 3, 0, INT64_MIN, 2, 0 };
    static const int64_t python[8] = { 1, 1, -1, -1, 0, 0, 0, INT64_MAX - 1 };
    static const int64_t c[8] = { 1, -1, 1, -1, 0, 0, 0, -1 };
    static const int32_t a32 = INT32_MIN, b32 = -1;
    static const int64_t least = INT32_MIN;
    struct gradcheck_case gc = {
        .opset = 13, .n_in = 2, .attrs = &like_c,
        .in = { { .dtype = TENSOR_I64, .shape = GRADCHECK_SHAPE(8), .data = a },
                { .dtype = TENSOR_I64, .shape = GRADCHECK_SHAPE(8), .data = b } } };

    (void)state;
    gc.op = "Div";
    oracle_ints(&gc, &gc.in[0].shape, quotients);
    gc.op = "Mod";
    oracle_ints(&gc, &gc.in[0].shape, python);
    gc.n_attrs = 1;
    oracle_ints(&gc, &gc.in[0].shape, c);
    gc = (struct gradcheck_case){ .op = "Div", .opset = 13, .n_in = 2,
                                  .in = { { .dtype = TENSOR_I32, .data = &a32 },
                                          { .dtype = TENSOR_I32, .data = &b32 } } };
    oracle_ints(&gc, &gc.in[0].shape, &least);
}

#define STRING(name_, s_) { .name = (name_), .type = OP_ATTR_STRING, .s = (s_) }
#define U64_CASE(a_, b_)                                                                           \
    { .opset = 18, .n_in = 2,                                                                      \
      .in = { { .dtype = TENSOR_U64, .shape = GRADCHECK_SHAPE(4), .data = (a_) },                  \
              { .dtype = TENSOR_U64, .shape = GRADCHECK_SHAPE(4), .data = (b_) } } }

static void uint64_above_sign_bit_compares_as_large(void **state)
{
    static const uint64_t a[4] = { UINT64_MAX, 7, UINT64_MAX - 1, (uint64_t)1 << 63 };
    static const uint64_t b[4] = { 2, UINT64_MAX, UINT64_MAX, 3 };
    static const uint64_t most[4] = { UINT64_MAX, UINT64_MAX, UINT64_MAX, (uint64_t)1 << 63 };
    static const int64_t quotients[4] = { INT64_MAX, 0, 0, INT64_MAX / 3 };
    static const int64_t rests[4] = { 1, 7, -2, 2 }, greater[4] = { 1, 0, 0, 1 };
    struct gradcheck_case gc = U64_CASE(a, b);

    (void)state;
    gc.op = "Div";
    oracle_ints(&gc, &gc.in[0].shape, quotients);
    gc.op = "Mod";
    oracle_ints(&gc, &gc.in[0].shape, rests);
    gc.op = "Max";
    oracle_ints(&gc, &gc.in[0].shape, (const int64_t *)most);
    gc.op = "Greater";
    oracle_ints(&gc, &gc.in[0].shape, greater);
}

static void bitwise_ops_combine_and_shift_bits(void **state)
{
    static const uint64_t a[4] = { 12, 1, UINT64_MAX, 5 }, b[4] = { 10, 63, 4, 64 };
    static const int64_t left[4] = { 12288, INT64_MIN, -16, 0 }, right[4] = { 0, 0, INT64_MAX >> 3, 0 };
    static const int64_t both[4] = { 8, 1, 4, 0 }, either[4] = { 14, 63, -1, 69 };
    static const int64_t one[4] = { 6, 62, -5, 69 }, none[4] = { -13, -2, 0, -6 };
    static const struct op_attr to_left = STRING("direction", "LEFT"),
                                to_right = STRING("direction", "RIGHT");
    struct gradcheck_case gc = U64_CASE(a, b);

    (void)state;
    gc.op = "BitShift";
    gc.n_attrs = 1;
    gc.attrs = &to_left;
    oracle_ints(&gc, &gc.in[0].shape, left);
    gc.attrs = &to_right;
    oracle_ints(&gc, &gc.in[0].shape, right);
    gc.n_attrs = 0;
    gc.in[0].dtype = gc.in[1].dtype = TENSOR_I64;
    gc.op = "BitwiseAnd";
    oracle_ints(&gc, &gc.in[0].shape, both);
    gc.op = "BitwiseOr";
    oracle_ints(&gc, &gc.in[0].shape, either);
    gc.op = "BitwiseXor";
    oracle_ints(&gc, &gc.in[0].shape, one);
    gc.op = "BitwiseNot";
    gc.n_in = 1;
    oracle_ints(&gc, &gc.in[0].shape, none);
}

static void integer_division_by_zero_is_rejected_with_position(void **state)
{
    static const int64_t b[3] = { 1, 0, 2 };
    struct gradcheck_case gc = {
        .op = "Div", .opset = 13, .n_in = 2,
        .in = { { .dtype = TENSOR_I64, .shape = GRADCHECK_SHAPE(3) },
                { .dtype = TENSOR_I64, .shape = GRADCHECK_SHAPE(3), .data = b } } };

    (void)state;
    oracle_refused(&gc, ERR_INPUT, "element 1 of the integer divisor is 0");
    gc.op = "Mod";
    oracle_refused(&gc, ERR_INPUT, "element 1 of the integer divisor is 0");
    gc.in[0].dtype = gc.in[1].dtype = TENSOR_F32;
    oracle_refused(&gc, ERR_INPUT, "fmod is 0; float32 needs 1");
}

static const struct whole {
    const char *op;
    double (*f)(const double *x, uint32_t n);
    bool of_float, of_int, of_bool;
} wholes[] = {
    { "Sub", sub, false, true, false },
    { "Div", truncated, false, true, false },
    { "Mod", python_rest, false, true, false },
    { "Equal", equal, true, true, true },
    { "Greater", greater, true, true, false },
    { "GreaterOrEqual", greater_or_equal, true, true, false },
    { "Less", less, true, true, false },
    { "LessOrEqual", less_or_equal, true, true, false },
    { "And", both, false, false, true },
    { "Or", either, false, false, true },
    { "Xor", one_of, false, false, true },
    { "Max", greatest, false, true, false },
    { "Min", least, false, true, false },
};

static void integer_and_bool_arithmetic_is_exact(void **state)
{
    static const enum tensor_dtype types[] = { TENSOR_F32, TENSOR_I32, TENSOR_I64, TENSOR_BOOL };
    size_t i, k, t;

    (void)state;
    for (i = 0; i < COUNT_OF(wholes); i++)
        for (k = 0; k < COUNT_OF(pairs); k++)
            for (t = 0; t < COUNT_OF(types); t++) {
                const struct whole *w = &wholes[i];
                bool fits = types[t] == TENSOR_F32    ? w->of_float
                            : types[t] == TENSOR_BOOL ? w->of_bool
                                                      : w->of_int;
                struct gradcheck_case gc = {
                    .op = w->op, .opset = 13, .n_in = 2, .seed = i + k,
                    .in = { { .dtype = types[t], .shape = pairs[k].a, .lo = -4, .hi = 4 },
                            { .dtype = types[t], .shape = pairs[k].b, .lo = 1, .hi = 4 } } };

                if (types[t] == TENSOR_BOOL)
                    gc.in[0].lo = gc.in[1].lo = -4;
                if (fits)
                    oracle_elementwise(&gc, w->f, 0);
            }
}

static void comparison_with_nan_is_false(void **state)
{
    static const float a[3] = { NAN, 1, NAN }, b[3] = { 1, NAN, NAN };
    size_t i;

    (void)state;
    for (i = 3; i < 8; i++) {
        const struct gradcheck_case gc = {
            .op = wholes[i].op, .opset = 13, .n_in = 2,
            .in = { { .shape = GRADCHECK_SHAPE(3), .data = a },
                    { .shape = GRADCHECK_SHAPE(3), .data = b } } };

        oracle_elementwise(&gc, wholes[i].f, 0);
    }
}

static void meaningless_types_are_rejected(void **state)
{
    struct gradcheck_case gc = { .op = "And", .opset = 13, .n_in = 2,
                                 .in = { { .shape = GRADCHECK_SHAPE(3) },
                                         { .shape = GRADCHECK_SHAPE(3) } } };

    (void)state;
    oracle_refused(&gc, ERR_UNSUPPORTED, "inputs are float32; supported are bool");
    gc.op = "Less";
    gc.in[0].dtype = gc.in[1].dtype = TENSOR_BOOL;
    oracle_refused(&gc, ERR_UNSUPPORTED, "inputs are bool; supported are float32, int32, int64");
    gc.op = "Max";
    oracle_refused(&gc, ERR_UNSUPPORTED, "inputs are bool; supported are float32, int32, int64");
    gc.op = "Pow";
    gc.in[0].dtype = TENSOR_I64;
    oracle_refused(&gc, ERR_UNSUPPORTED, "int64 to the power of bool");
}

/* ---- Where ---- */

static const struct three {
    struct shape c, a, b;
} threes[] = {
    { { 0 }, { 0 }, { 0 } },
    { GRADCHECK_SHAPE(33), GRADCHECK_SHAPE(33), GRADCHECK_SHAPE(33) },
    { GRADCHECK_SHAPE(1, 1, 7, 7), GRADCHECK_SHAPE(2, 3, 7, 7), { 0 } },
    { GRADCHECK_SHAPE(9, 5), { 0 }, GRADCHECK_SHAPE(9, 5) },
    { GRADCHECK_SHAPE(9, 1), GRADCHECK_SHAPE(1, 5), GRADCHECK_SHAPE(5) },
    { { 0 }, GRADCHECK_SHAPE(2, 3, 4), GRADCHECK_SHAPE(3, 1) },
    { GRADCHECK_SHAPE(2, 3, 4, 5), GRADCHECK_SHAPE(3, 1, 1), GRADCHECK_SHAPE(2, 1, 4, 5) },
    { GRADCHECK_SHAPE(0, 3), GRADCHECK_SHAPE(3), GRADCHECK_SHAPE(1) },
};

static void where_selects_and_routes_gradients(void **state)
{
    static const enum tensor_dtype types[] = { TENSOR_F32, TENSOR_I64, TENSOR_I32, TENSOR_BOOL };
    size_t i, t;

    (void)state;
    for (i = 0; i < COUNT_OF(threes); i++)
        for (t = 0; t < COUNT_OF(types); t++) {
            struct gradcheck_case gc = {
                .op = "Where", .opset = 16, .n_in = 3, .seed = i,
                .in = { { .dtype = TENSOR_BOOL, .shape = threes[i].c },
                        { .dtype = types[t], .shape = threes[i].a, .lo = -9, .hi = 9 },
                        { .dtype = types[t], .shape = threes[i].b, .lo = -9, .hi = 9 } } };

            oracle_elementwise(&gc, choice, 0);
            gradcheck_run(&gc);
        }
}

static void where_with_mixed_types_or_non_bool_condition_is_rejected(void **state)
{
    struct gradcheck_case gc = { .op = "Where", .opset = 9, .n_in = 3,
                                 .in = { { .dtype = TENSOR_BOOL, .shape = GRADCHECK_SHAPE(3) },
                                         { .shape = GRADCHECK_SHAPE(3) },
                                         { .dtype = TENSOR_I64, .shape = GRADCHECK_SHAPE(3) } } };

    (void)state;
    oracle_refused(&gc, ERR_INPUT, "the choices are float32 and int64");
    gc.in[0].dtype = TENSOR_F32;
    oracle_refused(&gc, ERR_INPUT, "input 0 is float32; expected bool");
    gc.in[0].dtype = TENSOR_BOOL;
    gc.in[2] = (struct gradcheck_tensor){ .shape = GRADCHECK_SHAPE(4) };
    oracle_refused(&gc, ERR_INPUT, "[3] and [4] do not broadcast");
}

/* ---- any number of operands ---- */

static const struct fold {
    const char *op;
    double (*f)(const double *x, uint32_t n);
} folds[] = { { "Max", greatest }, { "Min", least }, { "Sum", total }, { "Mean", average } };

static void variadic_ops_combine_any_number_of_operands(void **state)
{
    static const struct shape shapes[] = {
        GRADCHECK_SHAPE(2, 3, 4, 5), GRADCHECK_SHAPE(3, 1, 1), { 0 }, GRADCHECK_SHAPE(2, 1, 4, 1),
        GRADCHECK_SHAPE(5),
    };
    static float values[COUNT_OF(shapes)][120];
    size_t i, n, k;

    (void)state;
    /* Any two operands differ clearly, because maxima have kinks. */
    for (k = 0; k < COUNT_OF(shapes); k++)
        for (i = 0; i < 120; i++)
            values[k][i] = (float)((i * 77 + k * 13) % 120 * 5 + k) / 300 - 1;
    for (i = 0; i < COUNT_OF(folds); i++)
        for (n = 1; n <= COUNT_OF(shapes); n++) {
            struct gradcheck_case gc = { .op = folds[i].op, .opset = 13, .n_in = (uint32_t)n,
                                         .seed = n, .step = 1e-3 };

            for (k = 0; k < n; k++)
                gc.in[k] = (struct gradcheck_tensor){ .shape = shapes[k], .data = values[k] };
            oracle_elementwise(&gc, folds[i].f, 2e-7);
            gradcheck_run(&gc);
            for (k = 0; k < n; k++) /* the first shape is not the largest */
                gc.in[k] = (struct gradcheck_tensor){ .shape = shapes[n - 1 - k],
                                                      .data = values[n - 1 - k] };
            oracle_elementwise(&gc, folds[i].f, 2e-7);
            gradcheck_run(&gc);
            gc.in[0].shape =
                shape_of(5, (int64_t)0, (int64_t)1, (int64_t)1, (int64_t)1, (int64_t)1);
            gradcheck_run(&gc);
        }
}

static void max_with_ties_shares_gradient_and_propagates_nan(void **state)
{
    static const float a[4] = { 1, 2, NAN, 5 }, b[4] = { 1, 3, 1, 5 }, c[4] = { 0, 3, 2, 5 };
    static const float y[4] = { 1, 3, NAN, 5 }, dout[4] = { 1, 1, 1, 3 };
    static const double da[4] = { 0.5, 0, 1, 1 }, dc[4] = { 0, 0.5, 0, 1 };
    struct gradcheck_case gc = { .op = "Max", .opset = 13, .n_in = 3, .dout = { dout },
                                 .in = { { .shape = GRADCHECK_SHAPE(4), .data = a },
                                         { .shape = GRADCHECK_SHAPE(4), .data = b },
                                         { .shape = GRADCHECK_SHAPE(4), .data = c } } };
    struct gradcheck_result r;
    struct err err = { 0 };

    (void)state;
    oracle_floats(&gc, &gc.in[0].shape, y);
    assert_int_equal(gradcheck_backward(&gc, &r, &err), 0);
    gradcheck_near("da", r.din[0].data, da, 4, 0);
    gradcheck_near("dc", r.din[2].data, dc, 4, 0);
    gradcheck_free(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(binary_ops_follow_formula_and_gradient),
        cmocka_unit_test(integer_exponents_match_general_power),
        cmocka_unit_test(power_gradients_at_corners_are_limits),
        cmocka_unit_test(prelu_applies_slope_per_channel_below_zero),
        cmocka_unit_test(integer_division_truncates_and_mod_supports_both_signs),
        cmocka_unit_test(uint64_above_sign_bit_compares_as_large),
        cmocka_unit_test(bitwise_ops_combine_and_shift_bits),
        cmocka_unit_test(integer_division_by_zero_is_rejected_with_position),
        cmocka_unit_test(integer_and_bool_arithmetic_is_exact),
        cmocka_unit_test(comparison_with_nan_is_false),
        cmocka_unit_test(meaningless_types_are_rejected),
        cmocka_unit_test(where_selects_and_routes_gradients),
        cmocka_unit_test(where_with_mixed_types_or_non_bool_condition_is_rejected),
        cmocka_unit_test(variadic_ops_combine_any_number_of_operands),
        cmocka_unit_test(max_with_ties_shares_gradient_and_propagates_nan),
    };

    return cmocka_run_group_tests_name("op/elem_ops", tests, NULL, NULL);
}
