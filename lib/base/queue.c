#include "base/queue.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#include "base/check.h"
#include "base/fault.h"

struct queue {
    pthread_mutex_t lock; /* guards the rest */
    pthread_cond_t not_empty, not_full;
    bool closed;
    size_t cap, len;
    size_t head; /* the oldest item; the next free place is head + len, modulo cap */
    void *items[];
};

/* Somewhere in the future that fits any time_t; nobody waits 30 years. */
enum { WAIT_S_MAX = 1000000000 };

struct queue *queue_new(size_t cap)
{
    pthread_condattr_t attr;
    struct queue *q;
    size_t bytes;

    CHECK(cap > 0);
    if (__builtin_mul_overflow(cap, sizeof(void *), &bytes) ||
        __builtin_add_overflow(bytes, sizeof(*q), &bytes) || fault_hit("mem"))
        return NULL;
    q = calloc(1, bytes);
    if (q == NULL)
        return NULL;
    q->cap = cap;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC); /* a corrected wall clock is no timeout */
    pthread_mutex_init(&q->lock, NULL);
    pthread_cond_init(&q->not_empty, &attr);
    pthread_cond_init(&q->not_full, &attr);
    pthread_condattr_destroy(&attr);
    return q;
}

/* With the lock held and room for one. */
static void put(struct queue *q, void *item)
{
    q->items[(q->head + q->len) % q->cap] = item;
    q->len++;
    pthread_cond_signal(&q->not_empty);
}

bool queue_push(struct queue *q, void *item)
{
    bool open;

    CHECK(item != NULL); /* NULL is how queue_pop() says "nothing" */
    pthread_mutex_lock(&q->lock);
    while (!q->closed && q->len == q->cap)
        pthread_cond_wait(&q->not_full, &q->lock);
    open = !q->closed;
    if (open)
        put(q, item);
    pthread_mutex_unlock(&q->lock);
    return open;
}

bool queue_try_push(struct queue *q, void *item)
{
    bool fits;

    CHECK(item != NULL);
    pthread_mutex_lock(&q->lock);
    fits = !q->closed && q->len < q->cap;
    if (fits)
        put(q, item);
    pthread_mutex_unlock(&q->lock);
    return fits;
}

static struct timespec from_now(uint64_t ms)
{
    struct timespec t;
    uint64_t seconds = ms / 1000;

    clock_gettime(CLOCK_MONOTONIC, &t);
    t.tv_sec += (time_t)(seconds < WAIT_S_MAX ? seconds : WAIT_S_MAX);
    t.tv_nsec += (long)(ms % 1000) * 1000000;
    if (t.tv_nsec >= 1000000000) {
        t.tv_nsec -= 1000000000;
        t.tv_sec++;
    }
    return t;
}

void *queue_pop(struct queue *q, uint64_t wait_ms)
{
    struct timespec deadline = from_now(wait_ms);
    void *item = NULL;
    int rc = 0;

    pthread_mutex_lock(&q->lock);
    while (rc != ETIMEDOUT && !q->closed && q->len == 0)
        rc = wait_ms == UINT64_MAX ? pthread_cond_wait(&q->not_empty, &q->lock)
                                   : pthread_cond_timedwait(&q->not_empty, &q->lock, &deadline);
    if (q->len > 0) {
        item = q->items[q->head];
        q->head = (q->head + 1) % q->cap;
        q->len--;
        pthread_cond_signal(&q->not_full);
    }
    pthread_mutex_unlock(&q->lock);
    return item;
}

void queue_close(struct queue *q)
{
    pthread_mutex_lock(&q->lock);
    q->closed = true;
    pthread_cond_broadcast(&q->not_empty);
    pthread_cond_broadcast(&q->not_full);
    pthread_mutex_unlock(&q->lock);
}

size_t queue_len(struct queue *q)
{
    size_t n;

    pthread_mutex_lock(&q->lock);
    n = q->len;
    pthread_mutex_unlock(&q->lock);
    return n;
}

void queue_free(struct queue *q)
{
    if (q == NULL)
        return;
    pthread_cond_destroy(&q->not_full);
    pthread_cond_destroy(&q->not_empty);
    pthread_mutex_destroy(&q->lock);
    free(q);
}
