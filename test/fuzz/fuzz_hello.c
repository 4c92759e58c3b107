/* fuzz_hello.c - any bytes as a request to or a response from the data-plane port. No input may be
 * authenticated without the key. */
#include <string.h>

#include "base/check.h"
#include "comm/comm.h"
#include "comm/handshake_message.h"
#include "fuzz/driver.h"

/* A HELLO of generation 3 from rank 1 to rank 0, and a CHALLENGE for it, computed with some key. */
#define HELLO                                                                                      \
    "trncomm\n\x02\0\0\0\x01\0\0\0\x01\0\0\0\0\0\0\0\x03\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"            \
    "layoutlayoutlayoutlayoutlayoutlanoncenoncenoncenoncenoncenonceno"
#define CHALLENGE                                                                                  \
    "\0\0\0\0\0\0\0\0\x03\0\0\0\0\0\0\0ecnonecnonecnonecnonecnonecnonecmacmacmacmacmacmacmacmacma" \
    "cma"

const struct fuzz_seed fuzz_seeds[] = { FUZZ_SEED(HELLO), FUZZ_SEED(HELLO CHALLENGE) };
const size_t n_fuzz_seeds = COUNT_OF(fuzz_seeds);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const uint8_t key[COMM_KEY_BYTES] = "nobody has guessed this one yet";
    uint8_t hello[HANDSHAKE_HELLO_BYTES] = { 0 }, again[HANDSHAKE_HELLO_BYTES],
            challenge[HANDSHAKE_CHALLENGE_BYTES] = { 0 };
    struct handshake_hello h, here = { .generation = 3 };
    struct handshake_challenge ch;
    const char *why = NULL;
    bool proven = false;
    size_t rest = size > HANDSHAKE_HELLO_BYTES ? size - HANDSHAKE_HELLO_BYTES : 0;

    memcpy(hello, data, size < HANDSHAKE_HELLO_BYTES ? size : HANDSHAKE_HELLO_BYTES);
    memcpy(challenge, data + size - rest,
           rest < HANDSHAKE_CHALLENGE_BYTES ? rest : HANDSHAKE_CHALLENGE_BYTES);
    if (handshake_hello_read(hello, &h, &why)) {
        handshake_hello_write(&h, again); /* reading and writing gives the same bytes */
        CHECK(memcmp(hello, again, HANDSHAKE_HELLO_BYTES) == 0);
        CHECK(handshake_hello_compare(&h, &here) < HANDSHAKE_VERDICTS);
    } else {
        CHECK(why != NULL && why[0] != '\0');
    }
    if (handshake_challenge_read(challenge, hello, key, &ch, &proven))
        CHECK(!proven && ch.verdict < HANDSHAKE_VERDICTS);
    CHECK(!handshake_proof_check(challenge, hello, challenge, key));
    return 0;
}
