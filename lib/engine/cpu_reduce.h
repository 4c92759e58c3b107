/* cpu_reduce.h - the all-reduce of gradients between CPU replicas, in buckets.
 * Threads: the replica's; between reduce_open() and reduce_close() it owns one more. */
#ifndef ENGINE_CPU_REDUCE_H
#define ENGINE_CPU_REDUCE_H

#include "engine/engine.h"

/* An engine_ops.overlaps. */
bool reduce_overlaps(const struct engine *e);
uint32_t reduce_buckets(const struct engine *e); /* of a step, if it is reduced in buckets */

/* A generation: starts the replica's reducer, if so it was agreed. */
int reduce_open(struct engine_replica *r, struct err *err);
/* No bucket is being reduced, or the communicator has failed. */
void reduce_close(struct engine_replica *r);

/* A step. */
void reduce_begin(struct engine_replica *r, uint64_t step);
/* A plan_ready_fn for the last lane; arg: the replica. */
void reduce_ready(void *arg, size_t offset, size_t n);
/* Merges what is due after a lane (the replica's `lane`-th, in arena top - 1) along the tree, of
 * the floats up to `end` that are not added yet. */
void reduce_add_lanes(struct engine_replica *r, uint32_t lane, uint32_t top, size_t end);
/* After the last lane, the control words written: waits for buckets in progress, reduces the rest.
 */
int reduce_rest(struct engine_replica *r, struct err *err);

#endif
