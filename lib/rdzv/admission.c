/* admission.c - see admission.h. One thread with one epoll set, which accepts, limits and closes
 * connections; relay.c moves their bytes, source.c counts what each address spends. */
#include "rdzv/admission.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/cancel.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/thread.h"
#include "rdzv/listen.h"
#include "rdzv/relay.h"
#include "rdzv/source.h"
#include "tls/tls.h"

enum {
    EVENTS_MAX = 64,
    CONNECTIONS_MIN = 256, /* plus 8 for each task */
    TICK_MS = 10,          /* wait while a connection is paused */
    SILENT_MS = 20000,
    REPORT_MS = 10000,
    END_MS = 500,
};

/* Connections that were closed or rejected since the last report. */
struct admission_losses {
    uint64_t report_ms; /* time of the last report */
    uint64_t n_evicted, n_rejected;
    char worst[SOURCE_TEXT_BYTES]; /* the last source that lost a connection */
    uint64_t n_insecure;           /* handshakes of TLS that failed */
    char insecure[SOURCE_TEXT_BYTES], why[256]; /* source and reason of the last one */
};

struct admission {
    pthread_t thread;
    int epoll, wake, listeners[LISTENERS_MAX];
    uint32_t n_listeners, most; /* limit of connections */
    struct tls *tls;                     /* borrowed; NULL: clear text alone */
    void (*accept)(void *arg, int fd, struct tls_peer *peer);
    void *arg;
    struct relay *all, **last;
    uint32_t n_relays, n_paused;
    uint32_t n_places, n_queued; /* handshakes that have a place; that wait for one */
    struct sources sources;
    bool has_closed; /* a closed relay must be freed */
    pthread_mutex_t lock; /* held while a connection is passed to gRPC, and for the fields of the
                             report */
    bool has_stopped;     /* under `lock`: no more connections are passed to gRPC */
    struct relay *opened; /* under `lock`: connections of this task that the thread has not seen */
    struct cancel end;    /* set by another thread, which then writes to `wake` */
    struct admission_losses losses; /* under `lock` */
};

/* The lowest bits of the pointer in an epoll event tell its type. */
enum { OF_CLIENT = 0, OF_SERVER = 1, OF_LISTENER = 2, KIND_MASK = 3 };

static uint64_t tagged(void *of, unsigned kind)
{
    return (uint64_t)(uintptr_t)of | kind;
}

/* ---- the epoll set ---- */

static void watch(struct admission *a, struct relay *r, int fd, uint32_t *watched, uint32_t wanted,
                  unsigned kind)
{
    struct epoll_event e = { .events = wanted, .data.u64 = tagged(r, kind) };

    if (fd < 0 || *watched == wanted)
        return;
    *watched = wanted;
    (void)epoll_ctl(a->epoll, EPOLL_CTL_MOD, fd, &e); /* cannot fail for a valid descriptor */
}

/* epoll and poll have the same numbers for EPOLLIN and EPOLLOUT. */
static uint32_t events_of(const struct tls_stream *s)
{
    return (uint32_t)(unsigned short)tls_stream_events(s);
}

static void update(struct admission *a, struct relay *r)
{
    uint32_t client = 0, server = 0;

    if (r->is_queued) {
        watch(a, r, r->client, &r->client_events, 0, OF_CLIENT);
        return;
    }
    if (r->is_securing) {
        watch(a, r, r->client, &r->client_events, r->is_paused ? 0 : events_of(r->tls), OF_CLIENT);
        return;
    }
    if (!r->is_paused && !r->up.is_over && r->up.bytes == NULL)
        client |= EPOLLIN;
    if (r->down.bytes != NULL)
        client |= EPOLLOUT;
    if (!r->down.is_over && r->down.bytes == NULL)
        server |= EPOLLIN;
    if (r->up.bytes != NULL)
        server |= EPOLLOUT;
    watch(a, r, r->client, &r->client_events, client, OF_CLIENT);
    if (!r->is_server_done)
        watch(a, r, r->server, &r->server_events, server, OF_SERVER);
}

