/* message.h - the bytes of the messages between members after the handshake: the head of an
 * exchange, the head of a message on a channel, and the life message. Pure: bytes in, a struct or an error out; no sockets.
 * Threads: any.
 *
 * Integers are little-endian; "zero" means that the writer writes zeros and the reader rejects
 * anything else. All formats belong to HANDSHAKE_VERSION (handshake_message.h): the HELLO in front
 * of every connection rejects a peer of another version. A change of a byte below must increase
 * HANDSHAKE_VERSION.
 *
 *   checksum: CRC-32C (u32). One follows each exchange head and each message head, on every connection. On a
 *   connection over TCP without TLS another one follows the data of an exchange, and the bytes of a message, unless
 *   there are none: it is the checksum of those bytes. TLS detects changed bytes by itself, and shared memory is no
 *   network
 *
 *   exchange head: precedes the data of each exchange on a link (link_tcp.c)
 *     offset  size  type  field
 *          0     4  u32   magic "xchg"
 *          4     4  u32   number of the call
 *          8     8  u64   count: elements of the vector; bytes of a broadcast; 0 for a barrier
 *         16     8  u64   tag: part of the call that this exchange belongs to
 *         24     1  u8    what: enum comm_what, below
 *         25     1  u8    dtype: enum tensor_dtype, the numbers of ONNX
 *         26     1  u8    op: 0 sum, 1 max, 2 or (enum comm_op); of a coded all-reduce the code: 1 bfloat16,
 *                         2 float16, 3 int8, 4 int4 (enum code_kind); 0 where nothing is reduced
 *         27     1  u8    spare: of an all-reduce with spare lanes, how the sender contributes its block (enum
 *                         spare_state, spare_lanes.h); else zero
 *         28     4  u32   root: rank that sends a broadcast; 0 for all other calls
 *
 *   message head: precedes each message on a channel (channel.c)
 *     offset  size  type  field
 *          0     4  u32   magic "mesg"
 *          4     4  u32   where the message is: enum channel_where, below
 *          8     8  u64   bytes of the message, <= COMM_MESSAGE_MAX; OFFER: zero
 *
 *   life message: on life lines, stars and tethers (life.c, share.c)
 *     offset  size  type  field
 *          0     4  u32   magic "life"
 *          4     4  u32   version of this layout: MESSAGE_LIFE_VERSION; tethers carry no HELLO
 *          8     4  u32   what: enum life_what
 *         12     4  u32   member
 *                           BYE, JOIN, OFFER  the sender
 *                           OVER       the member to blame, or COMM_NO_MEMBER
 *                           PART       the owner of the memory, or LIFE_PAGE
 *         16   240        BYE: zero
 *         16   240  text  OVER: the reason; ends with a NUL
 *         16     8  u64   JOIN, PART: bytes of the memory, > 0; OFFER: number of the call, < 2^32
 *         24   128  bits  JOIN: core i is bit i % 8 of byte i / 8; PART, OFFER: zero
 *        152   104        JOIN, PART, OFFER: zero
 *
 *   code: follows the life message on a life line between hosts
 *          0    32        HMAC-SHA-256 of the number of the sender (u32) and the life message, with
 *                         the key of the connection */
#ifndef COMM_MESSAGE_H
#define COMM_MESSAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct err;

enum {
    MESSAGE_HEAD_BYTES = 32,
    MESSAGE_CHANNEL_BYTES = 16,
    MESSAGE_LIFE_BYTES = 256,
    MESSAGE_LIFE_VERSION = 2,
    MESSAGE_KEY_BYTES = 32,
    MESSAGE_CODE_BYTES = 32,
    MESSAGE_SUM_BYTES = 4,
    MESSAGE_HEAD_SEALED = MESSAGE_HEAD_BYTES + MESSAGE_SUM_BYTES, /* with the checksum of the head */
    MESSAGE_CHANNEL_SEALED = MESSAGE_CHANNEL_BYTES + MESSAGE_SUM_BYTES,
    COMM_WHY_BYTES = 240, /* of the reason of a failure, including the NUL */
    COMM_CORES_BYTES = 128,
};
enum {
    COMM_NO_MEMBER = UINT32_MAX, /* OVER: no member is to blame */
    LIFE_PAGE = UINT32_MAX,      /* PART: the memory is the page of the host */
};

enum { COMM_STRIDE_UNIT = 64 };

