/* gpu_sums.h - the sums of a step on a GPU's streams: lanes along their tree, and NCCL's
 * all-reduce. Each call puts work on a stream and returns. Threads: the replica's. */
#ifndef ENGINE_GPU_SUMS_H
#define ENGINE_GPU_SUMS_H

#include "engine/engine.h"

/* Work stream: the lanes that end with this lane are added in floats [begin, end), along their
 * tree. */
int gpu_add_lanes(struct engine_replica *r, uint32_t lane, uint32_t top, size_t begin, size_t end,
                  struct err *err);
/* Floats [begin, end) of arena 0 are final on the work stream: all replicas sum them on the sums
 * stream. */
int gpu_sum(struct engine_replica *r, size_t begin, size_t end, struct err *err);
/* The work stream continues when all sums so far are complete. */
int gpu_wait_sums(struct engine_replica *r, struct err *err);

#endif
