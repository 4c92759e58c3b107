/* gather_cuda.cu - see gather.c. The gradient sums the contributions to a row in the order of the
 * list, without atomics: the list is sorted by row, then divided into chunks of RUN positions. A
 * thread sums a pack of columns of each row in a chunk. If a row extends over several chunks,
 * their sums are stored in `pieces`, and a second launch adds them, chunk by chunk. */
#include "op/shape/rows_cuda.cuh"

extern "C" {
#include "tensor/packed.h"
}

namespace {

constexpr size_t RUN = 32;

/* save: the list. scratch of backward: the order, the scratch of sorting, pieces. */
size_t stretches_of(const struct rows *r)
{
    return (r->n + RUN - 1) / RUN;
}

size_t order_bytes(const struct rows *r)
{
    return rows_round(r->n * sizeof(int64_t));
}

int plan(struct op_plan *p, struct err *err)
{
    const struct rows *r = (const struct rows *)p->param;

    (void)err;
    p->save_bytes = rows_bytes(r);
    if (op_cuda_plan_wants(p, 0))
        p->scratch_bytes = order_bytes(r) + rows_round(rows_cuda_order_scratch(r->n)) +
                           r->rounds * stretches_of(r) * 2 * r->width * sizeof(float);
    return 0;
}

/* ---- forward ---- */

using sixteen = op_pack<uint64_t>;

/* The value of an invalid element: NaN of this type, repeated to fill 8 bytes, or 0. */
uint64_t invalid_value(enum tensor_dtype t)
{
    switch ((int)t) {
    case TENSOR_F32: return 0x7fc000007fc00000u;
    case TENSOR_F64: return 0x7ff8000000000000u;
    case TENSOR_BF16: return 0x7fc07fc07fc07fc0u;
    case TENSOR_F16: return 0x7e007e007e007e00u;
    default: return 0;
    }
}

template <typename U> U invalid_unit(uint64_t bad)
{
    if constexpr (std::is_same_v<U, sixteen>)
        return { { bad, bad } };
    else
        return (U)bad;
}

/* y [round, n, width] = rows of x [round, stride, width]; in units. A thread copies units, in a
 * grid-stride loop. */
template <typename U>
__global__ void take(const U *x, const int64_t *list, U *y, size_t total, struct op_divisor width,
                     struct op_divisor n, int64_t stride, U bad)
{
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < total;
         i += (size_t)gridDim.x * blockDim.x) {
        uint64_t round = i, column = op_digit(&round, width);
        int64_t row = list[op_digit(&round, n)];

        y[i] = row < 0 ? bad
                       : x[((int64_t)round * stride + row) * (int64_t)width.by + (int64_t)column];
    }
}

template <typename U> int run_take(const struct op_call *c, size_t bytes, struct err *err)
{
    const struct rows *r = (const struct rows *)c->param;
    size_t width = bytes / sizeof(U), total = r->rounds * r->n * width;

    CUDA_LAUNCH((take<U>), op_blocks(total, OP_THREADS), OP_THREADS, 0, op_stream(c),
                (const U *)c->in[0]->data, (const int64_t *)c->save, (U *)c->out[0]->data, total,
                op_divisor_of(width), op_divisor_of(r->n), (int64_t)r->stride,
                invalid_unit<U>(invalid_value(c->in[0]->dtype)));
    return cuda_launched(err);
}

int forward(const struct op_call *c, struct err *err)
{
    const struct rows *r = (const struct rows *)c->param;
    size_t bytes = r->width * tensor_dtype_bytes(c->in[0]->dtype);
    uintptr_t together = (uintptr_t)c->in[0]->data | (uintptr_t)c->out[0]->data | bytes;
    int rc = rows_cuda_list(c, (int64_t *)c->save, err);

    if (rc < 0 || r->rounds * r->n * bytes == 0)
        return rc;
    if (together % 16 == 0)
        return run_take<sixteen>(c, bytes, err);
    OP_SIZES(together % 8 == 0   ? 8
             : together % 4 == 0 ? 4
             : together % 2 == 0 ? 2
                                 : 1,
             return run_take<U>(c, bytes, err));
    return 0;
}

/* ---- backward ---- */

template <int V> struct alignas(4 * V) floats {
    float v[V];
};

template <int V> __device__ static inline floats<V> plus(floats<V> a, const floats<V> &b)
{
#pragma unroll
    for (int k = 0; k < V; k++)
        a.v[k] += b.v[k];
    return a;
}

/* *to += x, with one load and one store. */
template <int V> __device__ static inline void add_to(floats<V> *to, const floats<V> &x)
{
    floats<V> old = *to;

    *to = plus<V>(old, x);
}

struct sums {
    const int64_t *list, *order;
    size_t n, chunks, rounds, width, stride; /* width in packs */
    int64_t padding; /* this row has no gradient; -1: none */
};

/* The work of thread i. */
struct owned {
    size_t round, chunk, column, first, end;
};

__device__ static inline struct owned own(const struct sums &s, size_t i)
{
    struct owned o;
    size_t line = i / s.width;

    o.column = i - line * s.width;
    o.round = line / s.chunks;
    o.chunk = line - o.round * s.chunks;
    o.first = o.chunk * RUN;
    o.end = o.first + RUN < s.n ? o.first + RUN : s.n;
    return o;
}

/* The row at a position of the order; a number different from all rows before the first and after
 * the last. */
__device__ static inline int64_t row_at(const struct sums &s, size_t at)
{
    return at < s.n ? s.list[s.order[at]] : -2;
}

