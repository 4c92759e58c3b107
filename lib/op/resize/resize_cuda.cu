/* resize_cuda.cu - see resize_cpu.c: the same passes over all items at once, with the tables of the
 * CPU's plan copied to the GPU. The sum over the taps of a row runs from the first to the last. */
#include <stdlib.h>
#include <string.h>

#include "op/shape/shape_cuda.cuh"

extern "C" {
#include "op/resize/resize_priv.h"
}

namespace {

/* A struct resize_map in GPU memory. */
struct table {
    const struct resize_row *row;
    const float *w;
};

struct resize_device { /* state of the plan (op_plan.state) */
    struct resize_state *host;
    void (*free_host)(void *state);
    void *tables; /* GPU memory, which contains the tables of fwd and bwd */
    struct table fwd[TENSOR_MAX_RANK], bwd[TENSOR_MAX_RANK];
};

/* ---- plan ---- */

size_t round_up(size_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

/* Copies a map and its weights to offset *at of `to`, advances *at, and sets the addresses in
 * `gpu`; to NULL: only advances *at. */
void copy_table(const struct resize_map *m, size_t *at, char *to, char *gpu, struct table *t)
{
    size_t rows = m->n * sizeof(*m->row), weights = m->n_w * sizeof(*m->w);

    if (m->row == NULL)
        return;
    if (to != NULL) {
        memcpy(to + *at, m->row, rows);
        memcpy(to + *at + round_up(rows), m->w, weights);
    }
    if (gpu != NULL) {
        t->row = (const struct resize_row *)(const void *)(gpu + *at);
        t->w = (const float *)(const void *)(gpu + *at + round_up(rows));
    }
    *at += round_up(rows) + round_up(weights);
}

size_t copy_tables(struct resize_device *s, char *to, char *gpu)
{
    size_t at = 0;

    for (uint32_t i = 0; i < s->host->n; i++) {
        copy_table(&s->host->pass[i].fwd, &at, to, gpu, &s->fwd[i]);
        copy_table(&s->host->pass[i].bwd, &at, to, gpu, &s->bwd[i]);
    }
    return at;
}

int upload(struct resize_device *s, const struct op_plan *p, struct err *err)
{
    size_t bytes = copy_tables(s, NULL, NULL);
    char *here;
    int rc;

    if (bytes == 0)
        return 0;
    here = (char *)calloc(1, bytes);
    if (here == NULL)
        return err_set(err, ERR_NOMEM, "%s '%s': out of memory", p->def->name, p->node);
    (void)copy_tables(s, here, NULL);
    rc = cuda_upload(&s->tables, here, bytes, err);
    if (rc == 0)
        (void)copy_tables(s, NULL, (char *)s->tables);
    free(here);
    return rc;
}

void free_state(void *state)
{
    struct resize_device *s = (struct resize_device *)state;

    if (s == NULL)
        return;
    s->free_host(s->host);
    cuda_free(s->tables);
    free(s);
}

size_t between_bytes(const struct resize_state *s, size_t size)
{
    return round_up(s->items * s->between * size);
}

int plan(struct op_plan *p, struct err *err)
{
    int rc = p->def->cpu.plan(p, err);
    struct resize_device *s;

    if (rc < 0)
        return rc;
    s = (struct resize_device *)calloc(1, sizeof(*s));
    if (s == NULL) {
        p->def->cpu.free_state(p->state);
        p->state = NULL;
        return err_set(err, ERR_NOMEM, "%s '%s': out of memory", p->def->name, p->node);
    }
    s->host = (struct resize_state *)p->state;
    s->free_host = p->def->cpu.free_state;
    rc = upload(s, p, err);
    if (rc < 0) {
        free_state(s);
        p->state = NULL;
        return rc;
    }
    p->state = s;
    p->scratch_bytes = 2 * between_bytes(s->host, tensor_dtype_bytes(p->in[0]->dtype));
    return 0;
}

/* ---- kernels ---- */

/* x [outer, from, inner] -> y [outer, to, inner]; inner in units. */
struct sampling {
    struct table t;
    size_t n; /* units of y */
    struct op_divisor inner, to;
    int64_t from;
};

/* Returns the index in x of the first sample of unit i of y, and its row of weights. */
__device__ static inline int64_t sample(const struct sampling &s, size_t i, struct resize_row *r)
{
    uint64_t outer = i, at = op_digit(&outer, s.inner);

    *r = s.t.row[op_digit(&outer, s.to)];
    return ((int64_t)outer * s.from + r->at) * (int64_t)s.inner.by + (int64_t)at;
}

/* y = the nearest sample, or 0. A thread computes units of y, in a grid-stride loop. */
template <typename U> __global__ void pick(struct sampling s, const U *x, U *y)
{
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < s.n;
         i += (size_t)gridDim.x * blockDim.x) {
        struct resize_row r;
        int64_t from = sample(s, i, &r);

        y[i] = r.n > 0 ? x[from] : U();
    }
}

/* y = or += the weighted sum of its row. A thread computes units of V elements, in a grid-stride
 * loop. */
template <int V> __global__ void mix(struct sampling s, const float *x, float *y, bool add)
{
    using unit = op_pack<float, V>;

    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < s.n;
         i += (size_t)gridDim.x * blockDim.x) {
        struct resize_row r;
        const unit *from = (const unit *)x + sample(s, i, &r);
        unit sum = {};

        if (add)
            sum = ((const unit *)y)[i];
        for (uint32_t k = 0; k < r.n; k++) {
            unit u = from[(int64_t)(k * s.inner.by)];
            float w = s.t.w[r.w + k];

#pragma unroll
            for (int e = 0; e < V; e++)
                sum.v[e] += w * u.v[e];
        }
        ((unit *)y)[i] = sum;
    }
}

