/* top_k_cuda.cu - see top_k.c.
 *
 * An element is represented by a key of 64 bits: its value, encoded so that the best is the largest
 * number, then its index, encoded so that the first is the largest. So keys are unique, and their
 * order is that of the CPU. One block per row finds the n-th largest key, eight bits at a time from
 * the top, by counting each digit among the keys with the same higher digits; gathers the n keys
 * that are not smaller; and sorts them. */
#include "op/op_cuda.cuh"

extern "C" {
#include "base/err.h"
#include "op/op_priv.h"
#include "op/reduce/params.h"
}

namespace {

enum { THREADS = 256, DIGITS = 256, SHARED_KEYS = 2048, BLOCKS = OP_PROCESSORS * 4 };

struct choice {
    size_t rows, k, inner, n;
    size_t room; /* capacity in keys: the power of two >= n */
    bool largest;
};

static choice choice_of(const struct top_k *p)
{
    choice s = { p->a.outer * p->a.inner, p->a.k, p->a.inner, p->n, 1, p->largest != 0 };

    while (s.room < s.n)
        s.room *= 2;
    return s;
}

static unsigned blocks_of(const choice &s)
{
    return s.rows < BLOCKS ? (unsigned)s.rows : (unsigned)BLOCKS;
}

/* NaN is largest; -0 equals 0. */
__device__ static inline unsigned long long key_of(float v, size_t i, bool largest)
{
    uint32_t bits = isnan(v) ? 0x7fffffffu : __float_as_uint(v == 0.0f ? 0.0f : v);
    uint32_t order = (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;

    return (unsigned long long)(largest ? order : ~order) << 32 | (uint32_t) ~(uint32_t)i;
}

/* Returns the n-th largest key of a row. count: DIGITS + 1 counters in shared memory. */
__device__ static inline unsigned long long nth_key(const choice &s, const float *x,
                                                    unsigned *count, unsigned long long *found)
{
    unsigned long long prefix = 0, mask = 0;
    size_t wanted = s.n;

    for (int shift = 56; shift >= 0; shift -= 8) {
        for (unsigned d = threadIdx.x; d < DIGITS; d += blockDim.x)
            count[d] = 0;
        __syncthreads();
        for (size_t i = threadIdx.x; i < s.k; i += blockDim.x) {
            unsigned long long key = key_of(x[i * s.inner], i, s.largest);

            if ((key & mask) == prefix)
                atomicAdd(&count[key >> shift & (DIGITS - 1)], 1u);
        }
        __syncthreads();
        if (threadIdx.x == 0) {
            size_t above = 0;
            unsigned d = DIGITS - 1;

            while (above + count[d] < wanted)
                above += count[d--];
            found[0] = d;
            found[1] = wanted - above;
        }
        __syncthreads();
        prefix |= found[0] << shift;
        mask |= (unsigned long long)(DIGITS - 1) << shift;
        wanted = found[1];
        __syncthreads();
    }
    return prefix;
}

/* Sorts in descending order. n: a power of two. */
__device__ static inline void sort_keys(unsigned long long *key, size_t n)
{
    for (size_t run = 2; run <= n; run *= 2)
        for (size_t far = run / 2; far > 0; far /= 2) {
            for (size_t i = threadIdx.x; i < n / 2; i += blockDim.x) {
                size_t a = i / far * 2 * far + i % far, b = a + far;
                unsigned long long low = key[a], high = key[b];

                if ((low < high) == ((a & run) == 0)) {
                    key[a] = high;
                    key[b] = low;
                }
            }
            __syncthreads();
        }
}

/* keys: global memory for the s.room keys of each block; nullptr: shared memory is used. */
__global__ void choose(const choice s, const float *x, float *y, int64_t *where, int64_t *kept,
                       unsigned long long *keys)
{
    CUDA_SHARED(unsigned long long, near);
    __shared__ unsigned count[DIGITS], n;
    __shared__ unsigned long long found[2];
    unsigned long long *key = keys != nullptr ? keys + blockIdx.x * s.room : near;

    for (size_t row = blockIdx.x; row < s.rows; row += gridDim.x) {
        size_t outer = row / s.inner, j = row % s.inner;
        const float *from = x + outer * s.k * s.inner + j;
        unsigned long long least = nth_key(s, from, count, found);

        if (threadIdx.x == 0)
            n = 0;
        for (size_t i = s.n + threadIdx.x; i < s.room; i += blockDim.x)
            key[i] = 0; /* sorted to the end */
        __syncthreads();
        for (size_t i = threadIdx.x; i < s.k; i += blockDim.x) {
            unsigned long long v = key_of(from[i * s.inner], i, s.largest);

            if (v >= least)
                key[atomicAdd(&n, 1u)] = v;
        }
        __syncthreads();
        sort_keys(key, s.room);
        for (size_t i = threadIdx.x; i < s.n; i += blockDim.x) {
            size_t at = (outer * s.n + i) * s.inner + j, place = (uint32_t) ~(uint32_t)key[i];

            kept[at] = (int64_t)place;
            if (y != nullptr)
                y[at] = from[place * s.inner];
            if (where != nullptr)
                where[at] = (int64_t)place;
        }
        __syncthreads();
    }
}

/* dx [outer, k, inner] += dy [outer, n, inner] at the selected elements, which are distinct. */
__global__ void scatter_gradient(const choice s, size_t total, const float *dy, const int64_t *kept,
                                 float *dx)
{
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < total;
         i += (size_t)gridDim.x * blockDim.x) {
        size_t outer = i / s.inner / s.n, j = i % s.inner;

        dx[(outer * s.k + (size_t)kept[i]) * s.inner + j] += dy[i];
    }
}

} // namespace

