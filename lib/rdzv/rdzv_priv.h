/* rdzv_priv.h - declarations that the files of rdzv share.
 *
 *   grpc.c        the completion queue, its thread, tags; packing; channels
 *   listen.c      the listening sockets
 *   admission.c   relays connections to gRPC within limits; frames.c counts the cost of frames
 *   in.c          the server and its incoming calls
 *   peers.c       the certificates of clients
 *   dial.c        a connection to an address, under TLS if there are certificates, or a refusal
 *   out.c         an outgoing call, on a connection of its own
 *   group.c       the node: events in, actions out
 *   perform.c     performs the actions: on links and probes, or by the daemon
 *   joined.c      what the tasks sent with their JOIN
 *   link_in.c     links in: one for each task that called this task
 *   link_out.c    the link out, to the task that this task called
 *   probe.c         probes: the status of other tasks
 *   view.c        a view with the data of its members
 *   reach.c       tests of data paths
 *   trace.c       a log line for each message
 *   records.c     the methods Logs and Trace of Control
 *   rows.c        the method Rows of Control
 *   netcheck.c    the method Netcheck of Control
 *   control.c, health.c, reflection.c    the other services of every task
 *   wire*.c       bytes to validated messages, and back
 *
 * Threads: everything runs on the loop's thread, except the threads inside grpc.c, dial.c and
 * admission.c. */
#ifndef RDZV_RDZV_PRIV_H
#define RDZV_RDZV_PRIV_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <grpc/grpc.h>
#include <grpc/status.h>

#include "base/arena.h"
#include "rdzv/rdzv.h"
#include "rdzv/wire.h"
#include "tls/tls.h"

/* ---- grpc.c ---- */

/* The tag of a batch. It is a part of the record of its call, so no allocation is needed. */
struct rdzv_tag {
    void (*fn)(void *arg, bool ok);
    void *arg;
    bool ok;
    struct rdzv_tag *next;
};

/* grpc_init() without gRPC's log; grpc_shutdown() reverts it. Errors: ERR_IO, ERR_NOMEM (the limit of
 * threads is reached). */
int rdzv_grpc_init(struct err *err);

struct rdzv_hub; /* the completion queue and its thread */

int rdzv_hub_open(struct loop *loop, struct rdzv_hub **out, struct err *err);
grpc_completion_queue *rdzv_hub_queue(struct rdzv_hub *h);
/* Called before the tag is passed to gRPC; returns the tag. fn runs once for it, on the loop. */
void *rdzv_hub_arm(struct rdzv_hub *h, struct rdzv_tag *t);
/* Runs the tags in place of the loop, on the loop's thread, until done(arg) returns true (then
 * returns true) or `wait_ms` have passed. */
bool rdzv_hub_pump(struct rdzv_hub *h, bool (*done)(void *arg), void *arg, uint64_t wait_ms);
bool rdzv_hub_is_idle(void *hub);        /* no tag is in use by gRPC */
void rdzv_hub_close(struct rdzv_hub *h); /* no tag may be in use by gRPC; NULL is allowed */

grpc_slice rdzv_pack(const ProtobufCMessage *m);
/* Returns the bytes of a message in one piece; the caller unrefs it. NULL buffer: empty. */
grpc_slice rdzv_bytes(grpc_byte_buffer *b);
grpc_arg rdzv_arg(const char *key, int value);
bool rdzv_is_address(const char *s); /* checks the form HOST:PORT only */
enum { RDZV_HOST_BYTES = 320 };
/* Writes the host of "host:port", without the brackets of an IPv6 address; returns `out`. */
const char *rdzv_host(const char *address, char out[RDZV_HOST_BYTES]);
/* Returns a channel with a connection of its own to "host:port"; gRPC connects when needed.
 * tls NULL: in clear text. */
