/* ctl_trace.c - `trainerctl trace`: the traces of all tasks in one file, on one clock.
 *
 * The clock is that of the first task that has a trace. The offset of a clock is measured with
 * CLOCK_CALLS calls: a task reads its clock while it handles the call, between the moments at which the
 * call was sent and answered here; the shortest call has the smallest error, at most half of its
 * duration. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <protobuf-c/protobuf-c.h>

#include "base/buf.h"
#include "base/check.h"
#include "base/err.h"
#include "base/fs.h"
#include "base/text.h"
#include "daemon/args.h"
#include "daemon/ctl.h"
#include "daemon/ctl_group.h"
#include "daemon/trace_merge.h"
#include "proto/trainerd.pb-c.h"

enum { CLOCK_CALLS = 16, MAX_BYTES = 1 << 30 };

struct clock_of {
    int64_t offset_ns;  /* the clock of the task minus the clock here */
    uint64_t error_ns;  /* at most */
    int rc;
    struct err err;
};

struct output {
    int fd;
    const char *path;
    uint64_t n_tasks;  /* that are in it */
    int64_t reference; /* offset of the clock of the first one */
    struct buf clocks; /* JSON: what is known about each clock */
};

/* ---- clocks ---- */

static int call_trace(struct ctl_task *t, uint64_t offset, bool clock_only, uint64_t times[2],
                      Trainerd__V1__TraceReply **out, struct err *err)
{
    Trainerd__V1__TraceRequest q = TRAINERD__V1__TRACE_REQUEST__INIT;
    void *reply = NULL;
    int rc;

    q.offset = offset;
    q.clock_only = clock_only;
    rc = ctl_task_call(t, "Trace", &q.base, &trainerd__v1__trace_reply__descriptor, times, &reply,
                       err);
    *out = reply;
    return rc;
}

/* Called on any thread, for one task. */
static void measure(struct ctl_task *t)
{
    struct clock_of *c = t->arg;

    c->error_ns = UINT64_MAX;
    for (int i = 0; c->rc == 0 && i < CLOCK_CALLS; i++) {
        Trainerd__V1__TraceReply *reply;
        uint64_t times[2], took;

        c->rc = call_trace(t, 0, true, times, &reply, &c->err);
        if (c->rc < 0)
            return;
        took = times[1] - times[0];
        if (took / 2 < c->error_ns) {
            c->error_ns = took / 2;
            c->offset_ns = (int64_t)reply->clock_ns - (int64_t)(times[0] + took / 2);
        }
        protobuf_c_message_free_unpacked(&reply->base, NULL);
    }
}

/* ---- output ---- */

static int copy_parts(struct ctl_task *t, struct output *o, struct trace_merge *m, struct err *err)
{
    uint64_t offset = 0, total = 0;
    struct buf out = { 0 };
    int rc = 0;

    do {
        Trainerd__V1__TraceReply *part;

        rc = call_trace(t, offset, false, NULL, &part, err);
        if (rc < 0)
            break;
        if (part->total > MAX_BYTES || (offset > 0 && part->total != total) ||
            (part->data.len == 0 && offset < part->total))
            rc = err_set(err, ERR_IO, "its file of %llu bytes changed while it was read; try again",
                         (unsigned long long)total);
        total = part->total;
        if (rc == 0)
            rc = trace_merge_add(m, (const char *)part->data.data, part->data.len, &out, err);
        offset += part->data.len;
        protobuf_c_message_free_unpacked(&part->base, NULL);
        if (rc == 0 && out.failed)
            rc = err_set(err, ERR_NOMEM, "out of memory");
        if (rc == 0)
            rc = fs_write_all(o->fd, out.data, out.len, o->path, err);
        buf_reset(&out);
    } while (rc == 0 && offset < total);
    buf_fini(&out);
    return rc;
}

static int add_task(struct ctl_task *t, struct output *o, struct err *err)
{
    const struct clock_of *c = t->arg;
    struct trace_merge m = { .pid = (uint32_t)o->n_tasks };
    int rc, end;

    if (o->n_tasks == 0)
        o->reference = c->offset_ns;
    m.shift_ns = o->reference - c->offset_ns;
    rc = copy_parts(t, o, &m, err);
    end = trace_merge_end(&m, rc < 0 ? NULL : err);
    if (rc == 0)
        rc = end;
    if (rc < 0)
        return err_wrap(err, rc, "trace of %s", t->name);
    buf_str(&o->clocks, o->n_tasks > 0 ? ",{\"task\":" : "{\"task\":");
    buf_json(&o->clocks, t->name);
    buf_printf(&o->clocks, ",\"shift_ns\":%" PRId64 ",\"error_ns\":%" PRIu64 "}", m.shift_ns,
               c->error_ns);
    o->n_tasks++;
    return 0;
}

