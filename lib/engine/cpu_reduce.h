/* cpu_reduce.h - the all-reduce of gradients between CPU replicas, in buckets.
 * Threads: the replica's; between reduce_open() and reduce_close() it owns one more. */
#ifndef ENGINE_CPU_REDUCE_H
#define ENGINE_CPU_REDUCE_H

#include "engine/engine.h"

/* An engine_ops.overlaps. */
bool reduce_overlaps(const struct engine *e);
uint32_t reduce_buckets(const struct engine *e); /* of a step, if it is reduced in buckets */

/* Called at the start of a generation: starts the thread that reduces for the replica, if the group
 * has agreed to reduce while backward computes. */
int reduce_open(struct engine_replica *r, struct err *err);
/* Stops that thread. Called when no bucket is being reduced, or after the communicator failed. */
void reduce_close(struct engine_replica *r);

/* Called at the start of a step. */
void reduce_begin(struct engine_replica *r, uint64_t step);
/* A plan_ready_fn for the last lane; arg: the replica. */
void reduce_ready(void *arg, size_t offset, size_t n);
/* Called after the replica's `lane`-th lane, whose gradients are in arena top - 1: makes the merges
 * of the tree that are due, for the floats below `end` that are not merged yet. */
void reduce_add_lanes(struct engine_replica *r, uint32_t lane, uint32_t top, size_t end);
/* Called after the last lane, when the control words are written: waits for buckets in progress and
 * all-reduces the rest. */
int reduce_rest(struct engine_replica *r, struct err *err);

#endif
