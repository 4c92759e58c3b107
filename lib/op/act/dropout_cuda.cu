/* dropout_cuda.cu - see dropout.c. The masks are identical to those of CPUs. */
#include "op/act/rng_cuda.cuh"
#include "op/op_cuda.cuh"

extern "C" {
#include "op/act/dropout.h"
}

/* x [n] in the order of the shape. A thread owns four elements, which share a block of random
 * words. y NULL: the kernel computes only the mask. */
template <typename T, bool Packed>
__global__ void drop_plain(const T *x, T *y, uint8_t *keep, size_t n, struct dropout d,
                           const struct op_run *run, uint32_t stream)
{
    size_t step = (size_t)gridDim.x * blockDim.x;
    struct rng_key key = rng_cuda_key(run, stream);

    for (size_t b = (size_t)blockIdx.x * blockDim.x + threadIdx.x; 4 * b < n; b += step) {
        op_pack<T, 4> v;
        op_pack<uint8_t, 4> kept;
        uint32_t word[4];
        bool whole = Packed && 4 * b + 4 <= n;

        if (whole)
            v = ((const op_pack<T, 4> *)x)[b];
        rng_words(&key, (uint32_t)b, word);
#pragma unroll
        for (size_t k = 0; k < 4; k++)
            kept.v[k] = word[k] >= d.below;
        if (whole) {
#pragma unroll
            for (size_t k = 0; k < 4; k++)
                v.v[k] = op_narrow<T>(kept.v[k] ? op_wide(v.v[k]) * d.scale : 0.0f);
            if (y != NULL)
                ((op_pack<T, 4> *)y)[b] = v;
            ((op_pack<uint8_t, 4> *)keep)[b] = kept;
            continue;
        }
        for (size_t k = 0; k < 4 && 4 * b + k < n; k++) {
            if (y != NULL)
                y[4 * b + k] = op_narrow<T>(kept.v[k] ? op_wide(x[4 * b + k]) * d.scale : 0.0f);
            keep[4 * b + k] = kept.v[k];
        }
    }
}

/* x [n, inner, channels]; the random numbers follow the order of [n, channels, inner]. A thread
 * owns four neighbours of inner in one channel; neighbouring threads have neighbouring channels. */
template <typename T>
__global__ void drop_channels(const T *x, T *y, uint8_t *keep, size_t fours, size_t inner,
                              size_t channels, struct op_divisor by_inner,
                              struct op_divisor by_channels, struct dropout d,
                              const struct op_run *run, uint32_t stream)
{
    size_t step = (size_t)gridDim.x * blockDim.x;
    struct rng_key key = rng_cuda_key(run, stream);

    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < fours; i += step) {
        size_t row = op_divide(i, by_channels), channel = i - row * channels;  /* row: (n, inner / 4) */
        size_t sample = op_divide(row, by_inner), at = (row - sample * by_inner.by) * 4;
        size_t drawn = (sample * channels + channel) * inner + at;
        size_t place = (sample * inner + at) * channels + channel;
        uint32_t word[4];

        rng_cuda_words(key, drawn, word);
#pragma unroll
        for (size_t k = 0; k < 4; k++)
            if (at + k < inner) {
                bool kept = word[k] >= d.below;

                if (y != NULL)
                    y[place + k * channels] =
                        op_narrow<T>(kept ? op_wide(x[place + k * channels]) * d.scale : 0.0f);
                keep[place + k * channels] = kept;
            }
    }
}

namespace {

struct kept_only {
    float scale;

    __device__ float operator()(float d, uint8_t keep) const { return keep != 0 ? d * scale : 0.0f; }
};

struct one {
    __device__ float operator()() const { return 1.0f; }
    __device__ float operator()(uint8_t keep) const { return keep != 0 ? 1.0f : 0.0f; }
};

}

