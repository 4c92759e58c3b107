/* agree.h - a generation begins: which tasks are there, which task holds what, what is owed.
 *
 * The coordinator states what it was given (files, by their digests) and which step all tasks shall
 * hold; each task compares. Then one reduction over all tasks tells every task whether any task is
 * behind, whether an evaluation is still owed for the held step, and whether any task asks for a
 * pause. */
#ifndef TRAIN_AGREE_H
#define TRAIN_AGREE_H

struct agreement;
struct err;
struct replica;
struct train;

/* Local replica 0, for the whole process. Errors: those of comm_open() and comm_connect(). */
int agree_connect(struct train *t, struct err *err);
/* Every replica: compares files, fills in *out and r->votes. Errors: ERR_INPUT (files differ),
 * ERR_PEER. */
int agree_on_state(struct replica *r, struct agreement *out, struct err *err);

#endif
