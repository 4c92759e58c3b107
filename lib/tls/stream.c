/* stream.c - connections under TLS; see tls.h. */
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

#include "base/check.h"
#include "base/err.h"
#include "base/errno_text.h"
#include "tls/openssl.h"
#include "tls/tls.h"
#include "tls/tls_priv.h"

uint64_t tls_key_bytes_max = (uint64_t)1 << 36;

/* ---- the key of the data plane ---- */

static SSL_CTX *psk_context; /* after psk_once; NULL: out of memory */
static pthread_once_t psk_once = PTHREAD_ONCE_INIT;

/* A peer that offers a certificate instead fails, because no authority is trusted. */
static void make_psk_context(void)
{
    SSL_CTX *c = tls_context_new();

    if (c == NULL || SSL_CTX_set_ciphersuites(c, "TLS_AES_128_GCM_SHA256") != 1) {
        SSL_CTX_free(c);
        return;
    }
    tls_use_keys(c);
    psk_context = c;
}

/* ---- opening ---- */

static bool is_ip(const char *host)
{
    uint8_t address[16];

    return inet_pton(AF_INET, host, address) == 1 || inet_pton(AF_INET6, host, address) == 1;
}

/* The certificate of the server must name the host. */
static bool expect_host(SSL *ssl, const char *host)
{
    if (is_ip(host))
        return X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl), host) == 1;
    return SSL_set1_host(ssl, host) == 1 && SSL_set_tlsext_host_name(ssl, host) == 1;
}

static struct tls_stream *start(SSL_CTX *c, enum tls_side side, int fd)
{
    struct tls_stream *s = calloc(1, sizeof(*s));

    if (s == NULL)
        return NULL;
    s->ssl = c != NULL ? SSL_new(c) : NULL;
    if (s->ssl == NULL || SSL_set_fd(s->ssl, fd) != 1) {
        tls_stream_free(s);
        return NULL;
    }
    if (side == TLS_CLIENT)
        SSL_set_connect_state(s->ssl);
    else
        SSL_set_accept_state(s->ssl);
    (void)SSL_set_app_data(s->ssl, s);
    return s;
}

int tls_stream_new(struct tls *t, enum tls_side side, int fd, const char *host,
                   struct tls_stream **out, struct err *err)
{
    SSL_CTX *c = tls_context(t);
    const char *common = tls_common_host(t);
    struct tls_stream *s = start(c, side, fd);

    SSL_CTX_free(c); /* the stream has its own reference */
    if (s == NULL || (side == TLS_CLIENT && !expect_host(s->ssl, common != NULL ? common : host))) {
        tls_stream_free(s);
        return openssl_err(err, ERR_NOMEM, "TLS stream");
    }
    s->awaits_ticket = side == TLS_CLIENT;
    s->has_token_key = tls_token_key(t, s->key);
    *out = s;
    return 0;
}

int tls_stream_new_psk(const uint8_t key[TLS_KEY_BYTES], enum tls_side side, int fd,
                       struct tls_stream **out, struct err *err)
{
    struct tls_stream *s;

    (void)pthread_once(&psk_once, make_psk_context);
    s = start(psk_context, side, fd);
    if (s == NULL)
        return openssl_err(err, ERR_NOMEM, "TLS stream");
    memcpy(s->key, key, sizeof(s->key));
    s->has_key = true;
    *out = s;
    return 0;
}

/* ---- operations ---- */

/* Handles the result of an operation that did not succeed. Returns true if it must be repeated
 * later; else errno has the reason. */
static bool must_wait(struct tls_stream *s, int result)
{
    int errnum = errno;

    switch (SSL_get_error(s->ssl, result)) {
    case SSL_ERROR_WANT_READ:
        s->events = POLLIN;
        return true;
    case SSL_ERROR_WANT_WRITE:
        s->events = POLLOUT;
        return true;
    case SSL_ERROR_SYSCALL:
        s->is_broken = true;
        errno = errnum != 0 ? errnum : ECONNRESET;
        return false;
    default: /* a connection that ends without TLS's own end is an error for OpenSSL */
        s->is_broken = true;
        errno = ERR_GET_REASON(ERR_peek_error()) == SSL_R_UNEXPECTED_EOF_WHILE_READING ? ECONNRESET
                                                                                       : EPROTO;
        return false;
    }
}

/* The reason why the other side, or its certificate, was rejected. */
static int rejected(struct tls_stream *s, struct err *err)
{
    long verdict = SSL_get_verify_result(s->ssl);
    unsigned long e = ERR_peek_error();
    int reason = ERR_GET_REASON(e);

    if (reason == SSL_R_WRONG_VERSION_NUMBER || reason == SSL_R_HTTP_REQUEST)
        return openssl_err(err, ERR_AUTH, "TLS: the other side does not use TLS");
    if (!s->has_key && reason < SSL_AD_REASON_OFFSET && verdict != X509_V_OK) {
        ERR_clear_error();
        return err_wrap(err, openssl_verdict(err, ERR_AUTH, (int)verdict),
                        "TLS: the certificate of the other side is not accepted");
    }
    if (reason >= SSL_AD_REASON_OFFSET)
        return openssl_err(err, ERR_AUTH, "TLS: the other side does not accept this %s",
                           s->has_key ? "key" : "certificate");
    return openssl_err(err, ERR_AUTH, "TLS");
}

/* Bytes of the server prove the same as a ticket. Returns 1, or the result of OpenSSL. */
static int await_ticket(struct tls_stream *s)
{
    char byte;
    int rc = SSL_peek(s->ssl, &byte, sizeof(byte));

    return rc == 1 || !s->awaits_ticket ? 1 : rc;
}

