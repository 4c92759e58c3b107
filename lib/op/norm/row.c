#include "op/norm/row.h"

#include <math.h>

#include "op/simd.h"
#include "op/op_priv.h"

enum { SPAN = 4096 };

/* ---- spans of at most SPAN elements; the last block is padded with numbers that add 0 ---- */

CLONES static double span_sum(const float *x, size_t n)
{
    struct op_block s = { 0 }, v;
    size_t i;

    for (i = 0; i < n; i += OP_BLOCK) {
        op_block_load(&v, x + i, n - i, 0.0f);
        s.a += v.a, s.b += v.b, s.c += v.c, s.d += v.d;
    }
    return op_block_total(&s);
}

/* Sums of deviations and of their squares. */
CLONES static void span_deviation(const float *x, size_t n, float mean, double *sum, double *square)
{
    struct op_block s = { 0 }, q = { 0 }, v;
    size_t i;

    for (i = 0; i < n; i += OP_BLOCK) {
        op_block_load(&v, x + i, n - i, mean);
        v.a -= mean, v.b -= mean, v.c -= mean, v.d -= mean;
        s.a += v.a, s.b += v.b, s.c += v.c, s.d += v.d;
        q.a += v.a * v.a, q.b += v.b * v.b, q.c += v.c * v.c, q.d += v.d * v.d;
    }
    *sum += op_block_total(&s);
    *square += op_block_total(&q);
}

INLINED void span_products(const float *x, const float *dy, const float *scale, size_t n,
                           float mean, double *sum, double *product)
{
    struct op_block s = { 0 }, p = { 0 }, v, g, w;
    size_t i;

    for (i = 0; i < n; i += OP_BLOCK) {
        op_block_load(&v, x + i, n - i, mean);
        op_block_load(&g, dy + i, n - i, 0.0f);
        if (scale != NULL) {
            op_block_load(&w, scale + i, n - i, 0.0f);
            g.a *= w.a, g.b *= w.b, g.c *= w.c, g.d *= w.d;
        }
        s.a += g.a, s.b += g.b, s.c += g.c, s.d += g.d;
        p.a += g.a * (v.a - mean), p.b += g.b * (v.b - mean);
        p.c += g.c * (v.c - mean), p.d += g.d * (v.d - mean);
    }
    *sum += op_block_total(&s);
    *product += op_block_total(&p);
}

CLONES static void span_scaled(const float *x, const float *dy, const float *scale, size_t n,
                               float mean, double *sum, double *product)
{
    span_products(x, dy, scale, n, mean, sum, product);
}

CLONES static void span_bare(const float *x, const float *dy, size_t n, float mean, double *sum,
                             double *product)
{
    span_products(x, dy, NULL, n, mean, sum, product);
}

/* ---- rows ---- */

static size_t span_at(size_t n, size_t at)
{
    return n - at < SPAN ? n - at : SPAN;
}

struct row_stat row_measure(const float *x, size_t n, double epsilon, bool rms)
{
    double sum = 0, off = 0, square = 0, var;
    float mean = 0;
    size_t at;

    for (at = 0; at < n && !rms; at += SPAN)
        sum += span_sum(x + at, span_at(n, at));
    mean = (float)(sum / (double)n);
    for (at = 0; at < n; at += SPAN)
        span_deviation(x + at, span_at(n, at), mean, &off, &square);
    off = rms ? 0 : off / (double)n;
    var = square / (double)n - off * off;
    return (struct row_stat){ (float)((double)mean + off),
                              (float)(1 / sqrt((var < 0 ? 0 : var) + epsilon)) };
}

void row_products(const float *x, const float *dy, const float *scale, size_t n, float mean,
                  double *sum, double *product)
{
    size_t at;

    *sum = *product = 0;
    for (at = 0; at < n; at += SPAN) {
        if (scale != NULL)
            span_scaled(x + at, dy + at, scale + at, span_at(n, at), mean, sum, product);
        else
            span_bare(x + at, dy + at, span_at(n, at), mean, sum, product);
    }
}
