/* grid_sample_cuda.cu - see grid_sample.c. Points that read the same element add to its gradient in
 * any order, so gradients are summed as integers: multiples of a power of two that depends on the
 * largest |dy| (whole_sums.cuh). */
#include <math.h>

#include "op/whole_sums.cuh"

#include "op/resize/grid_sample.h"

namespace {

enum { X, GRID, CHANNELS = 8 /* channels per thread */ };

/* A thread computes CHANNELS channels of points, in a grid-stride loop over points. */
__global__ void sample(const float *x, const float *grid, float *y, struct grid_sample g,
                       struct op_divisor points)
{
    size_t first = (size_t)blockIdx.y * CHANNELS,
           end = first + CHANNELS < g.channels ? first + CHANNELS : g.channels;

    for (size_t q = (size_t)blockIdx.x * blockDim.x + threadIdx.x; q < g.samples * g.points;
         q += (size_t)gridDim.x * blockDim.x) {
        size_t s = op_divide(q, points), p = q - s * g.points;
        struct grid_taps t[GRID_AXES];

        grid_point(&g, grid + q * g.axes, t);
        for (size_t k = first; k < end; k++) {
            const float *from = x + (s * g.channels + k) * g.inputs;
            float sum = 0;

            GRID_EACH(&g, t, { sum += from[element] * (t[0].w[i] * t[1].w[j] * t[2].w[l]); })
            y[(s * g.channels + k) * g.points + p] = sum;
        }
    }
}

dim3 blocks_of(const struct grid_sample *g)
{
    return dim3(op_blocks(g->samples * g->points, OP_THREADS),
                (unsigned)((g->channels + CHANNELS - 1) / CHANNELS));
}

int forward(const struct op_call *c, struct err *err)
{
    const struct grid_sample *g = (const struct grid_sample *)c->param;

    if (tensor_elements(c->out[0]) == 0)
        return 0;
    CUDA_LAUNCH(sample, blocks_of(g), OP_THREADS, 0, op_stream(c), (const float *)c->in[X]->data,
                (const float *)c->in[GRID]->data, (float *)c->out[0]->data, *g,
                op_divisor_of(g->points));
    return cuda_launched(err);
}

/* ---- gradients ---- */

/* sums [samples, channels, inputs]; threads as in sample(). */
__global__ void spread(const float *dy, const float *grid, unsigned long long *sums,
                       struct grid_sample g, struct op_divisor points, const unsigned *most,
                       int bits)
{
    size_t first = (size_t)blockIdx.y * CHANNELS,
           end = first + CHANNELS < g.channels ? first + CHANNELS : g.channels;
    double scale = op_sums_scale(most, bits);

    if (!isfinite(scale))
        return;
    for (size_t q = (size_t)blockIdx.x * blockDim.x + threadIdx.x; q < g.samples * g.points;
         q += (size_t)gridDim.x * blockDim.x) {
        size_t s = op_divide(q, points), p = q - s * g.points;
        struct grid_taps t[GRID_AXES];

        grid_point(&g, grid + q * g.axes, t);
        for (size_t k = first; k < end; k++) {
            unsigned long long *to = sums + (s * g.channels + k) * g.inputs;
            double d = (double)dy[(s * g.channels + k) * g.points + p] * scale;

            GRID_EACH(&g, t, {
                op_sums_add(&to[element], d * (double)(t[0].w[i] * t[1].w[j] * t[2].w[l]));
            })
        }
    }
}

/* A thread computes a point and sums over its channels. */
__global__ void slopes(const float *x, const float *grid, const float *dy, float *dgrid,
                       struct grid_sample g, struct op_divisor points, bool add)
{
    for (size_t q = (size_t)blockIdx.x * blockDim.x + threadIdx.x; q < g.samples * g.points;
         q += (size_t)gridDim.x * blockDim.x) {
        size_t s = op_divide(q, points), p = q - s * g.points;
        struct grid_taps t[GRID_AXES];
        float sum[GRID_AXES] = { 0 };

        grid_point(&g, grid + q * g.axes, t);
        for (size_t k = 0; k < g.channels; k++) {
            const float *from = x + (s * g.channels + k) * g.inputs;
            float d = dy[(s * g.channels + k) * g.points + p];

            GRID_EACH(&g, t, {
                float v = d * from[element];

                sum[0] += v * (t[0].slope[i] * t[1].w[j] * t[2].w[l]);
                sum[1] += v * (t[0].w[i] * t[1].slope[j] * t[2].w[l]);
                sum[2] += v * (t[0].w[i] * t[1].w[j] * t[2].slope[l]);
            })
        }
        for (uint32_t k = 0; k < g.axes; k++)
            dgrid[q * g.axes + k] = (add ? dgrid[q * g.axes + k] : 0.0f) + sum[GRID_AXES - 1 - k];
    }
}

size_t inputs_of(const struct grid_sample *g)
{
    return g->samples * g->channels * g->inputs;
}

int plan(struct op_plan *p, struct err *err)
{
    (void)err;
    if (op_cuda_plan_wants(p, X))
        p->scratch_bytes = op_sums_bytes(inputs_of((const struct grid_sample *)p->param));
    return 0;
}

int input_grads(const struct op_call *c, const struct grid_sample *g, struct err *err)
{
    const float *dy = (const float *)c->dout[0]->data;
    size_t n = inputs_of(g), n_dy = g->samples * g->channels * g->points;
    int bits = 3, rc; /* a weight of a cubic kernel may exceed 1 slightly; 64 taps may read the same
                         element */

    while (bits < 60 && g->points * 64 >> bits != 0)
        bits++;
    rc = op_sums_start(c, c->scratch, n, dy, n_dy, err);
    if (rc == 0 && n_dy > 0) {
        CUDA_LAUNCH(spread, blocks_of(g), OP_THREADS, 0, op_stream(c), dy,
                    (const float *)c->in[GRID]->data, (unsigned long long *)c->scratch, *g,
                    op_divisor_of(g->points), op_sums_largest(c->scratch, n), bits);
        rc = cuda_launched(err);
    }
    return rc < 0 ? rc
                  : op_sums_accumulate(c, c->scratch, (float *)c->din[X]->data, n,
                                       op_cuda_adds(c, X), bits, err);
}

int backward(const struct op_call *c, struct err *err)
{
    const struct grid_sample *g = (const struct grid_sample *)c->param;
    int rc = 0;

    if (c->dout[0] == NULL)
        return op_cuda_zero(c, err);
    if (op_cuda_wants(c, X))
        rc = input_grads(c, g, err);
    if (rc < 0 || !op_cuda_wants(c, GRID) || g->samples * g->points == 0)
        return rc;
    CUDA_LAUNCH(slopes, op_blocks(g->samples * g->points, OP_THREADS), OP_THREADS, 0, op_stream(c),
                (const float *)c->in[X]->data, (const float *)c->in[GRID]->data,
                (const float *)c->dout[0]->data, (float *)c->din[GRID]->data, *g,
                op_divisor_of(g->points), op_cuda_adds(c, GRID));
    return cuda_launched(err);
}

}

OP_CUDA(op_grid_sample_16, .plan = plan, .fwd = forward, .bwd = backward);
OP_CUDA(op_grid_sample_20, .plan = plan, .fwd = forward, .bwd = backward);
