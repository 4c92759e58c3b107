/* view_cuda.cu - see view.h, bit_cast.c: Flatten, Reshape, Squeeze, Unsqueeze if memory is not
 * aliased. */
#include "op/shape/shape_cuda.cuh"

static int forward(const struct op_call *c, struct err *err)
{
    if (c->out[0]->data == c->in[0]->data)
        return 0;
    return cuda_copy(c->out[0]->data, c->in[0]->data, tensor_bytes(c->in[0]), c->run->queue, err);
}

static int backward(const struct op_call *c, struct err *err)
{
    const struct tensor *dy = c->dout[0], *dx = c->din[0];

    if (dy == NULL || dx == NULL)
        return op_cuda_zero(c, err);
    if (op_cuda_adds(c, 0))
        return shape_cuda_add(c, dx, dy->data, err);
    if (dx->data == dy->data)
        return 0;
    return cuda_copy(dx->data, dy->data, tensor_bytes(dx), c->run->queue, err);
}

OP_CUDA(op_flatten, .fwd = forward, .bwd = backward);
OP_CUDA(op_reshape, .fwd = forward, .bwd = backward);
OP_CUDA(op_squeeze_13, .fwd = forward, .bwd = backward);
OP_CUDA(op_squeeze_1, .fwd = forward, .bwd = backward);
OP_CUDA(op_unsqueeze_13, .fwd = forward, .bwd = backward);
OP_CUDA(op_unsqueeze_1, .fwd = forward, .bwd = backward);
OP_CUDA(op_bit_cast, .fwd = forward);
