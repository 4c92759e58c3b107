/* batch_norm.c - BatchNormalization: y = scale (x - mean) / sqrt(var + epsilon) + bias, per
 * channel.
 *
 * The statistics depend on the plan and the node:
 *   a plan that does not train     the running ones (inputs 3 and 4)
 *   a plan that trains             mean and population variance of the lane's batch
 *   ... opset 14+, training_mode 0 the running ones, which stay unchanged: the model was exported
 *                                  for inference and is being fine-tuned with frozen statistics
 *   ... opset 7 to 13, one output  the same: in these opsets the number of outputs states the mode.
 *                                  ONNX has five for training, which is what PyTorch writes;
 *                                  exports for inference by PyTorch, Keras and tf2onnx have one
 * The step maintains the running averages, not this op: backward stores the mean and variance of
 * the batch as the "gradients" of inputs 3 and 4, and stat_momentum is the weight of the old
 * average. ONNX averages the population variance; a node with the attribute `unbiased` averages n /
 * (n - 1) of it, where n is the number of values of the lane per channel, as PyTorch's module does.
 * The attribute cannot occur in a file: the graph sets it (norm_form.c). It affects neither the
 * normalisation nor the gradient. Training on a single value per channel is rejected in either
 * case. Nodes that share a running average (a module that is called more than once) update it in
 * sequence. The graph states this with the attribute `share`: backward scales the node's statistics
 * by it, so that the sum over the nodes is one statistic, and `momentum` is the weight of the old
 * average after the last node. */
#include <inttypes.h>
#include <math.h>

#include "base/err.h"
#include "op/norm/norm_priv.h"
#include "op/op_priv.h"

enum { MIN_IN = 5 };

static int check_channels(const struct op_infer *f, int64_t c, struct err *err)
{
    static const char *const names[MIN_IN] = { "x", "scale", "bias", "mean", "variance" };
    uint32_t i;

    for (i = 1; i < MIN_IN; i++) {
        int rc = op_check_input(f, i, TENSOR_F32, 1, err);

        if (rc < 0)
            return rc;
        if (f->in[i]->shape.dim[0] != c)
            return op_error(f, 0, err,
                            "input %u (%s) has %" PRId64
                            " elements; expected one for each of %" PRId64 " channels",
                            i, names[i], f->in[i]->shape.dim[0], c);
    }
    return 0;
}

static int infer(struct op_infer *f, bool from_batch, struct err *err)
{
    struct batch_norm_param *p = f->param;
    const struct shape *x;
    int64_t unbiased = 0, n;
    char text[192];
    uint32_t i;
    int rc = infer_same_shape(f, err);

    if (rc == 0)
        rc = op_attr_f(f, "epsilon", 1e-5f, &p->epsilon, err);
    if (rc == 0)
        rc = op_attr_f(f, "momentum", 0.9f, &p->momentum, err);
    if (rc == 0)
        rc = op_attr_i(f, "unbiased", 0, &unbiased, err);
    if (rc == 0)
        rc = op_attr_f(f, "share", 1.0f, &p->share, err);
    if (rc < 0)
        return rc;
    x = &f->in[0]->shape;
    if (x->rank < 2 || x->dim[1] < 1)
        return op_error(f, 0, err, "input 0 has shape %s; expected n, c and optionally space",
                        shape_print(x, text, sizeof(text)));
    if (!(p->epsilon >= 0) || !(p->momentum >= 0 && p->momentum <= 1))
        return op_error(f, 0, err,
                        "epsilon is %g and momentum is %g; expected epsilon >= 0 and momentum in "
                        "[0, 1]",
                        (double)p->epsilon, (double)p->momentum);
    rc = check_channels(f, x->dim[1], err);
    if (rc < 0)
        return rc;
    p->from_batch = from_batch;
    n = shape_elements(x) / x->dim[1];
    if (from_batch && n < 2)
        return op_error(f, 0, err,
                        "training on %s normalises each channel over a single value, so the "
                        "result is constant: use a larger batch per lane",
                        shape_print(x, text, sizeof(text)));
    p->correction = from_batch && unbiased != 0 ? (float)((double)n / (double)(n - 1)) : 1.0f;
    for (i = 1; i < f->n_out; i++) {
        f->out[i].dtype = TENSOR_F32;
        f->out[i].shape = shape_of(1, x->dim[1]);
    }
    return 0;
}

static int infer_14(struct op_infer *f, struct err *err)
{
    int64_t training_mode = 0;
    int rc = op_attr_i(f, "training_mode", 0, &training_mode, err);

    return rc < 0 ? rc : infer(f, f->training && training_mode != 0, err);
}

