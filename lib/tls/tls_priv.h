/* tls_priv.h - what the files of lib/tls share. */
#ifndef TLS_TLS_PRIV_H
#define TLS_TLS_PRIV_H

#include <openssl/ssl.h>

struct err;
struct tls;

/* Returns the context for new streams with certificates, with a reference of the caller. */
SSL_CTX *tls_context(struct tls *t);

/* Bytes that one key protects in one direction; smaller in a test. */
extern uint64_t tls_key_bytes_max;

/* OpenSSL requires a context of sessions, also for keys. */
enum { TLS_SESSION_CONTEXT_BYTES = 8 };
extern const unsigned char tls_session_context[TLS_SESSION_CONTEXT_BYTES];

/* Options of every context: TLS 1.3 alone, no resumption, and writes of a part of the bytes.
 * NULL: out of memory. */
SSL_CTX *tls_context_new(void);

/* The server confirms that it accepts the certificate of the client: it sends a session ticket, for
 * which a client of this folder waits. (Without it, a client of TLS 1.3 would consider the handshake
 * complete and never see why it was rejected.) Sessions are not resumed. */
void tls_confirm(SSL_CTX *c);

#endif
