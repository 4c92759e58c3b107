/* softmax_cross_entropy.c - SoftmaxCrossEntropy (ours):
 *   y = loss_scale sum_i w_i (log sum_j e^x_ij - x_i,label)
 *   dx_ij = dy loss_scale w_i (e^x_ij / sum_k e^x_ik - [j = label])
 *
 * Per row forward keeps the maximum and the reciprocal of the sum; backward makes the exponentials
 * again, which costs less than the memory traffic of storing them. Sums are double, in an order
 * that depends on the shape alone. */
#include <math.h>
#include <string.h>

#include "base/err.h"
#include "op/lanes.h"
#include "op/loss/loss.h"
#include "op/op.h"
#include "op/op_priv.h"
#include "op/vmath.h"

enum { SPAN = 512 }; /* exponentials at a time, in the nearest cache */

struct row { /* op_call.save, one per sample */
    float max;
    float scale; /* 1 / sum_j e^(x_j - max) */
};

static int cross_entropy_plan(struct op_plan *p, struct err *err)
{
    (void)err;
    if (p->training)
        p->save_bytes = (size_t)p->in[0]->shape.dim[0] * sizeof(struct row);
    return 0;
}

CLONES static float row_max(const float *x, size_t n)
{
    return op_row_max(x, n);
}

/* sum_j e^(x_j - max) */
CLONES static double row_sum(const float *x, size_t n, float max)
{
    float e[SPAN];
    double sum = 0;
    size_t at, i, m;

    for (at = 0; at < n; at += m) {
        m = n - at < SPAN ? n - at : SPAN;
        OP_EACH
        for (i = 0; i < m; i++)
            e[i] = vm_exp(x[at + i] - max);
        sum += op_row_sum(e, m);
    }
    return sum;
}

CLONES static void row_gradient(const float *x, size_t n, struct row row, float coef, float *dx,
                                   bool add)
{
    float scale = coef * row.scale;
    size_t i;

    if (add) {
        OP_EACH
        for (i = 0; i < n; i++)
            dx[i] += vm_exp(x[i] - row.max) * scale;
    } else {
        OP_EACH
        for (i = 0; i < n; i++)
            dx[i] = vm_exp(x[i] - row.max) * scale;
    }
}

static int cross_entropy_fwd(const struct op_call *c, struct err *err)
{
    size_t n = (size_t)c->in[0]->shape.dim[0], classes = (size_t)c->in[0]->shape.dim[1], i;
    const float *x = c->in[0]->data, *weight = c->in[2]->data;
    const int64_t *label = c->in[1]->data;
    struct row *rows = c->save;
    double total = 0;
    int rc = loss_check_labels(c, "SoftmaxCrossEntropy", err);

    if (rc < 0)
        return rc;
    for (i = 0; i < n; i++, x += classes) {
        struct row row = { 0, 0 };

        if (weight[i] != 0) {
            double sum;

            row.max = row_max(x, classes);
            sum = row_sum(x, classes, row.max);
            row.scale = (float)(1.0 / sum);
            total += (double)weight[i] * (log(sum) + ((double)row.max - (double)x[label[i]]));
        }
        if (rows != NULL)
            rows[i] = row;
    }
    if (c->out[0] != NULL)
        *(float *)c->out[0]->data = (float)((double)c->run->loss_scale * total);
    return 0;
}

static int cross_entropy_bwd(const struct op_call *c, struct err *err)
{
    size_t n = (size_t)c->in[0]->shape.dim[0], classes = (size_t)c->in[0]->shape.dim[1], i;
    const float *x = c->in[0]->data, *weight = c->in[2]->data;
    const int64_t *label = c->in[1]->data;
    const struct row *rows = c->save;
    bool add = (c->din_add & OP_IN(0)) != 0;
    float outer, *dx;

    (void)err;
    if (c->dout[0] == NULL || c->din[0] == NULL) {
        op_bwd_zero(c);
        return 0;
    }
    outer = *(const float *)c->dout[0]->data * c->run->loss_scale;
    dx = c->din[0]->data;
    for (i = 0; i < n; i++, x += classes, dx += classes) {
        float coef = outer * weight[i];

        if (weight[i] != 0) {
            row_gradient(x, classes, rows[i], coef, dx, add);
            dx[label[i]] -= coef;
        } else if (!add) {
            memset(dx, 0, classes * sizeof(*dx));
        }
    }
    return 0;
}

const struct op_def op_softmax_cross_entropy = {
    .domain = "trainerd",
    .name = "SoftmaxCrossEntropy",
    .since = 1,
    .n_in = { 3, 3 },
    .n_out = { 1, 1 },
    .infer = loss_infer,
    .diff = OP_IN(0),
    .bwd_reads = OP_IN(0) | OP_IN(1) | OP_IN(2),
    .layout = OP_LAYOUT_PLAIN,
    .cpu = { cross_entropy_plan, cross_entropy_fwd, cross_entropy_bwd, NULL },
};
