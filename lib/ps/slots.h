/* slots.h - the compact table of a replica: a slot for each row that a step reads.
 *
 * Slots are numbered from 0 in the order in which rows are first looked up. The number of slots is
 * limited by the number of row numbers that the lanes (micro-batches) of a step can look up, which
 * is known before the first step, so a step allocates no memory. Pure.
 * Threads: one at a time. */
#ifndef PS_SLOTS_H
#define PS_SLOTS_H

#include <stddef.h>
#include <stdint.h>

struct err;

struct ps_slots {
    uint64_t *rows;  /* [room] owned; the row of each slot */
    uint32_t *index; /* [mask + 1] owned; open addressing: slot + 1; 0: free */
    size_t room, mask;
    size_t n;       /* slots in use */
    size_t fetched; /* slots [0, fetched) have values */
};

/* Errors: ERR_NOMEM. On failure ps_slots_fini() is allowed. */
int ps_slots_init(struct ps_slots *s, size_t room, struct err *err);
void ps_slots_fini(struct ps_slots *s);  /* a zeroed one is allowed */
void ps_slots_clear(struct ps_slots *s); /* frees all slots */
/* Replaces each of the n row numbers by the slot of the row. A row without a slot gets the next one.
 * At most `room` different rows between two calls of ps_slots_clear(). */
void ps_slots_resolve(struct ps_slots *s, int64_t *rows, size_t n);

#endif
