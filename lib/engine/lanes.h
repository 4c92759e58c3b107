/* lanes.h - the binary tree along which the lanes (micro-batches) of a replica are added.
 *
 * Lanes are added on a stack that works as a binary counter. So the order of additions depends on
 * lane numbers alone: four lanes give (0+1)+(2+3). After the last lane the rest is merged from the
 * right. A second piece of lanes is added above the sum of the first one. Pure. */
#ifndef ENGINE_LANES_H
#define ENGINE_LANES_H

#include <stddef.h>
#include <stdint.h>

/* How many times the two topmost entries are merged after lane i of n. */
uint32_t tree_merges(uint32_t i, uint32_t n);
/* Entries that can be on the stack at once for n lanes. */
uint32_t tree_depth(uint32_t n);
void tree_add_f32(float *dst, const float *src, size_t n);
void tree_add_f64(double *dst, const double *src, size_t n);

#endif
