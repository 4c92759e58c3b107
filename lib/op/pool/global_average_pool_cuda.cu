/* global_average_pool_cuda.cu - an image is rows of channels, and its mean a sum of columns. */
#include "op/op_cols.cuh"

static struct op_cols cols_of(const struct tensor *x)
{
    size_t space = 1;

    for (uint32_t k = 2; k < x->shape.rank; k++)
        space *= (size_t)x->shape.dim[k];
    return op_cols_of((size_t)x->shape.dim[0], space, (size_t)x->shape.dim[1]);
}

/* dx [n, rows, c] = by dy [n, c], or += . A thread owns N channels of an element. */
template <typename T, int N>
__global__ void spread(const T *dy, T *dx, uint64_t packs, struct op_divisor pixel,
                       struct op_divisor rows, float by, bool add)
{
    uint64_t step = (uint64_t)gridDim.x * blockDim.x;

    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < packs; i += step) {
        uint64_t image = i, channel = op_digit(&image, pixel);
        op_pack<T, N> out, d;

        (void)op_digit(&image, rows);
        d = ((const op_pack<T, N> *)dy)[image * pixel.by + channel];
        if (add)
            out = ((const op_pack<T, N> *)dx)[i];
#pragma unroll
        for (int k = 0; k < N; k++) {
            float v = op_wide(d.v[k]) * by;

            out.v[k] = op_narrow<T>(add ? op_wide(out.v[k]) + v : v);
        }
        ((op_pack<T, N> *)dx)[i] = out;
    }
}

template <typename T>
static void launch(const T *dy, T *dx, struct op_cols x, bool add, cudaStream_t s)
{
    constexpr size_t N = op_pack<T>::N;
    size_t n = x.batch * x.rows * x.cols;
    float by = 1.0f / (float)x.rows;

    if (n == 0)
        return;
    if (x.cols % N == 0 && op_aligned(dy) && op_aligned(dx))
        CUDA_LAUNCH((spread<T, (int)N>), op_blocks(n / N, OP_THREADS), OP_THREADS, 0, s, dy, dx,
                    (uint64_t)(n / N), op_divisor_of(x.cols / N), op_divisor_of(x.rows), by, add);
    else
        CUDA_LAUNCH((spread<T, 1>), op_blocks(n, OP_THREADS), OP_THREADS, 0, s, dy, dx, (uint64_t)n,
                    op_divisor_of(x.cols), op_divisor_of(x.rows), by, add);
}

static int plan(struct op_plan *p, struct err *err)
{
    struct op_cols x = cols_of(p->in[0]);

    (void)err; /* nothing can fail */
    p->scratch_bytes = op_cols_scratch(&x);
    return 0;
}

static int forward(const struct op_call *c, struct err *err)
{
    struct op_cols x = cols_of(c->in[0]);

    OP_FLOATS(c->in[0]->dtype,
              return op_cols_run(&x, (const T *)c->in[0]->data, 1.0f / (float)x.rows,
                                 (T *)c->out[0]->data, false, c->scratch, op_stream(c), err))
    return 0;
}

static int backward(const struct op_call *c, struct err *err)
{
    if (c->dout[0] == NULL || c->din[0] == NULL)
        return op_cuda_zero(c, err);
    OP_FLOATS(c->din[0]->dtype, launch((const T *)c->dout[0]->data, (T *)c->din[0]->data,
                                       cols_of(c->din[0]), op_cuda_adds(c, 0), op_stream(c)))
    return cuda_launched(err);
}

OP_CUDA(op_global_average_pool, .plan = plan, .fwd = forward, .bwd = backward);
