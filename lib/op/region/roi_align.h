/* roi_align.h - the elements that a bin of a region reads: the same arithmetic for CPUs and
 * GPUs. */
#ifndef OP_REGION_ROI_ALIGN_H
#define OP_REGION_ROI_ALIGN_H

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if defined(__CUDACC__) || defined(CUDA_EMULATED)
#define ROI_FN __device__ static inline
#else
#define ROI_FN static inline
#endif

struct roi_align {
    bool max;               /* result: the largest weighted element of a bin instead of the mean of
                               its samples */
    bool half_pixel;        /* the centre of element 0 is at 0.5; else at 0, and a region is at
                               least one element large */
    int64_t ratio;          /* samples of a bin along each axis; 0: about one per element */
    float scale;            /* factor from region coordinates to elements */
    int64_t size[2], bins[2]; /* of the input, of the output: height, width */
    size_t rois, samples, channels;
    size_t inputs, outputs; /* elements per channel: of the input, of the output */
};

/* The samples of a bin along one axis. Samples before `first` and from `end` on are outside of the
 * input. */
struct roi_line {
    float base, length; /* of the bin, in elements */
    float n;            /* number of samples */
    int64_t first, end;
};

/* The two neighbours of a sample along one axis. */
struct roi_taps {
    int64_t at[2];
    float w[2];
};

/* roi: x1 y1 x2 y2. Axis 0 is the height. A region that is not finite, or far outside of the input,
 * has no samples. */
ROI_FN struct roi_line roi_line_of(const struct roi_align *g, const float *roi, uint32_t axis,
                                   int64_t bin)
{
    struct roi_line l = { 0, 0, 0, 0, 0 };
    float offset = g->half_pixel ? 0.5f : 0.0f;
    float low = roi[1 - axis] * g->scale - offset, high = roi[3 - axis] * g->scale - offset,
          length = high - low;

    if (!g->half_pixel && length < 1)
        length = 1;
    l.length = length / (float)g->bins[axis];
    if (!(fabsf(low) < 1e9f) || !(fabsf(length) < 1e9f))
        return l;
    l.base = low + (float)bin * l.length;
    l.n = g->ratio > 0 ? (float)g->ratio : ceilf(l.length);
    if (!(l.n > 0)) {
        l.n = 0;
        return l;
    }
    l.end = (int64_t)l.n;
    if (l.length > 0) { /* skip the samples of a large region that are surely outside */
        double step = (double)l.length / (double)l.n;
        double first = floor((-1 - (double)l.base) / step) - 2,
               end = ceil(((double)g->size[axis] - (double)l.base) / step) + 2;

        if (first > 0)
            l.first = first < (double)l.n ? (int64_t)first : l.end;
        if (end < (double)l.n)
            l.end = end > (double)l.first ? (int64_t)end : l.first;
    }
    return l;
}

/* Computes the neighbours of sample k; false: the sample is outside and counts as 0. */
ROI_FN bool roi_taps_of(const struct roi_align *g, const struct roi_line *l, uint32_t axis,
                        int64_t k, struct roi_taps *t)
{
    int64_t last = g->size[axis] - 1;
    float at = l->base + ((float)k + 0.5f) * l->length / l->n;

    if (!(at >= -1.0f && at <= (float)g->size[axis]) || last < 0)
        return false;
    if (at < 0)
        at = 0;
    t->at[0] = (int64_t)at;
    if (t->at[0] >= last) {
        t->at[0] = t->at[1] = last;
        at = (float)last;
    } else {
        t->at[1] = t->at[0] + 1;
    }
    t->w[1] = at - (float)t->at[0];
    t->w[0] = 1 - t->w[1];
    return true;
}

/* Runs body_ for each neighbour of each sample inside the input: `element` is its index in the
 * channel, `weight` its weight in the sample. */
#define ROI_EACH(g_, h_, w_, body_)                                                                    \
    for (int64_t y = (h_)->first; y < (h_)->end; y++) {                                                \
        struct roi_taps down, right;                                                                   \
        if (!roi_taps_of((g_), (h_), 0, y, &down))                                                     \
            continue;                                                                                  \
        for (int64_t x = (w_)->first; x < (w_)->end; x++) {                                            \
            if (!roi_taps_of((g_), (w_), 1, x, &right))                                                \
                continue;                                                                              \
            for (int i = 0; i < 2; i++)                                                                \
                for (int j = 0; j < 2; j++) {                                                          \
                    size_t element = (size_t)(down.at[i] * (g_)->size[1] + right.at[j]);               \
                    float weight = down.w[i] * right.w[j];                                             \
                    body_                                                                              \
                }                                                                                      \
        }                                                                                              \
    }

/* The divisor of the mean. */
ROI_FN float roi_count(const struct roi_line *h, const struct roi_line *w)
{
    float n = h->n * w->n;

    return n > 1 ? n : 1;
}

ROI_FN float roi_mean(const struct roi_align *g, const float *channel, const struct roi_line *h,
                      const struct roi_line *w)
{
    float sum = 0;

    ROI_EACH(g, h, w, { sum += weight * channel[element]; })
    return sum / roi_count(h, w);
}

/* The largest product of a neighbour and its weight, and its position: the first of equal ones. A
 * sample outside counts as 0; at < 0: that is the largest, or there is no sample. */
struct roi_pick {
    float value, weight;
    int64_t at;
};

ROI_FN struct roi_pick roi_largest(const struct roi_align *g, const float *channel,
                                   const struct roi_line *h, const struct roi_line *w)
{
    struct roi_pick best = { 0, 0, -1 };
    float seen = 0; /* number of neighbours of samples inside */

    ROI_EACH(g, h, w, {
        float v = weight * channel[element];

        if (seen == 0 || v > best.value || (v != v && best.value == best.value)) {
            best.value = v;
            best.weight = weight;
            best.at = (int64_t)element;
        }
        seen++;
    })
    if (seen < 4 * h->n * w->n && best.value < 0) {
        best.value = best.weight = 0;
        best.at = -1;
    }
    return best;
}

#endif
