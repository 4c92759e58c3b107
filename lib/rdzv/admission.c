/* admission.c - see admission.h. One thread with one epoll set.
 *
 *     accepted --TLS handshake--> secured
 *     accepted or secured --preface--> relayed <--paused (no allowance)-->  ... either side closes: flushed,
 *     freed
 *
 * A relay has one buffer for each direction. A side is read only while the buffer of its direction
 * is empty. */
#include "rdzv/admission.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/cancel.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/thread.h"
#include "rdzv/frames.h"
#include "rdzv/listen.h"
#include "tls/tls.h"

enum {
    EVENTS_MAX = 64,
    CONNECTIONS_MIN = 256, /* plus 8 for each task */
    SOURCES_MAX = 1024,
    BUFFER_BYTES = 16384,
    CHUNK_BYTES = 512, /* read at once from a client without allowance of its own */
    PREFACE_MS = 5000,
    FLUSH_MS = 5000, /* limit for the bytes that remain after one side has closed */
    TICK_MS = 10,    /* wait while a connection is paused */
    SILENT_MS = 20000,
    REPORT_MS = 10000,
    END_MS = 500,
    UNSENT_MAX = 1 << 20, /* bytes that gRPC wrote before it closed its end, and that are still
                             sent */
};

/* Units per second, and the largest saved allowance, of a connection and of a source. A task sends
 * about 10 small frames per second. */
static const double own_rate = 50, own_most = 500, shared_rate = 1000, shared_most = 2000;
static const double connection_cost = 10; /* of a new transport of gRPC */
static const double handshake_cost = 15;  /* of TLS: 1.7 ms of a core; 66 a second from a source */
enum { TLS_HANDSHAKE = 22 };              /* first byte of a connection under TLS */

struct source {
    uint8_t address[16]; /* IPv4 as ::ffff:a.b.c.d; IPv6: the first 64 bits */
    uint32_t n_connections;
    double saved; /* allowance in units */
    uint64_t at_ms; /* time of the last update of `saved` */
};

struct flow { /* one direction */
    uint8_t *bytes; /* owned; NULL: empty */
    size_t from, to;
    bool is_over; /* the side that writes into the flow has closed */
};

struct relay {
    struct relay *next, **link; /* list of all relays, in the order of their turns */
    struct source *source;      /* NULL: this task opened the connection */
    int client, server; /* TCP socket; end of the socket pair, or -1 before the preface */
    struct tls_stream *tls; /* owned; NULL: clear text */
    bool has_begun;         /* the first byte was seen */
    bool is_securing;       /* the TLS handshake is not complete */
    uint32_t client_events, server_events; /* watched by epoll */
    struct flow up, down; /* from client to gRPC; from gRPC to client */
    bool is_server_done;  /* gRPC has closed its end, and all bytes that it wrote are in `down` */
    struct frames frames;
    double saved;       /* allowance in units; negative: a debt */
    uint64_t at_ms;     /* time of the last update of `saved` */
    uint64_t active_ms; /* the last time at which the client sent bytes */
    uint64_t until_ms;  /* the relay is closed at this time; 0: no limit */
    bool is_paused;
    bool is_closed; /* freed at the end of the round */
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
    struct source sources[SOURCES_MAX];
    uint32_t n_sources;
    bool has_closed; /* a closed relay must be freed */
    pthread_mutex_t lock; /* held while a connection is passed to gRPC, and for the fields of the
                             report */
    bool has_stopped;     /* under `lock`: no more connections are passed to gRPC */
    struct relay *opened; /* under `lock`: connections of this task that the thread has not seen */
    struct cancel end;    /* set by another thread, which then writes to `wake` */
    /* for the report; under `lock` */
    uint64_t report_ms, n_evicted, n_rejected;
    char worst[64]; /* the last source that lost a connection */
    uint64_t n_insecure;      /* handshakes of TLS that failed */
    char insecure[64], why[256]; /* source and reason of the last one */
};

/* The lowest bits of the pointer in an epoll event tell its type. */
enum { OF_CLIENT = 0, OF_SERVER = 1, OF_LISTENER = 2, KIND_MASK = 3 };

