/* wants.h - which embedding tables a job keeps on parameter servers. Pure. Threads: any. */
#ifndef PS_WANTS_H
#define PS_WANTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "opts/ps.h"

/* Returns whether a table of float32 [rows, width] is kept there. */
bool ps_wants(const struct ps_settings *s, const char *name, uint64_t rows, uint64_t width);

/* Returns the steps by which the rows of tables that lanes read are older than those after the step before; 0 without
 * settings or tables. */
static inline uint32_t ps_staleness_of(const struct ps_settings *s)
{
    return s != NULL && s->tables != PS_TABLES_NONE ? s->staleness : 0;
}

#endif