/* Returns how many tasks have a trace. A task without one, or one that does not answer, is left out with a sentence. */
static size_t find_traces(struct ctl_group *g)
{
    size_t n = 0;

    for (size_t i = 0; i < g->n; i++) {
        struct clock_of *c = g->tasks[i].arg;
        Trainerd__V1__TraceReply *part;

        if (c->rc == 0)
            c->rc = call_trace(&g->tasks[i], 0, false, NULL, &part, &c->err);
        if (c->rc == 0)
            protobuf_c_message_free_unpacked(&part->base, NULL);
        else
            fprintf(stderr, "trainerctl: %s is left out: %s\n", g->tasks[i].name, c->err.text);
        n += c->rc == 0;
    }
    return n;
}

/* A trace that cannot be read to its end is an error. */
static int write_all(struct ctl_group *g, struct output *o, struct err *err)
{
    static const char begin[] = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n"
                                "{\"ph\":\"M\",\"name\":\"trainerctl_trace\",\"pid\":0,\"tid\":0,\"args\":{}}";
    struct buf end = { 0 };
    int rc = fs_write_all(o->fd, begin, sizeof(begin) - 1, o->path, err);

    for (size_t i = 0; rc == 0 && i < g->n; i++)
        if (((struct clock_of *)g->tasks[i].arg)->rc == 0)
            rc = add_task(&g->tasks[i], o, err);
    buf_printf(&end, "\n],\"otherData\":{\"clocks\":[%s]}}\n",
               o->clocks.data != NULL ? o->clocks.data : "");
    if (rc == 0 && (end.failed || o->clocks.failed))
        rc = err_set(err, ERR_NOMEM, "out of memory");
    if (rc == 0)
        rc = fs_write_all(o->fd, end.data, end.len, o->path, err);
    buf_fini(&end);
    buf_fini(&o->clocks);
    return rc;
}

/* After an error the file is empty. */
static int write_file(struct ctl_group *g, struct output *o, struct err *err)
{
    int rc;

    o->fd = open(o->path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (o->fd < 0)
        return err_sys(err, errno, "create '%s'", o->path);
    rc = write_all(g, o, err);
    if (rc < 0 && ftruncate(o->fd, 0) < 0)
        err_wrap(err, rc, "'%s' is incomplete", o->path);
    if (close(o->fd) < 0 && rc == 0)
        rc = err_sys(err, errno, "write '%s'", o->path);
    return rc;
}

static int trace(const char *address, const char *path, struct err *err)
{
    struct output o = { .path = path };
    struct ctl_group g;
    struct clock_of *clocks;
    uint64_t worst = 0;
    int rc = ctl_group_open(address, &g, err);

    if (rc < 0)
        return rc;
    clocks = calloc(g.n + 1, sizeof(*clocks));
    CHECK(clocks != NULL);
    for (size_t i = 0; i < g.n; i++)
        g.tasks[i].arg = &clocks[i];
    ctl_group_each(&g, measure);
    if (find_traces(&g) == 0)
        rc = err_set(err, ERR_NOENT, "no task has written a trace: start the tasks with --trace FILE, and wait "
                                     "until the steps of the trace are done");
    else
        rc = write_file(&g, &o, err);
    for (size_t i = 0; i < g.n; i++)
        if (clocks[i].rc == 0 && clocks[i].error_ns > worst)
            worst = clocks[i].error_ns;
    if (rc == 0)
        printf("%s: %llu of %zu tasks, clocks agree within %.0f us\n", path,
               (unsigned long long)o.n_tasks, g.n, 2 * (double)worst / 1e3);
    ctl_group_close(&g);
    free(clocks);
    return rc;
}

int ctl_trace(int argc, char **argv)
{
    const char *path = NULL;
    bool asked = false;
    const struct arg table[] = {
        { "out", "FILE", NULL, "the file to write (Chrome trace JSON: Perfetto opens it)", &path, NULL },
        { "help", NULL, NULL, "print this", NULL, &asked },
    };
    struct err err;
    int rc = args_parse(table, COUNT_OF(table), &argc, argv, &err);

    if (rc == 0 && (asked || argc != 2 || path == NULL)) {
        fprintf(asked ? stdout : stderr,
                "usage: trainerctl trace --out FILE ADDR\n"
                "Merges the traces that the tasks of the group wrote (trainerd --trace) on one clock.\n\n");
        if (asked)
            args_help(table, COUNT_OF(table), stdout);
        return asked ? CTL_OK : CTL_USAGE;
    }
    if (rc == 0)
        rc = trace(argv[1], path, &err);
    if (rc < 0)
        fprintf(stderr, "trainerctl: %s\n", err.text);
    return rc < 0 ? ctl_exit_code(rc) : CTL_OK;
}
