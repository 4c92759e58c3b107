/* op_cuda.cuh - helpers shared by the GPU kernels.
 *
 * The kernels of a row are in a file *_cuda.cu of its family, and OP_CUDA(row, ...) exports them to
 * the plugin. Rules, in addition to those of op.h:
 *   - The results are reproducible: running a kernel again on the same numbers gives the same bits.
 *     No sum of floats uses atomics, and no order depends on the schedule of the GPU.
 *   - A call only launches kernels. It does not wait or allocate, and the host reads no device
 *     memory, so calls can be captured into a CUDA graph. Kernels read seed, step, lane and
 *     loss_scale from run->device.
 *   - A sum of more than a few numbers is computed in float32, in a fixed tree, for every type.
 *   - A number that fwd rejects on a CPU (an index, a label, a divisor) is recorded (op_report),
 *     and no memory is read or written out of range because of it.
 *   - Types that are template arguments are in a `namespace { }`: all files are one program, and
 *     the linker would merge instances for two types of the same name.
 *   - If numbers are contiguous, each thread accesses 16 bytes at a time. */
#ifndef OP_OP_CUDA_CUH
#define OP_OP_CUDA_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

#include "device/device_cuda.cuh"

extern "C" {
#include "op/op.h"
#include "tensor/tensor.h"
}

/* Usage: OP_CUDA(op_relu, .fwd = forward, .bwd = backward); */
#define OP_CUDA(row_, ...) extern "C" const struct op_kernels row_##_cuda = { __VA_ARGS__ }

static inline cudaStream_t op_stream(const struct op_call *c)
{
    return cuda_stream_of(c->run->queue);
}

/* Returns true if the gradient of input i is accumulated; false from input 31 on. */
static inline bool op_cuda_adds(const struct op_call *c, uint32_t i)
{
    return i < 31 && (c->din_add & OP_IN(i)) != 0;
}

static inline bool op_cuda_wants(const struct op_call *c, uint32_t i)
{
    return i < c->n_in && c->din[i] != NULL;
}

/* Returns true if calls will request the gradient of input i. */
static inline bool op_cuda_plan_wants(const struct op_plan *p, uint32_t i)
{
    return p->training && (p->want_din & OP_IN(i < 31 ? i : 31)) != 0;
}

/* The backward of a call without an incoming gradient: zeroes every din that is not accumulated. */
static inline int op_cuda_zero(const struct op_call *c, struct err *err)
{
    int rc = 0;

    for (uint32_t i = 0; rc == 0 && i < c->n_in; i++)
        if (c->din[i] != NULL && !op_cuda_adds(c, i) && tensor_bytes(c->din[i]) > 0)
            rc = cuda_check(
                cudaMemsetAsync(c->din[i]->data, 0, tensor_bytes(c->din[i]), op_stream(c)), err,
                "zero a gradient");
    return rc;
}

/* ---- numbers ---- */

/* Converts to the type used for computing: float for 16-bit floats, else the type itself. */
template <typename T> __host__ __device__ static inline T op_wide(T x) { return x; }
__host__ __device__ static inline float op_wide(__nv_bfloat16 x) { return __bfloat162float(x); }
__host__ __device__ static inline float op_wide(__half x) { return __half2float(x); }

template <typename T, typename V> __host__ __device__ static inline T op_narrow(V x)
{
    if constexpr (std::is_same_v<T, __nv_bfloat16>)
        return __float2bfloat16_rn(x);
    else if constexpr (std::is_same_v<T, __half>)
        return __float2half_rn(x);
    else
        return (T)x;
}

/* ---- packs ---- */

typedef uint32_t __attribute__((__may_alias__)) op_word;

/* A 16-bit number in the lower or upper half of a word, and a reference to such a number. */
template <typename T> struct op_packed {
    uint32_t word;
    bool is_upper;

    __device__ operator T() const
    {
        uint16_t bits = (uint16_t)(is_upper ? word >> 16 : word);

        if constexpr (std::is_same_v<T, __half>)
            return __ushort_as_half(bits);
        else
            return __ushort_as_bfloat16(bits);
    }
};

template <typename T> struct op_packed_place {
    op_word *word;
    bool is_upper;

    __device__ op_packed_place(op_word *at, bool upper) : word(at), is_upper(upper) {}
    op_packed_place(const op_packed_place &) = default;
    __device__ op_packed<T> get() const { return { *word, is_upper }; }
    __device__ operator T() const { return get(); }
    __device__ void operator=(T x) const
    {
        uint32_t bits;

        if constexpr (std::is_same_v<T, __half>)
            bits = __half_as_ushort(x);
        else
            bits = __bfloat16_as_ushort(x);
        *word = is_upper ? (*word & 0xffff) | bits << 16 : (*word & 0xffff0000) | bits;
    }
    /* assigns the number, not the reference */
    __device__ void operator=(const op_packed_place &x) const
    {
        *this = (T)x;
    }
};

template <typename T> __device__ static inline float op_wide(op_packed<T> x)
{
    if constexpr (std::is_same_v<T, __half>)
        return op_wide((T)x);
    else
        return __uint_as_float(x.is_upper ? x.word & 0xffff0000 : x.word << 16);
}

