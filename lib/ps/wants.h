/* wants.h - which embedding tables a job keeps on parameter servers. Pure. Threads: any. */
#ifndef PS_WANTS_H
#define PS_WANTS_H

#include <stdbool.h>
#include <stdint.h>

struct ps_settings;

/* Returns whether a table of float32 [rows, width] is kept there. */
bool ps_wants(const struct ps_settings *s, const char *name, uint64_t rows, uint64_t width);

#endif
