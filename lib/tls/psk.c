/* psk.c - keys that both ends know (RFC 8446, section 4.2.11).
 *
 * The key of the data plane is required: its identity is the same for every key. The key of a token may take the
 * place of the certificates, whose handshake costs several times as much. Its identity is a function of the
 * key, so that a callee with another token, or without this rule, answers with its certificate, which is then
 * rejected or accepted as before. */
#include <string.h>

#include <openssl/ssl.h>

#include "base/digest.h"
#include "tls/tls_priv.h"

enum { IDENTITY_BYTES = 16 };

const unsigned char tls_session_context[TLS_SESSION_CONTEXT_BYTES] = { 't', 'r', 'a', 'i', 'n', 'e', 'r', 'd' };

static const unsigned char *identity_of(struct tls_stream *s, size_t *n)
{
    static const unsigned char fixed[] = "trainerd", info[] = "identity";
    uint8_t digest[DIGEST_BYTES];

    *n = s->has_key ? sizeof(fixed) - 1 : IDENTITY_BYTES;
    if (s->has_key)
        return fixed;
    digest_hmac(s->key, sizeof(s->key), info, sizeof(info) - 1, digest);
    memcpy(s->identity, digest, IDENTITY_BYTES);
    return s->identity;
}

/* The cipher decides the hash of the key, and must be the one that both contexts prefer. */
static SSL_SESSION *session_of(SSL *ssl)
{
    static const unsigned char aes_128_gcm_sha256[] = { 0x13, 0x01 }, aes_256_gcm_sha384[] = { 0x13, 0x02 };
    const struct tls_stream *s = SSL_get_app_data(ssl);
    const SSL_CIPHER *cipher =
        SSL_CIPHER_find(ssl, s->has_key ? aes_128_gcm_sha256 : aes_256_gcm_sha384);
    SSL_SESSION *session = SSL_SESSION_new();

    if (session != NULL && SSL_SESSION_set1_master_key(session, s->key, sizeof(s->key)) == 1 &&
        SSL_SESSION_set_cipher(session, cipher) == 1 &&
        SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION) == 1 &&
        SSL_SESSION_set1_id_context(session, tls_session_context, TLS_SESSION_CONTEXT_BYTES) == 1)
        return session;
    SSL_SESSION_free(session);
    return NULL;
}

static int offer_key(SSL *ssl, const EVP_MD *digest, const unsigned char **id, size_t *n_id,
                     SSL_SESSION **session)
{
    struct tls_stream *s = SSL_get_app_data(ssl);

    *session = NULL;
    *id = identity_of(s, n_id);
    if (!s->has_key && !s->has_token_key)
        return 1;
    /* The callee sent a retry request, and the key does not fit the hash of its cipher. */
    if (s->has_token_key && digest != NULL && EVP_MD_is_a(digest, "SHA384") != 1)
        return 1;
    *session = session_of(ssl);
    return *session != NULL;
}

static int find_key(SSL *ssl, const unsigned char *id, size_t n_id, SSL_SESSION **session)
{
    struct tls_stream *s = SSL_get_app_data(ssl);
    size_t n;
    const unsigned char *known = identity_of(s, &n);

    /* an unknown identity: the data plane fails, because there is no certificate; else the certificates decide */
    *session = NULL;
    if ((s->has_key || s->has_token_key) && n_id == n && memcmp(id, known, n) == 0)
        *session = session_of(ssl);
    return 1;
}

void tls_use_keys(SSL_CTX *c)
{
    SSL_CTX_set_psk_use_session_callback(c, offer_key);
    SSL_CTX_set_psk_find_session_callback(c, find_key);
}
