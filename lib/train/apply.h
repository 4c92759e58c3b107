/* apply.h - applies a step in all replicas of this task, or skips it in all of them. Called after
 * the commit gate and never interrupted. Threads: every replica's. */
#ifndef TRAIN_APPLY_H
#define TRAIN_APPLY_H

#include <stdbool.h>
#include <stdint.h>

#include "optim/optim.h"

struct err;
struct replica;
struct train;

/* Returns the hyper-parameters of the inner optimizer in a step, without clipping; scale: of the
 * loss. */
struct optim_hyper apply_hyper(struct train *t, uint64_t step, double scale);
/* Performs this replica's part of the update of `step`. An error (of a fault point or a device) is
 * returned after the whole update. *norm: of the gradient; NaN if this step did not compute it. */
int apply_update(struct replica *r, uint64_t step, double *norm, struct err *err);
/* Called in place of an update: the state after `step` equals that before it. `overflowed`: halves
 * the loss scale. */
void apply_skip(struct replica *r, uint64_t step, bool overflowed);

#endif
