/* norm.c - sums of squares in a fixed order, and clipping. */
#include <string.h>

#include "optim/optim_priv.h"

/* Twice as many running sums as the widest vector has doubles. For every vector width, element i of
 * a block is added to sum i mod LANES, and a tree adds the sums. Zero elements may be skipped,
 * because they do not change a sum. */
enum { LANES = OPTIM_SUMS };
_Static_assert(OPTIM_BLOCK % LANES == 0, "a block is whole rounds of sums");

INLINED void add_one(double sums[LANES], size_t at, float g)
{
    sums[at % LANES] += (double)g * (double)g; /* exact: 2 * 24 bits fit */
}

/* n: a multiple of LANES, the first of them for the first sum. */
INLINED void add_rounds(double sums[LANES], const float *g, size_t n)
{
    for (size_t i = 0; i < n; i += LANES)
        for (size_t k = 0; k < LANES; k++)
            add_one(sums, k, g[i + k]);
}

INLINED void add(double sums[LANES], size_t at, const float *g, size_t n)
{
    size_t i = 0;

    for (; at % LANES != 0 && i < n; i++)
        add_one(sums, at++, g[i]);
    if (n - i >= LANES) {
        size_t whole = (n - i) / LANES * LANES;
        double local[LANES];

        memcpy(local, sums, sizeof(local));
        add_rounds(local, g + i, whole);
        memcpy(sums, local, sizeof(local));
        i += whole;
    }
    for (size_t k = 0; i < n; i++)
        add_one(sums, k++, g[i]);
}

INLINED void fold(double *sums, size_t half)
{
    for (size_t k = 0; k < half; k++)
        sums[k] += sums[k + half];
}

/* Written out, so that each half is constant, and its loop a few vector operations. */
INLINED double total(double sums[LANES])
{
    _Static_assert(LANES == 16, "the halves of total()");
    fold(sums, 8);
    fold(sums, 4);
    fold(sums, 2);
    fold(sums, 1);
    return sums[0];
}

CLONES void optim_square_add(double sums[OPTIM_SUMS], size_t at, const float *g, size_t n)
{
    add(sums, at, g, n);
}

CLONES double optim_square_total(double sums[OPTIM_SUMS])
{
    return total(sums);
}

CLONES double optim_square_rows(const uint64_t *rows, size_t n, size_t width, size_t period,
                                const float *g)
{
    double sums[LANES] = { 0 };

    if (width % LANES == 0) { /* every row begins with the first sum */
        add_rounds(sums, g, n * width);
        return total(sums);
    }
    for (size_t i = 0; i < n; i++)
        add(sums, rows[i] % period * width, g + i * width, width);
    return total(sums);
}

CLONES static double square_part(const float *g, size_t n)
{
    double sums[LANES] = { 0 };

    add(sums, 0, g, n);
    return total(sums);
}

void optim_square_sums(const float *g, size_t n, double *partial)
{
    for (size_t at = 0; at < n; at += OPTIM_BLOCK)
        *partial++ = square_part(g + at, n - at < OPTIM_BLOCK ? n - at : OPTIM_BLOCK);
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
