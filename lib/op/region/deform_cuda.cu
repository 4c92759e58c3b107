/* deform_cuda.cu - see deform.c. Several taps may read the same element, so dx is summed as
 * integers (whole_sums.cuh). */
#include "op/whole_sums.cuh"

#include "op/region/deform.h"

namespace {

enum { X, OFFSET, MASK };

struct source {
    const float *x, *offset, *mask;
};

struct source source_of(const struct op_call *c, const struct deform *g)
{
    return { (const float *)c->in[X]->data, (const float *)c->in[OFFSET]->data,
             g->has_mask ? (const float *)c->in[MASK]->data : NULL };
}

/* A tap of a point, for the channels of its group in its sample. */
struct tap {
    size_t first, tap, point; /* first: channel, counted over all samples */
    size_t offset, mask;      /* indices in the inputs */
    float factor;
    struct deform_place place;
};

/* Computes tap i of samples * groups * taps * points. */
__device__ static void tap_of(const struct deform *g, struct source from, size_t i, struct tap *t)
{
    size_t q = i / g->points / g->taps; /* group, counted over all samples */

    t->point = i % g->points;
    t->tap = i / g->points % g->taps;
    t->first = q * (g->channels / g->groups);
    t->mask = i;
    t->offset = (i / g->points * 2) * g->points + t->point;
    t->factor = from.mask != NULL ? from.mask[i] : 1.0f;
    deform_place_of(g, t->tap, t->point, from.offset[t->offset], from.offset[t->offset + g->points],
                    &t->place);
}

__device__ static inline size_t column(const struct deform *g, const struct tap *t, size_t channel)
{
    return (channel * g->taps + t->tap) * g->points + t->point;
}

/* One thread per tap of a point in a group; it iterates over the channels. Adjacent threads process
 * adjacent points. */
__global__ void sample(struct source from, float *y, size_t n, struct deform g)
{
    size_t each = g.channels / g.groups;

    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x) {
        struct tap t;

        tap_of(&g, from, i, &t);
        for (size_t k = t.first; k < t.first + each; k++)
            y[column(&g, &t, k)] =
                t.factor * deform_sum(&t.place, from.x + k * g.inputs, t.place.w);
    }
}

/* doffset, dmask: NULL if not requested. */
__global__ void slopes(struct source from, const float *dy, float *doffset, float *dmask,
                       bool add_offset, bool add_mask, size_t n, struct deform g)
{
    size_t each = g.channels / g.groups;

    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x) {
        float down = 0, right = 0, mask = 0;
        struct tap t;

        tap_of(&g, from, i, &t);
        for (size_t k = t.first; k < t.first + each; k++) {
            const float *x = from.x + k * g.inputs;
            float d = dy[column(&g, &t, k)];

            mask += d * deform_sum(&t.place, x, t.place.w);
            d *= t.factor;
            down += d * deform_sum(&t.place, x, t.place.down);
            right += d * deform_sum(&t.place, x, t.place.right);
        }
        if (doffset != NULL) {
            float *to = doffset + t.offset;

            to[0] = (add_offset ? to[0] : 0.0f) + down;
            to[g.points] = (add_offset ? to[g.points] : 0.0f) + right;
        }
        if (dmask != NULL)
            dmask[t.mask] = (add_mask ? dmask[t.mask] : 0.0f) + mask;
    }
}

__global__ void spread(struct source from, const float *dy, unsigned long long *sums, size_t n,
                       struct deform g, const unsigned *most, int bits)
{
    double scale = op_sums_scale(most, bits);
    size_t each = g.channels / g.groups;

    if (!isfinite(scale))
        return;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x) {
        struct tap t;

        tap_of(&g, from, i, &t);
        for (size_t k = t.first; k < t.first + each; k++) {
            double d = (double)(dy[column(&g, &t, k)] * t.factor) * scale;

            for (int e = 0; e < t.place.n; e++)
                if (t.place.w[e] != 0)
                    op_sums_add(sums + k * g.inputs + t.place.element[e], d * (double)t.place.w[e]);
        }
    }
}

