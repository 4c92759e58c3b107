/* log_softmax.c - LogSoftmax: y_j = x_j - m - ln sum_k e^(x_k - m), m the maximum of x_k.
 *   dx_j = dy_j - e^y_j sum_k dy_k.
 *
 * Over [outer, k, inner] as in softmax.h. Sums are double, in an order that depends on the shape
 * alone. A NaN or a non-finite maximum makes the whole row NaN. */
#include <math.h>

#include "op/act/softmax.h"
#include "op/simd.h"
#include "op/op.h"
#include "op/op_priv.h"
#include "op/vmath.h"

enum { STRIP = 64, SPAN = 512 };

/* ---- inner == 1: rows ---- */

CLONES static void fwd_row(size_t n, const float *x, float *y)
{
    float m = op_row_max(x, n), e[SPAN], shift;
    double sum = 0;
    size_t at, w, i;

    for (at = 0; at < n; at += w) {
        w = n - at < SPAN ? n - at : SPAN;
        OP_EACH
        for (i = 0; i < w; i++)
            e[i] = vm_exp(x[at + i] - m);
        sum += op_row_sum(e, w);
    }
    shift = (float)log(sum);
    OP_EACH
    for (i = 0; i < n; i++)
        y[i] = (x[i] - m) - shift;
}

CLONES static void bwd_row(size_t n, const float *y, const float *dy, float *dx, bool add)
{
    float sum = (float)op_row_sum(dy, n);
    size_t i;

    if (add) {
        OP_EACH
        for (i = 0; i < n; i++)
            dx[i] += dy[i] - vm_exp(y[i]) * sum;
    } else {
        OP_EACH
        for (i = 0; i < n; i++)
            dx[i] = dy[i] - vm_exp(y[i]) * sum;
    }
}

/* ---- inner > 1: strips of w <= STRIP columns, `step` apart from one k to the next ---- */

CLONES static void fwd_strip(size_t w, size_t k, size_t step, const float *x, float *y)
{
    float m[STRIP], shift[STRIP];
    double sum[STRIP] = { 0 };
    size_t i, j;

    for (j = 0; j < w; j++)
        m[j] = -INFINITY;
    for (i = 0; i < k; i++)
        for (j = 0; j < w; j++)
            m[j] = x[i * step + j] > m[j] ? x[i * step + j] : m[j];
    for (i = 0; i < k; i++) {
        OP_EACH
        for (j = 0; j < w; j++)
            sum[j] += (double)vm_exp(x[i * step + j] - m[j]);
    }
    for (j = 0; j < w; j++)
        shift[j] = (float)log(sum[j]);
    for (i = 0; i < k; i++) {
        OP_EACH
        for (j = 0; j < w; j++)
            y[i * step + j] = (x[i * step + j] - m[j]) - shift[j];
    }
}

CLONES static void bwd_strip(size_t w, size_t k, size_t step, const float *y, const float *dy,
                             float *dx, bool add)
{
    double sum[STRIP] = { 0 };
    size_t i, j;

    for (i = 0; i < k; i++)
        for (j = 0; j < w; j++)
            sum[j] += (double)dy[i * step + j];
    for (i = 0; i < k; i++) {
        OP_EACH
        for (j = 0; j < w; j++) {
            size_t at = i * step + j;
            float g = dy[at] - vm_exp(y[at]) * (float)sum[j];

            dx[at] = add ? dx[at] + g : g;
        }
    }
}

/* ---- calls ---- */

static size_t strip_at(const struct softmax *s, size_t j)
{
    return s->inner - j < STRIP ? s->inner - j : STRIP;
}

static int log_softmax_fwd(const struct op_call *c, struct err *err)
{
    const struct softmax *s = c->param;
    const float *x = c->in[0]->data;
    float *y = c->out[0]->data;
    size_t o, j;

    (void)err;
    for (o = 0; o < s->outer; o++, x += s->k * s->inner, y += s->k * s->inner)
        if (s->inner == 1)
            fwd_row(s->k, x, y);
        else
            for (j = 0; j < s->inner; j += STRIP)
                fwd_strip(strip_at(s, j), s->k, s->inner, x + j, y + j);
    return 0;
}

static int log_softmax_bwd(const struct op_call *c, struct err *err)
{
    const struct softmax *s = c->param;
    const float *y = c->out[0]->data, *dy;
    bool add = op_adds(c, 0);
    size_t o, j, at;
    float *dx;

    (void)err;
    if (c->dout[0] == NULL || c->din[0] == NULL) {
        op_bwd_zero(c);
        return 0;
    }
    dy = c->dout[0]->data;
    dx = c->din[0]->data;
    for (o = 0; o < s->outer; o++) {
        at = o * s->k * s->inner;
        if (s->inner == 1)
            bwd_row(s->k, y + at, dy + at, dx + at, add);
        else
            for (j = 0; j < s->inner; j += STRIP)
                bwd_strip(strip_at(s, j), s->k, s->inner, y + at + j, dy + at + j, dx + at + j,
                          add);
    }
    return 0;
}

static const char *const attrs[] = { "axis", NULL };

#define FIELDS                                                                                     \
    .name = "LogSoftmax", .n_in = { 1, 1 }, .n_out = { 1, 1 }, .attrs = attrs,                     \
    .param_bytes = sizeof(struct softmax), .diff = OP_IN(0), .bwd_reads = OP_OUT(0),               \
    .in_place = true, .layout = OP_LAYOUT_PLAIN,                                                   \
    .cpu = { .fwd = log_softmax_fwd, .bwd = log_softmax_bwd }

const struct op_def op_log_softmax_13 = { FIELDS, .since = 13, .infer = softmax_infer_13 };
const struct op_def op_log_softmax_1 = { FIELDS, .since = 1, .until = 12,
                                         .infer = softmax_infer_1 };
