/* draw.h - converts random words to numbers, with the same bits on CPUs and GPUs: no multiplication
 * is fused with an addition, and the functions are polynomials.
 *
 * Each element of a tensor has one word of base/rng.h. A uniform number uses its upper 24 bits. Two
 * normal numbers (Box and Muller) use the words of two adjacent elements, 2 k and 2 k + 1: the
 * radius comes from the first, the angle from the second. */
#ifndef OP_RANDOM_DRAW_H
#define OP_RANDOM_DRAW_H

#include <math.h>
#include <stdint.h>

#include "base/float_formula.h"

#if defined(__CUDACC__) || defined(CUDA_EMULATED)
#define DRAW_MUL(a_, b_) __fmul_rn(a_, b_)
#define DRAW_ADD(a_, b_) __fadd_rn(a_, b_)
#define DRAW_MUL_DOUBLE(a_, b_) __dmul_rn(a_, b_)
#else
#define DRAW_MUL(a_, b_) ((a_) * (b_))
#define DRAW_ADD(a_, b_) ((a_) + (b_))
#define DRAW_MUL_DOUBLE(a_, b_) ((a_) * (b_))
#endif

/* [0, 1) */
FORMULA float draw_uniform(uint32_t word)
{
    return (float)(word >> 8) * 0x1p-24f; /* exact */
}

/* ln x for a normal x > 0, as vm_log(): e ln 2 + ln(1 + f) with sqrt(1/2) <= 1 + f < sqrt(2). */
FORMULA float draw_log(float x)
{
    const uint32_t sqrt_half = 0x3f3504f3u;
    uint32_t u = float_bits(x);
    int32_t k = (int32_t)((u + 0x40000000u - sqrt_half) >> 23) - 128;
    float e = (float)k;
    float f = DRAW_ADD(float_of_bits(u - ((uint32_t)k << 23)), -1.0f);
    float s = DRAW_MUL(f, f), p;

    p = -0x1.41eep-4f;
    p = DRAW_ADD(DRAW_MUL(p, f), 0x1.07d0eep-3f);
    p = DRAW_ADD(DRAW_MUL(p, f), -0x1.0ce07cp-3f);
    p = DRAW_ADD(DRAW_MUL(p, f), 0x1.226e4ap-3f);
    p = DRAW_ADD(DRAW_MUL(p, f), -0x1.54788ap-3f);
    p = DRAW_ADD(DRAW_MUL(p, f), 0x1.99a596p-3f);
    p = DRAW_ADD(DRAW_MUL(p, f), -0x1.00022p-2f);
    p = DRAW_ADD(DRAW_MUL(p, f), 0x1.55554ap-2f);
    p = DRAW_ADD(DRAW_MUL(DRAW_MUL(f, s), p), DRAW_MUL(e, 1.42860682e-6f));
    p = DRAW_ADD(p, DRAW_MUL(-0.5f, s));
    return DRAW_ADD(DRAW_ADD(f, p), DRAW_MUL(e, 0x1.62e4p-1f));
}

/* e^x for x <= 0, as vm_exp(); 0 below -104, also for -inf. */
FORMULA float draw_exp(float x)
{
    const float magic = 0x1.8p23f;
    float t, n, r, p;
    uint32_t k, half;

    if (!(x > -104.0f))
        return 0.0f;
    t = DRAW_ADD(DRAW_MUL(x, 0x1.715476p+0f), magic);
    n = DRAW_ADD(t, -magic);
    k = float_bits(t) - float_bits(magic);
    r = DRAW_ADD(DRAW_ADD(x, DRAW_MUL(n, -0x1.62e4p-1f)), DRAW_MUL(n, -1.42860682e-6f));
    p = 0x1.6a1a72p-10f;
    p = DRAW_ADD(DRAW_MUL(p, r), 0x1.123fc6p-7f);
    p = DRAW_ADD(DRAW_MUL(p, r), 0x1.555916p-5f);
    p = DRAW_ADD(DRAW_MUL(p, r), 0x1.55548ap-3f);
    p = DRAW_ADD(DRAW_MUL(p, r), 0x1.fffffcp-2f);
    p = DRAW_ADD(DRAW_ADD(DRAW_MUL(p, DRAW_MUL(r, r)), r), 1.0f);
    half = ((k + 512u) >> 1) - 256u;
    return DRAW_MUL(DRAW_MUL(p, float_of_bits((half + 127u) << 23)),
                    float_of_bits((k - half + 127u) << 23));
}

/* Cosine and sine of 2 pi t / 2^24: reduces by quarter turns, and evaluates Taylor polynomials for
 * the remainder, which is at most pi / 4. */
FORMULA void draw_angle(uint32_t t, float *cosine, float *sine)
{
    uint32_t quarter = (t + (1u << 21)) >> 22;
    float x = DRAW_MUL((float)((int32_t)t - (int32_t)(quarter << 22)), 0x1.921fb6p-22f);
    float z = DRAW_MUL(x, x), s, c;

    s = 2.75573192e-6f;
    s = DRAW_ADD(DRAW_MUL(s, z), -1.98412698e-4f);
    s = DRAW_ADD(DRAW_MUL(s, z), 8.33333333e-3f);
    s = DRAW_ADD(DRAW_MUL(s, z), -1.66666667e-1f);
    s = DRAW_ADD(DRAW_MUL(DRAW_MUL(s, z), x), x);
    c = 2.48015873e-5f;
    c = DRAW_ADD(DRAW_MUL(c, z), -1.38888889e-3f);
    c = DRAW_ADD(DRAW_MUL(c, z), 4.16666667e-2f);
    c = DRAW_ADD(DRAW_MUL(c, z), -0.5f);
    c = DRAW_ADD(DRAW_MUL(c, z), 1.0f);
    *cosine = (quarter & 1) == 0 ? c : s;
    *sine = (quarter & 1) == 0 ? s : c;
    if (quarter % 4 == 1 || quarter % 4 == 2)
        *cosine = -*cosine;
    if (quarter % 4 == 2 || quarter % 4 == 3)
        *sine = -*sine;
}

/* Two independent normal numbers of mean 0 and variance 1. */
FORMULA void draw_normal(uint32_t first, uint32_t second, float *a, float *b)
{
    float radius =
        /* argument in (0, 1] */
        sqrtf(DRAW_MUL(-2.0f, draw_log((float)((first >> 8) + 1) * 0x1p-24f)));
    float cosine, sine;

    draw_angle(second >> 8, &cosine, &sine);
    *a = DRAW_MUL(radius, cosine);
    *b = DRAW_MUL(radius, sine);
}

/* Returns the sum of e^(x - max) over x [n], and *max. */
FORMULA double draw_total(const float *x, int64_t n, float *max)
{
    double total = 0;
    int64_t i;

    *max = x[0];
    for (i = 1; i < n; i++)
        *max = x[i] > *max ? x[i] : *max;
    for (i = 0; i < n; i++)
        total += (double)draw_exp(DRAW_ADD(x[i], -*max));
    return total;
}

/* Returns the class whose share of the total contains the random word. */
FORMULA int64_t draw_class(const float *x, int64_t n, float max, double total, uint32_t word)
{
    double left = DRAW_MUL_DOUBLE(total, (double)word * 0x1p-32);
    int64_t i, last = 0;

    for (i = 0; i < n; i++) {
        double part = (double)draw_exp(DRAW_ADD(x[i], -max));

        if (part > 0)
            last = i;
        if (left < part)
            return i;
        left -= part;
    }
    return last; /* rounding: the last class with a weight */
}

#endif
