/* bit_cast.c - BitCast (opset 26): the same bytes as another type of the same width. No
 * gradient. */
#include "base/err.h"
#include "op/op_priv.h"
#include "op/shape/view.h"
#include "tensor/narrow.h"

static int infer(struct op_infer *f, struct err *err)
{
    const struct tensor *x = f->in[0];
    int64_t to;
    size_t width;
    int rc = op_attr_i(f, "to", 0, &to, err);

    if (rc < 0)
        return rc;
    if (x == NULL)
        return op_error(f, ERR_INPUT, err, "input 0 is missing");
    width = to > 0 && to < 1000 ? tensor_dtype_bytes((enum tensor_dtype)to) : 0;
    if (width == 0 || tensor_file_bits((enum tensor_dtype)to) != tensor_file_bits(x->dtype))
        return op_error(f, width == 0 ? ERR_UNSUPPORTED : ERR_INPUT, err,
                        "from %s to type %lld (%s); expected a type of the same width",
                        tensor_dtype_name(x->dtype), (long long)to,
                        width == 0 ? "not supported" : tensor_dtype_name((enum tensor_dtype)to));
    f->out[0].dtype = (enum tensor_dtype)to;
    f->out[0].shape = x->shape;
    return 0;
}

static const char *const attrs[] = { "to", NULL };

const struct op_def op_bit_cast = {
    .name = "BitCast",
    .since = 26,
    .n_in = { 1, 1 },
    .n_out = { 1, 1 },
    .attrs = attrs,
    .infer = infer,
    .layout = OP_LAYOUT_PLAIN,
    .cpu = { .fwd = view_fwd },
};
