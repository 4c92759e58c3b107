/* gpu_residual.h - codes with residuals on a GPU (code/residual.h). The groups, the sums and the order of additions
 * are those of CPUs (residual.h), so results depend on the job, and not on the number of GPUs.
 *
 *   stream   when                         top_k                             power_sgd
 *   work     the lanes of a step begin    x of each group = its residual    the same
 *   work     the last lane of a group is  x += gradient                     x += gradient
 *            done                         message = the largest numbers of x,
 *                                         which become 0 in x
 *   reduce   the reduction, other numbers added along the tree over lanes   the same, with P = sum of x Q
 *   reduce   the reduction, coded ones    all messages are exchanged; each  Q' = sum of x^T P, likewise; the gradient
 *                                         GPU adds them along the tree over becomes P Q'^T, and x -= P (x^T P)^T
 *                                         groups
 *   work     the step is applied          residual of each group = x        the same; Q = Q'
 *
 * Gradients contain the loss scale, a power of two. Residuals and Q in the state do not, because it changes.
 *
 * A GPU has the residuals of its own groups up to date. Between two steps the caller makes the state of the host whole
 * (gpu_residual_fetch(), an exchange between the tasks, gpu_residual_store()). The state that a GPU holds at the end of
 * a generation is not used in the next one.
 *
 * All work is enqueued on streams; that of the lanes can be captured. Threads: the replica's. */
#ifndef ENGINE_GPU_RESIDUAL_H
#define ENGINE_GPU_RESIDUAL_H

#include <stddef.h>
#include <stdint.h>

#include "engine/engine.h"

struct cuda_stream;

/* Bytes of GPU memory of gpu_residual_open(), after gpu_of(r)->grads.floats is set. */
size_t gpu_residual_bytes(const struct engine_replica *r);
/* Fills in gpu_of(r)->residual, if the job has such a code. Errors: ERR_NOMEM, ERR_DEVICE. */
int gpu_residual_open(struct engine_replica *r, struct err *err);
void gpu_residual_close(struct engine_replica *r); /* idempotent */

/* The functions below have an effect only in a generation with such a code. */

/* Work stream: before the lanes of a step. */
int gpu_residual_begin_step(struct engine_replica *r, struct err *err);
/* Work stream: if the replica's lane-th lane ends a group, takes its sum. merges: those of the lane tree that were made
 * after the lane. */
int gpu_residual_take_group(struct engine_replica *r, uint32_t lane, uint32_t merges,
                            const float *sum, struct err *err);
/* All-reduces arena 0 on the reduce stream; in a replica without others, on the work stream. */
int gpu_residual_reduce(struct engine_replica *r, struct err *err);
/* Work stream: the step is applied. */
int gpu_residual_apply(struct engine_replica *r, struct err *err);

/* engine_ops.fetch_residuals and store_residuals */
int gpu_residual_fetch(struct engine_replica *r, uint64_t held, struct err *err);
int gpu_residual_store(struct engine_replica *r, struct err *err);

#endif
