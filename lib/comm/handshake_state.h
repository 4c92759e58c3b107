/* handshake_state.h - the state of a handshake, shared by handshake.c (all connections) and
 * handshake_peer.c (one). */
#ifndef COMM_HANDSHAKE_STATE_H
#define COMM_HANDSHAKE_STATE_H

#include <sys/socket.h>
#include <sys/un.h>

#include "comm/comm_priv.h"
#include "comm/handshake_message.h"

/* A connection that must be made. */
struct want {
    enum handshake_kind kind;
    uint32_t own, peer; /* LINK: points; else members */
    uint32_t member;    /* member of the peer */
    int *fd;            /* receives the socket */
    struct tls_stream **tls; /* receives its stream; NULL: the connection is in clear text */
    uint8_t *key;            /* receives the key of the connection; NULL: not wanted */
    bool is_connected;      /* the connection was made; a star may have been closed since */
    bool is_local;      /* over a Unix socket */
    bool dials, busy;   /* this side dials; an attempt is in progress */
    bool unproven;      /* the last peer that tried did not know the key */
    bool is_rejected;   /* the last attempt ended without a proof of the peer */
    uint32_t n_rejected; /* attempts in a row for which another host or a firewall may have answered ... */
    uint64_t rejected_ns; /* ... since this time */
    uint64_t retry_ns;
    uint32_t retry_ms;
    char last[160]; /* the last error; "": none */
};

enum state {
    DIAL_CONNECT,
    DIAL_HELLO,
    DIAL_CHALLENGE,
    DIAL_PROOF,
    DIAL_READY,
    DIAL_TLS,
    ACCEPT_HELLO,
    ACCEPT_CHALLENGE,
    ACCEPT_PROOF,
    ACCEPT_READY,
    ACCEPT_TLS,
};

struct conn {
    int fd;
    enum state state;
    struct want *want; /* accepted: NULL until the HELLO was read */
    size_t done;       /* bytes of the message of the state */
    struct tls_stream *tls; /* owned; NULL before DIAL_TLS and ACCEPT_TLS, and in clear text */
    uint64_t expires_ns;
    char from[72]; /* accepted: source address */
    uint8_t hello[HANDSHAKE_HELLO_BYTES], challenge[HANDSHAKE_CHALLENGE_BYTES],
        proof[HANDSHAKE_PROOF_BYTES], ready[HANDSHAKE_READY_BYTES];
};

struct handshake_state {
    struct comm *c;
    const struct comm_opts *opts;
    struct handshake_hello here; /* generation and layout of this member */
    struct want *wants;
    size_t n_wants, n_missing;
    struct conn *conns;
    struct pollfd *polls; /* the lives, the wants, 2 listeners, then the connections */
    size_t n_conns, max_conns;
    int unix_fd;                     /* owned; -1 if no member calls there */
    uint64_t due_ns;          /* time of the next dial */
    uint64_t accept_again_ns; /* time before which no connection is accepted (no free descriptor) */
    uint32_t n_foreign;
    char foreign[192]; /* what the last one did wrong */
    uint32_t n_early;
    char early[192]; /* what the last one requested */
    int rc;
    uint32_t culprit; /* if rc < 0: a member; COMM_NO_MEMBER: unknown */
    struct err *err;
};

enum outcome { CONTINUE, DROP, DONE, AGAIN }; /* AGAIN: the state must be repeated later */

/* Advances a connection as far as possible without waiting. Returns CONTINUE: call again when its
 * socket is ready; DROP: close it; DONE: its socket was passed on. If s->rc is set, the whole
 * handshake has failed. */
enum outcome handshake_advance(struct handshake_state *s, struct conn *n);
short handshake_events(const struct conn *n); /* the poll events that the connection waits for */

/* The kernel of the peer of a connection does not answer: the handshake fails with ERR_PATH. */
enum outcome handshake_path_dead(struct handshake_state *s, struct conn *n);

/* Notes that the path to the member is dead; comm_connect_loss() reports it. */
void handshake_mark_dead(struct handshake_state *s, uint32_t member);

/* Stores the error of a connection that the data port of the peer rejected, and drops it. If each
 * attempt is rejected for COMM_PATH_MS, the handshake fails with ERR_PATH. */
enum outcome handshake_rejected(struct handshake_state *s, struct conn *n, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* Store the error of a connection, for its peer or for the foreign connections; return DROP. */
enum outcome handshake_note_error(struct conn *n, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
enum outcome handshake_note_foreign(struct handshake_state *s, struct conn *n, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

#endif
