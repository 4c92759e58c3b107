/* ctl_logs.c - `trainerctl logs` and `trainerctl events`: the newest log records of all tasks, in the
 * order of their times. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <protobuf-c/protobuf-c.h>

#include "base/buf.h"
#include "base/check.h"
#include "base/err.h"
#include "base/text.h"
#include "daemon/args.h"
#include "daemon/ctl.h"
#include "daemon/ctl_group.h"
#include "proto/trainerd.pb-c.h"

enum { FOLLOW_MS = 500 };

/* What the command knows of one task. */
struct source {
    bool events_only;
    uint64_t after, incarnation;       /* of the last reply; 0: none yet */
    Trainerd__V1__LogsReply *reply;    /* of this round, owned; NULL: it failed */
    struct err err;                    /* of this round, if reply is NULL */
    bool is_silent;                    /* the failure has been printed */
};

struct line {
    const struct ctl_task *task;
    const Trainerd__V1__LogRecord *record;
};

struct view {
    struct ctl_group group;
    struct source *sources; /* [group.n] */
    bool json;
    uint64_t n_last; /* records to print in the first round */
};

/* Called on any thread, for one task. A process that is new numbers its records from 1 again. */
static void ask(struct ctl_task *t)
{
    struct source *s = t->arg;

    for (int tries = 0; tries < 2; tries++) {
        Trainerd__V1__LogsRequest q = TRAINERD__V1__LOGS_REQUEST__INIT;
        void *reply = NULL;

        q.after = s->after;
        q.events_only = s->events_only;
        s->reply = NULL;
        if (ctl_task_call(t, "Logs", &q.base, &trainerd__v1__logs_reply__descriptor, NULL, &reply,
                          &s->err) < 0)
            return;
        s->reply = reply;
        if (s->after == 0 || s->reply->incarnation == s->incarnation)
            break;
        s->after = 0;
        protobuf_c_message_free_unpacked(&s->reply->base, NULL);
        s->reply = NULL;
    }
    if (s->reply == NULL)
        return;
    s->incarnation = s->reply->incarnation;
    s->after = s->reply->last;
}

static int by_time(const void *a, const void *b)
{
    const struct line *x = a, *y = b;

    if (x->record->time_us != y->record->time_us)
        return x->record->time_us < y->record->time_us ? -1 : 1;
    if (x->task != y->task)
        return x->task < y->task ? -1 : 1;
    return x->record->number < y->record->number ? -1 : x->record->number > y->record->number;
}

static void add_time(struct buf *out, uint64_t time_us)
{
    time_t seconds = (time_t)(time_us / 1000000);
    struct tm tm;
    char text[32] = "?";

    if (gmtime_r(&seconds, &tm) != NULL)
        strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%S", &tm);
    buf_printf(out, "%s.%03uZ", text, (unsigned)(time_us / 1000 % 1000));
}

static void add_line(const struct line *l, bool json, struct buf *out)
{
    const Trainerd__V1__LogRecord *r = l->record;
    char level[8];

    if (json) {
        buf_str(out, "{\"time\": \"");
        add_time(out, r->time_us);
        buf_str(out, "\", \"level\": ");
        buf_json(out, r->level);
        buf_str(out, ", \"task\": ");
        buf_json(out, l->task->name);
        buf_str(out, ", \"event\": ");
        buf_json(out, r->event);
        buf_str(out, ", \"message\": ");
        buf_json(out, r->message);
        buf_str(out, "}\n");
        return;
    }
    snprintf(level, sizeof(level), "%.5s", r->level);
    for (char *c = level; *c != '\0'; c++)
        *c = (char)(*c >= 'a' && *c <= 'z' ? *c - 'a' + 'A' : *c);
    add_time(out, r->time_us);
    buf_str(out, " ");
    ctl_add_text(out, level);
    buf_printf(out, "%*s", 6 - (int)strlen(level), "");
    ctl_add_text(out, l->task->name);
    buf_str(out, ": ");
    ctl_add_text(out, r->message);
    buf_str(out, "\n");
}

