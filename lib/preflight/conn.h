/* conn.h - a connection of a preflight, in clear text or under TLS, with deadlines.
 *
 * Every wait ends at its deadline (clock_ms()), or within CONN_SLICE_MS after *stop became true.
 * Threads: a conn is used by one thread at a time. */
#ifndef PREFLIGHT_CONN_H
#define PREFLIGHT_CONN_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#include "preflight/message.h"

struct buf;
struct tls;
struct tls_stream;

enum { CONN_SLICE_MS = 100 };

struct conn {
    int fd;                 /* owned; -1: closed */
    struct tls_stream *tls; /* owned; NULL: clear text */
    const atomic_bool *stop;
};

/* Connects. `small`: segments of 536 bytes, which also arrive where packets of full size are lost.
 * Returns PREFLIGHT_REACHED, _REFUSED or _SILENT; after failure *out is closed. */
enum preflight_reach conn_dial(const struct sockaddr_storage *to, socklen_t bytes, bool small,
                               uint64_t until_ms, const atomic_bool *stop, struct conn *out);
/* Starts TLS as a client of `host`, or (host NULL) as the server. Returns PREFLIGHT_REACHED, _DENIED or
 * _FOREIGN. */
enum preflight_reach conn_secure(struct conn *c, struct tls *tls, const char *host,
                                 uint64_t until_ms);
/* Returns how many of the sent bytes the other host has acknowledged. */
uint64_t conn_acknowledged(const struct conn *c, uint64_t sent);
void conn_close(struct conn *c); /* also a closed one */

/* Each returns 0, or a negative errno: -ETIMEDOUT at the deadline, -ECONNRESET at the end of the
 * stream, -EPROTO for bytes that are no message, -ECANCELED after *stop. */
int conn_send(struct conn *c, const void *bytes, size_t n, uint64_t until_ms);
int conn_recv(struct conn *c, void *bytes, size_t n, uint64_t until_ms);
/* Receives a message; *body is replaced. */
int conn_recv_message(struct conn *c, enum message_kind *kind, struct buf *body, uint64_t until_ms);
/* Sends a request (a whole message) and receives the reply, which must be of that kind. */
int conn_ask(struct conn *c, const struct buf *request, enum message_kind kind, struct buf *body,
             uint64_t until_ms);
/* Waits for poll events. */
int conn_wait(const struct conn *c, short events, uint64_t until_ms);

#endif
