/* rdzv_priv.h - what the files of rdzv share.
 *
 *   grpc.c        the completion queue, its thread, tags; packing; channels
 *   listen.c      the listening sockets; admission.c relays connections to gRPC within limits; frames.c counts what they cost
 *   in.c          a call that came in, and the server that takes them
 *   dial.c        a TCP connection to an address, or a refusal
 *   out.c         a call that goes out, on a connection of its own
 *   group.c       the node: events in, actions out, callbacks to the daemon
 *   link_in.c     links of those that called us: one per task
 *   link_out.c    the link to the one that we called
 *   who.c         questions where others stand, and theirs
 *   view.c        a view with all that its members said of themselves
 *   reach.c       tests of data paths
 *   trace.c       a message in one line
 *   control.c, health.c, reflection.c    what every task serves beside
 *   wire*.c       bytes to checked messages, and back
 *
 * Threads: all of it on the loop's thread, but for the threads inside grpc.c and dial.c. */
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

/* ---- grpc.c ---- */

/* What a batch is started with; lives in the record of its call, so that nothing is allocated. */
struct rdzv_tag {
    void (*fn)(void *arg, bool ok);
    void *arg;
    bool ok;
    struct rdzv_tag *next;
};

void rdzv_grpc_init(void); /* grpc_init() without its log; grpc_shutdown() undoes it */

struct rdzv_hub; /* the completion queue and its thread */

int rdzv_hub_open(struct loop *loop, struct rdzv_hub **out, struct err *err);
grpc_completion_queue *rdzv_hub_queue(struct rdzv_hub *h);
/* To be called before the tag is handed to gRPC; returns it. fn runs once for it, on the loop. */
void *rdzv_hub_arm(struct rdzv_hub *h, struct rdzv_tag *t);
/* Takes the loop's part, in the loop's thread, until done(arg) or `wait_ms` are over. */
bool rdzv_hub_pump(struct rdzv_hub *h, bool (*done)(void *arg), void *arg, uint64_t wait_ms);
bool rdzv_hub_is_idle(void *hub); /* no tag is out */
void rdzv_hub_close(struct rdzv_hub *h); /* no tag may be out; NULL is fine */

grpc_slice rdzv_pack(const ProtobufCMessage *m);
/* The bytes of a message in one piece; the caller unrefs. NULL buffer: empty. */
grpc_slice rdzv_bytes(grpc_byte_buffer *b);
grpc_arg rdzv_arg(const char *key, int value);
bool rdzv_is_address(const char *s); /* HOST:PORT, by its looks */
/* A connection of its own, to "host:port", that gRPC makes when it is needed. */
grpc_channel *rdzv_channel(const char *address);
grpc_channel *rdzv_channel_on(int fd); /* on a connection that is made; takes fd over */
int rdzv_check_token(const char *token, struct err *err); /* ERR_INPUT */
/* The header "authorization: Bearer ..."; the caller unrefs the value. */
void rdzv_bearer(const char *token, grpc_metadata *out);
/* What gRPC says about a failed call, for a person: "connect: Connection refused". */
void rdzv_story(char *out, size_t n, int code, const void *details, size_t n_details);

/* ---- in.c ---- */

struct rdzv_in;
typedef void rdzv_handler(struct rdzv *r, struct rdzv_in *call, void *request);

struct rdzv_method {
    const char *path;
    const ProtobufCMessageDescriptor *request;
    bool is_open;     /* without the token */
    bool is_bidi;     /* the handler runs for every request of the stream */
    uint32_t pending; /* so many calls can arrive at once */
    rdzv_handler *handle;
};

struct rdzv_server;
/* Listens on opts->listen. Errors: ERR_IO, ERR_INPUT. */
int rdzv_server_open(struct rdzv *r, struct rdzv_server **out, struct err *err);
void rdzv_server_tick(struct rdzv_server *s, uint64_t now_ms); /* says what admission has to report */
void rdzv_server_shutdown(struct rdzv_server *s); /* no new calls; those that run may end */
void rdzv_server_cancel(struct rdzv_server *s);   /* ends those that run */
bool rdzv_server_is_closing(const struct rdzv_server *s);
bool rdzv_server_is_down(void *server);
void rdzv_server_free(struct rdzv_server *s); /* is down; NULL is fine */

