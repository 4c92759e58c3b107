/* optim_cuda_priv.cuh - shared by the .cu files of optim/.
 *
 *   optim_cuda.cu   the object: tables of chunks and owners; look and update
 *   sweep_cuda.cu   the kernels that update weights, one per row
 *   scan_cuda.cu    squares, checksum, non-finite elements
 *
 * The kernels process the arena in chunks of at most 4096 floats of one owner (a parameter or a
 * statistic), which end where the chunks of the checksum end. A block of threads processes one
 * chunk at a time, and a thread every 256th group of four floats, counted from the last multiple
 * of 16 floats before the chunk. So all accesses are of 16 bytes, except at ragged ends, and a
 * thread stays in four columns of the checksum. */
#ifndef OPTIM_OPTIM_CUDA_PRIV_CUH
#define OPTIM_OPTIM_CUDA_PRIV_CUH

#include "optim/optim_cuda.cuh"

extern "C" {
#include "base/checksum.h"
}

static constexpr unsigned OPTIM_THREADS = 256, OPTIM_CHUNK = CHECKSUM_CHUNK;

struct optim_chunk {
    size_t first; /* index of a float of the arena */
    uint32_t n;
    uint32_t owner;
};

struct optim_owner { /* parameters, then statistics */
    size_t first; /* index of the first float of the parameter, also for a stretch */
    size_t width, first_mark; /* of a table: floats of a row, and index of its first mark; else 0 */
    double rate_factor, weight_decay;
    uint32_t first_chunk, n_chunks; /* of all stretches of the parameter */
    float keep; /* of a statistic */
    bool adapts, lazy;
};

/* The groups of four floats of a chunk. */
struct optim_range {
    size_t base;     /* index of a float; a multiple of 16 */
    unsigned lo, hi; /* the floats of the chunk: base + lo .. base + hi - 1 */

    __device__ explicit optim_range(const struct optim_chunk &c)
        : base(c.first & ~(size_t)15), lo((unsigned)(c.first & 15)), hi(lo + c.n)
    {
    }
    __device__ bool has(unsigned e) const { return e >= lo && e < hi; }
    __device__ bool has_four(unsigned e) const { return e >= lo && e + 4 <= hi; }
};

struct optim_four {
    float v[4];
};

/* Elements e .. e + 3 of a range. WHOLE: all of them belong to the chunk; others read as 0. */
template <bool WHOLE>
__device__ static inline optim_four optim_load(const float *x, const optim_range &r, unsigned e)
{
    if constexpr (WHOLE) {
        const float4 q = *(const float4 *)(x + r.base + e);

        return { q.x, q.y, q.z, q.w };
    } else {
        optim_four q;

#pragma unroll
        for (unsigned j = 0; j < 4; j++)
            q.v[j] = r.has(e + j) ? x[r.base + e + j] : 0.0f;
        return q;
    }
}

template <bool WHOLE>
__device__ static inline void optim_store(float *x, const optim_range &r, unsigned e,
                                          const optim_four &q)
{
    if constexpr (WHOLE) {
        *(float4 *)(x + r.base + e) = make_float4(q.v[0], q.v[1], q.v[2], q.v[3]);
    } else {
#pragma unroll
        for (unsigned j = 0; j < 4; j++)
            if (r.has(e + j))
                x[r.base + e + j] = q.v[j];
    }
}

/* The sum over a block of OPTIM_THREADS threads, in a fixed tree; returned in thread 0. */
template <typename T> __device__ static inline T optim_block_sum(T x)
{
    __shared__ T room[OPTIM_THREADS / 32];

    for (int k = 16; k > 0; k /= 2)
        x += __shfl_xor_sync(0xffffffffu, x, k);
    __syncthreads();
    if (threadIdx.x % 32 == 0)
        room[threadIdx.x / 32] = x;
    __syncthreads();
    if (threadIdx.x == 0)
        for (unsigned w = 1; w < OPTIM_THREADS / 32; w++)
            x += room[w];
    return x;
}

/* ---- scan_cuda.cu ---- */
/* Scans n_chunks chunks; those from n_params on belong to statistics. scratch
 * [optim_scan_count()]. */
size_t optim_scan_count(size_t n_chunks);
int optim_scan_at(float *g, const struct optim_chunk *chunks, size_t n_chunks, size_t n_params,
                  float clip, struct cuda_scan *result, struct cuda_scan *scratch, cudaStream_t s,
                  struct err *err);

/* ---- sweep_cuda.cu ---- */
struct optim_arrays {
    float *w;
    const float *g;
    float *slots[OPTIM_MAX_SLOTS];
    float *average; /* NULL: no average */
    const float *read; /* marks of rows; NULL: every row is updated */
    bool skips_zero;     /* without weight decay, a gradient of zero changes nothing */
};

/* The chunks and owners of a sweep; in the memory of the GPU. */
struct optim_table {
    const struct optim_chunk *chunks;
    const struct optim_owner *owners;
    uint32_t n_chunks, n_param_chunks;
    uint32_t n_params;  /* owners from this index on are statistics */
    double (*sums)[2];  /* [n_param_chunks] sums of squares for rows that need norms, else NULL */
    double *ratios;     /* [n_params] likewise */
};

struct optim_row; /* sweep_cuda.cu */

const struct optim_row *optim_row_find(enum optim_type type); /* NULL: no kernels for this name */
bool optim_row_measures(const struct optim_row *row);
int optim_row_update(const struct optim_row *row, const struct optim_table *t,
                     const struct optim_hyper *h, const struct optim_arrays *a, double average,
                     float share, cudaStream_t s, struct err *err);

#endif
