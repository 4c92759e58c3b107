/* locate.h - locates the first non-finite number of a step.
 *
 * Every replica computes its lanes of the step again and checks every number (engine locate). The
 * finding of the lowest lane is the result. Threads: every replica's. */
#ifndef TRAIN_LOCATE_H
#define TRAIN_LOCATE_H

#include <stddef.h>
#include <stdint.h>

struct err;
struct replica;
struct step_result;

/* Writes the origin to `text` [n], equal on every task. Logs a warning about the work first.
 * Gradient arena 0 is overwritten. Errors: those of describe_nonfinite() and locate_nonfinite() of
 * the engine, and of comm. */
int locate_run(struct replica *r, uint64_t step, const struct step_result *result, char *text,
               size_t n, struct err *err);

#endif
