/* channel_read.c - receives the bytes of the channels of a local end, and makes messages of them.
 *
 * The bytes before a head is complete are received into `ahead`, so that a small message needs one
 * system call. The checksum of a message arrives there, too. The rest of a large message is received directly into its buffer, or into the places of
 * comm_place(); the rest of a message in a ring is copied from there. Complete messages wait in the queue of their channel; their buffers are used again. */
#include "comm/channel_priv.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/crc32c.h"
#include "base/err.h"
#include "base/errno_text.h"
#include "base/fault.h"
#include "tls/tls.h"

enum {
    BUFFER_BYTES_MIN = 4096,
    TURN_BYTES = 1 << 20, /* received from a channel before the next one gets its turn */
    /* While a message lacks more bytes, epoll reports the connection when that many have arrived. A
     * message of 4 MB otherwise wakes its receiver up to 60 times, once per packet on loopback. */
    WAKE_BYTES = 128 << 10,
    SUM_BYTES = 256 << 10, /* received at once of a message with a checksum, computed while they are in the cache */
    SMALL_PLACE = 4096, /* a smaller place is filled from e->collected */
    EVENTS = 64,
};

/* ---- buffers ---- */

void channel_buffer_free(struct channel_buffer *b)
{
    while (b != NULL) {
        struct channel_buffer *next = b->next;

        free(b->data);
        free(b);
        b = next;
    }
}

/* Returns a buffer for `bytes` bytes, an unused one if possible; NULL: out of memory. */
static struct channel_buffer *buffer_acquire(struct channel *ch, size_t bytes)
{
    struct channel_buffer *b = ch->idle;
    size_t capacity = BUFFER_BYTES_MIN;

    if (b != NULL)
        ch->idle = b->next;
    else
        b = calloc(1, sizeof(*b));
    if (b == NULL)
        return NULL;
    b->next = NULL;
    if (bytes > b->capacity || b->data == NULL) {
        while (capacity < bytes)
            capacity *= 2;
        free(b->data);
        b->data = aligned_alloc(64, capacity);
        b->capacity = b->data != NULL ? capacity : 0;
    }
    b->bytes = bytes;
    if (b->data != NULL)
        return b;
    channel_buffer_free(b);
    return NULL;
}

void channel_release(struct channel *ch, struct channel_buffer *b)
{
    b->next = ch->idle;
    ch->idle = b;
}

/* ---- receiving ---- */

void channel_set_more(struct comm_end *e, struct channel *ch, bool more)
{
    e->n_more += more;
    e->n_more -= ch->has_more;
    ch->has_more = more;
}

static void end_channel(struct comm_end *e, uint32_t k)
{
    e->channels[k].ended_ns = clock_ns();
    e->n_ended++;
    /* epoll would report the end again and again */
    (void)epoll_ctl(e->ready_fd, EPOLL_CTL_DEL, e->links[k].fd, NULL);
}

static uint32_t own_point(const struct comm *c, const struct comm_end *e)
{
    return c->first_point + (uint32_t)(e - c->ends);
}

static void add_to_sum(struct channel *ch, const uint8_t *bytes, size_t n)
{
    if (ch->n_tail > 0)
        ch->sum = crc32c(ch->sum, bytes, n);
}

/* Copies the next n bytes of the present message to their places. */
static void scatter(struct channel *ch, const uint8_t *from, size_t n)
{
    for (size_t room; n > 0; n -= room, from += room) {
        uint8_t *to = channel_next_place(ch, &room);

        room = room < n ? room : n;
        memcpy(to, from, room);
        channel_pass(ch, room);
    }
}

static ssize_t receive_bytes(const struct comm_link *link, struct channel *ch, void *to,
                             size_t bytes)
{
    if (link->tls != NULL)
        return tls_stream_recv(link->tls, to, bytes);
    return link->is_local ? channel_recv_passed(ch, link->fd, to, bytes)
                          : recv(link->fd, to, bytes, MSG_DONTWAIT);
}

/* Returns the number of bytes received; 0: none until epoll reports more; -1 after comm_fail(). */
static ssize_t receive_some(struct comm *c, struct comm_end *e, uint32_t k, void *to, size_t bytes)
{
    const struct comm_link *link = &e->links[k];
    struct channel *ch = &e->channels[k];
    bool is_between = ch->current == NULL && ch->ahead_at == ch->ahead_end;
    ssize_t n;

    if (fault_hit("comm.recv"))
        n = -1, errno = ECONNRESET;
    else
        n = receive_bytes(link, ch, to, bytes);
    if (n > 0)
        return n;
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return 0;
    if (n < 0 && comm_is_path_dead(errno))
        return comm_path_lost(c, c->topo.member_of[link->peer]);
    if (!is_between || (n < 0 && errno != ECONNRESET && errno != EPIPE))
        return comm_link_lost(c, link->peer,
                              n == 0 ? "it closed the connection" : errno_text(errno));
    end_channel(e, k);
    return 0;
}

