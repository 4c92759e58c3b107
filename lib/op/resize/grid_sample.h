/* grid_sample.h - the elements that a point of a grid reads: the same arithmetic for CPUs and
 * GPUs. */
#ifndef OP_RESIZE_GRID_SAMPLE_H
#define OP_RESIZE_GRID_SAMPLE_H

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if defined(__CUDACC__) || defined(CUDA_EMULATED)
#define GRID_FN __device__ static inline
#else
#define GRID_FN static inline
#endif

enum { GRID_AXES = 3, GRID_TAPS = 4 };
enum grid_mode { GRID_NEAREST, GRID_LINEAR, GRID_CUBIC };
enum grid_padding { GRID_ZEROS, GRID_BORDER, GRID_REFLECTION };

struct grid_sample {
    enum grid_mode mode;
    enum grid_padding padding;
    bool align;             /* -1 and 1 are the centres of the outer elements instead of their
                               edges */
    uint32_t axes;          /* spatial axes: 2 or 3 */
    int64_t size[GRID_AXES]; /* of the input along the axes, outermost first; 1 for a missing third
                                axis */
    size_t samples, channels;
    size_t inputs, points;  /* elements per channel of a sample: of the input, of the output */
};

/* The taps along one axis: the value is the sum of w[k] times element at[k]. */
struct grid_taps {
    int n;
    int64_t at[GRID_TAPS];  /* -1: outside, reads 0 */
    float w[GRID_TAPS];
    float slope[GRID_TAPS]; /* dw / d(grid) */
};

/* Reflects x into [low, high]; *sign: derivative of the result, 0 if the range is a point. */
GRID_FN float grid_reflect(float x, float low, float high, float *sign)
{
    float span = high - low, rest, flips;

    *sign = 0;
    if (!(span > 0))
        return 0;
    x -= low;
    *sign = x < 0 ? -1.0f : 1.0f;
    x = fabsf(x);
    rest = fmodf(x, span);
    flips = floorf(x / span);
    if (fmodf(flips, 2.0f) == 0)
        return rest + low;
    *sign = -*sign;
    return span - rest + low;
}

/* Applies the padding to x; multiplies *sign by the derivative. */
GRID_FN float grid_pad(const struct grid_sample *g, float x, float size, float *sign)
{
    if (g->padding == GRID_REFLECTION) {
        float low = g->align ? 0.0f : -0.5f, turned;

        x = grid_reflect(x, low, size - 1 - low, &turned);
        *sign *= turned;
    }
    if (g->padding != GRID_ZEROS) {
        if (x <= 0) {
            x = 0;
            *sign = 0;
        } else if (x >= size - 1) {
            x = size - 1;
            *sign = 0;
        }
    }
    return x;
}

/* The element at the integer x; -1: outside. */
GRID_FN int64_t grid_element(float x, int64_t size)
{
    return x >= 0 && x < (float)size ? (int64_t)x : -1;
}

/* Weight and derivative of Keys' kernel with a = -0.75, at distance x <= 1 and 1 < x <= 2. */
GRID_FN void grid_near(float x, float *w, float *slope)
{
    const float a = -0.75f;

    *w = ((a + 2) * x - (a + 3)) * x * x + 1;
    *slope = (3 * (a + 2) * x - 2 * (a + 3)) * x;
}

GRID_FN void grid_far(float x, float *w, float *slope)
{
    const float a = -0.75f;

    *w = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a;
    *slope = (3 * a * x - 10 * a) * x + 8 * a;
}

GRID_FN void grid_cubic_taps(const struct grid_sample *g, float x, float size, float per_grid,
                             struct grid_taps *t)
{
    float first = floorf(x), part = x - first, ignored = 1;
    int k;

    t->n = 4;
    grid_far(part + 1, &t->w[0], &t->slope[0]);
    grid_near(part, &t->w[1], &t->slope[1]);
    grid_near(1 - part, &t->w[2], &t->slope[2]);
    grid_far(2 - part, &t->w[3], &t->slope[3]);
    for (k = 0; k < 4; k++) {
        t->slope[k] *= k < 2 ? per_grid : -per_grid;
        t->at[k] =
            grid_element(truncf(grid_pad(g, first - 1 + (float)k, size, &ignored)), (int64_t)size);
    }
}

/* Computes the taps along axis `axis` of a coordinate, which may be outside of [-1, 1]. */
GRID_FN void grid_taps_of(const struct grid_sample *g, uint32_t axis, float at, struct grid_taps *t)
{
    float size = (float)g->size[axis], per_grid = (g->align ? size - 1 : size) / 2, sign = 1;
    float x = g->align ? (at + 1) / 2 * (size - 1) : ((at + 1) * size - 1) / 2, first;

    t->n = 0;
    if (g->mode != GRID_CUBIC && g->padding == GRID_BORDER)
        x = grid_pad(g, x, size, &sign); /* for any distance */
    if (!(fabsf(x) < 1e9f))              /* no element, also if NaN */
        return;
    if (g->mode == GRID_CUBIC) {
        grid_cubic_taps(g, x, size, per_grid, t);
        return;
    }
    if (g->padding == GRID_REFLECTION)
        x = grid_pad(g, x, size, &sign);
    if (g->mode == GRID_NEAREST) {
        t->n = 1;
        t->at[0] = grid_element(rintf(x), g->size[axis]);
        t->w[0] = 1;
        t->slope[0] = 0;
        return;
    }
    first = floorf(x);
    t->n = 2;
    t->at[0] = grid_element(first, g->size[axis]);
    t->at[1] = grid_element(first + 1, g->size[axis]);
    t->w[0] = first + 1 - x;
    t->w[1] = x - first;
    t->slope[0] = -(per_grid * sign);
    t->slope[1] = per_grid * sign;
}

/* Computes the taps of a point along all axes, outermost first. `grid` holds its coordinates,
 * innermost first. A missing axis has one tap of weight 1. */
GRID_FN void grid_point(const struct grid_sample *g, const float *grid,
                        struct grid_taps t[GRID_AXES])
{
    uint32_t k;

    for (k = 0; k < GRID_AXES - g->axes; k++) {
        t[k].n = 1;
        t[k].at[0] = 0;
        t[k].w[0] = 1;
        t[k].slope[0] = 0;
    }
    for (; k < GRID_AXES; k++)
        grid_taps_of(g, k, grid[GRID_AXES - 1 - k], &t[k]);
}

/* Runs body_ for each element that a point reads: `element` is its index in a channel, i j l are
 * the indices of its taps. */
#define GRID_EACH(g_, t_, body_)                                                                   \
    for (int i = 0; i < (t_)[0].n; i++)                                                            \
        for (int j = 0; j < (t_)[1].n; j++)                                                        \
            for (int l = 0; l < (t_)[2].n; l++) {                                                  \
                if ((t_)[0].at[i] < 0 || (t_)[1].at[j] < 0 || (t_)[2].at[l] < 0)                   \
                    continue;                                                                      \
                size_t element = (size_t)(((t_)[0].at[i] * (g_)->size[1] + (t_)[1].at[j]) *        \
                                              (g_)->size[2] +                                      \
                                          (t_)[2].at[l]);                                          \
                body_                                                                              \
            }

#endif
