/* out.c - an outgoing call, on a connection of its own.
 *
 *     dialling --connected--> calling --half-closed, or unary--> messages received --status-->
 *     freed
 *
 * A stream is a link: messages go in both directions until either side ends it. The connection
 * belongs to the call, so the call inherits nothing from an earlier failure (a backoff, a resolved
 * name), and the end of the connection is the end of the call. The record frees itself after gRPC
 * has returned all of its tags. */
#include "rdzv/rdzv_priv.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include <grpc/support/alloc.h>
#include <grpc/support/time.h>

#include "base/check.h"
#include "loop/loop.h"

enum {
    UNSENT_MAX = 64, /* messages that are queued for a connection, or for a server that does not
                        read */
    CONNECT_MS = 1000,
    LINGER_MS = 1000, /* wait for the status of the other side after a half-close */
};

struct rdzv_out_answer { /* gRPC writes it */
    grpc_metadata_array initial, trailing;
    grpc_byte_buffer *message;
    grpc_status_code status;
    grpc_slice details;
    const char *debug; /* freed with gpr_free() */
};

struct rdzv_out {
    struct rdzv_out_opts
        opts; /* callbacks are NULL after rdzv_out_abandon(); request, address, method are not used
                 after the start */
    struct rdzv_out *next, **link; /* in r->outs */
    const char *method;            /* static */
    struct rdzv_dial *dial;        /* NULL: the dial has ended */
    struct loop_timer *linger;
    grpc_channel *channel;
    grpc_call *call; /* NULL: not connected */
    uint32_t refs;   /* tags in use by gRPC */
    struct rdzv_tag opened, sent, received, ended;

    grpc_slice unsent[UNSENT_MAX]; /* oldest first */
    uint32_t n_unsent;
    bool is_sending, has_sent, is_closing, is_closed, has_ended, is_overrun;

    struct rdzv_out_answer answer;
};

static void destroy(struct rdzv_out *o)
{
    *o->link = o->next;
    if (o->next != NULL)
        o->next->link = o->link;
    for (uint32_t i = 0; i < o->n_unsent; i++)
        grpc_slice_unref(o->unsent[i]);
    loop_timer_free(o->linger);
    grpc_metadata_array_destroy(&o->answer.initial);
    grpc_metadata_array_destroy(&o->answer.trailing);
    grpc_slice_unref(o->answer.details);
    gpr_free((void *)o->answer.debug);
    if (o->call != NULL)
        grpc_call_unref(o->call);
    if (o->channel != NULL)
        grpc_channel_destroy(o->channel);
    free(o);
}

static void unref(struct rdzv_out *o)
{
    if (--o->refs > 0)
        return;
    if (o->opts.on_end != NULL) {
        char text[1024] = "";

        if (o->answer.status != GRPC_STATUS_OK)
            rdzv_status_text(text, sizeof(text), (int)o->answer.status,
                             GRPC_SLICE_START_PTR(o->answer.details),
                             GRPC_SLICE_LENGTH(o->answer.details));
        o->opts.on_end(o->opts.arg, (int)o->answer.status, false, text);
    }
    destroy(o);
}

static void batch(struct rdzv_out *o, const grpc_op *ops, size_t n, struct rdzv_tag *tag)
{
    o->refs++;
    CHECK(grpc_call_start_batch(o->call, ops, n, rdzv_hub_arm(o->opts.r->hub, tag), NULL) ==
          GRPC_CALL_OK);
}

/* ---- sending ---- */