grpc_channel *rdzv_channel(const char *address, struct tls *tls);
grpc_channel *rdzv_channel_on(int fd); /* on a connected socket; takes ownership of fd */
int rdzv_check_token(const char *token, struct err *err); /* returns 0 or ERR_INPUT */
/* Writes the header "authorization: Bearer ..."; the caller unrefs the value. */
void rdzv_bearer(const char *token, grpc_metadata *out);
/* Writes the reason of a failed call: "connect: Connection refused". */
void rdzv_status_text(char *out, size_t n, int code, const void *details, size_t n_details);

/* ---- in.c ---- */

struct rdzv_in;
typedef void rdzv_handler(struct rdzv *r, struct rdzv_in *call, void *request);

struct rdzv_method {
    const char *path;
    const ProtobufCMessageDescriptor *request;
    bool is_open;     /* needs no certificate */
    bool is_change;   /* changes the job: needs the token, or a certificate of the cluster */
    bool is_bidi;     /* a stream: the handler runs for every request */
    uint32_t pending; /* number of calls that can arrive at once */
    rdzv_handler *handle;
};

struct rdzv_server;
/* Serves the methods, which must outlive the server, on opts->listen. On success *out is valid; the
 * caller frees it after rdzv_server_is_down(). Errors: ERR_IO, ERR_INPUT. */
int rdzv_server_open(struct rdzv *r, const struct rdzv_method *methods, uint32_t n_methods,
                     struct rdzv_server **out, struct err *err);
/* Relays a connection that this task opened, as admission_relay(). */
int rdzv_server_relay(struct rdzv_server *s, int fd, struct tls_stream *tls);
void rdzv_server_tick(struct rdzv_server *s, uint64_t now_ms); /* logs the reports of admission */
void rdzv_server_shutdown(struct rdzv_server *s); /* accepts no new calls; running calls may end */
void rdzv_server_cancel(struct rdzv_server *s);   /* ends the running calls */
bool rdzv_server_is_closing(const struct rdzv_server *s);
bool rdzv_server_is_down(void *server);
void rdzv_server_free(struct rdzv_server *s); /* the server must be down; NULL is allowed */

/* The owner of a call (its handler, or the code that kept it) has a reference. It ends the call once with one
 * of these functions, which release the reference, and does not use it afterwards. */
void rdzv_in_reply(struct rdzv_in *c, const ProtobufCMessage *m); /* the only message, then OK */
void rdzv_in_finish(struct rdzv_in *c, grpc_status_code code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4))); /* after the messages that were sent; the text for OK is
                                              "" */
/* Sends a further message of a stream. A client that does not read is disconnected. */
void rdzv_in_send(struct rdzv_in *c, const ProtobufCMessage *m);
void rdzv_in_send_slice(struct rdzv_in *c, grpc_slice s); /* borrowed */
/* A handler that keeps the call calls this function before it returns. Calls fn(arg, call, why) if the call
 * ends without rdzv_in_reply() or rdzv_in_finish(): the client disconnected, half-closed, or sent bytes that are
 * not a request. The reference of the owner has been released; the call must not be used after fn. */
typedef void rdzv_closed_fn(void *arg, struct rdzv_in *c, const char *why);
void rdzv_in_on_closed(struct rdzv_in *c, rdzv_closed_fn *fn, void *arg);
/* Whether the caller may speak for the task with this address: the certificate of the caller names
 * its host, or was derived from the token, or the cluster has no certificates. If not, writes the
 * names in the certificate. */
bool rdzv_in_is_from(const struct rdzv_in *c, const char *address, char *names, size_t size);
/* Data of the handler of a stream, from one message to the next; NULL at first. */
void rdzv_in_set_context(struct rdzv_in *c, void *context);
void *rdzv_in_context(const struct rdzv_in *c);

/* ---- dial.c ---- */

