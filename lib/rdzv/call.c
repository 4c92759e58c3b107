/* call.c - calls to a task, for a program without a loop. */
#include "rdzv/rdzv_priv.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <grpc/support/time.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/err.h"

static const char *const methods[] = { "Status", "Checkpoint", "Drain", "Stop", "Reload", "Logs", "Trace",
                                      "Rows", "Netcheck" };

static int err_code(grpc_status_code code)
{
    switch (code) {
    case GRPC_STATUS_UNAVAILABLE:
        return ERR_PEER;
    case GRPC_STATUS_DEADLINE_EXCEEDED:
        return ERR_TIMEOUT;
    case GRPC_STATUS_UNAUTHENTICATED:
    case GRPC_STATUS_PERMISSION_DENIED:
        return ERR_AUTH;
    case GRPC_STATUS_FAILED_PRECONDITION:
        return ERR_REFUSED;
    case GRPC_STATUS_UNIMPLEMENTED:
        return ERR_UNSUPPORTED;
    default:
        return ERR_IO;
    }
}

/* result of a call */
struct answer {
    grpc_status_code status;
    grpc_slice details;
    grpc_byte_buffer *message;
};

static void do_call(grpc_channel *channel, const char *path, const char *token, grpc_slice request,
                    uint64_t deadline_ms, struct answer *a)
{
    grpc_completion_queue *queue = grpc_completion_queue_create_for_pluck(NULL);
    grpc_slice name = grpc_slice_from_copied_string(path);
    gpr_timespec deadline = gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                                         gpr_time_from_millis((int64_t)deadline_ms, GPR_TIMESPAN));
    grpc_call *call = grpc_channel_create_call(channel, NULL, GRPC_PROPAGATE_DEFAULTS, queue, name,
                                               NULL, deadline, NULL);
    grpc_byte_buffer *body = grpc_raw_byte_buffer_create(&request, 1);
    grpc_metadata_array initial, trailing;
    grpc_metadata bearer = { .value = grpc_empty_slice() };
    grpc_op ops[6] = { { 0 } };

    grpc_metadata_array_init(&initial);
    grpc_metadata_array_init(&trailing);
    ops[0].op = GRPC_OP_SEND_INITIAL_METADATA;
    if (token != NULL) {
        rdzv_bearer(token, &bearer);
        ops[0].data.send_initial_metadata.count = 1;
        ops[0].data.send_initial_metadata.metadata = &bearer;
    }
    ops[1].op = GRPC_OP_SEND_MESSAGE;
    ops[1].data.send_message.send_message = body;
    ops[2].op = GRPC_OP_SEND_CLOSE_FROM_CLIENT;
    ops[3].op = GRPC_OP_RECV_INITIAL_METADATA;
    ops[3].data.recv_initial_metadata.recv_initial_metadata = &initial;
    ops[4].op = GRPC_OP_RECV_MESSAGE;
    ops[4].data.recv_message.recv_message = &a->message;
    ops[5].op = GRPC_OP_RECV_STATUS_ON_CLIENT;
    ops[5].data.recv_status_on_client.trailing_metadata = &trailing;
    ops[5].data.recv_status_on_client.status = &a->status;
    ops[5].data.recv_status_on_client.status_details = &a->details;
    CHECK(grpc_call_start_batch(call, ops, COUNT_OF(ops), call, NULL) == GRPC_CALL_OK);
    (void)grpc_completion_queue_pluck(queue, call, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);

    grpc_byte_buffer_destroy(body);
    grpc_slice_unref(name);
    grpc_slice_unref(bearer.value);
    grpc_metadata_array_destroy(&initial);
    grpc_metadata_array_destroy(&trailing);
    grpc_call_unref(call);
    grpc_completion_queue_shutdown(queue);
    while (
        grpc_completion_queue_pluck(queue, NULL, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL).type !=
        GRPC_QUEUE_SHUTDOWN) {
    }
    grpc_completion_queue_destroy(queue);
}

static void copy(grpc_byte_buffer *message, void **reply, size_t *n)
{
    grpc_slice bytes = rdzv_bytes(message);

    *n = GRPC_SLICE_LENGTH(bytes);
    *reply = malloc(*n > 0 ? *n : 1);
    CHECK(*reply != NULL);
    memcpy(*reply, GRPC_SLICE_START_PTR(bytes), *n);
    grpc_slice_unref(bytes);
}

/* gRPC reports a failed handshake as a closed connection. */
static bool is_handshake(const char *text)
{
    return strstr(text, "andshake") != NULL || strstr(text, "ocket closed") != NULL ||
           strstr(text, "onnection reset") != NULL;
}

