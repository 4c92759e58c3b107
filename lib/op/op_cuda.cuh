/* op_cuda.cuh - what kernels for GPUs share.
 *
 * A row's kernels stand in a file *_cuda.cu of its family and are named by OP_CUDA(row, ...), which is all
 * that the plugin needs. Rules, beside those of op.h:
 *   - the same result, bit by bit, whenever a kernel runs again on the same numbers: no sum of floats by
 *     atomics, no order that depends on the schedule;
 *   - a call only launches: no waiting, no allocation, nothing read of device memory by the host, so
 *     that calls can be captured into a graph. Seed, step, lane and loss_scale come from run->there;
 *   - sums over more than a few numbers are float32 in a fixed tree, whatever the type of the numbers;
 *   - where numbers lie one behind the other, 16 bytes a thread and access. */
#ifndef OP_OP_CUDA_CUH
#define OP_OP_CUDA_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "device/device_cuda.cuh"

extern "C" {
#include "op/op.h"
#include "tensor/tensor.h"
}

/* OP_CUDA(op_relu, .fwd = forward, .bwd = backward); */
#define OP_CUDA(row_, ...) extern "C" const struct op_kernels row_##_cuda = { __VA_ARGS__ }

static inline cudaStream_t op_stream(const struct op_call *c)
{
    return cuda_queue(c->run->queue);
}

/* Is the gradient of input i to be added to what is there? From input 31 on never. */
static inline bool op_cuda_adds(const struct op_call *c, uint32_t i)
{
    return i < 31 && (c->din_add & OP_IN(i)) != 0;
}

static inline bool op_cuda_wants(const struct op_call *c, uint32_t i)
{
    return i < c->n_in && c->din[i] != NULL;
}

/* Will the gradient of input i be asked for? */
static inline bool op_cuda_plan_wants(const struct op_plan *p, uint32_t i)
{
    return p->training && (p->want_din & OP_IN(i < 31 ? i : 31)) != 0;
}

/* The backward of a call that no gradient reaches: zero wherever din is not to be added to. */
static inline int op_cuda_bwd_zero(const struct op_call *c, struct err *err)
{
    int rc = 0;

    for (uint32_t i = 0; rc == 0 && i < c->n_in; i++)
        if (c->din[i] != NULL && !op_cuda_adds(c, i) && tensor_bytes(c->din[i]) > 0)
            rc = cuda_check(cudaMemsetAsync(c->din[i]->data, 0, tensor_bytes(c->din[i]), op_stream(c)), err,
                            "clear a gradient");
    return rc;
}

/* ---- numbers ---- */

__host__ __device__ static inline float op_wide(float x) { return x; }
__host__ __device__ static inline float op_wide(__nv_bfloat16 x) { return __bfloat162float(x); }
__host__ __device__ static inline float op_wide(__half x) { return __half2float(x); }
__host__ __device__ static inline double op_wide(double x) { return x; }

template <typename T> __host__ __device__ static inline T op_narrow(float x);
template <> __host__ __device__ inline float op_narrow<float>(float x) { return x; }
template <> __host__ __device__ inline double op_narrow<double>(float x) { return (double)x; }
template <> __host__ __device__ inline __nv_bfloat16 op_narrow<__nv_bfloat16>(float x)
{
    return __float2bfloat16_rn(x);
}
template <> __host__ __device__ inline __half op_narrow<__half>(float x) { return __float2half_rn(x); }

/* 16 bytes of T. */
template <typename T> struct alignas(16) op_pack {
    static constexpr size_t N = 16 / sizeof(T);
    T v[N];
};

/* N numbers that are read and written at once. */
template <typename T, int N> struct alignas(N * sizeof(T)) op_some {
    T v[N];
};

static inline bool op_aligned(const void *p)
{
    return ((uintptr_t)p & 15) == 0;
}

/* *rest % size, and *rest /= size: an index falls into those of its axes, the innermost first. */
__device__ static inline uint32_t op_digit(uint64_t *rest, uint32_t size)
{
    uint64_t high = *rest;
    uint32_t low = (uint32_t)high;

    if (high == low) { /* nearly always, and several times as fast */
        *rest = low / size;
        return low % size;
    }
    *rest = high / size;
    return (uint32_t)(high % size);
}

