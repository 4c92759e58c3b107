/* admission.h - the listening sockets of the control plane, in front of gRPC.
 *
 * gRPC 1.51 creates a stream for each HEADERS frame, also if the client resets it at once, and accepts connections without
 * limit. Admission accepts the connections instead and relays their bytes to gRPC through socket pairs:
 *
 *     client ---TCP--- admission ---socket pair--- gRPC
 *
 * - A connection reaches gRPC when its HTTP/2 preface has arrived. One that does not send it within 5 s is closed.
 * - Frames cost units (frames.h). A connection may spend what it has saved; beyond that it spends from the allowance that
 *   all connections of its source address share, in turns. Without an allowance its bytes stay in the kernel, so that the
 *   client waits; no connection is closed for what it sends.
 * - The number of connections is bounded, by the size of the cluster and by the limit of descriptors. At the limit a new
 *   connection takes the place of one of the source with the most connections: first of one without a preface, then of the
 *   one that has been silent for the longest time. Tasks send beats, so theirs is the last to go.
 *
 * Threads: the functions on any thread, one at a time; everything else on a thread of its own. */
#ifndef RDZV_ADMISSION_H
#define RDZV_ADMISSION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct err;
struct admission;

struct admission_opts {
    const char *listen; /* host:port; the host 0.0.0.0 means every address, IPv6 too. Borrowed during the call */
    uint32_t tasks;     /* of the cluster: each adds to the limit of connections */
    /* Called on admission's thread with a connected, non-blocking socket, which the callee owns. */
    void (*accept)(void *arg, int fd);
    void *arg;
};

/* Listens. Errors: ERR_INPUT (the address is not one of this host), ERR_IO (the port is in use; no thread can be started). */
int admission_open(const struct admission_opts *opts, struct admission **out, struct err *err);

/* A sentence on the connections that were closed or rejected since the last report, at most one in 10 s. false: none is
 * due. `now_ms` is clock_ms(). */
bool admission_report(struct admission *a, uint64_t now_ms, char *text, size_t size);

/* Stops listening; connections go on. When it returns, `accept` is not called any more. */
void admission_stop(struct admission *a);

/* Stops listening, sends what gRPC has written (for at most 0.5 s), and closes every connection. NULL is allowed. */
void admission_close(struct admission *a);

#endif
