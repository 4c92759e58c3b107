#include "preflight/pair.h"

#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/errno_text.h"
#include "base/ports.h"
#include "base/rng.h"
#include "base/thread.h"
#include "preflight/conn.h"
#include "preflight/resolve.h"

enum {
    NAME_MS = 2000,  /* limit of a name resolution */
    STALL_MS = 2000, /* without an answer the measurement has failed */
    PIECE_BYTES = 256 << 10,
    BACKLOG = 4,
};

struct pair_server {
    int fd; /* owned; the listener */
    uint16_t port;
    uint8_t ticket[MESSAGE_TICKET_BYTES];
    uint64_t until_ms;
    atomic_bool stop;
    pthread_t thread;
};

/* ---- the receiver ---- */

static bool answer_pings(struct conn *c)
{
    char byte;
    int rc = 0;

    for (int i = 0; i < PAIR_PINGS && rc == 0; i++) {
        rc = conn_recv(c, &byte, 1, clock_ms() + STALL_MS);
        if (rc == 0)
            rc = conn_send(c, &byte, 1, clock_ms() + STALL_MS);
    }
    return rc == 0;
}

/* Receives until the sender closes the connection. */
static void receive_all(struct conn *c, char *room)
{
    uint64_t n = 0;

    while (!atomic_load(c->stop) && n <= PAIR_BYTES_MAX) {
        ssize_t k = recv(c->fd, room, PIECE_BYTES, 0);

        if (k == 0 || (k < 0 && errno != EAGAIN && errno != EINTR))
            break;
        if (k > 0)
            n += (uint64_t)k;
        else if (conn_wait(c, POLLIN, clock_ms() + STALL_MS) < 0)
            break;
    }
}

/* Serves a connection. Returns false if it does not present the ticket. */
static bool serve(struct pair_server *s, struct conn *c)
{
    uint8_t head[MESSAGE_DATA_HEAD], ticket[MESSAGE_TICKET_BYTES];
    char *room;
    uint32_t rank;

    if (conn_recv(c, head, sizeof(head), clock_ms() + STALL_MS) < 0 ||
        !message_read_data_head(head, &rank, ticket) ||
        memcmp(ticket, s->ticket, sizeof(ticket)) != 0)
        return false;
    room = malloc(PIECE_BYTES);
    if (room != NULL && conn_send(c, "k", 1, clock_ms() + STALL_MS) == 0 && answer_pings(c))
        receive_all(c, room);
    free(room);
    return true;
}

