/* columns_cuda.cuh - loops over x [batch, rows, c], channels last, with values or sums per column
 * and sample: used by batch normalisation (a batch of 1) and by group normalisation.
 *
 * A thread owns one pack of columns, 16 bytes if c is a multiple of a pack, else one column. Up to
 * 32 adjacent threads own adjacent columns; the threads above them process every high-th row. So
 * values per column are read once and stay in registers.
 *
 * norm_sum_columns() computes a pair of floats per column in a fixed order: over the rows of a
 * thread, in a tree over the threads of a block, which processes a slab of the rows; and the last
 * block of a tile to finish adds up the slabs in order. Counters that start and end at 0 identify
 * the last block. A functor defines the summands and the use of the sum:
 *
 *     own_of(sample, channel)         the registers of a thread for its V columns
 *     load(at)                        reads the pack at element `at`
 *     add(own, at, in, nth, pair[V])  adds it: this thread's nth row, from 1
 *     merge(pair, n, other, m)        merges two pairs, of n and m rows; static
 *     finish(sample, channel, pair)   uses the pair of all rows
 *
 * norm_each_column() visits all elements: own_of(), load(at) and put(own, at, in). Both load
 * several rows before they store anything. */
#ifndef OP_NORM_COLUMNS_CUDA_CUH
#define OP_NORM_COLUMNS_CUDA_CUH

#include <stdlib.h>

#include "op/op_cuda.cuh"

static constexpr unsigned NORM_SUM_THREADS = 256, NORM_SUM_BLOCKS = 264, NORM_EACH_ROWS = 16,
                          NORM_AHEAD = 4;

struct norm_columns {
    size_t batch, rows, c;
    unsigned wide;  /* packs per row */
    unsigned side;  /* adjacent threads: a power of 2 up to 32 */
    unsigned high;  /* rows of threads per block in sums: a power of 2 */
    unsigned tiles; /* blocks that share a row */
    unsigned slabs; /* blocks that share the rows in sums; depends only on the shape */
};

/* v: columns per pack. */
static inline struct norm_columns norm_columns_of(size_t batch, size_t rows, size_t c, unsigned v)
{
    struct norm_columns g = { .batch = batch, .rows = rows, .c = c, .wide = (unsigned)(c / v), .side = 1 };
    size_t slabs;

    while (g.side < 32 && g.side < g.wide)
        g.side *= 2;
    g.tiles = (g.wide + g.side - 1) / g.side;
    g.high = 1; /* four rows for each thread, */
    while (g.high * g.side < NORM_SUM_THREADS && g.high * 8 <= rows)
        g.high *= 2;
    slabs = NORM_SUM_BLOCKS / (batch * g.tiles + 1); /* also within a slab */
    slabs = slabs < rows / (4 * g.high) ? slabs : rows / (4 * g.high);
    g.slabs = slabs > 0 ? (unsigned)slabs : 1;
    return g;
}

/* Scratch for norm_sum_columns() in bytes, for any v. */
static inline size_t norm_columns_parts(size_t batch, size_t c)
{
    return (NORM_SUM_BLOCKS * (size_t)32 * 8 + batch * c) * 2 * sizeof(float);
}

/* to [V] = p [V]; p is aligned to V floats. */
template <unsigned V> __device__ static inline void norm_read(const float *p, float (&to)[V])
{
    const op_pack<float, V> all = *(const op_pack<float, V> *)p;

#pragma unroll
    for (unsigned j = 0; j < V; j++)
        to[j] = all.v[j];
}

/* Called by plan: creates the zeroed counters, which are the state of a call that sums columns.
 * Errors: ERR_NOMEM, ERR_DEVICE. */
static inline int norm_open_counters(size_t batch, size_t c, void **out, struct err *err)
{
    void *zeros = calloc(batch * c + 1, sizeof(unsigned));
    int rc = zeros == NULL ? err_set(err, ERR_NOMEM, "out of memory")
                           : cuda_upload(out, zeros, batch * c * sizeof(unsigned), err);

    free(zeros);
    return rc;
}

