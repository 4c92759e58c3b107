/* lanes.h - a sum whose bits do not depend on how wide the machine's vectors are: eight partial
 * sums in double, element i goes to lane i % 8, added up as a tree. A compiler splits the vector
 * into what the machine has. */
#ifndef OP_LANES_H
#define OP_LANES_H

#include <math.h>
#include <stddef.h>

#include "op/op_priv.h"

enum { OP_LANES = 8 };
typedef double op_lanes __attribute__((vector_size(OP_LANES * sizeof(double))));

/* By pointer: passing a vector by value would tie callers to one instruction set. */
OP_INLINE double op_lanes_total(const op_lanes *v)
{
    const op_lanes x = *v;

    return ((x[0] + x[4]) + (x[2] + x[6])) + ((x[1] + x[5]) + (x[3] + x[7]));
}

OP_INLINE double op_row_sum(const float *e, size_t n)
{
    op_lanes lanes = { 0 };
    double tail = 0;
    size_t i = 0, j;

    while (i + OP_LANES <= n) {
        op_lanes d;

        for (j = 0; j < OP_LANES; j++, i++)
            d[j] = (double)e[i];
        lanes += d;
    }
    for (; i < n; i++)
        tail += (double)e[i];
    return op_lanes_total(&lanes) + tail;
}

/* ---- in float: blocks of 64, as four vectors that a machine may split further ---- */

enum { OP_WIDE = 16, OP_BLOCK = 4 * OP_WIDE };
typedef float op_wide __attribute__((vector_size(OP_WIDE * sizeof(float))));
typedef float op_wide_at /* the same, anywhere in memory */
    __attribute__((vector_size(OP_WIDE * sizeof(float)), aligned(4), may_alias));

struct op_block {
    op_wide a, b, c, d;
};

/* The first n of 64 values; `rest` for those behind. */
OP_INLINE void op_block_load(struct op_block *v, const float *x, size_t n, float rest)
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

OP_INLINE double op_block_total(const struct op_block *v)
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

/* Element by element, x where it is greater, else m: as bits, since not every compiler's C has ?:
 * of vectors, and one by one it would not become vectors. */
OP_INLINE void op_wide_max(op_wide *m, const float *x)
{
    const op_wide v = *(const op_wide_at *)x;
    const op_wide_bits greater = v > *m;

    *m = (op_wide)((greater & (op_wide_bits)v) | (~greater & (op_wide_bits)*m));
}

/* The greatest of n values; -inf for none. NaN is passed over. */
OP_INLINE float op_row_max(const float *x, size_t n)
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
