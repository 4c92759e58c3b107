/* openssl.c - see openssl.h. */
#include "tls/openssl.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>

#include "base/buf.h"
#include "base/err.h"

int openssl_err(struct err *err, int code, const char *fmt, ...)
{
    unsigned long first = ERR_get_error();
    const char *reason = first != 0 ? ERR_reason_error_string(first) : NULL;
    char text[512];
    va_list ap;

    ERR_clear_error();
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    return err_set(err, code, "%s: %s", text, reason != NULL ? reason : "TLS library failed");
}

/* Encrypted keys are not supported: a password must not be requested on the terminal. */
static int no_password(char *out, int size, int is_writing, void *arg)
{
    (void)out, (void)size, (void)is_writing, (void)arg;
    return -1;
}

X509 *openssl_certificate(const char *pem)
{
    BIO *in = BIO_new_mem_buf(pem, -1);
    X509 *x = in != NULL ? PEM_read_bio_X509(in, NULL, no_password, NULL) : NULL;

    BIO_free(in);
    return x;
}

STACK_OF(X509) *openssl_certificates(const char *pem)
{
    BIO *in = BIO_new_mem_buf(pem, -1);
    STACK_OF(X509) *all = sk_X509_new_null();
    X509 *x;

    while (in != NULL && all != NULL &&
           (x = PEM_read_bio_X509(in, NULL, no_password, NULL)) != NULL)
        if (sk_X509_push(all, x) == 0) {
            X509_free(x);
            break;
        }
    BIO_free(in);
    if (sk_X509_num(all) <= 0) {
        sk_X509_pop_free(all, X509_free);
        return NULL;
    }
    ERR_clear_error(); /* the end of the text is reported as an error */
    return all;
}

EVP_PKEY *openssl_key(const char *pem)
{
    BIO *in = BIO_new_mem_buf(pem, -1);
    EVP_PKEY *key = in != NULL ? PEM_read_bio_PrivateKey(in, NULL, no_password, NULL) : NULL;

    BIO_free(in);
    return key;
}

static int append(BIO *from, int has_written, struct buf *out, struct err *err)
{
    char *text = NULL;
    long n = from != NULL ? BIO_get_mem_data(from, &text) : 0;
    int rc = 0;

    if (!has_written || n <= 0)
        rc = openssl_err(err, ERR_NOMEM, "write PEM text");
    else if (buf_add(out, text, (size_t)n), out->failed)
        rc = err_set(err, ERR_NOMEM, "write PEM text: out of memory");
    BIO_free(from);
    return rc;
}

int openssl_print_certificate(X509 *x, struct buf *out, struct err *err)
{
    BIO *to = BIO_new(BIO_s_mem());

    return append(to, to != NULL && PEM_write_bio_X509(to, x), out, err);
}

int openssl_print_key(EVP_PKEY *key, struct buf *out, struct err *err)
{
    BIO *to = BIO_new(BIO_s_secmem());

    return append(to,
                  to != NULL && PEM_write_bio_PKCS8PrivateKey(to, key, NULL, NULL, 0, NULL, NULL),
                  out, err);
}

int openssl_verdict(struct err *err, int code, int verdict)
{
    const char *why = X509_verify_cert_error_string(verdict);
    time_t now = time(NULL);
    char text[32] = "an unknown time";
    struct tm tm;

    if (verdict == X509_V_ERR_HOSTNAME_MISMATCH || verdict == X509_V_ERR_IP_ADDRESS_MISMATCH)
        return err_set(err, code, "%s: it must contain the host of the task in the cluster text, as those that "
                                  "`trainerctl keys` writes", why);
    if (verdict != X509_V_ERR_CERT_NOT_YET_VALID && verdict != X509_V_ERR_CERT_HAS_EXPIRED)
        return err_set(err, code, "%s", why);
    if (gmtime_r(&now, &tm) != NULL)
        strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &tm);
    return err_set(err, verdict == X509_V_ERR_CERT_NOT_YET_VALID ? ERR_IO : code,
                   "%s; the clock of this host shows %s: set the clock, if that is wrong", why,
                   text);
}
