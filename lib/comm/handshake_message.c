/* handshake_message.c - layout of the messages:
 *
 *   HELLO      0 magic "trncomm\n"   8 version u32   12 kind u32   16 from u32   20 to u32
 *              24 generation u64     32 zero u64     40 layout     72 nonce
 *   CHALLENGE  0 verdict u32         4 zero u32      8 generation u64
 *              16 nonce              48 HMAC over all bytes before
 *   PROOF      0 HMAC
 *   READY      0 "welcome\n" */
#include "comm/handshake_message.h"

#include <string.h>

#include "base/bytes.h"
#include "base/check.h"
#include "base/digest.h"
#include "comm/comm.h"

enum { CHALLENGE_MAC_AT = 48, LABEL_BYTES = 8 };

static const char magic[8] = { 't', 'r', 'n', 'c', 'o', 'm', 'm', '\n' };
static const char welcome[HANDSHAKE_READY_BYTES] = { 'w', 'e', 'l', 'c', 'o', 'm', 'e', '\n' };

void handshake_hello_write(const struct handshake_hello *h, uint8_t out[HANDSHAKE_HELLO_BYTES])
{
    memcpy(out, magic, sizeof(magic));
    bytes_set_u32(out + 8, HANDSHAKE_VERSION);
    bytes_set_u32(out + 12, h->kind);
    bytes_set_u32(out + 16, h->from);
    bytes_set_u32(out + 20, h->to);
    bytes_set_u64(out + 24, h->generation);
    bytes_set_u64(out + 32, 0);
    memcpy(out + 40, h->layout, sizeof(h->layout));
    memcpy(out + 72, h->nonce, sizeof(h->nonce));
}

bool handshake_hello_read(const uint8_t in[HANDSHAKE_HELLO_BYTES], struct handshake_hello *out,
                          const char **why)
{
    const char *wrong = NULL;
    uint32_t kind = bytes_get_u32(in + 12);

    if (memcmp(in, magic, sizeof(magic)) != 0)
        wrong = "used another protocol";
    else if (bytes_get_u32(in + 8) != HANDSHAKE_VERSION)
        wrong = "used another version of this protocol";
    else if (kind < HANDSHAKE_LINK || kind > HANDSHAKE_TEST || bytes_get_u64(in + 32) != 0)
        wrong = "sent an invalid HELLO";
    if (why != NULL)
        *why = wrong;
    if (wrong != NULL)
        return false;
    out->kind = (enum handshake_kind)kind;
    out->from = bytes_get_u32(in + 16);
    out->to = bytes_get_u32(in + 20);
    out->generation = bytes_get_u64(in + 24);
    memcpy(out->layout, in + 40, sizeof(out->layout));
    memcpy(out->nonce, in + 72, sizeof(out->nonce));
    return true;
}

enum handshake_verdict handshake_hello_compare(const struct handshake_hello *h,
                                               const struct handshake_hello *here)
{
    if (h->generation < here->generation)
        return HANDSHAKE_STALE;
    if (h->generation > here->generation)
        return HANDSHAKE_EARLY;
    if (memcmp(h->layout, here->layout, sizeof(h->layout)) != 0)
        return HANDSHAKE_LAYOUT;
    return HANDSHAKE_OK;
}

/* HMAC(key, label hello challenge[0..n)). */
static void mac(const char label[LABEL_BYTES], const uint8_t *hello, const uint8_t *challenge,
                size_t n, const uint8_t *key, uint8_t out[DIGEST_BYTES])
{
    uint8_t text[LABEL_BYTES + HANDSHAKE_HELLO_BYTES + HANDSHAKE_CHALLENGE_BYTES];

    CHECK(n <= HANDSHAKE_CHALLENGE_BYTES);
    memcpy(text, label, LABEL_BYTES);
    memcpy(text + LABEL_BYTES, hello, HANDSHAKE_HELLO_BYTES);
    memcpy(text + LABEL_BYTES + HANDSHAKE_HELLO_BYTES, challenge, n);
    digest_hmac(key, COMM_KEY_BYTES, text, LABEL_BYTES + HANDSHAKE_HELLO_BYTES + n, out);
}

void handshake_challenge_write(const struct handshake_challenge *c,
                               const uint8_t hello[HANDSHAKE_HELLO_BYTES], const uint8_t *key,
                               uint8_t out[HANDSHAKE_CHALLENGE_BYTES])
{
    bytes_set_u32(out, c->verdict);
    bytes_set_u32(out + 4, 0);
    bytes_set_u64(out + 8, c->generation);
    memcpy(out + 16, c->nonce, sizeof(c->nonce));
    mac("accept\0", hello, out, CHALLENGE_MAC_AT, key, out + CHALLENGE_MAC_AT);
}

bool handshake_challenge_read(const uint8_t in[HANDSHAKE_CHALLENGE_BYTES],
                              const uint8_t hello[HANDSHAKE_HELLO_BYTES], const uint8_t *key,
                              struct handshake_challenge *out, bool *is_proven)
{
    uint8_t want[DIGEST_BYTES];
    uint32_t verdict = bytes_get_u32(in);

    if (verdict >= HANDSHAKE_VERDICTS || bytes_get_u32(in + 4) != 0)
        return false;
    out->verdict = (enum handshake_verdict)verdict;
    out->generation = bytes_get_u64(in + 8);
    memcpy(out->nonce, in + 16, sizeof(out->nonce));
    mac("accept\0", hello, in, CHALLENGE_MAC_AT, key, want);
    *is_proven = digest_equal(want, in + CHALLENGE_MAC_AT);
    return true;
}

void handshake_proof_write(const uint8_t hello[HANDSHAKE_HELLO_BYTES],
                           const uint8_t challenge[HANDSHAKE_CHALLENGE_BYTES], const uint8_t *key,
                           uint8_t out[HANDSHAKE_PROOF_BYTES])
{
    mac("dial\0\0\0", hello, challenge, HANDSHAKE_CHALLENGE_BYTES, key, out);
}

bool handshake_proof_check(const uint8_t in[HANDSHAKE_PROOF_BYTES],
                           const uint8_t hello[HANDSHAKE_HELLO_BYTES],
                           const uint8_t challenge[HANDSHAKE_CHALLENGE_BYTES], const uint8_t *key)
{
    uint8_t want[HANDSHAKE_PROOF_BYTES];

    handshake_proof_write(hello, challenge, key, want);
    return digest_equal(want, in);
}

void handshake_key(const uint8_t hello[HANDSHAKE_HELLO_BYTES],
                   const uint8_t challenge[HANDSHAKE_CHALLENGE_BYTES], const uint8_t *key,
                   uint8_t out[HANDSHAKE_PROOF_BYTES])
{
    mac("secure\0", hello, challenge, HANDSHAKE_CHALLENGE_BYTES, key, out);
}

void handshake_ready_write(uint8_t out[HANDSHAKE_READY_BYTES])
{
    memcpy(out, welcome, HANDSHAKE_READY_BYTES);
}

bool handshake_ready_check(const uint8_t in[HANDSHAKE_READY_BYTES])
{
    return memcmp(in, welcome, HANDSHAKE_READY_BYTES) == 0;
}
