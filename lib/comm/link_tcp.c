/* link_tcp.c - one step between ranks of different nodes: sends one range and receives another at
 * the same time, and adds while more arrives.
 *
 * Every exchange begins with a head (message.h) that describes the call and its part, so two ranks
 * that make different calls detect that before any element is changed.
 *
 * In clear text a checksum of the range follows it. The sender computes the checksum of each piece before it sends
 * the piece, the receiver after it has received it, while the piece is in the cache. The receiver adds pieces at
 * once; a checksum that differs ends the generation, whose gradients are then lost, and no step is applied. */
#include "comm/comm_priv.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>

#include "base/bytes.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/crc32c.h"
#include "base/err.h"
#include "base/errno_text.h"
#include "base/fault.h"
#include "comm/reduce.h"
#include "comm/schedule.h"
#include "tls/tls.h"

enum {
    SEND_BYTES = 2 * COMM_PIECE_BYTES, /* per call, so that receiving gets its turn */
    /* Sending may be ahead of receiving by this much. The kernel would accept a whole vector into
       its buffers, and the data would leave the caches: 4 MiB in each direction over loopback took
       three times as long. Sufficient for 100 Gbit/s at a round trip of 80 us. */
    AHEAD_BYTES = 1 << 20,
};

/* One direction of the exchange. */
struct flow {
    int fd; /* -1: nothing to do */
    struct tls_stream *tls; /* NULL: clear text */
    uint32_t rank;
    uint8_t head[MESSAGE_HEAD_SEALED], tail[MESSAGE_SUM_BYTES];
    size_t body, n_tail; /* bytes of the range; of its checksum: 0 without one */
    size_t done, total;  /* bytes, including head and tail */
    size_t summed;       /* bytes of the range of which `sum` is the checksum */
    uint32_t sum;
};

static struct comm_link *link_to(struct comm_rank *r, uint32_t rank)
{
    for (uint32_t i = 0; i < r->n_links; i++)
        if (r->links[i].peer == rank)
            return &r->links[i];
    CHECK(!"a link to every rank that the schedule names");
}

static struct flow flow_of(struct comm_rank *r, uint32_t rank, size_t bytes)
{
    struct flow f = { .fd = -1 };

    if (rank != SCHEDULE_NONE)
        f = (struct flow){ .fd = link_to(r, rank)->fd,
                           .tls = link_to(r, rank)->tls,
                           .rank = rank,
                           .body = bytes };
    f.n_tail = f.fd >= 0 && f.tls == NULL && bytes > 0 ? sizeof(f.tail) : 0;
    f.total = f.fd >= 0 ? sizeof(f.head) + bytes + f.n_tail : 0;
    return f;
}

/* Bytes of the range that were sent or received. */
static size_t body_done(const struct flow *f)
{
    size_t done = f->done > sizeof(f->head) ? f->done - sizeof(f->head) : 0;

    return done < f->body ? done : f->body;
}

/* Adds the next n bytes of the range to the checksum. */
static void add_to_sum(struct flow *f, const uint8_t *bytes, size_t n)
{
    if (f->n_tail == 0)
        return;
    f->sum = crc32c(f->sum, bytes, n);
    f->summed += n;
}

static bool is_done(const struct flow *f)
{
    return f->done == f->total;
}

/* Sending waits for receiving. In a cycle of ranks that all wait, each would have sent more than
 * its successor, which is impossible: so there is no deadlock. */
static bool is_ahead(const struct flow *out, const struct flow *in)
{
    return !is_done(in) && out->done > in->done + AHEAD_BYTES;
}

/* Handles a failed send or receive. Returns 0: try again later. */
static int broken(struct comm *c, const struct flow *f, ssize_t n, int errnum)
{

    if (n == 0)
        return comm_link_lost(c, f->rank, "it closed the connection");
    if (errnum == EAGAIN || errnum == EINTR)
        return 0;
    if (comm_is_path_dead(errnum))
        return comm_path_lost(c, c->topo.member_of[f->rank]);
    return comm_link_lost(c, f->rank, errno_text(errnum));
}

/* Sends bytes of all vectors; under TLS those of the first one alone. */
static ssize_t send_some(const struct flow *f, const struct msghdr *m)
{
    uint8_t *byte = m->msg_iov[m->msg_iovlen / 2].iov_base; /* of the range, if there is some */
    ssize_t n;

    if (fault_hit("comm.send"))
        return errno = ECONNRESET, -1;
    if (f->tls != NULL)
        return tls_stream_send(f->tls, m->msg_iov[0].iov_base, m->msg_iov[0].iov_len);
    if (!fault_hit("comm.flip"))
        return sendmsg(f->fd, m, MSG_NOSIGNAL | MSG_DONTWAIT);
    *byte ^= 1; /* a bit changes on the way */
    n = sendmsg(f->fd, m, MSG_NOSIGNAL | MSG_DONTWAIT);
    *byte ^= 1;
    return n;
}

