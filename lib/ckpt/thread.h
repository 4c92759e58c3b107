/* thread.h - the threads of ckpt/. Each works for an object whose owner must not wait for the
 * thread without a limit, because the storage may hang indefinitely. The object is therefore owned
 * by both, and the last user frees it.
 *
 *     owner: ckpt_thread_start ... ckpt_thread_leave: false: the thread frees the object
 *     thread:                      ckpt_thread_end:   true: the thread frees the object */
#ifndef CKPT_THREAD_H
#define CKPT_THREAD_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

struct err;

struct ckpt_thread {
    pthread_t id;
    pthread_mutex_t lock;   /* guards the shared state, including that of the object */
    pthread_cond_t changed; /* uses CLOCK_MONOTONIC */
    bool was_started;
    bool is_running;
    bool is_detached; /* the owner has detached the thread */
};

void ckpt_thread_init(struct ckpt_thread *t);
void ckpt_thread_fini(struct ckpt_thread *t); /* called by the last user */
/* Starts the thread with signals blocked (base/thread.h). */
int ckpt_thread_start(struct ckpt_thread *t, void *(*run)(void *arg), void *arg, struct err *err);
/* Called by the owner: waits for the end of the thread for at most wait_ms. true: the thread has
 * ended, or was not started. */
bool ckpt_thread_wait(struct ckpt_thread *t, uint64_t wait_ms);
/* The owner's last call, after it requested the thread to end: waits for at most wait_ms, then
 * detaches the thread. true: the thread has ended. */
bool ckpt_thread_leave(struct ckpt_thread *t, uint64_t wait_ms);
/* The thread's last call, except ckpt_thread_fini(). true: the owner has detached the thread. */
bool ckpt_thread_end(struct ckpt_thread *t);

#endif
