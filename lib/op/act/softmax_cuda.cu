/* softmax_cuda.cu - see softmax.c, log_softmax.c. Over [outer, k, inner], sums along k in
 * float32.
 *
 * inner == 1: one warp computes a row of up to 32 * PER elements in registers; one block
 * computes a longer row, in shared memory if it fits, else it reads the row again in each pass.
 * inner > 1: see columns_*. A NaN or a non-finite maximum makes the whole row NaN, because some
 * x - m is NaN, and therefore the sum. */
#include "op/op_cuda.cuh"

extern "C" {
#include "op/act/softmax.h"
}

/* Threads of a block for a row; columns and rows of threads of a block for columns; bytes of shared
 * memory that a block can use on any GPU from compute capability 8.0 on. */
static constexpr unsigned ROW_THREADS = 512, COLUMNS = 32, SLICES = 8;
static constexpr size_t SHARED_MOST = 96 * 1024; /* 8.6 and 8.9 have 99 KiB */

namespace {

/* The formulas of the two ops: y from x - m and the sum; the term of the backward sum; dx from y,
 * dy and that sum. */
struct share {
    __device__ static float y(float x, float m, float sum) { return expf(x - m) * (1.0f / sum); }
    __device__ static float term(float y, float d) { return y * d; }
    __device__ static float dx(float y, float d, float sum) { return y * (d - sum); }
};

struct log_share {
    __device__ static float y(float x, float m, float sum) { return (x - m) - logf(sum); }
    __device__ static float term(float, float d) { return d; }
    __device__ static float dx(float y, float d, float sum) { return d - expf(y) * sum; }
};

}

__device__ static inline float block_max(float x, float *room)
{
    x = op_warp_max(x);
    __syncthreads();
    if (threadIdx.x % 32 == 0)
        room[threadIdx.x / 32] = x;
    __syncthreads();
    return op_warp_max(threadIdx.x % 32 < blockDim.x / 32 ? room[threadIdx.x % 32] : -INFINITY);
}

/* ---- rows in registers: threadIdx.y is the warp's row in the block ---- */

template <typename Kind, unsigned PER>
__global__ void warp_fwd(const float *x, float *y, size_t rows, size_t k)
{
    size_t row = (size_t)blockIdx.x * blockDim.y + threadIdx.y;
    float v[PER], m = -INFINITY, sum = 0;

    if (row >= rows) /* the whole warp */
        return;
#pragma unroll
    for (unsigned i = 0; i < PER; i++) {
        size_t at = threadIdx.x + 32 * i;

        v[i] = at < k ? x[row * k + at] : -INFINITY;
        m = fmaxf(m, v[i]);
    }
    m = op_warp_max(m);
#pragma unroll
    for (unsigned i = 0; i < PER; i++)
        sum += threadIdx.x + 32 * i < k ? expf(v[i] - m) : 0.0f;
    sum = op_warp_sum(sum);
#pragma unroll
    for (unsigned i = 0; i < PER; i++)
        if (threadIdx.x + 32 * i < k)
            y[row * k + threadIdx.x + 32 * i] = Kind::y(v[i], m, sum);
}

template <typename Kind, unsigned PER>
__global__ void warp_bwd(const float *y, const float *dy, float *dx, size_t rows, size_t k,
                         bool add)
{
    size_t row = (size_t)blockIdx.x * blockDim.y + threadIdx.y;
    float v[PER], d[PER], sum = 0;

    if (row >= rows)
        return;
#pragma unroll
    for (unsigned i = 0; i < PER; i++) {
        size_t at = threadIdx.x + 32 * i;

        v[i] = at < k ? y[row * k + at] : 0.0f;
        d[i] = at < k ? dy[row * k + at] : 0.0f;
        sum += at < k ? Kind::term(v[i], d[i]) : 0.0f;
    }
    sum = op_warp_sum(sum);
#pragma unroll
    for (unsigned i = 0; i < PER; i++) {
        size_t at = row * k + threadIdx.x + 32 * i;

        if (threadIdx.x + 32 * i < k)
            dx[at] = (add ? dx[at] : 0.0f) + Kind::dx(v[i], d[i], sum);
    }
}

/* ---- a block per row; kept: the row stays in shared memory, of one array or two ---- */

