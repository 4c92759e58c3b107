/* tls.c - the certificates of a process; see tls.h. */
#include "tls/tls.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <openssl/ssl.h>
#include <openssl/x509_vfy.h>

#include "base/buf.h"
#include "base/check.h"
#include "base/digest.h"
#include "base/err.h"
#include "base/fault.h"
#include "base/fs.h"
#include "tls/keys.h"
#include "tls/openssl.h"
#include "tls/tls_priv.h"

enum { FILE_BYTES_MAX = 1 << 20 };

enum part { CERTIFICATE, KEY, AUTHORITY, PARTS };

static const char common_host[] = "task.trainerd";

struct tls {
    _Atomic uint32_t refs;
    char *paths[PARTS];    /* owned, constant; NULL: derived from a token */
    uint8_t token_key[TLS_KEY_BYTES]; /* constant; only if derived from a token */
    _Atomic int reading;   /* the part whose file tls_refresh() reads; PARTS: none */
    pthread_mutex_t lock;  /* protects the fields below; only tls_refresh() changes them */
    struct buf texts[PARTS]; /* PEM text in use */
    SSL_CTX *context;
    int64_t expires;
};

/* ---- contexts ---- */

SSL_CTX *tls_context_new(void)
{
    SSL_CTX *c = SSL_CTX_new(TLS_method());

    if (c == NULL || SSL_CTX_set_min_proto_version(c, TLS1_3_VERSION) != 1 ||
        SSL_CTX_set_num_tickets(c, 0) != 1 ||
        SSL_CTX_set_session_id_context(c, tls_session_context, TLS_SESSION_CONTEXT_BYTES) != 1) {
        SSL_CTX_free(c);
        return NULL;
    }
    (void)SSL_CTX_set_session_cache_mode(c, SSL_SESS_CACHE_OFF);
    (void)SSL_CTX_set_mode(c, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    SSL_CTX_set_read_ahead(c, 1); /* one recv() for several records */
    SSL_CTX_set_verify(c, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, NULL);
    return c;
}

static const unsigned char protocols[] = "\x02h2"; /* ALPN: length and name */

/* The client must offer HTTP/2, because no other protocol follows. */
static int select_protocol(SSL *ssl, const unsigned char **out, unsigned char *n_out,
                           const unsigned char *offered, unsigned n_offered, void *arg)
{
    unsigned char *chosen;

    (void)ssl, (void)arg;
    if (SSL_select_next_proto(&chosen, n_out, protocols, sizeof(protocols) - 1, offered,
                              n_offered) != OPENSSL_NPN_NEGOTIATED)
        return SSL_TLSEXT_ERR_ALERT_FATAL;
    *out = chosen;
    return SSL_TLSEXT_ERR_OK;
}

static int on_ticket(SSL *ssl, SSL_SESSION *session)
{
    struct tls_stream *s = SSL_get_app_data(ssl);

    (void)session;
    s->awaits_ticket = false;
    return 0; /* no reference is kept */
}

/* The server confirms that it accepts the certificate of the client: it sends a session ticket, for
 * which a client of this folder waits. (Without it, a client of TLS 1.3 would consider the handshake
 * complete and never see why it was rejected.) Clients of this folder do not resume sessions. */
static void confirm(SSL_CTX *c)
{
    (void)SSL_CTX_set_num_tickets(c, 1);
    (void)SSL_CTX_set_session_cache_mode(c, SSL_SESS_CACHE_CLIENT | SSL_SESS_CACHE_NO_INTERNAL);
    SSL_CTX_sess_set_new_cb(c, on_ticket);
}

/* ---- texts to a context ---- */

static const char *name_of(const struct tls *t, enum part part)
{
    return t->paths[part] != NULL ? t->paths[part] : "token";
}

static int use_certificates(const struct tls *t, SSL_CTX *c, STACK_OF(X509) * chain,
                            const char *key_text, struct err *err)
{
    EVP_PKEY *key = openssl_key(key_text);
    int rc = 0;

    if (key == NULL)
        rc =
            openssl_err(err, ERR_INPUT, "'%s': expected a private key without password in PEM text",
                        name_of(t, KEY));
    else if (SSL_CTX_use_certificate(c, sk_X509_value(chain, 0)) != 1)
        rc = openssl_err(err, ERR_INPUT, "'%s'", name_of(t, CERTIFICATE));
    else if (SSL_CTX_use_PrivateKey(c, key) != 1)
        rc = openssl_err(err, ERR_INPUT, "'%s': the key does not belong to the certificate '%s'",
                         name_of(t, KEY), name_of(t, CERTIFICATE));
    for (int i = 1; i < sk_X509_num(chain) && rc == 0; i++)
        if (SSL_CTX_add1_chain_cert(c, sk_X509_value(chain, i)) != 1)
            rc = openssl_err(err, ERR_INPUT, "'%s'", name_of(t, CERTIFICATE));
    EVP_PKEY_free(key);
    return rc;
}

static int use_authority(const struct tls *t, SSL_CTX *c, const char *text, struct err *err)
{
    STACK_OF(X509) *all = openssl_certificates(text);
    int rc = 0;

    if (all == NULL)
        rc = openssl_err(err, ERR_INPUT, "'%s': expected certificates in PEM text",
                         name_of(t, AUTHORITY));
    for (int i = 0; rc == 0 && i < sk_X509_num(all); i++)
        if (X509_STORE_add_cert(SSL_CTX_get_cert_store(c), sk_X509_value(all, i)) != 1)
            rc = openssl_err(err, ERR_INPUT, "'%s'", name_of(t, AUTHORITY));
    sk_X509_pop_free(all, X509_free);
    return rc;
}

/* The authority must have signed the own certificate, else every other task would reject it. */
static int verify_own(const struct tls *t, SSL_CTX *c, STACK_OF(X509) * chain, struct err *err)
{
    X509_STORE_CTX *v = X509_STORE_CTX_new();
    int rc = 0;

    if (v == NULL ||
        X509_STORE_CTX_init(v, SSL_CTX_get_cert_store(c), sk_X509_value(chain, 0), chain) != 1)
        rc = openssl_err(err, ERR_NOMEM, "'%s'", name_of(t, CERTIFICATE));
    else if (X509_verify_cert(v) != 1)
        rc = err_wrap(err, openssl_verdict(err, ERR_INPUT, X509_STORE_CTX_get_error(v)),
                      "'%s': not valid under the authority '%s'", name_of(t, CERTIFICATE),
                      name_of(t, AUTHORITY));
    X509_STORE_CTX_free(v);
    return rc;
}

static int64_t unix_time(const ASN1_TIME *at)
{
    struct tm tm = { 0 };

    return ASN1_TIME_to_tm(at, &tm) == 1 ? (int64_t)timegm(&tm) : INT64_MAX;
}

/* Makes a context of the texts. */
static int build(const struct tls *t, const struct buf texts[PARTS], SSL_CTX **out,
                 int64_t *expires, struct err *err)
{
    SSL_CTX *c = tls_context_new();
    STACK_OF(X509) *chain = openssl_certificates(texts[CERTIFICATE].data);
    int rc = 0;

    if (c != NULL && SSL_CTX_get_max_proto_version(c) != 0 &&
        SSL_CTX_get_max_proto_version(c) < TLS1_3_VERSION)
        rc = err_set(err, ERR_INPUT,
                     "TLS: the configuration of OpenSSL on this host (the file that OPENSSL_CONF names, else openssl.cnf) limits "
                     "MaxProtocol to a version below TLS 1.3, which the tasks use; remove this limit for trainerd");
    else if (c == NULL || SSL_CTX_set_alpn_protos(c, protocols, sizeof(protocols) - 1) != 0)
        rc = openssl_err(err, ERR_NOMEM, "TLS");
    else if (chain == NULL)
        rc = openssl_err(err, ERR_INPUT, "'%s': expected a certificate in PEM text",
                         name_of(t, CERTIFICATE));
    if (rc == 0)
        rc = use_authority(t, c, texts[AUTHORITY].data, err);
    if (rc == 0)
        rc = use_certificates(t, c, chain, texts[KEY].data, err);
    if (rc == 0)
        rc = verify_own(t, c, chain, err);
    if (rc == 0) {
        confirm(c);
        (void)SSL_CTX_set_mode(c, SSL_MODE_RELEASE_BUFFERS); /* 34 KiB of a silent connection */
        SSL_CTX_set_alpn_select_cb(c, select_protocol, NULL);
        if (!tls_has_files(t))
            tls_use_keys(c);
        *expires = unix_time(X509_get0_notAfter(sk_X509_value(chain, 0)));
        *out = c;
    } else {
        SSL_CTX_free(c);
    }
    sk_X509_pop_free(chain, X509_free);
    return rc;
}

/* ---- texts ---- */

static void free_texts(struct buf texts[PARTS])
{
    if (texts[KEY].data != NULL)
        OPENSSL_cleanse(texts[KEY].data, texts[KEY].len);
    for (int i = 0; i < PARTS; i++)
        buf_fini(&texts[i]);
}

static int read_files(struct tls *t, struct buf texts[PARTS], struct err *err)
{
    int rc = 0;

    for (int i = 0; i < PARTS && rc == 0; i++) {
        atomic_store(&t->reading, i);
        rc = fault_error("tls.read", err);
        if (rc == 0)
            rc = fs_read(t->paths[i], FILE_BYTES_MAX, &texts[i], err);
        if (rc == 0 && texts[i].len == 0)
            rc = err_set(err, ERR_INPUT, "'%s' is empty; expected PEM text", t->paths[i]);
    }
    atomic_store(&t->reading, PARTS);
    return rc;
}

static int make_texts(const char *token, const char *const *hosts, uint32_t n_hosts,
                      struct buf texts[PARTS], struct err *err)
{
    struct buf key = { 0 }; /* of the authority */
    const char **all = calloc((size_t)n_hosts + 1, sizeof(*all));
    struct tls_subject s = { .name = "trainerd task", .hosts = all, .n_hosts = n_hosts + 1 };
    int rc = all != NULL ? 0 : err_set(err, ERR_NOMEM, "TLS: out of memory");

    if (rc == 0) {
        all[0] = common_host;
        for (uint32_t i = 0; i < n_hosts; i++)
            all[i + 1] = hosts[i];
        rc = tls_authority_of_token(token, &texts[AUTHORITY], &key, err);
    }
    if (rc == 0)
        rc = tls_certificate_new(texts[AUTHORITY].data, key.data, &s, &texts[CERTIFICATE],
                                 &texts[KEY], err);
    if (key.data != NULL)
        OPENSSL_cleanse(key.data, key.len);
    buf_fini(&key);
    free(all);
    return rc;
}

/* ---- opening ---- */

static struct tls *new_tls(struct err *err)
{
    struct tls *t = calloc(1, sizeof(*t));

    if (t == NULL) {
        (void)err_set(err, ERR_NOMEM, "TLS: out of memory");
        return NULL;
    }
    CHECK(pthread_mutex_init(&t->lock, NULL) == 0);
    atomic_init(&t->refs, 1);
    atomic_init(&t->reading, PARTS);
    return t;
}

static int finish_open(struct tls *t, int rc, struct tls **out, struct err *err)
{
    if (rc == 0)
        rc = build(t, t->texts, &t->context, &t->expires, err);
    if (rc < 0) {
        tls_close(t);
        return rc;
    }
    *out = t;
    return 0;
}

int tls_open(const struct tls_files *files, struct tls **out, struct err *err)
{
    const char *const paths[PARTS] = { files->certificate, files->key, files->authority };
    struct tls *t = new_tls(err);
    int rc = 0;

    if (t == NULL)
        return ERR_NOMEM;
    for (int i = 0; i < PARTS; i++) {
        t->paths[i] = strdup(paths[i]);
        if (t->paths[i] == NULL)
            rc = err_set(err, ERR_NOMEM, "TLS: out of memory");
    }
    return finish_open(t, rc == 0 ? read_files(t, t->texts, err) : rc, out, err);
}

int tls_open_token(const char *token, const char *const *hosts, uint32_t n_hosts, struct tls **out,
                   struct err *err)
{
    static const char info[] = "key of a token, version 1";
    struct tls *t = new_tls(err);

    if (t == NULL)
        return ERR_NOMEM;
    digest_hmac(token, strlen(token), info, sizeof(info) - 1, t->token_key);
    return finish_open(t, make_texts(token, hosts, n_hosts, t->texts, err), out, err);
}

static bool are_equal(const struct buf a[PARTS], const struct buf b[PARTS])
{
    for (int i = 0; i < PARTS; i++)
        if (a[i].len != b[i].len || memcmp(a[i].data, b[i].data, a[i].len) != 0)
            return false;
    return true;
}

int tls_refresh(struct tls *t, struct err *err)
{
    struct buf texts[PARTS] = { { 0 } }, old_texts[PARTS];
    SSL_CTX *fresh = NULL, *old;
    int64_t expires = 0;
    int rc;

    if (!tls_has_files(t))
        return 0;
    rc = read_files(t, texts, err);
    if (rc == 0 && are_equal(texts, t->texts)) { /* no lock: no other thread changes the texts */
        free_texts(texts);
        return 0;
    }
    if (rc == 0)
        rc = build(t, texts, &fresh, &expires, err);
    if (rc < 0) {
        free_texts(texts);
        return rc;
    }
    pthread_mutex_lock(&t->lock);
    memcpy(old_texts, t->texts, sizeof(texts));
    memcpy(t->texts, texts, sizeof(texts));
    old = t->context;
    t->context = fresh;
    t->expires = expires;
    pthread_mutex_unlock(&t->lock);
    SSL_CTX_free(old);
    free_texts(old_texts);
    return 1;
}

struct tls *tls_ref(struct tls *t)
{
    (void)atomic_fetch_add(&t->refs, 1);
    return t;
}

void tls_close(struct tls *t)
{
    if (t == NULL || atomic_fetch_sub(&t->refs, 1) > 1)
        return;
    SSL_CTX_free(t->context);
    free_texts(t->texts);
    OPENSSL_cleanse(t->token_key, sizeof(t->token_key));
    for (int i = 0; i < PARTS; i++)
        free(t->paths[i]);
    (void)pthread_mutex_destroy(&t->lock);
    free(t);
}

/* ---- queries ---- */

SSL_CTX *tls_context(struct tls *t)
{
    SSL_CTX *c;

    pthread_mutex_lock(&t->lock);
    c = t->context;
    (void)SSL_CTX_up_ref(c); /* cannot fail: the counter is far below its limit */
    pthread_mutex_unlock(&t->lock);
    return c;
}

bool tls_token_key(const struct tls *t, uint8_t out[TLS_KEY_BYTES])
{
    memcpy(out, t->token_key, TLS_KEY_BYTES);
    return !tls_has_files(t);
}

int64_t tls_expires(struct tls *t)
{
    int64_t expires;

    pthread_mutex_lock(&t->lock);
    expires = t->expires;
    pthread_mutex_unlock(&t->lock);
    return expires;
}

int tls_texts_init(struct tls *t, struct tls_texts *out, struct err *err)
{
    struct tls_texts x;

    pthread_mutex_lock(&t->lock);
    x = (struct tls_texts){ .certificate = strdup(t->texts[CERTIFICATE].data),
                            .key = strdup(t->texts[KEY].data),
                            .authority = strdup(t->texts[AUTHORITY].data) };
    pthread_mutex_unlock(&t->lock);
    if (x.certificate == NULL || x.key == NULL || x.authority == NULL) {
        tls_texts_fini(&x);
        return err_set(err, ERR_NOMEM, "TLS: out of memory");
    }
    *out = x;
    return 0;
}

void tls_texts_fini(struct tls_texts *x)
{
    if (x->key != NULL)
        OPENSSL_cleanse(x->key, strlen(x->key));
    free(x->certificate);
    free(x->key);
    free(x->authority);
    *x = (struct tls_texts){ .key = NULL };
}

bool tls_has_files(const struct tls *t)
{
    return t->paths[CERTIFICATE] != NULL;
}

const char *tls_reading(const struct tls *t)
{
    int part = atomic_load(&t->reading);

    return part < PARTS ? t->paths[part] : NULL;
}

const char *tls_common_host(const struct tls *t)
{
    return tls_has_files(t) ? NULL : common_host;
}
