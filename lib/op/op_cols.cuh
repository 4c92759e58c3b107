/* op_cols.cuh - column sums: x [batch, rows, cols] -> out [batch, cols], with contiguous cols.
 * Examples are the gradient of a bias and the spatial mean of channels-last images.
 *
 * The rows are split into chunks, enough to occupy the GPU, by the shape alone. The sums of the
 * chunks are stored in scratch and summed by the same kernel. The .cu files that use it include
 * this file. */
#ifndef OP_OP_COLS_CUH
#define OP_OP_COLS_CUH

#include "op/op_cuda.cuh"

struct op_cols {
    size_t batch, rows, cols;
    size_t per;    /* rows per chunk */
    size_t chunks; /* chunks per batch; 1: no scratch */
};

static inline size_t op_cols_scratch(const struct op_cols *c)
{
    return c->chunks > 1 ? c->batch * c->chunks * c->cols * sizeof(float) : 0;
}

static inline struct op_cols op_cols_of(size_t batch, size_t rows, size_t cols)
{
    /* minimum rows per chunk; maximum total number of chunks */
    static constexpr size_t ROWS = 64, CHUNKS = 2048;
    size_t most = batch > 0 && cols > 0 ? CHUNKS / (batch * ((cols + 63) / 64)) : 1;
    size_t chunks = (rows + ROWS - 1) / ROWS;

    chunks = chunks > most ? most : chunks;
    chunks = chunks < 1 ? 1 : chunks;
    return { batch, rows, cols, rows > 0 ? (rows + chunks - 1) / chunks : 1, chunks };
}

/* out [batch, chunks, cols] = scale times the sum over the rows of a chunk, or += . A thread block
 * computes one chunk of blockDim.x * N columns; blockDim.x is a power of 2 up to 32. A thread adds
 * every blockDim.y-th row in order, with OP_COLS_AHEAD loads in flight; then the threads of a
 * column are combined in a tree. */
static constexpr unsigned OP_COLS_AHEAD = 4;

template <typename T, typename Out, int N>
__global__ void op_cols_sum(const T *x, struct op_cols c, float scale, Out *out, bool add)
{
    __shared__ float room[OP_THREADS * N];
    size_t col = ((size_t)blockIdx.x * blockDim.x + threadIdx.x) * N, chunk = blockIdx.y;
    size_t end = (chunk + 1) * c.per < c.rows ? (chunk + 1) * c.per : c.rows;
    float *mine = room + (threadIdx.y * blockDim.x + threadIdx.x) * N;

    for (size_t b = blockIdx.z; b < c.batch; b += gridDim.z) {
        float sum[N] = {};

        for (size_t r = chunk * c.per + threadIdx.y; r < end && col < c.cols;
             r += OP_COLS_AHEAD * blockDim.y) {
            op_pack<T, N> p[OP_COLS_AHEAD];

#pragma unroll
            for (unsigned u = 0; u < OP_COLS_AHEAD; u++)
                if (r + u * blockDim.y < end)
                    p[u] = *(const op_pack<T, N> *)(x + (b * c.rows + r + u * blockDim.y) * c.cols +
                                                    col);
#pragma unroll
            for (unsigned u = 0; u < OP_COLS_AHEAD; u++)
                for (int k = 0; k < N && r + u * blockDim.y < end; k++)
                    sum[k] += op_wide(p[u].v[k]);
        }
#pragma unroll
        for (int k = 0; k < N; k++)
            mine[k] = sum[k];
        for (unsigned half = blockDim.y / 2; half > 0; half /= 2) {
            __syncthreads();
            if (threadIdx.y < half)
#pragma unroll
                for (int k = 0; k < N; k++)
                    mine[k] += mine[half * blockDim.x * N + k];
        }
        for (int k = 0; k < N && threadIdx.y == 0 && col < c.cols; k++) {
            Out *to = out + (b * c.chunks + chunk) * c.cols + col + k;
            float v = mine[k] * scale;

            *to = op_narrow<Out>(add ? op_wide(*to) + v : v);
        }
        __syncthreads();
    }
}

template <typename T, typename Out, int N>
static inline void op_cols_launch(const T *x, struct op_cols c, float scale, Out *out, bool add,
                                  cudaStream_t s)
{
    size_t wide = (c.cols + N - 1) / N;
    unsigned x_threads = 1;

    while (x_threads < 32 && x_threads < wide)
        x_threads *= 2;
    CUDA_LAUNCH((op_cols_sum<T, Out, N>),
                dim3((unsigned)((wide + x_threads - 1) / x_threads), (unsigned)c.chunks,
                     (unsigned)(c.batch < 65535 ? c.batch : 65535)),
                dim3(x_threads, OP_THREADS / x_threads), 0, s, x, c, scale, out, add);
}

/* Uses whole packs of columns if they are aligned. */
template <typename T, typename Out>
static inline void op_cols_one(const T *x, struct op_cols c, float scale, Out *out, bool add,
                               cudaStream_t s)
{
    constexpr int N = (int)op_pack<T>::N;

    if (c.cols % N == 0 && op_aligned(x))
        op_cols_launch<T, Out, N>(x, c, scale, out, add, s);
    else
        op_cols_launch<T, Out, 1>(x, c, scale, out, add, s);
}

/* Computes out. scratch: op_cols_scratch(c) bytes. Errors: ERR_DEVICE. */
template <typename T, typename Out>
static inline int op_cols_run(const struct op_cols *c, const T *x, float scale, Out *out, bool add,
                              void *scratch, cudaStream_t s, struct err *err)
{
    struct op_cols rest = { c->batch, c->chunks, c->cols, c->chunks, 1 };

    if (c->batch == 0 || c->cols == 0)
        return 0;
    if (c->chunks == 1) {
        op_cols_one(x, *c, scale, out, add, s);
    } else {
        op_cols_one(x, *c, 1.0f, (float *)scratch, false, s);
        op_cols_one((const float *)scratch, rest, scale, out, add, s);
    }
    return cuda_launched(err);
}

#endif