template <typename Kind> __global__ void block_fwd(const float *x, float *y, size_t k, bool kept)
{
    CUDA_SHARED(float, row);
    __shared__ float room[32];
    float m = -INFINITY, sum = 0;

    x += blockIdx.x * k;
    y += blockIdx.x * k;
    for (size_t i = threadIdx.x; i < k; i += blockDim.x) {
        float v = x[i];

        if (kept)
            row[i] = v;
        m = fmaxf(m, v);
    }
    m = block_max(m, room);
    for (size_t i = threadIdx.x; i < k; i += blockDim.x)
        sum += expf((kept ? row[i] : x[i]) - m);
    sum = op_block_sum(sum, room);
    for (size_t i = threadIdx.x; i < k; i += blockDim.x)
        y[i] = Kind::y(kept ? row[i] : x[i], m, sum);
}

template <typename Kind>
__global__ void block_bwd(const float *y, const float *dy, float *dx, size_t k, bool kept, bool add)
{
    CUDA_SHARED(float, rows);
    __shared__ float room[32];
    float sum = 0;

    y += blockIdx.x * k;
    dy += blockIdx.x * k;
    dx += blockIdx.x * k;
    for (size_t i = threadIdx.x; i < k; i += blockDim.x) {
        float v = y[i], d = dy[i];

        if (kept)
            rows[i] = v, rows[k + i] = d;
        sum += Kind::term(v, d);
    }
    sum = op_block_sum(sum, room);
    for (size_t i = threadIdx.x; i < k; i += blockDim.x) {
        float g = Kind::dx(kept ? rows[i] : y[i], kept ? rows[k + i] : dy[i], sum);

        dx[i] = add ? dx[i] + g : g;
    }
}

/* ---- inner > 1: a block owns COLUMNS neighbours of inner; SLICES rows of threads divide k ---- */

/* The reduction of the SLICES values of a column; every thread of the column gets the result. */
template <typename F>
__device__ static inline float over_slices(float x, float (&room)[SLICES][COLUMNS], F f)
{
    __syncthreads();
    room[threadIdx.y][threadIdx.x] = x;
    __syncthreads();
    x = room[0][threadIdx.x];
    for (unsigned i = 1; i < SLICES; i++)
        x = f(x, room[i][threadIdx.x]);
    return x;
}

struct column { /* of this thread: its first element, and whether it has one */
    size_t at;
    bool is_there;
};

__device__ static inline struct column column_here(size_t k, size_t inner, size_t strips)
{
    size_t outer = blockIdx.x / strips, j = (blockIdx.x - outer * strips) * COLUMNS + threadIdx.x;

    return { outer * k * inner + j, j < inner };
}

template <typename Kind>
__global__ void columns_fwd(const float *x, float *y, size_t k, size_t inner, size_t strips)
{
    __shared__ float room[SLICES][COLUMNS];
    struct column c = column_here(k, inner, strips);
    size_t end = c.is_there ? k : 0;
    float m = -INFINITY, sum = 0;

    for (size_t i = threadIdx.y; i < end; i += SLICES)
        m = fmaxf(m, x[c.at + i * inner]);
    m = over_slices(m, room, [](float a, float b) { return fmaxf(a, b); });
    for (size_t i = threadIdx.y; i < end; i += SLICES)
        sum += expf(x[c.at + i * inner] - m);
    sum = over_slices(sum, room, [](float a, float b) { return a + b; });
    for (size_t i = threadIdx.y; i < end; i += SLICES)
        y[c.at + i * inner] = Kind::y(x[c.at + i * inner], m, sum);
}

template <typename Kind>
__global__ void columns_bwd(const float *y, const float *dy, float *dx, size_t k, size_t inner,
                            size_t strips, bool add)
{
    __shared__ float room[SLICES][COLUMNS];
    struct column c = column_here(k, inner, strips);
    size_t end = c.is_there ? k : 0;
    float sum = 0;

    for (size_t i = threadIdx.y; i < end; i += SLICES)
        sum += Kind::term(y[c.at + i * inner], dy[c.at + i * inner]);
    sum = over_slices(sum, room, [](float a, float b) { return a + b; });
    for (size_t i = threadIdx.y; i < end; i += SLICES) {
        size_t at = c.at + i * inner;
        float g = Kind::dx(y[at], dy[at], sum);

        dx[at] = add ? dx[at] + g : g;
    }
}

/* ---- calls ---- */

