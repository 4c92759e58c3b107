/* copies.h - copies of the whole state, in jobs whose gradients are compressed by a code with residuals.
 *
 * Between two steps every task holds the same weights and slots, but the residual of a group of lanes (micro-batches)
 * is only in the task that has these lanes: it would be lost with the task. So after some steps, which all tasks
 * agree on, each residual is sent to all tasks, and each task copies its state: the state of every task is whole.
 *
 *   after the step                                        because
 *   that the coordinator names (copy_every_steps)         a lost task costs no more steps than these
 *   whose state is written to a checkpoint or compared    checkpoints and checksums include all residuals
 *   of a pause, or the last one                           the next generation can give each group to another task
 *
 *   event                                 effect
 *   a generation ends early               the task returns to its copy, before it reports the step that it holds.
 *                                         The steps after it are trained again, with the same bits
 *   it ends early while states are        some tasks hold the newer copy, and the others receive it, as after any
 *   copied                                step that only some tasks have completed
 *   all tasks are lost                    the newest checkpoint, which has all residuals
 *
 * Rejected: a residual for each lane, which needs more memory; residuals that are lost with their task, with which the
 * result depends on failures. Sending a residual to one other task instead of all would send less, but the holders of
 * a checkpoint need all of them.
 *
 * GPUs have copies of the state of their own. The host's state receives theirs before residuals are sent, and they
 * take the residuals of all groups afterwards; each generation begins with the host's state.
 *
 * Threads: the replica's, unless stated otherwise. */
#ifndef TRAIN_COPIES_H
#define TRAIN_COPIES_H

#include <stdbool.h>
#include <stdint.h>

struct err;
struct replica;
struct step_result;
struct train;

/* After the engine was opened. Nothing to do if the job keeps no residuals. Errors: ERR_NOMEM. */
int copies_open(struct train *t, struct err *err);
void copies_close(struct train *t);

/* Called by local replica 0 when a generation begins and the task holds the agreed state, which is whole. */
void copies_begin(struct train *t);
/* Does this task, the coordinator, want copies after the step? */
bool copies_are_due(const struct train *t, uint64_t step);
/* Called by every replica between two steps, after `step`: sends the residuals, and copies the state, which is whole
 * then, also on GPUs. Contains gates. Errors: as a reduction. */
int copies_make(struct replica *r, uint64_t step, struct err *err);
/* The same after the step was applied or skipped, if it is one of those above. */
int copies_end_step(struct replica *r, uint64_t step, const struct step_result *result,
                    struct err *err);
/* Called after all threads of a generation that ended early: the task holds the state of its copy. */
void copies_return(struct train *t);

#endif
