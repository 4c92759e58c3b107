/* digest.h - SHA-256 and HMAC-SHA-256 (FIPS 180-4, RFC 2104), from libcrypto. Threads: any. */
#ifndef BASE_DIGEST_H
#define BASE_DIGEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { DIGEST_BYTES = 32, DIGEST_HEX_BYTES = 65 };

void digest_sha256(const void *data, size_t n, uint8_t out[DIGEST_BYTES]);
void digest_hmac(const void *key, size_t n_key, const void *data, size_t n,
                 uint8_t out[DIGEST_BYTES]);
bool digest_equal(const uint8_t a[DIGEST_BYTES], const uint8_t b[DIGEST_BYTES]); /* constant time */
void digest_hex(const uint8_t d[DIGEST_BYTES], char out[DIGEST_HEX_BYTES]);

#endif
