/* transfer.h - the state, from a task that holds it to the tasks that are behind.
 *
 * Only when all chunks have arrived, what was received replaces the state: until then a receiver
 * holds what it held, so that a death in the middle loses nothing. Threads: every replica's. */
#ifndef TRAIN_TRANSFER_H
#define TRAIN_TRANSFER_H

#include <stdint.h>

struct err;
struct replica;

/* All replicas of all tasks, if any task is behind `step`. Errors: ERR_PEER (also a wrong
 * checksum), ERR_NOMEM, ERR_DEVICE; the held state is unchanged. */
int transfer_state(struct replica *r, uint64_t step, struct err *err);

#endif
