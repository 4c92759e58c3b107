/* color.c - brightness, contrast, saturation and hue as defined by torchvision, but without
 * rounding to integers between the operations. */
#include <math.h>

#include "base/clones.h"
#include "data/image.h"

static inline float clamped(float x)
{
    x = x < 0 ? 0 : x;
    return x > 255 ? 255 : x;
}

/* ITU-R 601, as for grey images. */
static inline float luminance(const float *p)
{
    return 0.299f * p[0] + 0.587f * p[1] + 0.114f * p[2];
}

CLONES static void blend(float *x, size_t n, float factor, float with)
{
    for (size_t i = 0; i < n; i++)
        x[i] = clamped(factor * x[i] + with);
}

void color_brightness(float *x, size_t n, uint32_t c, float factor)
{
    blend(x, n * c, factor, 0);
}

void color_contrast(float *x, size_t n, uint32_t c, float factor)
{
    double sum = 0;

    for (size_t i = 0; i < n; i++)
        sum += c == 3 ? luminance(x + 3 * i) : x[i];
    blend(x, n * c, factor, (1 - factor) * (float)(sum / (double)n));
}

void color_saturation(float *x, size_t n, float factor)
{
    for (size_t i = 0; i < n; i++) {
        float grey = (1 - factor) * luminance(x + 3 * i);

        for (uint32_t k = 0; k < 3; k++)
            x[3 * i + k] = clamped(factor * x[3 * i + k] + grey);
    }
}

/* Returns the hue in sixths of a turn, in [0, 6). */
static float hue_of(const float *p, float high, float range)
{
    float h;

    if (range == 0)
        return 0;
    if (high == p[0])
        h = (p[1] - p[2]) / range;
    else if (high == p[1])
        h = 2 + (p[2] - p[0]) / range;
    else
        h = 4 + (p[0] - p[1]) / range;
    return h < 0 ? h + 6 : h;
}

void color_hue(float *x, size_t n, float turns)
{
    for (size_t i = 0; i < n; i++) {
        float *p = x + 3 * i;
        float high = fmaxf(p[0], fmaxf(p[1], p[2])), low = fminf(p[0], fminf(p[1], p[2]));
        float h = hue_of(p, high, high - low) + 6 * turns;
        /* A channel is `high` up to one sixth of a turn from its own hue, `low` from two sixths on,
         * and linear in between. */
        static const float at[3] = { 0, 2, 4 };

        h = h < 0 ? h + 6 : h >= 6 ? h - 6 : h;
        for (uint32_t k = 0; k < 3; k++) {
            float away = fabsf(h - at[k]), share;

            away = away > 3 ? 6 - away : away;
            share = away <= 1 ? 1 : away >= 2 ? 0 : 2 - away;
            p[k] = low + (high - low) * share;
        }
    }
}
