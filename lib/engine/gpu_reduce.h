/* gpu_reduce.h - the all-reduce of a GPU's gradients (NCCL), and the one wait of the host in a
 * step. The contracts are those of engine_ops. Threads: the replica's. */
#ifndef ENGINE_GPU_REDUCE_H
#define ENGINE_GPU_REDUCE_H

#include "engine/engine.h"

int gpu_reduce(struct engine_replica *r, uint64_t step, struct err *err);
int gpu_scale(struct engine_replica *r, float by, struct err *err);

#endif
