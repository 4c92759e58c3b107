/* resample.c - resizes a part of an image: for each output row, computes the weighted sum of input
 * rows, then of columns. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clones.h"
#include "base/err.h"
#include "data/image.h"

/* The input pixels of one output pixel: [first, first + n), with weights from index `at` on. */
struct taps {
    uint32_t first, n, at;
};

void *image_buffer_reserve(struct image_buffer *r, size_t bytes)
{
    void *at;

    if (bytes <= r->cap)
        return r->at;
    at = realloc(r->at, bytes + bytes / 4); /* reserve, because the next image may be larger */
    if (at == NULL)
        return NULL;
    r->at = at;
    r->cap = bytes + bytes / 4;
    return at;
}

void resample_free(struct resample *r)
{
    for (uint32_t i = 0; i < 2; i++) {
        free(r->taps[i].at);
        free(r->weights[i].at);
    }
    free(r->row.at);
    *r = (struct resample){ .row = { NULL, 0 } };
}

/* Computes the taps of n_out pixels over [from, from + length) of n_in pixels; false: out of
 * memory. */
static bool make_taps(struct image_buffer *taps_room, struct image_buffer *weights_room,
                      double from, double length, uint32_t n_in, uint32_t n_out)
{
    double scale = length / n_out, reach = scale > 1 ? scale : 1;
    double low = from < 0 ? 0 : from, high = from + length > n_in ? n_in : from + length;
    uint32_t most = (uint32_t)(2 * reach) + 3, at = 0;
    struct taps *taps = image_buffer_reserve(taps_room, n_out * sizeof(*taps));
    float *weights = image_buffer_reserve(weights_room, (size_t)n_out * most * sizeof(*weights));

    if (taps == NULL || weights == NULL)
        return false;
    for (uint32_t o = 0; o < n_out; o++) {
        double center = from + (o + 0.5) * scale, sum = 0, w[2] = { 0, 0 };
        int64_t first = (int64_t)floor(center - reach + 0.5),
                last = (int64_t)floor(center + reach + 0.5);
        uint32_t n = 0;

        if (first < (int64_t)floor(low))
            first = (int64_t)floor(low);
        if (last > (int64_t)ceil(high))
            last = (int64_t)ceil(high);
        if (last <= first)
            last = first + 1;
        if (last - first > most)
            last = first + most;
        for (int64_t i = first; i < last; i++) {
            w[0] = 1 - fabs((double)i + 0.5 - center) / reach;
            weights[at + n] = w[0] > 0 ? (float)w[0] : 0;
            sum += w[0] > 0 ? w[0] : 0;
            n++;
        }
        if (sum <= 0) { /* all weights are 0 by rounding: uses the first pixel */
            weights[at] = 1;
            sum = 1;
        }
        for (uint32_t i = 0; i < n; i++)
            weights[at + i] = (float)(weights[at + i] / sum);
        taps[o] = (struct taps){ (uint32_t)first, n, at };
        at += n;
    }
    return true;
}

CLONES static void add_row(float *restrict sum, const uint8_t *restrict row, size_t n, float weight)
{
    for (size_t i = 0; i < n; i++)
        sum[i] += (float)row[i] * weight;
}

CLONES static void set_row(float *restrict sum, const uint8_t *restrict row, size_t n, float weight)
{
    for (size_t i = 0; i < n; i++)
        sum[i] = (float)row[i] * weight;
}

static void across_1(const float *row, const struct taps *taps, const float *weights, uint32_t n,
                     float *out, ptrdiff_t step)
{
    for (uint32_t o = 0; o < n; o++, out += step) {
        const float *from = row + taps[o].first, *w = weights + taps[o].at;
        float sum = 0;

        for (uint32_t i = 0; i < taps[o].n; i++)
            sum += from[i] * w[i];
        *out = sum;
    }
}

static void across_3(const float *row, const struct taps *taps, const float *weights, uint32_t n,
                     float *out, ptrdiff_t step)
{
    for (uint32_t o = 0; o < n; o++, out += step) {
        const float *from = row + 3 * (size_t)taps[o].first, *w = weights + taps[o].at;
        float a = 0, b = 0, c = 0;

        for (uint32_t i = 0; i < taps[o].n; i++, from += 3) {
            a += from[0] * w[i];
            b += from[1] * w[i];
            c += from[2] * w[i];
        }
        out[0] = a;
        out[1] = b;
        out[2] = c;
    }
}

static void across_any(const float *row, uint32_t c, const struct taps *taps, const float *weights,
                       uint32_t n, float *out, ptrdiff_t step)
{
    for (uint32_t o = 0; o < n; o++, out += step)
        for (uint32_t k = 0; k < c; k++) {
            const float *from = row + (size_t)c * taps[o].first + k, *w = weights + taps[o].at;
            float sum = 0;

            for (uint32_t i = 0; i < taps[o].n; i++)
                sum += from[i * (size_t)c] * w[i];
            out[k] = sum;
        }
}

int resample(struct resample *r, const struct image_pixels *from, const double part[4], uint32_t ow,
             uint32_t oh, bool flip, float *out, struct err *err)
{
    size_t width = (size_t)from->w * from->c;
    ptrdiff_t step = flip ? -(ptrdiff_t)from->c : (ptrdiff_t)from->c;
    float *row = image_buffer_reserve(&r->row, width * sizeof(*row));
    const struct taps *tx, *ty;
    const float *wx, *wy;

    if (row == NULL || !make_taps(&r->taps[0], &r->weights[0], part[0], part[2], from->w, ow) ||
        !make_taps(&r->taps[1], &r->weights[1], part[1], part[3], from->h, oh))
        return err_set(err, ERR_NOMEM, "an image: out of memory");
    tx = r->taps[0].at;
    ty = r->taps[1].at;
    wx = r->weights[0].at;
    wy = r->weights[1].at;
    for (uint32_t y = 0; y < oh; y++) {
        float *to = out + ((size_t)y * ow + (flip ? ow - 1 : 0)) * from->c;

        for (uint32_t i = 0; i < ty[y].n; i++)
            (i == 0 ? set_row : add_row)(row, from->at + (ty[y].first + i) * width, width,
                                         wy[ty[y].at + i]);
        if (from->c == 3)
            across_3(row, tx, wx, ow, to, step);
        else if (from->c == 1)
            across_1(row, tx, wx, ow, to, step);
        else
            across_any(row, from->c, tx, wx, ow, to, step);
    }
    return 0;
}

void resample_copy(const struct image_pixels *from, int64_t x, int64_t y, uint32_t ow, uint32_t oh,
                   bool flip, float *out)
{
    for (int64_t oy = 0; oy < oh; oy++)
        for (int64_t ox = 0; ox < ow; ox++) {
            int64_t sx = x + (flip ? ow - 1 - ox : ox), sy = y + oy;
            bool inside = sx >= 0 && sx < from->w && sy >= 0 && sy < from->h;
            const uint8_t *p =
                from->at + (inside ? ((size_t)sy * from->w + (size_t)sx) * from->c : 0);

            for (uint32_t k = 0; k < from->c; k++)
                *out++ = inside ? (float)p[k] : 0;
        }
}
