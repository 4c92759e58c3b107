/* memory_watch.h - warns before this task reaches the limit of its memory, at which the kernel would
 * kill it without a word in its log.
 *
 * The use is compared with the limit (base/memory_limit.h) every second, and when a generation
 * begins. More than 85 % is one warning; the next one comes only after the use was below 80 %. A ps
 * knows what its tables need before it allocates the memory: tables that exceed the limit are refused,
 * and tables that lead to more than 85 % are one warning. */
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

/* `root` as for memory_limit_read(); borrowed. is_ps: the task holds tables, which decides the
 * remedies in the messages. Never returns NULL (CHECK). */
struct memory_watch *memory_watch_new(const char *root, bool is_ps);
void memory_watch_free(struct memory_watch *w); /* NULL is allowed */

/* ---- loop thread ---- */

/* Reads the use and the limit if the last reading is a second old, or if `at_once`. Returns a warning that
 * memory_watch_plan() or this call has logged since the last call; NULL: none. The text is valid
 * until the next call. */
const char *memory_watch_tick(struct memory_watch *w, uint64_t now_ms, bool at_once);

struct memory_status {
    struct memory_limit limit; /* as read last */
    /* Why the task is near its limit, or will be; empty: it is not. */
    char warning[MEMORY_WARNING_BYTES];
};
/* false: no limit is known. */
bool memory_watch_status(struct memory_watch *w, struct memory_status *out);

/* ---- any thread, one at a time: a ps_memory_fn for `w` ---- */

/* Logs the warning about tables that fit barely. Errors: ERR_NOMEM: the tables exceed the limit and the
 * swap space of the host; another ps task would reduce what this task holds, so the failure is
 * temporary; the rows of a dynamic table do. Returns 1 if little is left for the growth of dynamic tables, and a
 * checkpoint should be saved: first at 1/8 of the limit, then whenever half of that is left, down to 1/64. */
int memory_watch_plan(struct memory_watch *w, const struct ps_memory *m, struct err *err);
/* Returns the most bytes that the tables of this task may have, beside what is in use for other things; UINT64_MAX: no
 * limit is known. held: of `used`, what belongs to tables. Any thread. */
uint64_t memory_watch_room(struct memory_watch *w, uint64_t held);

#endif
