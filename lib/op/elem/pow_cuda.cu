/* pow_cuda.cu - see pow.c. An exponent of 2 or 3 is seen where it is read. */
#include "op/elem/row_cuda.cuh"

namespace {

__device__ inline float power(float a, float b)
{
    return b == 2.0f ? a * a : b == 3.0f ? (float)((double)a * (double)a * (double)a) : powf(a, b);
}

/* By squaring, wrapping; 1 / a^-b truncated for a negative exponent. */
__device__ inline uint64_t whole_power(int64_t a, int64_t b)
{
    uint64_t y = 1, x = (uint64_t)a;

    if (b < 0)
        return a == 1 ? 1 : a == -1 ? ((b & 1) != 0 ? UINT64_MAX : 1) : 0;
    for (; b > 0; b >>= 1, x *= x)
        if ((b & 1) != 0)
            y *= x;
    return y;
}

struct pow_y {
    template <typename B> __device__ float operator()(float a, B b) const { return power(a, (float)b); }
    __device__ int32_t operator()(int32_t a, int32_t b) const { return (int32_t)whole_power(a, b); }
    __device__ int64_t operator()(int64_t a, int64_t b) const { return (int64_t)whole_power(a, b); }
};

struct pow_da {
    template <typename B> __device__ float operator()(float d, float a, B b_) const
    {
        float b = (float)b_;

        return b == 0.0f ? 0.0f : d * (b * power(a, b - 1.0f));
    }
};

struct pow_db {
    __device__ float operator()(float d, float a, float b) const
    {
        return a == 0.0f && b > 0.0f ? 0.0f : d * (power(a, b) * logf(a));
    }
};

}

/* float32 to a power of type B */
template <typename B> static int floats(const struct op_call *c, struct err *err)
{
    return elem_cuda_run((const struct elem_loops *)c->state, op_stream(c), c->out[0], false, pow_y(), err,
                         elem_operand_of<float>(c, 0), elem_operand_of<B>(c, 1));
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
    return elem_cuda_din(c, 0, pow_da(), err, elem_operand_of<float>(c, 0), elem_operand_of<B>(c, 1));
}

static int backward(const struct op_call *c, struct err *err)
{
    enum tensor_dtype b = c->in[1]->dtype;
    int rc;

    if (c->dout[0] == NULL)
        return op_cuda_zero(c, err);
    rc = b == TENSOR_I32 ? din_a<int32_t>(c, err) : b == TENSOR_I64 ? din_a<int64_t>(c, err) : din_a<float>(c, err);
    return rc < 0 ? rc : ELEM_DIN_DAB(c, 1, pow_db);
}

OP_CUDA(op_pow, .plan = elem_cuda_plan, .fwd = forward, .bwd = backward, .free_state = free);
