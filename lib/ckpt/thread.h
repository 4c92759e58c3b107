/* thread.h - what the threads of ckpt/ have in common: they work for an object whose owner must
 * not wait for them without a bound, because the storage may hang for ever. So the object belongs
 * to both, and the last to leave frees it.
 *
 *     owner: ckpt_thread_start ... ckpt_thread_leave: false: the thread frees the object
 *     thread:                      ckpt_thread_end:   true: it frees the object */
#ifndef CKPT_THREAD_H
#define CKPT_THREAD_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <time.h>

struct err;

struct ckpt_thread {
    pthread_t id;
    pthread_mutex_t lock;   /* guards all that both sides see; the user's things too */
    pthread_cond_t changed; /* times are of CLOCK_MONOTONIC */
    bool was_started;
    bool is_running;
    bool is_orphan; /* the owner did not wait */
};

void ckpt_thread_init(struct ckpt_thread *t);
void ckpt_thread_fini(struct ckpt_thread *t); /* no thread uses it any more */
/* Signals are blocked in it: they are the business of the loop. */
int ckpt_thread_start(struct ckpt_thread *t, void *(*run)(void *arg), void *arg, struct err *err);
/* The owner: true: the thread is gone, or there was none. */
bool ckpt_thread_wait(struct ckpt_thread *t, uint64_t wait_ms);
/* The owner's last call, after it told the thread to end: waits for at most wait_ms. true: it
 * is gone. */
bool ckpt_thread_leave(struct ckpt_thread *t, uint64_t wait_ms);
/* The thread's last call on it but ckpt_thread_fini(). */
bool ckpt_thread_end(struct ckpt_thread *t);

/* For pthread_cond_timedwait() on `changed`. Eleven days is for ever. */
struct timespec ckpt_after_ms(uint64_t ms);

#endif
