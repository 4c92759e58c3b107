/* gpu_buckets.h - how the gradient arena of a GPU is cut for NCCL. Pure. */
#ifndef ENGINE_GPU_BUCKETS_H
#define ENGINE_GPU_BUCKETS_H

#include "code/code.h"
#include "engine/engine.h"

/* NCCL keeps a network busy with pieces of this size; the wait for a smaller last piece is shorter.
 */
enum { GPU_BUCKET_BYTES = 16 << 20 };

/* Coded numbers of a block share a scale, so a bucket has whole blocks. */
static inline size_t gpu_bucket_floats(const struct engine *e)
{
    size_t bytes = e->opts->bucket_bytes,
           floats = (bytes > 0 ? bytes : GPU_BUCKET_BYTES) / sizeof(float);

    return e->codes != NULL ? (floats + CODE_BLOCK - 1) / CODE_BLOCK * CODE_BLOCK : floats;
}

/* Sums of a step on the reduce stream, at most. */
static inline uint32_t gpu_pieces(const struct engine *e)
{
    return (uint32_t)(e->memory.grads / gpu_bucket_floats(e)) + 2;
}

#endif
