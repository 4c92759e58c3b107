/* plain.c - the cell of RNN: h = tanh(..) or relu(..). */
#include "op/op_priv.h"
#include "op/rnn/rnn_priv.h"
#include "op/vmath.h"

/* What went into the function is not needed any more: backward knows it by h. */
CLONES static void row_fwd(const float *gate, float *restrict h, size_t n, bool relu)
{
    size_t k;

    if (relu) {
        for (k = 0; k < n; k++)
            h[k] = gate[k] > 0.0f ? gate[k] : 0.0f;
    } else {
        for (k = 0; k < n; k++)
            h[k] = vm_tanh(gate[k]);
    }
}

CLONES static void row_bwd(float *restrict gate, const float *h, const float *dh, size_t n,
                           bool relu)
{
    size_t k;

    if (relu) {
        for (k = 0; k < n; k++)
            gate[k] = h[k] > 0.0f ? dh[k] : 0.0f;
    } else {
        for (k = 0; k < n; k++)
            gate[k] = dh[k] * (1.0f - h[k] * h[k]);
    }
}

static int fwd(const struct rnn_step *s, struct err *err)
{
    size_t n = s->p->hidden, b;
    int rc = rnn_run_h(s, 0, s->h_prev, s->gates[0], err);

    for (b = 0; b < s->p->batch && rc == 0; b++) {
        if (rnn_live(s, b))
            row_fwd(s->gates[0] + b * n, s->h + b * n, n, s->p->relu);
        else
            memcpy(s->h + b * n, s->h_prev + b * n, n * sizeof(float));
    }
    return rc;
}

static int bwd(const struct rnn_step *s, struct err *err)
{
    size_t n = s->p->hidden, b;

    for (b = 0; b < s->p->batch; b++) {
        if (rnn_live(s, b)) {
            row_bwd(s->gates[0] + b * n, s->h + b * n, s->dh + b * n, n, s->p->relu);
            memset(s->dh + b * n, 0, n * sizeof(float));
        } else {
            memset(s->gates[0] + b * n, 0, n * sizeof(float));
        }
    }
    return rnn_run_dh(s, 0, s->gates[0], s->dh, err);
}

const struct rnn_cell rnn_plain = { .gates = 1, .part = { 1 }, .fwd = fwd, .bwd = bwd };
