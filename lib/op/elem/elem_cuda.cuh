/* elem_cuda.cuh - element-wise ops of several operands with broadcasting, on a GPU: see elem.h.
 *
 * The loops of loops.h, made at plan time, become axes with a step for every tensor of a kernel:
 * the `streams` that it reads, and the tensor that it writes. An op is a functor per result:
 *
 *   elem_cuda_run(loops, queue, to, add, f, err, streams...)
 *       to[i] = f(streams at i ...), or +=
 *   elem_cuda_grad(loops, queue, k, to, scratch, add, f, err, streams...)
 *       the same, summed to the shape of operand k; without a sum if that is dense
 *
 * A stream of V is elem_in<V>{ tensor, operand }, with the operand ELEM_DENSE for a tensor in
 * the order of the dense one (the output, its gradient). V is the type of the argument of f:
 * float for all floating types, which are distinguished at the call; else the type of the
 * elements. f returns a float (stored as the type of `to`), a bool or an integer.
 *
 * Sums are float32: a thread adds four terms as a tree, and such trees in sequence; the threads
 * of a block are added as a tree. If there are too few blocks to fill a GPU, the rows are split
 * among several blocks, and another launch adds their sums. The order depends on the shapes
 * alone. */
#ifndef OP_ELEM_ELEM_CUDA_CUH
#define OP_ELEM_ELEM_CUDA_CUH

#include <utility>

#include "op/op_cuda.cuh"

extern "C" {
#include "op/elem/loops.h"
}

enum { ELEM_DENSE = -1, ELEM_STREAMS = ELEM_OPERANDS + 1, ELEM_TO = ELEM_STREAMS };

template <typename V> struct elem_in {
    const struct tensor *t;
    int operand;
};

/* ---- arguments of the kernels ---- */

struct elem_axes { /* outermost first; at least one */
    uint32_t n;
    struct {
        struct op_divisor size;
        ptrdiff_t step[ELEM_STREAMS + 1]; /* of each stream, and of the tensor that is written */
    } axis[ELEM_AXES];
};

template <typename V> struct elem_stream {
    const void *data;
    enum tensor_dtype dtype;
    bool is_packed; /* the elements of a pack are contiguous and aligned */
    ptrdiff_t step; /* from one element to the next */
};

/* Computes the offset of element i of the axes in each tensor. */
__device__ static inline void elem_find(const struct elem_axes &a, size_t i, ptrdiff_t *at)
{
    for (uint32_t s = 0; s <= ELEM_STREAMS; s++)
        at[s] = 0;
    for (uint32_t k = a.n - 1; k > 0; k--) {
        size_t q = op_divide(i, a.axis[k].size), rest = i - q * a.axis[k].size.by;

#pragma unroll
        for (uint32_t s = 0; s <= ELEM_STREAMS; s++)
            at[s] += (ptrdiff_t)rest * a.axis[k].step[s];
        i = q;
    }
#pragma unroll
    for (uint32_t s = 0; s <= ELEM_STREAMS; s++)
        at[s] += (ptrdiff_t)i * a.axis[0].step[s];
}

/* U packs of one stream. */
template <typename V, size_t U, size_t N> struct elem_packs {
    V v[U][N];
};

/* Loads stream K, whose elements are of type T; issues all loads before the first use. */
template <typename T, size_t K, typename V, size_t U, size_t N>
__device__ static inline void elem_load_as(const elem_stream<V> &in,
                                           const ptrdiff_t (&at)[U][ELEM_STREAMS + 1],
                                           elem_packs<V, U, N> &to)
{
    const T *p = (const T *)in.data;

    if (in.is_packed) {
        op_pack<T, N> x[U];

#pragma unroll
        for (size_t u = 0; u < U; u++)
            x[u] = *(const op_pack<T, N> *)(p + at[u][K]);
#pragma unroll
        for (size_t k = 0; k < U * N; k++)
            to.v[k / N][k % N] = op_wide(x[k / N].v[k % N]);
    } else {
        T x[U][N];

#pragma unroll
        for (size_t k = 0; k < U * N; k++)
            x[k / N][k % N] = p[at[k / N][K] + (ptrdiff_t)(k % N) * in.step];
#pragma unroll
        for (size_t k = 0; k < U * N; k++)
            to.v[k / N][k % N] = op_wide(x[k / N][k % N]);
    }
}

