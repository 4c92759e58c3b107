/* top_k_formula.h - how many numbers of a block top_k sends, and where their indices are in its code, for CPUs and
 * GPUs; see top_k.h. */
#ifndef CODE_TOP_K_FORMULA_H
#define CODE_TOP_K_FORMULA_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>

#include "base/formula.h"

enum { TOP_K_INDEX_BITS = 12 };

FORMULA uint32_t top_k_count(double fraction, size_t n)
{
    double k = ceil(fraction * (double)n);

    return k < 1 ? 1 : k > (double)n ? (uint32_t)n : (uint32_t)k;
}

/* Bytes of the code of a block. */
FORMULA size_t top_k_block_bytes(uint32_t k)
{
    return ((size_t)k * sizeof(float) + (k * TOP_K_INDEX_BITS + 7) / 8 + 3) / 4 * 4;
}

/* Two indices are in three bytes: the second one begins in the middle of the second byte. The index before an odd
 * one is written first. */
FORMULA void top_k_put_index(uint8_t *indices, uint32_t i, uint32_t index)
{
    uint8_t *at = indices + i / 2 * 3 + i % 2;

    if (i % 2 == 0) {
        at[0] = (uint8_t)index;
        at[1] = (uint8_t)(index >> 8);
    } else {
        at[0] = (uint8_t)(at[0] | (index & 15u) << 4);
        at[1] = (uint8_t)(index >> 4);
    }
}

FORMULA uint32_t top_k_get_index(const uint8_t *indices, uint32_t i)
{
    const uint8_t *at = indices + i / 2 * 3 + i % 2;

    return i % 2 == 0 ? at[0] | (at[1] & 15u) << 8 : (uint32_t)at[0] >> 4 | (uint32_t)at[1] << 4;
}

#endif
