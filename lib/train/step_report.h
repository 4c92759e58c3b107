/* step_report.h - the TRAIN_STEP event of a step, and the TRAIN_LOGGED event after it. Threads:
 * local replica 0's; step_report_logged() may be called by any replica. */
#ifndef TRAIN_STEP_REPORT_H
#define TRAIN_STEP_REPORT_H

#include <stdint.h>

struct facts;
struct replica;
struct train;

/* Sends the event of the period that ends with facts->step. begin_ns: clock at its start; 0: another task finished the step, and
 * this task received the state. */
void step_report(struct replica *r, const struct facts *facts, uint64_t begin_ns);

/* What this task contributes as CONTROL_UNLOGGED to the reduction after `step`. */
float step_report_unlogged(const struct train *t, uint64_t step);
/* After a reduction of the control words that the coordinator joined after its reports of `step`:
 * TRAIN_LOGGED, from local replica 0 of every task but the coordinator. */
void step_report_logged(struct replica *r, uint64_t step);

#endif