template <size_t N, size_t K, size_t U, typename V>
__device__ static inline elem_packs<V, U, N> elem_load_all(
    const elem_stream<V> &in, const ptrdiff_t (&at)[U][ELEM_STREAMS + 1])
{
    elem_packs<V, U, N> x;

    if constexpr (std::is_same_v<V, float>)
        OP_FLOATS(in.dtype, elem_load_as<T, K>(in, at, x))
    else
        elem_load_as<V, K>(in, at, x);
    return x;
}

template <typename T, size_t N, typename R>
__device__ static inline void elem_store_as(void *to, ptrdiff_t at, ptrdiff_t step, bool add,
                                            const R *v)
{
    T *p = (T *)to + at;

    if (N > 1 && step == 1) {
        op_pack<T, N> x;

        if (add)
            x = *(op_pack<T, N> *)p;
#pragma unroll
        for (size_t k = 0; k < N; k++)
            x.v[k] = add ? op_narrow<T>(op_wide(x.v[k]) + v[k]) : op_narrow<T>(v[k]);
        *(op_pack<T, N> *)p = x;
    } else {
#pragma unroll
        for (size_t k = 0; k < N; k++) {
            T *one = p + (ptrdiff_t)k * step;

            *one = add ? op_narrow<T>(op_wide(*one) + v[k]) : op_narrow<T>(v[k]);
        }
    }
}

/* step 1: the N elements are contiguous and aligned. */
template <size_t N, typename R>
__device__ static inline void elem_store(void *to, enum tensor_dtype dtype, ptrdiff_t at,
                                         ptrdiff_t step, bool add, const R *v)
{
    if constexpr (std::is_same_v<R, float>)
        OP_FLOATS(dtype, elem_store_as<T, N>(to, at, step, add, v))
    else
        elem_store_as<std::conditional_t<std::is_same_v<R, bool>, uint8_t, R>, N>(to, at, step, add,
                                                                                  v);
}

/* ---- kernels ---- */

/* to[i] = f(...): in each iteration a thread computes two packs of N elements of the innermost
 * axis. */
template <size_t N, typename F, typename... V>
__global__ void elem_each(void *to, enum tensor_dtype dtype, size_t packs, bool add,
                          struct elem_axes axes, F f, elem_stream<V>... in)
{
    size_t step = (size_t)gridDim.x * blockDim.x;

    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < packs; i += 2 * step) {
        size_t j = i + step < packs ? i + step : i;
        ptrdiff_t at[2][ELEM_STREAMS + 1];
        auto both = [&](const auto &...x) {
#pragma unroll
            for (size_t u = 0; u < 2; u++) {
                decltype(f(x.v[0][0]...)) r[N];

                if (u == 1 && j == i)
                    break;
#pragma unroll
                for (size_t k = 0; k < N; k++)
                    r[k] = f(x.v[u][k]...);
                elem_store<N>(to, dtype, (ptrdiff_t)((u == 0 ? i : j) * N), 1, add, r);
            }
        };

        elem_find(axes, i * N, at[0]);
        elem_find(axes, j * N, at[1]);
        [&]<size_t... K>(std::index_sequence<K...>) {
            both(elem_load_all<N, K>(in, at)...);
        }(std::index_sequence_for<V...>());
    }
}

/* The destination of the sums: the operand, or a row of `parts` if the rows are split. */
struct elem_sums {
    void *to;
    enum tensor_dtype dtype;
    bool add;
    float *parts;  /* NULL, or [splits, kept] */
    size_t kept;   /* number of sums */
    size_t terms;  /* terms of each sum; packs of terms for elem_rows */
    size_t split;  /* terms that a block sums */
};

/* Adds the terms first, first + step, ... of split blockIdx.y, for the pack of sums at `base`.
 * one(k, x) adds x to sum k. */
