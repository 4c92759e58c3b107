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

#endif