/* Stores the pairs of a block's slab in part [sample][slab][2][c]. */
template <unsigned V>
__device__ static inline void norm_store_parts(const struct norm_columns &g, size_t sample,
                                               unsigned slab, size_t channel, const float2 *pairs,
                                               float *part)
{
    unsigned threads = blockDim.x;
    float *to = part + (sample * g.slabs + slab) * 2 * g.c + channel;

#pragma unroll
    for (unsigned j = 0; j < V; j++) {
        to[j] = pairs[j * threads].x;
        to[g.c + j] = pairs[j * threads].y;
    }
}

/* Run by the last block: sums the slabs of each column in a fixed order. room: one pair per thread;
 * counts likewise. */
template <unsigned V, typename F>
__device__ static inline void norm_join_slabs(const F &f, const struct norm_columns &g,
                                              size_t sample, unsigned tile,
                                              const volatile float *part, float2 *room,
                                              float *counts)
{
    /* a block of many slabs has 256 threads, at least one for each column */
    unsigned t = threadIdx.x, here = g.side * V, ways = blockDim.x / here, way = t / here;
    size_t channel = (size_t)tile * here + t % here;
    float2 all = { 0, 0 };
    float n = 0;

    for (unsigned slab = way; slab < g.slabs && channel < g.c; slab += ways) {
        const volatile float *from = part + (sample * g.slabs + slab) * 2 * g.c + channel;
        float m = (float)(g.rows * (slab + 1) / g.slabs - g.rows * slab / g.slabs);

        F::merge(all, n, make_float2(from[0], from[g.c]), m);
        n += m;
    }
    room[t] = all;
    counts[t] = n;
    for (unsigned half = ways / 2; half > 0; half /= 2) {
        __syncthreads();
        if (way < half) {
            F::merge(room[t], counts[t], room[t + half * here], counts[t + half * here]);
            counts[t] += counts[t + half * here];
        }
    }
    if (way == 0 && channel < g.c)
        f.finish(sample, channel, room[t]);
}

/* Calls f(at, in) for rows begin, begin + step, ... below end; row 0 is at element `at`. */
template <typename F, typename DO>
__device__ static inline void norm_visit(const F &f, size_t at, size_t c, size_t begin, size_t end,
                                         unsigned step, DO visit)
{
    /* 64 bytes or more in flight */
    constexpr unsigned AHEAD = sizeof(f.load(0)) > 16 ? NORM_AHEAD : 2 * NORM_AHEAD;

    for (size_t r = begin; r < end; r += AHEAD * step) {
        decltype(f.load(0)) in[AHEAD];

#pragma unroll
        for (unsigned k = 0; k < AHEAD; k++)
            if (r + k * step < end)
                in[k] = f.load(at + (r + k * step) * c);
#pragma unroll
        for (unsigned k = 0; k < AHEAD; k++)
            if (r + k * step < end)
                visit(at + (r + k * step) * c, in[k]);
    }
}

