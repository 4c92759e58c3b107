/* records.c - the methods Logs and Trace of Control: what this task has logged, and the file of its
 * trace.
 *
 * A thread reads the file, because a storage may hang; one call at a time, a second one is refused.
 * The clock in a reply of Trace is read on the loop while the call is handled, so a client learns the
 * offset between two clocks from the call with the shortest duration. */
#include "rdzv/rdzv_priv.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/log_ring.h"
#include "base/thread.h"
#include "loop/loop.h"

enum { LOGS_MAX = 2 * LOG_RING_RECORDS, PART_BYTES = 512 << 10 };

/* ---- Logs ---- */

static Trainerd__V1__LogRecord *make_record(struct arena *a, const struct log_ring_record *from)
{
    Trainerd__V1__LogRecord *r = arena_alloc(a, sizeof(*r));
    char *message = arena_alloc(a, sizeof(from->message));

    CHECK(r != NULL && message != NULL);
    trainerd__v1__log_record__init(r);
    wire_text(message, sizeof(from->message), from->message, strlen(from->message));
    r->number = from->number;
    r->time_us = from->time_us;
    r->level = (char *)log_level_name(from->level);
    r->event = (char *)from->event;
    r->message = message;
    return r;
}

void rdzv_logs(struct rdzv *r, struct rdzv_in *call, void *request)
{
    const Trainerd__V1__LogsRequest *q = request;
    Trainerd__V1__LogsReply reply = TRAINERD__V1__LOGS_REPLY__INIT;
    struct log_ring_record *records = malloc(LOGS_MAX * sizeof(*records));
    struct arena a = { 0 };

    CHECK(records != NULL);
    reply.incarnation = r->opts.incarnation;
    reply.n_records = log_ring_read(q->after, q->events_only, records, LOGS_MAX, &reply.last);
    reply.records = arena_array(&a, reply.n_records + 1, sizeof(*reply.records));
    CHECK(reply.records != NULL);
    for (size_t i = 0; i < reply.n_records; i++)
        reply.records[i] = make_record(&a, &records[i]);
    rdzv_in_reply(call, &reply.base);
    arena_fini(&a);
    free(records);
}

/* ---- Trace ---- */

struct reading { /* of one part */
    struct rdzv_traces *owner; /* NULL: rdzv_traces_shut() was called */
    struct loop *loop;
    char path[4096];
    uint64_t offset;
    /* results of the thread */
    int rc;
    struct err err;
    uint64_t total;
    size_t n;
    uint8_t part[PART_BYTES];
};

struct rdzv_traces {
    struct rdzv *r;
    struct rdzv_in *call;    /* NULL: no call runs, or its client has gone */
    struct reading *reading; /* NULL: no thread runs. Freed by part_is_read() */
    pthread_t thread;
};

static void reply_part(struct rdzv_traces *t, const struct reading *p, struct rdzv_in *call)
{
    Trainerd__V1__TraceReply reply = TRAINERD__V1__TRACE_REPLY__INIT;

    reply.clock_ns = clock_ns();
    reply.task = (char *)t->r->cluster.tasks[t->r->opts.self].name;
    if (p != NULL) {
        reply.total = p->total;
        reply.data = (ProtobufCBinaryData){ .len = p->n, .data = (uint8_t *)p->part };
    }
    rdzv_in_reply(call, &reply.base);
}

/* On the loop, after the thread. */
static void part_is_read(void *arg)
{
    struct reading *p = arg;
    struct rdzv_traces *t = p->owner;
    struct rdzv_in *call;

    if (t != NULL) {
        pthread_join(t->thread, NULL);
        call = t->call;
        t->call = NULL;
        t->reading = NULL;
        if (call != NULL && p->rc < 0)
            rdzv_in_finish(call, GRPC_STATUS_FAILED_PRECONDITION, "%s", p->err.text);
        else if (call != NULL)
            reply_part(t, p, call);
    }
    free(p);
}

static int read_part(struct reading *p, struct err *err)
{
    int fd = open(p->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK), rc = 0;
    struct stat st;
    ssize_t n = -1;

    if (fd < 0)
        return err_sys(err, errno, "trace: open '%s'", p->path);
    if (fstat(fd, &st) == 0)
        n = pread(fd, p->part, sizeof(p->part), (off_t)p->offset);
    if (n < 0)
        rc = err_sys(err, errno, "trace: read '%s'", p->path);
    close(fd);
    if (rc == 0) {
        p->total = (uint64_t)st.st_size;
        p->n = (size_t)n;
    }
    return rc;
}

static void *reader(void *arg)
{
    struct reading *p = arg;

    p->rc = read_part(p, &p->err);
    loop_post(p->loop, part_is_read, p);
    return NULL;
}

static void on_closed(void *arg, struct rdzv_in *call, const char *why)
{
    struct rdzv_traces *t = arg;

    (void)call, (void)why;
    t->call = NULL;
}

static int start_reading(struct rdzv_traces *t, const char *path, uint64_t offset, struct err *err)
{
    struct reading *p = calloc(1, sizeof(*p));
    int rc;

    if (p == NULL)
        return err_set(err, ERR_NOMEM, "trace: out of memory");
    p->owner = t;
    p->loop = t->r->opts.loop;
    p->offset = offset;
    snprintf(p->path, sizeof(p->path), "%s", path);
    rc = thread_start(&t->thread, "reads the trace", reader, p, err);
    if (rc == 0)
        t->reading = p;
    else
        free(p);
    return rc;
}

void rdzv_read_trace(struct rdzv *r, struct rdzv_in *call, void *request)
{
    static const char none[] = "this task has written no trace: start it with --trace FILE, and wait until the "
                               "steps of the trace are done";
    const Trainerd__V1__TraceRequest *q = request;
    struct rdzv_traces *t = r->traces;
    const char *path = r->opts.progress->trace_path;
    struct err err;

    if (q->clock_only) {
        reply_part(t, NULL, call);
    } else if (path == NULL) {
        rdzv_in_finish(call, GRPC_STATUS_FAILED_PRECONDITION, "%s", none);
    } else if (t->reading != NULL) {
        rdzv_in_finish(call, GRPC_STATUS_UNAVAILABLE, "another call reads the trace; try again");
    } else if (q->offset > WIRE_NUMBER_MAX) {
        rdzv_in_finish(call, GRPC_STATUS_INVALID_ARGUMENT, "offset: expected at most 2^62");
    } else if (start_reading(t, path, q->offset, &err) < 0) {
        rdzv_in_finish(call, GRPC_STATUS_FAILED_PRECONDITION, "%s", err.text);
    } else {
        t->call = call;
        rdzv_in_on_closed(call, on_closed, t);
    }
}

struct rdzv_traces *rdzv_traces_new(struct rdzv *r)
{
    struct rdzv_traces *t = calloc(1, sizeof(*t));

    CHECK(t != NULL);
    t->r = r;
    return t;
}

void rdzv_traces_shut(struct rdzv_traces *t)
{
    struct rdzv_in *call = t->call;

    t->call = NULL;
    if (call != NULL)
        rdzv_in_finish(call, GRPC_STATUS_UNAVAILABLE, "the task ends");
    if (t->reading == NULL)
        return;
    pthread_join(t->thread, NULL);
    t->reading->owner = NULL;
    t->reading = NULL;
}

void rdzv_traces_free(struct rdzv_traces *t)
{
    free(t);
}