/* One sentence on standard error when a task stops answering, and one when it answers again. */
static size_t report_failures(struct view *v)
{
    size_t n = 0;

    for (size_t i = 0; i < v->group.n; i++) {
        struct source *s = &v->sources[i];
        const struct ctl_task *t = &v->group.tasks[i];

        n += s->reply == NULL;
        if (s->reply == NULL && !s->is_silent)
            fprintf(stderr, "trainerctl: %s: %s\n", t->name, s->err.text);
        if (s->reply != NULL && s->is_silent)
            fprintf(stderr, "trainerctl: %s answers again\n", t->name);
        s->is_silent = s->reply == NULL;
    }
    return n;
}

static void print_round(struct view *v, uint64_t max)
{
    size_t n = 0, all = 0;
    struct line *lines;
    struct buf out = { 0 };

    for (size_t i = 0; i < v->group.n; i++)
        all += v->sources[i].reply != NULL ? v->sources[i].reply->n_records : 0;
    lines = calloc(all + 1, sizeof(*lines));
    CHECK(lines != NULL);
    for (size_t i = 0; i < v->group.n; i++) {
        const Trainerd__V1__LogsReply *l = v->sources[i].reply;

        for (size_t k = 0; l != NULL && k < l->n_records; k++)
            lines[n++] = (struct line){ &v->group.tasks[i], l->records[k] };
    }
    qsort(lines, n, sizeof(*lines), by_time);
    for (size_t i = n > max ? n - max : 0; i < n; i++)
        add_line(&lines[i], v->json, &out);
    CHECK(!out.failed);
    if (out.len > 0)
        fwrite(out.data, 1, out.len, stdout);
    buf_fini(&out);
    free(lines);
}

static int show(struct view *v, bool follow)
{
    uint64_t max = v->n_last;
    size_t failed;
    int rc = CTL_OK;

    do {
        ctl_group_each(&v->group, ask);
        failed = report_failures(v);
        print_round(v, max);
        max = UINT64_MAX;
        for (size_t i = 0; i < v->group.n; i++)
            if (v->sources[i].reply != NULL)
                protobuf_c_message_free_unpacked(&v->sources[i].reply->base, NULL);
        if (!follow || fflush(stdout) != 0) /* the reader has gone */
            break;
        nanosleep(&(struct timespec){ .tv_nsec = FOLLOW_MS * 1000000L }, NULL);
    } while (true);
    if (failed == v->group.n)
        rc = CTL_FAILED;
    return fflush(stdout) == 0 ? rc : CTL_FAILED;
}

static int logs(const char *name, bool events_only, int argc, char **argv)
{
    struct view v = { 0 };
    const char *lines = "100";
    bool follow = false, asked = false;
    const struct arg table[] = {
        { "lines", "N", NULL, "the newest N records of all tasks together (100)", &lines, NULL },
        { "follow", NULL, NULL, "go on with each new record, until it is interrupted", NULL, &follow },
        { "json", NULL, NULL, "print one object a line: time, level, task, event, message", NULL, &v.json },
        { "help", NULL, NULL, "print this", NULL, &asked },
    };
    struct err err;
    int rc = args_parse(table, COUNT_OF(table), &argc, argv, &err);

    if (rc == 0 && !asked && !text_u64(lines, UINT32_MAX, &v.n_last))
        rc =
            err_set(&err, ERR_INPUT, "--lines: expected a number of records, found '%.40s'", lines);
    if (rc == 0 && (asked || argc != 2)) {
        fprintf(asked ? stdout : stderr,
                "usage: trainerctl %s [--lines N] [--follow] [--json] ADDR\n\n", name);
        if (asked)
            args_help(table, COUNT_OF(table), stdout);
        return asked ? CTL_OK : CTL_USAGE;
    }
    if (rc == 0)
        rc = ctl_group_open(argv[1], &v.group, &err);
    if (rc < 0) {
        fprintf(stderr, "trainerctl: %s\n", err.text);
        return rc == ERR_INPUT ? CTL_USAGE : CTL_FAILED;
    }
    v.sources = calloc(v.group.n + 1, sizeof(*v.sources));
    CHECK(v.sources != NULL);
    for (size_t i = 0; i < v.group.n; i++) {
        v.sources[i].events_only = events_only;
        v.group.tasks[i].arg = &v.sources[i];
    }
    rc = show(&v, follow);
    ctl_group_close(&v.group);
    free(v.sources);
    return rc;
}

int ctl_logs(int argc, char **argv)
{
    return logs("logs", false, argc, argv);
}

int ctl_events(int argc, char **argv)
{
    return logs("events", true, argc, argv);
}
