/* admission.h - the connections of the control plane, between TCP and gRPC.
 *
 * gRPC 1.51 creates a stream for each HEADERS frame, even if the client resets it at once, accepts
 * connections without a limit, and has no TLS on sockets that it did not open. Admission therefore
 * accepts the connections and relays their bytes to gRPC through socket pairs:
 *
 *     client ---TCP, TLS--- admission ---socket pair--- gRPC
 *
 * The connections that this task opens under TLS are relayed in the same way.
 *
 * - A connection whose first byte is 22 begins with a TLS handshake (RFC 8446, section 5.1) if the
 *   task has certificates. Any other connection is in clear text; the server decides which methods
 *   it may call.
 * - At most ADMISSION_HANDSHAKES handshakes are in progress: their processor time is that of one thread, and if
 *   more of them share it, all of them take longer than their clients wait. Further ones wait in the order in
 *   which they arrived. A handshake keeps its place for ADMISSION_PLACE_MS, so that clients that are silent do
 *   not stop the others.
 * - A connection is passed to gRPC after its HTTP/2 preface has arrived. A connection that does not
 *   send it within 5 s is closed.
 * - Frames cost units (frames.h), and so does a connection in clear text, or whose handshake fails. A connection
 *   spends its own allowance first, and then the allowance that all connections of its source address share, in turns. Without an allowance its
 *   bytes stay in the kernel, so the client waits. No connection is closed because of what it
 *   sends.
 * - The number of connections is limited, by the size of the cluster and by the limit of
 *   descriptors. At the limit, a new connection replaces one of the source with the most
 *   connections: first one without a preface, then the one that has been silent for the longest
 *   time. Tasks send heartbeats, so theirs are the last to be closed.
 *
 * Threads: the functions on any thread, one at a time; everything else runs on a thread of its
 * own. */
#ifndef RDZV_ADMISSION_H
#define RDZV_ADMISSION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct err;
struct admission;
struct tls;
struct tls_peer;
struct tls_stream;

enum { ADMISSION_HANDSHAKES = 32, ADMISSION_PLACE_MS = 200 };

struct admission_opts {
    const char *listen; /* host:port; the host 0.0.0.0 means every address, also IPv6. Borrowed
                           during the call */
    uint32_t tasks;     /* number of tasks of the cluster: each raises the limit of connections */
    struct tls *tls;    /* NULL: every connection is in clear text. Borrowed until
                           admission_close() */
    /* Called on admission's thread with a connected, non-blocking socket and the certificate of the
       client, which the callee owns. peer NULL: the connection is in clear text. */
    void (*accept)(void *arg, int fd, struct tls_peer *peer);
    void *arg;
};

/* Listens. On success the caller owns *out. Errors: ERR_INPUT (the address is not one of this
 * host), ERR_IO (the port is in use, or no thread can be started), ERR_NOMEM. */
int admission_open(const struct admission_opts *opts, struct admission **out, struct err *err);

/* Relays a connection that this task opened: takes ownership of the socket and of its stream, whose
 * handshake is complete, and returns the non-blocking socket for gRPC, which the caller owns.
 * -1 with errno: no descriptor or no memory is available; both were closed. */
int admission_relay(struct admission *a, int fd, struct tls_stream *tls);

/* Writes a log line about the connections that were closed or rejected, or failed in TLS, since the last report, at
 * most once in 10 s. Returns false if no line is due. `now_ms` is clock_ms(). */
bool admission_report(struct admission *a, uint64_t now_ms, char *text, size_t size);

/* Stops listening; existing connections continue. After it returns, `accept` is not called any
 * more. */
void admission_stop(struct admission *a);

/* Stops listening, sends the bytes that gRPC has written (for at most 0.5 s), and closes every
 * connection. NULL is allowed. */
void admission_close(struct admission *a);

#endif
