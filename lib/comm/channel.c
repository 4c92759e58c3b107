/* channel.c - messages between ranks and servers; see channel.h.
 *
 * A channel is a link: one connection, TCP, or a Unix socket if both members can share memory. Each message is
 * preceded by a head (message.h), and followed by a checksum if it is sent over TCP in clear text. A local end waits on one epoll instance with all of its links. channel_read.c
 * receives. channel_ring.c exchanges the bytes of large messages between members that share memory.
 *
 *   reading    comm_receive() stops reading a channel at its first complete message, so the kernel
 *              slows down a sender that is too fast. While comm_send() is blocked, it reads without
 *              this limit: a peer that is itself blocked in comm_send() always makes progress.
 *   the end    A connection that ends between two messages may belong to a member that has left in
 *              order or has died. The life line of the member decides (life.c). */
#include "comm/channel.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "base/bytes.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/crc32c.h"
#include "base/err.h"
#include "base/errno_text.h"
#include "base/fault.h"
#include "comm/channel_priv.h"
#include "tls/tls.h"

enum {
    SEND_PARTS = 256,        /* per system call */
    SUM_BYTES = 256 << 10,   /* per system call, of a message with a checksum: computed while the bytes are in the cache */
    SMALL_PARTS = 16,        /* so many with less than SMALL_BYTES are collected: sendmsg() pays for each part */
    SMALL_BYTES = 16 << 10,
    NAMED_MAX = 3,           /* limit of points in a message */
};
#define NS_PER_MS ((uint64_t)1000000)

/* Returns the limit of a call in ns: less than that of the collectives. While one rank waits for a
 * server, the others wait for that rank in a collective; the call ends first, and names the server. */
static uint64_t limit_of(const struct comm *c)
{
    return c->deadline_ns / 5 * 4;
}

/* A wait of a call. */
struct wait {
    uint64_t limit_ns; /* UINT64_MAX: none */
    uint64_t since_ns; /* nothing has happened since then */
    bool waits;        /* comm_waits(c, true) was called */
};

static struct wait wait_begin(uint64_t limit_after_ns)
{
    uint64_t now = clock_ns();

    return (struct wait){ .limit_ns = limit_after_ns < UINT64_MAX - now ? now + limit_after_ns
                                                                        : UINT64_MAX,
                          .since_ns = now };
}

/* Returns the time to sleep, at most COMM_SLICE_MS. */
static int wait_sleeps(struct comm *c, struct wait *w)
{
    uint64_t now = clock_ns(), rest = w->limit_ns > now ? w->limit_ns - now : 0;

    w->waits = true;
    comm_waits(c, true);
    return rest < COMM_SLICE_MS * NS_PER_MS ? (int)(rest / NS_PER_MS + 1) : COMM_SLICE_MS;
}

static void wait_ends(struct comm *c, struct wait *w)
{
    if (w->waits)
        comm_waits(c, false);
    w->waits = false;
}

/* ---- what is wrong if no message arrives ---- */

/* Writes the points that have sent the fewest messages. Returns their member, or the first of
 * their members if other points have sent more; COMM_NO_MEMBER: unknown. */
static uint32_t find_late(const struct comm *c, const struct comm_end *e, char *out, size_t size)
{
    uint64_t least = UINT64_MAX;
    uint32_t named = 0, culprit = COMM_NO_MEMBER;
    bool one_member = true;
    size_t used = 0;

    for (uint32_t k = 0; k < e->n_links; k++)
        least = e->channels[k].n_messages < least ? e->channels[k].n_messages : least;
    for (uint32_t k = 0; k < e->n_links; k++) {
        uint32_t member = c->topo.member_of[e->links[k].peer];

        if (e->channels[k].n_messages != least)
            continue;
        one_member = one_member && (culprit == COMM_NO_MEMBER || culprit == member);
        culprit = culprit == COMM_NO_MEMBER ? member : culprit;
        if (named++ < NAMED_MAX && used < size)
            used += (size_t)snprintf(out + used, size - used, "%s%s", used > 0 ? ", " : "",
                                     comm_rank_text(c, e->links[k].peer).text);
    }
    if (named > NAMED_MAX && used < size)
        snprintf(out + used, size - used, " and %u more", named - NAMED_MAX);
    return one_member || named < e->n_links ? culprit : COMM_NO_MEMBER;
}

