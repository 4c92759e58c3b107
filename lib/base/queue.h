/* queue.h - a bounded queue of pointers between threads.
 *
 * Ownership of what is pushed crosses whole. Threads: any number on both ends. */
#ifndef BASE_QUEUE_H
#define BASE_QUEUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct queue;

struct queue *queue_new(size_t cap); /* NULL: out of memory */
/* Waits while full. false: the queue was closed, the item is still the caller's. */
bool queue_push(struct queue *q, void *item);
bool queue_try_push(struct queue *q, void *item); /* false: full or closed */
/* Waits while empty, at most `wait_ms` (UINT64_MAX: no limit). NULL: closed and empty, or time
 * is up. */
void *queue_pop(struct queue *q, uint64_t wait_ms);
/* Wakes everybody; pushes fail from now on, pops drain what is left. Idempotent. */
void queue_close(struct queue *q);
size_t queue_len(struct queue *q);
void queue_free(struct queue *q); /* nobody may be inside; left items are the caller's loss */

#endif
