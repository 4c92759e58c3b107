/* trace_merge.h - copies the events of one task's trace (lib/engine/trace_write.c: an event a line)
 * into a common trace: with another process number, and with times on another clock.
 *
 * The text arrives in parts, in the order of the file; memory is bounded by the longest line. Pure. */
#ifndef DAEMON_TRACE_MERGE_H
#define DAEMON_TRACE_MERGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"

struct err;

struct trace_merge {
    uint32_t pid;      /* of the task in the common trace */
    int64_t shift_ns;  /* added to each time */
    bool has_begun;    /* the first line was read */
    bool has_ended;    /* the last line was read */
    struct buf line;   /* owned: the beginning of a line whose end has not arrived */
};

/* Appends the events of the next n bytes to *out, each as ",\n{...}". Errors: ERR_INPUT (no file of
 * trainerd; a time would be negative). */
int trace_merge_add(struct trace_merge *m, const char *text, size_t n, struct buf *out,
                    struct err *err);
/* Errors: ERR_INPUT (the file is incomplete). Frees the memory in any case. */
int trace_merge_end(struct trace_merge *m, struct err *err);

#endif
