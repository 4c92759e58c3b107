#include "base/digest.h"

#include <limits.h>

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include "base/check.h"

/* libcrypto would free its tables in a handler of exit(), while threads that cannot be joined, because a name
 * service or a storage may block them, still use it: a process that ends with such a thread could crash instead of
 * returning its exit code. So the handler is not registered, and the end of the process releases the memory. The
 * first use of libcrypto by any library of the process decides; therefore this function runs before main(). */
__attribute__((constructor)) static void omit_exit_handler(void)
{
    /* fails only without memory; then the handler is registered by the next use */
    (void)OPENSSL_init_crypto(OPENSSL_INIT_NO_ATEXIT, NULL);
}

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
