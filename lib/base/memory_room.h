/* memory_room.h - limits at which a request for memory fails, such as RLIMIT_AS (ulimit -v).
 *
 * Libraries do not report each such failure: a thread that does not start, a kernel without code. So the room is tested
 * before they are called, and a process that crashes without room ends with a message and an exit code. */
#ifndef BASE_MEMORY_ROOM_H
#define BASE_MEMORY_ROOM_H

#include <stdbool.h>
#include <stddef.h>

struct err;

/* Called once, by the main thread, before any other starts. Where RLIMIT_AS is set, threads get smaller stacks and share one
 * heap, because both reserve addresses that are not used. Where RLIMIT_STACK is small, threads get larger stacks, and it is
 * raised for the main thread up to its hard limit. If SIGSEGV or SIGABRT ends the process while it has no room, it writes a
 * message and exits with `code`; otherwise the earlier action of the signal follows.
 * Errors: ERR_INPUT (the hard limit of RLIMIT_STACK is too small; all else is prepared). */
int memory_room_prepare(int code, struct err *err);

/* Returns true if so many bytes of memory can be mapped now. Any thread; async-signal-safe. */
bool memory_room_has(size_t bytes);
/* Checks it. `what` completes the error text "no room for <what>". Fault point: memory.room. Errors: ERR_NOMEM; the text names
 * the limit and the remedy. */
int memory_room_check(size_t bytes, const char *what, struct err *err);

#endif
