/* health.h - can the numbers of a step be trusted?
 *
 * Compared. All tasks hold the same gradient after a reduction, and the same weights after an
 * update. So each computes a checksum (checksum.h) of the gradient right where its update reads it,
 * every K steps and for a checkpoint of its weights and optimizer state too, and puts both into
 * words of its own after the control words of the next reduction, where all other tasks put zeros:
 * it costs no message, and every task knows all checksums. They are compared before that next step
 * changes anything. The value of more than half of the tasks is right; a task with another value is
 * named by all, and its state is invalid. Two tasks that differ have no majority: then neither
 * state counts.
 *
 *     step k      reduce | checksum of g | update | (checksum of w)
 *     step k + 1  reduce, with them | compare | checkpoint of step k if one is due | ...
 *
 * A copy for a checkpoint is taken after that comparison, where the state still is that of step k:
 * what a generation writes was compared. (Not so train_save() after a generation that was broken:
 * then what is held is all there is.) After the last step there is a reduction of the words alone.
 * A task sums up what its replicas use; replicas of a task without peers are compared with each
 * other by the engine (verify_gradient, verify_state).
 *
 * Finite. The same pass detects NaN and infinity in the gradient. All tasks see it in the same
 * step, before its update, because all have the same bits; the job's policy decides what follows,
 * and locate.c finds the origin. But a gradient that is not finite while the loss is, in a step
 * whose loss scale can be halved (loss_scale.h), is no trouble yet: the step is skipped, with the
 * scale halved. */
#ifndef TRAIN_HEALTH_H
#define TRAIN_HEALTH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "train/train_types.h"

struct err;
struct replica;
struct step_result;

/* Floats after the control words of a gradient arena. */
size_t health_words(const struct train_opts *o);

void health_begin(struct train *t); /* a generation; before its replicas start */
/* Local replica 0, when all have agreed to hold `held`: a state that was discarded is initialized
 * again if no task has one. */
int health_adopt(struct train *t, uint64_t held, const int64_t *votes, struct err *err);
enum train_end health_end(const struct train *t); /* of a generation that failed */

/* Called by every replica; contains a gate. Computes the checksum of the state after `step`, which
 * the next all-reduce compares. Errors: ERR_DEVICE: replicas of this task hold different states. */
int health_checksum(struct replica *r, uint64_t step, struct err *err);
/* Is the checksum of the state after `step` computed, whatever the tasks ask for? */
bool health_checksum_is_due(const struct train *t, uint64_t step);

/* Local replica 0, before its last contribution to a reduction: the words in `control`. */
void health_contribute(const struct train *t, float *control);
/* Called by every replica after the reduction of `step`: the words state whether all tasks were
 * equal after step - 1. Errors: ERR_DEVICE: they were not; health.differs and health.peer state the
 * result. */
int health_compare(struct replica *r, uint64_t step, struct err *err);
/* May the state after `step` be written to disk? */
bool health_allows(const struct train *t, uint64_t step);

/* Called by every replica after the gate that follows engine inspect(); all see the same. *finite:
 * loss and gradient are. Errors: ERR_DEVICE: replicas of this task hold different gradients;
 * nothing is changed yet. */
int health_judge(struct replica *r, uint64_t step, double loss, bool *finite, struct err *err);
/* Called by every replica if loss or gradient are not finite: finds the origin, and applies the
 * policy of the job. 0: the step is skipped. Errors: ERR_INPUT: the job stops, and the state after
 * step - 1 is saved; ERR_DEVICE with health.rolls_back: no task holds state any more, the last
 * checkpoint is to be read. */
int health_trouble(struct replica *r, uint64_t step, const struct step_result *result,
                   struct err *err);
/* Called by every replica: is it only that the scaled gradient was too large? */
bool health_overflowed(const struct replica *r, double loss);
/* then: the step is skipped; nothing fails */
void health_overflow(struct replica *r, uint64_t step);
void health_updated(struct replica *r); /* after an update that was not skipped */

/* Called by every replica after the last step of a generation: compares it too. */
int health_last(struct replica *r, uint64_t step, struct err *err);

#endif