static uint64_t tagged(void *of, unsigned kind)
{
    return (uint64_t)(uintptr_t)of | kind;
}

/* ---- sources ---- */

static void address_of(const struct sockaddr_storage *a, uint8_t out[16])
{
    memset(out, 0, 16);
    if (a->ss_family == AF_INET) {
        const struct sockaddr_in *v4 = (const struct sockaddr_in *)a;

        out[10] = out[11] = 0xff;
        memcpy(out + 12, &v4->sin_addr, 4);
    } else if (a->ss_family == AF_INET6) {
        const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)a;

        memcpy(out, &v6->sin6_addr, IN6_IS_ADDR_V4MAPPED(&v6->sin6_addr) ? 16 : 8);
    }
}

static double refilled(double saved, uint64_t *at_ms, uint64_t now_ms, double rate, double most)
{
    saved += (double)(now_ms - *at_ms) * 1e-3 * rate;
    *at_ms = now_ms;
    return saved < most ? saved : most;
}

/* Returns the record of an address. If the table is full, replaces the unused record with the
 * oldest use. NULL: all records are in use. */
static struct source *source_of(struct admission *a, const struct sockaddr_storage *from, uint64_t now_ms)
{
    uint8_t address[16];
    struct source *oldest = NULL;

    address_of(from, address);
    for (uint32_t i = 0; i < a->n_sources; i++) {
        struct source *s = &a->sources[i];

        if (memcmp(s->address, address, sizeof(address)) == 0)
            return s;
        if (s->n_connections == 0 && (oldest == NULL || s->at_ms < oldest->at_ms))
            oldest = s;
    }
    if (a->n_sources < SOURCES_MAX)
        oldest = &a->sources[a->n_sources++];
    if (oldest != NULL) {
        *oldest = (struct source){ .saved = shared_most, .at_ms = now_ms };
        memcpy(oldest->address, address, sizeof(address));
    }
    return oldest;
}

static void print_source(const struct source *s, char *out, size_t size)
{
    static const uint8_t v4[12] = { [10] = 0xff, [11] = 0xff };
    const uint8_t *b = s->address;

    if (memcmp(b, v4, sizeof(v4)) == 0)
        snprintf(out, size, "%u.%u.%u.%u", b[12], b[13], b[14], b[15]);
    else
        snprintf(out, size, "%x:%x:%x:%x::/64", b[0] << 8 | b[1], b[2] << 8 | b[3], b[4] << 8 | b[5], b[6] << 8 | b[7]);
}

/* ---- the epoll set ---- */

static void watch(struct admission *a, struct relay *r, int fd, uint32_t *watched, uint32_t wanted, unsigned kind)
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

/* Closes the sockets. Other events of this round may refer to the relay, so it is freed after the
 * round. */
static void close_relay(struct admission *a, struct relay *r)
{
    if (r->is_closed)
        return;
    r->is_closed = a->has_closed = true;
    pause_relay(a, r, false);
    tls_stream_free(r->tls);
    r->tls = NULL;
    close(r->client);
    if (r->server >= 0)
        close(r->server);
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
        free(r->up.bytes);
        free(r->down.bytes);
        free(r);
    }
    a->has_closed = false;
}

/* Returns true if the client may send; this task always may. A debt of the relay is paid from its own allowance, then
 * from that of its source. */
static bool has_allowance(struct relay *r, uint64_t now_ms)
{
    struct source *s = r->source;

    if (s == NULL)
        return true;
    r->saved = refilled(r->saved, &r->at_ms, now_ms, own_rate, own_most);
    s->saved = refilled(s->saved, &s->at_ms, now_ms, shared_rate, shared_most);
    if (r->saved < 0 && s->saved > 0) {
        double paid = -r->saved < s->saved ? -r->saved : s->saved;

        r->saved += paid;
        s->saved -= paid;
    }
    return r->saved >= 0;
}

static bool is_transient(int error)
{
    return error == EAGAIN || error == EWOULDBLOCK || error == EINTR;
}

/* Writes the bytes of the flow to a socket, or to its stream. Returns false if the other side has
 * closed. */
