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

enum { OP_WIDE = 16 };

/* The greatest of n values; -inf for none. NaN is passed over. */
OP_INLINE float op_row_max(const float *x, size_t n)
{
    float lane[OP_WIDE], m = -INFINITY;
    size_t i, j;

    for (j = 0; j < OP_WIDE; j++)
        lane[j] = -INFINITY;
    for (i = 0; i + OP_WIDE <= n; i += OP_WIDE)
        for (j = 0; j < OP_WIDE; j++)
            lane[j] = x[i + j] > lane[j] ? x[i + j] : lane[j];
    for (; i < n; i++)
        m = x[i] > m ? x[i] : m;
    for (j = 0; j < OP_WIDE; j++)
        m = lane[j] > m ? lane[j] : m;
    return m;
}

#endif
