/* norm.c - sums of squares in a fixed order, and clipping. */
#include <string.h>

#include "optim/optim_priv.h"

/* Twice as many running sums as the widest vector has doubles. For every vector width, element i of
 * a block is added to sum i mod LANES, and a tree adds the sums. Zero elements may be skipped,
 * because they do not change a sum. */
enum { LANES = OPTIM_SUMS };
_Static_assert(OPTIM_BLOCK % LANES == 0, "a block is whole rounds of sums");

CLONES void optim_square_add(double sums[OPTIM_SUMS], size_t at, const float *g, size_t n)
{
    double sum[LANES];
    size_t i = 0, whole;

    for (; at % LANES != 0 && i < n; i++, at++)
        sums[at % LANES] += (double)g[i] * (double)g[i]; /* exact: 2 * 24 bits fit */
    memcpy(sum, sums, sizeof(sum));
    for (whole = i + (n - i) / LANES * LANES; i < whole; i += LANES)
        for (size_t k = 0; k < LANES; k++)
            sum[k] += (double)g[i + k] * (double)g[i + k];
    for (; i < n; i++)
        sum[i - whole] += (double)g[i] * (double)g[i];
    memcpy(sums, sum, sizeof(sum));
}

CLONES double optim_square_total(double sums[OPTIM_SUMS])
{
    for (size_t half = LANES / 2; half > 0; half /= 2)
        for (size_t k = 0; k < half; k++)
            sums[k] += sums[k + half];
    return sums[0];
}

static double block_sum(const float *g, size_t n)
{
    double sums[LANES] = { 0 };

    optim_square_add(sums, 0, g, n);
    return optim_square_total(sums);
}

void optim_square_sums(const float *g, size_t n, double *partial)
{
    for (size_t at = 0; at < n; at += OPTIM_BLOCK)
        *partial++ = block_sum(g + at, n - at < OPTIM_BLOCK ? n - at : OPTIM_BLOCK);
}

float optim_clip(double norm, double clip)
{
    double scale;

    if (clip == 0)
        return 1;
    scale = clip / (norm + 1e-6);
    return scale > 1 ? 1 : (float)scale; /* a NaN stays one */
}

CLONES void optim_clamp(float *g, size_t n, float limit)
{
    for (size_t i = 0; i < n; i++) {
        float x = g[i];

        x = x > limit ? limit : x;
        g[i] = x < -limit ? -limit : x; /* a NaN stays one */
    }
}
