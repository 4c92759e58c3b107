/* lanes.c - see lanes.h. */
#include "engine/lanes.h"

#include "base/clones.h"
#include "base/lane_tree.h"

/* Returns the entries on the stack before lane i is pushed: the left halves of the subtrees in whose right half the lane is.
 * Each of them is a bit of the lane's first leaf. */
static uint32_t height(const struct lane_tree *t, uint32_t i)
{
    return (uint32_t)__builtin_popcount(lane_tree_leaf(t, i));
}

uint32_t tree_merges(const struct lane_tree *t, uint32_t i, uint32_t n)
{
    return height(t, i) + 1 - (i + 1 == n ? 1 : height(t, i + 1));
}

uint32_t tree_depth(const struct lane_tree *t, uint32_t n)
{
    uint32_t most = 0;

    for (uint32_t i = 0; i < n; i++)
        most = height(t, i) > most ? height(t, i) : most;
    return most + 1;
}

CLONES void tree_add_f32(float *restrict dst, const float *restrict src, size_t n)
{
    for (size_t i = 0; i < n; i++)
        dst[i] += src[i];
}

CLONES void tree_add_f64(double *restrict dst, const double *restrict src, size_t n)
{
    for (size_t i = 0; i < n; i++)
        dst[i] += src[i];
}