/* A handler, or whoever kept the call, ends it once with one of these, and must not use it after.
 */
void rdzv_in_reply(struct rdzv_in *c, const ProtobufCMessage *m); /* the only message, and OK */
void rdzv_in_finish(struct rdzv_in *c, grpc_status_code code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4))); /* after what was sent; text for OK is "" */
/* One more message of a stream. A client that does not read is cut off. */
void rdzv_in_send(struct rdzv_in *c, const ProtobufCMessage *m);
void rdzv_in_send_slice(struct rdzv_in *c, grpc_slice s); /* borrowed */
/* Calls fn(arg, call) when the call ends without rdzv_in_reply() or _finish(): the client went
 * away, or has said all that it will. The call must not be used after. */
void rdzv_in_on_closed(struct rdzv_in *c, void (*fn)(void *arg, struct rdzv_in *c), void *arg);
/* For the handler of a stream, from one message to the next; NULL at first. */
void rdzv_in_set_context(struct rdzv_in *c, void *context);
void *rdzv_in_context(const struct rdzv_in *c);

/* ---- dial.c ---- */

struct rdzv_dial;
/* fd >= 0: connected, it is the callee's. Else why not; is_refused: every address of the name
 * refused the connection, so nobody listens there. */
typedef void rdzv_dialled(void *arg, int fd, bool is_refused, const char *why);
/* Calls fn once, from the loop, never inside this call. */
struct rdzv_dial *rdzv_dial_start(struct loop *loop, const char *address, uint64_t wait_ms,
                                  rdzv_dialled *fn, void *arg);
void rdzv_dial_forget(struct rdzv_dial *d); /* fn is not called; at once. NULL is fine */

/* ---- out.c ---- */

struct rdzv_out;
struct rdzv_out_opts {
    struct rdzv *r;
    const char *address, *method, *token; /* method: static; token: as long as r */
    const ProtobufCMessage *request; /* of a unary call; NULL: a stream, see rdzv_out_send() */
    uint64_t deadline_ms;            /* once connected; 0: none */
    void *arg;
    void (*on_message)(void *arg, const void *data, size_t n);
    /* Exactly once. code 0: OK. is_refused: as a dial says it. */
    void (*on_end)(void *arg, int code, bool is_refused, const char *text);
};
struct rdzv_out *rdzv_out_start(const struct rdzv_out_opts *opts);
void rdzv_out_send(struct rdzv_out *o, const ProtobufCMessage *m); /* also before it is connected */
/* Ends it with CANCELLED and `why`; on_end still comes. It must be connected. */
void rdzv_out_cancel(struct rdzv_out *o, const char *why);
/* Nothing is called any more after these, and the record goes by itself. NULL is fine. */
void rdzv_out_close(struct rdzv_out *o);  /* ends our side after what was sent; if connected */
void rdzv_out_forget(struct rdzv_out *o); /* cancels it */
void rdzv_out_forget_all(struct rdzv *r);

/* ---- the parts of a task ---- */

struct rdzv {
    struct rdzv_opts opts; /* strings in `memory` */
    struct arena memory;
    struct wire_cluster cluster;
    uint8_t token_digest[32];
    uint64_t started_ms; /* monotonic */
    struct rdzv_hub *hub;
    struct rdzv_server *server;
    struct rdzv_out *outs; /* all that run */
    struct rdzv_group *group;
    struct rdzv_links *links;
    struct rdzv_client *client;
    struct rdzv_who *who;
    struct rdzv_views *views;
    struct rdzv_health *health;
    struct rdzv_control *control;
    struct {
        uint32_t rank;
        char address[WIRE_ADDRESS_BYTES];
    } reach[MEMBER_REACH_MAX]; /* of the last Reach that came */
    uint32_t n_reach;
};

/* "worker 1 (10.0.0.2:2222)" */
const char *rdzv_full_name(const struct rdzv *r, uint32_t rank, char out[400]);

