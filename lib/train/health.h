/* health.h - can the numbers of a step be trusted?
 *
 * Data. In some steps all tasks read the same record (data/content.c) and write its checksum to a word, too.
 *
 * Compared. All tasks hold the same gradient after a reduction, and the same weights after an
 * update. So each computes a checksum (checksum.h) of the gradient right where its update reads it,
 * every K steps and for a checkpoint of its weights and optimizer state too, and writes both to
 * words of its own after the control words of the next all-reduce, where all other tasks write
 * zeros. This costs no message, and every task receives all checksums. They are compared before
 * that step changes anything. The value of more than half of the tasks is right; a task with
 * another value is named by all, and its state is invalid. Two tasks that differ have no majority:
 * then neither state counts.
 *
 *     step k      reduce | checksum of g | update | (checksum of w)
 *     step k + 1  reduce, with them | compare | checkpoint of step k if one is due | ...
 *
 * The copy for a checkpoint is made after that comparison, while the state is still that of step k,
 * so every checkpoint of a generation was compared. (train_save() after a generation that ended
 * early is the exception.) After the last step there is an all-reduce of the words alone. A task
 * computes the checksum of the data that its replicas use; for a task without peers the engine
 * compares the replicas with each other (verify_gradient, verify_state).
 *
 * Finite. The same pass detects NaN and infinity in the gradient. All tasks detect them in the same
 * step, before its update, because all have the same bits; the policy of the job decides what
 * follows, and locate.c finds the origin. If only the gradient is not finite, but the loss is, and
 * the loss scale can be halved (loss_scale.h), the step is skipped with half the scale and the
 * policy does not apply. */
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

void health_begin(struct train *t); /* called for a generation, before its replicas start */
/* Called by local replica 0 when all tasks have agreed to hold `held`: initializes a discarded
 * state again if no task holds one. */
int health_adopt(struct train *t, uint64_t held, const int64_t *votes, struct err *err);
enum train_end health_end(const struct train *t); /* of a generation that failed */

/* Called by every replica; contains a gate. Computes the checksum of the state after `step`, which
 * the next all-reduce compares. Errors: ERR_DEVICE: replicas of this task hold different states. */
int health_checksum(struct replica *r, uint64_t step, struct err *err);
/* Whether the job of this task wants checksums of the state after the steps (before, step]. The tasks agree by
 * CONTROL_CHECKSUM, because the value of the key may differ between them. */
bool health_checksum_is_due(const struct train *t, uint64_t before, uint64_t step);

/* Called by local replica 0 before its last contribution to the all-reduce of `step` (0: not that of a step): writes the
 * words in `control`. */
void health_contribute(const struct train *t, uint64_t step, float *control);
/* Called by every replica after the reduction of `step`: the words state whether all tasks were
 * equal after step - 1. Errors: ERR_DEVICE: they were not; health.differs and health.peer state the
 * result. */
int health_compare(struct replica *r, uint64_t step, struct err *err);
/* Called by every replica after the reduction of `step`: compares the record that each task has read for the step with
 * that of the coordinator. Errors: ERR_INPUT: this task has other data. */
int health_compare_data(struct replica *r, uint64_t step, struct err *err);
/* May the state after `step` be written to disk? */
bool health_allows(const struct train *t, uint64_t step);

/* Called by every replica after the gate that follows engine inspect(); all see the same. *finite:
 * loss and gradient are. Errors: ERR_DEVICE: replicas of this task hold different gradients;
 * nothing is changed yet. */
int health_check_step(struct replica *r, uint64_t step, double loss, bool *finite, struct err *err);
/* Called by every replica if loss or gradient are not finite: finds the origin, and applies the
 * policy of the job. 0: the step is skipped. Errors: ERR_INPUT: the job stops, and the state after
 * step - 1 is saved; ERR_DEVICE with health.rolls_back: no task holds state now, and the last
 * checkpoint must be read. */
int health_handle_nonfinite(struct replica *r, uint64_t step, const struct step_result *result,
                            struct err *err);
/* Local SGD, after the commit gate of a period whose `text`, the same on every task, names a step that
 * was not finite: applies the policy as above; the held state is that after step `before`. 0: the
 * outer step is applied. */
int health_handle_local(struct replica *r, uint64_t before, uint64_t step, const char *text,
                        struct err *err);
/* Called by every replica, after all know the reason `why`: ends the generation on every task; no task
 * holds state now, and the last checkpoint must be read. Returns the code of `why`. */
int health_roll_back(struct replica *r, const struct err *why);
/* Called by every replica: did only the scaled gradient overflow? */
bool health_overflowed(const struct replica *r, double loss);
/* called in that case: skips the step and cannot fail */
void health_skip_overflow(struct replica *r, uint64_t step);
void health_updated(struct replica *r); /* after an update that was not skipped */

/* Called by every replica after the last step of a generation: compares that step. */
int health_compare_last(struct replica *r, uint64_t step, struct err *err);

#endif
