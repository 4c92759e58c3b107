/* rdzv_priv.h - what the files of rdzv share.
 *
 *   grpc.c        the completion queue, its thread, tags; packing; channels
 *   in.c          a call that came in, and the server that takes them
 *   out.c         a call that goes out
 *   service.c     Rendezvous: calls to member_coord, its orders to the streams   (coordinator)
 *   probe.c       asks missing tasks whether they live                          (coordinator)
 *   client.c      member_worker: its actions to calls and callbacks
 *   control.c, health.c, reflection.c    what every task serves
 *   wire.c        bytes to checked messages
 *
 * Threads: all of it on the loop's thread, but for the thread inside grpc.c. */
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
/* A connection of its own, to "host:port"; the name is resolved anew. */
grpc_channel *rdzv_channel(const char *address);
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
uint16_t rdzv_server_port(const struct rdzv_server *s);
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
 * away. The call must not be used after. */
void rdzv_in_on_closed(struct rdzv_in *c, void (*fn)(void *arg, struct rdzv_in *c), void *arg);
const char *rdzv_in_path(const struct rdzv_in *c);

/* ---- out.c ---- */

struct rdzv_out;
struct rdzv_out_opts {
    struct rdzv_hub *hub;
    grpc_channel *channel; /* borrowed until on_end */
    const char *method, *token;
    const ProtobufCMessage *request;
    uint64_t deadline_ms; /* UINT64_MAX: none */
    bool is_stream;       /* several messages come */
    void *arg;
    void (*on_message)(void *arg, const void *data, size_t n); /* may be NULL */
    void (*on_end)(void *arg, int code, const char *text); /* exactly once; code 0: OK */
};
struct rdzv_out *rdzv_out_start(const struct rdzv_out_opts *opts);
/* Ends it with CANCELLED and `why`; on_end still comes. */
void rdzv_out_cancel(struct rdzv_out *o, const char *why);
/* Cancels it; nothing is called any more. The channel may be destroyed at once. NULL is fine. */
void rdzv_out_forget(struct rdzv_out *o);

/* ---- the parts of a task ---- */

struct rdzv {
    struct rdzv_opts opts; /* strings in `memory` */
    struct arena memory;
    struct wire_cluster cluster;
    uint8_t incarnation[MEMBER_INCARNATION_BYTES];
    uint8_t token_digest[32];
    uint64_t started_ms;
    struct rdzv_hub *hub;
    struct rdzv_server *server;
    struct rdzv_service *service; /* NULL unless this task is the coordinator */
    struct rdzv_client *client;
    struct rdzv_health *health;
    struct rdzv_control *control;
};

/* "worker 1 (10.0.0.2:2222)" */
const char *rdzv_full_name(const struct rdzv *r, uint32_t rank, char out[400]);
void rdzv_fill_task(const struct rdzv *r, uint32_t rank, Trainerd__V1__Task *out);

extern const struct rdzv_method rdzv_methods[]; /* rdzv.c */
extern const uint32_t rdzv_n_methods;
rdzv_handler rdzv_join, rdzv_heartbeat, rdzv_leave;                /* service.c */
rdzv_handler rdzv_status, rdzv_checkpoint, rdzv_drain, rdzv_stop_all; /* control.c */
rdzv_handler rdzv_health_check, rdzv_health_watch;                 /* health.c */
rdzv_handler rdzv_reflect;                                         /* reflection.c */

struct rdzv_service *rdzv_service_new(struct rdzv *r);
void rdzv_service_shut(struct rdzv_service *s); /* ends all streams; the rest stays callable */
void rdzv_service_free(struct rdzv_service *s);
struct member_coord *rdzv_service_coord(struct rdzv_service *s);
double rdzv_service_speed(struct rdzv_service *s, uint32_t rank); /* samples per second */
void rdzv_service_ask_stop(struct rdzv_service *s); /* tells all that joined */

struct rdzv_probe;
struct rdzv_probe *rdzv_probe_new(struct rdzv *r);
void rdzv_probe_round(struct rdzv_probe *p); /* asks every missing task, a few at a time */
void rdzv_probe_free(struct rdzv_probe *p);

struct rdzv_client *rdzv_client_new(struct rdzv *r);
void rdzv_client_start(struct rdzv_client *c);
enum member_state rdzv_client_state(const struct rdzv_client *c);
uint64_t rdzv_client_generation(const struct rdzv_client *c);
void rdzv_client_free(struct rdzv_client *c);

struct rdzv_health *rdzv_health_new(void);
void rdzv_health_set(struct rdzv_health *h, bool serving);
void rdzv_health_shut(struct rdzv_health *h);
void rdzv_health_free(struct rdzv_health *h);

struct rdzv_control *rdzv_control_new(void);
void rdzv_control_checkpoint_done(struct rdzv_control *c, uint64_t step, const char *path,
                                  const char *error);
void rdzv_control_free(struct rdzv_control *c);

#endif