int tls_stream_handshake(struct tls_stream *s, struct err *err)
{
    int rc;

    if (s->is_complete)
        return 1;
    ERR_clear_error();
    errno = 0;
    rc = SSL_do_handshake(s->ssl);
    if (rc == 1 && s->awaits_ticket && !SSL_session_reused(s->ssl)) /* else the server knows the key */
        rc = await_ticket(s);
    if (rc != 1 && must_wait(s, rc))
        return 0;
    if (rc != 1 && errno == EPROTO)
        return rejected(s, err);
    if (rc != 1)
        return err_set(err, ERR_PEER, "TLS: the connection ended during the handshake: %s",
                       errno_text(errno));
    if (s->has_key && !SSL_session_reused(s->ssl)) {
        s->is_broken = true;
        return err_set(err, ERR_AUTH, "TLS: the other side did not prove that it knows the key");
    }
    s->is_complete = true;
    s->events = POLLIN;
    return 1;
}

ssize_t tls_stream_recv(struct tls_stream *s, void *to, size_t n)
{
    size_t got = 0;

    CHECK(s->is_complete);
    if (s->is_broken)
        return errno = ECONNRESET, -1;
    ERR_clear_error();
    errno = 0;
    if (SSL_read_ex(s->ssl, to, n, &got) == 1)
        return (ssize_t)got;
    if (SSL_get_error(s->ssl, 0) == SSL_ERROR_ZERO_RETURN)
        return 0;
    if (must_wait(s, 0))
        errno = EAGAIN;
    return -1;
}

ssize_t tls_stream_send(struct tls_stream *s, const void *from, size_t n)
{
    size_t sent = 0;

    CHECK(s->is_complete);
    if (s->is_broken)
        return errno = ECONNRESET, -1;
    ERR_clear_error();
    errno = 0;
    /* One key of AES-GCM may protect 2^24.5 records (RFC 8446, section 5.5): it changes earlier,
       and never while a record is being written. */
    if (s->n_sent >= tls_key_bytes_max && SSL_want_nothing(s->ssl) &&
        SSL_key_update(s->ssl, SSL_KEY_UPDATE_NOT_REQUESTED) == 1)
        s->n_sent = 0;
    if (SSL_write_ex(s->ssl, from, n, &sent) == 1) {
        s->n_sent += sent;
        return (ssize_t)sent;
    }
    if (must_wait(s, 0))
        errno = EAGAIN;
    return -1;
}

short tls_stream_events(const struct tls_stream *s)
{
    return s->events;
}

bool tls_stream_has_bytes(const struct tls_stream *s)
{
    return !s->is_broken && SSL_has_pending(s->ssl) == 1;
}

/* ---- the peer ---- */

/* A struct tls_peer is a certificate with a reference. */
static X509 *certificate_of(const struct tls_peer *p)
{
    return (X509 *)p;
}

struct tls_peer *tls_stream_peer(const struct tls_stream *s)
{
    X509 *x = SSL_get1_peer_certificate(s->ssl);

    if (x != NULL || !s->has_token_key || !SSL_session_reused(s->ssl))
        return (struct tls_peer *)x;
    x = SSL_get_certificate(s->ssl); /* all certificates of a token have the same rights */
    return x != NULL && X509_up_ref(x) == 1 ? (struct tls_peer *)x : NULL;
}

void tls_peer_free(struct tls_peer *p)
{
    X509_free(certificate_of(p));
}

bool tls_peer_has(const struct tls_peer *p, const char *host)
{
    X509 *x = certificate_of(p);

    return is_ip(host) ? X509_check_ip_asc(x, host, 0) == 1
                       : X509_check_host(x, host, 0, 0, NULL) == 1;
}

static size_t print_name(const GENERAL_NAME *g, char *out, size_t size)
{
    char ip[INET6_ADDRSTRLEN];
    const ASN1_STRING *text = g->d.ia5;
    int n;

    if (g->type == GEN_IPADD && inet_ntop(ASN1_STRING_length(text) == 4 ? AF_INET : AF_INET6,
                                          ASN1_STRING_get0_data(text), ip, sizeof(ip)) != NULL)
        n = snprintf(out, size, " %s", ip);
    else if (g->type == GEN_DNS)
        n = snprintf(out, size, " %.*s", ASN1_STRING_length(text), ASN1_STRING_get0_data(text));
    else
        return 0;
    return n < 0 || (size_t)n >= size ? 0 : (size_t)n; /* names that do not fit are left out */
}

void tls_peer_names(const struct tls_peer *p, char *out, size_t size)
{
    GENERAL_NAMES *names = X509_get_ext_d2i(certificate_of(p), NID_subject_alt_name, NULL, NULL);
    size_t used = 0;

    out[0] = '\0';
    for (int i = 0; i < sk_GENERAL_NAME_num(names); i++) {
        size_t n = print_name(sk_GENERAL_NAME_value(names, i), out + used, size - used);

        used += n;
        out[used] = '\0';
    }
    if (used > 0)
        memmove(out, out + 1, used);
    GENERAL_NAMES_free(names);
}

void tls_stream_free(struct tls_stream *s)
{
    if (s == NULL)
        return;
    if (s->is_complete && !s->is_broken) {
        ERR_clear_error();
        (void)SSL_shutdown(s->ssl); /* not essential: the end of the connection says the same */
        ERR_clear_error();
    }
    SSL_free(s->ssl);
    OPENSSL_cleanse(s->key, sizeof(s->key));
    free(s);
}
