/* layer_norm.c - LayerNormalization: the axes from `axis` on are one row,
 *   y = (x - mean) / sqrt(variance + epsilon) scale + bias
 * with mean and population variance of the row (row.h has the gradient). Outputs 1 and 2, mean and
 * 1 / sqrt(variance + epsilon), have the shape [d0, .., 1, ..]; a gradient may arrive there too.
 *
 * RMSNormalization: y = x / sqrt(mean of x^2 + epsilon) scale. ONNX has it from opset 23 on; for
 * older models, which spell it out, graph passes insert our own op of that name.
 *
 * LayerNormAdd, RMSNormAdd (ours): the same for the sum of x and a residual of its shape, input 3.
 * The sum is output 1, whose other readers may contribute a gradient. */
#include <inttypes.h>

#include "base/err.h"
#include "op/norm/norm_priv.h"
#include "op/op_priv.h"

/* Checks the shape of a scale or bias: [1, .., 1, row] or [row]. */
static int check_row(const struct op_infer *f, uint32_t i, int64_t axis, struct err *err)
{
    const struct shape *x = &f->in[0]->shape, *s;
    struct shape row = { .rank = x->rank - (uint32_t)axis };
    char text[192], want[192];
    uint32_t k, ones = 0;
    int rc = op_check_input(f, i, TENSOR_F32, -1, err);

    if (rc < 0)
        return rc;
    s = &f->in[i]->shape;
    for (k = 0; k < row.rank; k++)
        row.dim[k] = x->dim[axis + k];
    while (ones < s->rank && s->rank - ones > row.rank && s->dim[ones] == 1)
        ones++;
    for (k = 0; k < row.rank && s->rank - ones == row.rank; k++)
        if (s->dim[ones + k] != row.dim[k])
            break;
    if (k == row.rank && s->rank - ones == row.rank)
        return 0;
    return op_error(f, ERR_UNSUPPORTED, err, "input %" PRIu32 " has shape %s; expected that of a "
                    "row, %s", i, shape_print(s, text, sizeof(text)),
                    shape_print(&row, want, sizeof(want)));
}

static int set_rows(const struct op_infer *f, int64_t axis, struct layer_norm_param *p,
                    struct err *err)
{
    const struct shape *x = &f->in[0]->shape;
    char text[192];
    uint32_t k;

    p->rows = p->n = 1;
    for (k = 0; k < x->rank; k++)
        *(k < axis ? &p->rows : &p->n) *= (size_t)x->dim[k];
    if (p->n == 0)
        return op_error(f, ERR_INPUT, err, "input 0 has shape %s: the rows from axis %" PRId64
                        " on have no elements", shape_print(x, text, sizeof(text)), axis);
    return 0;
}

static int infer(struct op_infer *f, bool rms, struct err *err)
{
    struct layer_norm_param *p = f->param;
    int64_t axis, stash;
    uint32_t i, k;
    int rc = infer_same_shape(f, err);

    if (rc == 0)
        rc = op_attr_i(f, "axis", -1, &axis, err);
    if (rc == 0)
        rc = op_attr_i(f, "stash_type", TENSOR_F32, &stash, err);
    if (rc == 0)
        rc = op_attr_f(f, "epsilon", 1e-5f, &p->epsilon, err);
    if (rc == 0)
        rc = op_axis(f, &axis, f->in[0]->shape.rank, err);
    if (rc < 0)
        return rc;
    if (stash != TENSOR_F32)
        return op_error(f, ERR_UNSUPPORTED, err, "stash_type is %" PRId64 "; only %d, float32, "
                        "works", stash, TENSOR_F32);
    if (!(p->epsilon >= 0))
        return op_error(f, ERR_INPUT, err, "epsilon is %g; expected 0 or more", (double)p->epsilon);
    p->rms = rms;
    rc = set_rows(f, axis, p, err);
    if (rc == 0)
        rc = check_row(f, 1, axis, err);
    if (rc == 0 && f->n_in > 2 && f->in[2] != NULL)
        rc = check_row(f, 2, axis, err);
    for (i = 1; i < f->n_out && rc == 0 && !p->adds; i++) {
        f->out[i].dtype = TENSOR_F32;
        f->out[i].shape = f->in[0]->shape;
        for (k = (uint32_t)axis; k < f->out[i].shape.rank; k++)
            f->out[i].shape.dim[k] = 1;
    }
    return rc;
}