static void pause_relay(struct admission *a, struct relay *r, bool paused)
{
    if (r->is_paused == paused)
        return;
    r->is_paused = paused;
    a->n_paused += paused ? 1 : -1U;
}

/* ---- places of handshakes ---- */

static void release_place(struct admission *a, struct relay *r)
{
    a->n_places -= r->place_until_ms != 0;
    r->place_until_ms = 0;
}

static void queue(struct admission *a, struct relay *r, bool queued)
{
    if (r->is_queued == queued)
        return;
    r->is_queued = queued;
    a->n_queued += queued ? 1 : -1U;
}

/* The client was read: a handshake has begun or ended, or must wait. */
static void update_place(struct admission *a, struct relay *r, bool was_securing, bool has_place,
                         uint64_t now_ms)
{
    queue(a, r, !has_place);
    if (!r->is_securing) {
        release_place(a, r);
    } else if (!was_securing) {
        r->place_until_ms = now_ms + ADMISSION_PLACE_MS;
        a->n_places++;
    }
}

/* ---- relays ---- */

static void unlink_relay(struct admission *a, struct relay *r)
{
    *r->link = r->next;
    if (r->next != NULL)
        r->next->link = r->link;
    else
        a->last = r->link;
}

static void append_relay(struct admission *a, struct relay *r)
{
    r->next = NULL;
    r->link = a->last;
    *a->last = r;
    a->last = &r->next;
}

/* Closes a socket, whose events refer to its relay. The kernel would report them as long as a process that this one has
 * forked holds a copy of the descriptor. */
static void close_watched(struct admission *a, int fd)
{
    (void)epoll_ctl(a->epoll, EPOLL_CTL_DEL, fd, NULL); /* fails if the socket was not watched */
    close(fd);
}

/* Closes the sockets. Other events of this round may refer to the relay, so it is freed after the
 * round. */
static void close_relay(struct admission *a, struct relay *r)
{
    if (r->is_closed)
        return;
    r->is_closed = a->has_closed = true;
    pause_relay(a, r, false);
    queue(a, r, false);
    release_place(a, r);
    relay_fini(r);
    close_watched(a, r->client);
    if (r->server >= 0)
        close_watched(a, r->server);
    if (r->source == NULL)
        return;
    r->source->n_connections--;
    a->n_relays--;
}

static void free_closed(struct admission *a)
{
    struct relay *r = a->all, *next;

    for (; a->has_closed && r != NULL; r = next) {
        next = r->next;
        if (!r->is_closed)
            continue;
        unlink_relay(a, r);
        free(r);
    }
    a->has_closed = false;
}

/* The preface has arrived: passes one end of a socket pair to gRPC. Returns false if no descriptor
 * is available. */
static bool hand_over(struct admission *a, struct relay *r)
{
    struct epoll_event e = { .data.u64 = tagged(r, OF_SERVER) };
    int pair[2];
    bool is_handed;

    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair) < 0)
        return false;
    if (epoll_ctl(a->epoll, EPOLL_CTL_ADD, pair[0], &e) < 0) {
        close(pair[0]);
        close(pair[1]);
        return false;
    }
    relay_begin(r, pair[0]);
    pthread_mutex_lock(&a->lock);
    is_handed = !a->has_stopped;
    if (is_handed)
        a->accept(a->arg, pair[1], r->tls != NULL ? tls_stream_peer(r->tls) : NULL);
    pthread_mutex_unlock(&a->lock);
    if (!is_handed)
        close(pair[1]);
    return is_handed;
}

static void note_insecure(struct admission *a, const struct source *from, const struct err *err)
{
    pthread_mutex_lock(&a->lock);
    a->losses.n_insecure++;
    source_print(from, a->losses.insecure, sizeof(a->losses.insecure));
    snprintf(a->losses.why, sizeof(a->losses.why), "%.255s", err->text);
    pthread_mutex_unlock(&a->lock);
}

