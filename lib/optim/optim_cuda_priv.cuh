/* optim_cuda_priv.cuh - what the .cu files of optim/ share.
 *
 *   optim_cuda.cu   the object: tables of chunks and owners; look and update
 *   sweep_cuda.cu   the kernels that move weights, a row each
 *   look_cuda.cu    squares, checksum, what is not finite
 *
 * The arena is worked on in chunks: at most 4096 floats of one owner (a parameter or a statistic), cut where
 * the checksum's chunks are cut. A block of threads has a chunk at a time, a thread every 256th of its
 * fours, counted from the last multiple of 16 floats in front of the chunk: so all accesses are of 16 bytes
 * but at ragged ends, and a thread stays in four columns of the checksum. */
#ifndef OPTIM_OPTIM_CUDA_PRIV_CUH
#define OPTIM_OPTIM_CUDA_PRIV_CUH

#include "optim/optim_cuda.cuh"

extern "C" {
#include "base/checksum.h"
}

static constexpr unsigned OPTIM_THREADS = 256, OPTIM_CHUNK = CHECKSUM_CHUNK;

struct optim_chunk {
    size_t first; /* float of the arena */
    uint32_t n;
    uint32_t owner;
};

struct optim_owner { /* parameters, then statistics */
    size_t first; /* float of the arena where the parameter begins, of a stretch too */
    size_t width, first_mark; /* of a table: floats of a row, and where its marks begin; else 0 */
    double rate_factor, weight_decay;
    uint32_t first_chunk, n_chunks; /* of all stretches of the parameter */
    float keep; /* of a statistic */
    bool adapts, lazy;
};

/* Where a thread reads and writes its fours. */
struct optim_range {
    size_t base;     /* float, a multiple of 16 */
    unsigned lo, hi; /* those that count: base + lo .. base + hi */

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

/* Elements e .. e + 3 of a range; WHOLE: all of them count. What does not reads as 0. */
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
__device__ static inline void optim_store(float *x, const optim_range &r, unsigned e, const optim_four &q)
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

/* Of a block of OPTIM_THREADS, in a fixed tree; in thread 0. */
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

/* ---- look_cuda.cu ---- */
/* Of n_chunks chunks; those from n_params on are of statistics. room [optim_look_room()]. */
size_t optim_look_room(size_t n_chunks);
int optim_look_at(float *g, const struct optim_chunk *chunks, size_t n_chunks, size_t n_params, float clip,
                  struct cuda_look *there, struct cuda_look *room, cudaStream_t s, struct err *err);

/* ---- sweep_cuda.cu ---- */
struct optim_arrays {
    float *w;
    const float *g;
    float *slots[OPTIM_MAX_SLOTS];
    float *average; /* NULL: none */
    const float *read; /* marks of rows; NULL: nobody leaves a row alone */
    bool rests;     /* a gradient of zero moves nothing that has no weight decay */
};

/* What a sweep is over; all of it lies on the GPU. */
struct optim_table {
    const struct optim_chunk *chunks;
    const struct optim_owner *owners;
    uint32_t n_chunks, n_param_chunks;
    uint32_t n_params;  /* owners from here on are statistics */
    double (*sums)[2];  /* [n_param_chunks] of rows that need norms, else NULL: sums of squares */
    double *ratios;     /* [n_params] likewise */
};

struct optim_row; /* sweep_cuda.cu */

const struct optim_row *optim_row_find(enum optim_type type); /* NULL: there is none */
bool optim_row_measures(const struct optim_row *row);
int optim_row_update(const struct optim_row *row, const struct optim_table *t, const struct optim_hyper *h,
                     const struct optim_arrays *a, double average, float share, cudaStream_t s,
                     struct err *err);

#endif
