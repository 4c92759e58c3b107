/* gelu_cuda.cu - see gelu.c. */
#include "op/act/act_cuda.cuh"

extern "C" {
#include "op/act/params.h"
}

ACT_CUDA_KERNELS(gelu_exact, void, false, in)
ACT_CUDA_KERNELS(gelu_tanh, void, false, in)

static bool is_tanh(const struct op_call *c)
{
    return ((const struct gelu *)c->param)->is_tanh;
}

static int forward(const struct op_call *c, struct err *err)
{
    return is_tanh(c) ? gelu_tanh_fwd(c, err) : gelu_exact_fwd(c, err);
}

static int backward(const struct op_call *c, struct err *err)
{
    return is_tanh(c) ? gelu_tanh_bwd(c, err) : gelu_exact_bwd(c, err);
}

OP_CUDA(op_gelu, .fwd = forward, .bwd = backward);