/* Runs the body with PER, the elements of a row for each thread of a warp. */
#define OF_WARP(k_, ...)                                                                               \
    do {                                                                                               \
        if ((k_) <= 128) { constexpr unsigned PER = 4; __VA_ARGS__; }                                  \
        else if ((k_) <= 512) { constexpr unsigned PER = 16; __VA_ARGS__; }                            \
        else { constexpr unsigned PER = 32; __VA_ARGS__; }                                             \
    } while (0)

static constexpr size_t WARP_MOST = 32 * 32;

static bool is_kept(size_t k, size_t arrays)
{
    return k <= SHARED_MOST / sizeof(float) / arrays;
}

static int allow(const void *kernel, struct err *err)
{
    return cuda_check(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)SHARED_MOST),
        err, "ask for shared memory");
}

template <typename Kind> static int plan(struct op_plan *p, struct err *err)
{
    const struct softmax *s = (const struct softmax *)p->param;
    int rc = 0;

    if (s->inner == 1 && s->k > WARP_MOST) {
        rc = allow((const void *)block_fwd<Kind>, err);
        if (rc == 0 && p->training)
            rc = allow((const void *)block_bwd<Kind>, err);
    }
    return rc;
}

template <typename Kind> static int forward(const struct op_call *c, struct err *err)
{
    const struct softmax *s = (const struct softmax *)c->param;
    const float *x = (const float *)c->in[0]->data;
    float *y = (float *)c->out[0]->data;
    size_t strips = (s->inner + COLUMNS - 1) / COLUMNS;
    cudaStream_t q = op_stream(c);

    if (s->outer * s->k * s->inner == 0)
        return 0;
    if (s->inner > 1)
        CUDA_LAUNCH(columns_fwd<Kind>, (unsigned)(s->outer * strips), dim3(COLUMNS, SLICES), 0, q,
                    x, y, s->k, s->inner, strips);
    else if (s->k > WARP_MOST)
        CUDA_LAUNCH(block_fwd<Kind>, (unsigned)s->outer, ROW_THREADS,
                    is_kept(s->k, 1) ? s->k * sizeof(float) : 0, q, x, y, s->k, is_kept(s->k, 1));
    else
        OF_WARP(s->k, CUDA_LAUNCH((warp_fwd<Kind, PER>), (unsigned)((s->outer + 7) / 8),
                                  dim3(32, 8), 0, q, x, y, s->outer, s->k));
    return cuda_launched(err);
}

template <typename Kind> static int backward(const struct op_call *c, struct err *err)
{
    const struct softmax *s = (const struct softmax *)c->param;
    size_t strips = (s->inner + COLUMNS - 1) / COLUMNS;
    bool add = op_cuda_adds(c, 0);
    cudaStream_t q = op_stream(c);
    const float *y, *dy;
    float *dx;

    if (c->dout[0] == NULL || c->din[0] == NULL)
        return op_cuda_zero(c, err);
    if (s->outer * s->k * s->inner == 0)
        return 0;
    y = (const float *)c->out[0]->data;
    dy = (const float *)c->dout[0]->data;
    dx = (float *)c->din[0]->data;
    if (s->inner > 1)
        CUDA_LAUNCH(columns_bwd<Kind>, (unsigned)(s->outer * strips), dim3(COLUMNS, SLICES), 0, q,
                    y, dy, dx, s->k, s->inner, strips, add);
    else if (s->k > WARP_MOST)
        CUDA_LAUNCH(block_bwd<Kind>, (unsigned)s->outer, ROW_THREADS,
                    is_kept(s->k, 2) ? 2 * s->k * sizeof(float) : 0, q, y, dy, dx, s->k,
                    is_kept(s->k, 2), add);
    else
        OF_WARP(s->k, CUDA_LAUNCH((warp_bwd<Kind, PER>), (unsigned)((s->outer + 7) / 8),
                                  dim3(32, 8), 0, q, y, dy, dx, s->outer, s->k, add));
    return cuda_launched(err);
}

OP_CUDA(op_softmax_13, .plan = plan<share>, .fwd = forward<share>, .bwd = backward<share>);
OP_CUDA(op_softmax_1, .plan = plan<share>, .fwd = forward<share>, .bwd = backward<share>);
OP_CUDA(op_log_softmax_13, .plan = plan<log_share>, .fwd = forward<log_share>, .bwd = backward<log_share>);
OP_CUDA(op_log_softmax_1, .plan = plan<log_share>, .fwd = forward<log_share>, .bwd = backward<log_share>);
