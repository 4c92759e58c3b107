/* keys.c - see keys.h. */
#include "tls/keys.h"

#include <arpa/inet.h>
#include <string.h>

#include <openssl/bn.h>
#include <openssl/core_names.h>
#include <openssl/ec.h>
#include <openssl/kdf.h>
#include <openssl/param_build.h>
#include <openssl/rand.h>
#include <openssl/x509v3.h>

#include "base/buf.h"
#include "base/check.h"
#include "base/err.h"
#include "tls/openssl.h"

enum {
    SERIAL_BYTES = 16,
    POINT_BYTES = 65,  /* a point of P-256, uncompressed */
    SECRET_BYTES = 48, /* 128 bits more than the order of P-256, so the remainder has no bias */
    DAY_SECONDS = 86400,
    COMMON_NAME_MAX = 64,
};

static const char curve[] = "P-256";

/* ---- keys ---- */

/* HKDF-SHA256 of the token. */
static bool derive(const char *token, uint8_t out[SECRET_BYTES])
{
    static char salt[] = "trainerd", info[] = "authority of a token, version 1";
    EVP_KDF *kdf = EVP_KDF_fetch(NULL, "HKDF", NULL);
    EVP_KDF_CTX *context = kdf != NULL ? EVP_KDF_CTX_new(kdf) : NULL;
    OSSL_PARAM params[] = {
        OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, (char *)"SHA256", 0),
        OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_KEY, (char *)token, strlen(token)),
        OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_SALT, salt, sizeof(salt) - 1),
        OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_INFO, info, sizeof(info) - 1),
        OSSL_PARAM_construct_end(),
    };
    bool is_done = context != NULL && EVP_KDF_derive(context, out, SECRET_BYTES, params) == 1;

    EVP_KDF_CTX_free(context);
    EVP_KDF_free(kdf);
    return is_done;
}

/* Sets *d to the private number 1 + secret mod (n - 1), n the order of the curve, and `point` to its
 * public point. */
static bool private_number(const EC_GROUP *group, const uint8_t *secret, BIGNUM *d, BN_CTX *memory,
                           uint8_t point[POINT_BYTES])
{
    BIGNUM *most = BN_dup(EC_GROUP_get0_order(group));
    EC_POINT *q = EC_POINT_new(group);
    bool is_done = most != NULL && q != NULL && BN_sub_word(most, 1) &&
                   BN_bin2bn(secret, SECRET_BYTES, d) != NULL && BN_mod(d, d, most, memory) &&
                   BN_add_word(d, 1) && EC_POINT_mul(group, q, d, NULL, NULL, memory) &&
                   EC_POINT_point2oct(group, q, POINT_CONVERSION_UNCOMPRESSED, point, POINT_BYTES,
                                      memory) == POINT_BYTES;

    EC_POINT_free(q);
    BN_free(most);
    return is_done;
}

static EVP_PKEY *key_of(BIGNUM *d, const uint8_t *point)
{
    OSSL_PARAM_BLD *build = OSSL_PARAM_BLD_new();
    EVP_PKEY_CTX *context = EVP_PKEY_CTX_new_from_name(NULL, "EC", NULL);
    OSSL_PARAM *params = NULL;
    EVP_PKEY *key = NULL;

    if (build != NULL && context != NULL &&
        OSSL_PARAM_BLD_push_utf8_string(build, OSSL_PKEY_PARAM_GROUP_NAME, curve, 0) &&
        OSSL_PARAM_BLD_push_octet_string(build, OSSL_PKEY_PARAM_PUB_KEY, point, POINT_BYTES) &&
        OSSL_PARAM_BLD_push_BN(build, OSSL_PKEY_PARAM_PRIV_KEY, d) &&
        (params = OSSL_PARAM_BLD_to_param(build)) != NULL && EVP_PKEY_fromdata_init(context) == 1)
        (void)EVP_PKEY_fromdata(context, &key, EVP_PKEY_KEYPAIR, params); /* NULL on failure */
    OSSL_PARAM_free(params);
    EVP_PKEY_CTX_free(context);
    OSSL_PARAM_BLD_free(build);
    return key;
}

