/* norm.c - sums of squares with an order of their own. */
#include <math.h>

#include "optim/optim_priv.h"

/* As many running sums as the widest vector holds doubles, twice. Element i of a block belongs to
 * sum i mod LANES whatever the width, and the sums are joined as a tree. */
enum { LANES = 16 };
_Static_assert(OPTIM_BLOCK % LANES == 0, "a block is whole rounds of sums");

CLONES static double block_sum(const float *g, size_t n)
{
    double sum[LANES] = { 0 };
    size_t whole = n - n % LANES;

    for (size_t i = 0; i < whole; i += LANES)
        for (size_t k = 0; k < LANES; k++)
            sum[k] += (double)g[i + k] * (double)g[i + k]; /* exact: 2 * 24 bits fit */
    for (size_t i = whole; i < n; i++)
        sum[i - whole] += (double)g[i] * (double)g[i];
    for (size_t half = LANES / 2; half > 0; half /= 2)
        for (size_t k = 0; k < half; k++)
            sum[k] += sum[k + half];
    return sum[0];
}

void optim_square_sums(const float *g, size_t n, double *partial)
{
    for (size_t at = 0; at < n; at += OPTIM_BLOCK)
        *partial++ = block_sum(g + at, n - at < OPTIM_BLOCK ? n - at : OPTIM_BLOCK);
}

double optim_norm(const double *partial, size_t n_blocks)
{
    double sum = 0;

    for (size_t i = 0; i < n_blocks; i++)
        sum += partial[i];
    return sqrt(sum);
}

float optim_clip(double norm, double clip)
{
    double scale;

    if (clip == 0)
        return 1;
    scale = clip / (norm + 1e-6);
    return scale > 1 ? 1 : (float)scale; /* a NaN stays one */
}
