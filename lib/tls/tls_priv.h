/* tls_priv.h - what the files of lib/tls share. */
#ifndef TLS_TLS_PRIV_H
#define TLS_TLS_PRIV_H

#include <stdbool.h>
#include <stdint.h>

#include <openssl/ssl.h>

#include "tls/tls.h"

/* See stream.c. */
struct tls_stream {
    SSL *ssl;
    short events;                /* the last operation waits for these poll events */
    bool has_key;                /* data plane: `key` is used */
    bool has_token_key;          /* control plane with a token: `key` may take the place of the certificates */
    bool awaits_ticket;          /* a client: the server has not accepted its certificate */
    bool is_complete, is_broken; /* handshake; no further operation is possible */
    uint8_t key[TLS_KEY_BYTES];
    unsigned char identity[16]; /* of the key of a token */
    uint64_t n_sent; /* bytes since the last change of the key of this direction */
};

/* Returns the context for new streams with certificates, with a reference of the caller. */
SSL_CTX *tls_context(struct tls *t);
/* Copies the key that was derived from the token. Returns false if the certificates are from files. */
bool tls_token_key(const struct tls *t, uint8_t out[TLS_KEY_BYTES]);

/* Bytes that one key protects in one direction; smaller in a test. */
extern uint64_t tls_key_bytes_max;

/* ---- psk.c ---- */

/* Lets streams of the context, which have has_key or has_token_key, offer and accept their key. */
void tls_use_keys(SSL_CTX *c);

/* OpenSSL requires a context of sessions, also for keys. */
enum { TLS_SESSION_CONTEXT_BYTES = 8 };
extern const unsigned char tls_session_context[TLS_SESSION_CONTEXT_BYTES];

/* Options of every context: TLS 1.3 alone, no resumption, and writes of a part of the bytes.
 * NULL: out of memory. */
SSL_CTX *tls_context_new(void);

#endif