/* Calls body with a null pointer of the type of a tensor's numbers: OP_FLOATS(t->dtype, { ... T ... }). */
#define OP_FLOATS(dtype_, ...)                                                                         \
    switch (dtype_) {                                                                                  \
    case TENSOR_BF16: { using T = __nv_bfloat16; __VA_ARGS__; break; }                                 \
    case TENSOR_F16: { using T = __half; __VA_ARGS__; break; }                                         \
    default: { using T = float; __VA_ARGS__; break; }                                                  \
    }

/* ---- one number each ---- */

static constexpr unsigned OP_THREADS = 256, OP_BLOCKS_MAX = 132 * 16;

static inline unsigned op_blocks(size_t n, size_t per_block)
{
    size_t blocks = (n + per_block - 1) / per_block;

    return (unsigned)(blocks < 1 ? 1 : blocks > OP_BLOCKS_MAX ? OP_BLOCKS_MAX : blocks);
}

/* out[i] = f(in0[i], in1[i], ...), or += . Each thread owns whole packs, a grid apart; the numbers behind
 * the last whole pack are one each of the first threads. `in` and `out` may be the same memory. */
template <typename T, typename F, typename... In>
__global__ void op_each_packed(T *out, size_t n, bool add, F f, const In *...in)
{
    size_t step = (size_t)gridDim.x * blockDim.x, first = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    size_t packs = n / op_pack<T>::N;

    for (size_t i = first; i < packs; i += step) {
        op_pack<T> o = add ? ((const op_pack<T> *)out)[i] : op_pack<T>();

        auto each = [&](const auto &...p) {
#pragma unroll
            for (size_t k = 0; k < op_pack<T>::N; k++) {
                float v = f(op_wide(p.v[k])...);

                o.v[k] = op_narrow<T>(add ? op_wide(o.v[k]) + v : v);
            }
        };
        each(((const op_pack<In> *)in)[i]...);
        ((op_pack<T> *)out)[i] = o;
    }
    for (size_t i = packs * op_pack<T>::N + first; i < n; i += step) {
        float v = f(op_wide(in[i])...);

        out[i] = op_narrow<T>(add ? op_wide(out[i]) + v : v);
    }
}

/* The same for types of different sizes, and for memory that is not aligned. */
template <typename T, typename F, typename... In>
__global__ void op_each_single(T *out, size_t n, bool add, F f, const In *...in)
{
    size_t step = (size_t)gridDim.x * blockDim.x;

    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step) {
        float v = f(op_wide(in[i])...);

        out[i] = op_narrow<T>(add ? op_wide(out[i]) + v : v);
    }
}

/* f: a copyable object with `__device__ float operator()(float...) const`. */
template <typename T, typename F, typename... In>
static inline int op_each(cudaStream_t s, T *out, size_t n, bool add, F f, struct err *err, const In *...in)
{
    bool packed = op_aligned(out) && (op_aligned(in) && ...) && ((sizeof(In) == sizeof(T)) && ...);

    if (n == 0)
        return 0;
    if (packed)
        CUDA_LAUNCH((op_each_packed<T, F, In...>), op_blocks(n, OP_THREADS * op_pack<T>::N), OP_THREADS, 0, s,
                    out, n, add, f, in...);
    else
        CUDA_LAUNCH((op_each_single<T, F, In...>), op_blocks(n, OP_THREADS), OP_THREADS, 0, s, out, n, add,
                    f, in...);
    return cuda_launched(err);
}

/* ---- sums ---- */

/* Of the 32 threads of a warp, in all of them. */
__device__ static inline float op_warp_sum(float x)
{
    for (int k = 16; k > 0; k /= 2)
        x += __shfl_xor_sync(0xffffffffu, x, k);
    return x;
}

__device__ static inline float op_warp_max(float x)
{
    for (int k = 16; k > 0; k /= 2)
        x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, k));
    return x;
}

/* Of a block of whole warps, at most 1024 threads; in all of them. `room`: 32 floats of shared memory,
 * which may be used again behind the next __syncthreads(). */
__device__ static inline float op_block_sum(float x, float *room)
{
    unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = (blockDim.x + 31) / 32;

    x = op_warp_sum(x);
    __syncthreads();
    if (lane == 0)
        room[warp] = x;
    __syncthreads();
    x = op_warp_sum(lane < warps ? room[lane] : 0.0f);
    return x;
}

#endif
