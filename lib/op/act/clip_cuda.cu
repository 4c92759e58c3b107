/* clip_cuda.cu - see clip.c. Every thread reads the limits of opset 11 from the memory of the
 * GPU. */
#include "op/op_cuda.cuh"

#include "op/act/act_formula.h"

extern "C" {
#include "op/act/params.h"
}

namespace {

/* Pointers to single numbers; NULL: no limit. */
template <typename T> struct limits {
    const T *lo, *hi;
};

template <typename T> struct whole_y {
    struct limits<T> at;

    __device__ T operator()(T x) const
    {
        T v = at.lo != NULL && x < __ldg(at.lo) ? __ldg(at.lo) : x;

        return at.hi != NULL && v > __ldg(at.hi) ? __ldg(at.hi) : v;
    }
};

struct float_limits {
    struct limits<float> at;
    struct clip otherwise;

    __device__ float lo() const { return at.lo != NULL ? __ldg(at.lo) : otherwise.lo; }
    __device__ float hi() const { return at.hi != NULL ? __ldg(at.hi) : otherwise.hi; }
};

struct float_y {
    struct float_limits m;

    __device__ float operator()(float x) const { return act_clip_y(x, m.lo(), m.hi()); }
};

struct float_dx {
    struct float_limits m;

    __device__ float operator()(float d, float x) const { return act_clip_dx(d, x, m.lo(), m.hi()); }
};

struct number { /* the gradient of a limit; NULL: not needed */
    float *to;
    bool add;
};

enum { LIMIT_THREADS = 1024 };

/* x, d [n] -> the sums of d for both limits. A single block computes them, so the order of the sums
 * is fixed. */
template <typename T>
__global__ void sum_limits(struct float_limits m, const T *x, const T *d, size_t n,
                           struct number dlo, struct number dhi)
{
    __shared__ float room[32];
    float lo = m.lo(), hi = m.hi(), low = 0, high = 0;

    for (size_t i = threadIdx.x; i < n; i += blockDim.x) {
        float v = op_wide(x[i]);

        if (v > hi || lo > hi)
            high += op_wide(d[i]);
        else if (v < lo && lo < hi)
            low += op_wide(d[i]);
    }
    low = op_block_sum(low, room);
    high = op_block_sum(high, room);
    if (threadIdx.x != 0)
        return;
    if (dlo.to != NULL)
        *dlo.to = (dlo.add ? *dlo.to : 0.0f) + low;
    if (dhi.to != NULL)
        *dhi.to = (dhi.add ? *dhi.to : 0.0f) + high;
}

}

template <typename T> static struct limits<T> limits_of(const struct op_call *c) {
    const void *at[2];

    for (uint32_t i = 0; i < 2; i++)
        at[i] = i + 1 < c->n_in && c->in[i + 1] != NULL ? c->in[i + 1]->data : NULL;
    return { (const T *)at[0], (const T *)at[1] };
}

static struct float_limits
float_limits_of(const struct op_call *c)
{
    return { limits_of<float>(c), *(const struct clip *)c->param };
}

template <typename T, typename F> static int run(const struct op_call *c, F f, struct err *err)
{
    return op_each(op_stream(c), (T *)c->out[0]->data, (size_t)tensor_elements(c->in[0]), false, f,
                   err, (const T *)c->in[0]->data);
}

static int forward(const struct op_call *c, struct err *err)
{
    if (c->in[0]->dtype == TENSOR_I32)
        return run<int32_t>(c, whole_y<int32_t>{ limits_of<int32_t>(c) }, err);
    if (c->in[0]->dtype == TENSOR_I64)
        return run<int64_t>(c, whole_y<int64_t>{ limits_of<int64_t>(c) }, err);
    OP_FLOATS(c->in[0]->dtype, return run<T>(c, float_y{ float_limits_of(c) }, err));
}

static struct number number_of(const struct op_call *c, uint32_t i)
{
    bool wanted = i < c->n_in && c->din[i] != NULL;

    return { wanted ? (float *)c->din[i]->data : NULL, wanted && op_cuda_adds(c, i) };
}

template <typename T> static int limits_backward(const struct op_call *c, struct err *err)
{
    const struct number dlo = number_of(c, 1), dhi = number_of(c, 2);

    if (dlo.to == NULL && dhi.to == NULL)
        return 0;
    CUDA_LAUNCH(sum_limits<T>, 1, LIMIT_THREADS, 0, op_stream(c), float_limits_of(c),
                (const T *)c->in[0]->data, (const T *)c->dout[0]->data,
                (size_t)tensor_elements(c->in[0]), dlo, dhi);
    return cuda_launched(err);
}

static int backward(const struct op_call *c, struct err *err)
{
    const struct tensor *d = c->dout[0], *g = c->din[0];
    int rc = 0;

    if (d == NULL)
        return op_cuda_zero(c, err);
    OP_FLOATS(d->dtype, rc = limits_backward<T>(c, err));
    if (rc < 0 || g == NULL)
        return rc;
    OP_FLOATS(g->dtype, return op_each(op_stream(c), (T *)g->data, (size_t)tensor_elements(g),
                                       op_cuda_adds(c, 0), float_dx{ float_limits_of(c) }, err,
                                       (const T *)d->data, (const T *)c->in[0]->data));
}

OP_CUDA(op_clip_11, .fwd = forward, .bwd = backward);
OP_CUDA(op_clip_6, .fwd = forward, .bwd = backward);
