/* lanes.c - see lanes.h. */
#include "engine/lanes.h"

#include "base/clones.h"

uint32_t tree_merges(uint32_t i, uint32_t n)
{
    uint32_t merges = 0;

    if (i + 1 == n) /* all entries but one: as many as n has ones, after the regular merges */
        return (uint32_t)__builtin_ctz(n) + (uint32_t)__builtin_popcount(n) - 1;
    for (uint32_t count = i + 1; count % 2 == 0; count /= 2)
        merges++;
    return merges;
}

uint32_t tree_depth(uint32_t n)
{
    uint32_t depth = 1;

    while ((1u << (depth - 1)) < n)
        depth++;
    return depth;
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
