/* locate.h - where did the first non-finite number of a step come from?
 *
 * Every replica computes its lanes of the step again, with a check of every number (engine locate).
 * The lowest lane with a finding speaks for all. Threads: every replica's. */
#ifndef TRAIN_LOCATE_H
#define TRAIN_LOCATE_H

#include <stddef.h>
#include <stdint.h>

struct err;
struct replica;
struct step_result;

/* Writes the origin into `text` [n], the same on every task. Warns of the work first. Gradient
 * arena 0 is overwritten. Errors: those of engine describe() and locate(), and of comm. */
int locate_run(struct replica *r, uint64_t step, const struct step_result *result, char *text,
               size_t n, struct err *err);

#endif
