/* cum_sum_cuda.cu - see cum_sum.c. */
#include "op/op_cuda.cuh"

extern "C" {
#include "op/reduce/params.h"
}

namespace {

enum { THREADS = 256, EACH = 4, COLUMNS_MIN = 2048 };

/* Returns the sum of x over the threads before this one; *all: over the whole block. room: THREADS
 * / 32. */
template <typename S> __device__ static inline S sum_before(S x, S *room, S *all)
{
    unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    S sum = x, before = 0, total = 0;

    for (unsigned k = 1; k < 32; k *= 2) {
        S other = __shfl_up_sync(0xffffffffu, sum, k);

        sum += lane >= k ? other : 0;
    }
    if (lane == 31)
        room[warp] = sum;
    __syncthreads();
    for (unsigned k = 0; k < blockDim.x / 32; k++) {
        before = k == warp ? total : before;
        total += room[k];
    }
    __syncthreads();
    *all = total;
    sum = __shfl_up_sync(0xffffffffu, sum, 1);
    return before + (lane > 0 ? sum : 0);
}

struct run {
    size_t outer, k, inner;
    bool exclusive, reverse, add;
};

/* One block per sequence. An iteration processes THREADS * EACH numbers, EACH adjacent ones per
 * thread. */
template <typename T, typename S> __global__ void along_block(const run r, const T *x, T *y)
{
    __shared__ S room[THREADS / 32];

    for (size_t row = blockIdx.x; row < r.outer * r.inner; row += gridDim.x) {
        size_t first = row / r.inner * r.k * r.inner + row % r.inner;
        S carry = 0;

        for (size_t from = 0; from < r.k; from += (size_t)blockDim.x * EACH) {
            size_t at[EACH];
            S v[EACH], sum = 0, all, here;

#pragma unroll
            for (unsigned e = 0; e < EACH; e++) {
                size_t i = from + threadIdx.x * EACH + e;

                at[e] = first + (r.reverse ? r.k - 1 - i : i) * r.inner;
                v[e] = i < r.k ? (S)x[at[e]] : 0;
                sum += v[e];
            }
            here = carry + sum_before(sum, room, &all);
#pragma unroll
            for (unsigned e = 0; e < EACH; e++) {
                S with = here + v[e];

                if (from + threadIdx.x * EACH + e < r.k)
                    y[at[e]] = (T)((r.add ? y[at[e]] : 0) + (T)(r.exclusive ? here : with));
                here = with;
            }
            carry += all;
        }
    }
}

/* One thread per sequence; adjacent threads process adjacent sequences. */
template <typename T, typename S> __global__ void along_thread(const run r, const T *x, T *y)
{
    size_t n = r.outer * r.inner;

    for (size_t row = (size_t)blockIdx.x * blockDim.x + threadIdx.x; row < n;
         row += (size_t)gridDim.x * blockDim.x) {
        size_t at =
            row / r.inner * r.k * r.inner + row % r.inner + (r.reverse ? (r.k - 1) * r.inner : 0);
        S sum = 0;

#pragma unroll 4
        for (size_t i = 0; i < r.k; i++) {
            S with = sum + (S)x[at];

            y[at] = (T)((r.add ? y[at] : 0) + (T)(r.exclusive ? sum : with));
            sum = with;
            at = r.reverse ? at - r.inner : at + r.inner;
        }
    }
}

} // namespace

template <typename T, typename S>
static int launch(const struct op_call *c, run r, const void *x, void *y, struct err *err)
{
    size_t n = r.outer * r.inner;
    unsigned threads = r.k < 32 * EACH ? 32 : THREADS;

    if (n == 0 || r.k == 0)
        return 0;
    if (r.inner == 1 || n < COLUMNS_MIN)
        CUDA_LAUNCH((along_block<T, S>), op_blocks(n, 1), threads, 0, op_stream(c), r, (const T *)x,
                    (T *)y);
    else
        CUDA_LAUNCH((along_thread<T, S>), op_blocks(n, THREADS), THREADS, 0, op_stream(c), r,
                    (const T *)x, (T *)y);
    return cuda_launched(err);
}

static int forward(const struct op_call *c, struct err *err)
{
    const struct cum_sum *p = (const struct cum_sum *)c->param;
    run r = { p->a.outer, p->a.k, p->a.inner, p->exclusive != 0, p->reverse != 0, false };
    const void *x = c->in[0]->data;
    void *y = c->out[0]->data;

    switch (c->in[0]->dtype) {
    case TENSOR_F32: return launch<float, double>(c, r, x, y, err);
    case TENSOR_I32: return launch<uint32_t, uint32_t>(c, r, x, y, err);
    default: return launch<uint64_t, uint64_t>(c, r, x, y, err);
    }
}

static int backward(const struct op_call *c, struct err *err)
{
    const struct cum_sum *p = (const struct cum_sum *)c->param;
    run r = { p->a.outer, p->a.k, p->a.inner, p->exclusive != 0, p->reverse == 0, op_cuda_adds(c, 0) };

    if (c->dout[0] == NULL || c->din[0] == NULL)
        return op_cuda_zero(c, err);
    return launch<float, double>(c, r, c->dout[0]->data, c->din[0]->data, err);
}

OP_CUDA(op_cum_sum, .fwd = forward, .bwd = backward);