struct rdzv_dial;
struct rdzv_dialled {
    int fd;                 /* -1: no connection; else the callee owns it */
    struct tls_stream *tls; /* its handshake is complete; the callee owns it. NULL: clear text */
    bool is_refused;        /* every address of the name refused the connection: no process listens
                               there */
    bool is_rejected;       /* one side does not accept the certificate of the other */
    const char *why;        /* the reason, if fd is -1 */
};
typedef void rdzv_dialled_fn(void *arg, const struct rdzv_dialled *d);
typedef void rdzv_progress_fn(void *arg);
/* Connects to "host:port" within `wait_ms`, then secures the connection if tls is not NULL. Calls fn once, from the loop, never
 * inside this call. The dial is freed then. Before fn, on_progress (NULL: not needed) is called from the loop when the
 * connection is made, and when the callee continues the handshake. */
struct rdzv_dial *rdzv_dial_start(struct loop *loop, const char *address, struct tls *tls,
                                  uint64_t wait_ms, rdzv_dialled_fn *fn,
                                  rdzv_progress_fn *on_progress, void *arg);
/* Neither function will be called. NULL is allowed. */
void rdzv_dial_cancel(struct rdzv_dial *d);

/* ---- out.c ---- */

struct rdzv_out;
struct rdzv_out_opts {
    struct rdzv *r;
    const char *address, *method;    /* method: static */
    const ProtobufCMessage *request; /* of a unary call; NULL: a stream, see rdzv_out_send() */
    uint64_t deadline_ms;            /* limit after the connection is made; 0: none */
    void *arg;
    rdzv_progress_fn *on_progress; /* before the connection is made, see rdzv_dial_start(); NULL: not called */
    void (*on_message)(void *arg, const void *data, size_t n);
    /* Called exactly once. code 0: OK. is_refused: as in rdzv_dial_fn. */
    void (*on_end)(void *arg, int code, bool is_refused, const char *text);
};
struct rdzv_out *rdzv_out_start(const struct rdzv_out_opts *opts);
void rdzv_out_send(struct rdzv_out *o, const ProtobufCMessage *m); /* allowed before the connection
                                                                      is made */
/* Ends the call with CANCELLED and `why`; on_end is still called. The call must be connected. */
void rdzv_out_cancel(struct rdzv_out *o, const char *why);
/* After these functions no callback is called, and the record frees itself. NULL is allowed. */
void rdzv_out_close(struct rdzv_out *o);  /* half-closes after the messages that were sent; if not
                                             connected, cancels */
void rdzv_out_abandon(struct rdzv_out *o); /* cancels the call */
void rdzv_out_abandon_all(struct rdzv *r);

/* ---- the parts of a task ---- */

struct rdzv {
    struct rdzv_opts opts; /* strings in `memory` */
    struct arena memory;
    struct wire_cluster cluster;
    uint8_t token_digest[32];
    uint64_t started_ms; /* monotonic */
    struct rdzv_hub *hub;
    struct rdzv_server *server;
    struct rdzv_out *outs; /* all running calls */
    struct rdzv_group *group;
    struct rdzv_joined *joined;
    struct rdzv_links *links;
    struct rdzv_client *client;
    struct rdzv_probes *probes;
    struct rdzv_views *views;
    struct rdzv_health *health;
    struct rdzv_control *control;
    struct rdzv_traces *traces;
    struct rdzv_rows_calls *rows;
    struct rdzv_netcheck_calls *netcheck;
    struct {
        uint32_t rank;
        char address[WIRE_ADDRESS_BYTES];
    } reach[MEMBER_REACH_MAX]; /* of the last REACH that was received */
    uint32_t n_reach;
};

rdzv_handler rdzv_join;                                                            /* link_in.c */
rdzv_handler rdzv_probed;                                                          /* probe.c */
rdzv_handler rdzv_status, rdzv_checkpoint, rdzv_drain, rdzv_stop_all, rdzv_reload; /* control.c */
rdzv_handler rdzv_logs, rdzv_read_trace;                                           /* records.c */
rdzv_handler rdzv_read_rows;                                                       /* rows.c */
rdzv_handler rdzv_netcheck;                                                        /* netcheck.c */
rdzv_handler rdzv_health_check, rdzv_health_watch;                                 /* health.c */
rdzv_handler rdzv_reflect; /* reflection.c */