static EVP_PKEY *key_of_token(const char *token)
{
    uint8_t secret[SECRET_BYTES], point[POINT_BYTES];
    EC_GROUP *group = EC_GROUP_new_by_curve_name(NID_X9_62_prime256v1);
    BN_CTX *memory = BN_CTX_secure_new();
    BIGNUM *d = BN_secure_new();
    EVP_PKEY *key = NULL;

    if (group != NULL && memory != NULL && d != NULL && derive(token, secret) &&
        private_number(group, secret, d, memory, point))
        key = key_of(d, point);
    OPENSSL_cleanse(secret, sizeof(secret));
    BN_clear_free(d);
    BN_CTX_free(memory);
    EC_GROUP_free(group);
    return key;
}

/* ---- certificates ---- */

static bool set_serial(X509 *x)
{
    uint8_t bytes[SERIAL_BYTES];
    BIGNUM *n;
    bool is_done;

    if (RAND_bytes(bytes, sizeof(bytes)) != 1)
        return false;
    bytes[0] = (uint8_t)(bytes[0] & 0x7f) | 0x40; /* positive, and of full length */
    n = BN_bin2bn(bytes, sizeof(bytes), NULL);
    is_done = n != NULL && BN_to_ASN1_INTEGER(n, X509_get_serialNumber(x)) != NULL;
    BN_free(n);
    return is_done;
}

/* 99991231235959Z: no end (RFC 5280, section 4.1.2.5). */
static bool set_validity(X509 *x, uint32_t days)
{
    if (days == 0)
        return ASN1_TIME_set_string_X509(X509_getm_notBefore(x), "20200101000000Z") &&
               ASN1_TIME_set_string_X509(X509_getm_notAfter(x), "99991231235959Z");
    return X509_gmtime_adj(X509_getm_notBefore(x), -DAY_SECONDS) != NULL &&
           X509_time_adj_ex(X509_getm_notAfter(x), (int)days, 0, NULL) != NULL;
}

/* A common name has at most 64 characters (RFC 5280, ub-common-name), the host name of a pod often more. */
static bool is_common_name(const char *name)
{
    return strlen(name) <= COMMON_NAME_MAX;
}

/* The subject of a longer name is empty: the list of hosts has it. */
static bool set_name(X509_NAME *to, const char *name)
{
    return !is_common_name(name) ||
           X509_NAME_add_entry_by_txt(to, "CN", MBSTRING_UTF8, (const unsigned char *)name, -1, -1,
                                      0) == 1;
}

static bool add_extension(X509 *x, X509 *issuer, int nid, const char *value)
{
    X509V3_CTX context;
    X509_EXTENSION *e;
    bool is_done;

    X509V3_set_ctx(&context, issuer, x, NULL, NULL, 0);
    e = X509V3_EXT_conf_nid(NULL, &context, nid, value);
    is_done = e != NULL && X509_add_ext(x, e, -1) == 1;
    X509_EXTENSION_free(e);
    return is_done;
}

/* Appends "DNS:host" or "IP:address" to the list. Returns false if `host` is no name: a comma would
 * begin another entry. */
