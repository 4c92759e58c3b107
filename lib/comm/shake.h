/* shake.h - the state of a handshake, between handshake.c (all connections) and greet.c (one). */
#ifndef COMM_SHAKE_H
#define COMM_SHAKE_H

#include <sys/socket.h>
#include <sys/un.h>

#include "comm/comm_priv.h"
#include "comm/hello.h"

/* A connection that must come about. */
struct want {
    enum hello_kind kind;
    uint32_t own, peer; /* ranks of a link, else members */
    uint32_t member;    /* the peer's */
    int *fd;            /* where it goes */
    bool is_there;      /* it came about; a star may be closed again by now */
    bool dials, busy;   /* we call them; a try is under way */
    bool unproven;      /* the last one that tried did not know the key */
    uint64_t retry_ns;
    uint32_t retry_ms;
    char last[160]; /* what went wrong last; "": nothing yet */
};

enum state {
    DIAL_CONNECT,
    DIAL_HELLO,
    DIAL_CHALLENGE,
    DIAL_PROOF,
    DIAL_READY,
    ACCEPT_HELLO,
    ACCEPT_CHALLENGE,
    ACCEPT_PROOF,
    ACCEPT_READY,
};

struct conn {
    int fd;
    enum state state;
    struct want *want; /* accepted: NULL until the hello was read */
    size_t done;       /* bytes of the state's message */
    uint64_t expires_ns;
    char from[72]; /* accepted: whence */
    uint8_t hello[HELLO_BYTES], challenge[CHALLENGE_BYTES], proof[PROOF_BYTES], ready[READY_BYTES];
};

struct shake {
    struct comm *c;
    const struct comm_opts *opts;
    struct hello here; /* generation and layout */
    struct want *wants;
    size_t n_wants, n_missing;
    struct conn *conns;
    struct pollfd *polls; /* the lives, the wants, 2 listeners, then a conn each */
    size_t n_conns, max_conns;
    int unix_fd;                     /* owned; -1 if nobody calls there */
    struct sockaddr_un host_address; /* abstract name of this host's leader */
    socklen_t host_address_bytes;
    uint64_t due_ns;          /* when the next dial is due */
    uint64_t accept_again_ns; /* out of descriptors: not before */
    uint32_t n_strangers;
    char stranger[192]; /* what the last one did */
    uint32_t n_early;
    char early[192]; /* what the last one asked for */
    int rc;
    uint32_t culprit; /* of rc < 0: a member; COMM_NO_MEMBER: not known */
    struct err *err;
};

enum outcome { GO_ON, DROP, DONE };

/* Takes a connection as far as it goes without waiting. GO_ON: come back when its socket is ready.
 * DROP: close it. DONE: it is where it was wanted. s->rc: the whole handshake has failed. */
enum outcome greet(struct shake *s, struct conn *n);
short greet_events(const struct conn *n); /* that it waits for */

/* The kernel of the peer that a connection is for does not answer: the handshake fails with ERR_PATH. */
enum outcome greet_path_dead(struct shake *s, struct conn *n);

/* Note what went wrong with a connection, at the peer it is for or among the strangers: DROP. */
enum outcome greet_trouble(struct conn *n, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
enum outcome greet_stranger(struct shake *s, struct conn *n, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

#endif
