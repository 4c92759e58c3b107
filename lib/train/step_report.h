/* step_report.h - the TRAIN_STEP event of a step. Threads: local replica 0's. */
#ifndef TRAIN_STEP_REPORT_H
#define TRAIN_STEP_REPORT_H

#include <stdint.h>

struct facts;
struct replica;

/* begin_ns 0: the step was finished on another task, and this task received the state. */
void step_report(struct replica *r, const struct facts *facts, uint64_t begin_ns);

#endif
