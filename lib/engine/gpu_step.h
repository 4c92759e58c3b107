/* gpu_step.h - the lanes (micro-batches) of a replica on a GPU. The contract is that of engine_ops.
 *
 * A lane's calls are captured into a graph when they have run once. Threads: the replica's. */
#ifndef ENGINE_GPU_STEP_H
#define ENGINE_GPU_STEP_H

#include "engine/engine.h"

int gpu_run_lanes(struct engine_replica *r, uint64_t step, struct err *err);

#endif