template <size_t N, typename F, typename One, typename... V>
__device__ static inline void elem_add_up(const struct elem_sums &s,
                                          const struct elem_axes &reduced, const ptrdiff_t *base,
                                          size_t pack, unsigned first, unsigned step, F f, One one,
                                          const elem_stream<V> &...in)
{
    size_t begin = blockIdx.y * s.split,
           end = begin + s.split < s.terms ? begin + s.split : s.terms;

    for (size_t r = begin + first; r < end; r += 4 * (size_t)step) {
        ptrdiff_t at[4][ELEM_STREAMS + 1];
        float term[4][N];
        auto all = [&](const auto &...x) {
#pragma unroll
            for (size_t u = 0; u < 4; u++)
#pragma unroll
                for (size_t k = 0; k < N; k++)
                    term[u][k] = r + u * step < end ? (float)f(x.v[u][k]...) : 0.0f;
        };

#pragma unroll
        for (size_t u = 0; u < 4; u++) {
            elem_find(reduced, (r + u * step < end ? r + u * step : r) * pack, at[u]);
#pragma unroll
            for (uint32_t k = 0; k < ELEM_STREAMS; k++)
                at[u][k] += base[k];
        }
        [&]<size_t... K>(std::index_sequence<K...>) {
            all(elem_load_all<N, K>(in, at)...);
        }(std::index_sequence_for<V...>());
#pragma unroll
        for (size_t k = 0; k < N; k++)
            one(k, (term[0][k] + term[1][k]) + (term[2][k] + term[3][k]));
    }
}

static constexpr unsigned ELEM_BLOCK = 256;

/* The innermost axis is kept. A thread (x, y) owns the pack of N sums number blockIdx.x *
 * blockDim.x + x and every blockDim.y-th term of the split; blockDim.x * blockDim.y <= ELEM_BLOCK,
 * both powers of two. */
template <size_t N, typename F, typename... V>
__global__ void elem_columns(struct elem_sums s, struct elem_axes kept, struct elem_axes reduced,
                             F f, elem_stream<V>... in)
{
    __shared__ float room[ELEM_BLOCK * N];
    size_t p = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    float *mine = room + (threadIdx.y * blockDim.x + threadIdx.x) * N;
    bool is_there = p * N < s.kept;
    ptrdiff_t base[ELEM_STREAMS + 1];
    float sum[N] = { 0 };

    if (is_there) {
        elem_find(kept, p * N, base);
        elem_add_up<N>(s, reduced, base, 1, threadIdx.y, blockDim.y, f,
                       [&](size_t k, float x) { sum[k] += x; }, in...);
    }
    for (size_t k = 0; k < N; k++)
        mine[k] = sum[k];
    for (unsigned half = blockDim.y / 2; half > 0; half /= 2) {
        __syncthreads();
        for (size_t k = 0; k < N && threadIdx.y < half; k++)
            mine[k] += mine[half * blockDim.x * N + k];
    }
    if (!is_there || threadIdx.y > 0)
        return;
    if (s.parts != NULL)
        elem_store<N>(s.parts, TENSOR_F32, (ptrdiff_t)(blockIdx.y * s.kept + p * N), 1, false,
                      mine);
    else
        elem_store<N>(s.to, s.dtype, base[ELEM_TO], kept.axis[kept.n - 1].step[ELEM_TO], s.add,
                      mine);
}

/* The innermost axis is summed. blockDim.x threads, a warp or ELEM_BLOCK, own sum number
 * blockIdx.x * blockDim.y + threadIdx.y, each every blockDim.x-th pack of N terms of the split. */
template <size_t N, typename F, typename... V>
__global__ void elem_rows(struct elem_sums s, struct elem_axes kept, struct elem_axes reduced, F f,
                          elem_stream<V>... in)
{
    __shared__ float room[32];
    size_t m = (size_t)blockIdx.x * blockDim.y + threadIdx.y;
    ptrdiff_t base[ELEM_STREAMS + 1];
    float sum = 0;

    if (m < s.kept) {
        elem_find(kept, m, base);
        elem_add_up<N>(s, reduced, base, N, threadIdx.x, blockDim.x, f, [&](size_t, float x) { sum += x; }, in...);
    }
    sum = blockDim.x > 32 ? op_block_sum(sum, room) : op_warp_sum(sum);
    if (m >= s.kept || threadIdx.x > 0)
        return;
    if (s.parts != NULL)
        s.parts[blockIdx.y * s.kept + m] = sum;
    else
        elem_store<1>(s.to, s.dtype, base[ELEM_TO], 0, s.add, &sum);
}

/* ---- host: axes and streams of a call ---- */

struct elem_list { /* axes of the host: steps of the operands and, last, of the dense tensor */
    uint32_t n;
    struct {
        size_t size;
        ptrdiff_t step[ELEM_OPERANDS + 1];
    } axis[ELEM_AXES];
};

