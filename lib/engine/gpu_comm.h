/* gpu_comm.h - the communicator (NCCL) of the GPUs of a generation. Threads: the replica's. */
#ifndef ENGINE_GPU_COMM_H
#define ENGINE_GPU_COMM_H

#include "engine/engine.h"

/* Connects the GPUs of all replicas of the group, if there are others. Enters PHASE_NCCL. */
int gpu_connect(struct engine_replica *r, struct err *err);
/* Without a communicator: 0. No captured graph may contain its sums any more. */
int gpu_disconnect(struct engine_replica *r, struct err *err);

#endif
