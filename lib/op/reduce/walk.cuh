/* walk.cuh - GPU kernels that reduce along any axes of a dense tensor, and that broadcast in the
 * opposite direction.
 *
 * The axes of x, in memory order, are kept or reduced ("gone"): each element of y corresponds to
 * the `each` elements of x that differ only in reduced axes. Forward, reduce_run(), folds those
 * into one; backward, reduce_spread(), iterates over x and looks up y. The fold or function is a
 * functor that is copied to the kernel.
 *
 * A block processes `group` elements of y with `lanes` threads each. If the innermost axis is
 * reduced, adjacent threads are lanes of one y, and load 16 bytes at a time if x permits; if it is
 * kept (`columns`), adjacent threads work on adjacent elements of y. Lanes are folded as a tree in
 * shared memory. If y is too small to occupy a GPU, the elements of each y are split into `splits`
 * parts, whose results are stored in scratch and folded by a second kernel. Both trees depend only
 * on the shapes. */
#ifndef OP_REDUCE_WALK_CUH
#define OP_REDUCE_WALK_CUH

#include "op/op_cuda.cuh"

struct reduce_axis { /* an axis of x, the outermost first */
    size_t size;
    bool gone;
    size_t y; /* kept axes: stride in y */
};

struct reduce_step {
    struct op_divisor size;
    size_t x, y, g; /* strides in x, in y, and among the elements of one y */
};

struct reduce_walk {
    uint32_t n, n_kept, n_gone;
    struct reduce_step all[TENSOR_MAX_RANK], kept[TENSOR_MAX_RANK], gone[TENSOR_MAX_RANK];
    size_t total, ys, each; /* elements of x, of y, and of x per element of y */
    bool columns;
    bool is_run;  /* the elements of each y are contiguous */
    bool aligned; /* and multiples of a pack, if x is aligned */
    unsigned group, lanes, splits;
    size_t chunk; /* elements per split, a multiple of any pack */
};

/* Computes the division of the work. n <= TENSOR_MAX_RANK axes; `pack`: elements of x that a thread
 * loads at a time if the axes permit it. */
void reduce_walk_make(struct reduce_walk *w, const struct reduce_axis *axes, uint32_t n,
                      size_t pack);

/* Scratch in bytes for reduce_run() with results of acc_bytes. */
static inline size_t reduce_scratch(const struct reduce_walk *w, size_t acc_bytes)
{
    return w->splits > 1 ? w->splits * w->ys * acc_bytes : 0;
}

/* Converts index i over the axes of `at` to offsets in x and y, and, when iterating over all of x,
 * in g. */
__device__ static inline void reduce_locate(const reduce_step *at, uint32_t n, size_t i, size_t *x,
                                            size_t *y, size_t *g)
{
    for (uint32_t k = n; k-- > 0;) {
        size_t high = k > 0 ? op_divide(i, at[k].size) : 0, digit = i - high * at[k].size.by;

        *x += digit * at[k].x;
        *y += digit * at[k].y;
        *g += digit * at[k].g;
        i = high;
    }
}

__device__ static inline size_t reduce_gone_at(const reduce_walk &w, size_t g)
{
    size_t x = 0, y = 0, same = 0;

    if (w.n_gone == 1)
        return g * w.gone[0].x;
    reduce_locate(w.gone, w.n_gone, g, &x, &y, &same);
    return x;
}

/* Folds all lanes of one y into its lane 0, in a fixed tree. room: one element per thread of the
 * block. */
template <typename F>
__device__ static inline typename F::acc reduce_fold(const F &f, typename F::acc acc,
                                                     typename F::acc *room, unsigned lane,
                                                     unsigned lanes, unsigned stride)
{
    for (unsigned half = lanes / 2; half > 0; half /= 2) {
        room[threadIdx.x] = acc;
        __syncthreads();
        if (lane < half)
            acc = f.merge(acc, room[threadIdx.x + half * stride]);
        __syncthreads();
    }
    return acc;
}

/* Folds those of elements [first, last) of one y that belong to one lane, with four loads in
 * flight. */
template <typename F>
__device__ static inline typename F::acc reduce_singles(const F &f, const reduce_walk &w,
                                                        typename F::acc acc, size_t x, size_t first,
                                                        size_t last, unsigned lane,
                                                        const typename F::at &at)
{
    size_t step = w.lanes, g = first + lane;

    for (; g + 3 * step < last; g += 4 * step) {
        typename F::item v[4];

#pragma unroll
        for (unsigned k = 0; k < 4; k++)
            v[k] = f.load(x + reduce_gone_at(w, g + k * step));
#pragma unroll
        for (unsigned k = 0; k < 4; k++)
            acc = f.add(acc, v[k], g + k * step, at);
    }
    for (; g < last; g += step)
        acc = f.add(acc, f.load(x + reduce_gone_at(w, g)), g, at);
    return acc;
}

