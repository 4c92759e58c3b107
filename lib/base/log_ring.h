/* log_ring.h - the newest log records of this process, in memory: for Control.Logs and the status page.
 *
 * log.c adds each record that it writes at level info or above. Two rings of LOG_RING_RECORDS, so
 * that frequent records do not displace rare ones: "others" has steps, evaluations, notes and
 * progress; "events" has everything else (membership, checkpoints, warnings, errors, the end). A
 * warning or an error is an event. Records are numbered from 1 in the order in which they are
 * written. Memory is allocated with the first record (about 290 KiB); if that fails, no record is kept.
 * Threads: any. */
#ifndef BASE_LOG_RING_H
#define BASE_LOG_RING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/log.h"

enum {
    LOG_RING_RECORDS = 256, /* in each ring */
    LOG_RING_BYTES = 512,   /* of a message, with the NUL; a longer one is truncated */
};

struct log_ring_record {
    uint64_t number;
    uint64_t time_us; /* clock_wall_us() */
    enum log_level level;
    char event[24];
    char message[LOG_RING_BYTES]; /* UTF-8 as far as the message was; may hold control characters */
};

void log_ring_add(enum log_level level, const char *event, const char *message);
/* Copies the records with a number above `after` in ascending order: the newest `max` if there are
 * more. events_only: those of the ring of events. Returns their number. *last is the number of the
 * newest record of both rings; 0: no record exists. */
size_t log_ring_read(uint64_t after, bool events_only, struct log_ring_record *out, size_t max,
                     uint64_t *last);
/* The name of a level as in the JSON log: "warn". */
const char *log_level_name(enum log_level level);

#endif
