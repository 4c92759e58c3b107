/* wants.h - which parameters a job keeps on parameter servers. Pure. Threads: any. */
#ifndef PS_WANTS_H
#define PS_WANTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "opts/ps.h"

/* Returns the rows of a dense parameter of n floats there. */
static inline uint64_t ps_dense_rows(uint64_t n)
{
    return (n + PS_DENSE_WIDTH - 1) / PS_DENSE_WIDTH;
}

/* Returns whether a table of float32 [rows, width] is kept there. */
bool ps_wants(const struct ps_settings *s, const char *name, uint64_t rows, uint64_t width);

/* Returns the steps by which the rows of tables that lanes read are older than those after the step before; 0 without
 * settings or tables. */
static inline uint32_t ps_staleness_of(const struct ps_settings *s)
{
    bool wants = s != NULL && (s->tables != PS_TABLES_NONE || ps_wants_dense(s));

    return wants && s->staleness_kind == PS_STALENESS_EXACT ? s->staleness : 0;
}

/* Names of the older versions of a parameter: "delayed.1", the newest of them, to "delayed.4". */
extern const char *const ps_delayed_names[PS_STALENESS_MAX];

#endif
