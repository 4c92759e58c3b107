/* eval.h - loss and metrics over the whole evaluation set. Threads: every replica's. */
#ifndef TRAIN_EVAL_H
#define TRAIN_EVAL_H

#include <stdint.h>

struct err;
struct replica;

/* Evaluates the state after `step`. The result is reported and counted once for a step, however
 * often the evaluation runs. Errors: those of engine evaluate() and of comm. */
int eval_run(struct replica *r, uint64_t step, struct err *err);

#endif