/* Computes the bits of the largest |mask dy|, the summands of spread(). */
__global__ void largest(struct source from, const float *dy, unsigned *most, size_t n,
                        struct deform g)
{
    size_t each = g.channels / g.groups;
    unsigned m = 0;

    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x) {
        struct tap t;

        tap_of(&g, from, i, &t);
        for (size_t k = t.first; k < t.first + each; k++) {
            unsigned bits = __float_as_uint(dy[column(&g, &t, k)] * t.factor) & 0x7fffffffu;

            m = bits > m ? bits : m;
        }
    }
    atomicMax(most, m);
}

size_t inputs_of(const struct deform *g)
{
    return g->samples * g->channels * g->inputs;
}

size_t taps_of(const struct deform *g)
{
    return g->samples * g->groups * g->taps * g->points;
}

int plan(struct op_plan *p, struct err *err)
{
    (void)err;
    if (op_cuda_plan_wants(p, X))
        p->scratch_bytes = op_sums_bytes(inputs_of((const struct deform *)p->param));
    return 0;
}

int forward(const struct op_call *c, struct err *err)
{
    const struct deform *g = (const struct deform *)c->param;
    size_t n = taps_of(g);

    if (n == 0)
        return 0;
    CUDA_LAUNCH(sample, op_blocks(n, OP_THREADS), OP_THREADS, 0, op_stream(c), source_of(c, g),
                (float *)c->out[0]->data, n, *g);
    return cuda_launched(err);
}

int input_grads(const struct op_call *c, const struct deform *g, struct err *err)
{
    const float *dy = (const float *)c->dout[0]->data;
    size_t n = taps_of(g), n_x = inputs_of(g);
    unsigned *most = op_sums_largest(c->scratch, n_x);
    /* the weights of a tap sum to 1; one bit for rounding */
    int bits = op_sums_digits(g->taps * g->points) + 2;
    int rc = op_sums_start(c, c->scratch, n_x, dy, 0, err);

    if (rc == 0 && n > 0) {
        CUDA_LAUNCH(largest, op_blocks(n, OP_THREADS), OP_THREADS, 0, op_stream(c), source_of(c, g),
                    dy, most, n, *g);
        CUDA_LAUNCH(spread, op_blocks(n, OP_THREADS), OP_THREADS, 0, op_stream(c), source_of(c, g),
                    dy, (unsigned long long *)c->scratch, n, *g, most, bits);
        rc = cuda_launched(err);
    }
    return rc < 0 ? rc
                  : op_sums_accumulate(c, c->scratch, (float *)c->din[X]->data, n_x,
                                       op_cuda_adds(c, X), bits, err);
}

int backward(const struct op_call *c, struct err *err)
{
    const struct deform *g = (const struct deform *)c->param;
    float *doffset = op_cuda_wants(c, OFFSET) ? (float *)c->din[OFFSET]->data : NULL;
    float *dmask = op_cuda_wants(c, MASK) ? (float *)c->din[MASK]->data : NULL;
    size_t n = taps_of(g);
    int rc = 0;

    if (c->dout[0] == NULL)
        return op_cuda_zero(c, err);
    if (op_cuda_wants(c, X))
        rc = input_grads(c, g, err);
    if (rc < 0 || n == 0 || (doffset == NULL && dmask == NULL))
        return rc;
    CUDA_LAUNCH(slopes, op_blocks(n, OP_THREADS), OP_THREADS, 0, op_stream(c), source_of(c, g),
                (const float *)c->dout[0]->data, doffset, dmask, op_cuda_adds(c, OFFSET),
                op_cuda_adds(c, MASK), n, *g);
    return cuda_launched(err);
}

}

OP_CUDA(op_deform_columns, .plan = plan, .fwd = forward, .bwd = backward);
