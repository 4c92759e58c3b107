/* plain.c - the cell of RNN: h = f(..), usually tanh. The input of f is not kept:
 * backward knows its slope by h. */
#include "op/op_priv.h"
#include "op/rnn/rnn_priv.h"

CLONES static void row_bwd(float *restrict gate, const float *slope, const float *dh, size_t n)
{
    size_t k;

    for (k = 0; k < n; k++)
        gate[k] = dh[k] * slope[k];
}

static int fwd(const struct rnn_step *s, struct err *err)
{
    size_t n = s->p->hidden, b;
    int rc = rnn_run_h(s, 0, s->at.h_prev, s->at.gates[0], err);

    for (b = 0; b < s->p->batch && rc == 0; b++) {
        bool live = rnn_live(s, b);

        memcpy(s->at.h + b * n, (live ? s->at.gates[0] : s->at.h_prev) + b * n, n * sizeof(float));
        if (live)
            rnn_act_run(&s->act[0], s->at.h + b * n, n);
    }
    return rc;
}

static int bwd(const struct rnn_step *s, struct err *err)
{
    size_t n = s->p->hidden, b;

    for (b = 0; b < s->p->batch; b++) {
        if (rnn_live(s, b)) {
            rnn_act_slope(&s->act[0], s->at.h + b * n, s->row, n);
            row_bwd(s->at.gates[0] + b * n, s->row, s->dh + b * n, n);
            memset(s->dh + b * n, 0, n * sizeof(float));
        } else {
            memset(s->at.gates[0] + b * n, 0, n * sizeof(float));
        }
    }
    return rnn_run_dh(s, 0, s->at.gates[0], s->dh, err);
}

const struct rnn_cell rnn_plain = { .gates = 1, .part = { 1 }, .fwd = fwd, .bwd = bwd };