/* ---- group.c ---- */

/* Performs one action of the node. */
typedef void rdzv_perform_fn(struct rdzv *r, const struct member_action *a);
struct rdzv_group *rdzv_group_new(struct rdzv *r, rdzv_perform_fn *perform);
void rdzv_group_start(struct rdzv_group *g); /* starts the node from the loop */
void rdzv_group_shut(struct rdzv_group *g);  /* the node handles no further event */
void rdzv_group_free(struct rdzv_group *g);
bool rdzv_group_has_ended(const struct rdzv_group *g); /* the node has ended, or was shut down */

/* Handles an event and performs all of its actions. */
void rdzv_group_event(struct rdzv_group *g, const struct member_event *e);
enum { RDZV_REFUSAL_BYTES = 1024 };
/* Calls member_node_admits(). refusal->text is copied to `text`. */
bool rdzv_group_admits(struct rdzv_group *g, uint32_t rank, const struct member_msg *join,
                       struct member_msg *refusal, char text[RDZV_REFUSAL_BYTES]);
void rdzv_group_probed(struct rdzv_group *g, uint32_t rank, const struct member_status *theirs,
                       struct member_status *ours);

/* ---- perform.c ---- */

/* Performs an action: on the links and probes, or through opts->on_action. Never calls the node, except with
 * rdzv_report(). */
void rdzv_perform(struct rdzv *r, const struct member_action *a);

/* ---- joined.c ---- */

/* The names of the tasks are borrowed. */
struct rdzv_joined *rdzv_joined_new(const struct wire_cluster *c);
/* Copies incarnation, n_devices, n_servers, data_address, host_key and location of the task m->rank. */
void rdzv_joined_store(struct rdzv_joined *t, const struct group_member *m);
/* Returns what was stored for the task, without held step; n_devices and n_servers 0: it never joined. Valid
 * until the task joins again. */
const struct group_member *rdzv_joined_get(const struct rdzv_joined *t, uint32_t rank);
void rdzv_joined_free(struct rdzv_joined *t);

/* ---- link_in.c ---- */

struct rdzv_links *rdzv_links_new(struct rdzv *r);
void rdzv_links_send(struct rdzv_links *l, uint32_t rank, const struct member_msg *m);
void rdzv_links_close(struct rdzv_links *l, uint32_t rank);
void rdzv_links_close_all(struct rdzv_links *l);
/* What a member sent with its last BEAT. NULL: it has no link to this task. */
struct rdzv_step_time {
    double seconds, data, compute, reduce, checkpoint; /* as in StepTime; seconds 0: unknown */
};
struct rdzv_figures {
    double samples_per_second;
    struct rdzv_step_time step_time;
    char trouble[WIRE_TROUBLE_BYTES];
    struct rdzv_window window; /* number 0: none */
};
const struct rdzv_figures *rdzv_links_figures(const struct rdzv_links *l, uint32_t rank);
void rdzv_links_free(struct rdzv_links *l);

/* ---- link_out.c ---- */

/* Returns what the end of an outgoing call says about the process at the address. */
enum member_closed rdzv_closed(int code, bool is_refused);
struct rdzv_client *rdzv_client_new(struct rdzv *r);
void rdzv_client_open(struct rdzv_client *c, uint32_t rank);
void rdzv_client_send(struct rdzv_client *c, const struct member_msg *m);
void rdzv_client_close(struct rdzv_client *c); /* after the messages that were sent */
void rdzv_client_free(struct rdzv_client *c);

/* ---- probe.c ---- */

struct rdzv_probes *rdzv_probes_new(struct rdzv *r);
void rdzv_probes_start(struct rdzv_probes *w, uint32_t rank, const struct member_status *ours);
void rdzv_probes_shut(struct rdzv_probes *w); /* no answer is awaited any more */
void rdzv_probes_free(struct rdzv_probes *w);

/* ---- view.c ---- */

