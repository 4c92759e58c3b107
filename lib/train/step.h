/* step.h - one optimizer step of one replica: its lanes, the reduction, the commit gate, its part
 * of the update. Threads: every replica's. */
#ifndef TRAIN_STEP_H
#define TRAIN_STEP_H

#include <stdint.h>

struct err;
struct replica;
struct step_result;

/* 0: the step is applied or skipped, and reported. On failure it is applied by no replica of this
 * task, unless the error came from a fault point after the commit gate: train_held() states it. */
int step_run(struct replica *r, uint64_t step, struct step_result *out, struct err *err);

#endif
