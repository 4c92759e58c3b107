/* relay.h - the bytes of one connection between a client and gRPC, and what they cost.
 *
 *     accepted --TLS handshake--> secured
 *     accepted or secured --preface--> relayed ... either side closes: flushed, closed
 *
 * A relay of a connection that this task opened begins as relayed.
 * A relay has one buffer for each direction. A side is read only while the buffer of its direction
 * is empty. admission.c owns the sockets and waits for them; no function here blocks. Threads: one
 * at a time. */
#ifndef RDZV_RELAY_H
#define RDZV_RELAY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "rdzv/frames.h"
#include "rdzv/source.h"

struct err;
struct tls;
struct tls_stream;

struct relay_flow { /* one direction */
    uint8_t *bytes; /* owned; NULL: empty */
    size_t from, to;
    bool is_over; /* the side that writes into the flow has closed */
};

struct relay {
    struct relay *next, **link; /* list of all relays, in the order of their turns (admission.c) */
    struct source *source;      /* NULL: this task opened the connection */
    struct tls *certificates;   /* borrowed; NULL: clear text alone */
    struct tls_stream *tls;     /* owned; NULL: clear text */
    bool has_begun;             /* the first byte was seen */
    bool is_securing;           /* the TLS handshake is not complete */
    int client, server; /* TCP socket; end of the socket pair, or -1 before the preface */
    uint32_t client_events, server_events; /* watched by epoll (admission.c) */
    struct relay_flow up, down;            /* from client to gRPC; from gRPC to client */
    bool is_server_done; /* gRPC has closed its end, and all bytes that it wrote are in `down` */
    struct frames frames;
    struct allowance own;
    uint64_t active_ms; /* the last time at which the client sent bytes */
    uint64_t until_ms;  /* the relay is closed at this time; 0: no limit */
    bool is_paused;     /* the client has no allowance (admission.c) */
    bool is_queued;     /* its handshake waits for a place (admission.c) */
    uint64_t place_until_ms; /* its handshake has a place until then; 0: it has none (admission.c) */
    bool is_closed;     /* freed at the end of the round (admission.c) */
};

enum relay_result {
    RELAY_BROKEN, /* the relay must be closed */
    RELAY_INSECURE, /* likewise: TLS failed, or only the client uses it; *err has the reason */
    RELAY_CONTINUES,
    RELAY_NO_ALLOWANCE, /* nothing was read: the client must wait */
    RELAY_NO_PLACE, /* likewise: a handshake would begin, and has no place */
    RELAY_BEGINS, /* the preface has arrived: the caller passes the connection to gRPC and sets
                     `server` */
};

/* Begins a relay in *r, whatever its content: the preface must arrive within 5 s. `source` and
 * `certificates` are borrowed. */
void relay_init(struct relay *r, struct source *source, struct tls *certificates, int client,
                uint64_t now_ms);
/* Frees the buffers and the stream; the caller closes the sockets afterwards. */
void relay_fini(struct relay *r);

/* Returns true if the client may send. */
bool relay_has_allowance(struct relay *r, uint64_t now_ms);
/* The connection was passed to gRPC, which costs units; `server` is the end of its socket pair. */
void relay_begin(struct relay *r, int server);

/* Reads what the client has sent, as far as the allowance and the buffer permit. may_secure: a TLS handshake
 * may begin. */
enum relay_result relay_read_client(struct relay *r, uint64_t now_ms, bool may_secure,
                                    struct err *err);
/* Whether relay_read_client() has bytes for which no event comes, because TLS has read them from the
 * socket already. */
bool relay_has_bytes(const struct relay *r);
/* Reads what gRPC has written, if the buffer is empty. Returns false if the relay must be closed.
 */
bool relay_read_server(struct relay *r);
/* gRPC has closed its end. epoll would report that without end, so the remaining bytes are read at
 * once, and the caller stops watching the socket. */
void relay_finish_server(struct relay *r);
/* Writes the bytes of both directions. After the client has closed, bytes for it are discarded;
 * after gRPC has closed, its last bytes are still sent, for a limited time. Returns false if the
 * relay must be closed. */
bool relay_flush(struct relay *r, uint64_t now_ms);

#endif
