/* loop.h - the event loop (libuv): timers, signals, and loop_post() from any thread.
 *
 * One loop per process. Everything but loop_post() and loop_stop() is called on the loop's thread.
 * Closing is asynchronous inside; the handles here free themselves. */
#ifndef LOOP_LOOP_H
#define LOOP_LOOP_H

#include <stdint.h>

struct err;
struct loop;
struct loop_timer;

typedef void loop_fn(void *arg);

int loop_open(struct loop **out, struct err *err);
/* Runs until loop_stop(). Posts made before are run. */
void loop_run(struct loop *l);
void loop_stop(struct loop *l); /* any thread, also from a callback */
/* Runs what was posted and not yet run, then closes everything. NULL is fine. */
void loop_close(struct loop *l);

/* Runs fn(arg) once on the loop's thread, in the order of posting. Any thread; never runs it
 * inside the call. Never fails: memory for it is reserved, or the process ends (CHECK). */
void loop_post(struct loop *l, loop_fn *fn, void *arg);

/* First after `delay_ms`, then every `repeat_ms` (0: once). loop_timer_free() in any state, but not
 * after loop_close(), which frees those that are left. */
struct loop_timer *loop_timer_new(struct loop *l, uint64_t delay_ms, uint64_t repeat_ms,
                                  loop_fn *fn, void *arg);
void loop_timer_again(struct loop_timer *t, uint64_t delay_ms); /* restart, same repeat */
void loop_timer_free(struct loop_timer *t);                     /* NULL is fine */

/* Calls fn(arg, signum) on the loop for each delivery. Until loop_close(). */
int loop_signal(struct loop *l, int signum, void (*fn)(void *arg, int signum), void *arg,
                struct err *err);

#endif
