/* dial.c - a connection to another task, under TLS if it is wanted, or the information that no process listens there.
 *
 * gRPC can connect by itself, but does not report reliably that an address refused the connection,
 * which counts as proof that the process is dead. Therefore a thread that lives for one attempt
 * resolves the name and tries all of its addresses at once; a resolver can block for long and
 * cannot be stopped. The first connection that is made is used. The result is "refused" only if all
 * addresses refused. */
#include "rdzv/rdzv_priv.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/errno_text.h"
#include "loop/loop.h"

/* getaddrinfo() runs the name service modules of the host, which may use large arrays on the stack.
 * Only used pages occupy memory. */
enum {
    ADDRESSES_MAX = 8,
    THREADS_MAX = 64,
    STACK_BYTES = 2 * 1024 * 1024,
    SECURE_MS = 10000, /* limit of the TLS handshake: a leader secures some hundred links a second */
};

struct rdzv_dial {
    uint32_t refs; /* under `lock`: the attempt, and each report of its progress that the loop has not run */
    struct loop *loop;
    struct tls *tls;
    uint64_t wait_ms;
    rdzv_dialled_fn *fn;
    rdzv_progress_fn *on_progress; /* NULL: not called */
    void *arg;
    bool is_cancelled; /* under `lock`; no callback is wanted */
    int fd;            /* -1: no connection */
    struct tls_stream *stream;
    bool is_refused, is_rejected;
    char why[512];
    char address[]; /* host:port */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint32_t n_threads; /* under `lock` */

/* ---- between the threads ---- */

static void unref(struct rdzv_dial *d)
{
    bool is_last;

    pthread_mutex_lock(&lock);
    is_last = --d->refs == 0;
    pthread_mutex_unlock(&lock);
    if (!is_last)
        return;
    tls_close(d->tls);
    free(d);
}

static void progress(void *arg)
{
    struct rdzv_dial *d = arg;

    if (!d->is_cancelled) /* set by this thread only */
        d->on_progress(d->arg);
    unref(d);
}

/* Called by the thread of the attempt. The loop runs the report before the result. */
static void report_progress(struct rdzv_dial *d)
{
    pthread_mutex_lock(&lock);
    if (!d->is_cancelled && d->on_progress != NULL) { /* else the loop may have ended */
        d->refs++;
        loop_post(d->loop, progress, d);
    }
    pthread_mutex_unlock(&lock);
}

/* ---- the attempt, in its thread ---- */

struct tries {
    struct pollfd polls[ADDRESSES_MAX];
    uint32_t n, n_open, n_refused;
};

/* A connection to a free port of this host can be connected to itself. */
static bool is_to_itself(int fd)
{
    struct sockaddr_storage a = { 0 }, b = { 0 };
    socklen_t n_a = sizeof(a), n_b = sizeof(b);

    return getsockname(fd, (struct sockaddr *)&a, &n_a) == 0 &&
           getpeername(fd, (struct sockaddr *)&b, &n_b) == 0 && n_a == n_b &&
           memcmp(&a, &b, n_a) == 0;
}

/* Handles the result for one address; error 0: connected. */
static void handle_result(struct rdzv_dial *d, struct tries *t, struct pollfd *p, int error)
{
    if (error == 0 && is_to_itself(p->fd))
        error = ECONNREFUSED;
    if (error == 0) {
        d->fd = p->fd;
    } else {
        close(p->fd);
        t->n_refused += error == ECONNREFUSED;
        if (d->why[0] == '\0' || error != ECONNREFUSED)
            snprintf(d->why, sizeof(d->why), "connect: %s", errno_text(error));
    }
    p->fd = -1; /* poll() ignores the entry */
    t->n_open--;
}

static void try_address(struct rdzv_dial *d, struct tries *t, const struct addrinfo *a)
{
    struct pollfd *p = &t->polls[t->n++];
    int one = 1;

    t->n_open++;
    *p = (struct pollfd){ .events = POLLOUT };
    p->fd = socket(a->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (p->fd < 0) { /* the host has no IPv6, or no descriptor is available */
        snprintf(d->why, sizeof(d->why), "connect: %s", errno_text(errno));
        t->n_open--;
        return;
    }
    /* not essential: the connection is only slower without it */
    (void)setsockopt(p->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    if (connect(p->fd, a->ai_addr, a->ai_addrlen) == 0)
        handle_result(d, t, p, 0);
    else if (errno != EINPROGRESS)
        handle_result(d, t, p, errno);
}

/* Waits for a result. Returns false at the timeout. */
static bool wait_for_one(struct rdzv_dial *d, struct tries *t, uint64_t until_ms)
{
    uint64_t now_ms = clock_ms();
    int n = now_ms < until_ms ? poll(t->polls, t->n, (int)(until_ms - now_ms)) : 0;

    if (n < 0 && errno == EINTR)
        return true;
    if (n <= 0) {
        snprintf(d->why, sizeof(d->why), "connect: no answer for %.1f s",
                 (double)d->wait_ms * 1e-3);
        return false;
    }
    for (uint32_t i = 0; i < t->n && d->fd < 0; i++) {
        int error = 0;
        socklen_t size = sizeof(error);

        if (t->polls[i].fd < 0 || t->polls[i].revents == 0)
            continue;
        if (getsockopt(t->polls[i].fd, SOL_SOCKET, SO_ERROR, &error, &size) < 0)
            error = errno;
        handle_result(d, t, &t->polls[i], error);
    }
    return true;
}

static void try_all(struct rdzv_dial *d, const struct addrinfo *found)
{
    uint64_t until_ms = clock_ms() + d->wait_ms;
    struct tries t = { .n = 0 };
    const struct addrinfo *a = found;

    for (; a != NULL && t.n < ADDRESSES_MAX && d->fd < 0; a = a->ai_next)
        try_address(d, &t, a);
    while (d->fd < 0 && t.n_open > 0 && wait_for_one(d, &t, until_ms))
        ;
    for (uint32_t i = 0; i < t.n; i++)
        if (t.polls[i].fd >= 0)
            close(t.polls[i].fd);
    d->is_refused = a == NULL && t.n_refused == t.n;
}

/* ---- TLS, in the same thread ---- */

static int shake(struct rdzv_dial *d, struct err *err)
{
    uint64_t until_ms = clock_ms() + SECURE_MS;
    int rc = tls_stream_handshake(d->stream, err);
    int n_ready;

    while (rc == 0) {
        struct pollfd p = { .fd = d->fd, .events = tls_stream_events(d->stream) };
        uint64_t now_ms = clock_ms();

        if (now_ms >= until_ms)
            return err_set(err, ERR_TIMEOUT, "TLS: no answer for %d s", SECURE_MS / 1000);
        n_ready = poll(&p, 1, (int)(until_ms - now_ms)); /* a failure shows in the handshake */
        if (n_ready > 0 && (p.revents & POLLIN) != 0)
            report_progress(d);
        rc = tls_stream_handshake(d->stream, err);
    }
    return rc;
}

/* `host`: the name in the cluster specification. */
static void secure(struct rdzv_dial *d, const char *host)
{
    struct err err;
    int rc = tls_stream_new(d->tls, TLS_CLIENT, d->fd, host, &d->stream, &err);

    if (rc == 0)
        rc = shake(d, &err);
    if (rc > 0)
        return;
    d->is_rejected = rc == ERR_AUTH;
    if (d->is_rejected && tls_common_host(d->tls) != NULL)
        snprintf(d->why, sizeof(d->why),
                 "%.300s; either the token differs or is absent there, or another program has this address: compare TRAINERD_TOKEN of both "
                 "tasks, and look what listens there", err.text);
    else
        snprintf(d->why, sizeof(d->why), "%.500s", err.text);
    tls_stream_free(d->stream);
    d->stream = NULL;
    close(d->fd);
    d->fd = -1;
}

static void dial(struct rdzv_dial *d)
{
    struct addrinfo hints = { .ai_socktype = SOCK_STREAM }, *found = NULL;
    char *colon = strrchr(d->address, ':'), *host = d->address;
    int rc;

    if (colon == NULL) {
        snprintf(d->why, sizeof(d->why), "'%.200s': expected HOST:PORT", d->address);
        return;
    }
    *colon = '\0';
    if (host[0] == '[') { /* [::1] */
        host++;
        host[strcspn(host, "]")] = '\0';
    }
    rc = getaddrinfo(host, colon + 1, &hints, &found);
    if (rc != 0) {
        snprintf(d->why, sizeof(d->why), "resolve '%.150s': %s", host,
                 rc == EAI_SYSTEM ? errno_text(errno) : gai_strerror(rc));
        return;
    }
    try_all(d, found);
    freeaddrinfo(found);
    if (d->fd >= 0)
        report_progress(d);
    if (d->fd >= 0 && d->tls != NULL)
        secure(d, host);
}

/* ---- the result ---- */

static void discard(struct rdzv_dial *d)
{
    tls_stream_free(d->stream);
    if (d->fd >= 0)
        close(d->fd);
    unref(d);
}

static void deliver(void *arg)
{
    struct rdzv_dial *d = arg;

    if (d->is_cancelled) { /* set by this thread only */
        discard(d);
        return;
    }
    d->fn(d->arg, &(struct rdzv_dialled){ .fd = d->fd,
                                          .tls = d->stream,
                                          .is_refused = d->is_refused,
                                          .is_rejected = d->is_rejected,
                                          .why = d->why });
    unref(d);
}

static void *run(void *arg)
{
    struct rdzv_dial *d = arg;
    bool is_cancelled;

    dial(d);
    pthread_mutex_lock(&lock);
    n_threads--;
    is_cancelled = d->is_cancelled;
    if (!is_cancelled)
        /* the loop exists: its owner calls rdzv_dial_cancel() before it ends the loop */
        loop_post(d->loop, deliver, d);
    pthread_mutex_unlock(&lock);
    if (is_cancelled)
        discard(d);
    return NULL;
}

static bool start_thread(struct rdzv_dial *d)
{
    pthread_attr_t attr;
    pthread_t thread;
    int rc;

    CHECK(pthread_attr_init(&attr) == 0);
    CHECK(pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED) == 0);
    /* not essential: the default stack is larger */
    (void)pthread_attr_setstacksize(&attr, STACK_BYTES);
    rc = pthread_create(&thread, &attr, run, d);
    pthread_attr_destroy(&attr);
    return rc == 0;
}

struct rdzv_dial *rdzv_dial_start(struct loop *loop, const char *address, struct tls *tls,
                                  uint64_t wait_ms, rdzv_dialled_fn *fn,
                                  rdzv_progress_fn *on_progress, void *arg)
{
    size_t n = strlen(address) + 1;
    struct rdzv_dial *d = calloc(1, sizeof(*d) + n);
    bool is_room;

    CHECK(d != NULL);
    d->refs = 1;
    d->loop = loop;
    d->tls = tls != NULL ? tls_ref(tls) : NULL;
    d->wait_ms = wait_ms;
    d->fn = fn;
    d->on_progress = on_progress;
    d->arg = arg;
    d->fd = -1;
    memcpy(d->address, address, n);
    pthread_mutex_lock(&lock);
    is_room = n_threads < THREADS_MAX;
    n_threads += is_room;
    pthread_mutex_unlock(&lock);
    if (is_room && start_thread(d))
        return d;
    snprintf(d->why, sizeof(d->why), "%s",
             is_room ? "connect: no thread could be started"
                     : "connect: too many attempts are in progress; the name service may be slow");
    pthread_mutex_lock(&lock);
    n_threads -= is_room;
    pthread_mutex_unlock(&lock);
    loop_post(loop, deliver, d);
    return d;
}

void rdzv_dial_cancel(struct rdzv_dial *d)
{
    if (d == NULL)
        return;
    pthread_mutex_lock(&lock);
    d->is_cancelled = true;
    pthread_mutex_unlock(&lock);
}
