/* keys.h - keys and certificates of a cluster, as PEM text (RFC 7468).
 *
 * An authority signs the certificates of the tasks. A certificate names the hosts of its task as
 * alternative names (RFC 5280, section 4.2.1.6) and is valid for both ends of a connection. Keys are
 * ECDSA keys over P-256, which every TLS library supports. Threads: any. */
#ifndef TLS_KEYS_H
#define TLS_KEYS_H

#include <stdint.h>

struct buf;
struct err;

struct tls_subject {
    const char *name;         /* common name; left out if it has more than 64 bytes */
    const char *const *hosts; /* [n_hosts] DNS names and IP addresses, without port */
    uint32_t n_hosts;
    uint32_t days; /* validity from now, and one day before, for clocks that differ; 0: unlimited */
};

/* Creates an authority with a new key. Appends PEM text to *certificate and *key.
 * Errors: ERR_NOMEM, ERR_IO (the library failed). */
int tls_authority_new(const char *name, uint32_t days, struct buf *certificate, struct buf *key,
                      struct err *err);

/* Creates the authority that belongs to a shared secret: the key is a function of the token
 * (HKDF-SHA256, RFC 5869) and is the same in every process, so tasks that know the token accept the
 * certificates of each other. The validity is unlimited. Errors: as above. */
int tls_authority_of_token(const char *token, struct buf *certificate, struct buf *key,
                           struct err *err);

/* Creates a certificate with a new key, signed by an authority. Appends PEM text to *certificate
 * and *key. Errors: as above, ERR_INPUT (the texts of the authority are invalid, or do not belong to
 * each other; a host is no valid name). */
int tls_certificate_new(const char *authority, const char *authority_key,
                        const struct tls_subject *subject, struct buf *certificate, struct buf *key,
                        struct err *err);

#endif