template <typename F, typename P>
__device__ static inline typename F::acc reduce_add_pack(const F &f, typename F::acc acc,
                                                         const P &p, size_t g,
                                                         const typename F::at &at)
{
    if constexpr (requires { f.add_pack(acc, p, g, at); }) {
        return f.add_pack(acc, p, g, at);
    } else {
#pragma unroll
        for (size_t k = 0; k < P::N; k++)
            acc = f.add(acc, op_wide(p.v[k]), g + k, at);
        return acc;
    }
}

/* Folds elements as reduce_singles() does, in packs: of a contiguous run from its first aligned element on, else of an
 * aligned tensor. */
template <typename F>
__device__ static inline typename F::acc reduce_packs(const F &f, const reduce_walk &w,
                                                      typename F::acc acc, size_t x, size_t first,
                                                      size_t last, unsigned lane,
                                                      const typename F::at &at)
{
    using T = std::remove_cv_t<std::remove_pointer_t<decltype(f.x)>>;
    using P = op_pack<T>;
    size_t head = w.is_run ? (16 - ((uintptr_t)(f.x + x + first) & 15)) % 16 / sizeof(T) : 0, packs,
           i;

    head = head < last - first ? head : last - first;
    packs = (last - first - head) / P::N;
    if (head > 0)
        acc = reduce_singles(f, w, acc, x, first, first + head, lane, at);
    first += head;
    for (i = lane; i + w.lanes < packs; i += 2 * w.lanes) {
        size_t g = first + i * P::N, h = g + w.lanes * P::N;
        P p = *(const P *)(f.x + x + reduce_gone_at(w, g)),
          q = *(const P *)(f.x + x + reduce_gone_at(w, h));

        acc = reduce_add_pack(f, acc, p, g, at);
        acc = reduce_add_pack(f, acc, q, h, at);
    }
    if (i < packs)
        acc = reduce_add_pack(f, acc, *(const P *)(f.x + x + reduce_gone_at(w, first + i * P::N)),
                              first + i * P::N, at);
    return reduce_singles(f, w, acc, x, first + packs * P::N, last, lane, at);
}

/* y[j] = fold of all its elements, or of split blockIdx.y. Grid: groups of y, splits. */
template <typename F, bool PACKED>
__global__ void reduce_kernel(F f, const reduce_walk w, typename F::acc *partial)
{
    CUDA_SHARED(typename F::acc, room);
    unsigned lane = w.columns ? threadIdx.x / w.group : threadIdx.x % w.lanes;
    unsigned mine = w.columns ? threadIdx.x % w.group : threadIdx.x / w.lanes;
    size_t first = blockIdx.y * w.chunk, last = first + w.chunk < w.each ? first + w.chunk : w.each;

    for (size_t from = (size_t)blockIdx.x * w.group; from < w.ys;
         from += (size_t)gridDim.x * w.group) {
        size_t j = from + mine, x = 0, y = 0, g = 0;
        typename F::acc acc = f.start();

        if (j < w.ys) {
            reduce_locate(w.kept, w.n_kept, j, &x, &y, &g);
            if constexpr (PACKED)
                acc = reduce_packs(f, w, acc, x, first, last, lane, f.of(y));
            else
                acc = reduce_singles(f, w, acc, x, first, last, lane, f.of(y));
        }
        acc = reduce_fold(f, acc, room, lane, w.lanes, w.columns ? w.group : 1);
        if (lane == 0 && j < w.ys) {
            if (partial != nullptr)
                partial[blockIdx.y * w.ys + j] = acc;
            else
                f.put(y, acc);
        }
    }
}

/* y[j] = fold of its splits, one warp each. */
template <typename F>
__global__ void reduce_splits_kernel(F f, const reduce_walk w, const typename F::acc *partial)
{
    CUDA_SHARED(typename F::acc, room);
    unsigned lane = threadIdx.x % 32, group = blockDim.x / 32;

    for (size_t from = (size_t)blockIdx.x * group; from < w.ys; from += (size_t)gridDim.x * group) {
        size_t j = from + threadIdx.x / 32, x = 0, y = 0, g = 0;
        typename F::acc acc = f.start();

        for (size_t s = lane; s < w.splits && j < w.ys; s += 32)
            acc = f.merge(acc, partial[s * w.ys + j]);
        acc = reduce_fold(f, acc, room, lane, 32, 1);
        if (j < w.ys)
            reduce_locate(w.kept, w.n_kept, j, &x, &y, &g);
        if (lane == 0 && j < w.ys)
            f.put(y, acc);
    }
}

/* F: a copyable object with
 *   acc                      the folded type; at: per-y values for the fold; item: the loaded type
 *   acc start()              the neutral element
 *   at of(y)
 *   item load(i)             element i of x
 *   acc add(acc, item, g, at)   g: index among the elements of its y, in memory order of x
 *   acc add_pack(acc, pack, g, at)   optional: a whole pack at once, g: of its first element
 *   acc merge(acc, acc)
 *   put(y, acc)              stores the result
 *   x                        if loaded in packs: const T *, for which load() returns op_wide(x[i])
 * scratch: reduce_scratch() bytes. Errors: ERR_DEVICE. */