static bool flush(struct flow *f, int to, struct tls_stream *tls)
{
    while (f->bytes != NULL) {
        const uint8_t *bytes = f->bytes + f->from;
        size_t rest = f->to - f->from;
        ssize_t n = tls != NULL ? tls_stream_send(tls, bytes, rest)
                                : send(to, bytes, rest, MSG_NOSIGNAL | MSG_DONTWAIT);

        if (n < 0)
            return is_transient(errno);
        f->from += (size_t)n;
        if (f->from == f->to) {
            free(f->bytes);
            f->bytes = NULL;
        }
    }
    return true;
}

/* Reads at most `most` bytes into the empty buffer of the flow. Returns -1 for an error, 0 if there
 * are no bytes now or at the end. */
static ssize_t fill(struct flow *f, int from, struct tls_stream *tls, size_t most)
{
    uint8_t bytes[BUFFER_BYTES];
    ssize_t n = tls != NULL ? tls_stream_recv(tls, bytes, most) : recv(from, bytes, most, MSG_DONTWAIT);

    if (n < 0)
        return is_transient(errno) ? 0 : -1;
    if (n == 0) {
        f->is_over = true;
        return 0;
    }
    f->bytes = malloc((size_t)n);
    if (f->bytes == NULL)
        return -1;
    memcpy(f->bytes, bytes, (size_t)n);
    f->from = 0;
    f->to = (size_t)n;
    return n;
}

/* gRPC has closed its end. epoll would report that without end, so the remaining bytes are read at
 * once. */
static bool finish_server(struct admission *a, struct relay *r)
{
    uint8_t *all = r->down.bytes;
    size_t n = all != NULL ? r->down.to : 0;
    ssize_t got = 0;

    for (size_t size = n + BUFFER_BYTES; size <= UNSENT_MAX; size = n + BUFFER_BYTES) {
        uint8_t *grown = realloc(all, size);

        if (grown == NULL)
            break;
        all = grown;
        got = recv(r->server, all + n, size - n, MSG_DONTWAIT);
        if (got <= 0)
            break;
        n += (size_t)got;
    }
    if (r->down.bytes == NULL)
        r->down.from = 0;
    r->down.bytes = all;
    r->down.to = n;
    if (r->down.from == n) {
        free(all);
        r->down.bytes = NULL;
    }
    r->down.is_over = r->is_server_done = true;
    return epoll_ctl(a->epoll, EPOLL_CTL_DEL, r->server, NULL) == 0;
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
    r->server = pair[0];
    r->server_events = 0;
    r->until_ms = 0;
    r->saved -= connection_cost;
    pthread_mutex_lock(&a->lock);
    is_handed = !a->has_stopped;
    if (is_handed)
        a->accept(a->arg, pair[1], r->tls != NULL ? tls_stream_peer(r->tls) : NULL);
    pthread_mutex_unlock(&a->lock);
    if (!is_handed)
        close(pair[1]);
    return is_handed;
}

/* Returns the number of bytes that are read from the client at once: all of a payload, and as many
 * frames as the allowance covers. */
static size_t chunk_of(const struct relay *r)
{
    size_t n = CHUNK_BYTES + r->frames.rest + (size_t)(r->saved > 0 ? r->saved : 0) * FRAMES_HEAD_BYTES;

    return n < BUFFER_BYTES ? n : BUFFER_BYTES;
}

/* Inserts the part of the preface that was read before in front of the bytes. */
static bool restore_preface(struct flow *f, size_t n)
{
    uint8_t *whole = malloc(n + f->to);

    if (whole == NULL)
        return false;
    memcpy(whole, frames_preface, n);
    memcpy(whole + n, f->bytes, f->to);
    free(f->bytes);
    f->bytes = whole;
    f->to += n;
    return true;
}

enum readiness { READY, WAITS, ENDED };

/* Decides by the first byte whether the connection is under TLS. */
static enum readiness begin(struct admission *a, struct relay *r)
{
    uint8_t first;
    ssize_t n = recv(r->client, &first, 1, MSG_DONTWAIT | MSG_PEEK);