/* A connection has ended, but its member is neither dead nor has it left. */
static int check_ended(struct comm *c, const struct comm_end *e, uint64_t now)
{
    for (uint32_t k = 0; e->n_ended > 0 && k < e->n_links; k++) {
        uint32_t point = e->links[k].peer, member = c->topo.member_of[point];
        uint64_t ended_ns = e->channels[k].ended_ns;

        if (ended_ns != 0 && now - ended_ns >= COMM_LIFE_WAIT_MS * NS_PER_MS &&
            !comm_has_left(c, member))
            return comm_fail(c, ERR_PEER, member, "lost %s: it closed the connection",
                             comm_rank_text(c, point).text);
    }
    return 0;
}

static int check_paths(struct comm *c, const struct comm_end *e, const struct wait *w, uint64_t now)
{
    for (uint32_t k = 0; now - w->since_ns >= COMM_PATH_MS * NS_PER_MS && k < e->n_links; k++)
        if (e->channels[k].ended_ns == 0 && path_is_silent(e->links[k].fd))
            return comm_path_lost(c, c->topo.member_of[e->links[k].peer]);
    return 0;
}

/* All channels have ended: comm_fail() with the one that ended last. */
static int all_ended(struct comm *c, const struct comm_end *e)
{
    uint32_t last = 0;

    for (uint32_t k = 1; k < e->n_links; k++)
        last = e->channels[k].ended_ns > e->channels[last].ended_ns ? k : last;
    return comm_link_lost(c, e->links[last].peer, "it closed the connection");
}

/* ---- comm_receive() ---- */

static bool deliver(struct comm_end *e, struct comm_message *out)
{
    for (uint32_t i = 0; e->n_ready > 0 && i < e->n_links; i++) {
        uint32_t k = (e->turn + i) % e->n_links;
        struct channel *ch = &e->channels[k];

        if (ch->first == NULL)
            continue;
        e->delivered = ch->first;
        e->source = ch;
        ch->first = ch->first->next;
        e->n_ready--;
        e->turn = k + 1;
        *out = (struct comm_message){ .from = e->links[k].peer,
                                      .bytes = e->delivered->bytes,
                                      .data = e->delivered->is_placed ? NULL : e->delivered->data };
        return true;
    }
    return false;
}

/* Waits for bytes once. Returns 0; 1: the limit is reached; -1 after comm_fail(). */
static int wait_for_bytes(struct comm *c, struct comm_end *e, struct wait *w)
{
    uint64_t now;
    int n;

    if (e->n_more > 0)
        return channel_read_more(c, e, false);
    if (e->n_ended == e->n_links)
        return all_ended(c, e);
    n = channel_read_ready(c, e, false, wait_sleeps(c, w));
    if (n < 0)
        return -1;
    now = clock_ns();
    if (n > 0)
        w->since_ns = now;
    else if (check_ended(c, e, now) < 0 || check_paths(c, e, w, now) < 0)
        return -1;
    return e->n_ready == 0 && now >= w->limit_ns;
}

static int fail_late(struct comm *c, uint32_t local)
{
    char late[COMM_WHY_BYTES] = "";
    uint32_t culprit = find_late(c, &c->ends[local], late, sizeof(late));

    return comm_fail(
        c, ERR_TIMEOUT, culprit, "%s has received no message within %.3g s; fewest so far from %s",
        comm_rank_text(c, c->first_point + local).text, (double)limit_of(c) / 1e9, late);
}

int comm_receive(struct comm *c, uint32_t local, struct comm_message *out, uint64_t timeout_ms,
                 struct err *err)
{
    struct comm_end *e = &c->ends[local];
    uint64_t limit_ns = timeout_ms == 0                       ? limit_of(c)
                        : timeout_ms < UINT64_MAX / NS_PER_MS ? timeout_ms * NS_PER_MS
                                                              : UINT64_MAX;
    struct wait w = wait_begin(limit_ns);
    int rc = 0;

