/* pool_cuda.cuh - windows over images [n, in.., c] for GPU kernels.
 *
 * Forward: a thread owns one window and N channels, and reads the taps in order. Backward: a
 * thread owns one element of x and N channels, and reads the windows of that element in order,
 * so no kernel needs atomics. N elements are 16 bytes if the channels allow it, else N is 1. */
#ifndef OP_POOL_POOL_CUDA_CUH
#define OP_POOL_POOL_CUDA_CUH

#include "op/op_cuda.cuh"

extern "C" {
#include "op/pool/pool_priv.h"
}

/* An op_window of three axes, images and channels. */
struct pool_windows {
    int32_t in[3], out[3], kernel[3], stride[3], lo[3];
    int32_t reach[3]; /* elements from the first tap of a window to its last */
    struct op_small_divisor by_stride[3], dilation[3];
    uint32_t c;
    uint64_t n;
    /* The work of a launch: `packs` packs of channels, of a pixel, in a space of three axes. */
    uint64_t packs;
    bool is_small; /* fewer than 2^31 packs: small_* are used */
    struct op_divisor pixel, space[3];
    struct op_small_divisor small_pixel, small_space[3];
};

/* Validates that indices along an axis, and sums of them, fit in 31 bits. Errors:
 * ERR_UNSUPPORTED. */
static inline int pool_plan(const struct op_plan *p, const struct op_window *window,
                            struct err *err)
{
    const int64_t most = 1 << 30;

    for (uint32_t k = 0; k < window->spatial; k++) {
        int64_t reach = (window->kernel[k] - 1) * window->dilation[k];

        if (window->in[k] > most || window->out[k] > most || reach > most)
            return err_set(err, ERR_UNSUPPORTED,
                           "%s '%s': axis %u of %lld elements, with windows that reach over %lld; a GPU takes up "
                           "to %lld: train with --devices cpu", p->def->name, p->node, k + 2,
                           (long long)window->in[k], (long long)reach + 1, (long long)most);
    }
    return 0;
}

static inline struct pool_windows pool_windows_of(const struct op_window *window,
                                                  const struct tensor *x)
{
    struct op_window w = op_window_lift(window, 3);
    struct pool_windows p = {};

    for (int k = 0; k < 3; k++) {
        p.in[k] = (int32_t)w.in[k];
        p.out[k] = (int32_t)w.out[k];
        p.kernel[k] = (int32_t)w.kernel[k];
        p.stride[k] = (int32_t)w.stride[k];
        p.lo[k] = (int32_t)w.pad_lo[k];
        p.reach[k] = (int32_t)((w.kernel[k] - 1) * w.dilation[k]);
        p.by_stride[k] = op_small_divisor_of((uint32_t)w.stride[k]);
        p.dilation[k] = op_small_divisor_of((uint32_t)w.dilation[k]);
    }
    p.c = (uint32_t)x->shape.dim[1];
    p.n = (uint64_t)x->shape.dim[0];
    return p;
}

/* The number of elements of x (space: w->in) or of y (w->out). */
static inline uint64_t pool_size(const struct pool_windows *w, const int32_t *space)
{
    return w->n * (uint64_t)space[0] * (uint64_t)space[1] * (uint64_t)space[2] * w->c;
}

/* Prepares a launch over packs of n channels in `space`, which is w->in or w->out. */
static inline void pool_walk(struct pool_windows *w, const int32_t *space, uint32_t n)
{
    w->packs = pool_size(w, space) / n;
    w->is_small = w->packs <= INT32_MAX;
    w->pixel = op_divisor_of(w->c / n);
    w->small_pixel = op_small_divisor_of(w->c / n);
    for (int k = 0; k < 3; k++) {
        w->space[k] = op_divisor_of((uint64_t)space[k]);
        w->small_space[k] = op_small_divisor_of((uint32_t)space[k]);
    }
}

/* The channels, the position and the image of thread i. */
struct pool_place {
    uint64_t image;
    int32_t at[3];
    uint32_t channel;
};

template <int N, typename I, typename D>
__device__ static inline struct pool_place pool_place_by(I i, const D &pixel, const D (&space)[3])
{
    struct pool_place p;

    p.channel = (uint32_t)op_digit(&i, pixel) * N;
    for (int k = 3; k-- > 0;)
        p.at[k] = (int32_t)op_digit(&i, space[k]);
    p.image = i;
    return p;
}

template <int N>
__device__ static inline struct pool_place pool_place_of(const struct pool_windows &w, uint64_t i)
{
    return w.is_small ? pool_place_by<N>((uint32_t)i, w.small_pixel, w.small_space)
                      : pool_place_by<N>(i, w.pixel, w.space);
}