/* Returns 1 after progress, 0 if it would block, -1 after a failure. */
static int push(struct comm *c, struct flow *f, const uint8_t *data)
{
    struct iovec iov[3];
    struct msghdr m = { .msg_iov = iov };
    size_t at = body_done(f), some = f->body - at < SEND_BYTES ? f->body - at : SEND_BYTES;
    ssize_t n;

    if (f->fd < 0 || is_done(f))
        return 0;
    if (f->done < sizeof(f->head))
        iov[m.msg_iovlen++] =
            (struct iovec){ f->head + f->done, sizeof(f->head) - f->done };
    if (some > 0)
        iov[m.msg_iovlen++] = (struct iovec){ (uint8_t *)data + at, some };
    if (at + some > f->summed)
        add_to_sum(f, data + f->summed, at + some - f->summed);
    if (f->n_tail > 0 && at + some == f->body) {
        size_t sent = f->done > sizeof(f->head) + f->body ? f->done - sizeof(f->head) - f->body : 0;

        bytes_set_u32(f->tail, f->sum);
        iov[m.msg_iovlen++] = (struct iovec){ f->tail + sent, sizeof(f->tail) - sent };
    }
    n = send_some(f, &m);
    if (n <= 0)
        return broken(c, f, n, n < 0 ? errno : EPIPE);
    f->done += (size_t)n;
    return 1;
}

/* Compares the received head with the expected one. Returns 1, or -1 after comm_fail(). */
static int check_head(struct comm *c, struct comm_rank *r, const struct flow *f,
                      const struct exchange *x)
{
    uint8_t expected[MESSAGE_HEAD_SEALED];
    uint32_t member = c->topo.member_of[f->rank];
    struct comm_call theirs;
    uint64_t their_tag, tag = x->recv_tag;
    struct err err;

    message_head_write(&r->call, tag, expected);
    message_seal(expected, MESSAGE_HEAD_BYTES);
    if (memcmp(f->head, expected, sizeof(expected)) == 0 && x->learn == NULL)
        return 1;
    if (!message_is_intact(f->head, MESSAGE_HEAD_BYTES))
        return comm_message_changed(c, f->fd, f->rank, r->rank, "the head of an exchange");
    if (message_head_read(f->head, c->topo.world, &theirs, &their_tag, &err) < 0)
        return comm_fail(c, ERR_PEER, member, "%s sent an invalid exchange head: %s",
                         comm_rank_text(c, f->rank).text, err.text);
    if (comm_call_same(&theirs, &r->call) && their_tag == tag && x->learn != NULL)
        return x->learn(c, r, f->rank, theirs.spare) < 0 ? -1 : 1;
    if (comm_call_same(&theirs, &r->call))
        return comm_fail(c, ERR_PEER, member, "%s sent part 0x%llx of %s, expected part 0x%llx",
                         comm_rank_text(c, f->rank).text, (unsigned long long)their_tag,
                         comm_call_text(&theirs).text, (unsigned long long)tag);
    return comm_fail(c, ERR_PEER, member, "%s is in %s, but %s in %s",
                     comm_rank_text(c, f->rank).text, comm_call_text(&theirs).text,
                     comm_rank_text(c, r->rank).text, comm_call_text(&r->call).text);
}

/* Adds the piece that just became complete, the `bytes` bytes before `end`, to the own range. */
static void add(struct comm_rank *r, const struct exchange *x, size_t end, size_t bytes)
{
    size_t element = tensor_dtype_bytes((enum tensor_dtype)r->call.dtype);
    void *own = x->recv + (end - bytes);
    const void *from[2] = { x->left ? r->scratch : own, x->left ? own : r->scratch };

    reduce(&own, 1, from, 2, NULL, bytes / element, (enum tensor_dtype)r->call.dtype,
           (enum comm_op)r->call.op);
}

