#include "preflight/limited.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/thread.h"

struct call {
    void (*fn)(void *arg);
    void *arg;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool is_done, is_abandoned;
};

static void free_call(struct call *c)
{
    pthread_cond_destroy(&c->changed);
    pthread_mutex_destroy(&c->lock);
    free(c);
}

static void *run(void *arg)
{
    struct call *c = arg;
    bool is_abandoned;

    c->fn(c->arg);
    pthread_mutex_lock(&c->lock);
    c->is_done = true;
    is_abandoned = c->is_abandoned;
    pthread_cond_signal(&c->changed);
    pthread_mutex_unlock(&c->lock);
    if (is_abandoned) {
        free(c->arg);
        free_call(c);
    }
    return NULL;
}

int limited_call(void (*fn)(void *arg), void *arg, uint32_t ms, struct err *err)
{
    struct call *c = calloc(1, sizeof(*c));
    struct timespec until;
    pthread_t thread;
    bool is_done;
    int rc;

    if (c == NULL) {
        free(arg);
        return err_set(err, ERR_NOMEM, "a call with a deadline: out of memory");
    }
    *c = (struct call){ .fn = fn, .arg = arg };
    pthread_mutex_init(&c->lock, NULL);
    pthread_cond_init(&c->changed, NULL);
    rc = thread_start(&thread, "runs a call with a deadline", run, c, err);
    if (rc < 0) {
        free(arg);
        free_call(c);
        return rc;
    }
    pthread_detach(thread);
    until = clock_after_ms(ms);
    pthread_mutex_lock(&c->lock);
    while (!c->is_done &&
           pthread_cond_clockwait(&c->changed, &c->lock, CLOCK_MONOTONIC, &until) != ETIMEDOUT)
        ;
    is_done = c->is_done;
    c->is_abandoned = !is_done;
    pthread_mutex_unlock(&c->lock);
    if (!is_done)
        return err_set(err, ERR_TIMEOUT, "no answer within %u ms", ms);
    free_call(c);
    return 0;
}

bool limited_run(void (*fn)(void *arg), void *arg, uint32_t ms)
{
    return limited_call(fn, arg, ms, NULL) == 0;
}
