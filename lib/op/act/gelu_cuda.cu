/* gelu_cuda.cu - see gelu.c. */
#include "op/act/act_cuda.cuh"
#include "op/act/gelu_cuda.cuh"

extern "C" {
#include "op/act/params.h"
}

ACT_CUDA_FUNCTIONS(exact, void, 0, x * gelu_normal(x), in, d * gelu_slope(v))
ACT_CUDA_FUNCTIONS(tanh, void, 0, x * (0.5f * (1.0f + gelu_tanh(x))), in, d * gelu_tanh_slope(v))

static bool is_tanh(const struct op_call *c)
{
    return ((const struct gelu *)c->param)->is_tanh;
}

static int forward(const struct op_call *c, struct err *err)
{
    return is_tanh(c) ? tanh_fwd(c, err) : exact_fwd(c, err);
}

static int backward(const struct op_call *c, struct err *err)
{
    return is_tanh(c) ? tanh_bwd(c, err) : exact_bwd(c, err);
}

OP_CUDA(op_gelu, .fwd = forward, .bwd = backward);
