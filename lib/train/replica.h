/* replica.h - what the thread of a replica does in one generation:
 *
 *     load -> connect -> agree, transfer -> what is owed -> steps -> save, export -> end
 *
 * Every replica of every task takes the same decisions at the same step, from the step number and
 * from what was reduced with the gradients. A checkpoint of a step is taken within the next step,
 * when the state has been compared and is not yet changed (health.h). */
#ifndef TRAIN_REPLICA_H
#define TRAIN_REPLICA_H

struct err;
struct replica;

/* The replica's thread, from the beginning to the end of a generation. Errors: of every verb in it;
 * the caller ends the generation on all threads. */
int replica_run(struct replica *r, struct err *err);

#endif