/* The number of line `at` along axis k of `space`; `outer` is the number of the enclosing line. */
__device__ static inline uint64_t pool_line(const int32_t *space, int k, uint64_t outer, int32_t at)
{
    return outer * (uint64_t)space[k] + (uint64_t)at;
}

/* The index of the first of N channels at element `at` of a line of the last axis. */
__device__ static inline uint64_t pool_index(const struct pool_windows &w, const int32_t *space,
                                             uint64_t line, int32_t at, const struct pool_place &p)
{
    return pool_line(space, 2, line, at) * w.c + p.channel;
}

/* Along axis k: taps tap .. tap + n - 1 of window e are inside x, the first at element `at`. */
struct pool_taps {
    int32_t tap, at, n;
};

__device__ static inline struct pool_taps pool_taps_of(const struct pool_windows &w, int k,
                                                       int32_t e)
{
    int32_t step = (int32_t)w.dilation[k].by, start = e * w.stride[k] - w.lo[k],
            room = w.in[k] - 1 - start;
    int32_t first = start < 0 ? (int32_t)op_divide((uint32_t)(step - 1 - start), w.dilation[k]) : 0;
    int32_t last = room < 0 ? -1 : (int32_t)op_divide((uint32_t)room, w.dilation[k]);

    last = last < w.kernel[k] - 1 ? last : w.kernel[k] - 1;
    return { first, start + first * step, last >= first ? last - first + 1 : 0 };
}

/* Along axis k: windows first .. last may read element p. pool_tap() returns the tap that reads it,
 * or -1. */
struct pool_span {
    int32_t first, last;
};

__device__ static inline struct pool_span pool_span_of(const struct pool_windows &w, int k,
                                                       int32_t p)
{
    int32_t at = p + w.lo[k], reach = w.reach[k];
    int32_t first =
        at > reach ? (int32_t)op_divide((uint32_t)(at - reach + w.stride[k] - 1), w.by_stride[k])
                   : 0;
    int32_t last = (int32_t)op_divide((uint32_t)at, w.by_stride[k]);

    return { first < w.out[k] ? first : w.out[k], last < w.out[k] - 1 ? last : w.out[k] - 1 };
}

__device__ static inline int32_t pool_tap(const struct pool_windows &w, int k, int32_t e, int32_t p)
{
    uint32_t from = (uint32_t)(p + w.lo[k] - e * w.stride[k]), tap = op_divide(from, w.dilation[k]);

    return tap * w.dilation[k].by == from ? (int32_t)tap : -1;
}

/* Calls use(i, load(i)) for i from 0 to n - 1, with two loads in flight. */
template <typename L, typename U> __device__ static inline void pool_each(int32_t n, L load, U use)
{
    for (int32_t i = 0; i < n; i += 2) {
        auto one = load(i), other = load(i + 1 < n ? i + 1 : i);

        use(i, one);
        if (i + 1 < n)
            use(i + 1, other);
    }
}

/* Adds at most 32 numbers, then these sums, so that the error does not grow with the window. */
template <int N> struct pool_sum {
    float sum[N] = {}, part[N] = {};
    uint32_t n = 0;

    /* Called after each addition to part. */
    __device__ void counted()
    {
        if (++n % 32 == 0)
            flush();
    }

    __device__ void flush()
    {
#pragma unroll
        for (int k = 0; k < N; k++) {
            sum[k] += part[k];
            part[k] = 0;
        }
    }
};

/* Runs a statement with N = 16 bytes of T_ if channels and memory allow it, else with N = 1. */
#define POOL_PACKED(T_, w_, aligned_, ...)                                                             \
    if ((w_)->c % op_pack<T_>::N == 0 && (aligned_)) {                                                 \
        constexpr int N = (int)op_pack<T_>::N;                                                         \
        __VA_ARGS__;                                                                                   \
    } else {                                                                                           \
        constexpr int N = 1;                                                                           \
        __VA_ARGS__;                                                                                   \
    }

/* In such a statement: launches a kernel whose last argument is w_ or a struct that begins with
 * it. */
#define POOL_LAUNCH(kernel_, w_, space_, stream_, ...)                                                 \
    do {                                                                                               \
        pool_walk(w_, (w_)->space_, N);                                                                \
        CUDA_LAUNCH(kernel_, op_blocks((w_)->packs, OP_THREADS), OP_THREADS, 0, stream_, __VA_ARGS__); \
    } while (0)

#endif