    if (n <= 0)
        return n < 0 && is_transient(errno) ? WAITS : ENDED;
    r->has_begun = true;
    if (first != TLS_HANDSHAKE || a->tls == NULL)
        return READY;
    if (tls_stream_new(a->tls, TLS_SERVER, r->client, NULL, &r->tls, NULL) < 0)
        return ENDED;
    r->saved -= handshake_cost;
    r->is_securing = true;
    return READY;
}

/* Continues the TLS handshake. */
static enum readiness secure(struct admission *a, struct relay *r)
{
    struct err err;
    int rc = tls_stream_handshake(r->tls, &err);

    r->is_securing = rc == 0;
    if (rc >= 0)
        return rc == 0 ? WAITS : READY;
    pthread_mutex_lock(&a->lock);
    a->n_insecure++;
    print_source(r->source, a->insecure, sizeof(a->insecure));
    snprintf(a->why, sizeof(a->why), "%.255s", err.text);
    pthread_mutex_unlock(&a->lock);
    return ENDED;
}

/* Returns READY if the bytes of the client can be read. */
static enum readiness prepare(struct admission *a, struct relay *r, uint64_t now_ms)
{
    enum readiness is = READY;

    if (r->up.bytes != NULL || r->up.is_over)
        return WAITS;
    if (!has_allowance(r, now_ms)) {
        pause_relay(a, r, true);
        return WAITS;
    }
    if (!r->has_begun)
        is = begin(a, r);
    return is == READY && r->is_securing ? secure(a, r) : is;
}

/* Counts the frames of a client. Returns false if the relay must end. */
static bool admit(struct admission *a, struct relay *r, size_t n)
{
    uint8_t n_before = r->frames.n_preface;
    double cost = 0;

    if (!frames_read(&r->frames, r->up.bytes, n, &cost))
        return false;
    r->saved -= cost;
    if (r->server >= 0)
        return true;
    if (frames_has_preface(&r->frames))
        return restore_preface(&r->up, n_before) && hand_over(a, r);
    free(r->up.bytes); /* a part of the preface: its content is known */
    r->up.bytes = NULL;
    return true;
}

/* Returns false if the relay must end. */
static bool read_client(struct admission *a, struct relay *r, uint64_t now_ms)
{
    enum readiness is = prepare(a, r, now_ms);
    ssize_t n;

    if (is != READY)
        return is == WAITS;
    n = fill(&r->up, r->client, r->tls, r->source != NULL ? chunk_of(r) : BUFFER_BYTES);
    if (n < 0)
        return false;
    if (n == 0)
        return !r->up.is_over || r->server >= 0;
    r->active_ms = now_ms;
    return r->source == NULL || admit(a, r, (size_t)n);
}

/* Flushes both directions, and reads bytes that TLS has decrypted already, for which no event comes.
 * Returns false if the relay must end. */
static bool advance(struct admission *a, struct relay *r, uint64_t now_ms)
{
    for (;;) {
        if (!flush(&r->up, r->server, NULL) || !flush(&r->down, r->client, r->tls))
            return false;
        if (r->tls == NULL || r->is_securing || r->is_paused || r->up.bytes != NULL || r->up.is_over ||
            !tls_stream_has_bytes(r->tls))
            return true;
        if (!read_client(a, r, now_ms))
            return false;
        if (r->up.bytes == NULL)
            return true; /* a part of a record or of the preface */
    }
}

/* Flushes both directions. After the client has closed, bytes for it are discarded; after gRPC has
 * closed, its last bytes are still sent. */
static void step(struct admission *a, struct relay *r, uint64_t now_ms)
{
    if (!advance(a, r, now_ms) || (r->up.is_over && r->up.bytes == NULL) || (r->down.is_over && r->down.bytes == NULL)) {
        close_relay(a, r);
        return;
    }
    if ((r->up.is_over || r->down.is_over) && r->until_ms == 0)
        r->until_ms = now_ms + FLUSH_MS;
    update(a, r);
}

