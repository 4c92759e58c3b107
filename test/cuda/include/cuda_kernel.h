/* cuda_kernel.h - the declarations available to kernels (C++ only; cuda_runtime.h includes it and
 * has the contract). */
#ifndef CUDA_KERNEL_H
#define CUDA_KERNEL_H

#include <math.h>
#include <string.h>

#include <tuple>
#include <type_traits>

#include <cuda_emulated.h>
#include <cuda_runtime.h>

#define __global__
#define __device__
#define __host__
#define __constant__ const
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
/* Per host thread, because each device runs in one. The linker places these variables between
 * shared_begin.c and shared_end.c, so that block.c can poison them. */
#define __shared__ static __thread

#define threadIdx (emulated_now.thread)
#define blockIdx (emulated_now.block)
#define blockDim (emulated_now.block_dim)
#define gridDim (emulated_now.grid_dim)
static const int warpSize = 32;

/* ---- launch ---- */

template <typename... P, typename... A>
void emulated_launch(const char *name, void (*kernel)(P...), dim3 grid, dim3 block, size_t shared,
                     cudaStream_t stream, A... args)
{
    static_assert((std::is_trivially_copyable<P>::value && ...),
                  "an argument of a kernel is copied byte by byte");
    struct call {
        void (*kernel)(P...);
        std::tuple<P...> args;
    };
    const call copy = { kernel, std::tuple<P...>(args...) };
    const unsigned int grid3[3] = { grid.x, grid.y, grid.z };
    const unsigned int block3[3] = { block.x, block.y, block.z };

    emulated_launch_kernel(
        name, reinterpret_cast<const void *>(kernel),
        [](const void *p) {
            const call *c = static_cast<const call *>(p);
            std::apply(c->kernel, c->args);
        },
        &copy, sizeof(copy), grid3, block3, shared, stream);
}

template <typename T> cudaError_t cudaMalloc(T **memory, size_t bytes)
{
    return cudaMalloc(reinterpret_cast<void **>(memory), bytes);
}
template <typename T> cudaError_t cudaMallocHost(T **memory, size_t bytes, unsigned flags = 0)
{
    return cudaHostAlloc(reinterpret_cast<void **>(memory), bytes, flags);
}
template <typename T> cudaError_t cudaHostAlloc(T **memory, size_t bytes, unsigned flags)
{
    return cudaHostAlloc(reinterpret_cast<void **>(memory), bytes, flags);
}
template <typename T>
cudaError_t cudaFuncSetAttribute(T *kernel, enum cudaFuncAttribute attribute, int value)
{
    return cudaFuncSetAttribute(reinterpret_cast<const void *>(kernel), attribute, value);
}

/* ---- barriers, shuffles, votes ---- */

#define __syncthreads() emulated_syncthreads(__FILE__, __LINE__)
#define __syncwarp(...) emulated_syncwarp(__FILE__, __LINE__ __VA_OPT__(, ) __VA_ARGS__)
#define __shfl_sync(...) emulated_shfl(__FILE__, __LINE__, __VA_ARGS__)
#define __shfl_up_sync(...) emulated_shfl_up(__FILE__, __LINE__, __VA_ARGS__)
#define __shfl_down_sync(...) emulated_shfl_down(__FILE__, __LINE__, __VA_ARGS__)
#define __shfl_xor_sync(...) emulated_shfl_xor(__FILE__, __LINE__, __VA_ARGS__)
#define __ballot_sync(mask, p) emulated_vote(__FILE__, __LINE__, mask, p)
#define __any_sync(mask, p) (emulated_vote(__FILE__, __LINE__, mask, p) != 0)
#define __all_sync(mask, p) (emulated_vote(__FILE__, __LINE__, mask, !(p)) == 0)

