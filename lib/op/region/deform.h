/* deform.h - sampling positions of a deformable convolution: the same arithmetic for CPUs and
 * GPUs. */
#ifndef OP_REGION_DEFORM_H
#define OP_REGION_DEFORM_H

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if defined(__CUDACC__) || defined(CUDA_EMULATED)
#define DEFORM_FN __device__ static inline
#else
#define DEFORM_FN static inline
#endif

struct deform {
    int64_t in[2], out[2], kernel[2], stride[2], dilation[2], pad[2]; /* height, width */
    size_t samples, channels, groups; /* groups of channels that share offsets */
    size_t inputs, points, taps;      /* elements per channel of the input and of the output; of the
                                         kernel */
    bool has_mask;
};

/* The four neighbours of a position, each inside the input or with weight 0; `down` and `right` are
 * the derivatives of the weights. n: 4, or 0 if the position is outside. */
struct deform_place {
    int n;
    size_t element[4];
    float w[4], down[4], right[4];
};

/* Index in `offset` of the vertical offset of tap `tap` of point `point`; the horizontal one is
 * `points` elements later. */
DEFORM_FN size_t deform_offset(const struct deform *g, size_t sample, size_t group, size_t tap,
                               size_t point)
{
    return (((sample * g->groups + group) * g->taps + tap) * 2) * g->points + point;
}

DEFORM_FN size_t deform_mask(const struct deform *g, size_t sample, size_t group, size_t tap,
                             size_t point)
{
    return ((sample * g->groups + group) * g->taps + tap) * g->points + point;
}

DEFORM_FN void deform_place_of(const struct deform *g, size_t tap, size_t point, float down,
                               float right, struct deform_place *p)
{
    int64_t ky = (int64_t)tap / g->kernel[1], kx = (int64_t)tap % g->kernel[1];
    int64_t oy = (int64_t)point / g->out[1], ox = (int64_t)point % g->out[1];
    float y = (float)(oy * g->stride[0] - g->pad[0] + ky * g->dilation[0]) + down;
    float x = (float)(ox * g->stride[1] - g->pad[1] + kx * g->dilation[1]) + right;
    float fy, fx;
    int64_t top, left;
    int i, j;

    p->n = 0;
    if (!(y > -1 && y < (float)g->in[0] && x > -1 && x < (float)g->in[1])) /* false if NaN */
        return;
    top = (int64_t)floorf(y);
    left = (int64_t)floorf(x);
    fy = y - (float)top;
    fx = x - (float)left;
    p->n = 4;
    for (i = 0; i < 2; i++)
        for (j = 0; j < 2; j++) {
            bool inside =
                top + i >= 0 && top + i < g->in[0] && left + j >= 0 && left + j < g->in[1];
            float wy = i == 0 ? 1 - fy : fy, wx = j == 0 ? 1 - fx : fx;

            p->element[2 * i + j] = inside ? (size_t)((top + i) * g->in[1] + left + j) : 0;
            p->w[2 * i + j] = inside ? wy * wx : 0;
            p->down[2 * i + j] = !inside ? 0 : i == 0 ? -wx : wx;
            p->right[2 * i + j] = !inside ? 0 : j == 0 ? -wy : wy;
        }
}

/* Returns the sum of the neighbours in a channel with weights w. A neighbour with weight 0 is not
 * read, because it may be infinite. */
DEFORM_FN float deform_sum(const struct deform_place *p, const float *channel, const float *w)
{
    float sum = 0;

    for (int k = 0; k < p->n; k++)
        if (w[k] != 0)
            sum += w[k] * channel[p->element[k]];
    return sum;
}

#endif
