#include "ckpt/thread.h"

#include <signal.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/thread.h"

void ckpt_thread_init(struct ckpt_thread *t)
{
    pthread_condattr_t attr;

    *t = (struct ckpt_thread){ .is_running = false };
    pthread_mutex_init(&t->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&t->changed, &attr);
    pthread_condattr_destroy(&attr);
}

void ckpt_thread_fini(struct ckpt_thread *t)
{
    pthread_cond_destroy(&t->changed);
    pthread_mutex_destroy(&t->lock);
}

int ckpt_thread_start(struct ckpt_thread *t, void *(*run)(void *arg), void *arg, struct err *err)
{
    int rc;

    t->was_started = t->is_running = true;
    rc = thread_start(&t->id, "writes files", run, arg, err);
    if (rc < 0)
        t->was_started = t->is_running = false;
    return rc;
}

/* Caller holds the lock. */
static bool wait_gone(struct ckpt_thread *t, uint64_t wait_ms)
{
    struct timespec until = clock_after_ms(wait_ms);
    int waited = 0;

    while (waited == 0 && t->is_running)
        waited = pthread_cond_timedwait(&t->changed, &t->lock, &until);
    return !t->is_running;
}

bool ckpt_thread_wait(struct ckpt_thread *t, uint64_t wait_ms)
{
    bool is_gone;

    pthread_mutex_lock(&t->lock);
    is_gone = wait_gone(t, wait_ms);
    pthread_mutex_unlock(&t->lock);
    return is_gone;
}

bool ckpt_thread_leave(struct ckpt_thread *t, uint64_t wait_ms)
{
    pthread_t id;
    bool is_gone;

    pthread_mutex_lock(&t->lock);
    is_gone = wait_gone(t, wait_ms);
    id = t->id;
    t->is_detached = !is_gone;
    pthread_mutex_unlock(&t->lock);
    if (!is_gone) /* the thread may free *t at any moment from here on */
        pthread_detach(id);
    else if (t->was_started)
        pthread_join(id, NULL);
    return is_gone;
}

bool ckpt_thread_end(struct ckpt_thread *t)
{
    bool is_detached;

    pthread_mutex_lock(&t->lock);
    t->is_running = false;
    is_detached = t->is_detached;
    pthread_cond_broadcast(&t->changed);
    pthread_mutex_unlock(&t->lock);
    return is_detached;
}