extern const struct rdzv_method rdzv_methods[]; /* rdzv.c */
extern const uint32_t rdzv_n_methods;
rdzv_handler rdzv_join;                                               /* link_in.c */
rdzv_handler rdzv_asked;                                              /* who.c */
rdzv_handler rdzv_status, rdzv_checkpoint, rdzv_drain, rdzv_stop_all; /* control.c */
rdzv_handler rdzv_health_check, rdzv_health_watch;                    /* health.c */
rdzv_handler rdzv_reflect;                                            /* reflection.c */

/* ---- group.c ---- */

struct rdzv_group *rdzv_group_new(struct rdzv *r);
void rdzv_group_start(struct rdzv_group *g); /* from the loop, soon */
void rdzv_group_shut(struct rdzv_group *g);  /* no event goes in any more */
void rdzv_group_free(struct rdzv_group *g);
bool rdzv_group_has_ended(const struct rdzv_group *g); /* the membership is over, or it is shut */

/* Handles an event with all of its actions. */
void rdzv_group_event(struct rdzv_group *g, const struct member_event *e);
void rdzv_say(struct rdzv *r, const char *text, bool is_trouble); /* a sentence of the control plane itself, as a SAY */
enum { RDZV_REFUSAL_BYTES = 1024 };
/* member_node_admits(); refusal->text is set to `text`. */
bool rdzv_group_admits(struct rdzv_group *g, uint32_t rank, const struct member_msg *join, struct member_msg *refusal,
                       char text[RDZV_REFUSAL_BYTES]);
void rdzv_group_asked(struct rdzv_group *g, uint32_t rank, const struct member_status *theirs,
                      struct member_status *ours);

/* ---- link_in.c ---- */

struct rdzv_links *rdzv_links_new(struct rdzv *r);
void rdzv_links_send(struct rdzv_links *l, uint32_t rank, const struct member_msg *m);
void rdzv_links_close(struct rdzv_links *l, uint32_t rank);
void rdzv_links_close_all(struct rdzv_links *l);
/* What the task said when it joined; n_devices 0: it never did. */
struct rdzv_member rdzv_links_member(const struct rdzv_links *l, uint32_t rank);
double rdzv_links_speed(const struct rdzv_links *l, uint32_t rank); /* samples per second */
void rdzv_links_free(struct rdzv_links *l);

/* ---- link_out.c ---- */

struct rdzv_client *rdzv_client_new(struct rdzv *r);
void rdzv_client_call(struct rdzv_client *c, uint32_t rank);
void rdzv_client_tell(struct rdzv_client *c, const struct member_msg *m);
void rdzv_client_hang_up(struct rdzv_client *c); /* after what was sent */
void rdzv_client_free(struct rdzv_client *c);

/* ---- who.c ---- */

struct rdzv_who *rdzv_who_new(struct rdzv *r);
void rdzv_who_ask(struct rdzv_who *w, uint32_t rank, const struct member_status *ours);
void rdzv_who_shut(struct rdzv_who *w); /* no answer is waited for any more */
void rdzv_who_free(struct rdzv_who *w);

/* ---- view.c ---- */

struct rdzv_views *rdzv_views_new(struct rdzv *r);
/* A View that came in, and was checked. */
void rdzv_views_take(struct rdzv_views *v, const Trainerd__V1__View *m);
/* The view as the node has it, with the rest: what came with it, or, if it is our own to publish,
 * what its members said and a new key. NULL: it is neither. Valid until the next call here. */
const struct rdzv_view *rdzv_views_get(struct rdzv_views *v, const struct member_view *view);
void rdzv_views_free(struct rdzv_views *v);

/* ---- reach.c ---- */

const char *rdzv_reach_address(const struct rdzv *r, uint32_t rank); /* of a task that joined; "": it did not */
void rdzv_reach_take(struct rdzv *r, const Trainerd__V1__Reach *m);  /* it was checked */
void rdzv_reach_test(struct rdzv *r, const struct member_action *a);

/* ---- trace.c ---- */

void rdzv_trace(const struct rdzv *r, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Right before a message goes to `rank`, and before one that came from there is heard. */
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
void rdzv_control_free(struct rdzv_control *c);

#endif
