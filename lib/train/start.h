/* start.h - begins and ends a generation: its threads.
 *
 * Each thread of a generation ends when it has finished or when the generation has failed; the last
 * thread disconnects the peers and calls on_end. The state and its facts (state.h) remain for the
 * next generation. */
#ifndef TRAIN_START_H
#define TRAIN_START_H

#include "train/train_types.h"

struct err;
struct train;

/* Implements train_start(). */
int start_generation(struct train *t, const struct train_generation *opts, train_end_fn *on_end,
                     struct err *err);
/* Waits for the threads of the last generation. The same thread as train_start(). */
void start_join(struct train *t);

#endif
