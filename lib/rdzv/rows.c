/* rows.c - the method Rows of Control: rows of embedding tables that a parameter server holds.
 *
 * A thread reads them, because a service thread of the parameter server may be busy with a message;
 * one call at a time, a second one is refused. */
#include "rdzv/rdzv_priv.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/err.h"
#include "base/thread.h"
#include "loop/loop.h"

enum { ROWS_MAX = 16384, NAME_BYTES = 512, VALUES_BYTES = 512 << 10 };

struct reading {
    struct rdzv_rows_calls *owner;
    struct loop *loop;
    int (*read_rows)(void *arg, const struct rdzv_rows_request *q, struct rdzv_rows *out,
                     struct err *err);
    void *arg;
    char table[NAME_BYTES], part[NAME_BYTES];
    uint64_t *rows; /* owned [n_rows] */
    size_t n_rows;
    /* results of the thread */
    int rc;
    struct err err;
    struct rdzv_rows result; /* its arrays are owned */
};

struct rdzv_rows_calls {
    struct rdzv *r;
    struct rdzv_in *call;    /* NULL: no call runs, or its client has gone */
    struct reading *reading; /* NULL: no thread runs */
    pthread_t thread;
};

static void free_reading(struct reading *p)
{
    free(p->rows);
    free(p->result.held);
    free(p->result.values);
    free(p->result.is_initial);
    free(p);
}

static grpc_status_code status_of(int rc)
{
    switch (rc) {
    case ERR_INPUT:
        return GRPC_STATUS_INVALID_ARGUMENT;
    case ERR_NOENT:
        return GRPC_STATUS_NOT_FOUND;
    default:
        return GRPC_STATUS_UNAVAILABLE;
    }
}

static void reply_rows(const struct reading *p, struct rdzv_in *call)
{
    Trainerd__V1__RowsReply reply = TRAINERD__V1__ROWS_REPLY__INIT;
    size_t bytes = p->result.n_held * p->result.width * sizeof(float);

    if (p->rc < 0) {
        rdzv_in_finish(call, status_of(p->rc), "%s", p->err.text);
        return;
    }
    if (bytes > VALUES_BYTES) {
        rdzv_in_finish(call, GRPC_STATUS_INVALID_ARGUMENT,
                       "the rows have %zu bytes, a reply at most %d: request fewer rows", bytes,
                       VALUES_BYTES);
        return;
    }
    _Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "values are sent as in memory");
    reply.step = p->result.step;
    reply.width = p->result.width;
    reply.n_rows = p->result.n_held;
    reply.rows = p->result.held;
    reply.values = (ProtobufCBinaryData){ .len = bytes, .data = (uint8_t *)p->result.values };
    reply.n_initial = p->result.is_dynamic ? p->result.n_held : 0;
    reply.initial = p->result.is_initial;
    rdzv_in_reply(call, &reply.base);
}

/* On the loop, after the thread. */
static void rows_are_read(void *arg)
{
    struct reading *p = arg;
    struct rdzv_rows_calls *c = p->owner;

    if (c != NULL) {
        struct rdzv_in *call = c->call;

        pthread_join(c->thread, NULL);
        c->call = NULL;
        c->reading = NULL;
        if (call != NULL)
            reply_rows(p, call);
    }
    free_reading(p);
}

static void *reader(void *arg)
{
    struct reading *p = arg;
    struct rdzv_rows_request q = {
        .table = p->table, .part = p->part, .rows = p->rows, .n_rows = p->n_rows
    };

    p->rc = p->read_rows(p->arg, &q, &p->result, &p->err);
    loop_post(p->loop, rows_are_read, p);
    return NULL;
}

static void on_closed(void *arg, struct rdzv_in *call, const char *why)
{
    struct rdzv_rows_calls *c = arg;

    (void)call, (void)why;
    c->call = NULL;
}

static int start_reading(struct rdzv_rows_calls *c, const Trainerd__V1__RowsRequest *q,
                         struct err *err)
{
    struct reading *p = calloc(1, sizeof(*p));
    int rc = 0;

    if (p != NULL)
        p->rows = malloc((q->n_rows + 1) * sizeof(*p->rows));
    if (p == NULL || p->rows == NULL) {
        free(p);
        return err_set(err, ERR_NOMEM, "rows: out of memory");
    }
    p->owner = c;
    p->loop = c->r->opts.loop;
    p->read_rows = c->r->opts.read_rows;
    p->arg = c->r->opts.arg;
    snprintf(p->table, sizeof(p->table), "%s", q->table);
    snprintf(p->part, sizeof(p->part), "%s", q->part);
    p->n_rows = q->n_rows;
    if (q->n_rows > 0)
        memcpy(p->rows, q->rows, q->n_rows * sizeof(*p->rows));
    rc = thread_start(&c->thread, "reads rows", reader, p, err);
    if (rc == 0)
        c->reading = p;
    else
        free_reading(p);
    return rc;
}

void rdzv_read_rows(struct rdzv *r, struct rdzv_in *call, void *request)
{
    const Trainerd__V1__RowsRequest *q = request;
    struct rdzv_rows_calls *c = r->rows;
    struct err err;

    if (r->opts.read_rows == NULL) {
        rdzv_in_finish(call, GRPC_STATUS_FAILED_PRECONDITION,
                       "this task is no parameter server and holds no rows; call a ps task");
    } else if (q->n_rows > ROWS_MAX || strlen(q->table) >= NAME_BYTES ||
               strlen(q->part) >= NAME_BYTES) {
        rdzv_in_finish(call, GRPC_STATUS_INVALID_ARGUMENT,
                       "rows: expected at most %d, found %zu; names: at most %d bytes", ROWS_MAX,
                       q->n_rows, NAME_BYTES - 1);
    } else if (c->reading != NULL) {
        rdzv_in_finish(call, GRPC_STATUS_UNAVAILABLE, "another call reads rows; try again");
    } else if (start_reading(c, q, &err) < 0) {
        rdzv_in_finish(call, GRPC_STATUS_UNAVAILABLE, "%s", err.text);
    } else {
        c->call = call;
        rdzv_in_on_closed(call, on_closed, c);
    }
}

struct rdzv_rows_calls *rdzv_rows_new(struct rdzv *r)
{
    struct rdzv_rows_calls *c = calloc(1, sizeof(*c));

    CHECK(c != NULL);
    c->r = r;
    return c;
}

void rdzv_rows_shut(struct rdzv_rows_calls *c)
{
    struct rdzv_in *call = c->call;

    c->call = NULL;
    if (call != NULL)
        rdzv_in_finish(call, GRPC_STATUS_UNAVAILABLE, "the task ends");
    if (c->reading == NULL)
        return;
    pthread_join(c->thread, NULL);
    c->reading->owner = NULL;
    c->reading = NULL;
}

void rdzv_rows_free(struct rdzv_rows_calls *c)
{
    free(c);
}
