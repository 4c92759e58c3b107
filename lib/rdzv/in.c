/* in.c - the server and its incoming calls.
 *
 *     requested --arrives--> accepted --handler--> reply / send ... finish --> all tags returned:
 *     freed
 *
 * The tags of a call: `arrived` (requested from the server), `gone` (RECV_CLOSE: the call has ended
 * in any way, which is how the owner of a waiting call learns that the client died), `sent` (one
 * message at a time), `read` (streams only). gRPC may return `gone` before a `read` that has a message.
 *
 * The owner of a call (its handler, or the code that kept it) has a reference until the call is finished, by
 * the owner, or by this file, which then calls on_closed. A finished call is passed to no handler. */
#include "rdzv/rdzv_priv.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <grpc/grpc_posix.h>
#include <grpc/grpc_security.h>
#include <grpc/support/time.h>

#include "base/check.h"
#include "base/digest.h"
#include "base/err.h"
#include "rdzv/admission.h"
#include "rdzv/peers.h"
#include "tls/tls.h"

enum {
    UNSENT_MAX = 32, /* messages that are queued for a client that does not read */
    CALLS_MAX = 1024, /* limit of running calls, plus four for each task of the cluster */
};

struct rdzv_server {
    struct rdzv *r;
    grpc_server *server;
    grpc_server_credentials *plain; /* of the socket pairs; TLS is outside of them */
    struct peers *peers;
    struct admission *admission; /* NULL: not listening */
    const struct rdzv_method *methods; /* [n_methods] borrowed */
    uint32_t n_methods;
    void **registered; /* [n_methods] */
    bool is_closing, is_down;
    struct rdzv_in *all; /* the running calls */
    uint32_t n_calls;
    struct rdzv_tag down;
};

struct rdzv_in_received { /* gRPC writes it */
    gpr_timespec deadline;
    grpc_metadata_array metadata;
    grpc_call_details details;
    grpc_byte_buffer *payload;
    int cancelled;
};

struct rdzv_in {
    struct rdzv_server *server;
    const struct rdzv_method *method; /* NULL: an unknown method */
    struct rdzv_in *next, **link;     /* in server->all, after the call was accepted */
    grpc_call *call;
    uint32_t refs; /* tags in use by gRPC, and the owner of an accepted call that is not finished */
    struct rdzv_tag arrived, gone, sent, read;

    struct rdzv_in_received received;

    grpc_slice unsent[UNSENT_MAX]; /* oldest first */
    uint32_t n_unsent;
    bool is_sending, has_sent; /* a batch is in progress; the initial metadata was sent */
    bool is_finished;          /* it has no owner: a status was sent or is queued, or it is gone */
    bool is_status_sent, is_gone;
    grpc_status_code status;
    grpc_slice status_text;

    rdzv_closed_fn *on_closed;
    void *arg;
    void *context; /* of the handler */
};

static void accept_next(struct rdzv_server *s, const struct rdzv_method *m);

/* ---- the record ---- */

static void unref(struct rdzv_in *c)
{
    if (--c->refs > 0)
        return;
    if (c->link != NULL) {
        *c->link = c->next;
        if (c->next != NULL)
            c->next->link = c->link;
        c->server->n_calls--;
    }
    for (uint32_t i = 0; i < c->n_unsent; i++)
        grpc_slice_unref(c->unsent[i]);
    if (c->received.payload != NULL)
        grpc_byte_buffer_destroy(c->received.payload);
    if (c->call != NULL)
        grpc_call_unref(c->call);
    grpc_slice_unref(c->status_text);
    grpc_metadata_array_destroy(&c->received.metadata);
    grpc_call_details_destroy(&c->received.details);
    free(c);
}

static void batch(struct rdzv_in *c, const grpc_op *ops, size_t n, struct rdzv_tag *tag)
{
    c->refs++;
    CHECK(grpc_call_start_batch(c->call, ops, n, rdzv_hub_arm(c->server->r->hub, tag), NULL) ==
          GRPC_CALL_OK);
}

/* ---- sending ---- */

