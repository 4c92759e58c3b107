/* outer.h - one period of local SGD (DiLoCo): the steps of the groups, and the outer step.
 *
 * Group g of a phase with G groups is the g-th of G equal blocks of lanes (micro-batches). The state
 * that a task holds is that of the last outer step: weights theta, slots, average, outer momentum. It
 * does not change before the outer step is agreed. For each of its groups a task has a model: a copy
 * of that state without the momentum. In a period (before, last] it
 *
 *   copies    theta, slots and average to every model
 *   steps     for each step, for each of its groups: gradient of the group's lanes, reduced among the
 *             tasks of the group; update of the group's model
 *   reduces   along the tree over groups: theta - w, the slots, the average, statistics
 *   agrees    control words: loss, pause, checksums; then the commit gate
 *   applies   Nesterov on theta with the mean of theta - w; means or zeros for the rest
 *
 * The placement, for L lanes of this task and B = lanes / G lanes of a group:
 *
 *   L >= B    the task trains L / B whole groups, one after the other in each step
 *   L <  B    the task is one of several tasks of a group. All of them hold the same model; the one
 *             with the first lanes contributes it to the outer step, the others contribute zeros
 *
 * In both cases sums follow the tree over lanes, so the bits do not depend on the number of tasks.
 *
 *   event                          effect
 *   a task dies in a period        every survivor holds the state of the outer step before: the
 *                                  next generation trains the whole period again, with the same bits
 *   a task dies in the outer step  as in a synchronous step: if one task has applied it, the others
 *                                  receive its state, else the period is trained again
 *   a task joins                   the group pauses at an outer step; the task receives the held state
 *   a checkpoint is due            written with the state of the next outer step
 *
 * Fault points: train.forward before each step, train.inner after it; train.reduce before the outer
 * step; then train.commit, train.update, train.update_middle, train.update_end as in a step.
 *
 * Threads: the first replica's; a task has no other. */
#ifndef TRAIN_OUTER_H
#define TRAIN_OUTER_H

#include <stdint.h>

struct err;
struct period;
struct replica;
struct step_result;
struct train;

/* After the engine was opened. Nothing to do if no phase trains with local SGD. Errors:
 * ERR_UNSUPPORTED (the engine cannot), ERR_NOMEM. */
int outer_open(struct train *t, struct err *err);
void outer_close(struct train *t);
/* Called when a generation begins. */
void outer_join(struct train *t);

/* Trains the steps after `held`, up to the outer step of the period, and reports it. Returns as
 * step_run(). */
int outer_run(struct replica *r, const struct period *period, uint64_t held,
              struct step_result *out, struct err *err);

#endif