/* Begins the message whose head is in `ahead`, with the bytes of it that are there, too. */
static int begin_message(struct comm *c, struct comm_end *e, uint32_t k)
{
    struct channel *ch = &e->channels[k];
    uint32_t point = e->links[k].peer;
    size_t bytes, present;
    enum channel_where where;
    bool is_placed;
    struct err err;

    if (!message_is_intact(ch->ahead + ch->ahead_at, MESSAGE_CHANNEL_BYTES))
        return comm_message_changed(c, e->links[k].fd, point, own_point(c, e),
                                    "the head of a message");
    if (message_channel_read(ch->ahead + ch->ahead_at, &where, &bytes, &err) < 0)
        return comm_fail(c, ERR_PEER, c->topo.member_of[point], "%s sent an invalid message: %s",
                         comm_rank_text(c, point).text, err.text);
    ch->ahead_at += MESSAGE_CHANNEL_SEALED;
    if (where == CHANNEL_OFFER)
        return channel_accept_ring(c, e, k);
    if (where == CHANNEL_RING && ch->ring_in.page == NULL)
        return comm_fail(c, ERR_PEER, c->topo.member_of[point],
                         "%s sent an invalid message: it is in a ring that was not offered",
                         comm_rank_text(c, point).text);
    is_placed = ch->places != NULL && bytes == ch->place_bytes;
    ch->current = buffer_acquire(ch, is_placed ? 0 : bytes);
    if (ch->current == NULL)
        return comm_fail(c, ERR_NOMEM, c->self, "%s: a message of %zu bytes from %s: out of memory",
                         c->names[c->self], bytes, comm_rank_text(c, point).text);
    ch->current->bytes = bytes;
    ch->current->is_placed = is_placed;
    ch->n_in = ch->place_at = 0;
    ch->in_ring = where == CHANNEL_RING;
    ch->n_tail = channel_sum_bytes(&e->links[k], bytes);
    ch->sum = 0;
    if (is_placed) {
        ch->place = ch->places;
        ch->places = NULL;
    }
    present = ch->ahead_end - ch->ahead_at < bytes ? ch->ahead_end - ch->ahead_at : bytes;
    present = ch->in_ring ? 0 : present;
    add_to_sum(ch, ch->ahead + ch->ahead_at, present);
    scatter(ch, ch->ahead + ch->ahead_at, present);
    ch->ahead_at += present;
    return 0;
}

static bool has_all_bytes(const struct channel *ch)
{
    return ch->current != NULL && ch->n_in == ch->current->bytes;
}

/* Compares the checksum of `current`, if it has arrived. */
static int read_tail(struct comm *c, struct comm_end *e, uint32_t k)
{
    struct channel *ch = &e->channels[k];
    uint32_t point = e->links[k].peer;
    char what[64];

    if (ch->n_tail == 0 || !has_all_bytes(ch) || ch->ahead_end - ch->ahead_at < ch->n_tail)
        return 0;
    if (bytes_get_u32(ch->ahead + ch->ahead_at) != ch->sum) {
        snprintf(what, sizeof(what), "message %llu, of %zu bytes",
                 (unsigned long long)ch->n_messages + 1, ch->current->bytes);
        return comm_message_changed(c, e->links[k].fd, point, own_point(c, e), what);
    }
    ch->ahead_at += ch->n_tail;
    ch->n_tail = 0;
    return 0;
}

static void finish_message(struct comm_end *e, struct channel *ch)
{
    if (ch->first == NULL)
        ch->first = ch->current;
    else
        ch->last->next = ch->current;
    ch->last = ch->current;
    ch->current = NULL;
    ch->n_messages++;
    e->n_ready++;
}

static bool has_head(const struct channel *ch)
{
    return ch->current == NULL && ch->ahead_end - ch->ahead_at >= MESSAGE_CHANNEL_SEALED;
}

/* Receives bytes of the present message from the connection. A system call for each small place would take
 * longer than a copy. */
static ssize_t receive_message(struct comm *c, struct comm_end *e, uint32_t k, size_t most)
{
    struct channel *ch = &e->channels[k];
    size_t room, rest = ch->current->bytes - ch->n_in;
    uint8_t *to = channel_next_place(ch, &room);
    bool is_small = room < SMALL_PLACE && room < rest;
    ssize_t n;

    if (is_small) {
        to = e->collected;
        room = rest < CHANNEL_COLLECT_BYTES ? rest : CHANNEL_COLLECT_BYTES;
    }
    if (ch->n_tail > 0 && most > SUM_BYTES)
        most = SUM_BYTES;
    n = receive_some(c, e, k, to, room < most ? room : most);
    if (n > 0)
        add_to_sum(ch, to, (size_t)n);
    if (n > 0 && is_small)
        scatter(ch, to, (size_t)n);
    else if (n > 0)
        channel_pass(ch, (size_t)n);
    return n;
}