    CHECK(local < c->n_ends);
    if (e->delivered != NULL)
        channel_release(e->source, e->delivered);
    e->delivered = NULL;
    if (!comm_has_failed(c))
        CHECK(c->failure.is_connected && e->n_links > 0);
    while (rc == 0 && !comm_has_failed(c) && !deliver(e, out))
        rc = wait_for_bytes(c, e, &w);
    wait_ends(c, &w);
    if (rc > 0 && timeout_ms != 0)
        return err_set(err, ERR_TIMEOUT, "no message within %llu ms",
                       (unsigned long long)timeout_ms);
    if (rc > 0)
        (void)fail_late(c, local);
    return e->delivered != NULL ? 0 : comm_failure(c, err);
}

void comm_exchange(struct comm *c, uint32_t local, uint8_t **data, size_t *capacity)
{
    struct channel_buffer *b = c->ends[local].delivered, given = { .data = *data,
                                                                   .capacity = *capacity };

    CHECK(b != NULL && !b->is_placed);
    *data = b->data;
    *capacity = b->capacity;
    b->data = given.data;
    b->capacity = given.capacity;
}

/* ---- comm_send() ---- */

/* A message being sent: its head, its parts, and their checksum. */
struct outgoing {
    uint8_t head[MESSAGE_CHANNEL_SEALED], tail[MESSAGE_SUM_BYTES];
    const struct iovec *parts;
    uint32_t n_parts, part; /* part: index + 1 of the present part; 0: the head; n_parts + 1: the checksum */
    uint32_t n_tail;        /* bytes of the checksum; 0: it has none */
    size_t at;              /* bytes of the present part that were sent */
    size_t rest;            /* bytes of the message that were not sent */
    size_t bytes, summed;   /* bytes of the parts, and those of which `sum` is the checksum */
    uint32_t sum;
    bool in_ring;           /* the parts go through the ring of the channel */
};

static struct iovec part_of(const struct outgoing *o, uint32_t i)
{
    return i == 0            ? (struct iovec){ (void *)o->head, sizeof(o->head) }
           : i <= o->n_parts ? o->parts[i - 1]
                             : (struct iovec){ (void *)o->tail, o->n_tail };
}

static void advance(struct outgoing *o, size_t n)
{
    o->rest -= n;
    o->at += n;
    while (o->part <= o->n_parts && o->at >= part_of(o, o->part).iov_len) {
        o->at -= part_of(o, o->part).iov_len;
        o->part++;
    }
}

/* Lists the bytes of the head and of the parts to send: all, or SUM_BYTES if the message has a checksum. Returns the number
 * of entries; empty parts have none. */
static size_t list_rest(const struct outgoing *o, struct iovec out[SEND_PARTS])
{
    size_t n = 0, at = o->at, most = o->n_tail > 0 ? SUM_BYTES : SIZE_MAX;

    for (uint32_t i = o->part; i <= (o->in_ring ? 0 : o->n_parts) && n < SEND_PARTS && most > 0;
         i++, at = 0) {
        struct iovec v = part_of(o, i);

        if (v.iov_len <= at)
            continue;
        v = (struct iovec){ (uint8_t *)v.iov_base + at, v.iov_len - at };
        v.iov_len = v.iov_len < most ? v.iov_len : most;
        most -= v.iov_len;
        out[n++] = v;
    }
    return n;
}

/* Adds those bytes of the list to the checksum that are not in it, and appends the checksum to the list if it is
 * complete. */
static size_t add_sum(struct outgoing *o, struct iovec *v, size_t n)
{
    size_t head = o->part == 0 ? sizeof(o->head) - o->at : 0,
           in_tail = o->part > o->n_parts ? o->at : 0;
    size_t sent = o->bytes + o->n_tail + head - o->rest - in_tail; /* bytes of the parts */
    size_t skip = head + o->summed - sent;

    if (o->n_tail == 0)
        return n;
    for (size_t i = 0; i < n; i++) {
        size_t skipped = skip < v[i].iov_len ? skip : v[i].iov_len;

        o->sum = crc32c(o->sum, (uint8_t *)v[i].iov_base + skipped, v[i].iov_len - skipped);
        o->summed += v[i].iov_len - skipped;
        skip -= skipped;
    }
    if (o->summed < o->bytes)
        return n;
    bytes_set_u32(o->tail, o->sum);
    v[n] = (struct iovec){ o->tail + in_tail, o->n_tail - in_tail };
    return n + 1;
}