enum comm_what {
    COMM_ALL_REDUCE = 0,
    COMM_REDUCE_SCATTER = 1,
    COMM_ALL_GATHER = 2,
    COMM_BROADCAST = 3,
    COMM_BARRIER = 4,
    COMM_ALL_REDUCE_CODED = 5,
    COMM_ALL_REDUCE_PIECES = 6,
    COMM_ALL_REDUCE_SPARED = 7,
};

/* The call that a rank makes. The ranks compare their calls. The members of a host read this struct
 * in the page that they share; page.h states its offsets. */
struct comm_call {
    uint64_t count;  /* elements; bytes of a broadcast */
    uint64_t offset; /* bytes from the start of the arena to the data; not compared */
    uint32_t number; /* of this rank's calls, from 1; wraps around */
    uint8_t what;    /* enum comm_what */
    uint8_t dtype;   /* enum tensor_dtype */
    uint8_t op;      /* enum comm_op; of COMM_ALL_REDUCE_CODED enum code_kind */
    uint8_t spare;   /* of COMM_ALL_REDUCE_SPARED: enum spare_state, not compared; else 0 */
    uint32_t root;     /* rank; 0 unless `what` is COMM_BROADCAST */
    uint32_t stride;   /* of COMM_ALL_REDUCE_PIECES and COMM_ALL_REDUCE_SPARED: COMM_STRIDE_UNIT bytes from the data of the first piece to
                          that of the second; else 0. Not compared, and not sent to other hosts */
};

/* Validates the fields of a call that another rank wrote, except `offset` and `stride`. `world`: number of
 * ranks. Errors: ERR_PEER. */
int message_check_call(const struct comm_call *call, uint32_t world, struct err *err);

/* Writes the checksum of a head of n bytes behind it. */
void message_seal(uint8_t *head, size_t n);
/* Returns whether the checksum behind a head of n bytes is that of the head. */
bool message_is_intact(const uint8_t *head, size_t n);

void message_head_write(const struct comm_call *call, uint64_t tag,
                        uint8_t out[MESSAGE_HEAD_BYTES]);
/* Reads and validates every field. Sets out->offset and out->stride to 0. Errors: ERR_PEER; then *out and *tag are
 * unchanged. */
int message_head_read(const uint8_t in[MESSAGE_HEAD_BYTES], uint32_t world, struct comm_call *out,
                      uint64_t *tag, struct err *err);

enum channel_where {
    CHANNEL_STREAM = 0, /* the bytes follow on the connection */
    CHANNEL_RING = 1,   /* the bytes are in the ring of the sender (ring.h) */
    CHANNEL_OFFER = 2,  /* no message: the descriptors of that ring, and of the eventfd that wakes the sender, come
                           along; at most once */
};

/* The head of a message of `bytes` bytes on a channel. */
void message_channel_write(enum channel_where where, size_t bytes,
                           uint8_t out[MESSAGE_CHANNEL_BYTES]);
/* Errors: ERR_PEER; then *where and *bytes are unchanged. */
int message_channel_read(const uint8_t in[MESSAGE_CHANNEL_BYTES], enum channel_where *where,
                         size_t *bytes, struct err *err);

enum life_what {
    LIFE_BYE = 1,  /* the sender closes its communicator in order */
    LIFE_OVER = 2, /* the generation has failed */
    LIFE_JOIN = 3, /* star, to the leader: the sender's arena; a descriptor of it comes along */
    LIFE_PART = 4, /* star, from the leader: the page or an arena; likewise */
    LIFE_OFFER = 5, /* line: the sender has computed the spare block of the receiver (spare_lanes.h) */
};

struct life_message {
    uint32_t what; /* enum life_what */
    uint32_t member;
    char why[COMM_WHY_BYTES];        /* OVER */
    uint64_t bytes;                  /* JOIN, PART; OFFER: the number of the call */
    uint8_t cores[COMM_CORES_BYTES]; /* JOIN: cores that the sender may use */
};

void message_life_write(const struct life_message *m, uint8_t out[MESSAGE_LIFE_BYTES]);
/* Reads and validates every field of a message from member `peer` of `n_members`; fields that its
 * kind does not have become zero. Errors: ERR_PEER; then *out is unchanged. */
int message_life_read(const uint8_t in[MESSAGE_LIFE_BYTES], uint32_t peer, uint32_t n_members,
                      struct life_message *out, struct err *err);
/* Writes the code of a life message that member `sender` sends on a connection with this key. */
void message_life_code(const uint8_t message[MESSAGE_LIFE_BYTES], uint32_t sender,
                       const uint8_t key[MESSAGE_KEY_BYTES], uint8_t out[MESSAGE_CODE_BYTES]);

#endif
