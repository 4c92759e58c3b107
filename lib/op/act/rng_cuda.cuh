/* rng_cuda.cuh - the random numbers of base/rng.h on a GPU. */
#ifndef OP_ACT_RNG_CUDA_CUH
#define OP_ACT_RNG_CUDA_CUH

#include "op/op_cuda.cuh"

extern "C" {
#include "base/rng.h"
}

/* For what is drawn in this run by the node of this stream. */
__device__ static inline struct rng_key rng_cuda_key(const struct op_run *run, uint32_t stream)
{
    return { run->seed, (uint32_t)run->step, run->lane, stream };
}

/* rng_block() */
__device__ static inline void rng_cuda_block(const struct rng_key &key, uint32_t block, uint32_t (&out)[4])
{
    uint32_t k0 = (uint32_t)key.seed, k1 = (uint32_t)(key.seed >> 32);
    uint32_t c0 = block, c1 = key.step, c2 = key.lane, c3 = key.stream;

#pragma unroll
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xd2511f53u * c0, p2 = (uint64_t)0xcd9e8d57u * c2;

        c0 = (uint32_t)(p2 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)p2;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)p0;
        k0 += 0x9e3779b9u;
        k1 += 0xbb67ae85u;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

/* The words of elements first to first + 3: of one block or of two. */
__device__ static inline void rng_cuda_words(const struct rng_key &key, uint64_t first, uint32_t (&out)[4])
{
    uint32_t skip = (uint32_t)(first & 3), next[4] = { 0 };

    rng_cuda_block(key, (uint32_t)(first >> 2), out);
    if (skip == 0)
        return;
    rng_cuda_block(key, (uint32_t)(first >> 2) + 1, next);
    for (; skip > 0; skip--) { /* without an index that is known late: all in registers */
        out[0] = out[1], out[1] = out[2], out[2] = out[3], out[3] = next[0];
        next[0] = next[1], next[1] = next[2], next[2] = next[3];
    }
}

#endif