/* Copies the first bytes of the parts, at most `most`, to e->collected. Returns their number. After EAGAIN the same
 * bytes are collected again. */
static size_t collect(struct comm_end *e, const struct iovec *v, size_t n, size_t most)
{
    size_t used = 0;

    for (size_t i = 0; i < n && used < most; i++) {
        size_t room = most - used, bytes = v[i].iov_len < room ? v[i].iov_len : room;

        memcpy(e->collected + used, v[i].iov_base, bytes);
        used += bytes;
    }
    return used;
}

/* Sends one record. */
static ssize_t send_record(struct comm_end *e, struct tls_stream *tls, const struct iovec *v,
                           size_t n)
{
    if (v[0].iov_len >= CHANNEL_RECORD_BYTES)
        return tls_stream_send(tls, v[0].iov_base, v[0].iov_len);
    return tls_stream_send(tls, e->collected, collect(e, v, n, CHANNEL_RECORD_BYTES));
}

static bool are_small(const struct iovec *v, size_t n)
{
    size_t bytes = 0;

    for (size_t i = 0; i < SMALL_PARTS && i < n; i++)
        bytes += v[i].iov_len;
    return n > SMALL_PARTS && bytes < SMALL_BYTES;
}

static ssize_t send_clear(struct comm_end *e, int fd, struct outgoing *o, struct iovec *v, size_t n)
{
    struct msghdr m = { .msg_iov = v };
    uint8_t *byte;
    ssize_t sent;

    if (are_small(v, n)) {
        v[0] = (struct iovec){ e->collected, collect(e, v, n, CHANNEL_COLLECT_BYTES) };
        n = 1;
    }
    m.msg_iovlen = add_sum(o, v, n);
    if (o->n_tail == 0 || !fault_hit("comm.flip"))
        return sendmsg(fd, &m, MSG_NOSIGNAL | MSG_DONTWAIT);
    byte = v[m.msg_iovlen / 2].iov_base;
    *byte ^= 1; /* a bit changes on the way */
    sent = sendmsg(fd, &m, MSG_NOSIGNAL | MSG_DONTWAIT);
    *byte ^= 1;
    return sent;
}

/* Returns the number of bytes sent; 0: none now; -1 after comm_fail(). */
static ssize_t send_some(struct comm *c, struct comm_end *e, uint32_t k, struct outgoing *o)
{
    const struct comm_link *link = &e->links[k];
    struct iovec v[SEND_PARTS + 1];
    size_t n_v;
    ssize_t n;

    if (o->in_ring && o->part > 0)
        return channel_ring_send(c, e, k, o->parts + o->part - 1, o->n_parts - o->part + 1, o->at);
    n_v = list_rest(o, v);
    if (fault_hit("comm.send"))
        n = -1, errno = ECONNRESET;
    else
        n = link->tls != NULL ? send_record(e, link->tls, v, n_v)
                              : send_clear(e, link->fd, o, v, n_v);
    if (n > 0)
        return n;
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return 0;
    if (n < 0 && comm_is_path_dead(errno))
        return comm_path_lost(c, c->topo.member_of[link->peer]);
    return comm_link_lost(c, link->peer, n == 0 ? "it closed the connection" : errno_text(errno));
}

/* Waits until the link, or the ring, accepts more bytes, and reads what arrives meanwhile. Returns -1
 * after comm_fail(). */
static int wait_for_room(struct comm *c, struct comm_end *e, uint32_t k, bool in_ring,
                         struct wait *w)
{
    const struct comm_link *link = &e->links[k];
    struct pollfd p[2] = { { .fd = in_ring ? -1 : link->fd, .events = POLLOUT },
                           { .fd = e->ready_fd, .events = POLLIN } };
    uint64_t now;
    int n;

