/* hello.h - the four messages by which two ends of a new connection prove that both know the key.
 * Pure: bytes in, verdict out; no sockets.
 *
 *   dialling side                                        accepting side
 *   HELLO      who I am, whom I want, a random number  ->
 *                                                      <-  CHALLENGE  verdict, a random number, and
 *                                                          HMAC(key, "accept" HELLO CHALLENGE)
 *   PROOF      HMAC(key, "dial" HELLO CHALLENGE)       ->
 *                                                      <-  READY
 *
 * All four are of fixed size, and nothing else is read before PROOF was checked. A verdict other
 * than OK ends the connection; it is believed only with the HMAC, so a stranger can neither enter
 * nor make anybody give up. Integers are little-endian; byte offsets in hello.c.
 * HMAC-SHA-256, RFC 2104; both random numbers are in both proofs, and the words in front keep a
 * proof from being played back in the other direction. */
#ifndef COMM_HELLO_H
#define COMM_HELLO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct err;

enum {
    HELLO_VERSION = 2, /* of these messages and of those that follow them (message.h) */
    HELLO_NONCE_BYTES = 32,
    HELLO_BYTES = 104,
    CHALLENGE_BYTES = 80,
    PROOF_BYTES = 32,
    READY_BYTES = 8,
};

enum hello_kind {
    HELLO_LINK = 1, /* data between two ranks */
    HELLO_LIFE = 2, /* between two members: tells whether the other lives */
    HELLO_HOST = 3, /* the same between a host's leader and a member, over a Unix socket */
    HELLO_TEST = 4, /* a test of the path, which the accepting side closes (path.c) */
};

struct hello {
    enum hello_kind kind;
    uint32_t from, to; /* LINK: ranks; else members */
    uint64_t generation;
    uint8_t layout[32]; /* digest of members, ranks and options: equal on both sides */
    uint8_t nonce[HELLO_NONCE_BYTES];
};

enum hello_verdict {
    HELLO_OK,
    HELLO_STALE,    /* the dialler's generation is over */
    HELLO_EARLY,    /* the accepting side is not that far yet; never said, it keeps us waiting */
    HELLO_LAYOUT,   /* same generation, another idea of who is in it */
    HELLO_UNWANTED, /* not a connection that this side expects, or it is there already */
    HELLO_VERDICTS,
};

struct challenge {
    enum hello_verdict verdict;
    uint64_t generation; /* of the accepting side */
    uint8_t nonce[HELLO_NONCE_BYTES];
};

void hello_write(const struct hello *h, uint8_t out[HELLO_BYTES]);
/* false: not a hello of this version. `why` (may be NULL) gets a static text. */
bool hello_read(const uint8_t in[HELLO_BYTES], struct hello *out, const char **why);

/* Compares with what the accepting side is at (only generation and layout of `here` count). */
enum hello_verdict hello_judge(const struct hello *h, const struct hello *here);

/* `hello` is the dialler's HELLO as it was sent. */
void challenge_write(const struct challenge *c, const uint8_t hello[HELLO_BYTES],
                     const uint8_t *key, uint8_t out[CHALLENGE_BYTES]);
/* false: the bytes make no sense. *is_proven: the HMAC is right. */
bool challenge_read(const uint8_t in[CHALLENGE_BYTES], const uint8_t hello[HELLO_BYTES],
                    const uint8_t *key, struct challenge *out, bool *is_proven);

void proof_write(const uint8_t hello[HELLO_BYTES], const uint8_t challenge[CHALLENGE_BYTES],
                 const uint8_t *key, uint8_t out[PROOF_BYTES]);
bool proof_check(const uint8_t in[PROOF_BYTES], const uint8_t hello[HELLO_BYTES],
                 const uint8_t challenge[CHALLENGE_BYTES], const uint8_t *key);

void ready_write(uint8_t out[READY_BYTES]);
bool ready_check(const uint8_t in[READY_BYTES]);

#endif
