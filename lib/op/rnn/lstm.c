/* lstm.c - the cell of LSTM. Gates in the order i, o, f, g (ONNX calls g c), with the functions f,
 * g and h of the node (usually sigmoid, tanh, tanh) and peepholes p, if any:
 *   i = f(.. + p_i c_prev)   f = f(.. + p_f c_prev), or 1 - i where they are coupled   g = g(..)
 *   c = f c_prev + i g;   o = f(.. + p_o c);   h = o h(c)
 * A clip bounds what goes into i, o, f and g, not c: so does ONNX Runtime. */
#include "op/op_priv.h"
#include "op/rnn/rnn_formula.h"
#include "op/rnn/rnn_priv.h"

CLONES static void add_peephole(float *restrict gate, const float *p, const float *c, size_t n)
{
    size_t k;

    for (k = 0; k < n; k++)
        gate[k] += p[k] * c[k];
}

CLONES static void couple(const float *i, float *restrict f, size_t n)
{
    size_t k;

    for (k = 0; k < n; k++)
        f[k] = 1.0f - i[k];
}

/* c = f c_prev + i g; h becomes a copy of c. */
CLONES static void mix(const float *i, const float *f, const float *g, const float *c_prev,
                       float *restrict c, float *restrict h, size_t n)
{
    size_t k;

    for (k = 0; k < n; k++)
        h[k] = c[k] = rnn_lstm_c(i[k], f[k], g[k], c_prev[k]);
}

CLONES static void multiply(float *restrict h, const float *o, size_t n)
{
    size_t k;

    for (k = 0; k < n; k++)
        h[k] *= o[k];
}

/* gates [4 n]: before the call the inputs of the functions, without the peepholes; then the
 * gates. */
static void row_fwd(const struct rnn_step *s, float *gates, const float *c_prev, float *c, float *h)
{
    size_t n = s->p->hidden;
    float *i = gates, *o = gates + n, *f = gates + 2 * n, *g = gates + 3 * n;
    const float *p = s->peephole;

    if (p != NULL) {
        add_peephole(i, p, c_prev, n);
        add_peephole(f, p + 2 * n, c_prev, n);
        rnn_act_run(&s->act[0], i, n);
        rnn_act_run(&s->act[0], f, n);
    } else {
        rnn_act_run(&s->act[0], i, 3 * n);
    }
    if (s->p->coupled)
        couple(i, f, n);
    rnn_act_run(&s->act[1], g, n);
    mix(i, f, g, c_prev, c, h, n);
    if (p != NULL) {
        add_peephole(o, p + n, c, n);
        rnn_act_run(&s->act[0], o, n);
    }
    rnn_act_run(&s->act[2], h, n);
    multiply(h, o, n);
}

/* The slopes of the gates, of h(c), and h(c), in this order in `row`. */
struct slopes {
    const float *i, *o, *f, *g, *h, *hc;
};

/* gates: before the call the gates; then the gradients of the inputs of the functions. dc: the
 * gradient of c; then that of c_prev. p: the peepholes, or NULL. */
INLINED void back(float *gates, const float *c_prev, const float *dh, float *restrict dc,
                  const struct slopes *s, const float *p, bool coupled, size_t n)
{
    float *restrict i = gates, *restrict o = gates + n;
    float *restrict f = gates + 2 * n, *restrict g = gates + 3 * n;
    size_t k;

    OP_EACH
    for (k = 0; k < n; k++) {
        const struct rnn_gates gate = { i[k], o[k], f[k], g[k] };
        const struct rnn_gates slope = { s->i[k], s->o[k], s->f[k], s->g[k] };
        const struct rnn_gates peephole = {
            p != NULL ? p[k] : 0, p != NULL ? p[n + k] : 0, p != NULL ? p[2 * n + k] : 0, 0
        };
        const struct rnn_gates d =
            rnn_lstm_back(&gate, &slope, p != NULL ? &peephole : NULL, coupled, s->hc[k], s->h[k],
                          c_prev[k], dh[k], &dc[k]);

        i[k] = d.i;
        o[k] = d.o;
        f[k] = d.f;
        g[k] = d.g;
    }
}

