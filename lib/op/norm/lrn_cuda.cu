/* lrn_cuda.cu - see lrn.c. A thread owns one element, and reads its neighbours from the cache. */
#include "op/op_cuda.cuh"

extern "C" {
#include "op/norm/norm_priv.h"
}

namespace {

struct lines { /* n elements in samples of channels, `inner` elements from one channel to the next */
    size_t n;
    int64_t channels, inner;
    struct op_divisor by_inner, by_channels;
    int64_t front, behind; /* channels before and after each one */
};

__device__ static inline float sum_around(const float *x, size_t i, const struct lines &l,
                                          bool squares)
{
    int64_t channel = (int64_t)op_divide(i, l.by_inner), from, to;
    float sum = 0;

    channel -= (int64_t)op_divide((uint64_t)channel, l.by_channels) * l.channels;
    from = channel < l.front ? -channel : -l.front;
    to = l.channels - 1 - channel < l.behind ? l.channels - 1 - channel : l.behind;
    for (int64_t d = from; d <= to; d++) {
        float v = x[(int64_t)i + d * l.inner];

        sum += squares ? v * v : v;
    }
    return sum;
}

/* s = bias + factor sum x^2, y = x s^-beta */
__global__ void divide(const float *x, float *s, float *y, struct lines l, float bias, float factor,
                       float beta)
{
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < l.n;
         i += (size_t)gridDim.x * blockDim.x) {
        s[i] = bias + factor * sum_around(x, i, l, true);
        if (y != NULL)
            y[i] = x[i] * powf(s[i], -beta);
    }
}

/* r = dy s^-beta x / s */
__global__ void shares(const float *x, const float *dy, const float *s, float *r, size_t n,
                       float beta)
{
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x)
        r[i] = dy[i] * powf(s[i], -beta) * x[i] / s[i];
}

/* dx = dy s^-beta - factor x sum r */
__global__ void gradient(const float *x, const float *dy, const float *s, const float *r, float *dx,
                         bool add, struct lines l, float factor, float beta)
{
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < l.n;
         i += (size_t)gridDim.x * blockDim.x) {
        float d = dy[i] * powf(s[i], -beta) - factor * x[i] * sum_around(r, i, l, false);

        dx[i] = add ? dx[i] + d : d;
    }
}

} // namespace

static struct lines lines_of(const struct tensor *x, int64_t front, int64_t behind)
{
    struct lines l = { .n = (size_t)tensor_elements(x), .channels = x->shape.dim[1], .inner = 1 };

    for (uint32_t k = 2; k < x->shape.rank && x->layout == TENSOR_PLAIN; k++)
        l.inner *= x->shape.dim[k];
    l.by_inner = op_divisor_of((uint64_t)(l.inner > 0 ? l.inner : 1));
    l.by_channels = op_divisor_of((uint64_t)(l.channels > 0 ? l.channels : 1));
    l.front = front;
    l.behind = behind;
    return l;
}

static int plan(struct op_plan *p, struct err *err)
{
    (void)err;
    p->save_bytes = tensor_bytes(p->in[0]);                      /* s */
    p->scratch_bytes = p->training ? tensor_bytes(p->in[0]) : 0; /* r */
    return 0;
}

static int forward(const struct op_call *c, struct err *err)
{
    const struct lrn_param *p = (const struct lrn_param *)c->param;
    struct lines l = lines_of(c->in[0], (p->size - 1) / 2, p->size / 2);

    if (l.n > 0)
        CUDA_LAUNCH(divide, op_blocks(l.n, OP_THREADS), OP_THREADS, 0, op_stream(c),
                    (const float *)c->in[0]->data, (float *)c->save,
                    c->out[0] != NULL ? (float *)c->out[0]->data : NULL, l, p->bias,
                    p->alpha / (float)p->size, p->beta);
    return cuda_launched(err);
}

static int backward(const struct op_call *c, struct err *err)
{
    const struct lrn_param *p = (const struct lrn_param *)c->param;
    /* the channels whose sum includes this one */
    struct lines l = lines_of(c->in[0], p->size / 2, (p->size - 1) / 2);
    const float *x = (const float *)c->in[0]->data, *s = (const float *)c->save, *dy;
    unsigned blocks = op_blocks(l.n, OP_THREADS);

    if (c->dout[0] == NULL || c->din[0] == NULL || l.n == 0)
        return op_cuda_zero(c, err);
    dy = (const float *)c->dout[0]->data;
    CUDA_LAUNCH(shares, blocks, OP_THREADS, 0, op_stream(c), x, dy, s, (float *)c->scratch, l.n,
                p->beta);
    CUDA_LAUNCH(gradient, blocks, OP_THREADS, 0, op_stream(c), x, dy, s, (const float *)c->scratch,
                (float *)c->din[0]->data, op_cuda_adds(c, 0), l,
                2 * p->alpha * p->beta / (float)p->size, p->beta);
    return cuda_launched(err);
}

OP_CUDA(op_lrn, .plan = plan, .fwd = forward, .bwd = backward);
