/* rows_cuda.cu - see rows_cuda.cuh. */
#include "op/shape/rows_cuda.cuh"

/* ---- the list ---- */

namespace {

struct lister {
    struct rows r;
    struct shape data, at;
    const void *indices;
    bool wide; /* indices are int64, else int32 */
    op_report notice;
};

/* Reads index i along an axis of size `dim`: 0 .. dim - 1, a negative index counts from the end; or
 * ROWS_BAD. */
__device__ static inline int64_t normalise_index(const struct lister &l, size_t i, int64_t dim)
{
    int64_t v = l.wide ? ((const int64_t *)l.indices)[i] : ((const int32_t *)l.indices)[i];

    if (v < -dim || v >= dim) {
        l.notice(i, v);
        return ROWS_BAD;
    }
    return v < 0 ? v + dim : v;
}

__device__ static inline int64_t element_row(const struct lister &l, size_t i)
{
    int64_t row = 0, step = 1;
    size_t rest = i;

    for (uint32_t k = l.data.rank; k-- > 0;) {
        size_t q = rest / (size_t)l.at.dim[k];
        int64_t here = (int64_t)(rest - q * (size_t)l.at.dim[k]);

        if (k == l.r.axis)
            here = normalise_index(l, i, l.data.dim[k]);
        if (here < 0)
            return ROWS_BAD;
        row += here * step;
        step *= l.data.dim[k];
        rest = q;
    }
    return row;
}

__device__ static inline int64_t nd_row(const struct lister &l, size_t i)
{
    int64_t row = (int64_t)(i / l.r.per);

    for (uint32_t k = 0; k < l.r.depth; k++) {
        int64_t dim = l.data.dim[l.r.batch + k], here = normalise_index(l, i * l.r.depth + k, dim);

        if (here < 0)
            return ROWS_BAD;
        row = row * dim + here;
    }
    return row;
}

/* A thread computes rows of the list, in a grid-stride loop. */
__global__ void rows_make_list(struct lister l, int64_t *list)
{
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < l.r.n;
         i += (size_t)gridDim.x * blockDim.x)
        list[i] = l.r.kind == ROWS_AXIS       ? normalise_index(l, i, l.data.dim[l.r.axis])
                  : l.r.kind == ROWS_ELEMENTS ? element_row(l, i)
                                              : nd_row(l, i);
}

} // namespace

int rows_cuda_list(const struct op_call *c, int64_t *list, struct err *err)
{
    const struct rows *r = (const struct rows *)c->param;
    struct lister l = { *r, c->in[0]->shape, c->in[1]->shape, c->in[1]->data, c->in[1]->dtype == TENSOR_I64,
                        op_report_of(c) };

    if (r->n == 0)
        return 0;
    CUDA_LAUNCH(rows_make_list, op_blocks(r->n, OP_THREADS), OP_THREADS, 0, op_stream(c), l, list);
    return cuda_launched(err);
}

/* ---- the order: short lists by comparing all pairs, long ones by radix sort, 8 bits at a time
 * ---- */

