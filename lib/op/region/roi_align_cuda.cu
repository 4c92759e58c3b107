/* roi_align_cuda.cu - see roi_align.c. Regions may overlap, so the gradient is summed as integers
 * (whole_sums.cuh). */
#include "op/whole_sums.cuh"

#include "op/region/roi_align.h"

namespace {

enum { X, ROIS, BATCH };

struct out_of_batch {
    const int64_t *batch;
    int64_t samples;

    __device__ bool operator()(size_t i, int64_t *value) const
    {
        *value = batch[i];
        return *value < 0 || *value >= samples;
    }
};

/* Region, bin and channel of element i of the output; false: the image index of the region is
 * invalid. */
struct place {
    struct roi_line h, w;
    const float *channel; /* address in x */
    size_t first;         /* index in x */
};

__device__ static bool place_of(const struct roi_align *g, const float *x, const float *rois,
                                const int64_t *batch, size_t i, struct place *p)
{
    size_t bin = i % g->outputs, k = i / g->outputs % g->channels, r = i / g->outputs / g->channels;

    if (batch[r] < 0 || batch[r] >= (int64_t)g->samples)
        return false;
    p->h = roi_line_of(g, rois + 4 * r, 0, (int64_t)bin / g->bins[1]);
    p->w = roi_line_of(g, rois + 4 * r, 1, (int64_t)bin % g->bins[1]);
    p->first = ((size_t)batch[r] * g->channels + k) * g->inputs;
    p->channel = x + p->first;
    return true;
}

/* A thread computes elements of the output, in a grid-stride loop. */
__global__ void align(const float *x, const float *rois, const int64_t *batch, float *y, size_t n,
                      struct roi_align g)
{
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x) {
        struct place p;

        if (!place_of(&g, x, rois, batch, i, &p))
            y[i] = NAN;
        else
            y[i] = g.max ? roi_largest(&g, p.channel, &p.h, &p.w).value
                         : roi_mean(&g, p.channel, &p.h, &p.w);
    }
}

__global__ void spread(const float *x, const float *rois, const int64_t *batch, const float *dy,
                       unsigned long long *sums, size_t n, struct roi_align g, const unsigned *most,
                       int bits)
{
    double scale = op_sums_scale(most, bits);

    if (!isfinite(scale))
        return;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x) {
        double d = (double)dy[i] * scale;
        struct place p;

        if (!place_of(&g, x, rois, batch, i, &p))
            continue;
        if (g.max) {
            struct roi_pick best = roi_largest(&g, p.channel, &p.h, &p.w);

            if (best.at >= 0)
                op_sums_add(sums + p.first + best.at, d * (double)best.weight);
        } else {
            d /= (double)roi_count(&p.h, &p.w);
            ROI_EACH(&g, &p.h, &p.w, { op_sums_add(sums + p.first + element, d * (double)weight); })
        }
    }
}

size_t inputs_of(const struct roi_align *g)
{
    return g->samples * g->channels * g->inputs;
}

int plan(struct op_plan *p, struct err *err)
{
    (void)err;
    if (op_cuda_plan_wants(p, X))
        p->scratch_bytes = op_sums_bytes(inputs_of((const struct roi_align *)p->param));
    return 0;
}

int forward(const struct op_call *c, struct err *err)
{
    const struct roi_align *g = (const struct roi_align *)c->param;
    const int64_t *batch = (const int64_t *)c->in[BATCH]->data;
    size_t n = g->rois * g->channels * g->outputs;
    int rc = op_cuda_scan(c, g->rois, out_of_batch{ batch, (int64_t)g->samples }, err);

    if (rc < 0 || n == 0)
        return rc;
    CUDA_LAUNCH(align, op_blocks(n, OP_THREADS), OP_THREADS, 0, op_stream(c),
                (const float *)c->in[X]->data, (const float *)c->in[ROIS]->data, batch,
                (float *)c->out[0]->data, n, *g);
    return cuda_launched(err);
}

int backward(const struct op_call *c, struct err *err)
{
    const struct roi_align *g = (const struct roi_align *)c->param;
    const float *dy = c->dout[0] != NULL ? (const float *)c->dout[0]->data : NULL;
    size_t n = g->rois * g->channels * g->outputs;
    /* the weights of a bin sum to 1; one bit for rounding */
    int bits = op_sums_digits(g->rois * g->outputs) + 2, rc;

    if (dy == NULL || !op_cuda_wants(c, X))
        return op_cuda_zero(c, err);
    rc = op_sums_start(c, c->scratch, inputs_of(g), dy, n, err);
    if (rc == 0 && n > 0) {
        CUDA_LAUNCH(spread, op_blocks(n, OP_THREADS), OP_THREADS, 0, op_stream(c),
                    (const float *)c->in[X]->data, (const float *)c->in[ROIS]->data,
                    (const int64_t *)c->in[BATCH]->data, dy, (unsigned long long *)c->scratch, n,
                    *g, op_sums_largest(c->scratch, inputs_of(g)), bits);
        rc = cuda_launched(err);
    }
    return rc < 0 ? rc
                  : op_sums_accumulate(c, c->scratch, (float *)c->din[X]->data, inputs_of(g),
                                       op_cuda_adds(c, X), bits, err);
}

}

OP_CUDA(op_roi_align_10, .plan = plan, .fwd = forward, .bwd = backward);
OP_CUDA(op_roi_align_16, .plan = plan, .fwd = forward, .bwd = backward);
