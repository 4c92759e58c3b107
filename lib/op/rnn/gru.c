/* gru.c - the cell of GRU. Gates in the order z, r, n (ONNX calls n h), with the functions f and g
 * of the node (usually sigmoid and tanh):
 *   z, r = f(..);   h = (1 - z) n + z h_prev
 *   n = g(x W^T + (r h_prev) R^T + biases)                    reset first, or
 *   n = g(x W^T + bias + r e), e = h_prev R^T + its bias      reset_after
 * z and r are part 0, n is part 1. e [B, H] keeps r h_prev where the reset is first. */
#include "op/op_priv.h"
#include "op/rnn/rnn_formula.h"
#include "op/rnn/rnn_priv.h"

/* e = r h_prev */
CLONES static void reset(const float *r, const float *h_prev, float *restrict e, size_t n)
{
    size_t k;

    for (k = 0; k < n; k++)
        e[k] = r[k] * h_prev[k];
}

/* g += r e */
CLONES static void add_reset(float *restrict g, const float *r, const float *e, size_t n)
{
    size_t k;

    for (k = 0; k < n; k++)
        g[k] += r[k] * e[k];
}

CLONES static void mix(const float *z, const float *g, const float *h_prev, float *restrict h,
                       size_t n)
{
    size_t k;

    for (k = 0; k < n; k++)
        h[k] = rnn_gru_h(z[k], g[k], h_prev[k]);
}

static int fwd(const struct rnn_step *s, struct err *err)
{
    size_t n = s->p->hidden, b;
    int rc = rnn_run_h(s, 0, s->at.h_prev, s->at.gates[0], err);

    for (b = 0; b < s->p->batch && rc == 0; b++) {
        float *zr = s->at.gates[0] + b * 2 * n;

        rnn_act_run(&s->act[0], zr, 2 * n);
        if (!s->p->reset_after)
            reset(zr + n, s->at.h_prev + b * n, s->at.e + b * n, n);
    }
    if (rc == 0)
        rc = s->p->reset_after ? rnn_run_h(s, 1, s->at.h_prev, s->at.e, err)
                               : rnn_run_h(s, 1, s->at.e, s->at.gates[1], err);
    for (b = 0; b < s->p->batch && rc == 0; b++) {
        float *zr = s->at.gates[0] + b * 2 * n, *g = s->at.gates[1] + b * n;

        if (!rnn_live(s, b)) {
            memcpy(s->at.h + b * n, s->at.h_prev + b * n, n * sizeof(float));
            continue;
        }
        if (s->p->reset_after)
            add_reset(g, zr + n, s->at.e + b * n, n);
        rnn_act_run(&s->act[1], g, n);
        mix(zr, g, s->at.h_prev + b * n, s->at.h + b * n, n);
    }
    return rc;
}

/* First half: g and z become the gradients of the inputs of their functions; dh becomes the part of
 * the gradient of h_prev that does not pass through R. */
CLONES static void row_bwd(float *restrict z, float *restrict g, const float *z_slope,
                           const float *g_slope, const float *h_prev, float *restrict dh, size_t n)
{
    size_t k;

    for (k = 0; k < n; k++) {
        float v = z[k], d = dh[k];

        z[k] = rnn_gru_dz(d, h_prev[k], g[k], z_slope[k]);
        g[k] = rnn_gru_dn(d, v, g_slope[k]);
        dh[k] = d * v;
    }
}

/* Reset after: r becomes the gradient of the input of its function, e the gradient of e. */
CLONES static void row_after(float *restrict r, const float *r_slope, const float *g,
                             float *restrict e, size_t n)
{
    size_t k;

    for (k = 0; k < n; k++) {
        float v = r[k];

        r[k] = g[k] * e[k] * r_slope[k];
        e[k] = g[k] * v;
    }
}

/* Reset first: de is the gradient of r h_prev. */
CLONES static void row_first(float *restrict r, const float *r_slope, const float *de,
                             const float *h_prev, float *restrict dh, size_t n)
{
    size_t k;

    for (k = 0; k < n; k++) {
        float v = r[k];

        r[k] = de[k] * h_prev[k] * r_slope[k];
        dh[k] += de[k] * v;
    }
}

static int bwd(const struct rnn_step *s, struct err *err)
{
    size_t n = s->p->hidden, b;
    int rc = 0;

    for (b = 0; b < s->p->batch; b++) {
        float *zr = s->at.gates[0] + b * 2 * n, *g = s->at.gates[1] + b * n, *e = s->at.e + b * n;

        if (rnn_live(s, b)) {
            rnn_act_slope(&s->act[0], zr, s->row, 2 * n);
            rnn_act_slope(&s->act[1], g, s->row + 2 * n, n);
            row_bwd(zr, g, s->row, s->row + 2 * n, s->at.h_prev + b * n, s->dh + b * n, n);
            if (s->p->reset_after)
                row_after(zr + n, s->row + n, g, e, n);
            continue;
        }
        memset(zr, 0, 2 * n * sizeof(float));
        memset(g, 0, n * sizeof(float));
        if (s->p->reset_after)
            memset(e, 0, n * sizeof(float));
    }
    if (s->p->reset_after)
        rc = rnn_run_dh(s, 1, s->at.e, s->dh, err);
    else
        rc = rnn_run_dh(s, 1, s->at.gates[1], s->spare, err);
    for (b = 0; b < s->p->batch && rc == 0 && !s->p->reset_after; b++) {
        float *r = s->at.gates[0] + b * 2 * n + n;

        if (!rnn_live(s, b))
            continue;
        rnn_act_slope(&s->act[0], r, s->row, n);
        row_first(r, s->row, s->spare + b * n, s->at.h_prev + b * n, s->dh + b * n, n);
    }
    return rc < 0 ? rc : rnn_run_dh(s, 0, s->at.gates[0], s->dh, err);
}

const struct rnn_cell rnn_gru = {
    .gates = 3, .part = { 2, 1 }, .has_e = true, .fwd = fwd, .bwd = bwd
};
