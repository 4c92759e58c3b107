/* preflight_priv.h - the state of a running preflight.
 *
 * The thread of the caller ("main") dials with helpers, measures and collects. Threads that serve
 * incoming connections share the state under `lock`; `changed` is signalled after every change. */
#ifndef PREFLIGHT_PREFLIGHT_PRIV_H
#define PREFLIGHT_PREFLIGHT_PRIV_H

#include <pthread.h>
#include <stdatomic.h>

#include "preflight/conn.h"
#include "preflight/preflight.h"
#include "preflight/resolve.h"

enum {
    NAME_MS = 4000,   /* limit of a name resolution */
    DIAL_MS = 2000,   /* of one attempt to connect, with TLS and HELLO */
    RETRY_MS = 200,   /* between two attempts */
    STALL_MS = 2000,  /* without an answer a measurement has failed */
    STORAGE_MS = 5000,
    PASSES = 3, /* of the schedule: the best number of each direction counts */
    NO_ROUND = -1,
    LISTENERS = 2 * RESOLVE_MAX,
};

struct peer { /* another task */
    /* Main's side, set by the thread that dials; afterwards used by main alone. */
    struct conn out;
    enum preflight_reach reach;
    uint8_t reverse;                  /* enum preflight_check */
    struct sockaddr_storage address;  /* that was dialled */
    socklen_t address_bytes;
    struct preflight_facts facts;     /* of its HELLO; valid if reach is PREFLIGHT_REACHED */
    pthread_t dialler;
    bool has_dialler;
    /* Under the lock, set by the threads that serve. */
    uint32_t n_in;   /* connections of the peer that are open and have sent HELLO */
    bool was_in;     /* the peer has connected, and its connection has not broken */
    bool has_left;   /* the peer sent BYE */
    int32_t ended;   /* the last round that the peer ended; NO_ROUND: none */
    uint8_t ticket[MESSAGE_TICKET_BYTES];
    bool has_ticket; /* the peer may open one data connection */
};

struct preflight {
    const struct preflight_opts *o;
    struct preflight_facts facts; /* of this task */
    uint64_t dial_until_ms, until_ms;
    struct peer *peers;           /* owned; [world] */
    struct preflight_row *rows;   /* owned; [world]; under the lock */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int32_t round;                /* that main has reached; under the lock */
    uint32_t n_serving;           /* threads; under the lock */
    atomic_bool stop;             /* every thread leaves */
    atomic_bool ends_dialling;    /* no further attempt to connect */
    bool has_foreign;             /* under the lock: another program answered */
    int listeners[LISTENERS];     /* owned */
    bool is_data[LISTENERS];
    uint32_t n_listeners;
    pthread_t acceptor;
    bool has_acceptor;
};

/* ---- state.c ---- */

/* Waits for a change, at most CONN_SLICE_MS. The caller holds the lock. */
void preflight_wait(struct preflight *p);
/* Asks opts.is_stopped. Called by main without the lock. */
bool preflight_is_stopped(struct preflight *p);

/* ---- listen.c ---- */

/* Opens the listeners; returns 0 without any if the own address cannot be used: the reason is then in
 * p->facts.listen_fault. Errors: ERR_IO (a port is in use). */
int listen_open(struct preflight *p, struct err *err);

/* ---- serve.c ---- */

/* Calls listen_open(), and starts to accept. Errors: those of listen_open(), ERR_NOMEM. */
int serve_open(struct preflight *p, struct err *err);
/* Waits for all threads; p->stop is set. */
void serve_close(struct preflight *p);

/* ---- dial.c ---- */

/* Connects to all others, until each has been reached and has connected, or the time is over. */
void dial_all(struct preflight *p);

/* ---- measure.c ---- */

/* Measures with the partner of each round, and completes the own row. */
void measure_all(struct preflight *p);

/* ---- collect.c ---- */

/* Sends the own row to all, and receives the rows of all tasks that any task has reached. */
void collect_rows(struct preflight *p);

#endif
