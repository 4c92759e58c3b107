/* channel_priv.h - the receiving half of a channel, shared by channel_read.c (bytes to messages) and
 * channel.c (calls). */
#ifndef COMM_CHANNEL_PRIV_H
#define COMM_CHANNEL_PRIV_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <sys/uio.h>

#include "comm/comm_priv.h"

enum { CHANNEL_AHEAD_BYTES = 4096 };

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
    uint8_t ahead[CHANNEL_AHEAD_BYTES];
};

/* Reads what has arrived, without waiting, on the channels that epoll does not report. all: until
 * nothing is left; else until one message of each channel is complete. Returns -1 after
 * comm_fail(). */
int channel_read_more(struct comm *c, struct comm_end *e, bool all);
/* Waits up to wait_ms for bytes on any channel, and reads them. Returns the number of channels with
 * bytes; -1 after comm_fail(). */
int channel_read_ready(struct comm *c, struct comm_end *e, bool all, int wait_ms);
/* Sets ch->has_more, and counts it in e->n_more. */
void channel_set_more(struct comm_end *e, struct channel *ch, bool more);
/* Keeps the buffer for a later message of the channel. */
void channel_release(struct channel *ch, struct channel_buffer *b);
void channel_buffer_free(struct channel_buffer *b); /* with those that follow; NULL is allowed */

#endif
