/* limited.h - runs a call that may block without limit (name resolution, a file system) with a
 * deadline. Threads: any. */
#ifndef PREFLIGHT_LIMITED_H
#define PREFLIGHT_LIMITED_H

#include <stdbool.h>
#include <stdint.h>

struct err;

/* Runs fn(arg) on a thread of its own and waits at most `ms`. Returns true: fn has returned, and the
 * caller owns `arg`. false: fn still runs, or no thread could be started; `arg`, which must come from
 * malloc(), is freed when fn has returned. */
bool limited_run(void (*fn)(void *arg), void *arg, uint32_t ms);
/* Runs fn(arg) as limited_run() does. Returns 0 if fn has returned. Errors: ERR_TIMEOUT (fn still runs), those of
 * thread_start(). */
int limited_call(void (*fn)(void *arg), void *arg, uint32_t ms, struct err *err);

#endif
