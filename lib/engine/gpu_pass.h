/* gpu_pass.h - one batch through a plan on a GPU, beside the steps. Threads: the replica's. */
#ifndef ENGINE_GPU_PASS_H
#define ENGINE_GPU_PASS_H

#include "engine/engine.h"

struct op_run;
struct plan;

/* Waits until the work stream is idle. Errors: those of plan_refuse(), if this GPU has read a
 * number that its model cannot use; those of gpu_wait(). */
int gpu_check_trouble(struct engine_replica *r, const struct plan *plan, struct err *err);
int gpu_run(struct engine_replica *r, struct plan *plan, const struct op_run *run, bool backward,
            struct err *err);                                       /* a pass.run */
int gpu_fetch_gradients(struct engine_replica *r, struct err *err); /* a pass.fetch_gradients */

#endif
