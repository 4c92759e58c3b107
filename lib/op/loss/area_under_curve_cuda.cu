/* area_under_curve_cuda.cu - see area_under_curve.c.
 *
 * Weights are added as 64-bit integers, whose sum does not depend on the order. They are
 * multiplied by the largest power of two for which the sum cannot overflow, so the sum is exact
 * to 2^-40 of the largest weight for up to 2^21 elements. If a weight is NaN or infinite, all
 * bins are NaN. */
#include "op/loss/loss_cuda.cuh"

namespace {

constexpr unsigned BINS = 4096;

/* scale: the factor of the weights; NaN if a weight is not finite. */
struct largest {
    const float *weight;
    double *scale;
    int bits; /* there are at most 2^bits elements */

    using acc = float;
    using item = float;
    struct at {};

    __device__ acc start() const { return 0; }
    __device__ at of(size_t) const { return {}; }
    __device__ item load(size_t i) const { return fabsf(weight[i]); }
    __device__ acc merge(acc a, acc b) const { return b > a || b != b ? b : a; }
    __device__ acc add(acc a, item b, size_t, at) const { return merge(a, b); }
    __device__ void put(size_t, acc most) const
    {
        int exponent = 0;

        frexp((double)most, &exponent); /* most < 2^exponent */
        *scale = isfinite(most) ? ldexp(1.0, 61 - bits - exponent) : (double)NAN;
    }
};

/* A thread per element. */
__global__ void into_bins(const float *x, const float *t, const float *weight, size_t n,
                          op_divisor elements, const double *scale, unsigned long long *bins)
{
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x) {
        float w = weight[op_divide(i, elements)];
        unsigned bin = loss_bin(x[i], BINS);

        if (w != 0.0f && isfinite(*scale))
            atomicAdd(&bins[(t[i] > 0.5f ? 0 : BINS) + bin],
                      (unsigned long long)llrint((double)w * *scale));
    }
}

__global__ void from_bins(const unsigned long long *bins, const double *scale, float *y)
{
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;

    y[i] = (float)((double)(long long)bins[i] / *scale);
}

struct weight_of {
    const float *weight;

    __device__ loss_pair operator()(size_t i) const { return { 0, (double)weight[i] }; }
};

} // namespace

static size_t bins_bytes(void)
{
    return loss_round(2 * BINS * sizeof(unsigned long long));
}

/* Scratch: bins, scale, then the scratch of the folds. */
static int plan(struct op_plan *p, struct err *err)
{
    const struct loss_elements *s = (const struct loss_elements *)p->param;

    (void)err;
    p->scratch_bytes = bins_bytes() + loss_round(sizeof(double)) + loss_fold_scratch(s->n);
    return 0;
}

static int forward(const struct op_call *c, struct err *err)
{
    const struct loss_elements *s = (const struct loss_elements *)c->param;
    const float *x = (const float *)c->in[0]->data, *t = (const float *)c->in[1]->data;
    const float *weight = (const float *)c->in[2]->data;
    unsigned long long *bins = (unsigned long long *)c->scratch;
    double *scale = (double *)((char *)c->scratch + bins_bytes());
    void *room = (char *)scale + loss_round(sizeof(double));
    size_t n = s->n * s->elements;
    largest f = { weight, scale, 0 };
    loss_put to = { NULL, loss_out(c, 1), NULL };
    struct reduce_walk w;
    int rc;

    while ((size_t)1 << f.bits < n)
        f.bits++;
    loss_fold_walk(&w, s->n);
    rc = reduce_run(op_stream(c), f, w, room, err);
    if (rc == 0)
        rc = cuda_check(cudaMemsetAsync(bins, 0, bins_bytes(), op_stream(c)), err, "clear bins");
    if (rc == 0)
        rc = loss_fold_run(c, s->n, weight_of{ weight }, to, room, err);
    if (rc < 0)
        return rc;
    if (n > 0)
        CUDA_LAUNCH(into_bins, op_blocks(n, OP_THREADS), OP_THREADS, 0, op_stream(c), x, t, weight,
                    n, op_divisor_of(s->elements), (const double *)scale, bins);
    if (c->out[0] != NULL)
        CUDA_LAUNCH(from_bins, 2 * BINS / OP_THREADS, OP_THREADS, 0, op_stream(c),
                    (const unsigned long long *)bins, (const double *)scale,
                    (float *)c->out[0]->data);
    return cuda_launched(err);
}

OP_CUDA(op_area_under_curve, .plan = plan, .fwd = forward);
