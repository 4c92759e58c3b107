/* rdzv.h - gRPC transport of the membership protocol (member/node.h): a server on the address of
 * this task, and links to the other tasks.
 *
 * This object owns the node. Messages of links, timer ticks and reports of the daemon become events
 * of the node; the actions of the node become messages and calls of the callbacks below. All
 * actions of an event are performed before the next event. A callback may call any function of this
 * header except rdzv_close(); what it reports becomes the next event.
 *
 * The completion queue of gRPC has one thread, which only forwards tags to the loop. Every callback
 * of this header runs on the loop, and every function is called there, unless a line says
 * otherwise. Strings from the wire are validated (UTF-8, length) before any use.
 *
 * Fault points (base/fault.h): rdzv.KIND.out before a message of a kind (join, ready, view, ...) is
 * sent, rdzv.KIND.in before a received message is handled. `fail` has no effect, because a link
 * loses no messages. */
#ifndef RDZV_RDZV_H
#define RDZV_RDZV_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/group_view.h"
#include "member/node.h"
#include "rdzv/window.h"

struct arena;
struct err;
struct loop;
struct rdzv;
struct tls;
struct Trainerd__V1__StatusReply; /* proto/trainerd.pb-c.h */

/* A certificate with this name may change the job. */
#define RDZV_OPERATOR "operator.trainerd"

struct rdzv_task {
    const char *type;
    uint32_t index;
    const char *address;
    const char *name; /* "worker 1" */
};

/* Sensors of a GPU. Negative: unknown. */
struct rdzv_gpu {
    uint32_t index; /* CUDA's ordinal */
    char name[96], uuid[48];
    double idle; /* share of the last step in which the GPU had no work of this task, 0 to 1 */
    double utilisation; /* 0 to 1 */
    double memory_used, memory_total; /* bytes */
    double celsius, watts, ecc_errors, clock_mhz;
    char throttled[96]; /* the reason why the clock is reduced; "": it is not */
};

/* Spare lanes (comm/spare_lanes.h) since the start of the process. */
struct rdzv_spare {
    const char *mode; /* static; NULL: the job has none */
    /* lanes of late tasks that this one computed, and of these contributed in their place, or compared with the other
     * copy; lanes of this task that another contributed; lanes whose two copies this task found to differ */
    uint64_t offered, used, compared, given, wrong;
};

/* State of this task. The daemon keeps it current on the loop; heartbeats, the node and Status read
 * it. */
struct rdzv_progress {
    const char *phase; /* for the status: static string of at most 31 bytes */
    uint64_t phase_since_ms;
    const char *doing; /* within the phase, for heartbeats and the step watchdog: static string of
                          at most 31 bytes; "" unless training runs */
    uint64_t doing_since_ms;
    uint64_t step, total_steps, epoch; /* step: newest step applied */
    uint64_t place, limit_ms;          /* of `doing`, as in struct member_progress */
    double loss, samples_per_second;
    double step_seconds; /* mean of the last window, with the time between steps */
    double share_data, share_compute, share_reduce, share_checkpoint; /* of the step time, 0 to 1 */
    uint64_t skipped_records;
    double loss_scale; /* 0: the precision needs no loss scale */
    uint32_t train_phase, groups; /* of the newest step; 0: the job has no phases; it is synchronous */
    uint64_t outer_step;          /* outer steps of local SGD that are done */
    uint64_t coded_bytes, coded_saved_bytes; /* of compressed gradients since the start of the process:
                                                sent to other hosts, and saved compared with float32 */
    struct rdzv_spare spare;
    uint64_t checkpoint_step;
    char checkpoint_path[4096];
    char last_trouble[1024];
    uint64_t lease_token; /* 0: no lease */
    char lease[512];      /* its holder and expiry; "" without shared storage */
    const struct rdzv_gpu *gpus; /* [n_gpus] the GPUs of this task */
    uint32_t n_gpus;
    const char *trace_path; /* file of the trace that this task has written; NULL: none yet */
    const struct rdzv_window *window; /* for heartbeats to the leader: the last one; NULL: none yet */
    const struct rdzv_advice *advice; /* [n_advice] for heartbeats to members, if this task leads */
    uint32_t n_advice;                /* at most RDZV_ADVICE_MAX */
    const char *page; /* host:port of the status page, for Status and heartbeats to members; NULL: none */
};

struct rdzv_rows_request {
    const char *table, *part; /* part "": the weights */
    const uint64_t *rows;     /* [n_rows] */
    size_t n_rows;
};

struct rdzv_rows {
    uint64_t step;
    uint32_t width;
    size_t n_held;
    uint64_t *held; /* [n_held] the requested rows that this task holds */
    float *values;  /* [n_held * width] */
    bool is_dynamic;
    int *is_initial; /* [n_held] of a dynamic table: 1: no step has trained the row */
};