    if (channel_read_more(c, e, true) < 0)
        return -1;
    n = in_ring ? channel_ring_wait(c, e, k) : 0;
    if (n != 0)
        return n < 0 ? -1 : 0;
    n = poll(p, 2, e->n_more > 0 ? 0 : wait_sleeps(c, w));
    if (comm_has_failed(c) || (n > 0 && p[1].revents != 0 && channel_read_ready(c, e, true, 0) < 0))
        return -1;
    now = clock_ns();
    if (n > 0 && p[0].revents != 0)
        w->since_ns = now;
    else if (now - w->since_ns >= COMM_PATH_MS * NS_PER_MS && path_is_silent(link->fd))
        return comm_path_lost(c, c->topo.member_of[link->peer]);
    if (now < w->limit_ns)
        return 0;
    return comm_fail(c, ERR_TIMEOUT, c->topo.member_of[link->peer],
                     "%s has not received a message within %.3g s",
                     comm_rank_text(c, link->peer).text, (double)limit_of(c) / 1e9);
}

/* Returns the index of the channel to a point. */
static uint32_t channel_to(const struct comm *c, uint32_t to)
{
    const struct topology *t = &c->topo;

    CHECK(to < t->world + t->n_servers && t->member_of[to] != c->self);
    if (c->n_ranks > 0) {
        CHECK(to >= t->world); /* two ranks have no channel */
        return to - t->world;
    }
    return to < c->first_point ? to : to - c->n_ends; /* without the servers of this ps */
}

void comm_place(struct comm *c, uint32_t local, uint32_t from, const struct iovec *places,
                uint32_t n)
{
    struct channel *ch;

    CHECK(local < c->n_ends);
    ch = &c->ends[local].channels[channel_to(c, from)];
    ch->places = places;
    ch->place_bytes = 0;
    for (uint32_t i = 0; i < n; i++)
        ch->place_bytes += places[i].iov_len;
}

int comm_send(struct comm *c, uint32_t local, uint32_t to, const struct iovec *parts,
              uint32_t n_parts, struct err *err)
{
    struct comm_end *e = &c->ends[local];
    struct outgoing o = { .parts = parts, .n_parts = n_parts };
    struct wait w = wait_begin(limit_of(c));
    uint32_t k;
    int rc = 0;

    CHECK(local < c->n_ends);
    k = channel_to(c, to);
    for (uint32_t i = 0; i < n_parts; i++) {
        o.rest += parts[i].iov_len;
        if (parts[i].iov_len > COMM_MESSAGE_MAX || o.rest > COMM_MESSAGE_MAX)
            return err_set(err, ERR_INPUT, "a message to %s has more than %d bytes",
                           comm_rank_text(c, to).text, COMM_MESSAGE_MAX);
    }
    if (!comm_has_failed(c)) {
        CHECK(c->failure.is_connected);
        rc = channel_offer_ring(c, e, k);
    }
    o.in_ring = channel_uses_ring(&e->channels[k], o.rest);
    message_channel_write(o.in_ring ? CHANNEL_RING : CHANNEL_STREAM, o.rest, o.head);
    message_seal(o.head, MESSAGE_CHANNEL_BYTES);
    o.bytes = o.rest;
    o.n_tail = (uint32_t)channel_sum_bytes(&e->links[k], o.bytes);
    o.rest += sizeof(o.head) + o.n_tail;
    while (rc == 0 && o.rest > 0 && !comm_has_failed(c)) {
        ssize_t n = send_some(c, e, k, &o);

        if (n > 0) {
            advance(&o, (size_t)n);
            wait_ends(c, &w);
        } else {
            rc = n < 0 ? -1 : wait_for_room(c, e, k, o.in_ring && o.part > 0, &w);
        }
    }
    wait_ends(c, &w);
    return rc < 0 || o.rest > 0 ? comm_failure(c, err) : 0;
}

/* ---- points ---- */

uint32_t comm_servers(const struct comm *c)
{
    return c->topo.n_servers;
}

uint32_t comm_first_point(const struct comm *c)
{
    return c->first_point;
}

uint32_t comm_point_member(const struct comm *c, uint32_t point)
{
    CHECK(point < c->topo.world + c->topo.n_servers);
    return c->topo.member_of[point];
}
