/* step.h - one optimizer step of one replica: its lanes (micro-batches), the all-reduce, the commit
 * gate, its part of the update. Threads: every replica's. */
#ifndef TRAIN_STEP_H
#define TRAIN_STEP_H

#include <stdint.h>

struct err;
struct replica;
struct step_result;

/* Returns 0 if the step was applied or skipped, and reported. On failure no replica of this task
 * has applied it, unless the error came from a fault point after the commit gate; train_held()
 * states which. */
int step_run(struct replica *r, uint64_t step, struct step_result *out, struct err *err);

/* The parts that a step and a period of local SGD (outer.h) share. */

/* Waits until the step is permitted. Only the coordinator waits: without its contribution no task
 * completes the all-reduce. Errors: ERR_CANCELED, ERR_DEVICE (its storage is wrong). */
int step_wait_for_permission(struct replica *r, struct err *err);
/* After the all-reduce: compares the checksums of the state before it, which is after `step`. If they
 * are equal, that state, which is still in memory, may be saved. Errors: as health_compare(). */
int step_look_back(struct replica *r, uint64_t step, struct err *err);

#endif
