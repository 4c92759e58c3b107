#include "base/digest.h"

#include <limits.h>

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include "base/check.h"

void digest_sha256(const void *data, size_t n, uint8_t out[DIGEST_BYTES])
{
    unsigned n_out = 0;

    CHECK(EVP_Digest(data, n, out, &n_out, EVP_sha256(), NULL) == 1 && n_out == DIGEST_BYTES);
}

void digest_hmac(const void *key, size_t n_key, const void *data, size_t n,
                 uint8_t out[DIGEST_BYTES])
{
    unsigned n_out = 0;

    CHECK(n_key <= INT_MAX);
    /* For libcrypto, a NULL key means "reuse the previous key", not an empty key. */
    CHECK(HMAC(EVP_sha256(), n_key > 0 ? key : "", (int)n_key, data, n, out, &n_out) != NULL &&
          n_out == DIGEST_BYTES);
}

bool digest_equal(const uint8_t a[DIGEST_BYTES], const uint8_t b[DIGEST_BYTES])
{
    return CRYPTO_memcmp(a, b, DIGEST_BYTES) == 0;
}

void digest_hex(const uint8_t d[DIGEST_BYTES], char out[DIGEST_HEX_BYTES])
{
    static const char digits[] = "0123456789abcdef";

    for (size_t i = 0; i < DIGEST_BYTES; i++) {
        out[2 * i] = digits[d[i] >> 4];
        out[2 * i + 1] = digits[d[i] & 15];
    }
    out[DIGEST_HEX_BYTES - 1] = '\0';
}
