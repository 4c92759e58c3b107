/* log_sink.h - writes to stderr without blocking.
 * Threads: one at a time, except log_sink_wait(). */
#ifndef BASE_LOG_SINK_H
#define BASE_LOG_SINK_H

#include <stddef.h>
#include <sys/types.h>

#include "base/log.h"

/* Returns the number of bytes written; 0: stderr is blocked; -1: stderr failed permanently (closed,
 * disk full). */
ssize_t log_sink_write(const void *bytes, size_t n);
/* Waits until stderr may be writable, or for `ms` milliseconds. Any thread. */
void log_sink_wait(int ms);
/* Writes as much of the text as stderr accepts at once. For a signal handler, or for a process that
 * is about to end. */
void log_sink_write_final(const char *text, size_t n);
/* Joins the n parts to one line, of which it keeps 1023 bytes, adds a line break, and writes the line as
 * log_sink_write_final() does. Async-signal-safe. */
void log_sink_write_final_parts(const char *const *parts, size_t n);
/* Returns the prefix of a line of this level: "<4>" for a warning; "" unless stderr is the journal of
 * systemd, which connects stderr of a unit to the journal and sets JOURNAL_STREAM to the device and
 * inode of that socket. The string is static. Any thread, also in a process that is about to end. */
const char *log_sink_prefix(enum log_level level);

#endif
