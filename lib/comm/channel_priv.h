/* channel_priv.h - the state of a channel, shared by channel.c (calls), channel_open.c, channel_read.c (bytes to messages)
 * and channel_ring.c (shared memory). */
#ifndef COMM_CHANNEL_PRIV_H
#define COMM_CHANNEL_PRIV_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <sys/uio.h>

#include "comm/comm_priv.h"
#include "comm/ring.h"

enum {
    CHANNEL_AHEAD_BYTES = 4096,
    CHANNEL_RECORD_BYTES = 16 << 10, /* the longest record of TLS */
    CHANNEL_COLLECT_BYTES = 64 << 10, /* of small parts, or for small places, in one system call */
    CHANNEL_RING_MIN = 16 << 10, /* smaller messages take the connection: one system call, and no other wake-up */
};

struct channel_buffer {
    struct channel_buffer *next;
    size_t bytes, capacity;
    uint8_t *data; /* owned; aligned to 64 bytes */
    bool is_placed; /* the bytes of the message are in the places of comm_place(), not in `data` */
};

struct channel {
    struct channel_buffer *first, *last; /* owned; the complete messages, oldest first */
    struct channel_buffer *current;      /* owned; being received; NULL: its head is not complete */
    struct channel_buffer *idle;         /* owned; the list of unused buffers */
    size_t n_in;                         /* bytes received of `current` */
    const struct iovec *places;          /* borrowed; of the next message with place_bytes bytes; NULL: none */
    size_t place_bytes;
    const struct iovec *place;           /* of the next byte of a message that is placed */
    size_t place_at;                     /* bytes of that place that were received */
    size_t ahead_at, ahead_end;          /* the bytes [ahead_at, ahead_end) of `ahead` are unused */
    uint64_t n_messages;                 /* received so far */
    uint64_t ended_ns;                   /* when the connection ended; 0: it is open */
    bool has_more;                       /* can be read, although epoll does not report it */
    int wakes_at;                        /* SO_RCVLOWAT of the connection; 0: not set */
    size_t n_tail;                       /* bytes of the checksum that follows `current`; 0: none, or it was read */
    uint32_t sum;                        /* of the bytes of `current` so far, if it has a checksum */
    bool in_ring;                        /* the rest of `current` is in ring_in */
    bool has_offered;                    /* ring_out was offered to the peer */
    struct ring ring_out, ring_in;       /* owned; of a local link. ring_in: none before the offer of the peer */
    int peer_wake_fd;                    /* owned; eventfd that came with ring_in; valid if that exists */
    int passed[2];                       /* owned; descriptors received, before their OFFER was read; -1 */
    uint8_t ahead[CHANNEL_AHEAD_BYTES];
};

/* Returns the bytes of the checksum that follows a message of so many bytes. */
static inline size_t channel_sum_bytes(const struct comm_link *link, size_t bytes)
{
    return bytes > 0 && link->tls == NULL && !link->is_local ? MESSAGE_SUM_BYTES : 0;
}

/* Returns the place of the next byte of `current`, which is not complete; *room: bytes that it has. */
static inline uint8_t *channel_next_place(struct channel *ch, size_t *room)
{
    if (!ch->current->is_placed) {
        *room = ch->current->bytes - ch->n_in;
        return ch->current->data + ch->n_in;
    }
    for (; ch->place_at == ch->place->iov_len; ch->place++)
        ch->place_at = 0;
    *room = ch->place->iov_len - ch->place_at;
    return (uint8_t *)ch->place->iov_base + ch->place_at;
}

/* The next n bytes of `current` are at their place. */
static inline void channel_pass(struct channel *ch, size_t n)
{
    ch->n_in += n;
    ch->place_at += n;
}

/* Reads what has arrived, without waiting, on the channels that epoll does not report. all: until
 * nothing is left; else until one message of each channel is complete. Returns -1 after
 * comm_fail(). */
int channel_read_more(struct comm *c, struct comm_end *e, bool all);
/* Waits up to wait_ms for bytes on any channel, and reads them. Returns the number of channels with
 * bytes; -1 after comm_fail(). */
int channel_read_ready(struct comm *c, struct comm_end *e, bool all, int wait_ms);
/* Sets ch->has_more, and counts it in e->n_more. */
void channel_set_more(struct comm_end *e, struct channel *ch, bool more);
/* ---- channel_ring.c ---- */
/* Sends the OFFER of a local link, unless that was done. The descriptors in flight may be too many for the system:
 * the next message tries again. Returns -1 after comm_fail(). */
int channel_offer_ring(struct comm *c, struct comm_end *e, uint32_t k);
/* Handles the OFFER of the peer, with the descriptors ch->passed. Returns -1 after comm_fail(). */
int channel_accept_ring(struct comm *c, struct comm_end *e, uint32_t k);
/* Returns true if a message of so many bytes goes through the ring. */
bool channel_uses_ring(const struct channel *ch, size_t bytes);
/* Writes bytes of the parts, from byte `at` of the first one, to the ring. Returns the number of bytes; 0: the ring
 * is full; -1 after comm_fail(). */
ssize_t channel_ring_send(struct comm *c, struct comm_end *e, uint32_t k, const struct iovec *parts,
                          uint32_t n_parts, size_t at);
/* Reads bytes of `current` from the ring to their places. Returns their number; 0: none; -1 after comm_fail(). */
ssize_t channel_ring_receive(struct comm *c, struct comm_end *e, uint32_t k);
/* Called before this end sleeps until there is room in the ring. Returns 1: there is; 0; -1 after comm_fail(). */
int channel_ring_wait(struct comm *c, struct comm_end *e, uint32_t k);
/* The same for the bytes of `current`. Returns true if this end need not sleep. */
bool channel_ring_has_bytes(struct channel *ch);
void channel_close_ring(struct channel *ch);
/* Receives descriptors, too. Returns as recv(). */
ssize_t channel_recv_passed(struct channel *ch, int fd, void *to, size_t bytes);
/* Keeps the buffer for a later message of the channel. */
void channel_release(struct channel *ch, struct channel_buffer *b);
void channel_buffer_free(struct channel_buffer *b); /* with those that follow; NULL is allowed */

#endif
