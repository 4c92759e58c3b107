/* openssl.h - reads PEM text into the objects of OpenSSL, and its errors into struct err. Private to
 * lib/tls. */
#ifndef TLS_OPENSSL_H
#define TLS_OPENSSL_H

#include <openssl/evp.h>
#include <openssl/x509.h>

struct buf;
struct err;

/* Sets the error `code` with the message, then the oldest error of OpenSSL on this thread, whose
 * queue is emptied. Returns `code`. */
int openssl_err(struct err *err, int code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* Each returns the first object of the text, which the caller frees, or NULL. */
X509 *openssl_certificate(const char *pem);
EVP_PKEY *openssl_key(const char *pem);
/* Returns all certificates of the text in order, at least one, or NULL. The caller frees the list
 * with sk_X509_pop_free(). */
STACK_OF(X509) *openssl_certificates(const char *pem);

/* Append PEM text. Errors: ERR_NOMEM. */
int openssl_print_certificate(X509 *x, struct buf *out, struct err *err);
int openssl_print_key(EVP_PKEY *key, struct buf *out, struct err *err);

/* Describes why a certificate was not accepted. Returns `code`, or ERR_IO if the certificate is not valid yet: then the
 * clock of this host is probably wrong, as on a host without a battery, and time service corrects it. The text of a certificate that is not
 * valid at this time has the time of the clock. */
int openssl_verdict(struct err *err, int code, int verdict);

#endif