/* Receives into both vectors; under TLS into the first one alone. */
static int receive(struct comm *c, struct flow *f, struct iovec to[2])
{
    struct msghdr m = { .msg_iov = to, .msg_iovlen = to[1].iov_len > 0 ? 2 : 1 };
    ssize_t n;

    if (fault_hit("comm.recv"))
        n = -1, errno = ECONNRESET;
    else if (f->tls != NULL)
        n = tls_stream_recv(f->tls, to[0].iov_base, to[0].iov_len);
    else
        n = recvmsg(f->fd, &m, MSG_DONTWAIT);
    if (n <= 0)
        return broken(c, f, n, errno);
    f->done += (size_t)n;
    return 1;
}

static int check_tail(struct comm *c, const struct comm_rank *r, const struct flow *f)
{
    if (f->n_tail == 0 || bytes_get_u32(f->tail) == f->sum)
        return 1;
    return comm_message_changed(c, f->fd, f->rank, r->rank, comm_call_text(&r->call).text);
}

/* Receives bytes of the range to `to`, its byte number `at`, at most `room`, with what follows the range. */
static int receive_body(struct comm *c, struct comm_rank *r, struct flow *f, uint8_t *to, size_t at,
                        size_t room)
{
    size_t got = f->done - sizeof(f->head) - at; /* of the tail: the range is complete */
    struct iovec v[2] = { { to, room } };
    int rc;

    if (at + room == f->body)
        v[1] = (struct iovec){ f->tail + got, f->n_tail - got };
    if (room == 0)
        v[0] = v[1], v[1].iov_len = 0;
    rc = receive(c, f, v);
    if (rc == 1)
        add_to_sum(f, to, body_done(f) - at);
    return rc == 1 && is_done(f) ? check_tail(c, r, f) : rc;
}

/* Returns as push(). A step that adds into the range that it sends must postpone the addition:
 * `x->add` is false. */
static int pull(struct comm *c, struct comm_rank *r, struct flow *f, const struct exchange *x)
{
    size_t at = body_done(f), in_piece = at % COMM_PIECE_BYTES, room = f->body - at;
    int rc;

    if (f->fd < 0 || is_done(f))
        return 0;
    if (f->done < sizeof(f->head)) {
        struct iovec head[2] = { { f->head + f->done, sizeof(f->head) - f->done } };

        rc = receive(c, f, head);
        return rc == 1 && f->done == sizeof(f->head) ? check_head(c, r, f, x) : rc;
    }
    if ((x->add || f->n_tail > 0) && room > COMM_PIECE_BYTES - in_piece)
        room = COMM_PIECE_BYTES - in_piece;
    rc = receive_body(c, r, f, x->add ? r->scratch + in_piece : x->recv + at, at, room);
    in_piece += body_done(f) - at;
    if (rc == 1 && x->add && body_done(f) > at &&
        (in_piece == COMM_PIECE_BYTES || body_done(f) == f->body))
        add(r, x, body_done(f), in_piece);
    return rc;
}

/* Sleeps until one of the two flows can continue, at most for sleep_ms. `since_ns`: none could since then. */
static int wait_for(struct comm *c, struct comm_rank *r, const struct flow *out,
                    const struct flow *in, uint64_t since_ns, int sleep_ms)
{
    bool can_send = !is_done(out) && !is_ahead(out, in);
    struct pollfd p[2] = { { .fd = can_send ? out->fd : -1, .events = POLLOUT },
                           { .fd = is_done(in) ? -1 : in->fd, .events = POLLIN } };
    uint32_t late = is_done(in) ? out->rank : in->rank;

    (void)poll(p, 2, sleep_ms); /* EINTR: the caller tries again */
    if (comm_has_failed(c))
        return -1;
    if (clock_ns() - since_ns >= COMM_PATH_MS * (uint64_t)1000000) {
        if (path_is_silent(out->fd))
            return comm_path_lost(c, c->topo.member_of[out->rank]);
        if (path_is_silent(in->fd))
            return comm_path_lost(c, c->topo.member_of[in->rank]);
    }
    if (clock_ns() >= r->deadline_ns)
        return comm_fail(c, ERR_TIMEOUT, c->topo.member_of[late],
                         "%s has not %s its part of %s within %.3g s", comm_rank_text(c, late).text,
                         is_done(in) ? "received" : "sent", comm_call_text(&r->call).text,
                         (double)r->limit_ns / 1e9);
    return 0;
}

/* A wait of an exchange. */
struct wait {
    uint64_t since_ns; /* 0: no wait */
    bool is_known;     /* `rank` and `kind` are valid */
    uint32_t rank;
    enum wait_kind kind;
    size_t slow_from; /* bytes of the incoming message at its first slow wait; 0: none yet */
};

/* While nothing of the incoming message has arrived, its sender is late. If this rank cannot send,
 * the receiver is slow provided that it has begun the same exchange, which its message shows; otherwise
 * either can be the reason, and the wait is not counted. */
