/* reduce.h - reduces several vectors (sum, maximum or bits) into several vectors, in one pass. Pure
 * arithmetic. Threads: any.
 *
 * The order is the binary tree over the sources, ((0+1)+(2+3))+...; a missing right half is
 * skipped: three sources are (0+1)+2, six are ((0+1)+(2+3))+(4+5). A source may already be the sum
 * of a subtree of several leaves. int64 sums wrap around. The maximum of a number and NaN is
 * NaN. */
#ifndef COMM_REDUCE_H
#define COMM_REDUCE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "comm/comm.h"

bool reduce_can(enum tensor_dtype dtype, enum comm_op op); /* float32, float64, int64; COMM_OR:
                                                              int64 */

/* Sets every to[i][0..count) to the reduction of from[0..n_from)[0..count). A destination may be a
 * source; otherwise the vectors do not overlap. 1 <= n_from <= COMM_MAX_RANKS. leaves: NULL, or
 * [n_from + 1] ascending: source i is the leaves [leaves[i], leaves[i + 1]) of a tree that begins
 * at leaves[0]. */
void reduce(void *const *to, uint32_t n_to, const void *const *from, uint32_t n_from,
            const uint32_t *leaves, size_t count, enum tensor_dtype dtype, enum comm_op op);

/* For the same sums with a stack on which the sources are pushed in order: merges[i], [n], is how many
 * times the two topmost entries are added after source i. The stack has at most REDUCE_DEPTH_MAX
 * entries. leaves as above. */
enum { REDUCE_DEPTH_MAX = 17 }; /* levels of a tree over COMM_MAX_LEAVES leaves */
void reduce_merges(const uint32_t *leaves, uint32_t n, uint8_t *merges);

/* Returns the source at which the right half of the tree over sources [first, first + n) begins; n
 * > 1. Returns 0 if a source spans the cut: no tree has these leaves. */
uint32_t reduce_cut(const uint32_t *leaves, uint32_t first, uint32_t n);

#endif