CLONES static void back_plain(float *gates, const float *c_prev, const float *dh,
                              float *restrict dc, const struct slopes *s, size_t n)
{
    back(gates, c_prev, dh, dc, s, NULL, false, n);
}

CLONES static void back_any(float *gates, const float *c_prev, const float *dh, float *restrict dc,
                            const struct slopes *s, const float *p, bool coupled, size_t n)
{
    back(gates, c_prev, dh, dc, s, p, coupled, n);
}

static void row_bwd(const struct rnn_step *s, float *gates, const float *c_prev, const float *c,
                    const float *dh, float *dc)
{
    size_t n = s->p->hidden;
    float *row = s->row, *h = row + 4 * n, *hc = row + 5 * n;
    const struct slopes slopes = { row, row + n, row + 2 * n, row + 3 * n, h, hc };

    memcpy(hc, c, n * sizeof(*hc));
    rnn_act_run(&s->act[2], hc, n);
    rnn_act_slope(&s->act[0], gates, row, 3 * n);
    rnn_act_slope(&s->act[1], gates + 3 * n, row + 3 * n, n);
    rnn_act_slope(&s->act[2], hc, h, n);
    if (s->peephole == NULL && !s->p->coupled)
        back_plain(gates, c_prev, dh, dc, &slopes, n);
    else
        back_any(gates, c_prev, dh, dc, &slopes, s->peephole, s->p->coupled, n);
}

static int fwd(const struct rnn_step *s, struct err *err)
{
    size_t n = s->p->hidden, b;
    int rc = rnn_run_h(s, 0, s->at.h_prev, s->at.gates[0], err);

    for (b = 0; b < s->p->batch && rc == 0; b++) {
        if (rnn_live(s, b)) {
            row_fwd(s, s->at.gates[0] + b * 4 * n, s->at.c_prev + b * n, s->at.c + b * n,
                    s->at.h + b * n);
        } else {
            memcpy(s->at.h + b * n, s->at.h_prev + b * n, n * sizeof(float));
            memcpy(s->at.c + b * n, s->at.c_prev + b * n, n * sizeof(float));
        }
    }
    return rc;
}

static int bwd(const struct rnn_step *s, struct err *err)
{
    size_t n = s->p->hidden, b;

    for (b = 0; b < s->p->batch; b++) {
        if (rnn_live(s, b)) {
            row_bwd(s, s->at.gates[0] + b * 4 * n, s->at.c_prev + b * n, s->at.c + b * n,
                    s->dh + b * n, s->dc + b * n);
            memset(s->dh + b * n, 0, n * sizeof(float));
        } else {
            memset(s->at.gates[0] + b * 4 * n, 0, 4 * n * sizeof(float));
        }
    }
    return rnn_run_dh(s, 0, s->at.gates[0], s->dh, err);
}

static void peepholes(const struct rnn_param *p, const float *gates, const float *c_prev,
                      const float *c, float *dp, bool add)
{
    size_t n = p->hidden, rows = p->steps * p->batch, g, k, r;

    for (g = 0; g < 3; g++)
        for (k = 0; k < n; k++) {
            const float *of = g == 1 ? c : c_prev;
            double sum = 0;

            for (r = 0; r < rows; r++)
                sum += (double)gates[(r * 4 + g) * n + k] * (double)of[r * n + k];
            dp[g * n + k] = add ? dp[g * n + k] + (float)sum : (float)sum;
        }
}

const struct rnn_cell rnn_lstm = { .gates = 4, .part = { 4 }, .has_c = true, .fwd = fwd,
                                   .bwd = bwd, .peepholes = peepholes };