/* Returns false if the relay must be closed. */
static bool read_client(struct admission *a, struct relay *r, uint64_t now_ms)
{
    struct err err;
    bool was_securing = r->is_securing;
    enum relay_result result =
        relay_read_client(r, now_ms, a->n_places < ADMISSION_HANDSHAKES, &err);

    update_place(a, r, was_securing, result != RELAY_NO_PLACE, now_ms);
    if (result == RELAY_NO_ALLOWANCE)
        pause_relay(a, r, true);
    if (result == RELAY_INSECURE)
        note_insecure(a, r->source, &err);
    return result == RELAY_BEGINS ? hand_over(a, r)
                                  : result != RELAY_BROKEN && result != RELAY_INSECURE;
}

static bool finish_server(struct admission *a, struct relay *r)
{
    relay_finish_server(r);
    return epoll_ctl(a->epoll, EPOLL_CTL_DEL, r->server, NULL) == 0;
}

/* Continues a relay after one of its sides was read; is_alive false: closes it. */
static void step(struct admission *a, struct relay *r, bool is_alive, uint64_t now_ms)
{
    bool has_more = true;

    while (is_alive && has_more) {
        is_alive = relay_flush(r, now_ms);
        has_more = is_alive && relay_has_bytes(r);
        if (has_more)
            is_alive = read_client(a, r, now_ms);
        /* else a part of a record or of the preface. At the end of the stream the flush closes the relay. */
        has_more = has_more && (r->up.bytes != NULL || r->up.is_over);
    }
    if (is_alive)
        update(a, r);
    else
        close_relay(a, r);
}

static void on_event(struct admission *a, struct relay *r, unsigned kind, uint32_t events,
                     uint64_t now_ms)
{
    bool is_alive = true;

    if (r->is_closed)
        return;
    if (kind == OF_CLIENT && (r->is_securing || (events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0))
        is_alive = (events & (EPOLLERR | EPOLLHUP)) == 0 ? read_client(a, r, now_ms) : false;
    else if (kind == OF_SERVER && (events & (EPOLLHUP | EPOLLERR)) != 0)
        is_alive = finish_server(a, r);
    else if (kind == OF_SERVER && (events & EPOLLIN) != 0)
        is_alive = relay_read_server(r);
    step(a, r, is_alive, now_ms);
}

/* ---- new connections ---- */

static bool is_replaced_first(const struct relay *r, const struct relay *than)
{
    if (r->source->n_connections != than->source->n_connections)
        return r->source->n_connections > than->source->n_connections;
    if ((r->server < 0) != (than->server < 0))
        return r->server < 0;
    return r->active_ms < than->active_ms;
}

static void note_loss(struct admission *a, const struct source *from, bool is_evicted)
{
    pthread_mutex_lock(&a->lock);
    a->losses.n_evicted += is_evicted;
    a->losses.n_rejected += !is_evicted;
    if (from != NULL)
        source_print(from, a->losses.worst, sizeof(a->losses.worst));
    pthread_mutex_unlock(&a->lock);
}

static void evict_one(struct admission *a)
{
    struct relay *victim = NULL;

    for (struct relay *r = a->all; r != NULL; r = r->next)
        if (!r->is_closed && r->source != NULL && (victim == NULL || is_replaced_first(r, victim)))
            victim = r;
    if (victim == NULL)
        return;
    note_loss(a, victim->source, true);
    close_relay(a, victim);
}

static void set_options(int fd)
{
    int one = 1, silent_ms = SILENT_MS;

    /* These options are not essential: without them the connection is slower, or lives longer after
       its host died. */
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    (void)setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &silent_ms, sizeof(silent_ms));
}

