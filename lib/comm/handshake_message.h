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
    HELLO_VERSION = 3, /* of these messages and of the messages that follow them (message.h) */
    HELLO_NONCE_BYTES = 32,
    HELLO_BYTES = 104,
    CHALLENGE_BYTES = 80,
    PROOF_BYTES = 32,
    READY_BYTES = 8,
};

enum hello_kind {
    HELLO_LINK = 1, /* data between two ranks */
    HELLO_LIFE = 2, /* between two members: shows whether the other is alive */
    HELLO_HOST = 3, /* the same between the leader of a host and a member, over a Unix socket */
    HELLO_TEST = 4, /* a test of the path; the accepting side closes it (path.c) */
};

struct hello {
    enum hello_kind kind;
    uint32_t from, to; /* LINK: ranks; else members */
    uint64_t generation;
    uint8_t layout[32]; /* digest of members, ranks and options; must be equal on both sides */
    uint8_t nonce[HELLO_NONCE_BYTES];
};

enum hello_verdict {
    HELLO_OK,
    HELLO_STALE,    /* the generation of the dialler has ended */
    HELLO_EARLY,    /* the accepting side is in an earlier generation; never sent: the dialler
                       waits */
    HELLO_LAYOUT,   /* same generation, but another list of members */
    HELLO_UNWANTED, /* the accepting side does not expect this connection, or it exists already */
    HELLO_VERDICTS,
};

struct challenge {
    enum hello_verdict verdict;
    uint64_t generation; /* of the accepting side */
    uint8_t nonce[HELLO_NONCE_BYTES];
};

void hello_write(const struct hello *h, uint8_t out[HELLO_BYTES]);
/* Returns false if the bytes are no HELLO of this version. Writes a static text to `why` (may be
 * NULL). */
bool hello_read(const uint8_t in[HELLO_BYTES], struct hello *out, const char **why);

/* Compares with the generation and layout of the accepting side; other fields of `here` are not
 * used. */
enum hello_verdict hello_compare(const struct hello *h, const struct hello *here);

/* `hello` is the HELLO of the dialler, as sent. */
void challenge_write(const struct challenge *c, const uint8_t hello[HELLO_BYTES],
                     const uint8_t *key, uint8_t out[CHALLENGE_BYTES]);
/* Returns false if the bytes are invalid. *is_proven: the HMAC is valid. */
bool challenge_read(const uint8_t in[CHALLENGE_BYTES], const uint8_t hello[HELLO_BYTES],
                    const uint8_t *key, struct challenge *out, bool *is_proven);

void proof_write(const uint8_t hello[HELLO_BYTES], const uint8_t challenge[CHALLENGE_BYTES],
                 const uint8_t *key, uint8_t out[PROOF_BYTES]);
bool proof_check(const uint8_t in[PROOF_BYTES], const uint8_t hello[HELLO_BYTES],
                 const uint8_t challenge[CHALLENGE_BYTES], const uint8_t *key);

/* The key of TLS of a link, or of the codes of a life line; differs for every connection. */
void secure_key(const uint8_t hello[HELLO_BYTES], const uint8_t challenge[CHALLENGE_BYTES],
                const uint8_t *key, uint8_t out[PROOF_BYTES]);

void ready_write(uint8_t out[READY_BYTES]);
bool ready_check(const uint8_t in[READY_BYTES]);

#endif