template <typename T>
static int drop(const struct op_call *c, const T *x, T *y, uint8_t *keep, struct err *err)
{
    const struct dropout *d = (const struct dropout *)c->param;
    const struct tensor *t = c->in[0];
    size_t n = (size_t)tensor_elements(t);
    cudaStream_t s = op_stream(c);

    if (n == 0)
        return 0;
    if (t->layout == TENSOR_CHANNELS_LAST && t->shape.rank >= 3) {
        size_t channels = (size_t)t->shape.dim[1], inner = n / channels / (size_t)t->shape.dim[0];
        size_t each = (inner + 3) / 4, fours = (size_t)t->shape.dim[0] * each * channels;

        CUDA_LAUNCH((drop_channels<T>), op_blocks(fours, OP_THREADS), OP_THREADS, 0, s, x, y, keep,
                    fours, inner, channels, op_divisor_of(each), op_divisor_of(channels), *d,
                    c->run->device, c->stream);
    } else if (op_aligned(x) && op_aligned(y)) {
        CUDA_LAUNCH((drop_plain<T, true>), op_blocks(n, 4 * OP_THREADS), OP_THREADS, 0, s, x, y,
                    keep, n, *d, c->run->device, c->stream);
    } else {
        CUDA_LAUNCH((drop_plain<T, false>), op_blocks(n, 4 * OP_THREADS), OP_THREADS, 0, s, x, y,
                    keep, n, *d, c->run->device, c->stream);
    }
    return cuda_launched(err);
}

/* keep NULL: all elements are kept. */
static int write_mask(const struct op_call *c, const uint8_t *keep, struct err *err)
{
    const struct tensor *out = c->out[1];
    size_t n = (size_t)tensor_elements(out);
    cudaStream_t s = op_stream(c);

    if (n == 0)
        return 0;
    if (out->dtype != TENSOR_BOOL && keep != NULL)
        return op_each(s, (float *)out->data, n, false, one(), err, keep);
    if (out->dtype != TENSOR_BOOL)
        return op_each(s, (float *)out->data, n, false, one(), err);
    return keep != NULL ? cuda_copy(out->data, keep, n, c->run->queue, err)
                        : cuda_fill(out->data, 1, n, c->run->queue, err);
}

static int plan(struct op_plan *p, struct err *err)
{
    const struct dropout *d = (const struct dropout *)p->param;

    (void)err; /* nothing can fail */
    if (d->drops)
        p->save_bytes = (size_t)tensor_elements(p->in[0]);
    return 0;
}

static int forward(const struct op_call *c, struct err *err)
{
    const struct dropout *d = (const struct dropout *)c->param;
    const struct tensor *x = c->in[0], *y = c->out[0];
    uint8_t *keep = d->drops ? (uint8_t *)c->save : NULL;
    int rc = 0;

    if (d->drops)
        OP_FLOATS(x->dtype,
                  rc = drop(c, (const T *)x->data, (T *)(y != NULL ? y->data : NULL), keep, err))
    else if (y != NULL && y->data != x->data && tensor_bytes(x) > 0)
        rc = cuda_copy(y->data, x->data, tensor_bytes(x), c->run->queue, err);
    if (rc == 0 && c->n_out > 1 && c->out[1] != NULL)
        rc = write_mask(c, keep, err);
    return rc;
}

static int backward(const struct op_call *c, struct err *err)
{
    const struct dropout *p = (const struct dropout *)c->param;
    const struct tensor *d = c->dout[0], *g = c->din[0];
    bool add = op_cuda_adds(c, 0);
    size_t n;

    if (d == NULL || g == NULL)
        return op_cuda_zero(c, err);
    n = (size_t)tensor_elements(g);
    if (p->drops)
        OP_FLOATS(g->dtype, return op_each(op_stream(c), (T *)g->data, n, add, kept_only{ p->scale }, err,
                                           (const T *)d->data, (const uint8_t *)c->save));
    OP_FLOATS(g->dtype, return op_each(op_stream(c), (T *)g->data, n, add, op_same(), err,
                                       (const T *)d->data));
}

OP_CUDA(op_dropout_12, .plan = plan, .fwd = forward, .bwd = backward);
OP_CUDA(op_dropout_7, .plan = plan, .fwd = forward, .bwd = backward);
