/* lstm.c - the cell of LSTM. Gates in the order i, o, f, g (ONNX calls g c):
 *   i, o, f = sigmoid(..), g = tanh(..);   c = f c_prev + i g;   h = o tanh(c) */
#include "op/op_priv.h"
#include "op/rnn/rnn_priv.h"
#include "op/vmath.h"

/* gates [4 n]: in, what goes into the functions; out, the gates. */
CLONES static void row_fwd(float *gates, const float *c_prev, float *restrict c,
                           float *restrict h, size_t n)
{
    float *restrict i = gates, *restrict o = gates + n;
    float *restrict f = gates + 2 * n, *restrict g = gates + 3 * n;
    size_t k;

    OP_EACH
    for (k = 0; k < n; k++) {
        i[k] = vm_sigmoid(i[k]);
        o[k] = vm_sigmoid(o[k]);
    }
    OP_EACH
    for (k = 0; k < n; k++) {
        f[k] = vm_sigmoid(f[k]);
        g[k] = vm_tanh(g[k]);
    }
    OP_EACH
    for (k = 0; k < n; k++) {
        c[k] = f[k] * c_prev[k] + i[k] * g[k];
        h[k] = o[k] * vm_tanh(c[k]);
    }
}

/* gates: in, the gates; out, the gradient of what went into the functions. dc: of c, then of
 * c_prev. */
CLONES static void row_bwd(float *gates, const float *c_prev, const float *c, const float *dh,
                           float *restrict dc, size_t n)
{
    float *restrict i = gates, *restrict o = gates + n;
    float *restrict f = gates + 2 * n, *restrict g = gates + 3 * n;
    size_t k;

    OP_EACH
    for (k = 0; k < n; k++) {
        float th = vm_tanh(c[k]), gi = i[k], go = o[k], gf = f[k], gg = g[k];
        float d = dc[k] + dh[k] * go * (1.0f - th * th);

        o[k] = dh[k] * th * (go * (1.0f - go));
        i[k] = d * gg * (gi * (1.0f - gi));
        f[k] = d * c_prev[k] * (gf * (1.0f - gf));
        g[k] = d * gi * (1.0f - gg * gg);
        dc[k] = d * gf;
    }
}

static int fwd(const struct rnn_step *s, struct err *err)
{
    size_t n = s->p->hidden, b;
    int rc = rnn_run_h(s, 0, s->h_prev, s->gates[0], err);

    for (b = 0; b < s->p->batch && rc == 0; b++) {
        if (rnn_live(s, b)) {
            row_fwd(s->gates[0] + b * 4 * n, s->c_prev + b * n, s->c + b * n, s->h + b * n, n);
        } else {
            memcpy(s->h + b * n, s->h_prev + b * n, n * sizeof(float));
            memcpy(s->c + b * n, s->c_prev + b * n, n * sizeof(float));
        }
    }
    return rc;
}

static int bwd(const struct rnn_step *s, struct err *err)
{
    size_t n = s->p->hidden, b;

    for (b = 0; b < s->p->batch; b++) {
        if (rnn_live(s, b)) {
            row_bwd(s->gates[0] + b * 4 * n, s->c_prev + b * n, s->c + b * n, s->dh + b * n,
                    s->dc + b * n, n);
            memset(s->dh + b * n, 0, n * sizeof(float));
        } else {
            memset(s->gates[0] + b * 4 * n, 0, 4 * n * sizeof(float));
        }
    }
    return rnn_run_dh(s, 0, s->gates[0], s->dh, err);
}

const struct rnn_cell rnn_lstm = { .gates = 4, .part = { 4 }, .has_c = true, .fwd = fwd,
                                   .bwd = bwd };
