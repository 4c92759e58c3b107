/* gpu_sums.h - the sums of a step on a GPU's streams: lanes along their tree, and the
 * all-reduce by NCCL, in the order of gpu_order.h, or with the codes of gpu_codes.h. Each call enqueues work on a stream and returns. Threads: the replica's. */
#ifndef ENGINE_GPU_SUMS_H
#define ENGINE_GPU_SUMS_H

#include "engine/engine.h"

/* Work stream: the lanes that end with this lane are added in floats [begin, end), along their
 * tree, and whole groups of lanes are rounded. */
int gpu_add_lanes(struct engine_replica *r, uint32_t lane, uint32_t top, size_t begin, size_t end,
                  struct err *err);
/* Reduce stream: all-reduces the floats [begin, end) of arena 0, which are final on the work
 * stream. */
int gpu_all_reduce(struct engine_replica *r, size_t begin, size_t end, struct err *err);
/* Makes the work stream wait for all all-reduces that were enqueued so far. */
int gpu_wait_all_reduce(struct engine_replica *r, struct err *err);

#endif
