/* random_cuda.cu - see random.c. Draws the same numbers, bit for bit. */
#include "op/act/rng_cuda.cuh"
#include "op/op_cuda.cuh"

extern "C" {
#include "op/random/random.h"
}

#include "op/random/draw.h"

namespace {

struct uniform {
    __device__ static void draw(const uint32_t (&word)[4], float (&y)[4])
    {
#pragma unroll
        for (int k = 0; k < 4; k++)
            y[k] = draw_uniform(word[k]);
    }
};

struct normal {
    __device__ static void draw(const uint32_t (&word)[4], float (&y)[4])
    {
        draw_normal(word[0], word[1], &y[0], &y[1]);
        draw_normal(word[2], word[3], &y[2], &y[3]);
    }
};

/* y [n] = draws. A thread computes four numbers, one block of random words, per iteration of a
 * grid-stride loop. */
template <typename Kind>
__global__ void fill(float *y, size_t n, struct draw d, const struct op_run *run, uint32_t stream)
{
    struct rng_key key = rng_cuda_key(run, stream);

    for (size_t b = (size_t)blockIdx.x * blockDim.x + threadIdx.x; 4 * b < n;
         b += (size_t)gridDim.x * blockDim.x) {
        uint32_t word[4];
        float drawn[4];

        rng_words(&key, (uint32_t)b, word);
        Kind::draw(word, drawn);
        for (size_t k = 0; k < 4 && 4 * b + k < n; k++)
            y[4 * b + k] = __fadd_rn(d.base, __fmul_rn(d.scale, drawn[k]));
    }
}

template <typename Kind> int fill_all(const struct op_call *c, struct err *err)
{
    size_t n = (size_t)tensor_elements(c->out[0]);

    if (n == 0)
        return 0;
    CUDA_LAUNCH((fill<Kind>), op_blocks(n, 4 * OP_THREADS), OP_THREADS, 0, op_stream(c),
                (float *)c->out[0]->data, n, *(const struct draw *)c->param, c->run->device,
                c->stream);
    return cuda_launched(err);
}

/* y [n] = whether the random number is below p. A thread computes one block of random words per
 * iteration of a grid-stride loop. */
template <typename T>
__global__ void toss(const float *p, T *y, size_t n, const struct op_run *run, uint32_t stream)
{
    struct rng_key key = rng_cuda_key(run, stream);

    for (size_t b = (size_t)blockIdx.x * blockDim.x + threadIdx.x; 4 * b < n;
         b += (size_t)gridDim.x * blockDim.x) {
        uint32_t word[4];

        rng_words(&key, (uint32_t)b, word);
        for (size_t k = 0; k < 4 && 4 * b + k < n; k++)
            y[4 * b + k] = (T)(draw_uniform(word[k]) < p[4 * b + k] ? 1 : 0);
    }
}

template <typename T> int toss_all(const struct op_call *c, struct err *err)
{
    size_t n = (size_t)tensor_elements(c->out[0]);

    if (n == 0)
        return 0;
    CUDA_LAUNCH((toss<T>), op_blocks(n, 4 * OP_THREADS), OP_THREADS, 0, op_stream(c),
                (const float *)c->in[0]->data, (T *)c->out[0]->data, n, c->run->device, c->stream);
    return cuda_launched(err);
}

int bernoulli_forward(const struct op_call *c, struct err *err)
{
    switch (c->out[0]->dtype) {
    case TENSOR_F32: return toss_all<float>(c, err);
    case TENSOR_I32: return toss_all<int32_t>(c, err);
    case TENSOR_I64: return toss_all<int64_t>(c, err);
    default: return toss_all<uint8_t>(c, err);
    }
}

/* x [rows, classes] -> y [rows, samples]. A thread computes whole rows, in a grid-stride loop; its
 * sums have the order of the CPU's. */
template <typename T>
__global__ void choose(const float *x, T *y, struct choice m, const struct op_run *run,
                       uint32_t stream)
{
    struct rng_key key = rng_cuda_key(run, stream);

    for (int64_t r = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; r < m.rows;
         r += (int64_t)gridDim.x * blockDim.x) {
        const float *row = x + r * m.classes;
        float max;
        double total = draw_total(row, m.classes, &max);

        for (int64_t s = 0; s < m.samples; s++) {
            uint64_t i = (uint64_t)(r * m.samples + s);
            uint32_t word[4];

            rng_cuda_words(key, i, word);
            y[i] = (T)draw_class(row, m.classes, max, total, word[0]);
        }
    }
}

template <typename T> int choose_all(const struct op_call *c, struct err *err)
{
    const struct choice *m = (const struct choice *)c->param;

    if (m->rows == 0)
        return 0;
    CUDA_LAUNCH((choose<T>), op_blocks((size_t)m->rows, OP_THREADS), OP_THREADS, 0, op_stream(c),
                (const float *)c->in[0]->data, (T *)c->out[0]->data, *m, c->run->device, c->stream);
    return cuda_launched(err);
}

int multinomial_forward(const struct op_call *c, struct err *err)
{
    return c->out[0]->dtype == TENSOR_I32 ? choose_all<int32_t>(c, err)
                                          : choose_all<int64_t>(c, err);
}

}

OP_CUDA(op_random_uniform, .fwd = fill_all<uniform>);
OP_CUDA(op_random_uniform_like, .fwd = fill_all<uniform>);
OP_CUDA(op_random_normal, .fwd = fill_all<normal>);
OP_CUDA(op_random_normal_like, .fwd = fill_all<normal>);
OP_CUDA(op_bernoulli, .fwd = bernoulli_forward);
OP_CUDA(op_multinomial, .fwd = multinomial_forward);
