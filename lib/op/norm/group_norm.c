/* group_norm.c - GroupNormalization: the channels of x [n, c, d1..] in groups of adjacent channels,
 *   y = (x - mean) / sqrt(variance + epsilon) scale + bias
 * with mean and population variance over the channels of a group and space, for each sample (row.h
 * has the gradient). Scale and bias: one per group up to opset 20, one per channel from 21.
 * InstanceNormalization: every channel is a group. */
#include <inttypes.h>

#include "base/err.h"
#include "op/norm/norm_priv.h"
#include "op/op_priv.h"

static int check_vector(const struct op_infer *f, uint32_t i, int64_t n, const char *what,
                        struct err *err)
{
    int rc = op_check_input(f, i, TENSOR_F32, 1, err);

    if (rc == 0 && f->in[i]->shape.dim[0] != n)
        rc = op_error(f, ERR_INPUT, err, "input %" PRIu32 " (%s) has %" PRId64
                      " elements; expected one for each of %" PRId64 " %s", i,
                      i == 1 ? "scale" : "bias", f->in[i]->shape.dim[0], n, what);
    return rc;
}

/* groups 0: one group per channel. */
static int infer(struct op_infer *f, int64_t groups, bool per_channel, uint32_t min_rank,
                 struct err *err)
{
    struct group_norm_param *p = f->param;
    const struct shape *x;
    int64_t space = 1, n_scale;
    char text[192];
    uint32_t k;
    int rc = infer_same_shape(f, err);

    if (rc == 0)
        rc = op_attr_f(f, "epsilon", 1e-5f, &p->epsilon, err);
    if (rc < 0)
        return rc;
    x = &f->in[0]->shape;
    shape_print(x, text, sizeof(text));
    if (x->rank < min_rank || x->dim[1] < 1)
        return op_error(f, ERR_INPUT, err, "input 0 has shape %s; expected n, c%s", text,
                        min_rank > 2 ? " and space" : " and optionally space");
    for (k = 2; k < x->rank; k++)
        space *= x->dim[k];
    if (space == 0)
        return op_error(f, ERR_INPUT, err, "input 0 has shape %s: nothing to normalise", text);
    groups = groups == 0 ? x->dim[1] : groups;
    if (groups < 1 || x->dim[1] % groups != 0)
        return op_error(f, ERR_INPUT, err, "num_groups is %" PRId64
                        "; expected a divisor of the %" PRId64 " channels", groups, x->dim[1]);
    if (!(p->epsilon >= 0))
        return op_error(f, ERR_INPUT, err, "epsilon is %g; expected 0 or more", (double)p->epsilon);
    n_scale = per_channel ? x->dim[1] : groups;
    rc = check_vector(f, 1, n_scale, per_channel ? "channels" : "groups", err);
    if (rc == 0)
        rc = check_vector(f, 2, n_scale, per_channel ? "channels" : "groups", err);
    p->batch = (size_t)x->dim[0];
    p->groups = (size_t)groups;
    p->parts = (size_t)(n_scale / groups);
    p->len = (size_t)(x->dim[1] / n_scale * space);
    p->channels = (size_t)x->dim[1];
    return rc;
}

static int infer_instance(struct op_infer *f, struct err *err)
{
    return infer(f, 0, true, 3, err);
}

static int infer_group(struct op_infer *f, bool per_channel, struct err *err)
{
    int64_t groups, stash;
    int rc = op_attr_i(f, "num_groups", 0, &groups, err);

    if (rc == 0)
        rc = op_attr_i(f, "stash_type", TENSOR_F32, &stash, err);
    if (rc < 0)
        return rc;
    if (groups < 1)
        return op_error(f, ERR_INPUT, err, "attribute 'num_groups' is %s",
                        groups == 0 ? "missing or 0" : "negative");
    if (stash != TENSOR_F32)
        return op_error(f, ERR_UNSUPPORTED, err, "stash_type is %" PRId64 "; only %d, float32, "
                        "works", stash, TENSOR_F32);
    return infer(f, groups, per_channel, 2, err);
}

static int infer_18(struct op_infer *f, struct err *err)
{
    return infer_group(f, false, err);
}

static int infer_21(struct op_infer *f, struct err *err)
{
    return infer_group(f, true, err);
}

static const char *const attrs[] = { "epsilon", NULL };
static const char *const attrs_18[] = { "epsilon", "num_groups", NULL };
static const char *const attrs_21[] = { "epsilon", "num_groups", "stash_type", NULL };

#define FIELDS                                                                                     \
    .n_in = { 3, 3 }, .n_out = { 1, 1 }, .param_bytes = sizeof(struct group_norm_param),           \
    .diff = OP_IN(0) | OP_IN(1) | OP_IN(2), .bwd_reads = OP_IN(0) | OP_IN(1),                      \
    .layout = OP_LAYOUT_ANY,                                                                       \
    .cpu = { group_norm_cpu_plan, group_norm_cpu_fwd, group_norm_cpu_bwd, NULL }

const struct op_def op_instance_norm = { FIELDS, .name = "InstanceNormalization", .since = 6,
                                         .attrs = attrs, .infer = infer_instance };
const struct op_def op_group_norm_18 = { FIELDS, .name = "GroupNormalization", .since = 18,
                                         .until = 20, .attrs = attrs_18, .infer = infer_18 };
const struct op_def op_group_norm_21 = { FIELDS, .name = "GroupNormalization", .since = 21,
                                         .attrs = attrs_21, .infer = infer_21 };
