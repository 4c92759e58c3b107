/* memory_watch.h - logs a warning before this task reaches the limit of its memory, at which the kernel
 * kills the process and its log states no reason.
 *
 * The watch compares the memory in use with the limit (base/memory_limit.h) every second, and when a
 * generation begins. It logs one warning when more than 85 % are in use, and no further one before the
 * use has fallen below 80 %. A ps knows how much memory its tables need before it allocates them: the
 * watch refuses tables that exceed the limit, and logs one warning if more than 85 % would be in use. */
#ifndef DAEMON_MEMORY_WATCH_H
#define DAEMON_MEMORY_WATCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/memory_limit.h"

struct err;
struct memory_watch;
struct ps_memory;

enum { MEMORY_WARN_PERCENT = 85, MEMORY_CLEAR_PERCENT = 80, MEMORY_WARNING_BYTES = 1024 };

/* root: as for memory_limit_read(); borrowed. is_ps: the task holds tables, and messages name remedies for
 * tables. Never returns NULL (CHECK). */
struct memory_watch *memory_watch_new(const char *root, bool is_ps);
void memory_watch_free(struct memory_watch *w); /* NULL is allowed */

/* ---- loop thread ---- */

/* Reads the memory in use and the limit if the last reading is a second old, or if at_once. Returns the
 * warning that this call, or memory_watch_plan() since the previous call, has logged; NULL: no warning was logged.
 * The text is valid until the next call. */
const char *memory_watch_tick(struct memory_watch *w, uint64_t now_ms, bool at_once);

struct memory_status {
    struct memory_limit limit; /* of the last reading */
    /* Why the task is near its limit, or will be when it has allocated its tables; empty: the task is not near its limit. */
    char warning[MEMORY_WARNING_BYTES];
};
/* Returns false if no limit is known. */
bool memory_watch_status(struct memory_watch *w, struct memory_status *out);

/* ---- any thread, one at a time: a ps_memory_fn for `w` ---- */

/* Compares the memory that the tables need, or with `growing` the rows that a dynamic table is about to add, with the
 * limit, and logs a warning if little memory would be left. Returns 1 if the caller should save a checkpoint because
 * little is left for the growth of dynamic tables: first when 1/8 of the limit is left, then whenever half of that is
 * left, down to 1/64. Errors: ERR_NOMEM: the memory exceeds the limit and the swap space of the host. The failure is
 * temporary, because another ps task would take over some of the tables, or of the rows. */
int memory_watch_plan(struct memory_watch *w, const struct ps_memory *m, struct err *err);
/* Returns how many bytes the tables of this task may occupy beside all other memory in use; UINT64_MAX: no limit is
 * known. held: the bytes in use that belong to tables. Any thread. */
uint64_t memory_watch_room(struct memory_watch *w, uint64_t held);

#endif
