/* simd.h - sums and maxima as vectors, in an order that depends on the length alone: eight partial
 * sums in double, where element i is added to lane i % 8 (a SIMD lane, not a micro-batch), combined
 * by a fixed tree. The compiler splits the vectors into the registers of the machine. */
#ifndef OP_SIMD_H
#define OP_SIMD_H

#include <math.h>
#include <stddef.h>

#include "op/op_priv.h"

enum { OP_SIMD_LANES = 8 };
typedef double op_simd __attribute__((vector_size(OP_SIMD_LANES * sizeof(double))));

/* Takes a pointer, because passing a vector by value would bind the callers to one instruction
 * set. */
INLINED double op_simd_total(const op_simd *v)
{
    const op_simd x = *v;

    return ((x[0] + x[4]) + (x[2] + x[6])) + ((x[1] + x[5]) + (x[3] + x[7]));
}

INLINED double op_row_sum(const float *e, size_t n)
{
    op_simd lanes = { 0 };
    double tail = 0;
    size_t i = 0, j;

    while (i + OP_SIMD_LANES <= n) {
        op_simd d;

        for (j = 0; j < OP_SIMD_LANES; j++, i++)
            d[j] = (double)e[i];
        lanes += d;
    }
    for (; i < n; i++)
        tail += (double)e[i];
    return op_simd_total(&lanes) + tail;
}

/* ---- in float: blocks of 64 elements, as four vectors that the compiler may split ---- */

enum { OP_WIDE = 16, OP_BLOCK = 4 * OP_WIDE };
typedef float op_wide __attribute__((vector_size(OP_WIDE * sizeof(float))));
typedef float op_wide_at /* the same type without an alignment requirement */
    __attribute__((vector_size(OP_WIDE * sizeof(float)), aligned(4), may_alias));

struct op_block {
    op_wide a, b, c, d;
};

/* Loads the first n <= 64 values, and `rest` for the remaining ones. */
INLINED void op_block_load(struct op_block *v, const float *x, size_t n, float rest)
{
    float some[OP_BLOCK];
    size_t i;

    if (n < OP_BLOCK) {
        for (i = 0; i < OP_BLOCK; i++)
            some[i] = rest;
        memcpy(some, x, n * sizeof(*x));
        x = some;
    }
    v->a = *(const op_wide_at *)x;
    v->b = *(const op_wide_at *)(x + OP_WIDE);
    v->c = *(const op_wide_at *)(x + 2 * OP_WIDE);
    v->d = *(const op_wide_at *)(x + 3 * OP_WIDE);
}

INLINED double op_block_total(const struct op_block *v)
{
    op_wide sum = (v->a + v->b) + (v->c + v->d);
    double t[OP_WIDE];
    size_t i, k;

    for (i = 0; i < OP_WIDE; i++)
        t[i] = (double)sum[i];
    for (k = OP_WIDE / 2; k > 0; k /= 2)
        for (i = 0; i < k; i++)
            t[i] += t[k + i];
    return t[0];
}

typedef int32_t op_wide_bits __attribute__((vector_size(OP_WIDE * sizeof(float))));

/* m = max(m, x) per element. A NaN in x is ignored. The selection uses bit masks, because not every
 * C compiler supports ?: on vectors and a scalar loop would not be vectorised. */
INLINED void op_wide_max(op_wide *m, const float *x)
{
    const op_wide v = *(const op_wide_at *)x;
    const op_wide_bits greater = v > *m;

    *m = (op_wide)((greater & (op_wide_bits)v) | (~greater & (op_wide_bits)*m));
}

/* Returns the maximum of n values; -inf if n is 0. NaN is ignored. */
INLINED float op_row_max(const float *x, size_t n)
{
    op_wide one = { 0 }, two;
    float lane[OP_WIDE], m = -INFINITY;
    size_t i, j, k;

    one = two = one - INFINITY;
    for (i = 0; i + 2 * OP_WIDE <= n; i += 2 * OP_WIDE) {
        op_wide_max(&one, x + i);
        op_wide_max(&two, x + i + OP_WIDE);
    }
    for (; i < n; i++)
        m = x[i] > m ? x[i] : m;
    memcpy(lane, &two, sizeof(lane));
    op_wide_max(&one, lane);
    memcpy(lane, &one, sizeof(lane));
    for (k = OP_WIDE / 2; k > 0; k /= 2)
        for (j = 0; j < k; j++)
            lane[j] = lane[k + j] > lane[j] ? lane[k + j] : lane[j];
    return lane[0] > m ? lane[0] : m;
}

#endif
