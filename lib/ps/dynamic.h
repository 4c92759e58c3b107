/* dynamic.h - the rows of a dynamic table in one shard: found by their number (map.h), added when first
 * used, removed when not used any more.
 *
 *   index     open addressing, at least twice as many places as ids: id + 1, or 0
 *   ids       one for each row that has had a gradient: row, newest step, count, place of its floats
 *   floats    of the rows that are admitted: weights, slots, average: `stride` floats together
 *
 * A row that has had gradients in fewer than `admit_after` steps has an id, which counts them, but no
 * floats: about 40 bytes instead of a row and its slots.
 *
 * The content is a function of the sequence of calls of ps_dynamic_count() and ps_dynamic_sweep() alone; the
 * order in `ids` and `floats` has no meaning, and no result depends on it.
 *
 * Memory: the arrays grow by a quarter, when ps_dynamic_make_room() is called; no other function allocates.
 * A shard is a 1024th of a table, so that a growing array, which is copied, is small.
 * Threads: one at a time. */
#ifndef PS_DYNAMIC_H
#define PS_DYNAMIC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct err;

enum { PS_NO_FLOATS = UINT32_MAX }; /* of an id: its row is not admitted */

struct ps_id {
    uint64_t row;
    uint64_t last_step; /* the newest step in which it had a gradient */
    uint32_t count;     /* steps in which it had a gradient, at most UINT32_MAX */
    uint32_t at;        /* index of its floats, or PS_NO_FLOATS */
};

struct ps_dynamic {
    uint32_t stride, admit_after;
    struct ps_id *ids;    /* owned [room_ids] */
    float *floats;        /* owned [room_rows * stride] */
    uint32_t *owners;     /* owned [room_rows]; index in ids of each admitted row */
    uint32_t *index;      /* owned [mask + 1]; NULL: no room yet */
    uint32_t n_ids, n_rows, room_ids, room_rows;
    uint32_t mask;
    /* Rows below `filled` are complete. A row from `filled` on is not here yet: another server will send
     * it. Not used if is_complete. */
    uint64_t filled;
    bool is_complete;
};

/* stride: floats of a row with its slots and average; admit_after >= 1. Allocates nothing. */
void ps_dynamic_init(struct ps_dynamic *d, uint32_t stride, uint32_t admit_after);
void ps_dynamic_fini(struct ps_dynamic *d); /* a zeroed one is allowed */

/* Returns the bytes that the arrays occupy. */
uint64_t ps_dynamic_bytes(const struct ps_dynamic *d);
/* Returns the bytes that ps_dynamic_make_room() would add. */
uint64_t ps_dynamic_growth(const struct ps_dynamic *d, uint32_t n_ids, uint32_t n_rows);
/* Makes room for n_ids more ids, and n_rows more admitted rows. Errors: ERR_NOMEM, also above 2^30 ids; the
 * content is then unchanged. */
int ps_dynamic_make_room(struct ps_dynamic *d, uint32_t n_ids, uint32_t n_rows, struct err *err);

/* Is the row here, or absent because no step has used it? */
static inline bool ps_dynamic_covers(const struct ps_dynamic *d, uint64_t row)
{
    return d->is_complete || row < d->filled;
}

/* Returns the id of a row; NULL: the row has had no gradient. */
struct ps_id *ps_dynamic_find(const struct ps_dynamic *d, uint64_t row);
/* Counts a gradient of a row in a step. Adds the row if it is absent; uses the room. */
struct ps_id *ps_dynamic_count(struct ps_dynamic *d, uint64_t row, uint64_t step);
/* Adds an absent row with its count and newest step; uses the room. */
struct ps_id *ps_dynamic_add(struct ps_dynamic *d, uint64_t row, uint64_t last_step,
                             uint32_t count);
/* Has the row had gradients in enough steps? */
static inline bool ps_dynamic_is_admitted(const struct ps_dynamic *d, uint32_t count)
{
    return count >= d->admit_after;
}
/* Assigns floats to an id without them; uses the room. The caller sets the floats. */
float *ps_dynamic_admit(struct ps_dynamic *d, struct ps_id *id);
static inline float *ps_dynamic_floats(const struct ps_dynamic *d, const struct ps_id *id)
{
    return d->floats + (size_t)id->at * d->stride;
}

/* Removes the rows whose newest step is before `oldest`; then, if more than max_rows are admitted, those
 * with the oldest newest step, and of equal ones the lowest rows; then the same of the rows that are not
 * admitted. max_rows 0: no limit. */
void ps_dynamic_sweep(struct ps_dynamic *d, uint64_t oldest, uint64_t max_rows);
/* Removes all rows; the arrays stay. */
void ps_dynamic_clear(struct ps_dynamic *d);

/* Writes the indices in ids of the `most` lowest rows from `first` on, in ascending order of rows; `order` has
 * room for n_ids. Returns their number; *is_last: no row follows them. */
uint32_t ps_dynamic_list(const struct ps_dynamic *d, uint64_t first, uint32_t most, uint32_t *order,
                         bool *is_last);

#endif