static inline struct elem_list elem_list_of(const struct elem_loops *s)
{
    struct elem_list l = {};
    ptrdiff_t dense = 1;

    for (uint32_t k = 0; k < s->n_outer + 2; k++) {
        bool is_row = k == s->n_outer, is_outer = k < s->n_outer;

        if (is_row && s->tile.rows == 1)
            continue;
        l.axis[l.n].size = is_outer ? s->outer[k].size : is_row ? s->tile.rows : s->tile.n;
        for (uint32_t i = 0; i < ELEM_OPERANDS; i++)
            l.axis[l.n].step[i] = is_outer ? s->outer[k].step[i]
                                  : is_row ? s->tile.at[i].row
                                           : s->tile.at[i].step;
        l.n++;
    }
    for (uint32_t k = l.n; k-- > 0; dense *= (ptrdiff_t)l.axis[k].size)
        l.axis[k].step[ELEM_OPERANDS] = dense;
    return l;
}

static inline ptrdiff_t elem_list_step(const struct elem_list *l, uint32_t axis, int operand)
{
    return l->axis[axis].step[operand == ELEM_DENSE ? (int)ELEM_OPERANDS : operand];
}

/* The axes for a kernel that reads these operands and writes `to`; at least one, of size 1. */
static inline struct elem_axes elem_axes_of(const struct elem_list *l, const int *operands,
                                            uint32_t n, int to)
{
    struct elem_axes a = {};

    a.n = l->n > 0 ? l->n : 1;
    a.axis[0].size = op_divisor_of(1);
    for (uint32_t k = 0; k < l->n; k++) {
        a.axis[k].size = op_divisor_of(l->axis[k].size);
        for (uint32_t i = 0; i < n; i++)
            a.axis[k].step[i] = elem_list_step(l, k, operands[i]);
        a.axis[k].step[ELEM_TO] = elem_list_step(l, k, to);
    }
    return a;
}

/* Are packs of `pack` elements of the innermost axis of `inner` contiguous, at multiples of their
 * size? */
static inline bool elem_packs_lie(const struct tensor *t, int operand, size_t pack,
                                  const struct elem_list *inner, const struct elem_list *other)
{
    const struct elem_list *lists[] = { inner, other };
    size_t bytes = pack * tensor_dtype_bytes(t->dtype);

    if (elem_list_step(inner, inner->n - 1, operand) != 1 ||
        (uintptr_t)t->data % (bytes < 16 ? bytes : 16) != 0)
        return false;
    for (const struct elem_list *l : lists)
        for (uint32_t k = 0; l != NULL && k < l->n; k++)
            if ((l != inner || k + 1 < l->n) &&
                elem_list_step(l, k, operand) % (ptrdiff_t)pack != 0)
                return false;
    return true;
}

template <typename V>
static inline elem_stream<V> elem_stream_of(const elem_in<V> &in, size_t pack,
                                            const struct elem_list *inner,
                                            const struct elem_list *other)
{
    return { in.t->data, in.t->dtype, elem_packs_lie(in.t, in.operand, pack, inner, other),
             elem_list_step(inner, inner->n - 1, in.operand) };
}

/* ---- host: element by element ---- */

template <size_t N, typename F, typename... V>
static inline void elem_launch_each(const struct elem_list *l, size_t total, cudaStream_t q,
                                    const struct tensor *to, bool add, F f, const elem_in<V> &...in)
{
    const int operands[] = { in.operand... };

    CUDA_LAUNCH((elem_each<N, F, V...>), op_blocks(total, OP_THREADS * N), OP_THREADS, 0, q,
                to->data, to->dtype, total / N, add,
                elem_axes_of(l, operands, sizeof...(V), ELEM_DENSE), f,
                elem_stream_of(in, N, l, NULL)...);
}

template <typename F, typename... V> static constexpr bool elem_all_floats()
{
    return (std::is_same_v<V, float> && ...) &&
           std::is_same_v<decltype(std::declval<F>()(V()...)), float>;
}

/* Do all streams have the layout and the type of `to`? Then a simpler kernel (op_cuda.cuh) issues
 * all loads before it waits for the first. */
template <typename... V>
static inline bool elem_is_plain(const struct elem_list *l, const struct tensor *to,
                                 const elem_in<V> &...in)
{
    return l->n == 1 &&
           ((in.t->dtype == to->dtype && elem_list_step(l, 0, in.operand) == 1) && ...);
}

