/* reshape.c - Reshape: input 1 is the new shape, a constant. 0 copies the dimension of the input
 * (with allowzero=1, opset 14: the dimension is 0); one -1 is computed from the number of elements.
 * Any type. */
#include "op/op.h"
#include "op/shape/view.h"

#include "base/err.h"

/* Reads the constant as a shape that may contain 0 and -1. */
static int read_target(const struct op_infer *f, struct shape *want, struct err *err)
{
    const struct tensor *t = f->in[1];
    const int64_t *dims;
    char text[192];
    uint32_t k;
    int rc = op_check_input(f, 1, TENSOR_I64, 1, err);

    if (rc < 0)
        return rc;
    if (t->data == NULL)
        return op_error(f, ERR_UNSUPPORTED, err,
                        "the shape is computed by the graph; it must be a constant of the model "
                        "(with -1 or 0 for the batch)");
    if (t->shape.dim[0] > TENSOR_MAX_RANK)
        return op_error(f, ERR_UNSUPPORTED, err,
                        "the shape has %lld dimensions; at most %d are supported",
                        (long long)t->shape.dim[0], TENSOR_MAX_RANK);
    dims = t->data;
    want->rank = (uint32_t)t->shape.dim[0];
    for (k = 0; k < want->rank; k++)
        want->dim[k] = dims[k];
    for (k = 0; k < want->rank; k++)
        if (want->dim[k] < -1)
            return op_error(f, ERR_INPUT, err,
                            "the shape %s has %lld at %u; expected -1, 0 or a size",
                            shape_print(want, text, sizeof(text)), (long long)want->dim[k], k);
    return 0;
}

/* Replaces each 0 by the input's dimension. *rest: the position of -1, if any. */
static int fill_zeros(const struct op_infer *f, struct shape *want, int *rest, struct err *err)
{
    const struct shape *x = &f->in[0]->shape;
    char text_x[192], text[192];
    int64_t allow_zero;
    bool has_zero = false;
    uint32_t k;
    int rc = op_attr_i(f, "allowzero", 0, &allow_zero, err);

    if (rc < 0)
        return rc;
    for (k = 0; k < want->rank; k++) {
        if (want->dim[k] == -1 && *rest >= 0)
            return op_error(f, ERR_INPUT, err, "the shape %s has more than one -1",
                            shape_print(want, text, sizeof(text)));
        if (want->dim[k] == -1)
            *rest = (int)k;
        if (want->dim[k] != 0)
            continue;
        has_zero = true;
        if (allow_zero != 0)
            continue;
        if (k >= x->rank)
            return op_error(f, ERR_INPUT, err,
                            "the shape %s copies dimension %u, which the input of shape %s does "
                            "not have",
                            shape_print(want, text, sizeof(text)), k,
                            shape_print(x, text_x, sizeof(text_x)));
        want->dim[k] = x->dim[k];
    }
    if (allow_zero != 0 && has_zero && *rest >= 0)
        return op_error(f, ERR_INPUT, err, "the shape %s has both 0 and -1, with allowzero=1",
                        shape_print(want, text, sizeof(text)));
    return 0;
}

/* Returns true if only the first dimension does not match: the model was exported with a fixed
 * batch. */
static bool is_other_batch(const struct shape *x, const struct shape *want)
{
    struct shape a = *x, b = *want;

    if (a.rank == 0 || b.rank == 0 || a.dim[0] == b.dim[0] || a.dim[0] == 0 || b.dim[0] <= 0)
        return false;
    a.dim[0] = b.dim[0] = 1;
    return shape_elements(&a) >= 0 && shape_elements(&a) == shape_elements(&b);
}

static int reshape_infer(struct op_infer *f, struct err *err)
{
    const struct tensor *x = f->in[0];
    char text_x[192], text[192];
    struct shape want;
    int64_t have, known;
    int rest = -1, rc;

    if (x == NULL)
        return op_error(f, ERR_INPUT, err, "input 0 is missing");
    rc = read_target(f, &want, err);
    if (rc == 0)
        rc = fill_zeros(f, &want, &rest, err);
    if (rc < 0)
        return rc;
    shape_print(&want, text, sizeof(text));
    shape_print(&x->shape, text_x, sizeof(text_x));
    have = shape_elements(&x->shape);
    if (rest >= 0)
        want.dim[rest] = 1;
    known = shape_elements(&want);
    if (rest >= 0 && known > 0 && have >= 0 && have % known == 0)
        want.dim[rest] = have / known;
    else if (rest >= 0 || known < 0 || known != have) {
        if (rest < 0 && is_other_batch(&x->shape, &want))
            return op_error(f, ERR_INPUT, err,
                            "the shape %s does not fit the input %s: a batch of %lld seems to be "
                            "baked into the model; export it with a dynamic batch axis "
                            "(torch.onnx.export: dynamic_axes or dynamic_shapes), or write the "
                            "first dimension of the shape as -1 in the code of the model",
                            text, text_x, (long long)want.dim[0]);
        return op_error(f, ERR_INPUT, err,
                        "the shape %s does not fit the input %s of %lld elements", text, text_x,
                        (long long)have);
    }
    f->out[0].dtype = x->dtype;
    f->out[0].shape = want;
    return 0;
}

static const char *const attrs[] = { "allowzero", NULL };

const struct op_def op_reshape = {
    .name = "Reshape",
    .since = 5,
    .n_in = { 2, 2 },
    .n_out = { 1, 1 },
    .attrs = attrs,
    .infer = reshape_infer,
    .diff = OP_IN(0),
    .view = true,
    .half = OP_HALF_SAME,
    .half_of = OP_IN(0) | OP_OUT(0),
    .layout = OP_LAYOUT_PLAIN,
    .cpu = { .fwd = view_fwd, .bwd = view_bwd },
};
