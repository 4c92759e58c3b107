/* async.h - steps of an asynchronous phase: all parameters are on parameter servers, and every task applies the
 * gradients of its own lanes (micro-batches) by itself, while other tasks may be some steps before or after it
 * (stale synchronous parallel; lib/ps/units.h).
 *
 * A task computes, step after step, a unit: its lanes of the step. The gradient is the mean over the samples of the unit,
 * and the learning rate that of the step times the share of the unit in the lanes. So the units of a step together move
 * the weights about as far as the synchronous step.
 *
 * All tasks stop after the same step where the job needs the state: before an evaluation, a checkpoint, a pause, and
 * at the end of the phase. The coordinator sets this limit. There the state is exactly that after the step. Every update
 * that a server has applied is kept when a task dies; the others continue after it. Which updates a gradient contains depends on
 * time, so the bits of such a phase do not repeat.
 *
 * Threads: those of replicas. */
#ifndef TRAIN_ASYNC_H
#define TRAIN_ASYNC_H

#include <stdint.h>

struct err;
struct replica;
struct step_result;

/* Trains from the state after step `held` to the next limit. *last: the step after which all tasks have stopped, >= held.
 * Errors: as step_run(). */
int async_run(struct replica *r, uint64_t held, uint64_t *last, struct step_result *out,
              struct err *err);

#endif
