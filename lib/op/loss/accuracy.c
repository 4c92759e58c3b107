/* accuracy.c - Accuracy (ours): y = sum_i w_i [argmax_j x_ij = label_i], unscaled. Of equal logits
 * the lowest index wins. A row with a NaN is never right. No gradient. */
#include "base/err.h"
#include "op/loss/loss.h"
#include "op/op.h"
#include "op/op_priv.h"

/* Does one of n values keep `best` from being the first greatest? Before it those do that are not
 * less, behind it those that are greater; a NaN does anywhere. */
CLONES static uint32_t has_rival(const float *x, size_t n, float best, bool is_before)
{
    uint32_t found = 0;
    size_t i;

    if (is_before)
        for (i = 0; i < n; i++)
            found |= !(x[i] < best);
    else
        for (i = 0; i < n; i++)
            found |= !(x[i] <= best);
    return found;
}

static int accuracy_fwd(const struct op_call *c, struct err *err)
{
    size_t n = (size_t)c->in[0]->shape.dim[0], classes = (size_t)c->in[0]->shape.dim[1], i;
    const float *x = c->in[0]->data, *weight = c->in[2]->data;
    const int64_t *label = c->in[1]->data;
    double total = 0;
    int rc = loss_check_labels(c, "Accuracy", err);

    if (rc < 0)
        return rc;
    for (i = 0; i < n; i++, x += classes) {
        size_t l = (size_t)label[i];

        if (weight[i] != 0 && !has_rival(x, l, x[l], true) &&
            !has_rival(x + l, classes - l, x[l], false))
            total += (double)weight[i];
    }
    if (c->out[0] != NULL)
        *(float *)c->out[0]->data = (float)total;
    return 0;
}

const struct op_def op_accuracy = {
    .domain = "trainerd",
    .name = "Accuracy",
    .since = 1,
    .n_in = { 3, 3 },
    .n_out = { 1, 1 },
    .infer = loss_infer,
    .layout = OP_LAYOUT_PLAIN,
    .cpu = { .fwd = accuracy_fwd },
};
