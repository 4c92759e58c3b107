/* code_formula.h - the arithmetic of the codes (code.h) for one number, for CPUs and GPUs: both make the same
 * bytes, because each step is one operation of IEEE 754, or of integers. A compiler must not fuse a
 * multiplication with an addition (Makefile: -ffp-contract=off, -fmad=false). That of bfloat16 is in
 * base/float_formula.h. */
#ifndef CODE_CODE_FORMULA_H
#define CODE_CODE_FORMULA_H

#include <stdbool.h>
#include <stdint.h>

#include "base/float_formula.h"

#define CODE_TINY 1e-30f /* a smaller max encodes as scale 0 */
/* Adding 1.5 * 2^23 rounds |x| < 2^22 to the nearest integer, of two the even one, and leaves it in the
 * low bits: every instruction set has this addition, but not a vector of rintf(). */
#define CODE_ROUNDER 12582912.0f

enum {
    CODE_INT8_MOST = 127,
    CODE_INT4_MOST = 7,
    CODE_INT4_PART = 64,   /* numbers with one scale */
    CODE_FLOAT16_TOP = 14, /* max is moved to [2^TOP, 2^(TOP + 1)) */
    /* of int4, in the key of the random numbers; the ops of a model count their streams from 0 */
    CODE_STREAM = 0x636f6465,
};

/* ---- scales. max: the largest code_size() of the numbers that a scale applies to ---- */

/* The bits of the absolute value. As integers they compare as the absolute values do, with NaN above
 * infinity. */
FORMULA uint32_t code_size(float x)
{
    return float_bits(x) & 0x7fffffffu;
}

FORMULA bool code_is_finite(uint32_t max)
{
    return max < 0x7f800000u;
}

FORMULA bool code_has_scale(uint32_t max)
{
    return code_is_finite(max) && !(float_of_bits(max) < CODE_TINY);
}

/* The scale in front of zeros, if there is no other one. */
FORMULA float code_no_scale(uint32_t max)
{
    return code_is_finite(max) ? 0 : float_of_bits(0x7fc00000u);
}

FORMULA float code_scale(uint32_t max, int32_t most)
{
    return float_of_bits(max) / (float)most;
}

FORMULA float code_inverse(uint32_t max, int32_t most)
{
    return (float)most / float_of_bits(max);
}

/* ---- float16. The scale is a power of two, so the multiplications with it are exact, and the largest
 *      number never overflows: its half float is at most 2^15 ---- */

FORMULA int32_t code_float16_shift(uint32_t max)
{
    return (int32_t)(max >> 23) - 127 - CODE_FLOAT16_TOP;
}

FORMULA float code_float16_scale(uint32_t max)
{
    return float_of_bits((uint32_t)(127 + code_float16_shift(max)) << 23);
}

FORMULA float code_float16_inverse(uint32_t max)
{
    return float_of_bits((uint32_t)(127 - code_float16_shift(max)) << 23);
}

/* Returns the half float that is nearest to x, |x| <= 2^15; of two, the even one. */
FORMULA uint16_t code_to_float16(float x)
{
    uint32_t size = code_size(x), sign = float_bits(x) >> 16 & 0x8000u;
    /* 2^-14 and above: drops 13 bits of the fraction */
    uint32_t normal = (size - 0x38000000u + 0xfffu + (size >> 13 & 1u)) >> 13;
    /* below: the addition rounds to a multiple of 2^-24, the unit in the last place of 0.5 */
    uint32_t small = float_bits(float_of_bits(size) + 0.5f) - 0x3f000000u;

    return (uint16_t)(sign | (size >= 0x38800000u ? normal : small));
}

/* Exact. The encoder writes no infinity and no NaN: exponent 31 is one more binade. */
FORMULA float code_of_float16(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, size = h & 0x7fffu;
    float normal = float_of_bits((size << 13) + (112u << 23)),
          small = (float)(int32_t)size * (1.0f / 16777216);

    return float_of_bits(sign | float_bits(size >= 0x400u ? normal : small));
}

/* ---- int8, int4. x: the number multiplied by the inverse of the scale ---- */

FORMULA uint8_t code_to_int8(float x)
{
    return (uint8_t)float_bits(x + CODE_ROUNDER);
}

FORMULA float code_of_int8(uint8_t byte)
{
    return (float)(int8_t)byte;
}

/* Returns floor(x + u) in [-7, 7] as a half byte, for |x| just above 7 at most; u in [0, 1) is made of `word`.
 * Adding 8 moves the sum above 0, where the conversion to an integer rounds down; it also rounds the sum to a
 * multiple of 2^-20. */
FORMULA uint32_t code_to_int4(float x, uint32_t word)
{
    int32_t q = (int32_t)(x + (float)(int32_t)(word >> 8) * (1.0f / 16777216) + 8.0f) - 8;

    q = q < -CODE_INT4_MOST ? -CODE_INT4_MOST : q;
    q = q > CODE_INT4_MOST ? CODE_INT4_MOST : q;
    return (uint32_t)q & 15u;
}

FORMULA float code_of_int4(uint32_t half)
{
    return (float)((int32_t)(half ^ 8u) - 8);
}

#endif