static void *serve_one(void *arg)
{
    struct pair_server *s = arg;
    bool is_done = false;

    while (!is_done && !atomic_load(&s->stop) && clock_ms() < s->until_ms) {
        struct pollfd p = { .fd = s->fd, .events = POLLIN };
        struct conn c = { .fd = -1, .stop = &s->stop };

        if (poll(&p, 1, CONN_SLICE_MS) <= 0)
            continue;
        c.fd = accept4(s->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (c.fd >= 0)
            is_done = serve(s, &c);
        conn_close(&c);
    }
    return NULL;
}

static int listen_at(struct sockaddr_storage a, socklen_t bytes, uint16_t port)
{
    int fd = socket(a.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), on = 1, why;

    if (fd < 0)
        return -errno;
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (a.ss_family == AF_INET6)
        ((struct sockaddr_in6 *)&a)->sin6_port = htons(port);
    else
        ((struct sockaddr_in *)&a)->sin_port = htons(port);
    if (bind(fd, (const struct sockaddr *)&a, bytes) == 0 && listen(fd, BACKLOG) == 0)
        return fd;
    why = errno;
    close(fd);
    return -why;
}

/* For port_choose(): listens on the first address that permits it; NULL: on every one. */
static int listen_port(void *arg, uint16_t port)
{
    const struct resolved *found = arg;
    int fd = -EADDRNOTAVAIL;

    if (found == NULL)
        return listen_any(port, BACKLOG);
    for (uint32_t i = 0; i < found->n && fd < 0; i++)
        fd = listen_at(found->at[i], found->bytes[i], port);
    return fd;
}

static int open_port(const char *host, uint16_t first, uint16_t last,
                     const struct port_list *others, struct err *err)
{
    struct resolved found = { .n = 0 };
    int fd;

    if (host != NULL)
        resolve_host(host, first, NAME_MS, &found);
    if (host != NULL && found.n == 0)
        return err_set(err, ERR_IO, "%s has no address: %s", host, found.why);
    fd = port_choose(first, last, others, listen_port, host != NULL ? &found : NULL);
    if (fd < 0 && first > 0)
        return err_set(err, ERR_IO, "no port from %u to %u (communication.data_port) is free beside that of the "
                                    "communicator: %s; give a larger range",
                       first, last, errno_text(-fd));
    return fd >= 0 ? fd : err_set(err, ERR_IO, "listen: %s", errno_text(-fd));
}

int pair_serve(const char *host, uint16_t first, uint16_t last, const struct port_list *others,
               struct pair_server **out, struct err *err)
{
    struct pair_server *s = calloc(1, sizeof(*s));
    int rc;

    if (s == NULL)
        return err_set(err, ERR_NOMEM, "out of memory");
    s->until_ms = clock_ms() + PAIR_WAIT_MS;
    rc = rng_os(s->ticket, sizeof(s->ticket)) < 0
             ? err_set(err, ERR_IO, "the system gives no random numbers")
             : open_port(host, first, last, others, err);
    s->fd = rc;
    if (rc >= 0)
        s->port = port_of_socket(rc);
    if (rc >= 0)
        rc = thread_start(&s->thread, "receives a test", serve_one, s, err);
    if (rc < 0) {
        if (s->fd >= 0)
            close(s->fd);
        free(s);
        return rc;
    }
    *out = s;
    return 0;
}

uint16_t pair_port(const struct pair_server *s)
{
    return s->port;
}

const uint8_t *pair_ticket(const struct pair_server *s)
{
    return s->ticket;
}

void pair_close(struct pair_server *s)
{
    if (s == NULL)
        return;
    atomic_store(&s->stop, true);
    pthread_join(s->thread, NULL);
    close(s->fd);
    free(s);
}

/* ---- the sender ---- */

/* The functions of the sender return a negative errno, as those of conn.h. */
static int ping(struct conn *c, struct pair_result *out)
{
    uint64_t best_ns = UINT64_MAX;
    int rc = 0;

    for (int i = 0; i < PAIR_PINGS && rc == 0; i++) {
        uint64_t begin_ns = clock_ns(), took_ns;
        char byte = 'p';

        rc = conn_send(c, &byte, 1, clock_ms() + STALL_MS);
        if (rc == 0)
            rc = conn_recv(c, &byte, 1, clock_ms() + STALL_MS);
        took_ns = clock_ns() - begin_ns;
        best_ns = took_ns < best_ns ? took_ns : best_ns;
    }
    if (rc == 0)
        out->rtt_us = (uint32_t)(best_ns / 1000 + 1);
    return rc;
}

/* Sends, and counts the bytes that have arrived when the time is over: the kernel accepts more than a
 * slow link carries. */
static int send_bulk(struct conn *c, uint32_t ms, uint64_t bytes, struct pair_result *out)
{
    const struct timespec nap = { .tv_nsec = 500000 };
    char *zeros = calloc(1, PIECE_BYTES);
    uint64_t begin_ns = clock_ns(), end_ms = clock_ms() + ms, sent = 0, arrived = 0;
    int rc = zeros != NULL ? 0 : -ENOMEM;

    while (rc == 0 && sent < bytes && clock_ms() < end_ms) {
        uint64_t left = bytes - sent;
        ssize_t k = send(c->fd, zeros, left < PIECE_BYTES ? left : PIECE_BYTES, MSG_NOSIGNAL);

        sent += k > 0 ? (uint64_t)k : 0;
        if (k < 0 && errno != EAGAIN && errno != EINTR)
            rc = -errno;
        else if (k < 0)
            rc = conn_wait(c, POLLOUT, end_ms) == -ECANCELED ? -ECANCELED : 0;
    }
    free(zeros);
    for (arrived = conn_acknowledged(c, sent); rc == 0 && arrived < sent && clock_ms() < end_ms;
         arrived = conn_acknowledged(c, sent))
        nanosleep(&nap, NULL);
    if (rc == 0 && arrived == 0)
        rc = -ETIMEDOUT;
    if (rc == 0)
        out->rate = (uint64_t)((double)arrived * 1e9 / (double)(clock_ns() - begin_ns + 1));
    return rc;
}

static int present_ticket(struct conn *c, const uint8_t ticket[MESSAGE_TICKET_BYTES])
{
    uint8_t head[MESSAGE_DATA_HEAD];
    char ok;
    int rc;

    message_write_data_head(0, ticket, head);
    rc = conn_send(c, head, sizeof(head), clock_ms() + STALL_MS);
    return rc == 0 ? conn_recv(c, &ok, 1, clock_ms() + STALL_MS) : rc;
}

static const char *const reach_text[PREFLIGHT_REACHES] = {
    [PREFLIGHT_REFUSED] = "refuses the connection",
    [PREFLIGHT_SILENT] = "does not answer",
};

static int failed(int rc, const char *host, uint16_t port, struct err *err)
{
    int code = rc == -ETIMEDOUT   ? ERR_TIMEOUT
               : rc == -ECANCELED ? ERR_CANCELED
               : rc == -ENOMEM    ? ERR_NOMEM
                                  : ERR_PEER;

    return err_set(err, code, "measurement of %s port %u: %s", host, port, errno_text(-rc));
}

int pair_measure(const char *host, uint16_t port, const uint8_t ticket[MESSAGE_TICKET_BYTES],
                 uint32_t ms, uint64_t bytes, const atomic_bool *stop, struct pair_result *out,
                 struct err *err)
{
    enum preflight_reach reach = PREFLIGHT_SILENT;
    struct pair_result result;
    struct resolved found;
    struct conn c = { .fd = -1, .stop = stop };
    struct linger reset = { .l_onoff = 1 };
    int rc;

    resolve_host(host, port, NAME_MS, &found);
    if (found.n == 0)
        return err_set(err, ERR_PEER, "%s has no address: %s", host, found.why);
    for (uint32_t i = 0; i < found.n && reach != PREFLIGHT_REACHED; i++)
        reach = conn_dial(&found.at[i], found.bytes[i], false, clock_ms() + STALL_MS / found.n,
                          stop, &c);
    if (atomic_load(stop)) {
        conn_close(&c);
        return err_set(err, ERR_CANCELED, "the task ends");
    }
    if (reach != PREFLIGHT_REACHED)
        return err_set(
            err, ERR_PEER,
            "%s port %u %s; look for a firewall, or give a range in communication.data_port", host,
            port, reach_text[reach]);
    rc = present_ticket(&c, ticket);
    if (rc == 0)
        rc = ping(&c, &result);
    if (rc == 0)
        rc = send_bulk(&c, ms, bytes, &result);
    (void)setsockopt(c.fd, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset)); /* nothing of it is to be sent any more */
    conn_close(&c);
    if (rc < 0)
        return failed(rc, host, port, err);
    *out = result;
    return 0;
}
