/* cum_prod_cuda.cu - see cum_prod.c. One thread per sequence; adjacent threads process adjacent
 * sequences. */
#include "op/op_cuda.cuh"

extern "C" {
#include "op/reduce/params.h"
}

namespace {

struct run {
    size_t outer, k, inner;
    bool exclusive, reverse, add;
};

/* Offset of element i of sequence `row`, counted from the end at which the product begins. */
__device__ inline size_t place(const run &r, size_t row, size_t i)
{
    return row / r.inner * r.k * r.inner + row % r.inner + (r.reverse ? r.k - 1 - i : i) * r.inner;
}

template <typename T, typename P> __global__ void products(const run r, const T *x, T *y)
{
    for (size_t row = (size_t)blockIdx.x * blockDim.x + threadIdx.x; row < r.outer * r.inner;
         row += (size_t)gridDim.x * blockDim.x) {
        P all = 1;

        for (size_t i = 0; i < r.k; i++) {
            const size_t at = place(r, row, i);
            const P with = all * (P)x[at];

            y[at] = (T)(r.exclusive ? all : with);
            all = with;
        }
    }
}

__global__ void slopes(const run r, const float *x, const float *y, const float *dy, float *dx)
{
    for (size_t row = (size_t)blockIdx.x * blockDim.x + threadIdx.x; row < r.outer * r.inner;
         row += (size_t)gridDim.x * blockDim.x) {
        double s = 0;

        for (size_t i = r.k; i-- > 0;) {
            const size_t at = place(r, row, i), next = i + 1 < r.k ? place(r, row, i + 1) : 0;
            double before;

            if (!r.exclusive)
                s = (double)dy[at] + (i + 1 < r.k ? (double)x[next] * s : 0.0);
            else if (i + 1 < r.k)
                s = (double)dy[next] + (double)x[next] * s;
            before = r.exclusive ? (double)y[at] : i > 0 ? (double)y[place(r, row, i - 1)] : 1.0;
            dx[at] = (float)(before * s) + (r.add ? dx[at] : 0.0f);
        }
    }
}

run run_of(const struct op_call *c, bool add)
{
    const struct cum_sum *p = (const struct cum_sum *)c->param;

    return { p->a.outer, p->a.k, p->a.inner, p->exclusive != 0, p->reverse != 0, add };
}

template <typename T, typename P> int forward_of(const struct op_call *c, struct err *err)
{
    const run r = run_of(c, false);
    const size_t n = r.outer * r.inner;

    if (n == 0 || r.k == 0)
        return 0;
    CUDA_LAUNCH((products<T, P>), op_blocks(n, OP_THREADS), OP_THREADS, 0, op_stream(c), r,
                (const T *)c->in[0]->data, (T *)c->out[0]->data);
    return cuda_launched(err);
}

int forward(const struct op_call *c, struct err *err)
{
    switch (c->in[0]->dtype) {
    case TENSOR_F32: return forward_of<float, double>(c, err);
    case TENSOR_I32: return forward_of<uint32_t, uint32_t>(c, err);
    default: return forward_of<uint64_t, uint64_t>(c, err);
    }
}

int backward(const struct op_call *c, struct err *err)
{
    const run r = run_of(c, op_cuda_adds(c, 0));
    const size_t n = r.outer * r.inner;

    if (c->dout[0] == NULL || c->din[0] == NULL)
        return op_cuda_zero(c, err);
    if (n == 0 || r.k == 0)
        return 0;
    CUDA_LAUNCH(slopes, op_blocks(n, OP_THREADS), OP_THREADS, 0, op_stream(c), r,
                (const float *)c->in[0]->data, (const float *)c->out[0]->data,
                (const float *)c->dout[0]->data, (float *)c->din[0]->data);
    return cuda_launched(err);
}

} // namespace

OP_CUDA(op_cum_prod, .fwd = forward, .bwd = backward);