enum { RDZV_TICKET_BYTES = 16 };

struct rdzv_netcheck {
    uint32_t peer; /* the task to measure; MEMBER_NO_RANK: open a port for one measurement */
    uint16_t port; /* of the peer, and its ticket */
    uint8_t ticket[RDZV_TICKET_BYTES];
    uint32_t ms;    /* longest duration of the transfer */
    uint64_t bytes; /* limit of the transfer */
};

struct rdzv_netcheck_result {
    uint16_t port; /* that was opened, and its ticket */
    uint8_t ticket[RDZV_TICKET_BYTES];
    uint32_t rtt_us;
    uint64_t rate; /* bytes/s */
};

/* An action of the node, with the data that the node does not have. Valid during the callback. */
struct rdzv_action {
    const struct member_action *action;
    const struct group_view *view;      /* TRAIN: complete, valid during the callback */
    const char *const *addresses;       /* REACH: the data address of each of action->ranks; "":
                                           unknown */
};

struct rdzv_opts {
    struct loop *loop;
    const char *version, *job_name;
    const struct rdzv_task *tasks; /* [world] training tasks, then parameter servers; copied */
    uint32_t world;                /* tasks of the group */
    uint32_t n_ps;                 /* the last ranks, this many, are parameter servers */
    uint32_t self;
    uint64_t incarnation;          /* random, not 0, new for every process */
    const char *listen;            /* host:port to bind: the address of this task, or
                                      0.0.0.0:port */
    struct tls *tls;   /* certificates of this task; borrowed. NULL: every connection is in
                          clear text */
    const char *token; /* with certificates from files: the token that a caller of Checkpoint, Drain
                          and Stop must send as a bearer token. NULL: its certificate decides */
    struct member_ident ident;     /* copied */
    uint32_t n_devices, n_servers; /* of this task, as in struct member_node_opts */
    const char *data_address, *host_key;
    const char *location; /* of this task (base/location.h); "" or NULL: not known */
    /* as in struct member_node_opts */
    uint32_t min_world, min_ps, replicas;
    uint64_t rejoin_ms, deadline_ms, grace_ms, silent_ms;
    bool has_lease, saves;
    const struct rdzv_progress *progress; /* borrowed, read on the loop */
    void *arg;                     /* argument of the callbacks */

    /* Performs an action of the node: TRAIN, PAUSE, ABORT, SAVE, LEASE, RELEASE, REACH, LOG or END.
       The daemon reports the result with rdzv_report(), also from inside this call. END is called
       once; only on_trace follows it. The last messages are then in transit, and rdzv_close() waits
       for them. */
    void (*on_action)(void *arg, const struct rdzv_action *a);
    /* Called after all actions of an event: queries of rdzv_node() may have new answers. NULL: not
       called. */
    void (*on_state)(void *arg);
    /* Control.Checkpoint was called: the daemon answers later with rdzv_checkpoint_done(). */
    void (*on_checkpoint)(void *arg);
    /* Control.Reload was called. Returns the number of the reload that reads the file after this call
       and is reported with rdzv_reload_done() later; 0: no reload can start. Numbers increase. */
    uint64_t (*on_reload)(void *arg);
    /* Completes a reply of Status, whose fields of the membership and of *progress are filled in. Memory
       comes from `a`. NULL: not called. */
    void (*on_status)(void *arg, struct Trainerd__V1__StatusReply *s, struct arena *a);
    /* Reads rows for Control.Rows, on a thread of its own; may wait. On success the caller frees
       out->held and out->values. Errors: ERR_INPUT, ERR_NOENT (no such table or part), ERR_PEER (the
       rows are not complete now), ERR_NOMEM. NULL: this task holds no rows. */
    int (*read_rows)(void *arg, const struct rdzv_rows_request *q, struct rdzv_rows *out,
                     struct err *err);
    /* Performs Control.Netcheck on a thread of its own; blocks for some seconds, less after the daemon ends
       its measurements. Errors: ERR_INPUT, ERR_PEER, ERR_TIMEOUT, ERR_IO, ERR_CANCELED, ERR_NOMEM. */
    int (*netcheck)(void *arg, const struct rdzv_netcheck *q, struct rdzv_netcheck_result *out,
                    struct err *err);
    /* Called for each message in or out, and each link that opens or ends: a line for the log at
       level debug. Heartbeats are omitted. NULL: not called. */
    void (*on_trace)(void *arg, const char *text);
};

/* Sets the function that receives lines of level ERROR of gRPC's log, unless GRPC_VERBOSITY is set; NULL: none. It is called
 * from threads of gRPC, and must not call gRPC. Many lines from one place of gRPC's source are reported less and less often. */
void rdzv_on_grpc_error(void (*fn)(const char *line));