/* Starts the next batch: the oldest message, and the half-close with the last message. */
static void pump(struct rdzv_out *o)
{
    grpc_op ops[3] = { { 0 } };
    grpc_byte_buffer *body = NULL;
    size_t n = 0;

    if (o->call == NULL || o->is_sending || o->is_closed || o->has_ended ||
        (o->n_unsent == 0 && o->has_sent && !o->is_closing))
        return;
    if (!o->has_sent)
        ops[n++].op = GRPC_OP_SEND_INITIAL_METADATA;
    if (o->n_unsent > 0) {
        body = grpc_raw_byte_buffer_create(&o->unsent[0], 1);
        grpc_slice_unref(o->unsent[0]);
        o->n_unsent--;
        memmove(o->unsent, o->unsent + 1, o->n_unsent * sizeof(o->unsent[0]));
        ops[n].op = GRPC_OP_SEND_MESSAGE;
        ops[n++].data.send_message.send_message = body;
    }
    if (o->is_closing && o->n_unsent == 0) {
        ops[n++].op = GRPC_OP_SEND_CLOSE_FROM_CLIENT;
        o->is_closed = true;
    }
    o->has_sent = o->is_sending = true;
    batch(o, ops, n, &o->sent);
    if (body != NULL)
        grpc_byte_buffer_destroy(body);
}

static void on_sent(void *arg, bool ok)
{
    struct rdzv_out *o = arg;

    o->is_sending = false;
    if (ok) /* if false, the status gives the reason */
        pump(o);
    unref(o);
}

static void cut_if_overrun(struct rdzv_out *o)
{
    if (o->is_overrun && o->call != NULL)
        grpc_call_cancel_with_status(o->call, GRPC_STATUS_RESOURCE_EXHAUSTED,
                                     "the task does not read", NULL);
}

/* ---- receiving ---- */

static void receive(struct rdzv_out *o)
{
    grpc_op op = { .op = GRPC_OP_RECV_MESSAGE, .data.recv_message.recv_message = &o->answer.message };

    batch(o, &op, 1, &o->received);
}

static void on_received(void *arg, bool ok)
{
    struct rdzv_out *o = arg;

    (void)ok;
    if (o->answer.message != NULL) {
        grpc_slice bytes = rdzv_bytes(o->answer.message);

        grpc_byte_buffer_destroy(o->answer.message);
        o->answer.message = NULL;
        if (o->opts.on_message != NULL)
            o->opts.on_message(o->opts.arg, GRPC_SLICE_START_PTR(bytes), GRPC_SLICE_LENGTH(bytes));
        grpc_slice_unref(bytes);
        if (o->opts.request == NULL)
            receive(o);
    }
    unref(o);
}

static void on_opened(void *arg, bool ok)
{
    (void)ok; /* if false, the status gives the reason */
    unref(arg);
}

static void on_ended(void *arg, bool ok)
{
    struct rdzv_out *o = arg;

    (void)ok; /* this batch always succeeds */
    o->has_ended = true;
    unref(o);
}

/* ---- connecting ---- */

static void begin(struct rdzv_out *o, int fd)
{
    gpr_timespec deadline = gpr_inf_future(GPR_CLOCK_MONOTONIC);
    grpc_slice method = grpc_slice_from_static_string(o->method);
    grpc_op op = { .op = GRPC_OP_RECV_STATUS_ON_CLIENT };

    if (o->opts.deadline_ms != 0)
        deadline = gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                                gpr_time_from_millis((int64_t)o->opts.deadline_ms, GPR_TIMESPAN));
    o->channel = rdzv_channel_on(fd);
    o->call =
        grpc_channel_create_call(o->channel, NULL, GRPC_PROPAGATE_DEFAULTS,
                                 rdzv_hub_queue(o->opts.r->hub), method, NULL, deadline, NULL);
    CHECK(o->call != NULL);
    op.data.recv_status_on_client.trailing_metadata = &o->answer.trailing;
    op.data.recv_status_on_client.status = &o->answer.status;
    op.data.recv_status_on_client.status_details = &o->answer.details;
    op.data.recv_status_on_client.error_string = &o->answer.debug;
    batch(o, &op, 1, &o->ended);
    pump(o);
    op = (grpc_op){ .op = GRPC_OP_RECV_INITIAL_METADATA,
                    .data.recv_initial_metadata.recv_initial_metadata = &o->answer.initial };
    batch(o, &op, 1, &o->opened);
    receive(o);
    cut_if_overrun(o);
}

