/* apply.h - a step is applied in all replicas of this task, or skipped in all of them. After the
 * commit gate; nothing interrupts it. Threads: every replica's. */
#ifndef TRAIN_APPLY_H
#define TRAIN_APPLY_H

#include <stdbool.h>
#include <stdint.h>

struct err;
struct replica;

/* This replica's part of the update of `step`. An error (of a fault point, of a device) is returned
 * when all is done. *norm: of the gradient, NaN if this step did not need it. */
int apply_update(struct replica *r, uint64_t step, double *norm, struct err *err);
/* In place of an update: the state after `step` is the state before it. After an overflow the loss
 * scale is halved. */
void apply_skip(struct replica *r, uint64_t step, bool overflowed);

#endif