/* Starts the next batch: the oldest message, and the status with the last message. */
static void pump(struct rdzv_in *c)
{
    grpc_op ops[3] = { { 0 } };
    grpc_byte_buffer *body = NULL;
    size_t n = 0;

    if (c->is_sending || c->is_gone || c->is_status_sent || (c->n_unsent == 0 && !c->is_finished))
        return;
    if (!c->has_sent)
        ops[n++].op = GRPC_OP_SEND_INITIAL_METADATA;
    if (c->n_unsent > 0) {
        body = grpc_raw_byte_buffer_create(&c->unsent[0], 1);
        grpc_slice_unref(c->unsent[0]);
        c->n_unsent--;
        memmove(c->unsent, c->unsent + 1, c->n_unsent * sizeof(c->unsent[0]));
        ops[n].op = GRPC_OP_SEND_MESSAGE;
        ops[n++].data.send_message.send_message = body;
    }
    if (c->is_finished && c->n_unsent == 0) {
        ops[n].op = GRPC_OP_SEND_STATUS_FROM_SERVER;
        ops[n].data.send_status_from_server.status = c->status;
        ops[n++].data.send_status_from_server.status_details = &c->status_text;
        c->is_status_sent = true;
    }
    c->has_sent = c->is_sending = true;
    batch(c, ops, n, &c->sent);
    if (body != NULL)
        grpc_byte_buffer_destroy(body);
}

static void on_sent(void *arg, bool ok)
{
    struct rdzv_in *c = arg;

    (void)ok; /* if false, `gone` follows */
    c->is_sending = false;
    pump(c);
    unref(c);
}

void rdzv_in_send_slice(struct rdzv_in *c, grpc_slice s)
{
    CHECK(!c->is_finished);
    if (c->is_gone)
        return;
    if (c->n_unsent == UNSENT_MAX) {
        grpc_call_cancel_with_status(c->call, GRPC_STATUS_RESOURCE_EXHAUSTED,
                                     "the client does not read", NULL);
        return;
    }
    c->unsent[c->n_unsent++] = grpc_slice_ref(s);
    pump(c);
}

void rdzv_in_send(struct rdzv_in *c, const ProtobufCMessage *m)
{
    grpc_slice s = rdzv_pack(m);

    rdzv_in_send_slice(c, s);
    grpc_slice_unref(s);
}

/* Releases the reference of the owner. */
static void finish(struct rdzv_in *c, grpc_status_code code, const char *text)
{
    CHECK(!c->is_finished);
    c->is_finished = true;
    c->on_closed = NULL;
    c->status = code;
    c->status_text = grpc_slice_from_copied_string(text);
    pump(c);
    unref(c);
}

/* Finishes a call that its owner has not finished, and tells the owner. The caller has a reference. */
static void finish_for_owner(struct rdzv_in *c, grpc_status_code code, const char *text,
                             const char *why)
{
    rdzv_closed_fn *fn = c->on_closed;

    if (c->is_finished)
        return;
    finish(c, code, text);
    if (fn != NULL)
        fn(c->arg, c, why);
}

void rdzv_in_finish(struct rdzv_in *c, grpc_status_code code, const char *fmt, ...)
{
    char text[2048];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    finish(c, code, text);
}

void rdzv_in_reply(struct rdzv_in *c, const ProtobufCMessage *m)
{
    grpc_slice s = rdzv_pack(m);

    if (!c->is_gone)
        c->unsent[c->n_unsent++] = grpc_slice_ref(s); /* first message, so the array has room */
    grpc_slice_unref(s);
    finish(c, GRPC_STATUS_OK, "");
}

void rdzv_in_on_closed(struct rdzv_in *c, rdzv_closed_fn *fn, void *arg)
{
    c->on_closed = fn;
    c->arg = arg;
}

void rdzv_in_set_context(struct rdzv_in *c, void *context)
{
    c->context = context;
}

void *rdzv_in_context(const struct rdzv_in *c)
{
    return c->context;
}

static void on_gone(void *arg, bool ok)
{
    struct rdzv_in *c = arg;

    (void)ok; /* this batch always succeeds */
    c->is_gone = true;
    finish_for_owner(c, GRPC_STATUS_CANCELLED, "", "its connection closed");
    unref(c);
}

/* ---- receiving ---- */

