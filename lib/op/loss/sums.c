/* sums.c - combinations of losses (domain trainerd).
 *
 *   WeightedSum  y = sum_k f_k sum_e x_ke over any number of float32 inputs of any shape, with the
 *                attribute factors f (default 1).   dx_ke = dy f_k
 *   MeanLoss     (x, weights [n]): y = x loss_scale sum_i w_i.   dx = dy loss_scale sum_i w_i
 *                for a scalar that the graph computes as a mean over its n samples; its weight is
 *                that of the samples. */
#include <string.h>

#include "base/err.h"
#include "op/loss/params.h"
#include "op/op.h"
#include "op/op_priv.h"

static const char *const sum_attrs[] = { "factors", NULL };

static int sum_infer(struct op_infer *f, struct err *err)
{
    struct weighted_sum *s = f->param;
    uint32_t i;
    int rc = 0;

    for (i = 0; i < f->n_attrs; i++)
        if (strcmp(f->attrs[i].name, "factors") == 0)
            s->factors = f->attrs[i].floats;
    for (i = 0; i < f->n_in && rc == 0; i++)
        rc = op_check_input(f, i, TENSOR_F32, -1, err);
    f->out[0] = (struct tensor){ .dtype = TENSOR_F32 };
    return rc;
}

static int sum_fwd(const struct op_call *c, struct err *err)
{
    const struct weighted_sum *s = c->param;
    double total = 0;
    uint32_t k;

    (void)err;
    for (k = 0; k < c->n_in; k++) {
        float sum = 0;

        if (tensor_elements(c->in[k]) == 0)
            continue;
        op_sum_cols(c->in[k]->data, 1, (size_t)tensor_elements(c->in[k]), 1.0f, &sum, false);
        total += (s->factors != NULL ? (double)s->factors[k] : 1.0) * (double)sum;
    }
    *(float *)c->out[0]->data = (float)total;
    return 0;
}

static int sum_bwd(const struct op_call *c, struct err *err)
{
    const struct weighted_sum *s = c->param;
    uint32_t k;

    (void)err;
    if (c->dout[0] == NULL) {
        op_bwd_zero(c);
        return 0;
    }
    for (k = 0; k < c->n_in; k++) {
        float d = *(const float *)c->dout[0]->data * (s->factors != NULL ? s->factors[k] : 1.0f);
        size_t n, i;
        float *dx;

        if (c->din[k] == NULL)
            continue;
        dx = c->din[k]->data;
        n = (size_t)tensor_elements(c->din[k]);
        for (i = 0; i < n; i++)
            dx[i] = op_adds(c, k) ? dx[i] + d : d;
    }
    return 0;
}

const struct op_def op_weighted_sum = {
    .domain = "trainerd",
    .name = "WeightedSum",
    .since = 1,
    .n_in = { 1, OP_MANY },
    .n_out = { 1, 1 },
    .attrs = sum_attrs,
    .param_bytes = sizeof(struct weighted_sum),
    .infer = sum_infer,
    .diff = 0xFFFF, /* all inputs */
    .layout = OP_LAYOUT_PLAIN,
    .cpu = { .fwd = sum_fwd, .bwd = sum_bwd },
};

static int mean_infer(struct op_infer *f, struct err *err)
{
    char shape[192];
    int rc = op_check_input(f, 0, TENSOR_F32, -1, err);

    if (rc == 0)
        rc = op_check_input(f, 1, TENSOR_F32, 1, err);
    if (rc == 0 && tensor_elements(f->in[0]) != 1)
        rc = op_error(f, ERR_INPUT, err,
                      "the loss has shape %s; expected one number (a mean over the "
                      "samples)",
                      shape_print(&f->in[0]->shape, shape, sizeof(shape)));
    f->out[0] = (struct tensor){ .dtype = TENSOR_F32 };
    return rc;
}

static float factor(const struct op_call *c)
{
    const float *weight = c->in[1]->data;
    double sum = 0;
    int64_t i;

    for (i = 0; i < c->in[1]->shape.dim[0]; i++)
        sum += (double)weight[i];
    return (float)(sum * (double)c->run->loss_scale);
}

static int mean_fwd(const struct op_call *c, struct err *err)
{
    (void)err;
    *(float *)c->out[0]->data = *(const float *)c->in[0]->data * factor(c);
    return 0;
}

static int mean_bwd(const struct op_call *c, struct err *err)
{
    float d;

    (void)err;
    if (c->dout[0] == NULL || c->din[0] == NULL) {
        op_bwd_zero(c);
        return 0;
    }
    d = *(const float *)c->dout[0]->data * factor(c);
    op_store(c->din[0]->data, &d, 1, 1.0f, op_adds(c, 0));
    return 0;
}

const struct op_def op_mean_loss = {
    .domain = "trainerd",
    .name = "MeanLoss",
    .since = 1,
    .n_in = { 2, 2 },
    .n_out = { 1, 1 },
    .infer = mean_infer,
    .diff = OP_IN(0),
    .bwd_reads = OP_IN(1),
    .layout = OP_LAYOUT_PLAIN,
    .cpu = { .fwd = mean_fwd, .bwd = mean_bwd },
};