static void on_progress(void *arg)
{
    struct rdzv_out *o = arg;

    if (o->opts.on_progress != NULL)
        o->opts.on_progress(o->opts.arg);
}

static void on_dialled(void *arg, const struct rdzv_dialled *d)
{
    struct rdzv_out *o = arg;
    const char *why = d->why;
    int fd = d->fd;

    o->dial = NULL;
    if (fd >= 0 && d->tls != NULL) {
        fd = rdzv_server_relay(o->opts.r->server, fd, d->tls);
        why = "connect: no descriptor or memory is available";
    }
    if (fd >= 0) {
        begin(o, fd);
        return;
    }
    o->opts.on_end(o->opts.arg,
                   d->is_rejected ? GRPC_STATUS_UNAUTHENTICATED : GRPC_STATUS_UNAVAILABLE,
                   d->is_refused, why);
    destroy(o);
}

struct rdzv_out *rdzv_out_start(const struct rdzv_out_opts *opts)
{
    struct rdzv_out *o = calloc(1, sizeof(*o));
    struct rdzv *r = opts->r;

    CHECK(o != NULL && opts->on_end != NULL);
    o->opts = *opts;
    o->method = opts->method;
    o->opened = (struct rdzv_tag){ .fn = on_opened, .arg = o };
    o->sent = (struct rdzv_tag){ .fn = on_sent, .arg = o };
    o->received = (struct rdzv_tag){ .fn = on_received, .arg = o };
    o->ended = (struct rdzv_tag){ .fn = on_ended, .arg = o };
    grpc_metadata_array_init(&o->answer.initial);
    grpc_metadata_array_init(&o->answer.trailing);
    o->answer.details = grpc_empty_slice();
    o->next = r->outs;
    o->link = &r->outs;
    if (o->next != NULL)
        o->next->link = &o->next;
    r->outs = o;
    if (opts->request != NULL) {
        o->unsent[o->n_unsent++] = rdzv_pack(opts->request);
        o->is_closing = true;
    }
    o->dial = rdzv_dial_start(r->opts.loop, opts->address, r->opts.tls, CONNECT_MS, on_dialled,
                              on_progress, o);
    return o;
}

void rdzv_out_send(struct rdzv_out *o, const ProtobufCMessage *m)
{
    CHECK(!o->is_closing);
    if (o->n_unsent == UNSENT_MAX) { /* a message would be lost: the link must end */
        o->is_overrun = true;
        cut_if_overrun(o);
        return;
    }
    o->unsent[o->n_unsent++] = rdzv_pack(m);
    pump(o);
}

void rdzv_out_cancel(struct rdzv_out *o, const char *why)
{
    if (o->call != NULL)
        grpc_call_cancel_with_status(o->call, GRPC_STATUS_CANCELLED, why, NULL);
}

void rdzv_out_abandon(struct rdzv_out *o)
{
    if (o == NULL)
        return;
    o->opts.on_message = NULL;
    o->opts.on_end = NULL;
    if (o->call == NULL) { /* no tag is in use by gRPC */
        rdzv_dial_cancel(o->dial);
        destroy(o);
    } else {
        grpc_call_cancel(o->call, NULL);
    }
}

static void on_linger(void *arg)
{
    rdzv_out_abandon(arg);
}

void rdzv_out_close(struct rdzv_out *o)
{
    if (o == NULL)
        return;
    if (o->call == NULL) {
        rdzv_out_abandon(o);
        return;
    }
    o->opts.on_message = NULL;
    o->opts.on_end = NULL;
    o->is_closing = true;
    o->linger = loop_timer_new(o->opts.r->opts.loop, LINGER_MS, 0, on_linger, o);
    pump(o);
}

void rdzv_out_abandon_all(struct rdzv *r)
{
    struct rdzv_out *next;

    for (struct rdzv_out *o = r->outs; o != NULL; o = next) {
        next = o->next; /* o may be freed at once; its neighbours are not freed */
        rdzv_out_abandon(o);
    }
}