/* Compares digests, so that the time taken does not depend on the number of correct bytes. */
static bool has_token(const struct rdzv_in *c)
{
    static const char scheme[] = "Bearer ";
    const size_t n_scheme = sizeof(scheme) - 1;
    bool found = false;

    for (size_t i = 0; i < c->received.metadata.count; i++) {
        const grpc_metadata *m = &c->received.metadata.metadata[i];
        const char *value = (const char *)GRPC_SLICE_START_PTR(m->value);
        size_t n = GRPC_SLICE_LENGTH(m->value);
        uint8_t digest[DIGEST_BYTES];

        if (grpc_slice_str_cmp(m->key, "authorization") != 0 || n < n_scheme ||
            strncasecmp(value, scheme, n_scheme) != 0)
            continue;
        digest_sha256(value + n_scheme, n - n_scheme, digest);
        found |= digest_equal(digest, c->server->r->token_digest);
    }
    return found;
}

bool rdzv_in_is_from(const struct rdzv_in *c, const char *address, char *names, size_t size)
{
    const struct rdzv *r = c->server->r;
    const struct tls_peer *peer;
    char host[RDZV_HOST_BYTES];

    if (r->opts.tls == NULL || tls_common_host(r->opts.tls) != NULL)
        return true;
    peer = peers_of(c->server->peers, c->call);
    rdzv_host(address, host);
    if (peer != NULL && tls_peer_has(peer, host))
        return true;
    if (peer != NULL)
        tls_peer_names(peer, names, size);
    return false;
}

/* Whether the caller may change the job: it knows the token, or its certificate belongs to a host of
 * the cluster or to an operator. */
static bool is_operator(const struct rdzv_in *c, const struct tls_peer *peer)
{
    const struct rdzv *r = c->server->r;
    char host[RDZV_HOST_BYTES];

    if (r->opts.token != NULL)
        return has_token(c);
    if (tls_peer_has(peer, RDZV_OPERATOR))
        return true;
    for (uint32_t i = 0; i < r->cluster.world; i++)
        if (tls_peer_has(peer, rdzv_host(r->cluster.tasks[i].address, host)))
            return true;
    return false;
}

/* Returns false, with the reason, if the caller may not call the method. */
static bool is_authorized(const struct rdzv_in *c, const char **why)
{
    const struct rdzv *r = c->server->r;
    const struct tls_peer *peer;

    if (c->method->is_open || r->opts.tls == NULL)
        return true;
    peer = peers_of(c->server->peers, c->call);
    *why =
        tls_common_host(r->opts.tls) != NULL
            ? "this cluster has a token, so it requires TLS: set the same TRAINERD_TOKEN for the caller"
            : "this cluster requires TLS: set TRAINERD_TLS, a folder with tls.crt, tls.key and ca.crt, for the caller";
    if (peer == NULL)
        return false;
    *why =
        r->opts.token != NULL
            ? "this command needs the token of the cluster: expected 'authorization: Bearer TOKEN'; set TRAINERD_TOKEN for the caller"
            : "this command needs a certificate of a host of the cluster, or one with the name '" RDZV_OPERATOR
              "'";
    return !c->method->is_change || tls_common_host(r->opts.tls) != NULL || is_operator(c, peer);
}

/* Unpacks a request and calls the handler, or rejects the request. */
static void handle(struct rdzv_in *c)
{
    grpc_slice bytes = rdzv_bytes(c->received.payload);
    struct wire w = { 0 };
    void *request =
        wire_unpack(&w, c->method->request, GRPC_SLICE_START_PTR(bytes), GRPC_SLICE_LENGTH(bytes));
    char text[256];

    if (request != NULL) {
        c->method->handle(c->server->r, c, request);
        /* only a stream has no owner between two messages */
        CHECK(c->is_finished || c->on_closed != NULL || c->method->is_bidi);
    } else {
        snprintf(text, sizeof(text), "%zu bytes are not a valid %s", GRPC_SLICE_LENGTH(bytes),
                 c->method->request->name);
        finish_for_owner(c, GRPC_STATUS_INVALID_ARGUMENT, text, text);
    }
    wire_fini(&w);
    grpc_slice_unref(bytes);
}

static void read_next(struct rdzv_in *c)
{
    grpc_op op = { .op = GRPC_OP_RECV_MESSAGE, .data.recv_message.recv_message = &c->received.payload };

    batch(c, &op, 1, &c->read);
}