/* Binds the address, starts the server (health, reflection, Control, Rendezvous), and starts to
 * seek a leader. The callbacks are called from the loop, not inside this call. On success the
 * caller owns *out and frees it with rdzv_close(). Errors: ERR_IO (the address is in use; the text
 * names the remedy), ERR_INPUT, ERR_NOMEM. */
int rdzv_open(const struct rdzv_opts *opts, struct rdzv **out, struct err *err);

/* For the queries at the end of node.h; allowed in a callback. */
const struct member_node *rdzv_node(const struct rdzv *r);

/* Reports an event to the node: an event of training, LEASE, STORAGE, REACHED or STOP. *e is
 * copied. Allowed inside on_action(). Ignored after END. */
void rdzv_report(struct rdzv *r, const struct member_event *e);

/* A leader: the group of the present view divides the lanes like this from the next step boundary on, in
 * every view of the same processes that this task publishes (comm/pieces.h); n_pieces 0: equal shares.
 * `why` is the cause of the next view. Ignored if this task does not lead, or the view does not train. */
void rdzv_divide(struct rdzv *r, const struct group_piece *pieces, uint32_t n_pieces,
                 const char *why);

/* A leader: from the next step boundary on the members of the present view have these locations, [n_members] in the order of
 * ranks, in every view of the same processes that this task publishes, and equal shares; NULL: that of the task. Then as
 * rdzv_divide(). */
void rdzv_place(struct rdzv *r, const char *const *locations, const char *why);

void rdzv_checkpoint_done(struct rdzv *r, uint64_t step, const char *path, const char *error);

/* A key of the job file whose value changed. */
struct rdzv_change {
    const char *key, *from, *to; /* JSON pointer, JSON values */
    const char *note;            /* why the value is not applied; "": it is applied */
};
/* Reload `number` is finished: answers the calls of Control.Reload that wait for it or for an earlier
 * one. `error` NULL: the changes were applied; else the reason why the file was refused. */
void rdzv_reload_done(struct rdzv *r, uint64_t number, const struct rdzv_change *changes,
                      uint32_t n_changes, const char *error);
void rdzv_set_serving(struct rdzv *r, bool serving); /* health status: SERVING while the task
                                                        trains */

/* Fills in what Status replies. *s is initialized; its texts are borrowed from `r` or have memory
 * from `a`. */
void rdzv_describe(struct rdzv *r, struct Trainerd__V1__StatusReply *s, struct arena *a);
/* Only the fields of *p: for a task without a cluster. Any thread. */
void rdzv_describe_progress(const struct rdzv_progress *p, struct Trainerd__V1__StatusReply *s,
                            struct arena *a);

/* Copies the last window of a member that has a link to this task. Returns false if it has sent
 * no window. */
bool rdzv_member_window(const struct rdzv *r, uint32_t rank, struct rdzv_window *out);
/* Returns the number of sentences in the last heartbeat of the leader of this task, and sets *out,
 * which is valid until the next event. */
uint32_t rdzv_leader_advice(const struct rdzv *r, const struct rdzv_advice **out);
/* Returns the address of the status page in the last heartbeat of the leader of this task; "": none. Valid until
 * the next event. */
const char *rdzv_leader_page(const struct rdzv *r);

/* Closes the links after the messages that were sent, then the server. Blocks for at most
 * `grace_ms`; 0: cuts all connections at once. NULL is allowed. */
void rdzv_close(struct rdzv *r, uint64_t grace_ms);

/* ---- client calls for trainerctl: blocking, without a loop ---- */
/* Calls `method` ("Status", "Checkpoint", "Drain", "Stop" or "Reload") of trainerd.v1.Control with
 * an empty request, under TLS unless tls is NULL. A token is sent under TLS alone. On success the
 * caller frees *reply, the packed reply of *n bytes. Errors: ERR_INPUT (address, token), ERR_PEER,
 * ERR_TIMEOUT, ERR_AUTH, ERR_REFUSED with the status text. */
int rdzv_call(const char *address, struct tls *tls, const char *token, const char *method,
              uint64_t deadline_ms, void **reply, size_t *n, struct err *err);

/* Makes several calls of Control over one connection, each with a packed request of
 * n_request bytes. `tls` is borrowed until rdzv_caller_close(). times_ns: clock_ns() before the call
 * and after the reply; NULL: not needed. One thread at a time; several callers may be open. */
struct rdzv_caller;
int rdzv_caller_open(const char *address, struct tls *tls, const char *token,
                     struct rdzv_caller **out, struct err *err);
int rdzv_caller_call(struct rdzv_caller *c, const char *method, const void *request,
                     size_t n_request, uint64_t deadline_ms, void **reply, size_t *n,
                     uint64_t times_ns[2], struct err *err);
void rdzv_caller_close(struct rdzv_caller *c); /* NULL is allowed */

#endif
