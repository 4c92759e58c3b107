/* pow_cuda.cu - see pow.c. An exponent of 2 or 3 is recognised in the kernel. */
#include "op/elem/row_cuda.cuh"

namespace {

__device__ inline float power(float a, float b)
{
    return b == 2.0f ? elem_square(a) : b == 3.0f ? elem_cube(a) : op_powf(a, b);
}

struct pow_y {
    template <typename B> __device__ float operator()(float a, B b) const { return power(a, (float)b); }
    __device__ int32_t operator()(int32_t a, int32_t b) const { return (int32_t)elem_pow_whole(a, b); }
    __device__ int64_t operator()(int64_t a, int64_t b) const { return (int64_t)elem_pow_whole(a, b); }
};

struct pow_da {
    template <typename B> __device__ float operator()(float d, float a, B b_) const
    {
        float b = (float)b_;

        return elem_pow_da(d, b, power(a, b - 1.0f));
    }
};

struct pow_db {
    __device__ float operator()(float d, float a, float b) const
    {
        return elem_pow_db(d, a, b, power(a, b));
    }
};

}

/* float32 to a power of type B */
template <typename B> static int floats(const struct op_call *c, struct err *err)
{
    return elem_cuda_run((const struct elem_loops *)c->state, op_stream(c), c->out[0], false,
                         pow_y(), err, elem_operand_of<float>(c, 0), elem_operand_of<B>(c, 1));
}

static int forward(const struct op_call *c, struct err *err)
{
    enum tensor_dtype a = c->in[0]->dtype, b = c->in[1]->dtype;

    if (a != TENSOR_F32)
        return elem_cuda_fwd(c, pow_y(), err);
    return b == TENSOR_I32   ? floats<int32_t>(c, err)
           : b == TENSOR_I64 ? floats<int64_t>(c, err)
                             : floats<float>(c, err);
}

template <typename B> static int din_a(const struct op_call *c, struct err *err)
{
    return elem_cuda_din(c, 0, pow_da(), err, elem_operand_of<float>(c, 0),
                         elem_operand_of<B>(c, 1));
}

static int backward(const struct op_call *c, struct err *err)
{
    enum tensor_dtype b = c->in[1]->dtype;
    int rc;

    if (c->dout[0] == NULL)
        return op_cuda_zero(c, err);
    rc = b == TENSOR_I32   ? din_a<int32_t>(c, err)
         : b == TENSOR_I64 ? din_a<int64_t>(c, err)
                           : din_a<float>(c, err);
    return rc < 0 ? rc : ELEM_DIN_DAB(c, 1, pow_db);
}

OP_CUDA(op_pow, .plan = elem_cuda_plan, .fwd = forward, .bwd = backward, .free_state = free);