static void add_relay(struct admission *a, int fd, const struct sockaddr_storage *from,
                      uint64_t now_ms)
{
    struct source *source = source_find(&a->sources, from, now_ms);
    struct relay *r = source != NULL ? calloc(1, sizeof(*r)) : NULL;
    struct epoll_event e = { .events = EPOLLIN, .data.u64 = tagged(r, OF_CLIENT) };

    if (r == NULL || epoll_ctl(a->epoll, EPOLL_CTL_ADD, fd, &e) < 0) {
        note_loss(a, source, false);
        close(fd);
        free(r);
        return;
    }
    set_options(fd);
    relay_init(r, source, a->tls, fd, now_ms);
    r->client_events = EPOLLIN;
    source->n_connections++;
    a->n_relays++;
    append_relay(a, r);
}

static void on_listener(struct admission *a, int listener, uint64_t now_ms)
{
    enum { ROUND = 64 }; /* further connections are accepted in the next round */

    for (uint32_t i = 0; i < ROUND; i++) {
        struct sockaddr_storage from = { 0 };
        socklen_t n = sizeof(from);
        int fd = accept4(listener, (struct sockaddr *)&from, &n, SOCK_NONBLOCK | SOCK_CLOEXEC);

        if (fd < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)) {
            evict_one(a);
            return;
        }
        if (fd < 0)
            return;
        if (a->n_relays >= a->most)
            evict_one(a);
        add_relay(a, fd, &from, now_ms);
    }
}

/* ---- time ---- */

/* Resumes paused clients in turns: a client that was served moves to the end of the list. */
static void resume(struct admission *a, uint64_t now_ms)
{
    struct relay *end = NULL, *next;

    for (struct relay *r = a->all; r != NULL && r != end && a->n_paused > 0; r = next) {
        next = r->next;
        if (!r->is_paused || r->is_closed || !relay_has_allowance(r, now_ms))
            continue;
        pause_relay(a, r, false);
        unlink_relay(a, r);
        append_relay(a, r);
        end = end == NULL ? r : end;
        step(a, r, read_client(a, r, now_ms), now_ms);
    }
}