struct rdzv_caller {
    grpc_channel *channel;
    char *address, *token; /* owned; token NULL: none is sent */
    bool has_tls;
    bool is_connected; /* a call was answered: a connection that closes later is no failed handshake */
};

int rdzv_caller_open(const char *address, struct tls *tls, const char *token,
                     struct rdzv_caller **out, struct err *err)
{
    struct rdzv_caller *c;
    int rc = 0;

    if (!rdzv_is_address(address))
        return err_set(err, ERR_INPUT,
                       "'%.320s': expected HOST:PORT, as in the cluster specification", address);
    if (tls == NULL || tls_common_host(tls) != NULL || (token != NULL && token[0] == '\0'))
        token = NULL; /* clear text; the certificate proves it already; an empty variable */
    if (token != NULL)
        rc = rdzv_check_token(token, err);
    if (rc == 0)
        rc = rdzv_grpc_init(err);
    if (rc < 0)
        return rc;
    c = calloc(1, sizeof(*c));
    CHECK(c != NULL);
    c->channel = rdzv_channel(address, tls);
    c->address = strdup(address);
    c->token = token != NULL ? strdup(token) : NULL;
    c->has_tls = tls != NULL;
    CHECK(c->address != NULL && (token == NULL || c->token != NULL));
    *out = c;
    return 0;
}

void rdzv_caller_close(struct rdzv_caller *c)
{
    if (c == NULL)
        return;
    grpc_channel_destroy(c->channel);
    free(c->address);
    free(c->token);
    free(c);
    grpc_shutdown();
}

static int read_failure(const struct rdzv_caller *c, const struct answer *a, struct err *err)
{
    char text[1024];

    rdzv_status_text(text, sizeof(text), (int)a->status, GRPC_SLICE_START_PTR(a->details),
                     GRPC_SLICE_LENGTH(a->details));
    if (c->has_tls && !c->is_connected && a->status == GRPC_STATUS_UNAVAILABLE && is_handshake(text))
        return err_set(err, ERR_AUTH, "TLS: the task does not accept this caller, or does not use TLS: compare the "
                                      "token or the certificates (%s)", text);
    if (c->has_tls && strstr(text, "is not in peer certificate") != NULL) /* gRPC's check of the name */
        return err_set(err, ERR_AUTH, "TLS: the certificate of the task does not contain '%s': call the task by a name in its "
                                      "certificate, such as its address in the cluster text (%s)", c->address, text);
    return err_set(err, err_code(a->status), "%s", text);
}

int rdzv_caller_call(struct rdzv_caller *c, const char *method, const void *request,
                     size_t n_request, uint64_t deadline_ms, void **reply, size_t *n,
                     uint64_t times_ns[2], struct err *err)
{
    struct answer a = { .details = grpc_empty_slice() };
    grpc_slice body = grpc_slice_from_copied_buffer(request != NULL ? request : "", n_request);
    char path[64];
    bool is_known = false;
    int rc = 0;

    for (size_t i = 0; i < COUNT_OF(methods); i++)
        is_known |= strcmp(methods[i], method) == 0;
    CHECK(is_known);
    snprintf(path, sizeof(path), "/trainerd.v1.Control/%s", method);
    if (times_ns != NULL)
        times_ns[0] = clock_ns();
    do_call(c->channel, path, c->token, body, deadline_ms, &a);
    if (times_ns != NULL)
        times_ns[1] = clock_ns();
    if (a.status == GRPC_STATUS_OK)
        copy(a.message, reply, n);
    else
        rc = read_failure(c, &a, err);
    c->is_connected |=
        a.status != GRPC_STATUS_UNAVAILABLE && a.status != GRPC_STATUS_DEADLINE_EXCEEDED;
    if (a.message != NULL)
        grpc_byte_buffer_destroy(a.message);
    grpc_slice_unref(a.details);
    grpc_slice_unref(body);
    return rc < 0 ? err_wrap(err, rc, "%s of %s", method, c->address) : 0;
}

int rdzv_call(const char *address, struct tls *tls, const char *token, const char *method,
              uint64_t deadline_ms, void **reply, size_t *n, struct err *err)
{
    struct rdzv_caller *c;
    int rc = rdzv_caller_open(address, tls, token, &c, err);

    if (rc < 0)
        return err_wrap(err, rc, "%s of %.320s", method, address);
    rc = rdzv_caller_call(c, method, NULL, 0, deadline_ms, reply, n, NULL, err);
    rdzv_caller_close(c);
    return rc;
}
