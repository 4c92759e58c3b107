/* channel.h - messages between the ranks and the servers of one generation: through shared memory between members
 * that can share it (opts.shared_memory), else over TCP.
 *
 * A *server* is a service thread of a parameter server (ps): a member with n_servers > 0 and no
 * replicas. A *point* is a rank or a server. Ranks are the points [0, comm_world()); servers are
 * [comm_world(), comm_world() + comm_servers()), numbered over the ps in the order of the members.
 * A *local end* is a rank or a server of this member, counted from 0.
 *
 *   between             channel
 *   rank, server        always
 *   server, server      if they belong to different ps
 *   rank, rank          none; ranks use the collectives (comm/comm.h)
 *
 * Messages between two points arrive in the order in which they were sent. Messages have no type;
 * the sender and the receiver agree on the content.
 *
 * Threads: one thread at a time per local end. Calls of different local ends, and the collectives
 * of the same rank, run at the same time.
 *
 * Failures end the generation as those of the collectives do: after comm_abort(), the death of a
 * peer or a failure of any call, every call returns soon with the same error. Errors: ERR_PEER (a
 * member died, or sent invalid bytes; with its name), ERR_PATH, ERR_TIMEOUT, ERR_CANCELED,
 * ERR_NOMEM. opts.on_wait is called around every wait. */
#ifndef COMM_CHANNEL_H
#define COMM_CHANNEL_H

#include <stddef.h>
#include <stdint.h>

struct comm;
struct err;
struct iovec;

enum { COMM_MESSAGE_MAX = 256 << 20 }; /* bytes of a message; a peer that sends more is refused */

struct comm_message {
    uint32_t from; /* point */
    size_t bytes;
    const uint8_t *data; /* [bytes], aligned to 64 bytes; NULL: they are in the places of comm_place() */
};

uint32_t comm_servers(const struct comm *c);     /* of all ps */
uint32_t comm_first_point(const struct comm *c); /* of this member: its first rank, or server */
/* Returns the index of the member in the view. point < comm_world() + comm_servers(). */
uint32_t comm_point_member(const struct comm *c, uint32_t point);

/* Sends one message, the concatenation of the parts, to a point with a channel to this local end.
 * Blocks until the kernel has accepted all bytes, or all are in the memory that the members share. Meanwhile,
 * messages that arrive for this local end are read into memory, so ends that send to each other never wait for each other. The limit is
 * four fifths of the deadline of the communicator: a rank that waits for a server then fails, and
 * names it, before the collectives in which other ranks wait for that rank. Errors: as above, ERR_INPUT (more than COMM_MESSAGE_MAX bytes;
 * nothing was sent, and the generation continues). */
int comm_send(struct comm *c, uint32_t local, uint32_t to, const struct iovec *parts,
              uint32_t n_parts, struct err *err);

/* Returns the next message from any point with a channel to this local end. Points take turns. The
 * message is valid until the next comm_receive() of the same local end, or comm_close().
 * timeout_ms:
 *   0           the limit of comm_send(). ERR_TIMEOUT ends the generation, and names the
 *               points that have sent the fewest messages
 *   UINT64_MAX  no limit
 *   otherwise   ERR_TIMEOUT does not end the generation: the call can be repeated
 * A member that closed its communicator in order sends no more messages; ERR_PEER if that is true
 * of all points. Buffers are kept until comm_close(), so messages that are not larger than earlier
 * ones cause no allocation. */
int comm_receive(struct comm *c, uint32_t local, struct comm_message *out, uint64_t timeout_ms,
                 struct err *err);
/* Receives a message without a copy: the next one from this point that has as many bytes as the places together,
 * and has not begun to arrive, is written to them; others are received as always. The places are borrowed until
 * comm_receive() returns that message, the next call for this point, or comm_close(). */
void comm_place(struct comm *c, uint32_t local, uint32_t from, const struct iovec *places,
                uint32_t n);
/* Takes the memory of the message that comm_receive() returned last, so the message stays valid, and gives
 * *data [*capacity], from aligned_alloc(64, ) or an earlier call, for later messages; *data NULL: none. */
void comm_exchange(struct comm *c, uint32_t local, uint8_t **data, size_t *capacity);

#endif
