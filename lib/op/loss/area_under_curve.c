/* area_under_curve.c - AreaUnderCurve (domain trainerd): the histograms from which the area under
 * the ROC curve is computed. The sigmoid of a logit selects one of the bins, which have equal
 * width. Output 0 [2 * bins] is the weight of the elements with t > 0.5 in each bin, then the
 * weight of the others. Histograms of lanes and tasks can be added. Elements of one bin count as
 * equal, so the error of the area is at most half the probability that two elements of different
 * classes fall into one bin. A NaN counts in the lowest bin. No gradient. */
#include <string.h>

#include "base/err.h"
#include "op/loss/loss.h"
#include "op/loss/loss_formula.h"
#include "op/op.h"
#include "op/op_priv.h"

enum { BINS = 4096 };

static int auc_infer(struct op_infer *f, struct err *err)
{
    int rc = loss_infer_elements(f, err);

    if (rc == 0)
        f->out[0].shape = shape_of(1, (int64_t)2 * BINS);
    return rc;
}

static int auc_fwd(const struct op_call *c, struct err *err)
{
    const struct loss_elements *s = c->param;
    const float *x = c->in[0]->data, *t = c->in[1]->data, *weight = c->in[2]->data;
    float *bins = c->out[0]->data;
    double weights = 0;
    size_t i, e;

    (void)err;
    memset(bins, 0, 2 * BINS * sizeof(*bins));
    for (i = 0; i < s->n; i++) {
        for (e = 0; e < s->elements && weight[i] != 0; e++) {
            uint32_t bin = loss_bin(x[i * s->elements + e], BINS);

            bins[(t[i * s->elements + e] > 0.5f ? 0 : BINS) + bin] += weight[i];
        }
        weights += (double)weight[i];
    }
    if (c->n_out > 1 && c->out[1] != NULL)
        *(float *)c->out[1]->data = (float)weights;
    return 0;
}

const struct op_def op_area_under_curve = {
    .domain = "trainerd",
    .name = "AreaUnderCurve",
    .since = 1,
    .n_in = { 3, 3 },
    .n_out = { 1, 2 },
    .param_bytes = sizeof(struct loss_elements),
    .infer = auc_infer,
    .layout = OP_LAYOUT_PLAIN,
    .cpu = { .fwd = auc_fwd },
};
