/* netcheck.c - the method Netcheck of Control: one measurement of the network by this task.
 *
 * A thread performs it, because it blocks for some seconds; one call at a time, a second one is
 * refused. */
#include "rdzv/rdzv_priv.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/err.h"
#include "base/thread.h"
#include "loop/loop.h"

enum { MS_MAX = 2000, BYTES_MAX = 256 << 20 };

struct netcheck {
    struct rdzv_netcheck_calls *owner; /* NULL: the calls have ended */
    struct loop *loop;
    int (*perform)(void *arg, const struct rdzv_netcheck *q, struct rdzv_netcheck_result *out,
                   struct err *err);
    void *arg;
    struct rdzv_netcheck request;
    /* results of the thread */
    int rc;
    struct err err;
    struct rdzv_netcheck_result result;
};

struct rdzv_netcheck_calls {
    struct rdzv *r;
    struct rdzv_in *call;    /* NULL: no call runs, or its client has gone */
    struct netcheck *running; /* NULL: no thread runs */
    pthread_t thread;
};

static void reply(const struct netcheck *n, struct rdzv_in *call)
{
    Trainerd__V1__NetcheckReply m = TRAINERD__V1__NETCHECK_REPLY__INIT;
    char text[512];

    if (n->rc < 0) {
        wire_text(text, sizeof(text), n->err.text, strlen(n->err.text));
        rdzv_in_finish(call,
                       n->rc == ERR_INPUT ? GRPC_STATUS_INVALID_ARGUMENT
                                          : GRPC_STATUS_FAILED_PRECONDITION,
                       "%s", text);
        return;
    }
    m.port = n->result.port;
    if (m.port != 0)
        m.ticket = (ProtobufCBinaryData){ RDZV_TICKET_BYTES, (uint8_t *)n->result.ticket };
    m.round_trip_us = n->result.rtt_us;
    m.rate = n->result.rate;
    rdzv_in_reply(call, &m.base);
}

/* On the loop, after the thread. */
static void is_measured(void *arg)
{
    struct netcheck *n = arg;
    struct rdzv_netcheck_calls *c = n->owner;

    if (c != NULL) {
        struct rdzv_in *call = c->call;

        pthread_join(c->thread, NULL);
        c->call = NULL;
        c->running = NULL;
        if (call != NULL)
            reply(n, call);
    }
    free(n);
}

static void *measure(void *arg)
{
    struct netcheck *n = arg;

    n->rc = n->perform(n->arg, &n->request, &n->result, &n->err);
    loop_post(n->loop, is_measured, n);
    return NULL;
}

static void on_closed(void *arg, struct rdzv_in *call, const char *why)
{
    struct rdzv_netcheck_calls *c = arg;

    (void)call, (void)why;
    c->call = NULL;
}

static int read_request(const struct rdzv *r, const Trainerd__V1__NetcheckRequest *m,
                        struct rdzv_netcheck *out, struct err *err)
{
    *out = (struct rdzv_netcheck){ .peer = MEMBER_NO_RANK, .ms = m->ms, .bytes = m->bytes };
    if (m->peer == NULL)
        return 0;
    out->peer = wire_rank(&r->cluster, m->peer);
    if (out->peer == MEMBER_NO_RANK || out->peer == r->opts.self)
        return err_set(err, ERR_INPUT, "peer: expected another task of this cluster");
    if (m->port == 0 || m->port > UINT16_MAX || m->ticket.len != RDZV_TICKET_BYTES)
        return err_set(err, ERR_INPUT,
                       "port %u, ticket of %zu bytes: expected those of the reply of the peer",
                       m->port, m->ticket.len);
    if (m->ms == 0 || m->ms > MS_MAX || m->bytes == 0 || m->bytes > BYTES_MAX)
        return err_set(err, ERR_INPUT, "ms %u, bytes %llu: expected 1 to %d, 1 to %d", m->ms,
                       (unsigned long long)m->bytes, MS_MAX, BYTES_MAX);
    out->port = (uint16_t)m->port;
    memcpy(out->ticket, m->ticket.data, RDZV_TICKET_BYTES);
    return 0;
}

static int start(struct rdzv_netcheck_calls *c, const struct rdzv_netcheck *q, struct err *err)
{
    struct netcheck *n = calloc(1, sizeof(*n));
    int rc;

    if (n == NULL)
        return err_set(err, ERR_NOMEM, "out of memory");
    *n = (struct netcheck){ .owner = c, .loop = c->r->opts.loop, .perform = c->r->opts.netcheck,
                            .arg = c->r->opts.arg, .request = *q };
    rc = thread_start(&c->thread, "measures the network", measure, n, err);
    if (rc == 0)
        c->running = n;
    else
        free(n);
    return rc;
}

void rdzv_netcheck(struct rdzv *r, struct rdzv_in *call, void *request)
{
    struct rdzv_netcheck_calls *c = r->netcheck;
    struct rdzv_netcheck q;
    struct err err;

    if (read_request(r, request, &q, &err) < 0) {
        rdzv_in_finish(call, GRPC_STATUS_INVALID_ARGUMENT, "%s", err.text);
    } else if (c->running != NULL || r->opts.netcheck == NULL) {
        rdzv_in_finish(call, GRPC_STATUS_UNAVAILABLE,
                       "this task measures for another call; try again");
    } else if (start(c, &q, &err) < 0) {
        rdzv_in_finish(call, GRPC_STATUS_UNAVAILABLE, "%s", err.text);
    } else {
        c->call = call;
        rdzv_in_on_closed(call, on_closed, c);
    }
}

struct rdzv_netcheck_calls *rdzv_netcheck_new(struct rdzv *r)
{
    struct rdzv_netcheck_calls *c = calloc(1, sizeof(*c));

    CHECK(c != NULL);
    c->r = r;
    return c;
}

void rdzv_netcheck_shut(struct rdzv_netcheck_calls *c)
{
    struct rdzv_in *call = c->call;

    c->call = NULL;
    if (call != NULL)
        rdzv_in_finish(call, GRPC_STATUS_UNAVAILABLE, "the task ends");
    if (c->running == NULL)
        return;
    pthread_join(c->thread, NULL);
    c->running->owner = NULL;
    c->running = NULL;
}

void rdzv_netcheck_free(struct rdzv_netcheck_calls *c)
{
    free(c);
}
