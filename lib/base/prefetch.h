/* prefetch.h - rows that are read soon, in an order that the processor does not detect.
 *
 * They are prefetched into the second-level cache: the first level waits for too few lines at once. Measured with random
 * rows of 256 bytes from 256 MB: 18 ns a row, 32 ns with prefetches into the first level, 37 ns without.
 *
 * A function that only prefetches must be INLINED: gcc 12 takes others for functions without an effect, and removes
 * their calls. */
#ifndef BASE_PREFETCH_H
#define BASE_PREFETCH_H

#include <stddef.h>

#include "base/clones.h"

enum {
    PREFETCH_AHEAD = 16,       /* rows before the one that is read */
    PREFETCH_ROW_BYTES = 1024, /* the processor detects what follows */
    PREFETCH_LINE = 64,
};

INLINED void prefetch_row(const void *row, size_t bytes)
{
    for (size_t at = 0; at < bytes && at < PREFETCH_ROW_BYTES; at += PREFETCH_LINE)
        __builtin_prefetch((const char *)row + at, 0, 2);
}

#endif
