/* convert.c - Convert (ours): float32 input 0 -> bfloat16 or float16 output 0, or the reverse. The
 * planner inserts it where an op needs the other type, attribute `to` (a tensor_dtype); backward
 * converts back. float16 is for GPUs. */
#include "base/err.h"
#include "op/half.h"

static const char *const attrs[] = { "to", NULL };

static bool is_half(int64_t dtype)
{
    return dtype == TENSOR_BF16 || dtype == TENSOR_F16;
}

static int infer(struct op_infer *f, struct err *err)
{
    const struct tensor *x = f->in[0];
    int64_t to;
    int rc = op_attr_i(f, "to", TENSOR_NONE, &to, err);

    if (rc < 0)
        return rc;
    if (x == NULL ||
        !(x->dtype == TENSOR_F32 ? is_half(to) : is_half(x->dtype) && to == TENSOR_F32))
        return op_error(f, ERR_INPUT, err,
                        "input 0 is %s, to be %s; expected float32, and bfloat16 or float16",
                        x == NULL ? "missing" : tensor_dtype_name(x->dtype),
                        tensor_dtype_name((enum tensor_dtype)to));
    f->out[0].dtype = (enum tensor_dtype)to;
    f->out[0].shape = x->shape;
    return 0;
}

static int fwd(const struct op_call *c, struct err *err)
{
    (void)err;
    op_store_tensor(c->in[0], c->out[0], false);
    return 0;
}

static int bwd(const struct op_call *c, struct err *err)
{
    (void)err;
    if (c->dout[0] == NULL || c->din[0] == NULL)
        op_bwd_zero(c);
    else
        op_store_tensor(c->dout[0], c->din[0], op_adds(c, 0));
    return 0;
}

const struct op_def op_convert = {
    .domain = "trainerd",
    .name = "Convert",
    .since = 1,
    .n_in = { 1, 1 },
    .n_out = { 1, 1 },
    .attrs = attrs,
    .infer = infer,
    .diff = OP_IN(0),
    .layout = OP_LAYOUT_ANY,
    .cpu = { .fwd = fwd, .bwd = bwd },
};