/* Infers an op that adds a residual to x. */
static int infer_add(struct op_infer *f, bool rms, struct err *err)
{
    struct layer_norm_param *p = f->param;
    char x[192], r[192];
    int rc = op_check_input(f, 3, TENSOR_F32, -1, err);

    if (rc == 0)
        rc = op_check_input(f, 0, TENSOR_F32, -1, err);
    if (rc < 0)
        return rc;
    if (!shape_equal(&f->in[0]->shape, &f->in[3]->shape))
        return op_error(f, ERR_INPUT, err, "input 3 has shape %s; expected %s, as input 0",
                        shape_print(&f->in[3]->shape, r, sizeof(r)),
                        shape_print(&f->in[0]->shape, x, sizeof(x)));
    p->adds = true;
    f->out[1].dtype = TENSOR_F32;
    f->out[1].shape = f->in[0]->shape;
    return infer(f, rms, err);
}

static int infer_layer_add(struct op_infer *f, struct err *err)
{
    return infer_add(f, false, err);
}

static int infer_rms_add(struct op_infer *f, struct err *err)
{
    return infer_add(f, true, err);
}

static int infer_layer(struct op_infer *f, struct err *err)
{
    return infer(f, false, err);
}

static int infer_rms(struct op_infer *f, struct err *err)
{
    return infer(f, true, err);
}

static const char *const attrs[] = { "axis", "epsilon", "stash_type", NULL };

#define FIELDS                                                                                     \
    .attrs = attrs, .param_bytes = sizeof(struct layer_norm_param), .layout = OP_LAYOUT_PLAIN,     \
    .half_round = OP_OUT(0), .cpu = { layer_norm_cpu_plan, layer_norm_cpu_fwd, layer_norm_cpu_bwd, NULL }
#define FIELDS_ALONE                                                                               \
    FIELDS, .diff = OP_IN(0) | OP_IN(1) | OP_IN(2), .bwd_reads = OP_IN(0) | OP_IN(1),              \
            .half = OP_HALF_SAME, .half_of = OP_IN(0) | OP_OUT(0)
#define FIELDS_ADD                                                                                 \
    FIELDS, .domain = "trainerd", .since = 1, .n_in = { 4, 4 }, .n_out = { 2, 2 },                 \
            .diff = OP_IN(0) | OP_IN(1) | OP_IN(2) | OP_IN(3), .bwd_reads = OP_IN(1) | OP_OUT(1),  \
            .half = OP_HALF_MIX, .half_of = OP_IN(0) | OP_IN(3) | OP_OUT(0) | OP_OUT(1)

const struct op_def op_layer_norm = { FIELDS_ALONE, .name = "LayerNormalization", .since = 17,
                                      .n_in = { 2, 3 }, .n_out = { 1, 3 }, .infer = infer_layer };
const struct op_def op_rms_norm_23 = { FIELDS_ALONE, .name = "RMSNormalization", .since = 23,
                                       .n_in = { 2, 2 }, .n_out = { 1, 1 }, .infer = infer_rms };
const struct op_def op_rms_norm = { FIELDS_ALONE, .domain = "trainerd", .name = "RMSNormalization",
                                    .since = 1, .n_in = { 2, 2 }, .n_out = { 1, 1 },
                                    .infer = infer_rms };
const struct op_def op_layer_norm_add = { FIELDS_ADD, .name = "LayerNormAdd",
                                          .infer = infer_layer_add };
const struct op_def op_rms_norm_add = { FIELDS_ADD, .name = "RMSNormAdd", .infer = infer_rms_add };
