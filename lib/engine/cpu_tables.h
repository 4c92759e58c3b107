/* cpu_tables.h - gradient arenas whose tables are packed: adds lanes, and makes an arena contiguous
 * for the all-reduce. Threads: the replica's. */
#ifndef ENGINE_CPU_TABLES_H
#define ENGINE_CPU_TABLES_H

#include "engine/engine.h"

/* Gradient arena `to` of the lane tree += arena `from`: floats [begin, end) of the dense part, or
 * with end = memory.grads all floats after `begin`: values of tables, statistics, control words. */
void tables_add(struct engine_replica *r, uint32_t to, uint32_t from, size_t begin, size_t end);
/* Called by all replicas before the all-reduce: adds to gradient arena 0 the rows that any replica
 * has, and moves its content to the floats [0, *end) without gaps. *end is the same for all. */
int tables_compact(struct engine_replica *r, size_t *end, struct err *err);
/* Called after the all-reduce: moves statistics and control words back to their positions. */
void tables_expand(struct engine_replica *r, size_t end);

#endif
