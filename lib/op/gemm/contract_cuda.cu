/* contract_cuda.cu - see contract_cuda.cuh. */
#include "op/gemm/contract_cuda.cuh"

#include "op/op_cols.cuh"

extern "C" {
#include "op/op_priv.h"
}

/* The division of the work, which depends only on the axes. */
struct contract_cut {
    uint64_t kept, summed; /* elements of out; summands per element */
    uint64_t parts, per;   /* parts per sum; summands per part */
    uint32_t wide, deep;   /* block size wide * deep: threads for adjacent elements, threads per
                              sum */
    bool along;            /* adjacent threads work on the same sum */
};

static struct contract_cut cut(const struct contract *k)
{
    struct contract_cut c = { 1, 1, 1, 1, OP_THREADS, 1, false };
    const struct contract_axis *last = k->n_kept > 0 ? &k->kept[k->n_kept - 1] : NULL;
    const struct contract_axis *sum = k->n_summed > 0 ? &k->summed[k->n_summed - 1] : NULL;
    uint64_t blocks, parts;

    for (uint32_t i = 0; i < k->n_kept; i++)
        c.kept *= k->kept[i].size;
    for (uint32_t i = 0; i < k->n_summed; i++)
        c.summed *= k->summed[i].size;
    if (k->is_empty)
        c.kept = 0;
    if (k->is_zero)
        c.summed = 0;
    c.along = sum != NULL && (last == NULL || sum->x < last->x);
    while (c.deep < (c.along ? OP_THREADS : 8u) && c.deep < c.summed)
        c.deep *= 2;
    c.wide = OP_THREADS / c.deep;
    blocks = (c.kept + c.wide - 1) / c.wide;
    parts = c.summed / (c.deep * 16); /* at least 16 summands per thread */
    if (blocks > 0 && parts > 528 / blocks)
        parts = 528 / blocks; /* four thread blocks for each multiprocessor of a large GPU */
    if (parts > 1) {
        c.per = (c.summed + parts - 1) / parts;
        c.parts = (c.summed + c.per - 1) / c.per;
    } else {
        c.per = c.summed;
    }
    return c;
}

/* Returns true if x is a contiguous matrix whose columns are summed. If y is NULL, too, op_cols.cuh
 * computes it. */
static bool is_columns(const struct contract *k)
{
    return !k->is_empty && !k->is_zero && k->n_kept == 1 && k->n_summed == 1 && k->kept[0].x == 1 &&
           k->kept[0].out == 1 && k->summed[0].x == (ptrdiff_t)k->kept[0].size;
}

size_t contract_scratch_bytes(const struct contract *k)
{
    const struct contract_cut c = cut(k);
    size_t parts = c.parts > 1 ? c.parts * c.kept * sizeof(float) : 0;

    if (is_columns(k)) {
        const struct op_cols cols = op_cols_of(1, c.summed, c.kept);

        parts = op_max(parts, op_cols_scratch(&cols));
    }
    return op_round(parts);
}

struct contract_places {
    ptrdiff_t x, y, out;
};

/* Position of index `i` over all of `n` axes. */
__device__ static inline struct contract_places place_of(const struct contract_axis *axis,
                                                         uint32_t n, uint64_t i)
{
    struct contract_places at = { 0, 0, 0 };

    for (uint32_t k = n; k-- > 0;) {
        uint64_t rest = k > 0 ? i / axis[k].size : 0;
        ptrdiff_t index = (ptrdiff_t)(i - rest * axis[k].size);

        i = rest;
        at.x += index * axis[k].x;
        at.y += index * axis[k].y;
        at.out += index * axis[k].out;
    }
    return at;
}

template <typename T>
__device__ static inline float part_of(const struct contract &k, const T *x, const float *y,
                                       uint64_t from, uint64_t end, uint64_t step)
{
    float total = 0;

    while (from < end) {
        float some = 0; /* partial sum of 32: adding partial sums loses less precision */

        for (uint32_t i = 0; i < 32 && from < end; i++, from += step) {
            const struct contract_places at = place_of(k.summed, k.n_summed, from);

            some += op_wide(x[at.x]) * (y != NULL ? y[at.y] : 1.0f);
        }
        total += some;
    }
    return total;
}