template <unsigned V, typename F>
__global__ void __launch_bounds__(NORM_SUM_THREADS, 2)
    norm_sum_columns(F f, struct norm_columns g, float *part, unsigned *arrived)
{
    __shared__ float2 room[V * NORM_SUM_THREADS];
    __shared__ float counts[NORM_SUM_THREADS];
    __shared__ unsigned before;
    unsigned t = threadIdx.x, threads = blockDim.x, y = t / g.side;
    unsigned tile = blockIdx.x % g.tiles, slab = blockIdx.y, pack = tile * g.side + t % g.side;
    size_t sample = blockIdx.x / g.tiles, channel = (size_t)pack * V;
    size_t begin = g.rows * slab / g.slabs + y, end = g.rows * (slab + 1) / g.slabs;
    bool is_in = pack < g.wide;
    float2 pairs[V] = {};
    unsigned n = 0;

    if (is_in) {
        const auto own = f.own_of(sample, channel);

        norm_visit(f, sample * g.rows * g.c + channel, g.c, begin, end, g.high,
                   [&](size_t at, const auto &in) { f.add(own, at, in, ++n, pairs); });
    }
#pragma unroll
    for (unsigned j = 0; j < V; j++)
        room[j * threads + t] = pairs[j];
    counts[t] = (float)n;
    for (unsigned half = g.high / 2; half > 0; half /= 2) {
        __syncthreads();
        if (y < half) {
            unsigned other = t + half * g.side;

#pragma unroll
            for (unsigned j = 0; j < V; j++)
                F::merge(room[j * threads + t], counts[t], room[j * threads + other],
                         counts[other]);
            counts[t] += counts[other];
        }
    }
    if (g.slabs == 1) {
        for (unsigned j = 0; j < V && y == 0 && is_in; j++)
            f.finish(sample, channel + j, room[j * threads + t]);
        return;
    }
    if (y == 0 && is_in)
        norm_store_parts<V>(g, sample, slab, channel, room + t, part);
    __threadfence(); /* makes the parts visible to the last block */
    __syncthreads();
    if (t == 0)
        before = atomicAdd(&arrived[blockIdx.x], 1u);
    __syncthreads();
    if (before != g.slabs - 1)
        return;
    if (t == 0)
        arrived[blockIdx.x] = 0;
    __threadfence();
    norm_join_slabs<V>(f, g, sample, tile, part, room, counts);
}

template <unsigned V, typename F>
__global__ void __launch_bounds__(OP_THREADS) norm_each_column(F f, struct norm_columns g)
{
    unsigned t = threadIdx.x, high = OP_THREADS / g.side,
             pack = blockIdx.x % g.tiles * g.side + t % g.side;
    size_t block = blockIdx.x / g.tiles,
           blocks = (g.rows + high * NORM_EACH_ROWS - 1) / (high * NORM_EACH_ROWS);
    size_t sample = block / blocks, begin = block % blocks * high * NORM_EACH_ROWS + t / g.side;
    size_t end = begin + high * NORM_EACH_ROWS < g.rows ? begin + high * NORM_EACH_ROWS : g.rows;

    if (pack < g.wide) {
        const auto own = f.own_of(sample, (size_t)pack * V);

        norm_visit(f, sample * g.rows * g.c + (size_t)pack * V, g.c, begin, end, high,
                   [&](size_t at, const auto &in) { f.put(own, at, in); });
    }
}

/* ---- launches ---- */

template <unsigned V, typename F>
static inline void norm_launch_sum(const F &f, const struct norm_columns &g, void *part,
                                   void *arrived, cudaStream_t s)
{
    if (g.batch > 0 && g.c > 0)
        CUDA_LAUNCH((norm_sum_columns<V, F>), dim3((unsigned)(g.batch * g.tiles), g.slabs),
                    g.high * g.side, 0, s, f, g, (float *)part, (unsigned *)arrived);
}

template <unsigned V, typename F>
static inline void norm_launch_each(const F &f, const struct norm_columns &g, cudaStream_t s)
{
    size_t rows = OP_THREADS / g.side * NORM_EACH_ROWS,
           blocks = (g.rows + rows - 1) / rows * g.batch * g.tiles;

    if (blocks > 0)
        CUDA_LAUNCH((norm_each_column<V, F>), (unsigned)blocks, OP_THREADS, 0, s, f, g);
}

/* ---- pairs ---- */

/* Sums. */
struct norm_sums {
    __device__ static void merge(float2 &x, float, float2 y, float)
    {
        x.x += y.x;
        x.y += y.y;
    }
};

/* Mean and sum of squared deviations from it (B. Welford 1962; T. Chan, G. Golub, R. LeVeque 1979):
 * a mean far from zero loses no precision. */
struct norm_moments {
    __device__ static void merge(float2 &x, float n, float2 y, float m)
    {
        float apart = y.x - x.x, share = m / (n + m);

        if (m == 0)
            return;
        x.x += apart * share;
        x.y += y.y + apart * apart * (n * share);
    }
    __device__ static void add_one(float2 &p, float x, float inverse)
    {
        float apart = x - p.x;

        p.x += apart * inverse;
        p.y += apart * (x - p.x);
    }
};

#endif
