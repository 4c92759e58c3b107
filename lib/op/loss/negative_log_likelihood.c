/* negative_log_likelihood.c - NegativeLogLikelihood (domain trainerd), over log-probabilities x:
 *   y = -loss_scale sum_i w_i v_l x_il,   dx_il = -dy loss_scale w_i v_l, else 0
 * where l is the label and v are the class weights (default 1): PyTorch's NLLLoss before its
 * mean. */
#include <string.h>

#include "base/err.h"
#include "op/loss/loss.h"
#include "op/op.h"
#include "op/op_priv.h"

static const char *const attrs[] = { "ignore_index", "class_weights", "class_axis", NULL };

/* Returns the index of the label's element. */
static size_t place(const struct loss_classes *s, size_t i, size_t p, int64_t label)
{
    return s->is_last ? (i * s->positions + p) * s->classes + (size_t)label
                      : (i * s->classes + (size_t)label) * s->positions + p;
}

static int nll_refuse(const struct op_call *c, size_t at, int64_t value, struct err *err)
{
    return loss_refuse(c, "NegativeLogLikelihood", at, value, err);
}

static int nll_fwd(const struct op_call *c, struct err *err)
{
    const struct loss_classes *s = c->param;
    const float *x = c->in[0]->data, *weight = c->in[2]->data;
    const int64_t *label = c->in[1]->data;
    double total = 0, weights = 0;
    size_t i, p;
    int rc = loss_check_labels(s, c, "NegativeLogLikelihood", err);

    if (rc < 0)
        return rc;
    for (i = 0; i < s->n; i++)
        for (p = 0; p < s->positions; p++, label++) {
            double share = loss_share(s, *label, weight[i]);

            if (share != 0)
                total -= share * (double)x[place(s, i, p, *label)];
            weights += share;
        }
    loss_store(c, total, weights, (double)c->run->loss_scale);
    return 0;
}

static int nll_bwd(const struct op_call *c, struct err *err)
{
    const struct loss_classes *s = c->param;
    const float *weight = c->in[2]->data;
    const int64_t *label = c->in[1]->data;
    double outer;
    float *dx;
    size_t i, p;

    (void)err;
    op_bwd_zero(c);
    if (c->dout[0] == NULL || c->din[0] == NULL)
        return 0;
    outer = (double)*(const float *)c->dout[0]->data * (double)c->run->loss_scale;
    dx = c->din[0]->data;
    for (i = 0; i < s->n; i++)
        for (p = 0; p < s->positions; p++, label++) {
            double share = loss_share(s, *label, weight[i]);

            if (share != 0)
                dx[place(s, i, p, *label)] -= (float)(outer * share);
        }
    return 0;
}

const struct op_def op_negative_log_likelihood = {
    .domain = "trainerd",
    .name = "NegativeLogLikelihood",
    .since = 1,
    .n_in = { 3, 3 },
    .n_out = { 1, 2 },
    .attrs = attrs,
    .param_bytes = sizeof(struct loss_classes),
    .infer = loss_infer_classes,
    .diff = OP_IN(0),
    .bwd_reads = OP_IN(1) | OP_IN(2),
    .layout = OP_LAYOUT_PLAIN,
    .refuse = nll_refuse,
    .cpu = { .fwd = nll_fwd, .bwd = nll_bwd },
};
