/* tls.h - TLS 1.3 (RFC 8446) over connected sockets, by OpenSSL.
 *
 * Two kinds of streams:
 * - Control plane: both ends present a certificate of the authority of the cluster. `struct tls`
 *   holds the certificates of this process, either from files, which are read again when they
 *   change, or derived from the token of the cluster (keys.h). The protocol inside is HTTP/2 (ALPN
 *   "h2", RFC 9113, section 3.3). Two streams of this folder with the same token prove a key that is derived from
 *   it instead (PSK with ECDHE), which costs a fraction of the time.
 * - Data plane: both ends prove that they know a key (PSK with ECDHE), without certificates.
 *
 * The process must ignore SIGPIPE, because OpenSSL writes without MSG_NOSIGNAL.
 * Threads: a struct tls may be used on any thread; a stream by one thread at a time. */
#ifndef TLS_TLS_H
#define TLS_TLS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct err;
struct tls;
struct tls_stream;

struct tls_files { /* paths of PEM files */
    const char *certificate; /* of this task, and certificates between it and the authority */
    const char *key;         /* its private key, without password */
    const char *authority;   /* the certificates that sign those of the cluster */
};

/* Each: on success the caller owns *out. The strings are copied.
 * Errors: ERR_INPUT (a text is invalid, the key does not belong to the certificate, the authority
 * has not signed it, or it has expired; the message names the file), ERR_NOENT, ERR_IO, ERR_NOMEM. */
int tls_open(const struct tls_files *files, struct tls **out, struct err *err);
/* `hosts` [n] are the names of this task in its certificate, which is made now. */
int tls_open_token(const char *token, const char *const *hosts, uint32_t n_hosts, struct tls **out,
                   struct err *err);

/* Reads the files again if one of them changed. Returns 1: new connections use the new ones; 0: no
 * change; negative: the new ones are invalid, and the old ones stay in use. One thread at a time,
 * while other threads use `t`. Waits for the file system, without a limit. Fault point, before each
 * file, also in tls_open(): tls.read. */
int tls_refresh(struct tls *t, struct err *err);
bool tls_has_files(const struct tls *t); /* false: derived from a token */
/* Returns the path of the file that tls_refresh() reads now, which is valid as long as `t`; NULL: it
 * reads none. */
const char *tls_reading(const struct tls *t);

int64_t tls_expires(struct tls *t); /* end of the validity of the own certificate, Unix time in s */
struct tls *tls_ref(struct tls *t); /* returns t with a further reference; any thread */
void tls_close(struct tls *t);      /* releases a reference; NULL is allowed. Streams may outlive it */

/* A copy of the certificates in use as PEM text, for a client of another library. */
struct tls_texts {
    char *certificate, *key, *authority;
};
/* On success the caller calls tls_texts_fini(). Errors: ERR_NOMEM. */
int tls_texts_init(struct tls *t, struct tls_texts *out, struct err *err);
void tls_texts_fini(struct tls_texts *x); /* erases the key */

/* The name that every certificate derived from a token contains, because a process with the token
 * may have any address. NULL: the certificates are from files, and their names are compared with
 * addresses. */
const char *tls_common_host(const struct tls *t);

/* ---- streams ---- */

enum tls_side { TLS_CLIENT, TLS_SERVER };

enum { TLS_KEY_BYTES = 32 };

/* Starts a stream on a non-blocking socket, which the caller keeps and closes after the stream.
 * `host`: for a client, the name or address that the certificate of the server must contain; unused
 * if it was derived from a token. Errors: ERR_NOMEM. */
int tls_stream_new(struct tls *t, enum tls_side side, int fd, const char *host,
                   struct tls_stream **out, struct err *err);
/* The same for the data plane. The key is copied. */
int tls_stream_new_psk(const uint8_t key[TLS_KEY_BYTES], enum tls_side side, int fd,
                       struct tls_stream **out, struct err *err);

/* Continues the handshake. Returns 1: complete; 0: call again when the socket has one of
 * tls_stream_events(). Errors: ERR_AUTH (a certificate is missing or invalid, the key differs, or the
 * other side does not use TLS), ERR_PEER (the connection ended). */
int tls_stream_handshake(struct tls_stream *s, struct err *err);

/* As recv() and send() of a non-blocking socket: -1 with errno EAGAIN, ECONNRESET, or EPROTO if the
 * other side violates the protocol or a byte was changed on the way; 0 at the end of the stream.
 * tls_stream_send() may accept fewer bytes. After EAGAIN it must be called again with the same
 * bytes, or more. */
ssize_t tls_stream_recv(struct tls_stream *s, void *to, size_t n);
ssize_t tls_stream_send(struct tls_stream *s, const void *from, size_t n);

/* Poll events that the operation that returned EAGAIN, or the handshake, waits for. */
short tls_stream_events(const struct tls_stream *s);
/* Whether tls_stream_recv() has bytes, although the socket may have none. */
bool tls_stream_has_bytes(const struct tls_stream *s);

/* The peer of a stream, identified by its certificate; lives longer than the stream. */
struct tls_peer;

/* Returns a reference, which the caller frees; NULL: no certificate (data plane), or out of
 * memory. A peer that proved the key of the token has the certificate of this process. */
struct tls_peer *tls_stream_peer(const struct tls_stream *s);
void tls_peer_free(struct tls_peer *p); /* NULL is allowed */
/* Whether the certificate contains the host: a name or an address. Any thread. */
bool tls_peer_has(const struct tls_peer *p, const char *host);
/* Writes the names in the certificate, separated by blanks, for a message; "" if it contains no name. */
void tls_peer_names(const struct tls_peer *p, char *out, size_t size);

/* Tells the peer that no more bytes follow, if that does not block, and frees the stream. NULL is
 * allowed. */
void tls_stream_free(struct tls_stream *s);

#endif