template <typename F>
static inline int reduce_run(cudaStream_t s, const F &f, const reduce_walk &w, void *scratch,
                             struct err *err)
{
    using acc = typename F::acc;
    acc *partial = w.splits > 1 ? (acc *)scratch : nullptr;
    unsigned threads = w.group * w.lanes;
    dim3 grid((unsigned)((w.ys + w.group - 1) / w.group < 1u << 30 ? (w.ys + w.group - 1) / w.group
                                                                   : 1u << 30),
              w.splits);
    bool packed = false;

    if (w.ys == 0)
        return 0;
    if constexpr (requires { f.x; }) {
        packed = !w.columns && (w.is_run || (w.aligned && op_aligned(f.x)));
        if (packed)
            CUDA_LAUNCH((reduce_kernel<F, true>), grid, threads, threads * sizeof(acc), s, f, w,
                        partial);
    }
    if (!packed)
        CUDA_LAUNCH((reduce_kernel<F, false>), grid, threads, threads * sizeof(acc), s, f, w,
                    partial);
    if (partial != nullptr)
        CUDA_LAUNCH((reduce_splits_kernel<F>), op_blocks(w.ys, w.ys < 8 ? 1 : 8),
                    w.ys < 8 ? 32 : 256, (w.ys < 8 ? 32 : 256) * sizeof(acc), s, f, w,
                    (const acc *)partial);
    return cuda_launched(err);
}

/* ---- broadcast ---- */

template <typename F> struct reduce_spreader {
    F f;
    typename F::number *out;
    bool add;

    using T = typename F::number;

    __device__ void single(const reduce_walk &w, size_t i) const
    {
        size_t x = 0, y = 0, g = 0;
        float v;

        reduce_locate(w.all, w.n, i, &x, &y, &g);
        v = f(f.of(y), f.x != nullptr ? op_wide(f.x[i]) : 0.0f,
              f.t != nullptr ? op_wide(f.t[i]) : 0.0f, g);
        out[i] = op_narrow<T>(add ? op_wide(out[i]) + v : v);
    }

    /* True if elements i .. i + N are along one axis. */
    __device__ bool pack(const reduce_walk &w, size_t i) const
    {
        using P = op_pack<T>;
        const reduce_step last = w.all[w.n - 1];
        size_t x = 0, y = 0, g = 0;
        P v = P(), t = P(), o = P();

        if (i - op_divide(i, last.size) * last.size.by + P::N > last.size.by)
            return false;
        reduce_locate(w.all, w.n, i, &x, &y, &g);
        if (f.x != nullptr)
            v = *(const P *)(f.x + i);
        if (f.t != nullptr)
            t = *(const P *)(f.t + i);
        if (add)
            o = *(const P *)(out + i);
        auto each = [&](auto at, size_t step) { /* step: stride in g */
#pragma unroll
            for (size_t k = 0; k < P::N; k++) {
                float d = f(at(k), op_wide(v.v[k]), op_wide(t.v[k]), g + k * step);

                o.v[k] = op_narrow<T>(add ? op_wide(o.v[k]) + d : d);
            }
        };
        if (last.y == 0) { /* the innermost axis is reduced: all are contiguous elements of one y */
            const auto one = f.of(y);

            each([&](size_t) { return one; }, 1);
        } else {
            each([&](size_t k) { return f.of(y + k * last.y); }, 0);
        }
        *(P *)(out + i) = o;
        return true;
    }
};

/* A thread processes packs of x, in a grid-stride loop. */
template <typename F>
__global__ void reduce_spread_kernel(const reduce_spreader<F> s, const reduce_walk w, bool packed)
{
    constexpr size_t N = op_pack<typename F::number>::N;
    size_t n = packed ? N : 1;

    for (size_t i = ((size_t)blockIdx.x * blockDim.x + threadIdx.x) * n; i < w.total;
         i += (size_t)gridDim.x * blockDim.x * n)
        if (!packed || i + N > w.total || !s.pack(w, i))
#pragma unroll 1
            for (size_t k = i; k < i + n && k < w.total; k++)
                s.single(w, k);
}

/* out (shaped as x) = f, or += f. F: a copyable object with
 *   number                type of out, x and t: float, or one of 16 bits
 *   x, t                  const number *, loaded for each element of out; nullptr: 0 is passed
 *                         instead
 *   of(y)                 per-y values
 *   float (of, x, t, g)
 * out may be x or t. Errors: ERR_DEVICE. */
template <typename F>
static inline int reduce_spread(cudaStream_t s, const F &f, const reduce_walk &w,
                                typename F::number *out, bool add, struct err *err)
{
    reduce_spreader<F> all = { f, out, add };
    bool packed = w.n > 0 && op_aligned(out) && op_aligned(f.x) && op_aligned(f.t);
    size_t per_block = OP_THREADS * (packed ? op_pack<typename F::number>::N : 1);

    if (w.total == 0)
        return 0;
    CUDA_LAUNCH((reduce_spread_kernel<F>), op_blocks(w.total, per_block),
                w.total < per_block / 2 ? 32 : OP_THREADS, 0, s, all, w, packed);
    return cuda_launched(err);
}

#endif
