/* admission.h - the listening sockets of the control plane, in front of gRPC.
 *
 * gRPC 1.51 creates a stream for each HEADERS frame, even if the client resets it at once, and
 * accepts connections without a limit. Admission therefore accepts the connections and relays their
 * bytes to gRPC through socket pairs:
 *
 *     client ---TCP--- admission ---socket pair--- gRPC
 *
 * - A connection is passed to gRPC after its HTTP/2 preface has arrived. A connection that does not
 *   send it within 5 s is closed.
 * - Frames cost units (frames.h). A connection spends its own allowance first, and then the
 *   allowance that all connections of its source address share, in turns. Without an allowance its
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

struct admission_opts {
    const char *listen; /* host:port; the host 0.0.0.0 means every address, also IPv6. Borrowed
                           during the call */
    uint32_t tasks;     /* number of tasks of the cluster: each raises the limit of connections */
    /* Called on admission's thread with a connected, non-blocking socket, which the callee owns. */
    void (*accept)(void *arg, int fd);
    void *arg;
};

/* Listens. On success the caller owns *out. Errors: ERR_INPUT (the address is not one of this
 * host), ERR_IO (the port is in use, or no thread can be started), ERR_NOMEM. */
int admission_open(const struct admission_opts *opts, struct admission **out, struct err *err);

/* Writes a log line about the connections that were closed or rejected since the last report, at
 * most once in 10 s. Returns false if no line is due. `now_ms` is clock_ms(). */
bool admission_report(struct admission *a, uint64_t now_ms, char *text, size_t size);

/* Stops listening; existing connections continue. After it returns, `accept` is not called any
 * more. */
void admission_stop(struct admission *a);

/* Stops listening, sends the bytes that gRPC has written (for at most 0.5 s), and closes every
 * connection. NULL is allowed. */
void admission_close(struct admission *a);

#endif
