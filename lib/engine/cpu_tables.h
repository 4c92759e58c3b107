/* cpu_tables.h - gradient arenas whose tables are packed: adding lanes, closing gaps for the
 * reduction. Threads: the replica's. */
#ifndef ENGINE_CPU_TABLES_H
#define ENGINE_CPU_TABLES_H

#include "engine/engine.h"

/* Gradient arena `to` of the lane tree += arena `from`: floats [begin, end) of the dense part, or
 * with end = memory.grads all floats after `begin`: values of tables, statistics, control words. */
void tables_add(struct engine_replica *r, uint32_t to, uint32_t from, size_t begin, size_t end);
/* Before replicas are reduced: gradient arena 0 has the rows that any of them has, and everything
 * in it lies in floats [0, *end) without a gap. All replicas call it; *end is the same for all. */
int tables_close_up(struct engine_replica *r, size_t *end, struct err *err);
/* Statistics and control words are at their own place again. */
void tables_open_up(struct engine_replica *r, size_t end);

#endif
