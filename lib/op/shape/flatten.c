/* flatten.c - Flatten: [d0, ..., dn] -> [d0 ... d(axis-1), daxis ... dn]. Any type. */
#include "op/op.h"
#include "op/shape/view.h"

#include "base/err.h"

static int flatten_infer(struct op_infer *f, struct err *err)
{
    const struct tensor *x = f->in[0];
    int64_t axis, rank, rows = 1, cols = 1, k;
    char text[192];
    int rc = op_attr_i(f, "axis", 1, &axis, err);

    if (rc < 0)
        return rc;
    if (x == NULL)
        return op_error(f, ERR_INPUT, err, "input 0 is missing");
    rank = x->shape.rank;
    if (axis < -rank || axis > rank)
        return op_error(f, ERR_INPUT, err, "axis is %lld; expected %lld to %lld for shape %s",
                        (long long)axis, (long long)-rank, (long long)rank,
                        shape_print(&x->shape, text, sizeof(text)));
    if (axis < 0)
        axis += rank;
    for (k = 0; k < rank; k++) {
        int64_t *side = k < axis ? &rows : &cols;

        if (__builtin_mul_overflow(*side, x->shape.dim[k], side))
            return op_error(f, ERR_INPUT, err, "shape %s has too many elements",
                            shape_print(&x->shape, text, sizeof(text)));
    }
    f->out[0].dtype = x->dtype;
    f->out[0].shape = shape_of(2, rows, cols);
    return 0;
}

static const char *const attrs[] = { "axis", NULL };

const struct op_def op_flatten = {
    .name = "Flatten",
    .since = 1,
    .n_in = { 1, 1 },
    .n_out = { 1, 1 },
    .attrs = attrs,
    .infer = flatten_infer,
    .diff = OP_IN(0),
    .view = true,
    .half = OP_HALF_SAME,
    .half_of = OP_IN(0) | OP_OUT(0),
    .layout = OP_LAYOUT_PLAIN,
    .cpu = { .fwd = view_fwd, .bwd = view_bwd },
};