template <typename T>
static inline T emulated_shuffle(const char *file, int line, unsigned int mask, T value, int source)
{
    static_assert(sizeof(T) <= sizeof(uint64_t) && std::is_trivially_copyable<T>::value,
                  "a shuffle moves 32 or 64 bits");
    uint64_t bits = 0;

    memcpy(&bits, &value, sizeof(value));
    bits = emulated_meet(EMULATED_SHUFFLE, mask, source, bits, file, line);
    memcpy(&value, &bits, sizeof(value));
    return value;
}
static inline int emulated_lane()
{
    return static_cast<int>(emulated_now.index % 32);
}
/* Returns `source` if it is in the segment of `width` lanes, else the lane itself. */
static inline int emulated_in_segment(int source, int width)
{
    int lane = emulated_lane(), first = lane / width * width;

    return source >= first && source < first + width ? source : lane;
}
template <typename T>
static inline T emulated_shfl(const char *file, int line, unsigned int mask, T value, int source,
                              int width = 32)
{
    int first = emulated_lane() / width * width;

    return emulated_shuffle(file, line, mask, value, first + (source & (width - 1)));
}
template <typename T>
static inline T emulated_shfl_up(const char *file, int line, unsigned int mask, T value,
                                 unsigned int delta, int width = 32)
{
    return emulated_shuffle(file, line, mask, value,
                            emulated_in_segment(emulated_lane() - static_cast<int>(delta), width));
}
template <typename T>
static inline T emulated_shfl_down(const char *file, int line, unsigned int mask, T value,
                                   unsigned int delta, int width = 32)
{
    return emulated_shuffle(file, line, mask, value,
                            emulated_in_segment(emulated_lane() + static_cast<int>(delta), width));
}
template <typename T>
static inline T emulated_shfl_xor(const char *file, int line, unsigned int mask, T value, int lanes,
                                  int width = 32)
{
    int source = emulated_lane() ^ lanes, end = (emulated_lane() / width + 1) * width;

    return emulated_shuffle(file, line, mask, value, source < end ? source : emulated_lane());
}
static inline unsigned int emulated_vote(const char *file, int line, unsigned int mask, int p)
{
    return static_cast<unsigned int>(emulated_meet(EMULATED_VOTE, mask, 0, p != 0, file, line));
}
static inline void emulated_syncwarp(const char *file, int line, unsigned int mask = 0xffffffff)
{
    emulated_meet(EMULATED_VOTE, mask, 0, 0, file, line);
}
static inline void __threadfence()
{
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}
static inline void __threadfence_block()
{
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

/* ---- atomics: two streams of a device may run in two host threads ---- */

template <typename T, typename F> static inline T emulated_atomic(T *p, F change)
{
    T before, after;

    __atomic_load(p, &before, __ATOMIC_RELAXED);
    do
        after = change(before);
    while (
        !__atomic_compare_exchange(p, &before, &after, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    return before;
}
#define CUDA_ATOMICS(type)                                                                         \
    static inline type atomicAdd(type *p, type v)                                                  \
    {                                                                                              \
        return emulated_atomic(p, [v](type x) { return static_cast<type>(x + v); });               \
    }                                                                                              \
    static inline type atomicExch(type *p, type v)                                                 \
    {                                                                                              \
        return emulated_atomic(p, [v](type) { return v; });                                        \
    }                                                                                              \
    static inline type atomicSub(type *p, type v)                                                  \
    {                                                                                              \
        return emulated_atomic(p, [v](type x) { return static_cast<type>(x - v); });               \
    }                                                                                              \
    static inline type atomicMax(type *p, type v)                                                  \
    {                                                                                              \
        return emulated_atomic(p, [v](type x) { return x > v ? x : v; });                          \
    }                                                                                              \
    static inline type atomicMin(type *p, type v)                                                  \
    {                                                                                              \
        return emulated_atomic(p, [v](type x) { return x < v ? x : v; });                          \
    }                                                                                              \
    static inline type atomicOr(type *p, type v)                                                   \
    {                                                                                              \
        return emulated_atomic(p, [v](type x) { return x | v; });                                  \
    }                                                                                              \
    static inline type atomicAnd(type *p, type v)                                                  \
    {                                                                                              \
        return emulated_atomic(p, [v](type x) { return x & v; });                                  \
    }                                                                                              \
    static inline type atomicCAS(type *p, type was, type v)                                        \
    {                                                                                              \
        return emulated_atomic(p, [was, v](type x) { return x == was ? v : x; });                  \
    }
CUDA_ATOMICS(int)
CUDA_ATOMICS(unsigned int)
CUDA_ATOMICS(unsigned long long)
#undef CUDA_ATOMICS
/* A sum of floats by atomics depends on the schedule of the GPU: kernels that use it do not compile. */
float atomicAdd(float *, float) = delete;
double atomicAdd(double *, double) = delete;

/* ---- loads, bits, arithmetic ---- */

template <typename T> static inline T __ldg(const T *p)
{
    return *p;
}
template <typename To, typename From> static inline To emulated_bits(From from)
{
    To to;

    static_assert(sizeof(to) == sizeof(from), "the same bits");
    memcpy(&to, &from, sizeof(to));
    return to;
}
#define CUDA_BITS(name, to, from)                                                                  \
    static inline to name(from v)                                                                  \
    {                                                                                              \
        return emulated_bits<to>(v);                                                               \
    }
CUDA_BITS(__float_as_int, int, float)
CUDA_BITS(__int_as_float, float, int)
CUDA_BITS(__float_as_uint, unsigned int, float)
CUDA_BITS(__uint_as_float, float, unsigned int)
CUDA_BITS(__double_as_longlong, long long, double)
CUDA_BITS(__longlong_as_double, double, long long)
#undef CUDA_BITS

#define CUDA_MIN_MAX(type)                                                                         \
    static inline type min(type a, type b)                                                         \
    {                                                                                              \
        return b < a ? b : a;                                                                      \
    }                                                                                              \
    static inline type max(type a, type b)                                                         \
    {                                                                                              \
        return a < b ? b : a;                                                                      \
    }
CUDA_MIN_MAX(int)
CUDA_MIN_MAX(unsigned int)
CUDA_MIN_MAX(long)
CUDA_MIN_MAX(unsigned long)
CUDA_MIN_MAX(long long)
CUDA_MIN_MAX(unsigned long long)
#undef CUDA_MIN_MAX
static inline float min(float a, float b)
{
    return fminf(a, b);
}
static inline float max(float a, float b)
{
    return fmaxf(a, b);
}
static inline double min(double a, double b)
{
    return fmin(a, b);
}
static inline double max(double a, double b)
{
    return fmax(a, b);
}

/* CUDA's fast functions are less accurate than these. Macros, because libm has the names, too. */
#define __expf(x) expf(x)
#define __logf(x) logf(x)
#define __log2f(x) log2f(x)
#define __sinf(x) sinf(x)
#define __cosf(x) cosf(x)
#define __powf(x, y) powf(x, y)

/* Type, name, parameters, value. */
#define CUDA_FUNCTION(type, name, parameters, value)                                               \
    static inline type name parameters                                                             \
    {                                                                                              \
        return value;                                                                              \
    }
CUDA_FUNCTION(float, __fdividef, (float x, float y), x / y)
CUDA_FUNCTION(float, __fdiv_rn, (float x, float y), x / y)
CUDA_FUNCTION(float, __fadd_rn, (float x, float y), x + y)
CUDA_FUNCTION(float, __fsub_rn, (float x, float y), x - y)
CUDA_FUNCTION(float, __fmul_rn, (float x, float y), x *y)
CUDA_FUNCTION(float, __fmaf_rn, (float x, float y, float z), fmaf(x, y, z))
CUDA_FUNCTION(float, __fsqrt_rn, (float x), sqrtf(x))
CUDA_FUNCTION(float, __frsqrt_rn, (float x), static_cast<float>(1.0 / sqrt(x)))
CUDA_FUNCTION(float, __frcp_rn, (float x), 1.0f / x)
CUDA_FUNCTION(float, __saturatef, (float x), x > 0.0f ? fminf(x, 1.0f) : 0.0f)
CUDA_FUNCTION(float, rsqrtf, (float x), static_cast<float>(1.0 / sqrt(x)))
CUDA_FUNCTION(double, rsqrt, (double x), 1.0 / sqrt(x))
CUDA_FUNCTION(float, normcdff, (float x), 0.5f * erfcf(-x * 0.70710678118654752f))
CUDA_FUNCTION(double, __dadd_rn, (double x, double y), x + y)
CUDA_FUNCTION(double, __dmul_rn, (double x, double y), x *y)
CUDA_FUNCTION(double, __fma_rn, (double x, double y, double z), fma(x, y, z))
CUDA_FUNCTION(int, __float2int_rn, (float x), static_cast<int>(rintf(x)))
CUDA_FUNCTION(int, __float2int_rz, (float x), static_cast<int>(x))
CUDA_FUNCTION(int, __float2int_rd, (float x), static_cast<int>(floorf(x)))
CUDA_FUNCTION(int, __popc, (unsigned int x), __builtin_popcount(x))
CUDA_FUNCTION(int, __popcll, (unsigned long long x), __builtin_popcountll(x))
CUDA_FUNCTION(int, __clz, (int x), x == 0 ? 32 : __builtin_clz(static_cast<unsigned int>(x)))
CUDA_FUNCTION(int, __ffs, (int x), __builtin_ffs(x))
CUDA_FUNCTION(unsigned int, __umulhi, (unsigned int x, unsigned int y),
              static_cast<unsigned int>(static_cast<unsigned long long>(x) * y >> 32))
CUDA_FUNCTION(unsigned long long, __umul64hi, (unsigned long long x, unsigned long long y),
              static_cast<unsigned long long>(static_cast<unsigned __int128>(x) * y >> 64))
#undef CUDA_FUNCTION

#endif