static void on_read(void *arg, bool ok)
{
    struct rdzv_in *c = arg;

    (void)ok;                          /* if false, there is no message */
    if (c->received.payload == NULL) { /* the client has half-closed */
        finish_for_owner(c, GRPC_STATUS_OK, "", "its connection closed");
    } else {
        if (!c->is_finished)
            handle(c);
        grpc_byte_buffer_destroy(c->received.payload);
        c->received.payload = NULL;
        if (!c->is_finished)
            read_next(c);
    }
    unref(c);
}

static void accept_call(struct rdzv_in *c)
{
    struct rdzv_server *s = c->server;
    grpc_op op = { .op = GRPC_OP_RECV_CLOSE_ON_SERVER,
                   .data.recv_close_on_server.cancelled = &c->received.cancelled };
    const char *why;

    c->next = s->all;
    c->link = &s->all;
    if (s->all != NULL)
        s->all->link = &c->next;
    s->all = c;
    s->n_calls++;
    c->refs++; /* of the owner */
    batch(c, &op, 1, &c->gone);

    if (s->is_closing) { /* the data of the handlers may have been freed */
        rdzv_in_finish(c, GRPC_STATUS_UNAVAILABLE, "the task ends");
    } else if (c->method == NULL) {
        char method[256];

        wire_text(method, sizeof(method), GRPC_SLICE_START_PTR(c->received.details.method),
                  GRPC_SLICE_LENGTH(c->received.details.method));
        rdzv_in_finish(c, GRPC_STATUS_UNIMPLEMENTED, "trainerd %s has no method '%s'",
                       s->r->opts.version, method);
    } else if (!is_authorized(c, &why)) {
        rdzv_in_finish(c, GRPC_STATUS_UNAUTHENTICATED, "%s", why);
    } else if (s->n_calls > CALLS_MAX + 4 * s->r->cluster.world) {
        rdzv_in_finish(c, GRPC_STATUS_RESOURCE_EXHAUSTED, "%u calls are running already",
                       s->n_calls - 1);
    } else if (c->method->is_bidi) {
        read_next(c);
    } else {
        handle(c);
    }
}

static void on_arrived(void *arg, bool ok)
{
    struct rdzv_in *c = arg;

    if (ok) { /* if false, the server shuts down */
        if (!c->server->is_closing)
            accept_next(c->server, c->method);
        accept_call(c);
    }
    unref(c);
}

static void accept_next(struct rdzv_server *s, const struct rdzv_method *m)
{
    struct rdzv_in *c = calloc(1, sizeof(*c));
    grpc_completion_queue *queue = rdzv_hub_queue(s->r->hub);
    grpc_call_error rc;

    CHECK(c != NULL);
    c->server = s;
    c->method = m;
    c->refs = 1;
    c->arrived = (struct rdzv_tag){ .fn = on_arrived, .arg = c };
    c->gone = (struct rdzv_tag){ .fn = on_gone, .arg = c };
    c->sent = (struct rdzv_tag){ .fn = on_sent, .arg = c };
    c->read = (struct rdzv_tag){ .fn = on_read, .arg = c };
    c->status_text = grpc_empty_slice();
    grpc_metadata_array_init(&c->received.metadata);
    grpc_call_details_init(&c->received.details);
    rdzv_hub_arm(s->r->hub, &c->arrived);
    if (m == NULL)
        rc = grpc_server_request_call(s->server, &c->call, &c->received.details,
                                      &c->received.metadata, queue, queue, &c->arrived);
    else
        rc = grpc_server_request_registered_call(s->server, s->registered[m - s->methods], &c->call,
                                                 &c->received.deadline, &c->received.metadata,
                                                 m->is_bidi ? NULL : &c->received.payload, queue,
                                                 queue, &c->arrived);
    CHECK(rc == GRPC_CALL_OK);
}

/* ---- the server ---- */

static void on_down(void *arg, bool ok)
{
    struct rdzv_server *s = arg;

    (void)ok;
    s->is_down = true;
}

