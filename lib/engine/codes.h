/* codes.h - which blocks of the gradient are coded between groups of lanes, and the roundings that a replica
 * makes itself: of groups that are whole in its own lanes. The all-reduce makes the others
 * (comm_all_reduce_coded()).
 *
 *   a replica has     rounds here                            passes to the all-reduce
 *   a part of a group nothing                                the sum of its lanes
 *   one group         nothing                                the sum of its lanes
 *   several groups    each group, when its last lane is done the sum of the rounded groups; and the code of
 *                                                            each group, if it is sent
 *   all lanes         each group, then their sum             nothing
 *
 * Threads: the replica's, unless stated otherwise. */
#ifndef ENGINE_CODES_H
#define ENGINE_CODES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "code/code.h"

struct engine;
struct engine_replica;
struct err;

/* Fills in e->codes if the job codes gradients: blocks of the dense part that lie in parameters of at least
 * min_bytes. Task. Errors: ERR_NOMEM. */
int codes_open(struct engine *e, struct err *err);
void codes_close(struct engine *e); /* idempotent */
/* Reports to on_note how the generation reduces gradients, if the job codes them. Task. */
void codes_note(const struct engine *e);

/* Called at the start of a generation: memory for the codes of groups that the replica sends. Errors:
 * ERR_NOMEM. */
int codes_keep(struct engine_replica *r, struct err *err);
void codes_free(struct engine_replica *r); /* at its end; idempotent */
/* The codes of each group of the replica; NULL: it keeps none. */
const uint8_t *const *codes_kept(const struct engine_replica *r);

/* Are gradients coded in this generation? Any thread. */
bool codes_are_on(const struct engine *e);
/* The key of the roundings of a step. Any thread. */
struct code_key codes_key(const struct engine *e, uint64_t step);
/* Must the sum of the group that ends with the replica's lane-th lane be rounded by the replica? *merges:
 * how many merges of the lane tree complete that sum. */
bool codes_ends_group(const struct engine_replica *r, uint32_t lane, uint32_t *merges);
/* Rounds floats [begin, end) of that sum. `begin` is a multiple of CODE_BLOCK; `end` is one too, or is not in
 * a coded block. */
void codes_round_group(const struct engine_replica *r, uint64_t step, uint32_t lane, float *grads,
                       size_t begin, size_t end);
/* Makes the remaining roundings of a replica that has all lanes, in its arena 0. */
void codes_round_all(const struct engine_replica *r, uint64_t step);

#endif