static void on_event(struct admission *a, struct relay *r, unsigned kind, uint32_t events, uint64_t now_ms)
{
    bool is_alive = true;

    if (r->is_closed)
        return;
    if (kind == OF_CLIENT && (r->is_securing || (events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0))
        is_alive = (events & (EPOLLERR | EPOLLHUP)) == 0 ? read_client(a, r, now_ms) : false;
    else if (kind == OF_SERVER && (events & (EPOLLHUP | EPOLLERR)) != 0)
        is_alive = finish_server(a, r);
    else if (kind == OF_SERVER && (events & EPOLLIN) != 0 && r->down.bytes == NULL)
        is_alive = fill(&r->down, r->server, NULL, BUFFER_BYTES) >= 0;
    if (is_alive)
        step(a, r, now_ms);
    else
        close_relay(a, r);
}

/* ---- new connections ---- */

static bool has_more(const struct relay *r, const struct relay *than)
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
    a->n_evicted += is_evicted;
    a->n_rejected += !is_evicted;
    if (from != NULL)
        print_source(from, a->worst, sizeof(a->worst));
    pthread_mutex_unlock(&a->lock);
}

static void evict_one(struct admission *a)
{
    struct relay *victim = NULL;

    for (struct relay *r = a->all; r != NULL; r = r->next)
        if (!r->is_closed && r->source != NULL && (victim == NULL || has_more(r, victim)))
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

static void add_relay(struct admission *a, int fd, const struct sockaddr_storage *from, uint64_t now_ms)
{
    struct source *source = source_of(a, from, now_ms);
    struct relay *r = source != NULL ? calloc(1, sizeof(*r)) : NULL;
    struct epoll_event e = { .events = EPOLLIN, .data.u64 = tagged(r, OF_CLIENT) };

    if (r == NULL || epoll_ctl(a->epoll, EPOLL_CTL_ADD, fd, &e) < 0) {
        note_loss(a, source, false);
        close(fd);
        free(r);
        return;
    }
    set_options(fd);
    *r = (struct relay){ .source = source, .client = fd, .server = -1, .client_events = EPOLLIN, .at_ms = now_ms,
                         .active_ms = now_ms, .until_ms = now_ms + PREFACE_MS };
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
        if (!r->is_paused || r->is_closed || !has_allowance(r, now_ms))
            continue;
        pause_relay(a, r, false);
        unlink_relay(a, r);
        append_relay(a, r);
        end = end == NULL ? r : end;
        if (read_client(a, r, now_ms))
            step(a, r, now_ms);
        else
            close_relay(a, r);
    }
}

/* Closes expired relays. Returns the time until the next deadline in ms. */
static int expire(struct admission *a, uint64_t now_ms)
{
    uint64_t next = now_ms + REPORT_MS;

    for (struct relay *r = a->all; r != NULL; r = r->next) {
        if (r->is_closed || r->until_ms == 0)
            continue;
        if (r->until_ms <= now_ms)
            close_relay(a, r);
        else if (r->until_ms < next)
            next = r->until_ms;
    }
    return a->n_paused > 0 ? TICK_MS : (int)(next - now_ms);
}

bool admission_report(struct admission *a, uint64_t now_ms, char *text, size_t size)
{
    bool is_due;

    pthread_mutex_lock(&a->lock);
    is_due = a->n_evicted + a->n_rejected + a->n_insecure > 0 && now_ms >= a->report_ms;
    if (is_due && a->n_evicted + a->n_rejected == 0) {
        snprintf(text, size, "control port: %llu connections were refused, the last from %s: %s",
                 (unsigned long long)a->n_insecure, a->insecure, a->why);
        a->report_ms = now_ms + REPORT_MS;
        a->n_insecure = 0;
    } else if (is_due) {
        snprintf(text, size,
                 "control port: %llu connections were replaced by new ones (the last from %s) and %llu rejected: "
                 "the limit is %u; restrict the port with a firewall",
                 (unsigned long long)a->n_evicted, a->worst, (unsigned long long)a->n_rejected, a->most);
        a->report_ms = now_ms + REPORT_MS;
        a->n_evicted = a->n_rejected = 0;
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
        step(a, r, now_ms);
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
        wait_ms = expire(a, now_ms);
        free_closed(a);
        if (cancel_asked(&a->end)) {
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

    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY && limit.rlim_cur / 4 < most)
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
