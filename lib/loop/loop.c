#include "loop/loop.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>

#include <uv.h>

#include "base/check.h"
#include "base/err.h"

enum { POST_CHUNK = 64 };

struct post {
    struct post *next;
    loop_fn *fn;
    void *arg;
};

struct chunk { /* posts are allocated in chunks and reused until the loop is closed */
    struct chunk *next;
    struct post posts[POST_CHUNK];
};

struct loop {
    uv_loop_t uv;
    uv_async_t wake;
    atomic_bool stopping;

    pthread_mutex_t lock; /* guards the fields below */
    struct post *first, **last; /* queue of posts, oldest first */
    struct post *spare;         /* unused posts */
    struct chunk *chunks;       /* owned */
};

struct loop_timer {
    uv_timer_t uv;
    uint64_t repeat_ms;
    loop_fn *fn;
    void *arg;
};

struct on_signal {
    uv_signal_t uv;
    void (*fn)(void *arg, int signum);
    void *arg;
};

/* ---- posts ---- */

/* Caller holds the lock. */
static struct post *new_post(struct loop *l)
{
    struct post *p;

    if (l->spare == NULL) {
        struct chunk *c = malloc(sizeof(*c));

        CHECK(c != NULL);
        c->next = l->chunks;
        l->chunks = c;
        for (uint32_t i = 0; i < POST_CHUNK; i++) {
            c->posts[i].next = l->spare;
            l->spare = &c->posts[i];
        }
    }
    p = l->spare;
    l->spare = p->next;
    return p;
}

void loop_post(struct loop *l, loop_fn *fn, void *arg)
{
    struct post *p;
    bool was_empty;

    pthread_mutex_lock(&l->lock);
    was_empty = l->first == NULL;
    p = new_post(l);
    *p = (struct post){ .fn = fn, .arg = arg };
    *l->last = p;
    l->last = &p->next;
    pthread_mutex_unlock(&l->lock);
    if (was_empty) /* else the wake-up for the earlier posts is still pending */
        uv_async_send(&l->wake);
}

/* Runs the posts that are queued now; false: the queue was empty. Posts that these functions add
 * run in the next iteration, so that timers and sockets are handled in between. */
static bool run_posts(struct loop *l)
{
    struct post *first, **last;

    pthread_mutex_lock(&l->lock);
    first = l->first;
    last = l->last;
    l->first = NULL;
    l->last = &l->first;
    pthread_mutex_unlock(&l->lock);
    if (first == NULL)
        return false;

    for (struct post *p = first; p != NULL; p = p->next)
        p->fn(p->arg);

    pthread_mutex_lock(&l->lock);
    *last = l->spare;
    l->spare = first;
    pthread_mutex_unlock(&l->lock);
    return true;
}

static void on_wake(uv_async_t *wake)
{
    struct loop *l = wake->data;

    (void)run_posts(l); /* the queue is empty if only loop_stop() sent the wake-up */
    if (atomic_load(&l->stopping))
        uv_stop(&l->uv);
}

/* ---- the loop ---- */

int loop_open(struct loop **out, struct err *err)
{
    struct loop *l = calloc(1, sizeof(*l));
    int rc;

    if (l == NULL)
        return err_set(err, ERR_NOMEM, "event loop: out of memory");
    l->last = &l->first;
    rc = uv_loop_init(&l->uv);
    if (rc < 0) {
        free(l);
        return err_set(err, ERR_IO, "event loop: %s", uv_strerror(rc));
    }
    rc = uv_async_init(&l->uv, &l->wake, on_wake);
    if (rc < 0) {
        CHECK(uv_loop_close(&l->uv) == 0);
        free(l);
        return err_set(err, ERR_IO, "event loop: wake-up: %s", uv_strerror(rc));
    }
    l->wake.data = l;
    CHECK(pthread_mutex_init(&l->lock, NULL) == 0);
    *out = l;
    return 0;
}

void loop_run(struct loop *l)
{
    /* Returns only on uv_stop(): the wake-up handle keeps the loop alive. */
    (void)uv_run(&l->uv, UV_RUN_DEFAULT);
    atomic_store(&l->stopping, false); /* loop_run() may be called again */
}

void loop_stop(struct loop *l)
{
    atomic_store(&l->stopping, true);
    uv_async_send(&l->wake);
}

static void free_timer(uv_handle_t *h)
{
    free(h->data);
}

static void free_signal(uv_handle_t *h)
{
    free(h->data);
}

static void close_handle(uv_handle_t *h, void *arg)
{
    (void)arg;
    if (uv_is_closing(h))
        return;
    uv_close(h, h->type == UV_TIMER ? free_timer : h->type == UV_SIGNAL ? free_signal : NULL);
}

void loop_close(struct loop *l)
{
    if (l == NULL)
        return;
    while (run_posts(l)) {
    }
    uv_walk(&l->uv, close_handle, NULL);
    (void)uv_run(&l->uv, UV_RUN_DEFAULT); /* runs the close callbacks */
    CHECK(uv_loop_close(&l->uv) == 0);
    while (l->chunks != NULL) {
        struct chunk *next = l->chunks->next;

        free(l->chunks);
        l->chunks = next;
    }
    pthread_mutex_destroy(&l->lock);
    free(l);
}

/* ---- timers ---- */

static void on_timer(uv_timer_t *uv)
{
    struct loop_timer *t = uv->data;

    t->fn(t->arg);
}

struct loop_timer *loop_timer_new(struct loop *l, uint64_t delay_ms, uint64_t repeat_ms,
                                  loop_fn *fn, void *arg)
{
    struct loop_timer *t = calloc(1, sizeof(*t));

    CHECK(t != NULL);
    t->repeat_ms = repeat_ms;
    t->fn = fn;
    t->arg = arg;
    CHECK(uv_timer_init(&l->uv, &t->uv) == 0);
    t->uv.data = t;
    loop_timer_restart(t, delay_ms);
    return t;
}

void loop_timer_restart(struct loop_timer *t, uint64_t delay_ms)
{
    uv_update_time(t->uv.loop); /* the delay starts now, not at the start of this iteration */
    CHECK(uv_timer_start(&t->uv, on_timer, delay_ms, t->repeat_ms) == 0);
}

void loop_timer_free(struct loop_timer *t)
{
    if (t != NULL)
        uv_close((uv_handle_t *)&t->uv, free_timer);
}

/* ---- signals ---- */

static void deliver_signal(uv_signal_t *uv, int signum)
{
    struct on_signal *s = uv->data;

    s->fn(s->arg, signum);
}

int loop_signal(struct loop *l, int signum, void (*fn)(void *arg, int signum), void *arg,
                struct err *err)
{
    struct on_signal *s = calloc(1, sizeof(*s));
    int rc;

    if (s == NULL)
        return err_set(err, ERR_NOMEM, "signal %d: out of memory", signum);
    s->fn = fn;
    s->arg = arg;
    rc = uv_signal_init(&l->uv, &s->uv);
    if (rc < 0) {
        free(s);
        return err_set(err, ERR_IO, "signal %d: %s", signum, uv_strerror(rc));
    }
    s->uv.data = s;
    rc = uv_signal_start(&s->uv, deliver_signal, signum);
    if (rc < 0) {
        uv_close((uv_handle_t *)&s->uv, free_signal);
        return err_set(err, ERR_IO, "signal %d: %s", signum, uv_strerror(rc));
    }
    return 0;
}