static bool add_host(struct buf *list, const char *host)
{
    static const char letters[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.";
    uint8_t address[16];
    bool is_ip = inet_pton(AF_INET, host, address) == 1 || inet_pton(AF_INET6, host, address) == 1;

    if (!is_ip && (host[0] == '\0' || strlen(host) > 253 || host[strspn(host, letters)] != '\0'))
        return false;
    buf_printf(list, "%s%s:%s", list->len > 0 ? "," : "", is_ip ? "IP" : "DNS", host);
    return true;
}

static int add_hosts(X509 *x, X509 *issuer, const struct tls_subject *s, struct err *err)
{
    struct buf list = { 0 };
    int rc = 0;

    if (s->n_hosts > 0 && !is_common_name(s->name)) /* the subject is empty: RFC 5280, 4.2.1.6 */
        buf_str(&list, "critical");
    for (uint32_t i = 0; i < s->n_hosts && rc == 0; i++)
        if (!add_host(&list, s->hosts[i]))
            rc = err_set(err, ERR_INPUT, "certificate of '%.64s': '%.253s' is no host name; expected "
                         "a DNS name or an IP address", s->name, s->hosts[i]);
    if (rc == 0 && list.failed)
        rc = err_set(err, ERR_NOMEM, "certificate of '%.64s': out of memory", s->name);
    if (rc == 0 && list.len > 0 && !add_extension(x, issuer, NID_subject_alt_name, list.data))
        rc = openssl_err(err, ERR_IO, "certificate of '%.64s'", s->name);
    buf_fini(&list);
    return rc;
}

/* Creates a certificate of `key`, signed with the key of the issuer; issuer NULL: an authority. */
static int make(const struct tls_subject *s, EVP_PKEY *key, X509 *issuer, EVP_PKEY *issuer_key,
                X509 **out, struct err *err)
{
    X509 *x = X509_new();
    bool is_authority = issuer == NULL;
    int rc = 0;

    if (is_authority)
        issuer = x;
    if (x == NULL || X509_set_version(x, X509_VERSION_3) != 1 || !set_serial(x) ||
        !set_validity(x, s->days) || !set_name(X509_get_subject_name(x), s->name) ||
        X509_set_issuer_name(x, X509_get_subject_name(issuer)) != 1 ||
        X509_set_pubkey(x, key) != 1 ||
        !add_extension(x, issuer, NID_basic_constraints,
                       is_authority ? "critical,CA:TRUE,pathlen:0" : "critical,CA:FALSE") ||
        !add_extension(x, issuer, NID_key_usage,
                       is_authority ? "critical,keyCertSign,cRLSign"
                                    : "critical,digitalSignature") ||
        !add_extension(x, issuer, NID_subject_key_identifier, "hash") ||
        !add_extension(x, issuer, NID_authority_key_identifier, "keyid:always") ||
        (!is_authority && !add_extension(x, issuer, NID_ext_key_usage, "serverAuth,clientAuth")))
        rc = openssl_err(err, ERR_IO, "certificate of '%.64s'", s->name);
    if (rc == 0)
        rc = add_hosts(x, issuer, s, err);
    if (rc == 0 && X509_sign(x, issuer_key, EVP_sha256()) == 0)
        rc = openssl_err(err, ERR_IO, "sign the certificate of '%.64s'", s->name);
    if (rc < 0)
        X509_free(x);
    else
        *out = x;
    return rc;
}

/* Appends both as PEM text and frees them. */
static int print(X509 *x, EVP_PKEY *key, struct buf *certificate, struct buf *key_text,
                 struct err *err)
{
    int rc = openssl_print_certificate(x, certificate, err);

    if (rc == 0)
        rc = openssl_print_key(key, key_text, err);
    X509_free(x);
    EVP_PKEY_free(key);
    return rc;
}

static int authority(const struct tls_subject *s, EVP_PKEY *key, struct buf *certificate,
                     struct buf *key_text, struct err *err)
{
    X509 *x = NULL;
    int rc = 0;

    if (key == NULL)
        return openssl_err(err, ERR_IO, "key of '%.64s'", s->name);
    rc = make(s, key, NULL, key, &x, err);
    if (rc < 0) {
        EVP_PKEY_free(key);
        return rc;
    }
    return print(x, key, certificate, key_text, err);
}

int tls_authority_new(const char *name, uint32_t days, struct buf *certificate, struct buf *key,
                      struct err *err)
{
    struct tls_subject s = { .name = name, .days = days };

    return authority(&s, EVP_EC_gen(curve), certificate, key, err);
}

int tls_authority_of_token(const char *token, struct buf *certificate, struct buf *key,
                           struct err *err)
{
    struct tls_subject s = { .name = "trainerd token" };

    return authority(&s, key_of_token(token), certificate, key, err);
}

int tls_certificate_new(const char *authority_text, const char *authority_key,
                        const struct tls_subject *subject, struct buf *certificate,
                        struct buf *key_text, struct err *err)
{
    X509 *issuer = openssl_certificate(authority_text), *x = NULL;
    EVP_PKEY *issuer_key = openssl_key(authority_key), *key = EVP_EC_gen(curve);
    int rc = 0;

    if (issuer == NULL || issuer_key == NULL)
        rc = openssl_err(err, ERR_INPUT, "authority: expected a %s in PEM text",
                         issuer == NULL ? "certificate" : "private key without password");
    else if (X509_check_private_key(issuer, issuer_key) != 1)
        rc = openssl_err(err, ERR_INPUT, "authority: the key does not belong to the certificate");
    else if (key == NULL)
        rc = openssl_err(err, ERR_IO, "key of '%.64s'", subject->name);
    else
        rc = make(subject, key, issuer, issuer_key, &x, err);
    X509_free(issuer);
    EVP_PKEY_free(issuer_key);
    if (rc < 0) {
        EVP_PKEY_free(key);
        return rc;
    }
    return print(x, key, certificate, key_text, err);
}
