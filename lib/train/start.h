/* start.h - begins and ends a generation: its threads.
 *
 * The threads of a generation end by themselves, each when it has finished or when something
 * failed; the last thread disconnects the peers and calls on_end. What is left then, and stays for
 * the next generation, is the state and its facts (state.h). */
#ifndef TRAIN_START_H
#define TRAIN_START_H

#include "train/train_types.h"

struct err;
struct train;

/* train_start(). */
int start_generation(struct train *t, const struct train_group *group, train_end_fn *on_end,
                     struct err *err);
/* Waits for the threads of the last generation. The same thread as train_start(). */
void start_join(struct train *t);

#endif
