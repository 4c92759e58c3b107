/* float_formula.h - the bits of a float32, and bfloat16, its upper half: sign, 8 bits of exponent, 7 of fraction. For CPUs and
 * GPUs (formula.h).
 *
 * The conversion to bfloat16 rounds to nearest even; a number above 3.39e38 becomes infinity, a NaN stays a NaN. The
 * conversion from bfloat16 is exact. */
#ifndef BASE_FLOAT_FORMULA_H
#define BASE_FLOAT_FORMULA_H

#include <stdint.h>
#include <string.h>

#include "base/formula.h"

FORMULA uint32_t float_bits(float x)
{
    uint32_t u;

    memcpy(&u, &x, sizeof(u));
    return u;
}

FORMULA float float_of_bits(uint32_t u)
{
    float x;

    memcpy(&x, &u, sizeof(x));
    return x;
}

FORMULA uint16_t float_to_bfloat16(float x)
{
    uint32_t u = float_bits(x);
    /* the fraction of a NaN must not become 0 */
    uint32_t nan = u >> 16 | 0x40u, rounded = (u + 0x7fffu + (u >> 16 & 1u)) >> 16;

    return (uint16_t)((u & 0x7fffffffu) > 0x7f800000u ? nan : rounded);
}

FORMULA float float_of_bfloat16(uint16_t h)
{
    return float_of_bits((uint32_t)h << 16);
}

#endif
