/* replica.h - the thread of a replica in one generation:
 *
 *     load -> connect -> agree, transfer -> pending work -> steps -> save, export -> end
 *
 * Every replica of every task makes the same decisions at the same step, from the step number and
 * from the control words of the all-reduce. The checkpoint of a step is copied within the next
 * step, when the state has been compared and is not yet changed (health.h). */
#ifndef TRAIN_REPLICA_H
#define TRAIN_REPLICA_H

struct err;
struct replica;

/* Runs one generation on the thread of the replica. Errors: those of every engine verb and of comm;
 * the caller then ends the generation on all threads. */
int replica_run(struct replica *r, struct err *err);

#endif