/* `to` has the order of the dense tensor. */
template <typename F, typename... V>
static inline int elem_cuda_run(const struct elem_loops *s, cudaStream_t q, const struct tensor *to,
                                bool add, F f, struct err *err, const elem_in<V> &...in)
{
    constexpr bool may_be_narrow = ((std::is_same_v<V, float> || sizeof(V) <= 2) && ...);
    struct elem_list l = elem_list_of(s);
    size_t inner, widest = tensor_dtype_bytes(to->dtype);

    if (s->total == 0)
        return 0;
    if constexpr (elem_all_floats<F, V...>())
        if (elem_is_plain(&l, to, in...))
            OP_FLOATS(to->dtype, return op_each(q, (T *)to->data, s->total, add, f, err,
                                                (const T *)in.t->data...));
    inner = l.axis[l.n - 1].size;
    ((widest =
          elem_list_step(&l, l.n - 1, in.operand) != 0 && tensor_dtype_bytes(in.t->dtype) > widest
              ? tensor_dtype_bytes(in.t->dtype)
              : widest),
     ...);
    if (!op_aligned(to->data) || inner % 4 != 0)
        elem_launch_each<1>(&l, s->total, q, to, add, f, in...);
    else if (inner % 8 != 0 || widest > 2)
        elem_launch_each<4>(&l, s->total, q, to, add, f, in...);
    else if constexpr (may_be_narrow)
        elem_launch_each<8>(&l, s->total, q, to, add, f, in...);
    return cuda_launched(err);
}

/* ---- host: sums ---- */

struct elem_sum_plan {
    struct elem_list kept, reduced; /* both in the order of the dense tensor's memory */
    size_t sums, terms;
    bool columns;  /* the innermost axis is kept */
    size_t pack;   /* elements of it that a thread loads at a time */
    dim3 block, grid;
    size_t split;  /* terms, or packs of terms, of a block; grid.y is the number of splits */
};

static inline unsigned elem_power_of_two(size_t n, unsigned most)
{
    unsigned p = 1;

    while (p < n && p < most)
        p *= 2;
    return p;
}

static inline void elem_choose_grid(struct elem_sum_plan *p)
{
    /* blocks; minimum of terms per thread */
    static const size_t enough = OP_PROCESSORS * 8, least = 16;
    size_t blocks, terms = p->terms, width, splits;

    p->pack =
        (p->columns ? p->kept : p->reduced).axis[(p->columns ? p->kept : p->reduced).n - 1].size %
                    4 ==
                0
            ? 4
            : 1;
    if (p->columns) {
        size_t packs = p->sums / p->pack;

        p->block.y = elem_power_of_two(terms, ELEM_BLOCK / elem_power_of_two(packs, 32));
        p->block.x = elem_power_of_two(packs, ELEM_BLOCK / p->block.y);
        blocks = (packs + p->block.x - 1) / p->block.x;
        width = p->block.y;
    } else {
        terms /= p->pack;
        p->block.x = terms > 1024 ? ELEM_BLOCK : 32;
        p->block.y = ELEM_BLOCK / p->block.x;
        blocks = (p->sums + p->block.y - 1) / p->block.y;
        width = p->block.x;
    }
    splits = blocks >= enough ? 1 : enough / blocks;
    p->split = (terms + splits - 1) / splits;
    p->split = p->split < width * least ? width * least : p->split;
    p->grid = dim3((unsigned)blocks, (unsigned)((terms + p->split - 1) / p->split));
}

/* The loop must not be empty. */
static inline struct elem_sum_plan elem_sum_plan_of(const struct elem_loops *s, uint32_t k)
{
    struct elem_list l = elem_list_of(s);
    struct elem_sum_plan p = {};

    p.sums = p.terms = 1;
    for (uint32_t i = 0; i < l.n; i++) {
        bool is_kept = l.axis[i].step[k] != 0;
        struct elem_list *to = is_kept ? &p.kept : &p.reduced;

        to->axis[to->n++] = l.axis[i];
        *(is_kept ? &p.sums : &p.terms) *= l.axis[i].size;
        p.columns = is_kept;
    }
    elem_choose_grid(&p);
    return p;
}

/* Bytes of scratch of elem_cuda_grad() for operand k. */
static inline size_t elem_cuda_scratch(const struct elem_loops *s, uint32_t k)
{
    struct elem_sum_plan p;

    if (s->total == 0 || s->dense[k])
        return 0;
    p = elem_sum_plan_of(s, k);
    return p.grid.y > 1 ? p.grid.y * p.sums * sizeof(float) : 0;
}

