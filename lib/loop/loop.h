/* loop.h - the event loop (libuv): timers, signals, and loop_post() from any thread.
 *
 * One loop per process. Threads: loop_post() and loop_stop() may be called from any thread, all
 * other functions only from the loop's thread. libuv closes handles asynchronously; the memory of a
 * handle is freed internally when it is closed. */
#ifndef LOOP_LOOP_H
#define LOOP_LOOP_H

#include <stdint.h>

struct err;
struct loop;
struct loop_timer;

typedef void loop_fn(void *arg);

/* On success the caller owns *out. Errors: ERR_NOMEM, ERR_IO. */
int loop_open(struct loop **out, struct err *err);
/* Runs the loop on the calling thread until loop_stop(). Functions posted before loop_run() are run
 * too. */
void loop_run(struct loop *l);
void loop_stop(struct loop *l); /* any thread, also from a callback */
/* Runs the posted functions that have not run yet, then frees the loop with its timers and signal
 * handlers. NULL is allowed. */
void loop_close(struct loop *l);

/* Requests that the loop's thread runs fn(arg) once, in the order of posting and never inside this
 * call. Any thread. Never fails: when memory is exhausted the process ends (CHECK). */
void loop_post(struct loop *l, loop_fn *fn, void *arg);

/* Starts a timer that calls fn(arg) after `delay_ms` milliseconds, then every `repeat_ms` (0: only
 * once). The caller frees it with loop_timer_free(), in any state but before loop_close(), which
 * frees the remaining timers. Never returns NULL (CHECK). */
struct loop_timer *loop_timer_new(struct loop *l, uint64_t delay_ms, uint64_t repeat_ms,
                                  loop_fn *fn, void *arg);
/* Restarts the timer: the next call is in `delay_ms`; the repeat interval is unchanged. */
void loop_timer_restart(struct loop_timer *t, uint64_t delay_ms);
void loop_timer_free(struct loop_timer *t); /* NULL is allowed */

/* Calls fn(arg, signum) on the loop's thread for each delivery of the signal until loop_close().
 * Errors: ERR_NOMEM, ERR_IO. */
int loop_signal(struct loop *l, int signum, void (*fn)(void *arg, int signum), void *arg,
                struct err *err);

#endif