static void wait_begins(struct comm *c, struct wait *w, const struct flow *out,
                        const struct flow *in)
{
    bool has_begun = in->fd >= 0 && in->done > 0;

    w->since_ns = clock_ns();
    w->is_known = !is_done(in) || (has_begun && in->rank == out->rank);
    w->rank = in->rank;
    w->kind = has_begun ? WAIT_SLOW : WAIT_LATE;
    if (w->kind == WAIT_SLOW && !is_done(in) && w->slow_from == 0)
        w->slow_from = in->done;
    comm_waits(c, true);
}

static void wait_ends(struct comm *c, struct comm_rank *r, struct wait *w)
{
    if (w->since_ns == 0)
        return;
    comm_waits(c, false);
    if (w->is_known)
        waits_add(c, r, w->rank, w->kind, clock_ns() - w->since_ns);
    w->since_ns = 0;
}

/* Calls x->idle if it is due. Returns the longest time to sleep in ms, or -1 after a failure. */
static int idle(struct comm *c, struct comm_rank *r, struct exchange *x, const struct flow *out,
                const struct flow *in, uint64_t since_ns)
{
    uint64_t waited = clock_ns() - since_ns, left;
    int (*call)(struct comm *, struct comm_rank *) = x->idle;

    if (call == NULL || !is_done(out) || in->done > 0)
        return COMM_SLICE_MS;
    if (waited < x->idle_ns) {
        left = (x->idle_ns - waited) / 1000000 + 1;
        return left < COMM_SLICE_MS ? (int)left : COMM_SLICE_MS;
    }
    x->idle = NULL;
    return call(c, r) < 0 ? -1 : 0;
}

int tcp_exchange(struct comm *c, struct comm_rank *r, const struct exchange *x)
{
    struct flow out = flow_of(r, x->to, x->send_bytes), in = flow_of(r, x->from, x->recv_bytes);
    struct exchange now = *x;
    bool add_last = x->add && x->send == x->recv && x->send_bytes != 0;
    struct wait w = { .since_ns = 0 };

    CHECK(!add_last || x->recv_bytes <= COMM_SMALL_BYTES);
    if (add_last) { /* the elements to be added arrive in the scratch buffer first */
        now.add = false;
        now.recv = r->scratch;
    }
    message_head_write(&r->call, x->send_tag, out.head);
    message_seal(out.head, MESSAGE_HEAD_BYTES);
    while (!is_done(&out) || !is_done(&in)) {
        int sent = is_ahead(&out, &in) ? 0 : push(c, &out, x->send);
        int got = sent < 0 ? -1 : pull(c, r, &in, &now), sleep_ms;

        if (got < 0 || comm_has_failed(c))
            return -1;
        if (sent == 0 && got == 0) {
            if (w.since_ns == 0)
                wait_begins(c, &w, &out, &in);
            else
                comm_waits(c, true);
            sleep_ms = idle(c, r, &now, &out, &in, w.since_ns);
            if (sleep_ms < 0 || wait_for(c, r, &out, &in, w.since_ns, sleep_ms) < 0)
                return -1;
        } else {
            wait_ends(c, r, &w);
        }
    }
    if (w.slow_from != 0)
        waits_add_bytes(c, r, in.rank, in.total - w.slow_from);
    if (add_last)
        add(r, x, x->recv_bytes, x->recv_bytes);
    return 0;
}

void tcp_tune(int fd, bool is_settled)
{
    /* The kernel of a peer acknowledges bytes independently of its process, so silence means that
       the path is dead (or the machine, which the heartbeat detects earlier). An idle connection is
       probed each second. TCP_USER_TIMEOUT would also end a connection whose peer does not read (a
       zero window, although its kernel answers), so it is used only for the few bytes of the
       handshake; path_is_silent() detects that case. Buffer sizes are left to the kernel: setting
       them disables its tuning, and never helped. */
    const struct {
        int name, value;
    } options[] = {
        { TCP_NODELAY, 1 }, { TCP_KEEPIDLE, 1 }, { TCP_KEEPINTVL, 1 },
        { TCP_KEEPCNT, 2 }, { TCP_USER_TIMEOUT, is_settled ? 0 : COMM_PATH_MS },
    };
    int on = 1;

    (void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on)); /* not TCP: no options */
    for (size_t i = 0; i < COUNT_OF(options); i++)
        (void)setsockopt(fd, IPPROTO_TCP, options[i].name, &options[i].value, sizeof(int));
}
