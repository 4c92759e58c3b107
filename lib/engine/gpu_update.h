/* gpu_update.h - gradient checks, update and checksums of a GPU, which holds a whole state. The
 * contracts are those of engine_ops. Threads: the replica's. */
#ifndef ENGINE_GPU_UPDATE_H
#define ENGINE_GPU_UPDATE_H

#include "engine/engine.h"

void gpu_inspect(struct engine_replica *r);
int gpu_verify_gradient(struct engine_replica *r, uint64_t step, uint32_t *sum, bool *finite,
                        struct err *err);
void gpu_gradient_norm(struct engine_replica *r, bool wanted, double *norm);
int gpu_update(struct engine_replica *r, const struct optim_hyper *h, struct err *err);
void gpu_skip_update(struct engine_replica *r, uint64_t step);
int gpu_checksum(struct engine_replica *r, struct err *err);
int gpu_verify_state(struct engine_replica *r, uint64_t step, uint32_t *sum, struct err *err);

#endif