namespace {

constexpr unsigned FEW = 1024, DIGITS = 256, TILE = 1024, WARPS = 8, BLOCKS = 512;

__device__ static inline uint64_t key_of(const int64_t *list, size_t i, size_t rows)
{
    return list[i] < 0 ? (uint64_t)rows : (uint64_t)list[i];
}

/* Each thread computes the rank of one position by counting the smaller ones. */
__global__ void rows_rank(const int64_t *list, unsigned n, size_t rows, int64_t *order)
{
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x, rank = 0;
    uint64_t key;

    if (i >= n)
        return;
    key = key_of(list, i, rows);
    for (unsigned k = 0; k < n; k++) {
        uint64_t other = key_of(list, k, rows);

        rank += other < key || (other == key && k < i);
    }
    order[rank] = i;
}

/* Block b processes `span` positions of `from` (NULL: 0, 1, ...); counts [digit, block] =
 * occurrences of each digit. */
__global__ void rows_count(const int64_t *list, const int64_t *from, size_t n, size_t span,
                           unsigned shift, size_t rows, unsigned long long *counts)
{
    __shared__ unsigned bins[DIGITS];
    size_t first = blockIdx.x * span, end = first + span < n ? first + span : n;

    bins[threadIdx.x] = 0;
    __syncthreads();
    for (size_t i = first + threadIdx.x; i < end; i += blockDim.x)
        atomicAdd(
            &bins[key_of(list, from != NULL ? (size_t)from[i] : i, rows) >> shift & (DIGITS - 1)],
            1u);
    __syncthreads();
    counts[threadIdx.x * gridDim.x + blockIdx.x] = bins[threadIdx.x];
}

/* x[i] = the sum of the elements before it. One block of 1024 threads, which processes 1024
 * elements at a time. */
__global__ void rows_scan(unsigned long long *x, size_t n)
{
    __shared__ unsigned long long sums[32];
    unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    unsigned long long before = 0;

    for (size_t at = 0; at < n; at += blockDim.x) {
        size_t i = at + threadIdx.x;
        unsigned long long own = i < n ? x[i] : 0, sum = own, others = before;

        for (unsigned k = 1; k < 32; k *= 2) {
            unsigned long long left = __shfl_up_sync(0xffffffffu, sum, k);

            sum += lane >= k ? left : 0;
        }
        if (lane == 31)
            sums[warp] = sum;
        __syncthreads();
        for (unsigned k = 0; k < 32; k++) {
            others += k < warp ? sums[k] : 0;
            before += sums[k];
        }
        if (i < n)
            x[i] = others + sum - own;
        __syncthreads();
    }
}

/* to = `from` sorted by this digit, stable. A block processes its span in tiles; each warp
 * processes a chunk of 128 positions of a tile, 32 at a time. The rank of a position is the
 * number of equal digits in earlier tiles of the block, in earlier warps, earlier in its warp, and
 * in earlier lanes. */
__global__ void rows_place(const int64_t *list, const int64_t *from, size_t n, size_t span,
                           unsigned shift, size_t rows, const unsigned long long *start,
                           int64_t *to)
{
    constexpr unsigned EACH = TILE / (WARPS * 32);
    __shared__ unsigned counts[WARPS][DIGITS];
    __shared__ unsigned long long base[DIGITS];
    unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    size_t first = blockIdx.x * span, end = first + span < n ? first + span : n;

    base[threadIdx.x] = start[threadIdx.x * gridDim.x + blockIdx.x];
    for (size_t tile = first; tile < end; tile += TILE) {
        int64_t place[EACH];
        unsigned digit[EACH], rank[EACH], sum = 0;

        for (unsigned w = 0; w < WARPS; w++)
            counts[w][threadIdx.x] = 0;
        __syncthreads();
#pragma unroll
        for (unsigned k = 0; k < EACH; k++) {
            size_t i = tile + (warp * EACH + k) * 32 + lane;
            bool is = i < end;
            unsigned same = __ballot_sync(0xffffffffu, is);

            place[k] = !is ? 0 : from != NULL ? from[i] : (int64_t)i;
            digit[k] = is ? (unsigned)(key_of(list, (size_t)place[k], rows) >> shift & (DIGITS - 1))
                          : DIGITS;
#pragma unroll
            for (unsigned bit = 0; bit < 8; bit++) {
                bool on = (digit[k] >> bit & 1) != 0;
                unsigned who = __ballot_sync(0xffffffffu, on);

                same &= on ? who : ~who;
            }
            rank[k] = (unsigned)__popc(same & ((1u << lane) - 1));
            if (is)
                rank[k] += counts[warp][digit[k]];
            __syncwarp();
            if (is && (same & ((1u << lane) - 1)) == 0)
                counts[warp][digit[k]] += (unsigned)__popc(same);
            __syncwarp();
        }
        __syncthreads();
        for (unsigned w = 0; w < WARPS; w++) {
            unsigned here = counts[w][threadIdx.x];

            counts[w][threadIdx.x] = sum;
            sum += here;
        }
        __syncthreads();
#pragma unroll
        for (unsigned k = 0; k < EACH; k++)
            if (digit[k] < DIGITS)
                to[base[digit[k]] + counts[warp][digit[k]] + rank[k]] = place[k];
        __syncthreads();
        base[threadIdx.x] += sum;
    }
}

/* Returns the positions per block, and the number of blocks. */
size_t span_of(size_t n, unsigned *blocks)
{
    size_t tiles = (n + TILE - 1) / TILE, each = (tiles + BLOCKS - 1) / BLOCKS;

    *blocks = (unsigned)((tiles + each - 1) / each);
    return each * TILE;
}

} // namespace

/* [n] positions, then counts. */
size_t rows_cuda_order_scratch(size_t n)
{
    unsigned blocks;

    if (n <= FEW)
        return 0;
    (void)span_of(n, &blocks);
    return rows_round(n * sizeof(int64_t)) + (size_t)DIGITS * blocks * sizeof(unsigned long long);
}

int rows_cuda_order(cudaStream_t s, const int64_t *list, size_t n, size_t rows, int64_t *order,
                    void *scratch, struct err *err)
{
    unsigned blocks, passes = 1;
    int64_t *other = (int64_t *)scratch;
    const int64_t *from = NULL;
    size_t span;

    if (n == 0)
        return 0;
    if (n <= FEW) {
        CUDA_LAUNCH(rows_rank, op_blocks(n, 64), 64, 0, s, list, (unsigned)n, rows, order);
        return cuda_launched(err);
    }
    span = span_of(n, &blocks);
    while (passes < 8 && (uint64_t)rows >> (8 * passes) != 0)
        passes++;
    for (unsigned k = 0; k < passes; k++) {
        int64_t *to = (passes - k) % 2 == 1 ? order : other; /* the last pass writes to `order` */
        unsigned long long *counts =
            (unsigned long long *)(void *)((char *)scratch + rows_round(n * sizeof(int64_t)));

        CUDA_LAUNCH(rows_count, blocks, DIGITS, 0, s, list, from, n, span, 8 * k, rows, counts);
        CUDA_LAUNCH(rows_scan, 1, 1024, 0, s, counts, (size_t)DIGITS * blocks);
        CUDA_LAUNCH(rows_place, blocks, DIGITS, 0, s, list, from, n, span, 8 * k, rows, counts, to);
        from = to;
    }
    return cuda_launched(err);
}
