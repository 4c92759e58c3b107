/* channel_ring.c - the messages of channels between members that can share memory.
 *
 * The connection of such a channel is a Unix socket. It carries the heads of all messages, in their order, small
 * messages, and the end of the peer. Each end creates a ring (ring.h) for the messages that it sends, and offers
 * it with the first message that it sends. Until both have, all bytes take the connection. The bytes of large messages go through the ring: they are copied twice
 * between cores that share a cache, and no system call is made while both ends run.
 *
 * Wake-ups: an end that must sleep states in the ring how much it waits for: half of the ring, or the rest of the
 * message. The other end writes to its eventfd, of which there is one for all channels of an end, so each half of a
 * ring causes at most one wake-up. A message is not lost when its sender leaves: the mapping keeps the memory. */
#include "comm/channel_priv.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/err.h"
#include "base/errno_text.h"
#include "base/fault.h"
#include "base/prefetch.h"

enum {
    PUBLISH_BYTES = 64 << 10, /* copied before the other end sees them */
    WAKE_BYTES = RING_BYTES / 2,
    PASSED = 2, /* descriptors of an OFFER: the ring, the eventfd */
    LARGE_BYTES = 1 << 20, /* a message of this size does not fit into the cache of a core */
};

static uint32_t member_of(const struct comm *c, const struct comm_end *e, uint32_t k)
{
    return c->topo.member_of[e->links[k].peer];
}

static int bad_counter(struct comm *c, const struct comm_end *e, uint32_t k)
{
    return comm_fail(c, ERR_PEER, member_of(c, e, k),
                     "%s wrote an invalid counter to the shared memory of its channel",
                     comm_rank_text(c, e->links[k].peer).text);
}

/* ---- offers ---- */

/* Sends a head with the two descriptors. Returns as sendmsg(). */
static ssize_t send_offer(int fd, const int passed[PASSED])
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(PASSED * sizeof(int))];
    } control = { .bytes = { 0 } };
    uint8_t head[MESSAGE_CHANNEL_SEALED];
    struct iovec iov = { head, sizeof(head) };
    struct msghdr h = { .msg_iov = &iov,
                        .msg_iovlen = 1,
                        .msg_control = control.bytes,
                        .msg_controllen = sizeof(control.bytes) };

    message_channel_write(CHANNEL_OFFER, 0, head);
    message_seal(head, MESSAGE_CHANNEL_BYTES);
    CMSG_FIRSTHDR(&h)->cmsg_level = SOL_SOCKET;
    CMSG_FIRSTHDR(&h)->cmsg_type = SCM_RIGHTS;
    CMSG_FIRSTHDR(&h)->cmsg_len = CMSG_LEN(PASSED * sizeof(int));
    memcpy(CMSG_DATA(CMSG_FIRSTHDR(&h)), passed, PASSED * sizeof(int));
    return sendmsg(fd, &h, MSG_NOSIGNAL | MSG_DONTWAIT);
}

int channel_offer_ring(struct comm *c, struct comm_end *e, uint32_t k)
{
    const struct comm_link *link = &e->links[k];
    struct channel *ch = &e->channels[k];
    int passed[PASSED] = { -1, e->wake_fd }, rc;
    struct err err;
    ssize_t n;

    if (!link->is_local || ch->has_offered)
        return 0;
    rc = ring_make(&ch->ring_out, &passed[0], &err);
    if (rc < 0)
        return comm_fail(c, rc, c->self, "%s: %s", c->names[c->self], err.text);
    n = fault_hit("comm.pass") ? (errno = ETOOMANYREFS, -1) : send_offer(link->fd, passed);
    rc = n < 0 ? errno : 0;
    close(passed[0]);
    ch->has_offered = n == MESSAGE_CHANNEL_SEALED; /* a Unix socket accepts all of them, or none */
    if (ch->has_offered)
        return 0;
    ring_close(&ch->ring_out);
    if (rc == EAGAIN || rc == EINTR || rc == ETOOMANYREFS)
        return 0;
    return comm_link_lost(c, link->peer, errno_text(rc));
}