/* The client has closed its side: it does not wait for its handshake any more. */
static bool has_given_up(const struct relay *r)
{
    struct pollfd p = { .fd = r->client, .events = POLLRDHUP };

    return poll(&p, 1, 0) > 0 && (p.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

/* Begins the handshakes that wait, in the order in which their connections were accepted. */
static void begin_queued(struct admission *a, uint64_t now_ms)
{
    for (struct relay *r = a->all;
         r != NULL && a->n_queued > 0 && a->n_places < ADMISSION_HANDSHAKES; r = r->next)
        if (r->is_queued && !r->is_closed && has_given_up(r)) {
            close_relay(a, r);
        } else if (r->is_queued && !r->is_closed) {
            queue(a, r, false);
            step(a, r, read_client(a, r, now_ms), now_ms);
        }
}

/* Closes expired relays, and ends the places of handshakes. Returns the time until the next deadline in ms. */
static int expire(struct admission *a, uint64_t now_ms)
{
    uint64_t next = now_ms + REPORT_MS;

    for (struct relay *r = a->all; r != NULL; r = r->next) {
        if (r->is_closed)
            continue;
        if (r->place_until_ms != 0 && r->place_until_ms <= now_ms)
            release_place(a, r);
        if (r->place_until_ms != 0 && r->place_until_ms < next)
            next = r->place_until_ms;
        if (r->until_ms == 0)
            continue;
        if (r->until_ms <= now_ms)
            close_relay(a, r);
        else if (r->until_ms < next)
            next = r->until_ms;
    }
    if (a->n_queued > 0 && a->n_places < ADMISSION_HANDSHAKES)
        return 0; /* a place has become free */
    return a->n_paused > 0 ? TICK_MS : (int)(next - now_ms);
}

bool admission_report(struct admission *a, uint64_t now_ms, char *text, size_t size)
{
    bool is_due;

    pthread_mutex_lock(&a->lock);
    is_due = a->losses.n_evicted + a->losses.n_rejected + a->losses.n_insecure > 0 &&
             now_ms >= a->losses.report_ms;
    if (is_due && a->losses.n_evicted + a->losses.n_rejected == 0) {
        snprintf(text, size, "control port: %llu connections were refused, the last from %s: %s",
                 (unsigned long long)a->losses.n_insecure, a->losses.insecure, a->losses.why);
        a->losses.report_ms = now_ms + REPORT_MS;
        a->losses.n_insecure = 0;
    } else if (is_due) {
        snprintf(text, size,
                 "control port: %llu connections were replaced by new ones (the last from %s) and %llu rejected: "
                 "the limit is %u; restrict the port with a firewall",
                 (unsigned long long)a->losses.n_evicted, a->losses.worst, (unsigned long long)a->losses.n_rejected, a->most);
        a->losses.report_ms = now_ms + REPORT_MS;
        a->losses.n_evicted = a->losses.n_rejected = 0;
    }
    pthread_mutex_unlock(&a->lock);
    return is_due;
}

static void close_listeners(struct admission *a)
{
    for (; a->n_listeners > 0; a->n_listeners--)
        close(a->listeners[a->n_listeners - 1]);
}

/* Adds a connection that this task opened. */
static void add_opened(struct admission *a, struct relay *r, uint64_t now_ms)
{
    struct epoll_event client = { .data.u64 = tagged(r, OF_CLIENT) };
    struct epoll_event server = { .data.u64 = tagged(r, OF_SERVER) };

    append_relay(a, r);
    if (epoll_ctl(a->epoll, EPOLL_CTL_ADD, r->client, &client) < 0 ||
        epoll_ctl(a->epoll, EPOLL_CTL_ADD, r->server, &server) < 0)
        close_relay(a, r);
    else
        step(a, r, true, now_ms);
}

/* Another thread added a connection, or stops or ends the admission. Other events of the round may
 * refer to a listener, so n_listeners is 0 after the stop. */
static void on_wake(struct admission *a, uint64_t now_ms)
{
    struct relay *opened, *next;
    bool has_stopped;
    uint64_t count;

    (void)!read(a->wake, &count, sizeof(count)); /* resets the eventfd */
    pthread_mutex_lock(&a->lock);
    opened = a->opened;
    a->opened = NULL;
    has_stopped = a->has_stopped;
    pthread_mutex_unlock(&a->lock);
    for (; opened != NULL; opened = next) {
        next = opened->next;
        add_opened(a, opened, now_ms);
    }
    if (has_stopped)
        close_listeners(a);
}

static void round_of(struct admission *a, const struct epoll_event *events, int n, uint64_t now_ms)
{
    for (int i = 0; i < n; i++) {
        void *of = (void *)(uintptr_t)(events[i].data.u64 & ~(uint64_t)KIND_MASK);
        unsigned kind = (unsigned)(events[i].data.u64 & KIND_MASK);

        if (of == NULL)
            on_wake(a, now_ms);
        else if (kind != OF_LISTENER)
            on_event(a, of, kind, events[i].events, now_ms);
        else if (a->n_listeners > 0)
            on_listener(a, *(int *)of, now_ms);
    }
}

static void *run(void *arg)
{
    struct admission *a = arg;
    struct epoll_event events[EVENTS_MAX];
    uint64_t end_ms = 0;
    int wait_ms = REPORT_MS;

    while (end_ms == 0 || (a->all != NULL && clock_ms() < end_ms)) {
        int n = epoll_wait(a->epoll, events, EVENTS_MAX, wait_ms);
        uint64_t now_ms = clock_ms();

        round_of(a, events, n, now_ms);
        resume(a, now_ms);
        begin_queued(a, now_ms);
        wait_ms = expire(a, now_ms);
        free_closed(a);
        if (cancel_requested(&a->end)) {
            end_ms = end_ms == 0 ? now_ms + END_MS : end_ms;
            wait_ms = TICK_MS;
        }
    }
    return NULL;
}

/* ---- opening ---- */

static int listen_all(struct admission *a, const char *where, struct err *err)
{
    int rc = listen_on_all(where, a->listeners, &a->n_listeners, err);

    for (uint32_t i = 0; i < a->n_listeners && rc == 0; i++) {
        struct epoll_event e = { .events = EPOLLIN, .data.u64 = tagged(&a->listeners[i], OF_LISTENER) };

        if (epoll_ctl(a->epoll, EPOLL_CTL_ADD, a->listeners[i], &e) < 0)
            rc = err_sys(err, errno, "listen on %s", where);
    }
    return rc;
}

/* Returns the limit of connections. Each uses two descriptors of the relay and one of gRPC. A
 * quarter of the limit stays free. */
static uint32_t limit_of(uint32_t tasks)
{
    uint64_t most = CONNECTIONS_MIN + (uint64_t)tasks * 8;
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
        limit.rlim_cur / 4 < most)
        most = limit.rlim_cur / 4;
    return most < 8 ? 8 : (uint32_t)most;
}

static int open_all(struct admission *a, const struct admission_opts *opts, struct err *err)
{
    struct epoll_event wake = { .events = EPOLLIN };
    int rc;

    a->epoll = epoll_create1(EPOLL_CLOEXEC);
    a->wake = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (a->epoll < 0 || a->wake < 0 || epoll_ctl(a->epoll, EPOLL_CTL_ADD, a->wake, &wake) < 0)
        return err_sys(err, errno, "listen on %s", opts->listen);
    rc = listen_all(a, opts->listen, err);
    return rc < 0 ? rc : thread_start(&a->thread, "admits connections", run, a, err);
}

static void free_all(struct admission *a)
{
    struct relay *next;

    for (struct relay *r = a->opened; r != NULL; r = next) { /* the thread has not seen them */
        next = r->next;
        append_relay(a, r);
    }
    for (struct relay *r = a->all; r != NULL; r = r->next)
        close_relay(a, r);
    free_closed(a);
    close_listeners(a);
    if (a->wake >= 0)
        close(a->wake);
    if (a->epoll >= 0)
        close(a->epoll);
    (void)pthread_mutex_destroy(&a->lock);
    free(a);
}

int admission_open(const struct admission_opts *opts, struct admission **out, struct err *err)
{
    struct admission *a = calloc(1, sizeof(*a));
    int rc;

    if (a == NULL)
        return err_set(err, ERR_NOMEM, "listen on %s: out of memory", opts->listen);
    (void)pthread_mutex_init(&a->lock, NULL); /* cannot fail for a default mutex */
    a->last = &a->all;
    a->most = limit_of(opts->tasks);
    a->tls = opts->tls;
    a->accept = opts->accept;
    a->arg = opts->arg;
    rc = open_all(a, opts, err);
    if (rc < 0) {
        free_all(a);
        return rc;
    }
    *out = a;
    return 0;
}

static void wake(struct admission *a)
{
    uint64_t one = 1;

    /* cannot fail: the counter of the eventfd is far below its limit */
    (void)!write(a->wake, &one, sizeof(one));
}

int admission_relay(struct admission *a, int fd, struct tls_stream *tls)
{
    struct relay *r = calloc(1, sizeof(*r));
    int pair[2];

    if (r == NULL || socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair) < 0) {
        int error = r == NULL ? ENOMEM : errno;

        free(r);
        tls_stream_free(tls);
        close(fd);
        errno = error;
        return -1;
    }
    *r = (struct relay){ .client = fd, .server = pair[0], .tls = tls, .has_begun = true };
    pthread_mutex_lock(&a->lock);
    r->next = a->opened;
    a->opened = r;
    pthread_mutex_unlock(&a->lock);
    wake(a);
    return pair[1];
}

void admission_stop(struct admission *a)
{
    pthread_mutex_lock(&a->lock);
    a->has_stopped = true;
    pthread_mutex_unlock(&a->lock);
    wake(a);
}

void admission_close(struct admission *a)
{
    if (a == NULL)
        return;
    cancel_set(&a->end, true);
    admission_stop(a);
    (void)pthread_join(a->thread, NULL);
    free_all(a);
}