static int plan(struct op_plan *p, struct err *err)
{
    const struct top_k *t = (const struct top_k *)p->param;
    choice s = choice_of(t);

    if (p->in[0]->dtype != TENSOR_F32)
        return err_set(
            err, ERR_UNSUPPORTED,
            "TopK '%s': input 0 is %s; GPUs support float32: insert a Cast before it, or train "
            "with --devices cpu",
            p->node, tensor_dtype_name(p->in[0]->dtype));
    if (t->a.k > UINT32_MAX)
        return err_set(err, ERR_UNSUPPORTED,
                       "TopK '%s': the axis has %zu elements; GPUs support up to %u: train "
                       "with --devices cpu",
                       p->node, t->a.k, UINT32_MAX);
    p->save_bytes = s.rows * s.n * sizeof(int64_t);
    p->scratch_bytes =
        s.room > SHARED_KEYS ? blocks_of(s) * s.room * sizeof(unsigned long long) : 0;
    return 0;
}

static int forward(const struct op_call *c, struct err *err)
{
    choice s = choice_of((const struct top_k *)c->param);
    float *y = c->out[0] != NULL ? (float *)c->out[0]->data : NULL;
    int64_t *where = c->n_out > 1 && c->out[1] != NULL ? (int64_t *)c->out[1]->data : NULL;
    bool near = s.room <= SHARED_KEYS;

    if (s.rows == 0 || s.n == 0)
        return 0;
    CUDA_LAUNCH(choose, blocks_of(s), s.k <= 64 ? 32 : THREADS,
                near ? s.room * sizeof(unsigned long long) : 0, op_stream(c), s,
                (const float *)c->in[0]->data, y, where, (int64_t *)c->save,
                near ? (unsigned long long *)NULL : (unsigned long long *)c->scratch);
    return cuda_launched(err);
}

static int backward(const struct op_call *c, struct err *err)
{
    choice s = choice_of((const struct top_k *)c->param);
    size_t total = s.rows * s.n;
    int rc = op_cuda_zero(c, err);

    if (rc < 0 || c->dout[0] == NULL || c->din[0] == NULL || total == 0)
        return rc;
    CUDA_LAUNCH(scatter_gradient, op_blocks(total, OP_THREADS), OP_THREADS, 0, op_stream(c), s,
                total, (const float *)c->dout[0]->data, (const int64_t *)c->save,
                (float *)c->din[0]->data);
    return cuda_launched(err);
}

OP_CUDA(op_top_k_11, .plan = plan, .fwd = forward, .bwd = backward);
OP_CUDA(op_top_k_10, .plan = plan, .fwd = forward, .bwd = backward);
OP_CUDA(op_top_k_1, .plan = plan, .fwd = forward, .bwd = backward);