/* pieces [round, chunk, 2, width]: the sums of a row that began in an earlier chunk, and of one
 * that continues. */
__device__ static inline size_t piece(const struct sums &s, const struct owned &o, size_t chunk,
                                      int which)
{
    return ((o.round * s.chunks + chunk) * 2 + (size_t)which) * s.width + o.column;
}

template <int V>
__global__ void add_rows(struct sums s, const floats<V> *dy, floats<V> *dx, floats<V> *pieces)
{
    constexpr int AHEAD = 4;
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    struct owned o = own(s, i);
    floats<V> sum = {};
    int64_t row;
    bool began;

    if (o.round >= s.rounds)
        return;
    row = row_at(s, o.first);
    began = o.first > 0 && row_at(s, o.first - 1) == row;
    for (size_t at = o.first; at < o.end; at += AHEAD) {
        floats<V> value[AHEAD] = {};
        int64_t next[AHEAD];

#pragma unroll
        for (int k = 0; k < AHEAD; k++) { /* several loads are in flight */
            if (at + k < o.end)
                value[k] = dy[(o.round * s.n + (size_t)s.order[at + k]) * s.width + o.column];
            next[k] = row_at(s, at + k + 1);
        }
#pragma unroll
        for (int k = 0; k < AHEAD; k++) {
            if (at + k >= o.end)
                break;
            sum = plus<V>(sum, value[k]);
            if (next[k] == row && at + k + 1 < o.end)
                continue;
            if (began && row >= 0)
                pieces[piece(s, o, o.chunk, 0)] = sum;
            else if (next[k] == row && row >= 0)
                pieces[piece(s, o, o.chunk, 1)] = sum;
            else if (row >= 0 && row != s.padding)
                add_to<V>(&dx[(o.round * s.stride + (size_t)row) * s.width + o.column], sum);
            sum = floats<V>();
            row = next[k];
            began = false;
        }
    }
}

/* Adds up the pieces of a row; run by the thread whose chunk contains its beginning. */
template <int V> __global__ void join_rows(struct sums s, floats<V> *dx, const floats<V> *pieces)
{
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x, chunk;
    struct owned o = own(s, i);
    floats<V> sum;
    int64_t row;

    if (o.round >= s.rounds)
        return;
    row = row_at(s, o.end - 1);
    if (row < 0 || row == s.padding || row_at(s, o.end) != row ||
        (o.first > 0 && row_at(s, o.first) == row && row_at(s, o.first - 1) == row))
        return;
    sum = pieces[piece(s, o, o.chunk, 1)];
    for (chunk = o.chunk + 1; row_at(s, chunk * RUN) == row; chunk++)
        sum = plus<V>(sum, pieces[piece(s, o, chunk, 0)]);
    add_to<V>(&dx[(o.round * s.stride + (size_t)row) * s.width + o.column], sum);
}

template <int V>
int run_sums(const struct op_call *c, struct sums s, float *pieces, struct err *err)
{
    const floats<V> *dy = (const floats<V> *)c->dout[0]->data;
    floats<V> *dx = (floats<V> *)c->din[0]->data;
    size_t blocks;

    s.width /= V;
    blocks = (s.rounds * s.chunks * s.width + OP_THREADS - 1) / OP_THREADS;
    CUDA_LAUNCH((add_rows<V>), (unsigned)blocks, OP_THREADS, 0, op_stream(c), s, dy, dx,
                (floats<V> *)(void *)pieces);
    if (s.chunks > 1)
        CUDA_LAUNCH((join_rows<V>), (unsigned)blocks, OP_THREADS, 0, op_stream(c), s, dx,
                    (const floats<V> *)(const void *)pieces);
    return cuda_launched(err);
}

/* Several threads may write the same value. */
__global__ void mark_rows(const int64_t *list, size_t n, int64_t padding, float *read)
{
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x)
        if (list[i] >= 0 && list[i] != padding)
            read[list[i]] = 1;
}

int backward(const struct op_call *c, struct err *err)
{
    const struct rows *r = (const struct rows *)c->param;
    const int64_t *list = (const int64_t *)c->save;
    int64_t *order = (int64_t *)c->scratch;
    struct sums s = { list, order, r->n, stretches_of(r), r->rounds, r->width, r->stride,
                      r->padding };
    char *spare = (char *)c->scratch + order_bytes(r);
    float *pieces = (float *)(void *)(spare + rows_round(rows_cuda_order_scratch(r->n)));
    int rc = op_cuda_zero(c, err);

    if (rc < 0 || c->dout[0] == NULL || c->din[0] == NULL || r->rounds * r->n * r->width == 0)
        return rc;
    if (c->rows != NULL && c->rows->read != NULL) /* axis 0: one round */
        CUDA_LAUNCH(mark_rows, op_blocks(r->n, OP_THREADS), OP_THREADS, 0, op_stream(c), list, r->n,
                    r->padding, c->rows->read);
    rc = rows_cuda_order(op_stream(c), list, r->n, rows_of(r, c->din[0]), order, spare, err);
    if (rc < 0)
        return rc;
    if (r->width % 4 == 0 && op_aligned(c->dout[0]->data) && op_aligned(c->din[0]->data))
        return run_sums<4>(c, s, pieces, err);
    return run_sums<1>(c, s, pieces, err);
}

} // namespace

OP_CUDA(op_gather, .plan = plan, .fwd = forward, .bwd = backward);
OP_CUDA(op_gather_elements, .plan = plan, .fwd = forward, .bwd = backward);
OP_CUDA(op_gather_nd, .plan = plan, .fwd = forward, .bwd = backward);
