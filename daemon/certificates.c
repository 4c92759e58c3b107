/* certificates.c - see certificates.h. */
#include "daemon/certificates.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <time.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/thread.h"
#include "metrics/metrics.h"
#include "tls/tls.h"

enum {
    INTERVAL_MS = 1000, /* between two reads */
    HANG_MS = 5000,     /* a read that takes longer is reported */
    CLOSE_MS = 100,     /* for the end of a thread that does not hang */
    DAY_S = 86400,
    WEEK_S = 7 * DAY_S,
    HOUR_MS = 3600 * 1000,
};

/* When a warning was logged. Each is used by one thread. */
struct hourly {
    bool was_logged;
    uint64_t at_ms; /* clock_ms() */
};

/* Owned by the loop; after certificates_unwatch() by the thread, if that has not ended. */
struct certificates {
    struct tls *tls;                   /* a reference */
    struct hourly invalid;             /* of the thread */
    struct hourly hanging, near_end;   /* of the loop */
    bool has_thread;                   /* of the loop: the certificates come from files */
    struct metric *expires;            /* of the loop; NULL: the certificates are derived from a token */
    pthread_mutex_t lock;              /* protects the fields below */
    pthread_cond_t changed;            /* uses CLOCK_MONOTONIC */
    bool is_closing;                   /* the thread must end */
    bool has_ended;                    /* the thread does not use the object any more */
    bool is_abandoned;                 /* the thread frees the object */
    uint64_t reading_since_ms;         /* clock_ms(); 0: no read is in progress */
};

/* Returns whether the warning is due, and records it. */
static bool is_due(struct hourly *h)
{
    uint64_t now = clock_ms();

    if (h->was_logged && now - h->at_ms < HOUR_MS)
        return false;
    *h = (struct hourly){ .was_logged = true, .at_ms = now };
    return true;
}

static int64_t left_s(const struct certificates *c)
{
    return tls_expires(c->tls) - (int64_t)time(NULL);
}

static void free_certificates(struct certificates *c)
{
    tls_close(c->tls);
    pthread_cond_destroy(&c->changed);
    pthread_mutex_destroy(&c->lock);
    free(c);
}

/* ---- the thread ---- */

static void read_files(struct certificates *c)
{
    struct err err;
    int rc = tls_refresh(c->tls, &err);

    if (rc > 0)
        log_info("tls",
                 "new certificates are in use for new connections; they are valid for %" PRId64
                 " days",
                 left_s(c) / DAY_S);
    else if (rc < 0 && is_due(&c->invalid))
        log_warn("tls", "the new certificates are not used: %s", err.text);
}

/* Waits until the next read is due. The caller holds the lock. */
static void wait_interval(struct certificates *c)
{
    struct timespec until = clock_after_ms(INTERVAL_MS);
    int waited = 0;

    while (waited == 0 && !c->is_closing)
        waited = pthread_cond_timedwait(&c->changed, &c->lock, &until);
}

static void *reader(void *arg)
{
    struct certificates *c = arg;
    bool is_abandoned;

    pthread_mutex_lock(&c->lock);
    for (wait_interval(c); !c->is_closing; wait_interval(c)) {
        c->reading_since_ms = clock_ms();
        pthread_mutex_unlock(&c->lock);
        read_files(c);
        pthread_mutex_lock(&c->lock);
        c->reading_since_ms = 0;
    }
    c->has_ended = true;
    is_abandoned = c->is_abandoned;
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->lock);
    if (is_abandoned)
        free_certificates(c);
    return NULL;
}

/* ---- the loop ---- */

int certificates_watch(struct tls *tls, struct metrics *m, struct certificates **out,
                       struct err *err)
{
    struct certificates *c = calloc(1, sizeof(*c));
    pthread_condattr_t attr;
    pthread_t id;
    int rc;

    if (c == NULL)
        return err_set(err, ERR_NOMEM, "certificates: out of memory");
    c->tls = tls_ref(tls);
    pthread_mutex_init(&c->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&c->changed, &attr);
    pthread_condattr_destroy(&attr);
    if (tls_has_files(tls)) {
        rc = thread_start(&id, "reads the certificates", reader, c, err);
        if (rc < 0) {
            free_certificates(c);
            return rc;
        }
        pthread_detach(id); /* certificates_unwatch() waits for has_ended instead */
        c->has_thread = true;
        c->expires = metrics_gauge(
            m, "trainerd_certificate_expiry_timestamp_seconds", NULL,
            "End of the validity of the certificate of this task, seconds since 1970.");
        metric_set(c->expires, (double)tls_expires(tls));
    }
    *out = c;
    return 0;
}

static void check_read(struct certificates *c)
{
    const char *path = tls_reading(c->tls);
    uint64_t since_ms, for_ms;

    pthread_mutex_lock(&c->lock);
    since_ms = c->reading_since_ms;
    pthread_mutex_unlock(&c->lock);
    for_ms = since_ms > 0 ? clock_ms() - since_ms : 0;
    if (for_ms > HANG_MS && path != NULL && is_due(&c->hanging))
        log_warn("tls",
                 "reading '%s' has hung for %" PRIu64 " s: new certificates are not used until it is "
                 "complete; check the file system", path, for_ms / 1000);
}

void certificates_check(struct certificates *c)
{
    if (c == NULL)
        return;
    if (c->has_thread)
        check_read(c);
    if (c->expires != NULL)
        metric_set(c->expires, (double)tls_expires(c->tls));
    if (left_s(c) <= WEEK_S && is_due(&c->near_end))
        log_warn("tls",
                 "the certificate of this task %s %" PRId64
                 " h%s; replace its files, which are read again at once",
                 left_s(c) > 0 ? "ends in" : "has ended", (int64_t)llabs(left_s(c)) / 3600,
                 left_s(c) > 0 ? "" : " ago");
}

void certificates_unwatch(struct certificates *c)
{
    struct timespec until = clock_after_ms(CLOSE_MS);
    int waited = 0;
    bool is_free;

    if (c == NULL)
        return;
    pthread_mutex_lock(&c->lock);
    c->is_closing = true;
    pthread_cond_broadcast(&c->changed);
    while (waited == 0 && c->has_thread && !c->has_ended)
        waited = pthread_cond_timedwait(&c->changed, &c->lock, &until);
    is_free = !c->has_thread || c->has_ended;
    c->is_abandoned = !is_free;
    pthread_mutex_unlock(&c->lock);
    if (is_free)
        free_certificates(c);
}