int channel_accept_ring(struct comm *c, struct comm_end *e, uint32_t k)
{
    struct channel *ch = &e->channels[k];
    struct err err;
    int rc;

    if (ch->ring_in.page != NULL || ch->passed[0] < 0 || ch->passed[1] < 0)
        return comm_fail(c, ERR_PEER, member_of(c, e, k), "%s sent an invalid message: an offer %s",
                         comm_rank_text(c, e->links[k].peer).text,
                         ch->ring_in.page != NULL ? "after its first one"
                                                  : "without two descriptors");
    rc = ring_map(ch->passed[0], &ch->ring_in, &err);
    if (rc == ERR_PEER)
        return comm_fail(c, ERR_PEER, member_of(c, e, k), "%s sent an invalid message: %s",
                         comm_rank_text(c, e->links[k].peer).text, err.text);
    if (rc < 0)
        return comm_fail(c, rc, c->self, "%s: %s", c->names[c->self], err.text);
    close(ch->passed[0]);
    ch->peer_wake_fd = ch->passed[1];
    ch->passed[0] = ch->passed[1] = -1;
    return 0;
}

ssize_t channel_recv_passed(struct channel *ch, int fd, void *to, size_t bytes)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(PASSED * sizeof(int))];
    } control;
    struct iovec iov = { to, bytes };
    struct msghdr h = { .msg_iov = &iov,
                        .msg_iovlen = 1,
                        .msg_control = control.bytes,
                        .msg_controllen = sizeof(control.bytes) };
    ssize_t n = recvmsg(fd, &h, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);

    for (struct cmsghdr *m = n > 0 ? CMSG_FIRSTHDR(&h) : NULL; m != NULL; m = CMSG_NXTHDR(&h, m)) {
        size_t n_fds = m->cmsg_len >= CMSG_LEN(0) ? (m->cmsg_len - CMSG_LEN(0)) / sizeof(int) : 0;

        if (m->cmsg_level != SOL_SOCKET || m->cmsg_type != SCM_RIGHTS)
            continue;
        for (size_t i = 0; i < n_fds && i < PASSED; i++) {
            if (ch->passed[i] >= 0)
                close(ch->passed[i]);
            memcpy(&ch->passed[i], CMSG_DATA(m) + i * sizeof(int), sizeof(int));
        }
    }
    return n;
}

/* ---- messages ---- */

bool channel_uses_ring(const struct channel *ch, size_t bytes)
{
    return bytes >= CHANNEL_RING_MIN && ch->has_offered && ch->ring_in.page != NULL;
}

/* Reads bytes of the present message. */
static ssize_t read_bytes(struct channel *ch, void *to, size_t n)
{
    return ring_read(&ch->ring_in, to, n, ch->current->bytes >= LARGE_BYTES);
}

static void publish(struct channel *ch, struct ring *r)
{
    uint64_t one = 1;

    if (ring_publish(r))
        (void)!write(ch->peer_wake_fd, &one, sizeof(one)); /* EAGAIN: it will wake anyway */
}

/* Long parts need none: the processor detects their order. */
INLINED void prefetch(const struct iovec *part)
{
    if (part->iov_len <= PREFETCH_ROW_BYTES)
        prefetch_row(part->iov_base, part->iov_len);
}

ssize_t channel_ring_send(struct comm *c, struct comm_end *e, uint32_t k, const struct iovec *parts,
                          uint32_t n_parts, size_t at)
{
    struct channel *ch = &e->channels[k];
    size_t done = 0;
    ssize_t n = 1;

    (void)fault_hit("comm.ring"); /* a test kills the process here */
    for (uint32_t i = 0; i < PREFETCH_AHEAD && i < n_parts; i++)
        prefetch(&parts[i]);
    for (uint32_t i = 0; i < n_parts && n > 0 && done < PUBLISH_BYTES; at = 0, i++) {
        size_t rest = parts[i].iov_len - at, most = PUBLISH_BYTES - done;

        if (i + PREFETCH_AHEAD < n_parts)
            prefetch(&parts[i + PREFETCH_AHEAD]);
        if (rest == 0)
            continue;
        n = ring_write(&ch->ring_out, (const uint8_t *)parts[i].iov_base + at,
                       rest < most ? rest : most);
        done += n > 0 ? (size_t)n : 0;
        if (n > 0 && (size_t)n < rest)
            break;
    }
    if (n < 0)
        return bad_counter(c, e, k);
    if (done > 0)
        publish(ch, &ch->ring_out);
    return (ssize_t)done;
}