/* Stores `value` outside of the input along any axis. A thread processes elements of y, in a
 * grid-stride loop. */
struct outside {
    uint32_t n;
    struct {
        const struct resize_row *row;
        size_t line, out;
    } axis[TENSOR_MAX_RANK];
};

__global__ void fill_outside(struct outside s, float *y, size_t n, float value)
{
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x)
        for (uint32_t k = 0; k < s.n; k++)
            if (s.axis[k].row[i / s.axis[k].line % s.axis[k].out].n == 0)
                y[i] = value;
}

/* ---- launches ---- */

/* `unit` elements are processed together. */
struct sampling sampling_of(const struct resize_device *s, uint32_t i, bool forward, size_t unit)
{
    const struct resize_pass *p = &s->host->pass[i];
    size_t from = forward ? p->in : p->out, to = forward ? p->out : p->in, inner = p->inner / unit;

    return { forward ? s->fwd[i] : s->bwd[i], s->host->items * p->outer * to * inner,
             op_divisor_of(inner), op_divisor_of(to), (int64_t)from };
}

template <typename U>
void run_pick(cudaStream_t q, const struct resize_device *s, uint32_t i, size_t size, const void *x,
              void *y)
{
    struct sampling m = sampling_of(s, i, true, sizeof(U) / size);

    CUDA_LAUNCH((pick<U>), op_blocks(m.n, OP_THREADS), OP_THREADS, 0, q, m, (const U *)x, (U *)y);
}

void pick_pass(cudaStream_t q, const struct resize_device *s, uint32_t i, size_t size,
               const void *x, void *y)
{
    uintptr_t together = (uintptr_t)x | (uintptr_t)y | (s->host->pass[i].inner * size);

    if (together % 16 == 0)
        run_pick<uint4>(q, s, i, size, x, y);
    else
        OP_SIZES(together % 8 == 0   ? 8
                 : together % 4 == 0 ? 4
                 : together % 2 == 0 ? 2
                                     : 1,
                 run_pick<U>(q, s, i, size, x, y));
}

template <int V>
void run_mix(cudaStream_t q, const struct resize_device *s, uint32_t i, bool forward,
             const float *x, float *y, bool add)
{
    struct sampling m = sampling_of(s, i, forward, V);

    CUDA_LAUNCH((mix<V>), op_blocks(m.n, OP_THREADS), OP_THREADS, 0, q, m, x, y, add);
}

