/* elem_formula.h - the formulas of two operands that are more than one operator, for CPUs and GPUs.
 * a and b are the operands, d is the gradient of the result. */
#ifndef OP_ELEM_ELEM_FORMULA_H
#define OP_ELEM_ELEM_FORMULA_H

#include <stdint.h>

#include "op/formula.h"

/* Formulas of any type: NaN is greater and less than every number, and equal to NaN. */
#define ELEM_MAX(a_, b_) ((b_) > (a_) || (b_) != (b_) ? (b_) : (a_))
#define ELEM_MIN(a_, b_) ((b_) < (a_) || (b_) != (b_) ? (b_) : (a_))
#define ELEM_EQUAL(a_, b_) ((a_) == (b_) || ((a_) != (a_) && (b_) != (b_)))

/* ---- integers: the least one divided by -1 wraps. A divisor of 0 is refused before or after the
 * loop (elem_check_divisor(), op_report); the result is 0 there ---- */

/* elem_rest has the sign of a, as C's %; elem_modulo that of b, as Python's. */
#define ELEM_DIVISION(suffix_, signed_, unsigned_)                                                 \
    FORMULA signed_ elem_quotient_##suffix_(signed_ a, signed_ b)                                  \
    {                                                                                              \
        return b == 0 ? 0 : b == -1 ? (signed_)(0 - (unsigned_)a) : a / b;                         \
    }                                                                                              \
    FORMULA signed_ elem_rest_##suffix_(signed_ a, signed_ b)                                      \
    {                                                                                              \
        return b == 0 || b == -1 ? 0 : a % b;                                                      \
    }                                                                                              \
    FORMULA signed_ elem_modulo_##suffix_(signed_ a, signed_ b)                                    \
    {                                                                                              \
        signed_ r = elem_rest_##suffix_(a, b);                                                     \
                                                                                                   \
        return r != 0 && (r < 0) != (b < 0) ? r + b : r;                                           \
    }
ELEM_DIVISION(i32, int32_t, uint32_t)
ELEM_DIVISION(i64, int64_t, uint64_t)

FORMULA uint64_t elem_quotient_u64(uint64_t a, uint64_t b)
{
    return b == 0 ? 0 : a / b;
}

FORMULA uint64_t elem_rest_u64(uint64_t a, uint64_t b)
{
    return b == 0 ? 0 : a % b;
}

/* a^b by squaring, wrapping; for a negative exponent 1 / a^-b, truncated. */
FORMULA uint64_t elem_pow_whole(int64_t a, int64_t b)
{
    uint64_t y = 1, x = (uint64_t)a;

    if (b < 0)
        return a == 1 ? 1 : a == -1 ? ((b & 1) != 0 ? UINT64_MAX : 1) : 0;
    for (; b > 0; b >>= 1, x *= x)
        if ((b & 1) != 0)
            y *= x;
    return y;
}

/* ---- float32 ---- */

FORMULA float elem_div_db(float d, float a, float b)
{
    return -(d / b) * (a / b);
}

FORMULA float elem_mod_db(float d, float a, float b)
{
    return -d * truncf(a / b);
}

/* PRelu: a is x, b the slope. */
FORMULA float elem_prelu_y(float a, float b)
{
    return a < 0.0f ? a * b : a;
}

FORMULA float elem_prelu_da(float d, float a, float b)
{
    return a <= 0.0f ? d * b : d;
}

FORMULA float elem_prelu_db(float d, float a)
{
    return a < 0.0f ? d * a : 0.0f;
}

FORMULA float elem_square(float a)
{
    return a * a;
}

FORMULA float elem_cube(float a)
{
    return (float)((double)a * (double)a * (double)a);
}

/* Pow. power: a^(b - 1) for da, a^b for db. Both gradients are 0 where their limit is. */
FORMULA float elem_pow_da(float d, float b, float power)
{
    return b == 0.0f ? 0.0f : d * (b * power);
}

FORMULA float elem_pow_db(float d, float a, float b, float power)
{
    return a == 0.0f && b > 0.0f ? 0.0f : d * (power * op_logf(a));
}

#endif
