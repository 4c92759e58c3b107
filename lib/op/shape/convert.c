/* convert.c - Convert (ours): float32 in 0 -> bfloat16 out 0, or the other way round. The planner puts
 * it where an op wants the other type; backward is the way back. */
#include "base/err.h"
#include "op/half.h"

static int infer(struct op_infer *f, struct err *err)
{
    const struct tensor *x = f->in[0];

    if (x == NULL || (x->dtype != TENSOR_F32 && x->dtype != TENSOR_BF16))
        return op_error(f, ERR_INPUT, err, "input 0 is %s; expected float32 or bfloat16",
                        x == NULL ? "missing" : tensor_dtype_name(x->dtype));
    f->out[0].dtype = x->dtype == TENSOR_F32 ? TENSOR_BF16 : TENSOR_F32;
    f->out[0].shape = x->shape;
    return 0;
}

static int fwd(const struct op_call *c, struct err *err)
{
    (void)err;
    op_put_tensor(c->in[0], c->out[0], false);
    return 0;
}

static int bwd(const struct op_call *c, struct err *err)
{
    (void)err;
    if (c->dout[0] == NULL || c->din[0] == NULL)
        op_bwd_zero(c);
    else
        op_put_tensor(c->dout[0], c->din[0], op_adds(c, 0));
    return 0;
}

const struct op_def op_convert = {
    .domain = "trainerd",
    .name = "Convert",
    .since = 1,
    .n_in = { 1, 1 },
    .n_out = { 1, 1 },
    .infer = infer,
    .diff = OP_IN(0),
    .layout = OP_LAYOUT_ANY,
    .cpu = { .fwd = fwd, .bwd = bwd },
};