template <typename T> __device__ static inline float op_wide(op_packed_place<T> x)
{
    return op_wide(x.get());
}

/* An array of 16-bit numbers, two per word. For a plain array, nvcc copies each number to its own
 * register as soon as the pack arrives, which doubles the registers and waits for memory before the
 * next load is issued. */
template <typename T, size_t Count> struct op_halves {
    op_word word[Count / 2] = {};

    __device__ op_packed<T> operator[](size_t k) const { return { word[k / 2], k % 2 != 0 }; }
    __device__ op_packed_place<T> operator[](size_t k) { return { &word[k / 2], k % 2 != 0 }; }
};

template <typename T, size_t Count>
using op_numbers = std::conditional_t<Count % 2 == 0 && (std::is_same_v<T, __nv_bfloat16> ||
                                                         std::is_same_v<T, __half>),
                                      op_halves<T, Count>, T[Count]>;

/* A pack: 16 bytes of T, or a power of two of numbers. */
template <typename T, size_t Count = 16 / sizeof(T)>
struct alignas(Count * sizeof(T) < 16 ? Count * sizeof(T) : 16) op_pack {
    static constexpr size_t N = Count;
    op_numbers<T, Count> v;
};

/* Division of any n < 2^63 by a constant of the kernel, with two multiplications. */
struct op_divisor {
    uint64_t by, magic; /* 2^64 / by, rounded up; 0: by is 1 */
};

static inline struct op_divisor op_divisor_of(uint64_t by)
{
    return { by, by > 1 ? UINT64_MAX / by + 1 : 0 };
}

__device__ static inline uint64_t op_divide(uint64_t n, const struct op_divisor &d)
{
    uint64_t q = d.magic != 0 ? __umul64hi(n, d.magic) : n;

    return q - (q * d.by > n); /* rounding up makes q at most one too large */
}

/* Returns *rest % size and sets *rest /= size: splits a linear index into the indices of its axes,
 * the innermost first. */
__device__ static inline uint64_t op_digit(uint64_t *rest, const struct op_divisor &size)
{
    uint64_t q = op_divide(*rest, size), digit = *rest - q * size.by;

    *rest = q;
    return digit;
}

/* A divisor for n and by below 2^31, which needs a third of the instructions of op_divisor. */
struct op_small_divisor {
    uint32_t by, magic; /* 2^32 / by, rounded up; 0: by is 1 */
};

static inline struct op_small_divisor op_small_divisor_of(uint32_t by)
{
    return { by, by > 1 ? UINT32_MAX / by + 1 : 0 };
}

__device__ static inline uint32_t op_divide(uint32_t n, const struct op_small_divisor &d)
{
    uint32_t q = d.magic != 0 ? (uint32_t)((uint64_t)n * d.magic >> 32) : n;

    return q - (q * d.by > n);
}

__device__ static inline uint32_t op_digit(uint32_t *rest, const struct op_small_divisor &size)
{
    uint32_t q = op_divide(*rest, size), digit = *rest - q * size.by;

    *rest = q;
    return digit;
}

static inline bool op_aligned(const void *p)
{
    return ((uintptr_t)p & 15) == 0;
}

/* Runs the body with T defined as the type of a tensor's numbers: OP_FLOATS(t->dtype, { ... T ...
 * }). */
#define OP_FLOATS(dtype_, ...)                                                                         \
    switch (dtype_) {                                                                                  \
    case TENSOR_BF16: { using T = __nv_bfloat16; __VA_ARGS__; break; }                                 \
    case TENSOR_F16: { using T = __half; __VA_ARGS__; break; }                                         \
    default: { using T = float; __VA_ARGS__; break; }                                                  \
    }

/* ---- element-wise kernels ---- */

/* The number of multiprocessors for which grids are laid out, on every GPU. It is a constant
 * because the number of blocks decides the order of additions where a sum is split: the bits do not
 * depend on the GPU model. Element-wise grids of 16 blocks for each fill GPUs of up to 264
 * multiprocessors, of which each runs 8 blocks at a time. */
static constexpr unsigned OP_PROCESSORS = 132;
static constexpr unsigned OP_THREADS = 256, OP_BLOCKS_MAX = OP_PROCESSORS * 16;

static inline unsigned op_blocks(size_t n, size_t per_block)
{
    size_t blocks = (n + per_block - 1) / per_block;

    return (unsigned)(blocks < 1 ? 1 : blocks > OP_BLOCKS_MAX ? OP_BLOCKS_MAX : blocks);
}

/* Number of elements that a thread processes at a time: 16 bytes of the smallest type, at most 8
 * elements. */
template <typename... T> __host__ __device__ static constexpr size_t op_each_pack()
{
    size_t least = 8;

    ((least = sizeof(T) < least ? sizeof(T) : least), ...);
    return 16 / least < 8 ? 16 / least : 8;
}

template <typename T, size_t N> struct op_two {
    op_pack<T, N> at[2];
};

