#include "preflight/conn.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <linux/sockios.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/err.h"
#include "tls/tls.h"

enum { SMALL_SEGMENT = 536, DEAD_MS = 5000 };

int conn_wait(const struct conn *c, short events, uint64_t until_ms)
{
    for (;;) {
        struct pollfd p = { .fd = c->fd, .events = events };
        uint64_t now_ms = clock_ms();
        int ms = now_ms >= until_ms                  ? 0
                 : until_ms - now_ms < CONN_SLICE_MS ? (int)(until_ms - now_ms)
                                                     : CONN_SLICE_MS;
        int rc;

        if (atomic_load(c->stop))
            return -ECANCELED;
        rc = poll(&p, 1, ms);
        if (rc > 0)
            return 0;
        if (rc < 0 && errno != EINTR)
            return -errno;
        if (now_ms >= until_ms)
            return -ETIMEDOUT;
    }
}

static void prepare(int fd, bool small)
{
    int on = 1, segment = SMALL_SEGMENT;
    unsigned dead_ms = DEAD_MS;

    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    if (small) {
        (void)setsockopt(fd, IPPROTO_TCP, TCP_MAXSEG, &segment, sizeof(segment));
        (void)setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &dead_ms, sizeof(dead_ms));
        (void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
        (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &on, sizeof(on));
        (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &on, sizeof(on));
    }
}

enum preflight_reach conn_dial(const struct sockaddr_storage *to, socklen_t bytes, bool small,
                               uint64_t until_ms, const atomic_bool *stop, struct conn *out)
{
    struct conn c = { .fd = socket(to->ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), .stop = stop };
    int why = 0;
    socklen_t n = sizeof(why);

    out->fd = -1;
    out->tls = NULL;
    if (c.fd < 0)
        return PREFLIGHT_SILENT;
    prepare(c.fd, small);
    if (connect(c.fd, (const struct sockaddr *)to, bytes) < 0 && errno != EINPROGRESS)
        why = errno;
    else if (conn_wait(&c, POLLOUT, until_ms) < 0)
        why = ETIMEDOUT;
    else if (getsockopt(c.fd, SOL_SOCKET, SO_ERROR, &why, &n) < 0)
        why = errno;
    if (why != 0) {
        close(c.fd);
        return why == ECONNREFUSED || why == ECONNRESET ? PREFLIGHT_REFUSED : PREFLIGHT_SILENT;
    }
    *out = c;
    return PREFLIGHT_REACHED;
}

enum preflight_reach conn_secure(struct conn *c, struct tls *tls, const char *host,
                                 uint64_t until_ms)
{
    struct err err;
    int rc =
        tls_stream_new(tls, host != NULL ? TLS_CLIENT : TLS_SERVER, c->fd, host, &c->tls, &err);

    if (rc < 0)
        return PREFLIGHT_DENIED;
    while ((rc = tls_stream_handshake(c->tls, &err)) == 0)
        if (conn_wait(c, tls_stream_events(c->tls), until_ms) < 0)
            return PREFLIGHT_FOREIGN;
    return rc > 0 ? PREFLIGHT_REACHED : rc == ERR_AUTH ? PREFLIGHT_DENIED : PREFLIGHT_FOREIGN;
}

uint64_t conn_acknowledged(const struct conn *c, uint64_t sent)
{
    int waiting = 0;

    return ioctl(c->fd, SIOCOUTQ, &waiting) == 0 && (uint64_t)waiting <= sent
               ? sent - (uint64_t)waiting
               : 0;
}

void conn_close(struct conn *c)
{
    tls_stream_free(c->tls);
    c->tls = NULL;
    if (c->fd >= 0)
        close(c->fd);
    c->fd = -1;
}

static short events_of(const struct conn *c, short clear)
{
    return c->tls != NULL ? tls_stream_events(c->tls) : clear;
}

int conn_send(struct conn *c, const void *bytes, size_t n, uint64_t until_ms)
{
    const char *at = bytes;

    while (n > 0) {
        ssize_t k =
            c->tls != NULL ? tls_stream_send(c->tls, at, n) : send(c->fd, at, n, MSG_NOSIGNAL);
        int rc;

        if (k > 0) {
            at += k;
            n -= (size_t)k;
            continue;
        }
        if (k < 0 && errno != EAGAIN && errno != EINTR)
            return -errno;
        rc = conn_wait(c, events_of(c, POLLOUT), until_ms);
        if (rc < 0)
            return rc;
    }
    return 0;
}

int conn_recv(struct conn *c, void *bytes, size_t n, uint64_t until_ms)
{
    char *at = bytes;

    while (n > 0) {
        ssize_t k = c->tls != NULL ? tls_stream_recv(c->tls, at, n) : recv(c->fd, at, n, 0);
        int rc;

        if (k == 0)
            return -ECONNRESET;
        if (k > 0) {
            at += k;
            n -= (size_t)k;
            continue;
        }
        if (errno != EAGAIN && errno != EINTR)
            return -errno;
        rc = conn_wait(c, events_of(c, POLLIN), until_ms);
        if (rc < 0)
            return rc;
    }
    return 0;
}

int conn_recv_message(struct conn *c, enum message_kind *kind, struct buf *body, uint64_t until_ms)
{
    uint8_t head[MESSAGE_HEAD], part[4096];
    uint32_t n;
    int rc = conn_recv(c, head, sizeof(head), until_ms);

    buf_reset(body);
    if (rc < 0)
        return rc;
    if (!message_read_head(head, kind, &n))
        return -EPROTO;
    while (n > 0) { /* memory grows with the bytes that arrive, not with the length that is announced */
        uint32_t some = n < sizeof(part) ? n : (uint32_t)sizeof(part);

        rc = conn_recv(c, part, some, until_ms);
        if (rc < 0)
            return rc;
        buf_add(body, part, some);
        n -= some;
    }
    return body->failed ? -ENOMEM : 0;
}

int conn_ask(struct conn *c, const struct buf *request, enum message_kind kind, struct buf *body,
             uint64_t until_ms)
{
    enum message_kind got = kind;
    int rc = request->failed ? -ENOMEM : conn_send(c, request->data, request->len, until_ms);

    if (rc == 0)
        rc = conn_recv_message(c, &got, body, until_ms);
    return rc == 0 && got != kind ? -EPROTO : rc;
}
