/* rdzv.h - the gRPC skin of member: a server on this task's address, a client of the coordinator.
 *
 * gRPC's completion queue has one thread that only forwards tags to the loop; every callback here
 * runs on the loop. Strings from the wire are checked (UTF-8, length) before anyone sees them.
 * Threads: the loop's, unless a line says otherwise. */
#ifndef RDZV_RDZV_H
#define RDZV_RDZV_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "member/member.h"

struct err;
struct loop;
struct metrics;
struct rdzv;

struct rdzv_task {
    const char *type;
    uint32_t index;
    const char *address;
    const char *name; /* "worker 1" */
};

struct rdzv_member {
    uint32_t rank;
    uint32_t n_devices;
    const char *name, *address, *data_address, *host_key;
    uint64_t step_held;
};

struct rdzv_view { /* valid during the callback */
    uint64_t generation;
    const struct rdzv_member *members; /* by rank */
    uint32_t n_members;
    uint32_t self;
    uint8_t key[32];
    uint64_t newest_step;
    uint32_t newest_member;
};

/* How this task is doing; the daemon keeps it current, heartbeats and Status read it. */
struct rdzv_progress {
    const char *phase; /* static string of at most 31 bytes */
    uint64_t phase_since_ms;
    uint64_t step, total_steps, epoch;
    double loss, samples_per_second;
    double step_seconds; /* mean of the last window, with what is between steps */
    double share_data, share_compute, share_reduce;
    uint64_t skipped_records;
    uint64_t checkpoint_step;
    char checkpoint_path[4096];
    char last_trouble[1024];
};

struct rdzv_opts {
    struct loop *loop;
    struct metrics *metrics;
    const char *version, *job_name;
    const struct rdzv_task *tasks; /* the training tasks by rank; copied */
    uint32_t world;
    uint32_t self;
    uint32_t coordinator;          /* rank of the chief */
    const char *listen;            /* host:port to bind: the named address, or 0.0.0.0:port */
    const char *token;             /* shared secret, sent and demanded as a bearer token; NULL: none */
    struct member_ident ident;     /* copied */
    uint32_t n_devices;
    const char *data_address, *host_key;
    uint64_t deadline_ms;          /* joining and waiting end after it */
    uint64_t heartbeat_ms, silent_ms;
    const struct rdzv_progress *progress; /* borrowed, read on the loop */
    void *arg;                     /* for the callbacks */

    /* A move of the worker's machine, for one log line and the service status. */
    void (*on_move)(void *arg, const struct member_move *move, uint64_t in_state_ms);
    /* Waiting: a complete sentence naming who is missing, address, last error. Every 2 s at most. */
    void (*on_waiting)(void *arg, const char *text);
    /* The coordinator turned a task away; both sides are in the text. */
    void (*on_refused)(void *arg, const char *text);
    void (*on_view)(void *arg, const struct rdzv_view *view);
    /* MEMBER_DO_DRAIN: an agreed stop was asked for, here or by the coordinator's request. */
    void (*on_drain)(void *arg, bool everywhere);
    /* MEMBER_DO_ABORT: stop computing at once; `text` is the first cause. on_end follows in the same call. */
    void (*on_abort)(void *arg, const char *text);
    /* The membership is over; called exactly once. code 0: job complete; 2: refused; 138: temporary;
     * 143: stopped and saved. */
    void (*on_end)(void *arg, int code, const char *text);
    /* Control.Checkpoint: the daemon answers later with rdzv_checkpoint_done(). */
    void (*on_checkpoint)(void *arg);
};

/* Binds, serves (health, reflection, control; on the coordinator also Rendezvous) and begins to join.
 * Errors: ERR_IO (address in use: by whom it can be seen), ERR_INPUT. */
int rdzv_open(const struct rdzv_opts *opts, struct rdzv **out, struct err *err);

/* What the daemon tells the machine. */
void rdzv_stop(struct rdzv *r, bool everywhere); /* SIGTERM: false; Control.Stop: true */
/* Agreed step done and saved. asked_here: exit 143, else 138 with `why` ("worker 1 was asked to leave"). */
void rdzv_stopped(struct rdzv *r, bool asked_here, const char *why);
void rdzv_complete(struct rdzv *r);
void rdzv_failed(struct rdzv *r, int code, const char *text); /* exit code (2 or 138) and story */
void rdzv_checkpoint_done(struct rdzv *r, uint64_t step, const char *path, const char *error);
void rdzv_set_serving(struct rdzv *r, bool serving); /* health: SERVING while training */

/* Shuts the server and client down; blocks at most `grace_ms`. */
void rdzv_close(struct rdzv *r, uint64_t grace_ms);

/* ---- client calls for trainerctl; blocking, no loop ---- */
/* `method` "Status", "Checkpoint", "Drain" or "Stop" of trainerd.v1.Control, with an empty request. The packed
 * reply goes to *reply (the caller frees) and *n. Errors: ERR_PEER, ERR_TIMEOUT, ERR_AUTH, ERR_REFUSED with the
 * status text. */
int rdzv_call(const char *address, const char *token, const char *method, uint64_t deadline_ms,
              void **reply, size_t *n, struct err *err);

#endif
