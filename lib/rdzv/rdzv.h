/* rdzv.h - the gRPC skin of member/node.h: this task's membership, with a server on its address and
 * links to the others.
 *
 * It owns the node: what comes over the links, from the clock and from the daemon becomes an event;
 * its actions become messages and the callbacks below, all of one event before the next. A callback
 * may call anything here but rdzv_close(): what it says is the next event.
 *
 * gRPC's completion queue has one thread that only forwards tags to the loop; every callback here
 * runs on the loop. Strings from the wire are checked (UTF-8, length) before anyone sees them.
 * Fault points (base/fault.h): rdzv.KIND.out before a message of a kind (join, ready, view, ...) goes out,
 * rdzv.KIND.in before one that came is heard. `fail` does nothing: a link loses no message.
 *
 * Threads: the loop's, unless a line says otherwise. */
#ifndef RDZV_RDZV_H
#define RDZV_RDZV_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "member/node.h"

struct err;
struct loop;
struct rdzv;

struct rdzv_task {
    const char *type;
    uint32_t index;
    const char *address;
    const char *name; /* "worker 1" */
};

struct rdzv_member {
    uint32_t rank;
    uint64_t incarnation;
    uint32_t n_devices;
    const char *name, *address, *data_address, *host_key;
    uint64_t held; /* newest step whose state it has whole; 0: none */
    uint32_t storage_failures; /* as in struct member_seat */
};

struct rdzv_view { /* valid during the callback */
    uint64_t generation;
    const struct rdzv_member *members; /* by rank */
    uint32_t n_members;
    uint32_t coordinator; /* index of the member that coordinates and writes checkpoints */
    uint32_t self; /* index of this task in members */
    uint8_t key[32];
    uint64_t newest_step;   /* 0: nobody holds state */
    uint32_t newest_member; /* index of one that holds it; 0 if nobody does */
};

/* How this task is doing; the daemon keeps it current: beats, the node and Status read it. */
struct rdzv_gpu { /* and its sensors; negative: it does not tell */
    uint32_t index; /* CUDA's ordinal */
    char name[96], uuid[48];
    double idle; /* share of the last step in which it had no work of ours, 0 to 1 */
    double utilisation; /* 0 to 1 */
    double memory_used, memory_total; /* bytes */
    double celsius, watts, ecc_errors, clock_mhz;
    char throttled[96]; /* why its clock is held down; "": it is not */
};

struct rdzv_progress {
    const char *phase; /* for people: static string of at most 31 bytes */
    uint64_t phase_since_ms;
    const char *doing; /* within the phase, for beats and the watchdog of steps: likewise; "" unless training runs */
    uint64_t doing_since_ms;
    uint64_t step, total_steps, epoch; /* step: newest one applied */
    uint64_t place, limit_ms;          /* of what it is doing, as struct member_progress has them */
    double loss, samples_per_second;
    double step_seconds; /* mean of the last window, with what is between steps */
    double share_data, share_compute, share_reduce;
    uint64_t skipped_records;
    double loss_scale; /* 0: the precision needs none */
    uint64_t checkpoint_step;
    char checkpoint_path[4096];
    char last_trouble[1024];
    uint64_t lease_token; /* 0: there is none */
    char lease[512];      /* whose it is and how long; "" without shared storage */
    const struct rdzv_gpu *gpus; /* [n_gpus] of this task */
    uint32_t n_gpus;
};

/* An action of the node with what the node does not know; valid during the callback. */
struct rdzv_action {
    const struct member_action *action;
    const struct rdzv_view *view;       /* of TRAIN */
    const char *const *addresses;       /* of REACH: the data address of each of action->ranks; "": not known */
};

struct rdzv_opts {
    struct loop *loop;
    const char *version, *job_name;
    const struct rdzv_task *tasks; /* the training tasks by rank; copied */
    uint32_t world;
    uint32_t self;
    uint64_t incarnation;          /* random, not 0: new at every process start */
    const char *listen;            /* host:port to bind: the named address, or 0.0.0.0:port */
    const char *token; /* shared secret, sent and demanded as a bearer token; NULL: none */
    struct member_ident ident;     /* copied */
    uint32_t n_devices;
    const char *data_address, *host_key;
    /* As in member_node_opts. */
    uint32_t min_world;
    uint64_t rejoin_ms, deadline_ms, grace_ms, silent_ms;
    bool has_lease;
    const struct rdzv_progress *progress; /* borrowed, read on the loop */
    void *arg;                     /* for the callbacks */

    /* Performs an action of the node: TRAIN, PAUSE, ABORT, SAVE, LEASE, RELEASE, REACH, SAY or END. Answers come by
     * rdzv_report(), also from inside the call. END comes once, and nothing but on_trace after it; goodbyes are on their
     * way then, and rdzv_close() waits for them. */
    void (*on_action)(void *arg, const struct rdzv_action *a);
    /* After each event, when its actions are done: the questions of rdzv_node() may have new
     * answers. NULL: not needed. */
    void (*on_state)(void *arg);
    /* Control.Checkpoint: the daemon answers later with rdzv_checkpoint_done(). */
    void (*on_checkpoint)(void *arg);
    /* Each message in or out, and each link that opens or ends, for a person: a line for the log at
     * level debug. Beats are left out. NULL: none. */
    void (*on_trace)(void *arg, const char *text);
};

/* Binds, serves (health, reflection, Control, Rendezvous) and begins to seek the group: callbacks
 * come from the loop, not from inside this call.
 * Errors: ERR_IO (address in use: by whom it can be seen), ERR_INPUT. */
int rdzv_open(const struct rdzv_opts *opts, struct rdzv **out, struct err *err);

/* For the questions at the end of node.h; also from a callback. */
const struct member_node *rdzv_node(const struct rdzv *r);

/* Reports an event to the node: of training, of the lease and the storage, REACHED, or STOP. Copied; also from inside
 * on_action(). Ignored after END. */
void rdzv_report(struct rdzv *r, const struct member_event *e);

void rdzv_checkpoint_done(struct rdzv *r, uint64_t step, const char *path, const char *error);
void rdzv_set_serving(struct rdzv *r, bool serving); /* health: SERVING while training */

/* Ends the links after what was sent, then the server; blocks at most `grace_ms`, 0: cuts all off
 * at once. NULL is fine. */
void rdzv_close(struct rdzv *r, uint64_t grace_ms);

/* ---- client calls for trainerctl; blocking, no loop ---- */
/* `method` "Status", "Checkpoint", "Drain" or "Stop" of trainerd.v1.Control, with an empty request. The packed
 * reply goes to *reply (the caller frees) and *n. Errors: ERR_INPUT (address, token), ERR_PEER, ERR_TIMEOUT, ERR_AUTH,
 * ERR_REFUSED with the status text. */
int rdzv_call(const char *address, const char *token, const char *method, uint64_t deadline_ms,
              void **reply, size_t *n, struct err *err);

#endif