/* A thread block computes c.wide elements of out at a time, and one part (blockIdx.y) of their
 * sums; a thread adds every c.deep-th summand of one element. If there are several parts, they are
 * stored as out [parts, kept]. */
template <typename T>
__global__ void contract_sum(struct contract k, struct contract_cut c, const T *x, const float *y,
                             float scale, float *out, bool add)
{
    __shared__ float room[OP_THREADS];
    const uint32_t t = threadIdx.x, mine = c.along ? t / c.deep : t % c.wide,
                   at = c.along ? t % c.deep : t / c.wide;
    const uint64_t first = blockIdx.y * c.per,
                   end = first + c.per < c.summed ? first + c.per : c.summed;

    for (uint64_t base = (uint64_t)blockIdx.x * c.wide; base < c.kept;
         base += (uint64_t)gridDim.x * c.wide) {
        const uint64_t i = base + mine;
        struct contract_places place = { 0, 0, 0 };
        float sum = 0;

        if (i < c.kept) {
            place = place_of(k.kept, k.n_kept, i);
            sum = part_of(k, x + place.x, y != NULL ? y + place.y : NULL, first + at, end, c.deep);
        }
        if (c.deep > 1) {
            room[at * c.wide + mine] = sum;
            for (uint32_t half = c.deep / 2; half > 0; half /= 2) {
                __syncthreads();
                if (at < half)
                    room[at * c.wide + mine] += room[(at + half) * c.wide + mine];
            }
            __syncthreads();
            sum = room[mine];
            __syncthreads();
        }
        if (at != 0 || i >= c.kept)
            continue;
        if (c.parts > 1)
            out[blockIdx.y * c.kept + i] = sum;
        else
            out[place.out] = add ? out[place.out] + scale * sum : scale * sum;
    }
}

template <typename T>
static int launch(const struct contract *k, const struct contract_cut *c, const T *x,
                  const float *y, float scale, float *out, bool add, cudaStream_t stream,
                  struct err *err)
{
    const dim3 grid(op_blocks(c->kept, c->wide), (unsigned)c->parts);

    CUDA_LAUNCH(contract_sum<T>, grid, OP_THREADS, 0, stream, *k, *c, x, y, scale, out, add);
    return cuda_launched(err);
}

/* Sums the parts [parts, kept], and stores the result with the strides of `k`. */
static int gather(const struct contract *k, const struct contract_cut *c, const float *parts,
                  float scale, float *out, bool add, cudaStream_t stream, struct err *err)
{
    struct contract_cut whole = { c->kept, c->parts, 1, c->parts, OP_THREADS, 1, false };
    struct contract g = *k;
    ptrdiff_t dense = 1;

    for (uint32_t i = g.n_kept; i-- > 0;) {
        g.kept[i].x = dense;
        dense *= (ptrdiff_t)g.kept[i].size;
    }
    g.n_summed = 1;
    g.summed[0] = { (size_t)c->parts, (ptrdiff_t)c->kept, 0, 0 };
    return launch(&g, &whole, parts, (const float *)NULL, scale, out, add, stream, err);
}

int contract_launch(const struct contract *k, const void *x, enum tensor_dtype type, const float *y,
                    float scale, float *out, bool add, void *scratch, cudaStream_t stream,
                    struct err *err)
{
    const struct contract_cut c = cut(k);
    float *to = c.parts > 1 ? (float *)scratch : out;
    int rc = 0;

    if (c.kept == 0)
        return 0;
    if (y == NULL && is_columns(k)) {
        const struct op_cols cols = op_cols_of(1, c.summed, c.kept);

        OP_FLOATS(type,
                  return op_cols_run(&cols, (const T *)x, scale, out, add, scratch, stream, err));
    }
    OP_FLOATS(type, rc = launch(k, &c, (const T *)x, y, scale, to, add, stream, err));
    if (rc == 0 && c.parts > 1)
        rc = gather(k, &c, (const float *)scratch, scale, out, add, stream, err);
    return rc;
}