static grpc_server *create(void)
{
    grpc_arg args[] = {
        /* for connections without a link; links have heartbeats */
        rdzv_arg(GRPC_ARG_KEEPALIVE_TIME_MS, 30000),
        rdzv_arg(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 20000),
        rdzv_arg(GRPC_ARG_HTTP2_MAX_PING_STRIKES, 0), /* a client may ping at any rate */
        rdzv_arg(GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, WIRE_BYTES_MAX),
        rdzv_arg(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, 5000),
        rdzv_arg(GRPC_ARG_MAX_CONCURRENT_STREAMS, 128),
        rdzv_arg(GRPC_ARG_ENABLE_CHANNELZ, 0),
    };
    grpc_channel_args all = { .num_args = COUNT_OF(args), .args = args };

    return grpc_server_create(&all, NULL);
}

/* Called on the thread of admission. */
static void on_connection(void *arg, int fd, struct tls_peer *peer)
{
    struct rdzv_server *s = arg;

    if (peers_set(s->peers, fd, peer))
        grpc_server_add_channel_from_fd(s->server, fd, s->plain);
    else
        close(fd);
}

int rdzv_server_open(struct rdzv *r, const struct rdzv_method *methods, uint32_t n_methods,
                     struct rdzv_server **out, struct err *err)
{
    struct rdzv_server *s = calloc(1, sizeof(*s));
    struct admission_opts admission = { .listen = r->opts.listen,
                                        .tasks = r->opts.world,
                                        .tls = r->opts.tls,
                                        .accept = on_connection,
                                        .arg = s };
    int rc;

    CHECK(s != NULL);
    s->peers = peers_new();
    CHECK(s->peers != NULL);
    s->plain = grpc_insecure_server_credentials_create();
    s->r = r;
    s->down = (struct rdzv_tag){ .fn = on_down, .arg = s };
    s->server = create();
    grpc_server_register_completion_queue(s->server, rdzv_hub_queue(r->hub), NULL);
    s->methods = methods;
    s->n_methods = n_methods;
    s->registered = calloc(n_methods, sizeof(*s->registered));
    CHECK(s->registered != NULL);
    for (uint32_t i = 0; i < n_methods; i++) {
        const struct rdzv_method *m = &methods[i];

        s->registered[i] = grpc_server_register_method(
            s->server, m->path, NULL,
            m->is_bidi ? GRPC_SRM_PAYLOAD_NONE : GRPC_SRM_PAYLOAD_READ_INITIAL_BYTE_BUFFER, 0);
        CHECK(s->registered[i] != NULL);
    }
    grpc_server_start(s->server);
    *out = s;
    rc = admission_open(&admission, &s->admission, err);
    if (rc < 0) {
        rdzv_server_shutdown(s);
        return rc;
    }
    accept_next(s, NULL);
    for (uint32_t i = 0; i < n_methods; i++)
        for (uint32_t k = 0; k < methods[i].pending; k++)
            accept_next(s, &methods[i]);
    return 0;
}

int rdzv_server_relay(struct rdzv_server *s, int fd, struct tls_stream *tls)
{
    return admission_relay(s->admission, fd, tls);
}

void rdzv_server_tick(struct rdzv_server *s, uint64_t now_ms)
{
    char text[512];

    if (s->admission != NULL && admission_report(s->admission, now_ms, text, sizeof(text)))
        rdzv_log(s->r, text, true);
}

void rdzv_server_shutdown(struct rdzv_server *s)
{
    s->is_closing = true;
    if (s->admission != NULL)
        admission_stop(s->admission);
    grpc_server_shutdown_and_notify(s->server, rdzv_hub_queue(s->r->hub),
                                    rdzv_hub_arm(s->r->hub, &s->down));
}

void rdzv_server_cancel(struct rdzv_server *s)
{
    grpc_server_cancel_all_calls(s->server);
}

bool rdzv_server_is_closing(const struct rdzv_server *s)
{
    return s->is_closing;
}

bool rdzv_server_is_down(void *server)
{
    return ((struct rdzv_server *)server)->is_down;
}

void rdzv_server_free(struct rdzv_server *s)
{
    if (s == NULL)
        return;
    CHECK(s->is_down && s->all == NULL);
    grpc_server_destroy(s->server);
    admission_close(s->admission);
    grpc_server_credentials_release(s->plain);
    peers_free(s->peers);
    free(s->registered);
    free(s);
}
