/* is_cuda.cu - see is.c. */
#include "op/op_cuda.cuh"

extern "C" {
#include "op/act/params.h"
}

namespace {
struct nan_is {
    __device__ bool operator()(float x) const { return x != x; }
};

struct inf_is {
    struct is_inf p;

    __device__ bool operator()(float x) const
    {
        return (p.positive && x == INFINITY) || (p.negative && x == -INFINITY);
    }
};
}

template <typename F> static int run(const struct op_call *c, F f, struct err *err)
{
    return op_each(op_stream(c), (uint8_t *)c->out[0]->data, (size_t)tensor_elements(c->in[0]),
                   false, f, err, (const float *)c->in[0]->data);
}

static int nan_fwd(const struct op_call *c, struct err *err)
{
    return run(c, nan_is(), err);
}

static int inf_fwd(const struct op_call *c, struct err *err)
{
    return run(c, inf_is{ *(const struct is_inf *)c->param }, err);
}

OP_CUDA(op_is_nan, .fwd = nan_fwd);
OP_CUDA(op_is_inf, .fwd = inf_fwd);
