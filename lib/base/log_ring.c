/* log_ring.c - see log_ring.h. */
#include "base/log_ring.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/text.h"

enum ring_kind { EVENTS, OTHERS, RINGS };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards the rest */
static struct log_ring_record *rings[RINGS]; /* [LOG_RING_RECORDS] each, owned; NULL before the first */
static uint64_t counts[RINGS];               /* records added to each ring */
static uint64_t n_records;                   /* number of the newest record */

/* Events of these names are frequent, or are of interest only at the time. */
static const char *const others[] = { "step", "eval", "note", "progress", "profile", "phase",
                                      "message", "overflowed" };

static enum ring_kind ring_of(enum log_level level, const char *event)
{
    for (size_t i = 0; level < LOG_WARN && i < COUNT_OF(others); i++)
        if (strcmp(event, others[i]) == 0)
            return OTHERS;
    return EVENTS;
}

void log_ring_add(enum log_level level, const char *event, const char *message)
{
    enum ring_kind kind = ring_of(level, event);
    struct log_ring_record *r;

    if (level < LOG_INFO)
        return;
    pthread_mutex_lock(&lock);
    if (rings[kind] == NULL)
        rings[kind] = malloc(LOG_RING_RECORDS * sizeof(*r));
    if (rings[kind] != NULL) {
        r = &rings[kind][counts[kind]++ % LOG_RING_RECORDS];
        r->number = ++n_records;
        r->time_us = clock_wall_us();
        r->level = level;
        snprintf(r->event, sizeof(r->event), "%s", event);
        snprintf(r->message, sizeof(r->message), "%s", message);
        r->message[text_utf8_cut(r->message, strlen(r->message))] = '\0';
    }
    pthread_mutex_unlock(&lock);
}

/* The oldest record of the ring with a number above `after`, as a position; counts[kind]: none. */
static uint64_t first_above(enum ring_kind kind, uint64_t after)
{
    uint64_t n = counts[kind], at = n > LOG_RING_RECORDS ? n - LOG_RING_RECORDS : 0;

    while (at < n && rings[kind][at % LOG_RING_RECORDS].number <= after)
        at++;
    return at;
}

size_t log_ring_read(uint64_t after, bool events_only, struct log_ring_record *out, size_t max,
                     uint64_t *last)
{
    uint64_t at[RINGS], left = 0;
    size_t n = 0;

    pthread_mutex_lock(&lock);
    for (int k = 0; k < RINGS; k++) {
        at[k] = k == EVENTS || !events_only ? first_above(k, after) : counts[k];
        left += counts[k] - at[k];
    }
    for (; left > 0; left--) {
        const struct log_ring_record *next = NULL;
        int from = 0;

        for (int k = 0; k < RINGS; k++) {
            const struct log_ring_record *r =
                at[k] < counts[k] ? &rings[k][at[k] % LOG_RING_RECORDS] : NULL;

            if (r != NULL && (next == NULL || r->number < next->number)) {
                next = r;
                from = k;
            }
        }
        at[from]++;
        if (left <= max)
            out[n++] = *next;
    }
    *last = n_records;
    pthread_mutex_unlock(&lock);
    return n;
}
