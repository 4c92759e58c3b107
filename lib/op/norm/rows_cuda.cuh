/* rows_cuda.cuh - loops over x as rows of n numbers, with values or sums per row: used by layer
 * normalisation, and by group normalisation of plain tensors.
 *
 * A warp processes a row, or a block if the row is longer. A thread loads packs of 16 bytes (single
 * numbers if rows are not multiples of a pack), `side` packs apart, NORM_PACKS of them at a time.
 * So a row of up to 4 packs per thread is read once and stays in registers; a longer one is read
 * again, from the cache. */
#ifndef OP_NORM_ROWS_CUDA_CUH
#define OP_NORM_ROWS_CUDA_CUH

#include "op/op_cuda.cuh"

extern "C" {
#include "op/norm/row.h"
}

static constexpr unsigned NORM_PACKS = 4, NORM_ROW_THREADS = 256;

struct norm_rows {
    size_t rows, n;
    unsigned wide;    /* packs per row */
    unsigned side;    /* threads per row: 32, or the whole block */
    unsigned threads; /* threads per block, which processes whole rows */
};

/* v: numbers per pack; most: maximum threads per block. */
static inline struct norm_rows norm_rows_of(size_t rows, size_t n, unsigned v,
                                            unsigned most = NORM_ROW_THREADS)
{
    struct norm_rows g = { .rows = rows, .n = n, .wide = (unsigned)(n / v), .side = 32 };

    if (g.wide > 32 * NORM_PACKS)
        g.side = most;
    g.threads = rows < most / g.side ? (unsigned)rows * g.side : most;
    g.threads = g.threads > 0 ? g.threads : g.side;
    return g;
}

static inline unsigned norm_rows_blocks(const struct norm_rows &g)
{
    size_t each = g.threads / g.side;

    return (unsigned)((g.rows + each - 1) / each);
}

/* The position of a thread in its row. */
struct norm_place {
    size_t row; /* may be >= rows in the last block: then the warp is idle */
    unsigned at;

    __device__ norm_place(const struct norm_rows &g, size_t block)
        : row(block * (blockDim.x / g.side) + threadIdx.x / g.side), at(threadIdx.x % g.side)
    {
    }
};

/* Sum of a pair over the threads of a row, returned to each of them. room [64]: shared memory of
 * the block. */
__device__ static inline float2 norm_row_sum(const struct norm_rows &g, float2 x, float *room)
{
    if (g.side == 32)
        return make_float2(op_warp_sum(x.x), op_warp_sum(x.y));
    x.x = op_block_sum(x.x, room);
    x.y = op_block_sum(x.y, room + 32);
    return x;
}

template <typename T, unsigned V> struct norm_part { /* NORM_PACKS packs of a row */
    op_pack<T, V> p[NORM_PACKS];

    /* Loads packs first + at, first + at + side, ...; 0 after the end of the row, or if x is
     * NULL. */
    __device__ void load(const T *x, const struct norm_rows &g, unsigned first, unsigned at)
    {
#pragma unroll
        for (unsigned i = 0; i < NORM_PACKS; i++) {
            unsigned k = first + at + i * g.side;

            p[i] = x != NULL && k < g.wide ? ((const op_pack<T, V> *)x)[k] : op_pack<T, V>{};
        }
    }
};

/* Calls f(pack of the part, pack of the row) for those of a thread's packs that exist. */
template <typename F>
__device__ static inline void norm_each_pack(const struct norm_rows &g, unsigned first, unsigned at,
                                             F f)
{
#pragma unroll
    for (unsigned i = 0; i < NORM_PACKS; i++)
        if (first + at + i * g.side < g.wide)
            f(i, first + at + i * g.side);
}

/* Computes mean and 1 / deviation of a row (about 0 for rms) as in row.h: about a first mean, which
 * is corrected. load(first) loads the part of the row that begins at pack `first`; it is called for
 * each part in order, then again. On return `part` is the first part of the row. */
template <typename T, unsigned V, typename Load>
__device__ static inline struct row_stat norm_row_measure(Load load, const struct norm_rows &g,
                                                          unsigned at, float epsilon, bool rms,
                                                          norm_part<T, V> &part, float *room)
{
    unsigned step = g.side * NORM_PACKS;
    float n = (float)g.n, mean = 0;
    float2 s = { 0, 0 };

    load(0);
    if (!rms) {
        for (unsigned first = 0; first < g.wide; first += step) {
            if (first > 0)
                load(first);
            norm_each_pack(g, first, at, [&](unsigned i, unsigned) {
#pragma unroll
                for (unsigned j = 0; j < V; j++)
                    s.x += op_wide(part.p[i].v[j]);
            });
        }
        mean = norm_row_sum(g, s, room).x / n;
        if (g.wide > step)
            load(0);
    }
    s = { 0, 0 };
    for (unsigned first = 0; first < g.wide; first += step) {
        if (first > 0)
            load(first);
        norm_each_pack(g, first, at, [&](unsigned i, unsigned) {
#pragma unroll
            for (unsigned j = 0; j < V; j++) {
                float d = op_wide(part.p[i].v[j]) - mean;

                s.x += d;
                s.y += d * d;
            }
        });
    }
    s = norm_row_sum(g, s, room);
    if (g.wide > step)
        load(0);
    float off = rms ? 0 : s.x / n, var = s.y / n - off * off;

    return { mean + off, 1.0f / sqrtf((var < 0 ? 0 : var) + epsilon) };
}

/* ---- column sums: the second stage of the gradients of scale and bias ---- */

/* part [slabs][2][n][each] -> scale [n], bias [n]: stored or added; NULL: not requested. A block
 * computes 32 of the 2 n sums; a thread adds every 8th slab of one sum. */
static __global__ void norm_fold(const float *part, size_t slabs, size_t n, size_t each,
                                 float *scale, bool scale_add, float *bias, bool bias_add)
{
    __shared__ float room[8][32];
    unsigned x = threadIdx.x % 32, y = threadIdx.x / 32;
    size_t i = (size_t)blockIdx.x * 32 + x;
    float sum = 0;

    for (size_t k = y; k < slabs && i < 2 * n; k += 8)
        for (size_t q = 0; q < each; q++)
            sum += part[(k * 2 * n + i) * each + q];
    room[y][x] = sum;
    __syncthreads();
    if (y == 0 && i < 2 * n) {
        float *to = i < n ? scale : bias;
        size_t at = i < n ? i : i - n;
        bool add = i < n ? scale_add : bias_add;

        for (unsigned k = 1; k < 8; k++)
            sum += room[k][x];
        if (to != NULL)
            to[at] = add ? to[at] + sum : sum;
    }
}

/* Stores the sums in the gradients of inputs 1 and 2. */
static inline void norm_launch_fold(const struct op_call *c, const float *part, size_t slabs,
                                    size_t n, size_t each)
{
    float *scale = op_cuda_wants(c, 1) ? (float *)c->din[1]->data : NULL;
    float *bias = op_cuda_wants(c, 2) ? (float *)c->din[2]->data : NULL;

    if ((scale != NULL || bias != NULL) && n > 0)
        CUDA_LAUNCH(norm_fold, (unsigned)((2 * n + 31) / 32), 256, 0, op_stream(c), part, slabs, n,
                    each, scale, op_cuda_adds(c, 1), bias, op_cuda_adds(c, 2));
}

#endif
