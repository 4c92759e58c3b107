/* out.c - a call to another task. Unary or server streaming: one request goes, messages come, then
 * a status. The record frees itself when gRPC has given back every tag of it. */
#include "rdzv/rdzv_priv.h"

#include <stdlib.h>
#include <string.h>

#include <grpc/support/alloc.h>
#include <grpc/support/time.h>

#include "base/check.h"

struct rdzv_out {
    struct rdzv_out_opts
        opts; /* callbacks NULL once forgotten; request, token, method are not kept */
    grpc_call *call;
    uint32_t refs; /* tags that are out */
    struct rdzv_tag sent, received, ended;

    grpc_metadata token; /* in use until `sent` */
    grpc_metadata_array initial, trailing;
    grpc_byte_buffer *message;
    grpc_status_code status;
    grpc_slice details;
    const char *debug; /* gpr_free */
};

static void unref(struct rdzv_out *o)
{
    if (--o->refs > 0)
        return;
    if (o->opts.on_end != NULL) {
        char text[1024] = "";

        if (o->status != GRPC_STATUS_OK)
            rdzv_story(text, sizeof(text), (int)o->status, GRPC_SLICE_START_PTR(o->details),
                       GRPC_SLICE_LENGTH(o->details));
        o->opts.on_end(o->opts.arg, (int)o->status, text);
    }
    grpc_metadata_array_destroy(&o->initial);
    grpc_metadata_array_destroy(&o->trailing);
    grpc_slice_unref(o->details);
    grpc_slice_unref(o->token.value);
    gpr_free((void *)o->debug);
    grpc_call_unref(o->call);
    free(o);
}

static void batch(struct rdzv_out *o, const grpc_op *ops, size_t n, struct rdzv_tag *tag)
{
    o->refs++;
    CHECK(grpc_call_start_batch(o->call, ops, n, rdzv_hub_arm(o->opts.hub, tag), NULL) ==
          GRPC_CALL_OK);
}

static void receive(struct rdzv_out *o)
{
    grpc_op op = { .op = GRPC_OP_RECV_MESSAGE, .data.recv_message.recv_message = &o->message };

    batch(o, &op, 1, &o->received);
}

static void on_sent(void *arg, bool ok)
{
    (void)ok; /* if not, the status says why */
    unref(arg);
}

static void on_received(void *arg, bool ok)
{
    struct rdzv_out *o = arg;

    (void)ok;
    if (o->message != NULL) {
        grpc_slice bytes = rdzv_bytes(o->message);

        grpc_byte_buffer_destroy(o->message);
        o->message = NULL;
        if (o->opts.on_message != NULL)
            o->opts.on_message(o->opts.arg, GRPC_SLICE_START_PTR(bytes), GRPC_SLICE_LENGTH(bytes));
        grpc_slice_unref(bytes);
        if (o->opts.is_stream)
            receive(o);
    }
    unref(o);
}

static void on_ended(void *arg, bool ok)
{
    (void)ok; /* this batch always succeeds */
    unref(arg);
}

struct rdzv_out *rdzv_out_start(const struct rdzv_out_opts *opts)
{
    struct rdzv_out *o = calloc(1, sizeof(*o));
    gpr_timespec deadline = gpr_inf_future(GPR_CLOCK_MONOTONIC);
    grpc_slice request, method = grpc_slice_from_copied_string(opts->method);
    grpc_byte_buffer *body;
    grpc_op ops[4] = { { 0 } };

    CHECK(o != NULL);
    o->opts = *opts;
    o->sent = (struct rdzv_tag){ .fn = on_sent, .arg = o };
    o->received = (struct rdzv_tag){ .fn = on_received, .arg = o };
    o->ended = (struct rdzv_tag){ .fn = on_ended, .arg = o };
    grpc_metadata_array_init(&o->initial);
    grpc_metadata_array_init(&o->trailing);
    o->details = o->token.value = grpc_empty_slice();
    if (opts->deadline_ms != UINT64_MAX)
        deadline = gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                                gpr_time_from_millis((int64_t)opts->deadline_ms, GPR_TIMESPAN));
    o->call = grpc_channel_create_call(opts->channel, NULL, GRPC_PROPAGATE_DEFAULTS,
                                       rdzv_hub_queue(opts->hub), method, NULL, deadline, NULL);
    CHECK(o->call != NULL);
    grpc_slice_unref(method);

    ops[0].op = GRPC_OP_RECV_STATUS_ON_CLIENT;
    ops[0].data.recv_status_on_client.trailing_metadata = &o->trailing;
    ops[0].data.recv_status_on_client.status = &o->status;
    ops[0].data.recv_status_on_client.status_details = &o->details;
    ops[0].data.recv_status_on_client.error_string = &o->debug;
    batch(o, ops, 1, &o->ended);

    request = rdzv_pack(opts->request);
    body = grpc_raw_byte_buffer_create(&request, 1);
    grpc_slice_unref(request);
    memset(ops, 0, sizeof(ops));
    ops[0].op = GRPC_OP_SEND_INITIAL_METADATA;
    if (opts->token != NULL) {
        rdzv_bearer(opts->token, &o->token);
        ops[0].data.send_initial_metadata.count = 1;
        ops[0].data.send_initial_metadata.metadata = &o->token;
    }
    ops[1].op = GRPC_OP_SEND_MESSAGE;
    ops[1].data.send_message.send_message = body;
    ops[2].op = GRPC_OP_SEND_CLOSE_FROM_CLIENT;
    ops[3].op = GRPC_OP_RECV_INITIAL_METADATA;
    ops[3].data.recv_initial_metadata.recv_initial_metadata = &o->initial;
    batch(o, ops, 4, &o->sent);
    grpc_byte_buffer_destroy(body);
    receive(o);
    return o;
}

void rdzv_out_cancel(struct rdzv_out *o, const char *why)
{
    grpc_call_cancel_with_status(o->call, GRPC_STATUS_CANCELLED, why, NULL);
}

void rdzv_out_forget(struct rdzv_out *o)
{
    if (o == NULL)
        return;
    o->opts.on_message = NULL;
    o->opts.on_end = NULL;
    grpc_call_cancel(o->call, NULL);
}
