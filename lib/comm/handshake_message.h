/* handshake_message.h - the four messages by which both ends of a new connection prove that they
 * know the key. Pure: bytes in, verdict out; no sockets.
 *
 * dialling side                                        accepting side
 * HELLO      own rank, wanted rank, a random number  ->
 *                                                    <-  CHALLENGE  verdict, a random number, and
 *                                                        HMAC(key, "accept" HELLO CHALLENGE)
 * PROOF      HMAC(key, "dial" HELLO CHALLENGE)       ->
 *                                                    <-  READY
 *
 * A link under TLS continues with the handshake of TLS 1.3, the dialling side as the client, with the
 * key HMAC(key, "secure" HELLO CHALLENGE).
 *
 * All four have a fixed size, and nothing else is read before PROOF is verified. A verdict other
 * than OK ends the connection. It is accepted only with a valid HMAC, so a process without the key
 * can neither join nor make a member give up. Integers are little-endian; the byte offsets are in
 * handshake_message.c. HMAC-SHA-256, RFC 2104. Both random numbers are in both HMACs, and the
 * labels "accept" and "dial" prevent that one direction replays the proof of the other. */
#ifndef COMM_HANDSHAKE_MESSAGE_H
#define COMM_HANDSHAKE_MESSAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct err;

enum {
    HANDSHAKE_VERSION = 7, /* of these messages and of the messages that follow them (message.h) */
    HANDSHAKE_NONCE_BYTES = 32,
    HANDSHAKE_HELLO_BYTES = 104,
    HANDSHAKE_CHALLENGE_BYTES = 80,
    HANDSHAKE_PROOF_BYTES = 32,
    HANDSHAKE_READY_BYTES = 8,
};

enum handshake_kind {
    HANDSHAKE_LINK = 1, /* data between two points: ranks, or servers of a ps (channel.h); a channel between members
                           that can share memory is over a Unix socket */
    HANDSHAKE_LIFE = 2, /* between two members: shows whether the other is alive */
    HANDSHAKE_HOST = 3, /* the same between the leader of a host and a member, over a Unix socket */
    HANDSHAKE_TEST = 4, /* a test of the path; the accepting side closes it (path.c) */
};

struct handshake_hello {
    enum handshake_kind kind;
    uint32_t from, to; /* LINK: points; else members */
    uint64_t generation;
    uint8_t layout[32]; /* digest of members, ranks and options; must be equal on both sides */
    uint8_t nonce[HANDSHAKE_NONCE_BYTES];
};

enum handshake_verdict {
    HANDSHAKE_OK,
    HANDSHAKE_STALE,    /* the generation of the dialler has ended */
    HANDSHAKE_EARLY,    /* the accepting side is in an earlier generation; never sent: the dialler
                       waits */
    HANDSHAKE_LAYOUT,   /* same generation, but another list of members */
    HANDSHAKE_UNWANTED, /* the accepting side does not expect this connection, or it exists already
                         */
    HANDSHAKE_VERDICTS,
};

struct handshake_challenge {
    enum handshake_verdict verdict;
    uint64_t generation; /* of the accepting side */
    uint8_t nonce[HANDSHAKE_NONCE_BYTES];
};

void handshake_hello_write(const struct handshake_hello *h, uint8_t out[HANDSHAKE_HELLO_BYTES]);
/* Returns false if the bytes are no HELLO of this version. Writes a static text to `why` (may be
 * NULL). */
bool handshake_hello_read(const uint8_t in[HANDSHAKE_HELLO_BYTES], struct handshake_hello *out,
                          const char **why);

/* Compares with the generation and layout of the accepting side; other fields of `here` are not
 * used. */
enum handshake_verdict handshake_hello_compare(const struct handshake_hello *h,
                                               const struct handshake_hello *here);

/* `hello` is the HELLO of the dialler, as sent. */
void handshake_challenge_write(const struct handshake_challenge *c,
                               const uint8_t hello[HANDSHAKE_HELLO_BYTES], const uint8_t *key,
                               uint8_t out[HANDSHAKE_CHALLENGE_BYTES]);
/* Returns false if the bytes are invalid. *is_proven: the HMAC is valid. */
bool handshake_challenge_read(const uint8_t in[HANDSHAKE_CHALLENGE_BYTES],
                              const uint8_t hello[HANDSHAKE_HELLO_BYTES], const uint8_t *key,
                              struct handshake_challenge *out, bool *is_proven);

void handshake_proof_write(const uint8_t hello[HANDSHAKE_HELLO_BYTES],
                           const uint8_t challenge[HANDSHAKE_CHALLENGE_BYTES], const uint8_t *key,
                           uint8_t out[HANDSHAKE_PROOF_BYTES]);
bool handshake_proof_check(const uint8_t in[HANDSHAKE_PROOF_BYTES],
                           const uint8_t hello[HANDSHAKE_HELLO_BYTES],
                           const uint8_t challenge[HANDSHAKE_CHALLENGE_BYTES], const uint8_t *key);

/* The key of TLS of a link, or of the codes of a life line; differs for every connection. */
void handshake_key(const uint8_t hello[HANDSHAKE_HELLO_BYTES],
                   const uint8_t challenge[HANDSHAKE_CHALLENGE_BYTES], const uint8_t *key,
                   uint8_t out[HANDSHAKE_PROOF_BYTES]);

void handshake_ready_write(uint8_t out[HANDSHAKE_READY_BYTES]);
bool handshake_ready_check(const uint8_t in[HANDSHAKE_READY_BYTES]);

#endif
