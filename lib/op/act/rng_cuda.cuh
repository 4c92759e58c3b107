/* rng_cuda.cuh - the random numbers of base/rng.h on a GPU. */
#ifndef OP_ACT_RNG_CUDA_CUH
#define OP_ACT_RNG_CUDA_CUH

#include "op/op_cuda.cuh"

extern "C" {
#include "base/rng_formula.h"
}

/* The key of the node of this stream in this run. */
__device__ static inline struct rng_key rng_cuda_key(const struct op_run *run, uint32_t stream)
{
    return { run->seed, (uint32_t)run->step, run->lane, stream };
}

/* The words of elements first to first + 3: of one block or of two. */
__device__ static inline void rng_cuda_words(const struct rng_key &key, uint64_t first,
                                             uint32_t (&out)[4])
{
    uint32_t skip = (uint32_t)(first & 3), next[4] = { 0 };

    rng_words(&key, (uint32_t)(first >> 2), out);
    if (skip == 0)
        return;
    rng_words(&key, (uint32_t)(first >> 2) + 1, next);
    for (; skip > 0; skip--) { /* constant indices keep the words in registers */
        out[0] = out[1], out[1] = out[2], out[2] = out[3], out[3] = next[0];
        next[0] = next[1], next[1] = next[2], next[2] = next[3];
    }
}

#endif
