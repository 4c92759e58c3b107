/* message.h - the messages between two tasks of a preflight, as bytes. Pure.
 *
 * A message is a header of MESSAGE_HEAD bytes (mark, kind, number of bytes that follow) and a body.
 * Numbers are little-endian. A reader accepts nothing but what a writer of the same protocol version
 * makes: a body with a missing or surplus byte, a number out of range or a string with control
 * characters is refused.
 *
 * The task that connects sends requests, and receives one reply for each:
 *
 *   HELLO (facts)      -> HELLO (facts), or REFUSE (an enum preflight_reach)
 *   PING               -> PONG (wall clock)
 *   BEGIN (round)      -> READY (ticket for the data port), when the other task is in that round
 *   END (round)        -> END
 *   ROW (rank)         -> ROW_IS (the row, or an empty body: not known yet)
 *   ROW_IS (a row)     -> END
 *   BYE                -> no reply: no further request follows */
#ifndef PREFLIGHT_MESSAGE_H
#define PREFLIGHT_MESSAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "preflight/types.h"

struct buf;

enum {
    MESSAGE_HEAD = 8,
    MESSAGE_BODY_MAX = 128 << 10, /* more than a row of PREFLIGHT_WORLD_MAX entries */
    MESSAGE_TICKET_BYTES = 16,
    MESSAGE_DATA_HEAD = 8 + MESSAGE_TICKET_BYTES, /* mark, rank, ticket: opens a data connection */
};

enum message_kind {
    MESSAGE_HELLO = 1, MESSAGE_REFUSE, MESSAGE_PING, MESSAGE_PONG, MESSAGE_BEGIN, MESSAGE_READY,
    MESSAGE_END, MESSAGE_ROW, MESSAGE_ROW_IS, MESSAGE_BYE, MESSAGE_KINDS,
};

struct message_hello {
    uint32_t rank, world;
    struct preflight_facts facts;
};

/* Each appends a whole message. */
void message_write(enum message_kind kind, const void *body, size_t n, struct buf *out);
void message_write_u32(enum message_kind kind, uint32_t v, struct buf *out);
void message_write_hello(const struct message_hello *h, struct buf *out);
void message_write_row(uint32_t rank, uint32_t world, const struct preflight_row *row,
                       struct buf *out);
void message_write_data_head(uint32_t rank, const uint8_t ticket[MESSAGE_TICKET_BYTES],
                             uint8_t out[MESSAGE_DATA_HEAD]);

/* Each returns false if the bytes are not such a message. */
bool message_read_head(const uint8_t head[MESSAGE_HEAD], enum message_kind *kind, uint32_t *n);
bool message_read_u32(const uint8_t *body, size_t n, uint32_t *out);
bool message_read_u64(const uint8_t *body, size_t n, uint64_t *out);
bool message_read_hello(const uint8_t *body, size_t n, struct message_hello *out);
/* `entries` of *out has room for `world` entries, which are overwritten. *rank < world. */
bool message_read_row(const uint8_t *body, size_t n, uint32_t world, uint32_t *rank,
                      struct preflight_row *out);
bool message_read_data_head(const uint8_t head[MESSAGE_DATA_HEAD], uint32_t *rank,
                            uint8_t ticket[MESSAGE_TICKET_BYTES]);

#endif