/* Receives into the present message, or into `ahead`. Returns as receive_some(). */
static ssize_t receive_next(struct comm *c, struct comm_end *e, uint32_t k, size_t most)
{
    struct channel *ch = &e->channels[k];
    size_t rest;
    ssize_t n;

    if (ch->current != NULL && !has_all_bytes(ch))
        return ch->in_ring ? channel_ring_receive(c, e, k) : receive_message(c, e, k, most);
    rest = ch->ahead_end - ch->ahead_at; /* less than a head, or than a checksum */
    memmove(ch->ahead, ch->ahead + ch->ahead_at, rest);
    ch->ahead_at = 0;
    ch->ahead_end = rest;
    n = receive_some(c, e, k, ch->ahead + rest, sizeof(ch->ahead) - rest);
    ch->ahead_end += n > 0 ? (size_t)n : 0;
    return n;
}

/* Sets after how many bytes epoll reports the connection, at the end of every read_channel(): a channel that
 * waits for a head, or for the end of a message, is reported for its first byte. The kernel also reports a
 * connection that has ended, or whose buffer is full. The library reads the records of a TLS connection. */
static void set_wakes(struct comm_end *e, uint32_t k)
{
    struct channel *ch = &e->channels[k];
    bool is_long = ch->current != NULL && ch->current->bytes - ch->n_in >= WAKE_BYTES;
    int at = is_long && e->links[k].tls == NULL && !e->links[k].is_local ? WAKE_BYTES : 1;

    if (at != ch->wakes_at && (at > 1 || ch->wakes_at > 1) &&
        setsockopt(e->links[k].fd, SOL_SOCKET, SO_RCVLOWAT, &at, sizeof(at)) == 0)
        ch->wakes_at = at;
}

static bool is_in_ring(const struct channel *ch)
{
    return ch->current != NULL && ch->in_ring;
}

/* Reads what has arrived: until one message is complete, or all: until nothing is left or the turn
 * ends. Returns -1 after comm_fail(). */
static int read_channel(struct comm *c, struct comm_end *e, uint32_t k, bool all)
{
    struct channel *ch = &e->channels[k];
    const struct tls_stream *tls = e->links[k].tls;
    size_t got = 0;
    ssize_t n = 1; /* 0: nothing is left */
    bool stops = false;

    while (!stops && n > 0) {
        while (has_head(ch)) /* an OFFER begins no message */
            if (begin_message(c, e, k) < 0)
                return -1;
        if (read_tail(c, e, k) < 0)
            return -1;
        if (has_all_bytes(ch) && ch->n_tail == 0) {
            finish_message(e, ch);
            stops = !all;
        } else if (got >= TURN_BYTES || ch->ended_ns != 0) {
            stops = true;
        } else {
            n = receive_next(c, e, k, TURN_BYTES);
            got += n > 0 ? (size_t)n : 0;
        }
    }
    set_wakes(e, k);
    if (n < 0)
        return -1;
    channel_set_more(e, ch,
                     has_head(ch) || (n > 0 && tls != NULL && tls_stream_has_bytes(tls)) ||
                         (is_in_ring(ch) && channel_ring_has_bytes(ch)));
    return 0;
}

int channel_read_more(struct comm *c, struct comm_end *e, bool all)
{
    for (uint32_t k = 0; e->n_more > 0 && k < e->n_links; k++)
        if (e->channels[k].has_more && read_channel(c, e, k, all) < 0)
            return -1;
    return 0;
}

/* A peer has woken this end, for bytes or for room in a ring. */
static int read_rings(struct comm *c, struct comm_end *e, bool all)
{
    uint64_t wakes;

    (void)!read(e->wake_fd, &wakes, sizeof(wakes)); /* EAGAIN: another event came with this one */
    for (uint32_t k = 0; k < e->n_links; k++)
        if (is_in_ring(&e->channels[k]) && read_channel(c, e, k, all) < 0)
            return -1;
    return 0;
}

int channel_read_ready(struct comm *c, struct comm_end *e, bool all, int wait_ms)
{
    struct epoll_event events[EVENTS];
    int n = epoll_wait(e->ready_fd, events, EVENTS, wait_ms);

    for (int i = 0; i < n; i++) {
        uint32_t k = events[i].data.u32;

        if ((k < e->n_links ? read_channel(c, e, k, all) : read_rings(c, e, all)) < 0)
            return -1;
    }
    return n < 0 ? 0 : n; /* EINTR: retry */
}
