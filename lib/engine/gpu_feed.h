/* gpu_feed.h - batches on their way to a GPU: decoded -> pinned -> stage -> inputs of a plan.
 *
 * The feed stream copies from the pinned memory of a slot to its stage while the work stream
 * computes the lane before. Threads: the replica's. */
#ifndef ENGINE_GPU_FEED_H
#define ENGINE_GPU_FEED_H

#include "engine/engine.h"

struct data_batch;
struct gpu_slot;
struct op_run;
struct plan;

/* of a plan, in a slot */
size_t gpu_input_at(const struct engine_replica *r, struct plan *plan, uint32_t i);
/* Sends the next batch of the training data to the stage of the slot, if there is one: s->is_full.
 */
int gpu_send_batch(struct engine_replica *r, struct gpu_slot *s, struct err *err);
/* On the work stream, and may be captured: from the stage to the inputs of the plan. */
int gpu_copy_inputs(struct engine_replica *r, struct gpu_slot *s, struct plan *plan,
                    struct err *err);
/* Copies the lane's parameters to the GPU, where kernels read them. The previous lane of the slot
 * must be complete. */
int gpu_send_run(struct engine_replica *r, struct gpu_slot *s, const struct op_run *run,
                 struct err *err);
/* A pass.feed: one batch, beside those of the training data. */
int gpu_feed(struct engine_replica *r, struct plan *plan, const struct data_batch *b,
             struct err *err);

#endif
