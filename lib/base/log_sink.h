/* log_sink.h - writes to stderr without ever waiting for it. Threads: one at a time, but for log_sink_wait(). */
#ifndef BASE_LOG_SINK_H
#define BASE_LOG_SINK_H

#include <stddef.h>
#include <sys/types.h>

/* Bytes written; 0: it takes nothing now; -1: it never will (closed, a full disk). */
ssize_t log_sink_write(const void *bytes, size_t n);
/* Until it may take something again, or `ms` have passed. Any thread. */
void log_sink_wait(int ms);
/* For a signal handler, or a process that is about to end: writes what can be written at once. */
void log_sink_last_words(const char *text, size_t n);

#endif