static int infer_7(struct op_infer *f, struct err *err)
{
    int64_t spatial;
    int rc = op_attr_i(f, "spatial", 1, &spatial, err);

    if (rc == 0 && spatial != 1)
        rc = op_error(f, ERR_UNSUPPORTED, err,
                      "attribute 'spatial' is %" PRId64 "; expected 1: one mean and one variance "
                      "for each channel", spatial);
    return rc < 0 ? rc : infer(f, f->training && f->n_out > 1, err);
}

/* Infers trainerd.BatchNormAdd and BatchNormRelu, which add a residual after the norm, and then
 * clamp. */
static int infer_tail(struct op_infer *f, struct err *err)
{
    struct batch_norm_param *p = f->param;
    int rc = infer_14(f, err);

    if (rc < 0 || f->n_in <= MIN_IN)
        return rc;
    rc = op_check_input(f, MIN_IN, TENSOR_F32, -1, err);
    if (rc == 0 && !shape_equal(&f->in[0]->shape, &f->in[MIN_IN]->shape))
        return op_error(f, 0, err, "the residual's shape is not that of input 0");
    p->ceiling = INFINITY;
    return rc;
}

static int infer_clamp(struct op_infer *f, struct err *err)
{
    struct batch_norm_param *p = f->param;
    int rc = infer_tail(f, err);

    p->clamp = true;
    return rc < 0 ? rc : op_attr_f(f, "ceiling", INFINITY, &p->ceiling, err);
}

static float stat_momentum(const void *param)
{
    const struct batch_norm_param *p = param;

    return p->from_batch ? p->momentum : 1.0f;
}

static const char *const attrs_14[] = { "epsilon", "momentum", "training_mode", NULL };
static const char *const attrs_9[] = { "epsilon", "momentum", NULL };
static const char *const attrs_7[] = { "epsilon", "momentum", "spatial", NULL };

static const char *const attrs_tail[] = { "epsilon", "momentum", "training_mode", "ceiling", NULL };

/* Fields common to all rows. */
#define BATCH_NORM_ANY                                                                             \
    .param_bytes = sizeof(struct batch_norm_param), .stat = OP_IN(3) | OP_IN(4),                   \
    .layout = OP_LAYOUT_CHANNELS, .half = OP_HALF_SAME, .stat_momentum = stat_momentum,            \
    .half_of = OP_IN(0) | OP_IN(MIN_IN) | OP_OUT(0), /* x, residual, y */                          \
    .cpu = { batch_norm_cpu_plan, batch_norm_cpu_fwd, batch_norm_cpu_bwd, NULL }
#define BATCH_NORM                                                                                 \
    .name = "BatchNormalization", .n_in = { MIN_IN, MIN_IN },                                      \
    .diff = OP_IN(0) | OP_IN(1) | OP_IN(2),                                                        \
    .bwd_reads = OP_IN(0) | OP_IN(1) | OP_IN(3) | OP_IN(4), BATCH_NORM_ANY
#define BATCH_NORM_TAIL                                                                            \
    .domain = "trainerd", .since = 1, .n_out = { 1, 1 }, .attrs = attrs_tail,                      \
    .channels_in = OP_IN(MIN_IN), .diff = OP_IN(0) | OP_IN(1) | OP_IN(2) | OP_IN(MIN_IN),          \
    BATCH_NORM_ANY

const struct op_def op_batch_norm_14 = {
    BATCH_NORM,
    .since = 14,
    .n_out = { 1, 3 }, /* y, running mean, running variance */
    .attrs = attrs_14,
    .infer = infer_14,
};

const struct op_def op_batch_norm_9 = {
    BATCH_NORM,
    .since = 9,
    .until = 13,
    .n_out = { 1, 5 }, /* and the mean and variance that were used */
    .attrs = attrs_9,
    .infer = infer_7,
};

const struct op_def op_batch_norm_7 = {
    BATCH_NORM,
    .since = 7,
    .until = 8,
    .n_out = { 1, 5 },
    .attrs = attrs_7,
    .infer = infer_7,
};

const struct op_def op_batch_norm_add = {
    BATCH_NORM_TAIL,
    .name = "BatchNormAdd",
    .n_in = { MIN_IN + 1, MIN_IN + 1 },
    .bwd_reads = OP_IN(0) | OP_IN(1) | OP_IN(3) | OP_IN(4),
    .infer = infer_tail,
};

const struct op_def op_batch_norm_relu = {
    BATCH_NORM_TAIL,
    .name = "BatchNormRelu",
    .n_in = { MIN_IN, MIN_IN + 1 },
    /* y shows which elements were clamped */
    .bwd_reads = OP_IN(0) | OP_IN(1) | OP_IN(3) | OP_IN(4) | OP_OUT(0),
    .infer = infer_clamp,
};
