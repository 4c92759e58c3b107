/* power_sgd_cuda.cu - see power_sgd_cuda.cuh. A warp makes a sum over a row: each thread has one of the parts of
 * power_sgd_formula.h. A thread makes a sum over the rows of M for an element of Q, in the order of the rows. */
#include "code/power_sgd_cuda.cuh"

extern "C" {
#include "code/power_sgd.h"
}
#include "base/rng_formula.h"
#include "code/power_sgd_formula.h"

namespace {

constexpr unsigned THREADS = 256, WARP = POWER_SGD_PARTS, WARPS = THREADS / WARP, GRID_MAX = 2048;
static_assert(WARP == 32, "a thread of a warp has a part of a sum");

/* Adds the parts in pairs; all threads of the warp make the call and receive the sum. */
template <typename T> __device__ T sum_of_parts(T part)
{
    for (unsigned half = WARP / 2; half > 0; half /= 2)
        part += __shfl_down_sync(0xffffffffu, part, half);
    return __shfl_sync(0xffffffffu, part, 0);
}

template <typename T> __device__ T product(const float *a, const float *b, size_t n)
{
    T part = 0;

    for (size_t i = threadIdx.x % WARP; i < n; i += WARP)
        part += (T)a[i] * (T)b[i];
    return sum_of_parts(part);
}

__device__ double length(const float *x, size_t n)
{
    return sqrt(product<double>(x, x, n));
}

/* A warp for each row of Q. */
__global__ void begin(const power_sgd m, float *q)
{
    const rng_key key = { m.seed, m.number, blockIdx.x, POWER_SGD_STREAM };
    float *row = q + blockIdx.x * m.cols;
    double norm = length(row, m.cols);

    if (power_sgd_is_zero(norm)) {
        for (size_t i = threadIdx.x; i < m.cols; i += WARP) {
            uint32_t words[4];

            rng_words(&key, (uint32_t)(i / 4), words);
            row[i] = power_sgd_random(words[i % 4]);
        }
        norm = length(row, m.cols); /* each thread reads what it has written */
    }
    for (size_t i = threadIdx.x; i < m.cols; i += WARP)
        row[i] = power_sgd_divide(row[i], norm);
}

/* A warp for each row of M. */
__global__ void left(const power_sgd m, const float *x, const float *q, float *p)
{
    for (size_t i = (size_t)blockIdx.x * WARPS + threadIdx.x / WARP; i < m.rows;
         i += (size_t)gridDim.x * WARPS)
        for (uint32_t k = 0; k < m.rank; k++) {
            float sum = product<float>(x + i * m.cols, q + k * m.cols, m.cols);

            if (threadIdx.x % WARP == 0)
                p[k * m.rows + i] = sum;
        }
}

/* One warp. A thread reads and writes the same elements of each row. */
__global__ void orthogonalize(const power_sgd m, float *p)
{
    for (uint32_t k = 0; k < m.rank; k++) {
        float *row = p + k * m.rows;
        double before = length(row, m.rows), after;
        bool is_dependent;

        for (uint32_t j = 0; j < k; j++) {
            const float *other = p + j * m.rows;
            float factor = -(float)product<double>(other, row, m.rows);

            for (size_t i = threadIdx.x; i < m.rows; i += WARP)
                row[i] += other[i] * factor;
        }
        after = length(row, m.rows);
        is_dependent = power_sgd_is_dependent(before, after);
        for (size_t i = threadIdx.x; i < m.rows; i += WARP)
            row[i] = is_dependent ? 0 : power_sgd_divide(row[i], after);
    }
}

/* blockIdx.y: the row of Q. */
__global__ void right(const power_sgd m, const float *x, const float *p, float *q)
{
    const float *factors = p + blockIdx.y * m.rows;

    for (size_t c = (size_t)blockIdx.x * THREADS + threadIdx.x; c < m.cols;
         c += (size_t)gridDim.x * THREADS) {
        float sum = 0;

        for (size_t i = 0; i < m.rows; i++)
            sum += x[i * m.cols + c] * factors[i];
        q[blockIdx.y * m.cols + c] = sum;
    }
}

/* x = x + sign * P Q^T, in the order of the rows of the factors. */
__device__ float add_row(const power_sgd &m, const float *p, const float *q, size_t at, float sign,
                         float x)
{
    size_t i = at / m.cols, c = at % m.cols;

    for (uint32_t k = 0; k < m.rank; k++)
        x += q[k * m.cols + c] * (sign * p[k * m.rows + i]);
    return x;
}

__global__ void decode(const power_sgd m, const float *p, const float *q, float *y)
{
    for (size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x; i < m.rows * m.cols;
         i += (size_t)gridDim.x * THREADS)
        y[i] = add_row(m, p, q, i, 1, 0);
}

__global__ void subtract(const power_sgd m, const float *p, const float *q, float *x)
{
    for (size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x; i < m.rows * m.cols;
         i += (size_t)gridDim.x * THREADS)
        x[i] = code_flush(add_row(m, p, q, i, -1, x[i]));
}

unsigned grid_of(size_t n, size_t of_a_block)
{
    size_t grid = (n + of_a_block - 1) / of_a_block;

    return (unsigned)(grid < GRID_MAX ? grid : GRID_MAX);
}

}

int code_cuda_power_sgd_begin(const struct power_sgd *m, float *q, struct cuda_stream *s,
                              struct err *err)
{
    CUDA_LAUNCH(begin, m->rank, WARP, 0, cuda_stream_of(s), *m, q);
    return cuda_launched(err);
}

int code_cuda_power_sgd_left(const struct power_sgd *m, const float *x, const float *q, float *p,
                             struct cuda_stream *s, struct err *err)
{
    CUDA_LAUNCH(left, grid_of(m->rows, WARPS), THREADS, 0, cuda_stream_of(s), *m, x, q, p);
    return cuda_launched(err);
}

int code_cuda_power_sgd_orthogonalize(const struct power_sgd *m, float *p, struct cuda_stream *s,
                                      struct err *err)
{
    CUDA_LAUNCH(orthogonalize, 1, WARP, 0, cuda_stream_of(s), *m, p);
    return cuda_launched(err);
}

int code_cuda_power_sgd_right(const struct power_sgd *m, const float *x, const float *p, float *q,
                              struct cuda_stream *s, struct err *err)
{
    CUDA_LAUNCH(right, dim3(grid_of(m->cols, THREADS), m->rank), THREADS, 0, cuda_stream_of(s), *m,
                x, p, q);
    return cuda_launched(err);
}

int code_cuda_power_sgd_decode(const struct power_sgd *m, const float *p, const float *q, float *y,
                               struct cuda_stream *s, struct err *err)
{
    CUDA_LAUNCH(decode, grid_of(m->rows * m->cols, THREADS), THREADS, 0, cuda_stream_of(s), *m, p,
                q, y);
    return cuda_launched(err);
}

int code_cuda_power_sgd_subtract(const struct power_sgd *m, const float *p, const float *q,
                                 float *x, struct cuda_stream *s, struct err *err)
{
    CUDA_LAUNCH(subtract, grid_of(m->rows * m->cols, THREADS), THREADS, 0, cuda_stream_of(s), *m, p,
                q, x);
    return cuda_launched(err);
}
