/* identity.c - Identity: y = x. dx = dy. Any type. */
#include "op/op.h"
#include "op/shape/view.h"

#include "base/err.h"

static int identity_infer(struct op_infer *f, struct err *err)
{
    if (f->in[0] == NULL)
        return op_error(f, ERR_INPUT, err, "input 0 is missing");
    f->out[0].dtype = f->in[0]->dtype;
    f->out[0].shape = f->in[0]->shape;
    return 0;
}

const struct op_def op_identity = {
    .name = "Identity",
    .since = 1,
    .n_in = { 1, 1 },
    .n_out = { 1, 1 },
    .infer = identity_infer,
    .diff = OP_IN(0),
    .view = true,
    .half = OP_HALF_SAME,
    .half_of = OP_IN(0) | OP_OUT(0),
    .layout = OP_LAYOUT_ANY,
    .cpu = { .fwd = view_fwd, .bwd = view_bwd },
};
