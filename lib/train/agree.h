/* agree.h - the agreement at the start of a generation: which state each task holds, and which work
 * is pending.
 *
 * The coordinator broadcasts the digests of its files and the step that all tasks shall hold; each
 * task compares them with its own. Then one all-reduce states to every task whether any task holds
 * an older step, whether the evaluation of the held step is pending, and whether any task requests
 * a pause. */
#ifndef TRAIN_AGREE_H
#define TRAIN_AGREE_H

struct agreement;
struct err;
struct replica;
struct train;

/* Connects the task to its peers. Called by local replica 0, once for the task.
 * Errors: those of comm_open() and comm_connect(). */
int agree_connect(struct train *t, struct err *err);
/* Compares the files and sets *out and r->votes. Called by every replica.
 * Errors: ERR_INPUT (files differ), ERR_PEER. */
int agree_on_state(struct replica *r, struct agreement *out, struct err *err);

#endif
