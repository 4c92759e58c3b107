/* lanes.h - how a replica adds its lanes (micro-batches) along the binary tree over lanes (base/lane_tree.h).
 *
 * Lanes are pushed on a stack in order. When both halves of a subtree are on the stack, they are the two topmost entries
 * and are merged. So the order of additions depends on the tree alone: four lanes give (0+1)+(2+3). A second piece of
 * lanes is added above the sum of the first one. Pure. */
#ifndef ENGINE_LANES_H
#define ENGINE_LANES_H

#include <stddef.h>
#include <stdint.h>

struct lane_tree;

/* Returns how many times the two topmost entries are merged after lane i of a subtree of n lanes. */
uint32_t tree_merges(const struct lane_tree *t, uint32_t i, uint32_t n);
/* Returns the most entries that are on the stack at once for a subtree of n lanes or fewer. */
uint32_t tree_depth(const struct lane_tree *t, uint32_t n);
void tree_add_f32(float *dst, const float *src, size_t n);
void tree_add_f64(double *dst, const double *src, size_t n);

#endif
