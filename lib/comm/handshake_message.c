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
static const char welcome[READY_BYTES] = { 'w', 'e', 'l', 'c', 'o', 'm', 'e', '\n' };

void hello_write(const struct hello *h, uint8_t out[HELLO_BYTES])
{
    memcpy(out, magic, sizeof(magic));
    bytes_set_u32(out + 8, HELLO_VERSION);
    bytes_set_u32(out + 12, h->kind);
    bytes_set_u32(out + 16, h->from);
    bytes_set_u32(out + 20, h->to);
    bytes_set_u64(out + 24, h->generation);
    bytes_set_u64(out + 32, 0);
    memcpy(out + 40, h->layout, sizeof(h->layout));
    memcpy(out + 72, h->nonce, sizeof(h->nonce));
}

bool hello_read(const uint8_t in[HELLO_BYTES], struct hello *out, const char **why)
{
    const char *wrong = NULL;
    uint32_t kind = bytes_get_u32(in + 12);

    if (memcmp(in, magic, sizeof(magic)) != 0)
        wrong = "used another protocol";
    else if (bytes_get_u32(in + 8) != HELLO_VERSION)
        wrong = "used another version of this protocol";
    else if (kind < HELLO_LINK || kind > HELLO_TEST || bytes_get_u64(in + 32) != 0)
        wrong = "sent an invalid HELLO";
    if (why != NULL)
        *why = wrong;
    if (wrong != NULL)
        return false;
    out->kind = (enum hello_kind)kind;
    out->from = bytes_get_u32(in + 16);
    out->to = bytes_get_u32(in + 20);
    out->generation = bytes_get_u64(in + 24);
    memcpy(out->layout, in + 40, sizeof(out->layout));
    memcpy(out->nonce, in + 72, sizeof(out->nonce));
    return true;
}

enum hello_verdict hello_compare(const struct hello *h, const struct hello *here)
{
    if (h->generation < here->generation)
        return HELLO_STALE;
    if (h->generation > here->generation)
        return HELLO_EARLY;
    if (memcmp(h->layout, here->layout, sizeof(h->layout)) != 0)
        return HELLO_LAYOUT;
    return HELLO_OK;
}

/* HMAC(key, label hello challenge[0..n)). */
static void mac(const char label[LABEL_BYTES], const uint8_t *hello, const uint8_t *challenge,
                size_t n, const uint8_t *key, uint8_t out[DIGEST_BYTES])
{
    uint8_t text[LABEL_BYTES + HELLO_BYTES + CHALLENGE_BYTES];

    CHECK(n <= CHALLENGE_BYTES);
    memcpy(text, label, LABEL_BYTES);
    memcpy(text + LABEL_BYTES, hello, HELLO_BYTES);
    memcpy(text + LABEL_BYTES + HELLO_BYTES, challenge, n);
    digest_hmac(key, COMM_KEY_BYTES, text, LABEL_BYTES + HELLO_BYTES + n, out);
}

void challenge_write(const struct challenge *c, const uint8_t hello[HELLO_BYTES],
                     const uint8_t *key, uint8_t out[CHALLENGE_BYTES])
{
    bytes_set_u32(out, c->verdict);
    bytes_set_u32(out + 4, 0);
    bytes_set_u64(out + 8, c->generation);
    memcpy(out + 16, c->nonce, sizeof(c->nonce));
    mac("accept\0", hello, out, CHALLENGE_MAC_AT, key, out + CHALLENGE_MAC_AT);
}

bool challenge_read(const uint8_t in[CHALLENGE_BYTES], const uint8_t hello[HELLO_BYTES],
                    const uint8_t *key, struct challenge *out, bool *is_proven)
{
    uint8_t want[DIGEST_BYTES];
    uint32_t verdict = bytes_get_u32(in);

    if (verdict >= HELLO_VERDICTS || bytes_get_u32(in + 4) != 0)
        return false;
    out->verdict = (enum hello_verdict)verdict;
    out->generation = bytes_get_u64(in + 8);
    memcpy(out->nonce, in + 16, sizeof(out->nonce));
    mac("accept\0", hello, in, CHALLENGE_MAC_AT, key, want);
    *is_proven = digest_equal(want, in + CHALLENGE_MAC_AT);
    return true;
}

void proof_write(const uint8_t hello[HELLO_BYTES], const uint8_t challenge[CHALLENGE_BYTES],
                 const uint8_t *key, uint8_t out[PROOF_BYTES])
{
    mac("dial\0\0\0", hello, challenge, CHALLENGE_BYTES, key, out);
}

bool proof_check(const uint8_t in[PROOF_BYTES], const uint8_t hello[HELLO_BYTES],
                 const uint8_t challenge[CHALLENGE_BYTES], const uint8_t *key)
{
    uint8_t want[PROOF_BYTES];

    proof_write(hello, challenge, key, want);
    return digest_equal(want, in);
}

void secure_key(const uint8_t hello[HELLO_BYTES], const uint8_t challenge[CHALLENGE_BYTES],
                const uint8_t *key, uint8_t out[PROOF_BYTES])
{
    mac("secure\0", hello, challenge, CHALLENGE_BYTES, key, out);
}

void ready_write(uint8_t out[READY_BYTES])
{
    memcpy(out, welcome, READY_BYTES);
}

bool ready_check(const uint8_t in[READY_BYTES])
{
    return memcmp(in, welcome, READY_BYTES) == 0;
}