template <size_t N, typename F, typename... V>
static inline void elem_launch_sum(const struct elem_sum_plan *p, const struct elem_sums &s, int to,
                                   cudaStream_t q, F f, const elem_in<V> &...in)
{
    const int operands[] = { in.operand... };
    struct elem_axes kept = elem_axes_of(&p->kept, operands, sizeof...(V), to);
    struct elem_axes reduced = elem_axes_of(&p->reduced, operands, sizeof...(V), to);
    const struct elem_list *inner = p->columns ? &p->kept : &p->reduced,
                           *other = p->columns ? &p->reduced : &p->kept;

    if (p->columns)
        CUDA_LAUNCH((elem_columns<N, F, V...>), p->grid, p->block, 0, q, s, kept, reduced, f,
                    elem_stream_of(in, N, inner, other)...);
    else
        CUDA_LAUNCH((elem_rows<N, F, V...>), p->grid, p->block, 0, q, s, kept, reduced, f,
                    elem_stream_of(in, N, inner, other)...);
}

template <typename F, typename... V>
static inline void elem_launch_sums(struct elem_sum_plan *p, struct elem_sums s, int k,
                                    cudaStream_t q, F f, const elem_in<V> &...in)
{
    const struct tensor to = { .dtype = s.dtype, .data = s.to };

    /* Sums that are not contiguous in the operand are stored one by one, as packs of 1. */
    if (p->columns && p->pack > 1 && s.parts == NULL &&
        elem_list_step(&p->kept, p->kept.n - 1, k) == 1 &&
        !elem_packs_lie(&to, k, p->pack, &p->kept, NULL)) {
        p->pack = 1;
        p->grid.x = (unsigned)((p->sums + p->block.x - 1) / p->block.x);
    }
    if (p->pack == 4)
        elem_launch_sum<4>(p, s, k, q, f, in...);
    else
        elem_launch_sum<1>(p, s, k, q, f, in...);
}

/* Adds the parts of all splits: the columns of a matrix [splits, sums]. */
static inline void elem_sum_parts(const struct elem_sum_plan *whole, struct elem_sums s, int k,
                                  cudaStream_t q)
{
    const struct tensor parts = { .dtype = TENSOR_F32, .data = s.parts };
    struct elem_sum_plan p = *whole;
    ptrdiff_t dense = 1;

    p.terms = whole->grid.y;
    p.reduced = {};
    p.reduced.n = 1;
    p.reduced.axis[0].size = p.terms;
    p.reduced.axis[0].step[ELEM_OPERANDS] = (ptrdiff_t)p.sums;
    if (p.kept.n == 0) { /* one sum */
        p.kept.n = 1;
        p.kept.axis[0].size = 1;
    }
    for (uint32_t i = p.kept.n; i-- > 0; dense *= (ptrdiff_t)p.kept.axis[i].size)
        p.kept.axis[i].step[ELEM_OPERANDS] = dense;
    p.columns = true;
    elem_choose_grid(&p);
    p.grid.y = 1;
    s.parts = NULL;
    s.terms = s.split = p.terms;
    elem_launch_sums(&p, s, k, q, op_same(), elem_in<float>{ &parts, ELEM_DENSE });
}

/* to: of the shape of operand k. */
template <typename F, typename... V>
static inline int elem_cuda_grad(const struct elem_loops *s, cudaStream_t q, uint32_t k,
                                 const struct tensor *to, void *scratch, bool add, F f,
                                 struct err *err, const elem_in<V> &...in)
{
    struct elem_sum_plan p;
    struct elem_sums sums;

    if (s->dense[k])
        return elem_cuda_run(s, q, to, add, f, err, in...);
    if (s->total == 0)
        return add || tensor_bytes(to) == 0
                   ? 0
                   : cuda_check(cudaMemsetAsync(to->data, 0, tensor_bytes(to), q), err,
                                "zero a gradient");
    p = elem_sum_plan_of(s, k);
    sums = { to->data, to->dtype, add, p.grid.y > 1 ? (float *)scratch : NULL, p.sums,
             p.columns ? p.terms : p.terms / p.pack, p.split };
    elem_launch_sums(&p, sums, (int)k, q, f, in...);
    if (sums.parts != NULL)
        elem_sum_parts(&p, sums, (int)k, q);
    return cuda_launched(err);
}

#endif