template <size_t N, typename T>
__device__ static inline op_two<T, N> op_load_two(const T *p, size_t i, size_t j)
{
    return { ((const op_pack<T, N> *)p)[i], ((const op_pack<T, N> *)p)[j] };
}

/* out[i] = f(in0[i], in1[i], ...), or += . The packs of a thread are one grid stride apart; it
 * loads two packs of each input before it stores. The elements after the last whole pack (if not
 * `packed`: all elements) are processed one by one. `in` and `out` may be the same memory. */
template <typename T, typename F, typename... In>
__global__ void op_each_kernel(T *out, size_t n, bool packed, bool add, F f, const In *...in)
{
    constexpr size_t N = op_each_pack<T, In...>();
    size_t step = (size_t)gridDim.x * blockDim.x,
           first = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    size_t packs = packed ? n / N : 0;

    for (size_t i = first; i < packs; i += 2 * step) {
        size_t j = i + step;
        auto both = [&](const auto &...x) {
#pragma unroll
            for (size_t u = 0; u < 2; u++) {
                op_pack<T, N> *to = (op_pack<T, N> *)out + (u == 0 ? i : j), o;

                if (u == 1 && j >= packs)
                    break;
                if (add)
                    o = *to;
#pragma unroll
                for (size_t k = 0; k < N; k++) {
                    auto v = f(op_wide(x.at[u].v[k])...);

                    o.v[k] = add ? op_narrow<T>(op_wide(o.v[k]) + v) : op_narrow<T>(v);
                }
                *to = o;
            }
        };
        both(op_load_two<N>(in, i, j < packs ? j : i)...);
    }
    for (size_t i = packs * N + first; i < n; i += step) {
        auto v = f(op_wide(in[i])...);

        out[i] = add ? op_narrow<T>(op_wide(out[i]) + v) : op_narrow<T>(v);
    }
}

/* f: a copyable object with `__device__ ... operator()(...) const`; its arguments are converted by
 * op_wide(). Errors: ERR_DEVICE. */
template <typename T, typename F, typename... In>
static inline int op_each(cudaStream_t s, T *out, size_t n, bool add, F f, struct err *err,
                          const In *...in)
{
    bool packed = op_aligned(out) && (op_aligned(in) && ...);

    if (n == 0)
        return 0;
    CUDA_LAUNCH((op_each_kernel<T, F, In...>),
                op_blocks(n, OP_THREADS * (packed ? op_each_pack<T, In...>() : 1)), OP_THREADS, 0,
                s, out, n, packed, add, f, in...);
    return cuda_launched(err);
}

/* The identity function. */
struct op_same {
    template <typename T> __device__ T operator()(T x) const { return x; }
};

/* ---- invalid numbers ---- */

/* Records that element `at`, checked by a call, has the value `value`, which the row rejects on a
 * CPU (op_def.refuse). The record keeps the lowest element of a call, independent of the order of
 * the threads, and an earlier call keeps its record. */
struct op_report {
    struct op_invalid *to; /* nullptr: not recorded */
    const struct op_run *run;
    uint32_t call;

    __device__ bool is_late(uint64_t at) const
    {
        const volatile struct op_invalid *t = to;

        if (t->found == 0.0f)
            return false;
        __threadfence(); /* the other fields were written before `found` */
        return t->lane != run->lane || t->call != call || t->at <= at;
    }
    __device__ void operator()(uint64_t at, int64_t value) const
    {
        volatile struct op_invalid *t = to;

        for (bool said = to == nullptr || is_late(at); !said;) {
            if (atomicCAS(&to->lock, 0u, 1u) != 0)
                continue;
            __threadfence();
            if (!is_late(at)) {
                t->lane = run->lane;
                t->call = call;
                t->at = at;
                t->value = value;
                __threadfence();
                t->found = 1.0f;
            }
            __threadfence();
            atomicExch(&to->lock, 0u);
            said = true;
        }
    }
};

static inline op_report op_report_of(const struct op_call *c)
{
    return { c->run->invalid, c->run->device, c->number };
}

template <typename F> __global__ void op_scan_kernel(size_t n, F wrong, op_report report)
{
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x) {
        int64_t value = 0;

        if (wrong(i, &value))
            report(i, value);
    }
}

/* Records the first i < n for which `wrong` is true. `wrong` is a copyable object with `__device__
 * bool operator()(size_t i, int64_t *value) const`, which sets *value. */
template <typename F>
static inline int op_cuda_scan(const struct op_call *c, size_t n, F wrong, struct err *err)
{
    if (n == 0 || c->run->invalid == NULL)
        return 0;
    CUDA_LAUNCH((op_scan_kernel<F>), op_blocks(n, OP_THREADS), OP_THREADS, 0, op_stream(c), n,
                wrong, op_report_of(c));
    return cuda_launched(err);
}

/* ---- sums ---- */

/* Sum of the 32 threads of a warp, returned to each of them. */
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

/* Sum of a thread block, returned to each thread. The block consists of whole warps, at most 1024
 * threads. `room`: 32 floats of shared memory, free again after the next __syncthreads(). */
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
