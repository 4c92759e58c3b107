/* link_out.c - the link out, to the task that this task called. There is at most one; closed links
 * end by themselves. */
#include "rdzv/rdzv_priv.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/check.h"
#include "base/err.h"

struct rdzv_client {
    struct rdzv *r;
    struct rdzv_out *out; /* NULL: no link */
    uint32_t rank;        /* the called task */
    uint64_t n_calls;
    struct rdzv_advice advice[RDZV_ADVICE_MAX]; /* of the last BEAT of the present link */
    uint32_t n_advice;
    /* host:port of the leader's status page, of the last BEAT of the present link; "": none */
    char page[WIRE_PAGE_BYTES];
};

static void store_advice(struct rdzv_client *c, const Trainerd__V1__Beat *m)
{
    c->n_advice = (uint32_t)m->n_advice;
    for (uint32_t i = 0; i < c->n_advice; i++)
        wire_read_advice(m->advice[i], &c->advice[i]);
}

static void on_progress(void *arg)
{
    struct rdzv_client *c = arg;

    rdzv_group_event(c->r->group, &(struct member_event){ .kind = MEMBER_EV_OUT_PROGRESS });
}

static void on_message(void *arg, const void *data, size_t n)
{
    struct rdzv_client *c = arg;
    struct rdzv *r = c->r;
    struct wire w = { 0 };
    Trainerd__V1__LeaderMessage *m =
        wire_unpack(&w, &trainerd__v1__leader_message__descriptor, data, n);
    struct member_msg msg;
    struct err err;

    if (m == NULL) {
        rdzv_out_cancel(c->out, "it sent a message that is not a LeaderMessage");
    } else if (wire_read_leader(&w, &r->cluster, m, &msg, &err) < 0) {
        rdzv_out_cancel(c->out, err.text);
    } else {
        if (msg.kind == MEMBER_MSG_VIEW)
            rdzv_views_store(r->views, msg.view);
        if (msg.kind == MEMBER_MSG_REACH)
            rdzv_reach_store(r, m->reach);
        if (msg.kind == MEMBER_MSG_BEAT) {
            store_advice(c, m->beat);
            snprintf(c->page, sizeof(c->page), "%s", m->beat->page);
        }
        rdzv_msg_in(r, c->rank, &msg);
        rdzv_group_event(r->group, &(struct member_event){ .kind = MEMBER_EV_RECEIVED_OUT, .msg = &msg });
    }
    wire_fini(&w);
}

enum member_closed rdzv_closed(int code, bool is_refused)
{
    if (is_refused)
        return MEMBER_REFUSED;
    switch (code) {
    case GRPC_STATUS_FAILED_PRECONDITION:
        return MEMBER_OTHER_CLUSTER;
    case GRPC_STATUS_UNAUTHENTICATED:
    case GRPC_STATUS_PERMISSION_DENIED:
    case GRPC_STATUS_INVALID_ARGUMENT:
    case GRPC_STATUS_UNIMPLEMENTED:
        return MEMBER_UNPROVEN;
    default:
        return MEMBER_CLOSED;
    }
}

static void on_end(void *arg, int code, bool is_refused, const char *text)
{
    struct rdzv_client *c = arg;
    struct rdzv *r = c->r;

    c->out = NULL;
    rdzv_trace(r, "link to %s: ended: %s", r->cluster.tasks[c->rank].name,
               code == GRPC_STATUS_OK ? "closed" : text);
    rdzv_group_event(r->group, &(struct member_event){ .kind = MEMBER_EV_OUT_CLOSED, .closed = rdzv_closed(code, is_refused), .text = code == GRPC_STATUS_OK ? "it closed the connection" : text });
}

void rdzv_client_open(struct rdzv_client *c, uint32_t rank)
{
    struct rdzv *r = c->r;

    CHECK(c->out == NULL && rank != r->opts.self);
    c->rank = rank;
    c->n_calls++;
    c->n_advice = 0;
    c->page[0] = '\0';
    rdzv_trace(r, "link to %s: calling %s", r->cluster.tasks[rank].name,
               r->cluster.tasks[rank].address);
    c->out = rdzv_out_start(&(struct rdzv_out_opts){ .r = r,
                                                     .address = r->cluster.tasks[rank].address,
                                                     .method = "/trainerd.v1.Rendezvous/Join",
                                                     .arg = c,
                                                     .on_progress = on_progress,
                                                     .on_message = on_message,
                                                     .on_end = on_end });
}

void rdzv_client_send(struct rdzv_client *c, const struct member_msg *m)
{
    const struct rdzv_opts *o = &c->r->opts;
    Trainerd__V1__StepTime step_time = TRAINERD__V1__STEP_TIME__INIT;
    struct wire_sender s = { .self = o->self,
                             .to = c->rank,
                             .call = c->n_calls,
                             .data_address = o->data_address,
                             .host_key = o->host_key,
                             .location = o->location,
                             .samples_per_second = o->progress->samples_per_second,
                             .trouble = o->progress->last_trouble,
                             .window = o->progress->window };
    struct wire w = { 0 };

    if (c->out == NULL)
        return;
    if (rdzv_step_time(o->progress, &step_time))
        s.step_time = &step_time;
    rdzv_msg_out(c->r, c->rank, m);
    rdzv_out_send(c->out, wire_write_member(&w, &c->r->cluster, m, &s));
    wire_fini(&w);
}

uint32_t rdzv_leader_advice(const struct rdzv *r, const struct rdzv_advice **out)
{
    const struct rdzv_client *c = r->client;

    *out = c->advice;
    return c->out != NULL ? c->n_advice : 0;
}

const char *rdzv_leader_page(const struct rdzv *r)
{
    return r->client->out != NULL ? r->client->page : "";
}

void rdzv_client_close(struct rdzv_client *c)
{
    if (c->out == NULL)
        return;
    rdzv_trace(c->r, "link to %s: closed", c->r->cluster.tasks[c->rank].name);
    rdzv_out_close(c->out);
    c->out = NULL;
}

struct rdzv_client *rdzv_client_new(struct rdzv *r)
{
    struct rdzv_client *c = calloc(1, sizeof(*c));

    CHECK(c != NULL);
    c->r = r;
    return c;
}

void rdzv_client_free(struct rdzv_client *c)
{
    free(c);
}