void mix_pass(cudaStream_t q, const struct resize_device *s, uint32_t i, bool forward,
              const float *x, float *y, bool add)
{
    if (s->host->pass[i].inner % 4 == 0 && op_aligned(x) && op_aligned(y))
        run_mix<4>(q, s, i, forward, x, y, add);
    else
        run_mix<1>(q, s, i, forward, x, y, add);
}

void run_outside(const struct op_call *c, const struct resize_device *s, float value)
{
    size_t n = (size_t)tensor_elements(c->out[0]);
    struct outside o = {};

    for (uint32_t i = 0; i < s->host->n; i++) {
        o.axis[o.n].row = s->fwd[i].row;
        o.axis[o.n].line = resize_line(s->host, i);
        o.axis[o.n++].out = s->host->pass[i].out;
    }
    CUDA_LAUNCH(fill_outside, op_blocks(n, OP_THREADS), OP_THREADS, 0, op_stream(c), o,
                (float *)c->out[0]->data, n, value);
}

/* Address of the result of pass i, which the next pass reads. */
void *between(const struct op_call *c, const struct resize_device *s, uint32_t i, size_t size)
{
    return (char *)c->scratch + i % 2 * between_bytes(s->host, size);
}

int forward(const struct op_call *c, struct err *err)
{
    const struct resize_device *s = (const struct resize_device *)c->state;
    const struct resize_param *p = (const struct resize_param *)c->param;
    size_t size = tensor_dtype_bytes(c->in[0]->dtype);
    const void *from = c->in[0]->data;

    if (s->host->items == 0 || tensor_elements(c->out[0]) == 0)
        return 0;
    if (s->host->n == 0)
        return cuda_copy(c->out[0]->data, from, tensor_bytes(c->in[0]), c->run->queue, err);
    for (uint32_t i = 0; i < s->host->n; i++) {
        void *to = i + 1 == s->host->n ? c->out[0]->data : between(c, s, i, size);

        if (p->filter == NULL)
            pick_pass(op_stream(c), s, i, size, from, to);
        else
            mix_pass(op_stream(c), s, i, true, (const float *)from, (float *)to, false);
        from = to;
    }
    if (p->outside != 0)
        run_outside(c, s, p->outside);
    return cuda_launched(err);
}

int backward(const struct op_call *c, struct err *err)
{
    const struct resize_device *s = (const struct resize_device *)c->state;
    const struct tensor *dx = c->din[0], *dy = c->dout[0];
    bool add = op_cuda_adds(c, 0);
    const float *from;

    if (dx == NULL || dy == NULL || s->host->items == 0)
        return op_cuda_zero(c, err);
    if (s->host->n == 0 && add)
        return shape_cuda_add(c, dx, dy->data, err);
    if (s->host->n == 0)
        return cuda_copy(dx->data, dy->data, tensor_bytes(dx), c->run->queue, err);
    from = (const float *)dy->data;
    for (uint32_t i = s->host->n; i-- > 0;) {
        float *to = (float *)(i == 0 ? dx->data : between(c, s, i, sizeof(*to)));

        mix_pass(op_stream(c), s, i, false, from, to, i == 0 && add);
        from = to;
    }
    return cuda_launched(err);
}

} // namespace

OP_CUDA(op_resize_11, .plan = plan, .fwd = forward, .bwd = backward, .free_state = free_state);
OP_CUDA(op_resize_10, .plan = plan, .fwd = forward, .bwd = backward, .free_state = free_state);
OP_CUDA(op_upsample_9, .plan = plan, .fwd = forward, .bwd = backward, .free_state = free_state);
OP_CUDA(op_upsample_7, .plan = plan, .fwd = forward, .bwd = backward, .free_state = free_state);
OP_CUDA(op_resize_18, .plan = plan, .fwd = forward, .bwd = backward, .free_state = free_state);
