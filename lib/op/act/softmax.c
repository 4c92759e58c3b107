/* softmax.c - Softmax: y_j = e^(x_j - m) / sum_k e^(x_k - m), m the maximum of x_k.
 *   dx_j = y_j (dy_j - sum_k dy_k y_k).
 *
 * The tensor is [outer, k, inner] with the sums along k; softmax.h has the axes. Sums are
 * double, in an order that depends on the shape alone. A NaN or a non-finite maximum makes the
 * whole row NaN. */
#include <math.h>

#include "op/act/softmax.h"
#include "op/simd.h"
#include "op/op.h"
#include "op/op_priv.h"
#include "op/vmath.h"

enum { STRIP = 64 }; /* columns whose sums stay in cache */

/* ---- inner == 1: rows ---- */

CLONES static void fwd_rows(size_t rows, size_t n, const float *x, float *y)
{
    size_t r, i;

    for (r = 0; r < rows; r++, x += n, y += n) {
        float m = op_row_max(x, n), scale;

        OP_EACH
        for (i = 0; i < n; i++)
            y[i] = vm_exp(x[i] - m);
        scale = (float)(1.0 / op_row_sum(y, n));
        OP_EACH
        for (i = 0; i < n; i++)
            y[i] *= scale;
    }
}

CLONES static void bwd_rows(size_t rows, size_t n, const float *y, const float *dy, float *dx,
                            bool add)
{
    size_t r, i, j;

    for (r = 0; r < rows; r++, y += n, dy += n, dx += n) {
        op_simd lanes = { 0 };
        double tail = 0;
        float dot;

        for (i = 0; i + OP_SIMD_LANES <= n; i += OP_SIMD_LANES) {
            op_simd d;

            for (j = 0; j < OP_SIMD_LANES; j++)
                d[j] = (double)(y[i + j] * dy[i + j]);
            lanes += d;
        }
        for (; i < n; i++)
            tail += (double)(y[i] * dy[i]);
        dot = (float)(op_simd_total(&lanes) + tail);
        if (add) {
            OP_EACH
            for (i = 0; i < n; i++)
                dx[i] += y[i] * (dy[i] - dot);
        } else {
            OP_EACH
            for (i = 0; i < n; i++)
                dx[i] = y[i] * (dy[i] - dot);
        }
    }
}

/* ---- inner > 1: strips of w <= STRIP columns, `step` apart from one k to the next ---- */

CLONES static void fwd_strip(size_t w, size_t k, size_t step, const float *x, float *y)
{
    float m[STRIP];
    double sum[STRIP] = { 0 };
    size_t i, j;

    for (j = 0; j < w; j++)
        m[j] = -INFINITY;
    for (i = 0; i < k; i++)
        for (j = 0; j < w; j++)
            m[j] = x[i * step + j] > m[j] ? x[i * step + j] : m[j];
    for (i = 0; i < k; i++) {
        OP_EACH
        for (j = 0; j < w; j++) {
            float e = vm_exp(x[i * step + j] - m[j]);

            y[i * step + j] = e;
            sum[j] += (double)e;
        }
    }
    for (j = 0; j < w; j++)
        m[j] = (float)(1.0 / sum[j]);
    for (i = 0; i < k; i++) {
        OP_EACH
        for (j = 0; j < w; j++)
            y[i * step + j] *= m[j];
    }
}

CLONES static void bwd_strip(size_t w, size_t k, size_t step, const float *y, const float *dy,
                             float *dx, bool add)
{
    double dot[STRIP] = { 0 };
    size_t i, j;

    for (i = 0; i < k; i++)
        for (j = 0; j < w; j++)
            dot[j] += (double)(y[i * step + j] * dy[i * step + j]);
    for (i = 0; i < k; i++) {
        if (add) {
            OP_EACH
            for (j = 0; j < w; j++)
                dx[i * step + j] += y[i * step + j] * (dy[i * step + j] - (float)dot[j]);
        } else {
            OP_EACH
            for (j = 0; j < w; j++)
                dx[i * step + j] = y[i * step + j] * (dy[i * step + j] - (float)dot[j]);
        }
    }
}

/* ---- calls ---- */

static int softmax_fwd(const struct op_call *c, struct err *err)
{
    const struct softmax *s = c->param;
    const float *x = c->in[0]->data;
    float *y = c->out[0]->data;
    size_t o, j;

    (void)err;
    if (s->inner == 1) {
        fwd_rows(s->outer, s->k, x, y);
        return 0;
    }
    for (o = 0; o < s->outer; o++, x += s->k * s->inner, y += s->k * s->inner)
        for (j = 0; j < s->inner; j += STRIP)
            fwd_strip(s->inner - j < STRIP ? s->inner - j : STRIP, s->k, s->inner, x + j, y + j);
    return 0;
}

static int softmax_bwd(const struct op_call *c, struct err *err)
{
    const struct softmax *s = c->param;
    bool add = (c->din_add & OP_IN(0)) != 0;
    const float *y, *dy;
    size_t o, j;
    float *dx;

    (void)err;
    if (c->dout[0] == NULL || c->din[0] == NULL) {
        op_bwd_zero(c);
        return 0;
    }
    y = c->out[0]->data;
    dy = c->dout[0]->data;
    dx = c->din[0]->data;
    if (s->inner == 1) {
        bwd_rows(s->outer, s->k, y, dy, dx, add);
        return 0;
    }
    for (o = 0; o < s->outer; o++) {
        size_t at = o * s->k * s->inner;

        for (j = 0; j < s->inner; j += STRIP)
            bwd_strip(s->inner - j < STRIP ? s->inner - j : STRIP, s->k, s->inner, y + at + j,
                      dy + at + j, dx + at + j, add);
    }
    return 0;
}

static const char *const attrs[] = { "axis", NULL };

const struct op_def op_softmax_13 = {
    .name = "Softmax",
    .since = 13,
    .n_in = { 1, 1 },
    .n_out = { 1, 1 },
    .attrs = attrs,
    .param_bytes = sizeof(struct softmax),
    .infer = softmax_infer_13,
    .diff = OP_IN(0),
    .bwd_reads = OP_OUT(0),
    .in_place = true,
    .layout = OP_LAYOUT_PLAIN,
    .cpu = { .fwd = softmax_fwd, .bwd = softmax_bwd },
};

const struct op_def op_softmax_1 = {
    .name = "Softmax",
    .since = 1,
    .until = 12,
    .n_in = { 1, 1 },
    .n_out = { 1, 1 },
    .attrs = attrs,
    .param_bytes = sizeof(struct softmax),
    .infer = softmax_infer_1,
    .diff = OP_IN(0),
    .bwd_reads = OP_OUT(0),
    .in_place = true,
    .layout = OP_LAYOUT_PLAIN,
    .cpu = { .fwd = softmax_fwd, .bwd = softmax_bwd },
};