struct rdzv_views *rdzv_views_new(struct rdzv *r);
/* Copies a complete view, which was received and validated, and sets `self` in the copy. */
void rdzv_views_store(struct rdzv_views *v, const struct group_view *from);
/* The views of exactly these processes that this task publishes have these locations from now on, [n_members]; NULL: that of
 * the task. The strings are copied. */
void rdzv_views_place(struct rdzv_views *v, const struct group_view *members,
                      const char *const *locations);
/* The views of exactly these processes that this task publishes have these pieces from now on; n_pieces 0:
 * equal shares. */
void rdzv_views_divide(struct rdzv_views *v, const struct group_view *members,
                       const struct group_piece *pieces, uint32_t n_pieces);
/* Returns the view of the node with key and connection data: as received, or, if this task
 * publishes the view, from the JOINs of the members and with a new key. NULL: neither is available.
 * Valid until the next call of this function. */
const struct group_view *rdzv_views_get(struct rdzv_views *v, const struct group_view *view);
void rdzv_views_free(struct rdzv_views *v);

/* ---- reach.c ---- */

const char *rdzv_reach_address(const struct rdzv *r, uint32_t rank); /* of a task that has joined;
                                                                        "": it has not */
void rdzv_reach_store(struct rdzv *r, const Trainerd__V1__Reach *m);  /* stores a REACH that was
                                                                        validated */
void rdzv_reach_test(struct rdzv *r, const struct member_action *a);

/* ---- trace.c ---- */

/* "worker 1 (10.0.0.2:2222)" */
const char *rdzv_full_name(const struct rdzv *r, uint32_t rank, char out[400]);
/* Logs a line of the control plane itself, as a LOG action. */
void rdzv_log(struct rdzv *r, const char *text, bool is_trouble);
void rdzv_trace(const struct rdzv *r, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Called directly before a message is sent to `rank`, and before a message from `rank` is handled:
 * trace line and fault point. */
void rdzv_msg_out(const struct rdzv *r, uint32_t rank, const struct member_msg *m);
void rdzv_msg_in(const struct rdzv *r, uint32_t rank, const struct member_msg *m);

/* ---- health.c, control.c ---- */

struct rdzv_health *rdzv_health_new(void);
void rdzv_health_set(struct rdzv_health *h, bool serving);
void rdzv_health_shut(struct rdzv_health *h);
void rdzv_health_free(struct rdzv_health *h);

struct rdzv_control *rdzv_control_new(void);
void rdzv_control_checkpoint_done(struct rdzv_control *c, uint64_t step, const char *path,
                                  const char *error);
void rdzv_control_reload_done(struct rdzv_control *c, uint64_t number,
                              const struct rdzv_change *changes, uint32_t n_changes,
                              const char *error);
void rdzv_control_free(struct rdzv_control *c);
/* Writes the step time of *p; false: it is not known, and *out is unchanged. */
bool rdzv_step_time(const struct rdzv_progress *p, Trainerd__V1__StepTime *out);

/* ---- records.c ---- */

struct rdzv_traces *rdzv_traces_new(struct rdzv *r);
void rdzv_traces_shut(struct rdzv_traces *t); /* refuses the running call; waits for its thread */
void rdzv_traces_free(struct rdzv_traces *t); /* NULL is allowed */

/* ---- netcheck.c ---- */

struct rdzv_netcheck_calls *rdzv_netcheck_new(struct rdzv *r);
void rdzv_netcheck_shut(struct rdzv_netcheck_calls *c); /* refuses the running call; waits for its thread */
void rdzv_netcheck_free(struct rdzv_netcheck_calls *c); /* NULL is allowed */

/* ---- rows.c ---- */

struct rdzv_rows_calls *rdzv_rows_new(struct rdzv *r);
void rdzv_rows_shut(struct rdzv_rows_calls *c); /* refuses the running call; waits for its thread */
void rdzv_rows_free(struct rdzv_rows_calls *c); /* NULL is allowed */

#endif
