/* log_journal.h - records for the journal of systemd.
 *
 * A record with its priority and its fields is one datagram to the journal's own socket. A line on
 * stderr can carry the priority alone (log_sink_prefix). */
#ifndef BASE_LOG_JOURNAL_H
#define BASE_LOG_JOURNAL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/log.h"

struct buf;

/* Sends MESSAGE, PRIORITY, SYSLOG_IDENTIFIER, TRAINERD_EVENT, TRAINERD_TASK (unless `task` is "")
 * and TRAINERD_<KEY> for each field. Never waits. Returns true if the journal has received the
 * record; false: stderr is not the journal, its socket takes nothing, or memory is exhausted: the
 * caller then writes the line to stderr. `scratch` is overwritten. Threads: one at a time. */
bool log_journal_send(struct buf *scratch, enum log_level level, const char *task,
                      const char *event, const char *message, const struct log_field *fields,
                      uint32_t n_fields);

#endif
