/* outer_math.c - see outer_math.h. */
#include "train/outer_math.h"

#include "base/clones.h"

enum {
    BLOCK = 256,    /* elements: the partial sums of all levels stay in the first-level cache */
    LEVELS_MAX = 17, /* of a tree over 65536 models */
};

CLONES static void difference(float *restrict to, const float *restrict theta,
                              const float *restrict w, size_t n)
{
    for (size_t i = 0; i < n; i++)
        to[i] = (theta[i] - w[i]) + 0.0f;
}

CLONES static void copy(float *restrict to, const float *restrict w, size_t n)
{
    for (size_t i = 0; i < n; i++)
        to[i] = w[i] + 0.0f; /* -0 becomes 0 */
}

CLONES static void add(float *restrict to, const float *restrict from, size_t n)
{
    for (size_t i = 0; i < n; i++)
        to[i] += from[i];
}

/* The sums of complete subtrees are on a stack that works as a binary counter. */
static void sum_block(float *to, const float *const *models, uint32_t n_models, const float *theta,
                      size_t at, size_t n)
{
    float stack[LEVELS_MAX][BLOCK];
    uint32_t top = 0;

    for (uint32_t g = 0; g < n_models; g++) {
        if (theta != NULL)
            difference(stack[top++], theta + at, models[g] + at, n);
        else
            copy(stack[top++], models[g] + at, n);
        for (uint32_t count = g + 1; count % 2 == 0; count /= 2, top--)
            add(stack[top - 2], stack[top - 1], n);
    }
    copy(to, stack[0], n);
}

void outer_sum(float *to, const float *const *models, uint32_t n_models, const float *theta,
               size_t at, size_t n)
{
    for (size_t i = 0; i < n; i += BLOCK)
        sum_block(to + i, models, n_models, theta, at + i, n - i < BLOCK ? n - i : BLOCK);
}

CLONES void outer_nesterov(float *restrict theta, float *restrict velocity, const float *restrict d,
                           size_t n, float rate, float momentum)
{
    for (size_t i = 0; i < n; i++) {
        velocity[i] = momentum * velocity[i] + d[i];
        theta[i] -= rate * (d[i] + momentum * velocity[i]);
    }
}