/* The ring is empty, but the message is not complete. The connection shows whether the peer is alive: before it
 * sends a head, or leaves, it writes all bytes of the message. */
static ssize_t look_at_connection(struct comm *c, struct comm_end *e, uint32_t k, void *to,
                                  size_t bytes)
{
    const struct comm_link *link = &e->links[k];
    struct channel *ch = &e->channels[k];
    ssize_t seen = 1, n;
    uint8_t byte;
    int why = 0;

    if (ch->ahead_at == ch->ahead_end) {
        seen = fault_hit("comm.recv") ? (errno = ECONNRESET, -1)
                                      : recv(link->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
        why = errno;
    }
    if (seen < 0 && (why == EAGAIN || why == EINTR))
        return 0;
    n = read_bytes(ch, to, bytes); /* written before what the connection shows */
    if (n != 0)
        return n;
    if (seen > 0)
        return comm_fail(c, ERR_PEER, member_of(c, e, k),
                         "%s sent a message before the end of the message before it",
                         comm_rank_text(c, link->peer).text);
    return comm_link_lost(c, link->peer, seen == 0 ? "it closed the connection" : errno_text(why));
}

/* Reads to the next place, at most `most` bytes. Returns as look_at_connection(). */
static ssize_t read_place(struct comm *c, struct comm_end *e, uint32_t k, size_t most,
                          bool is_first)
{
    struct channel *ch = &e->channels[k];
    size_t room;
    uint8_t *to = channel_next_place(ch, &room);
    ssize_t n;

    room = room < most ? room : most;
    n = read_bytes(ch, to, room);
    if (n == 0 && is_first)
        n = look_at_connection(c, e, k, to, room);
    if (n > 0)
        channel_pass(ch, (size_t)n);
    return n;
}

ssize_t channel_ring_receive(struct comm *c, struct comm_end *e, uint32_t k)
{
    struct channel *ch = &e->channels[k];
    size_t done = 0;
    ssize_t n = 1;

    while (n > 0 && done < PUBLISH_BYTES && ch->n_in < ch->current->bytes) {
        n = read_place(c, e, k, PUBLISH_BYTES - done, done == 0);
        done += n > 0 ? (size_t)n : 0;
    }
    if (n < 0)
        return comm_has_failed(c) ? -1 : bad_counter(c, e, k);
    if (done > 0)
        publish(ch, &ch->ring_in);
    return (ssize_t)done;
}

/* ---- waits ---- */

int channel_ring_wait(struct comm *c, struct comm_end *e, uint32_t k)
{
    struct channel *ch = &e->channels[k];

    if (ch->ended_ns != 0)
        return comm_link_lost(c, e->links[k].peer, "it closed the connection");
    return ring_wait(&ch->ring_out, WAKE_BYTES);
}

bool channel_ring_has_bytes(struct channel *ch)
{
    size_t rest = ch->current->bytes - ch->n_in;

    return ring_wait(&ch->ring_in, rest < WAKE_BYTES ? rest : WAKE_BYTES);
}

/* ---- closing ---- */

void channel_close_ring(struct channel *ch)
{
    if (ch->ring_in.page != NULL)
        close(ch->peer_wake_fd);
    ring_close(&ch->ring_in);
    ring_close(&ch->ring_out);
    for (int i = 0; i < PASSED; i++)
        if (ch->passed[i] >= 0)
            close(ch->passed[i]);
}
