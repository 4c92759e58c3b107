/* scatter_cuda.cu - see scatter.c. The list is sorted so that the updates of a row are adjacent and
 * in order; a thread applies or undoes those of a column in sequence. For an index out of range,
 * row 0 becomes NaN (integers: unchanged), and the gradient of the update is 0. */
#include <math.h>

#include "op/shape/rows_cuda.cuh"

extern "C" {
#include "op/shape/scatter.h"
}

namespace {

/* save: the list, the order, and, if backward needs them, the values before each update. */
struct kept {
    int64_t *list, *order;
    float *before;
};

size_t list_bytes(const struct rows *r)
{
    return rows_round(rows_bytes(r));
}

struct kept kept_of(const struct op_call *c)
{
    const struct rows *r = (const struct rows *)c->param;
    char *save = (char *)c->save;

    return { (int64_t *)(void *)save, (int64_t *)(void *)(save + list_bytes(r)),
             (float *)(void *)(save + 2 * list_bytes(r)) };
}

/* scratch: forward sorts in it; backward stores g in it. */
int plan(struct op_plan *p, struct err *err)
{
    const struct rows *r = (const struct rows *)p->param;
    size_t g = op_cuda_plan_wants(p, 0) ? tensor_bytes(p->in[0]) : 0;

    (void)err;
    p->save_bytes = 2 * list_bytes(r);
    if (r->reduction >= SCATTER_MUL && p->in[0]->dtype == TENSOR_F32)
        p->save_bytes += r->n * r->width * sizeof(float);
    p->scratch_bytes = rows_cuda_order_scratch(r->n);
    p->scratch_bytes = g > p->scratch_bytes ? g : p->scratch_bytes;
    return 0;
}

/* ---- forward ---- */

struct updates {
    const int64_t *list, *order;
    size_t n, width; /* width: elements per row */
};

__device__ static inline int64_t row_at(const struct updates &u, size_t at)
{
    return at < u.n ? u.list[u.order[at]] : -2;
}

/* y [row] = its last update. A thread processes elements of updates, in sorted order. */
template <typename U> __global__ void store_last(struct updates u, const U *x, U *y)
{
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x, at = i / u.width,
           k = i - at * u.width;
    int64_t row = row_at(u, at);

    if (row >= 0 && row_at(u, at + 1) != row)
        y[(size_t)row * u.width + k] = x[(size_t)u.order[at] * u.width + k];
}

template <typename T, typename S> __device__ static inline T reduced(int64_t how, T v, T u)
{
    switch (how) {
    case SCATTER_ADD: return (T)((S)v + (S)u);
    case SCATTER_MUL: return (T)((S)v * (S)u);
    case SCATTER_MAX: return u > v ? u : v;
    default: return u < v ? u : v;
    }
}

/* y [row] = the reduction of all its updates. A thread processes a column of a row. S: as T, but
 * wraps. before NULL: not requested. */
template <typename T, typename S>
__global__ void apply_all(struct updates u, int64_t how, const T *x, T *y, T *before)
{
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x, at = i / u.width,
           k = i - at * u.width;
    int64_t row = row_at(u, at);
    T v;

    if (row < 0 || (at > 0 && row_at(u, at - 1) == row))
        return;
    v = y[(size_t)row * u.width + k];
    for (; row_at(u, at) == row; at++) {
        size_t from = (size_t)u.order[at] * u.width + k;

        if (before != NULL)
            before[from] = v;
        v = reduced<T, S>(how, v, x[from]);
    }
    y[(size_t)row * u.width + k] = v;
}

/* Marks row 0 if there are invalid rows, which are at the end of the order. */
template <typename T> __global__ void mark_invalid(struct updates u, T *y, T nan)
{
    size_t k = (size_t)blockIdx.x * blockDim.x + threadIdx.x;

    if (k < u.width && row_at(u, u.n - 1) < 0)
        y[k] = nan;
}

unsigned blocks_of(size_t threads)
{
    return (unsigned)((threads + OP_THREADS - 1) / OP_THREADS);
}

template <typename T, typename S>
void run_all(const struct op_call *c, const struct updates *u, T *before)
{
    CUDA_LAUNCH((apply_all<T, S>), blocks_of(u->n * u->width), OP_THREADS, 0, op_stream(c), *u,
                ((const struct rows *)c->param)->reduction, (const T *)c->in[2]->data,
                (T *)c->out[0]->data, before);
}

template <typename T> void run_invalid(const struct op_call *c, const struct updates *u)
{
    CUDA_LAUNCH((mark_invalid<T>), blocks_of(u->width), OP_THREADS, 0, op_stream(c), *u,
                (T *)c->out[0]->data, op_narrow<T>(NAN));
}

int forward(const struct op_call *c, struct err *err)
{
    const struct rows *r = (const struct rows *)c->param;
    enum tensor_dtype t = c->in[0]->dtype;
    struct kept kept = kept_of(c);
    struct updates u = { kept.list, kept.order, r->n, r->width };
    int rc = rows_cuda_list(c, kept.list, err);

    if (rc == 0 && c->out[0]->data != c->in[0]->data)
        rc = cuda_copy(c->out[0]->data, c->in[0]->data, tensor_bytes(c->in[0]), c->run->queue, err);
    if (rc < 0 || r->n * r->width == 0 || tensor_elements(c->in[0]) == 0)
        return rc;
    rc = rows_cuda_order(op_stream(c), kept.list, r->n, rows_of(r, c->in[0]), kept.order,
                         c->scratch, err);
    if (rc < 0)
        return rc;
    if (r->reduction == SCATTER_NONE) {
        OP_SIZES(tensor_dtype_bytes(t),
                 CUDA_LAUNCH((store_last<U>), blocks_of(u.n * u.width), OP_THREADS, 0, op_stream(c),
                             u, (const U *)c->in[2]->data, (U *)c->out[0]->data));
    } else if (t == TENSOR_F32) {
        run_all<float, float>(c, &u, r->reduction >= SCATTER_MUL ? kept.before : NULL);
    } else if (t == TENSOR_I32) {
        run_all<int32_t, uint32_t>(c, &u, NULL);
    } else {
        run_all<int64_t, uint64_t>(c, &u, NULL);
    }
    if (t == TENSOR_F64)
        run_invalid<double>(c, &u);
    else if (t == TENSOR_F32 || t == TENSOR_BF16 || t == TENSOR_F16)
        OP_FLOATS(t, run_invalid<T>(c, &u));
    return cuda_launched(err);
}

/* ---- backward ---- */

/* Undoes the updates of a row from the last to the first: du = the gradient of each, g [row] = the
 * remaining dy [row]. A thread processes a column. g, du NULL: not requested. */
__global__ void undo(struct updates u, int64_t how, const float *dy, const float *x,
                     const float *before, float *g, float *du, bool add)
{
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x, at = i / u.width,
           k = i - at * u.width;
    int64_t row = row_at(u, at);
    float left;

    if (at >= u.n || row_at(u, at + 1) == row)
        return;
    left = row >= 0 ? dy[(size_t)row * u.width + k] : 0.0f;
    for (size_t end = at + 1; end-- > 0 && row_at(u, end) == row;) {
        size_t to = (size_t)u.order[end] * u.width + k;
        float d = left;

        if (how == SCATTER_MUL) {
            d = left * (row >= 0 ? before[to] : 0.0f);
            left *= x[to];
        } else if (how == SCATTER_MAX || how == SCATTER_MIN) {
            bool won = row >= 0 && (how == SCATTER_MAX ? x[to] > before[to] : x[to] < before[to]);

            d = won ? left : 0.0f;
            left = won ? 0.0f : left;
        } else if (how == SCATTER_NONE) {
            left = 0.0f;
        }
        if (du != NULL)
            du[to] = add ? du[to] + (row >= 0 ? d : 0.0f) : row >= 0 ? d : 0.0f;
    }
    if (g != NULL && row >= 0)
        g[(size_t)row * u.width + k] = left;
}

int backward(const struct op_call *c, struct err *err)
{
    const struct rows *r = (const struct rows *)c->param;
    const struct tensor *dx = c->din[0], *dy = c->dout[0];
    struct kept kept = kept_of(c);
    struct updates u = { kept.list, kept.order, r->n, r->width };
    bool adds = op_cuda_adds(c, 0);
    float *g = dx == NULL ? NULL : (float *)(adds ? c->scratch : dx->data);
    int rc = 0;

    if (dy == NULL)
        return op_cuda_zero(c, err);
    if (g != NULL)
        rc = cuda_copy(g, dy->data, tensor_bytes(dy), c->run->queue, err);
    if (rc < 0)
        return rc;
    if (r->n * r->width > 0 && tensor_elements(dy) > 0) {
        CUDA_LAUNCH(undo, blocks_of(u.n * u.width), OP_THREADS, 0, op_stream(c), u, r->reduction,
                    (const float *)dy->data, (const float *)c->in[2]->data, kept.before, g,
                    c->din[2] != NULL ? (float *)c->din[2]->data : NULL, op_cuda_adds(c, 2));
        rc = cuda_launched(err);
    } else if (c->din[2] != NULL && !op_cuda_adds(c, 2)) {
        rc = cuda_fill(c->din[2]->data, 0, tensor_bytes(c->din[2]), c->run->queue, err);
    }
    return rc == 0 && g != NULL && adds ? shape_cuda_add(c, dx, g, err) : rc;
}

} // namespace

OP_CUDA(op_scatter_elements, .plan = plan, .fwd = forward, .bwd = backward);
OP_CUDA(op_scatter, .plan = plan, .fwd = forward, .bwd = backward);
OP_CUDA(op_scatter_nd, .plan = plan, .fwd = forward, .bwd = backward);
