/* cpu_spare.h - spare lanes (comm/spare_lanes.h) of a replica on a CPU.
 *
 *     arena 0           lanes of the replica without its block
 *     arena 1           its block; added to arena 0 when the exchange begins without an offer
 *     arena 2, 3, ...   the copy of the block of the replica that this one helps
 *
 * The gradients of a step with spare lanes are exchanged after the last lane: a helper has nothing left to do only
 * then, and the block is complete only then. Where the exchange would overlap with the backward pass, there are
 * no spare lanes, unless the job gives the overlap up (SPARE_ALWAYS).
 *
 * Threads: the replica's. */
#ifndef ENGINE_CPU_SPARE_H
#define ENGINE_CPU_SPARE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct engine;
struct engine_replica;
struct err;

/* After the memory was opened: sets e->spares. can_overlap: the gradients are larger than a bucket. */
void spare_open(struct engine *e, bool can_overlap);
/* A generation begins; after the group has agreed on the overlap. Writes a note, also where it is off. */
void spare_bind(struct engine_replica *r);
/* Whether the gradients of this generation are exchanged with spare lanes. The kind of an exchange is a property of
 * the group: no replica decides it from its own lanes. */
bool spare_is_on(const struct engine *e);

/* A step begins. Returns the number of lanes of which the samples must be skipped, because the replica did not
 * compute them in the step before. */
uint32_t spare_begin(struct engine_replica *r, uint64_t step);
/* lane_merges(), but the block is added apart. */
uint32_t spare_merges(const struct engine_replica *r, uint32_t i);
/* Called before lane i of the replica begins: notes the time at which the block begins. */
void spare_lane_begins(struct engine_replica *r, uint32_t i);
/* Whether lane i is in the block: it may be left out until the exchange begins. */
bool spare_is_block(const struct engine_replica *r, uint32_t i);
/* Whether the helper offers the block; an op_run.stops, arg: the replica. */
bool spare_is_offered(void *arg);
/* The block is left out; the samples of the first n_fed lanes of the replica were taken. */
void spare_give(struct engine_replica *r, uint32_t n_fed);
/* The lanes are complete. */
void spare_lanes_end(struct engine_replica *r);
/* All-reduces the first n floats of the gradients. Errors: as comm_all_reduce_spared(). */
int spare_reduce(struct engine_replica *r, size_t n, struct err *err);

#endif
