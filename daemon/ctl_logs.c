/* ctl_logs.c - `trainerctl logs` and `trainerctl events`: the newest log records of all tasks, in the
 * order of their times. An event of the group, such as a death, is in the log of each task: `events` prints it once. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <protobuf-c/protobuf-c.h>

#include "base/buf.h"
#include "base/check.h"
#include "base/crc32c.h"
#include "base/err.h"
#include "base/text.h"
#include "daemon/args.h"
#include "daemon/ctl.h"
#include "daemon/ctl_group.h"
#include "proto/trainerd.pb-c.h"

enum { FOLLOW_MS = 500, SAME_US = 10000000 /* equal events of two tasks within this time are one */, RECENT = 256 };

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
    uint64_t hash;                 /* of event and message */
    uint32_t n_also;               /* further tasks with this event */
    const struct ctl_task *also;   /* the first of them */
    bool is_repeated;              /* an earlier line, or an earlier round, has the event */
    size_t first;                  /* index of this earlier line; its own index: none */
};

/* An event of an earlier round. */
struct recent {
    uint64_t hash, time_us;
    const struct ctl_task *task;
};

struct view {
    struct ctl_group group;
    struct source *sources; /* [group.n] */
    bool json, events_only;
    uint64_t n_last; /* records to print in the first round */
    struct recent recent[RECENT]; /* the last events that were printed; a ring */
    size_t n_recent;
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

/* The CRC of event and message, and their length. */
static uint64_t hash_of(const Trainerd__V1__LogRecord *r)
{
    size_t event = strlen(r->event) + 1, message = strlen(r->message);
    uint32_t crc = crc32c(crc32c(0, r->event, event), r->message, message);

    return (uint64_t)(event + message) << 32 | crc;
}

static bool is_equal(const Trainerd__V1__LogRecord *a, const Trainerd__V1__LogRecord *b)
{
    return strcmp(a->event, b->event) == 0 && strcmp(a->message, b->message) == 0;
}

static bool is_same(const struct line *l, const struct ctl_task *task, uint64_t hash,
                    uint64_t time_us)
{
    uint64_t own_us = l->record->time_us;

    return hash == l->hash && task != l->task &&
           (own_us > time_us ? own_us - time_us : time_us - own_us) <= SAME_US;
}

/* Whether a line before lines[i] adds its task to that of lines[first]. */
static bool is_counted(const struct line *lines, size_t first, size_t i)
{
    for (size_t k = first + 1; k < i; k++)
        if (lines[k].first == first && lines[k].task == lines[i].task)
            return true;
    return false;
}

/* Marks lines[i] if an earlier line, or an earlier round, has its event of another task. The lines are sorted by time. */
static void merge(struct view *v, struct line *lines, size_t i)
{
    struct line *l = &lines[i];

    l->first = i;
    for (size_t k = i; k-- > 0 && l->record->time_us - lines[k].record->time_us <= SAME_US;) {
        struct line *first = &lines[k];

        if (first->is_repeated || !is_same(l, first->task, first->hash, first->record->time_us) ||
            !is_equal(l->record, first->record))
            continue;
        l->is_repeated = true;
        l->first = k;
        if (!is_counted(lines, k, i) && first->n_also++ == 0)
            first->also = l->task;
        return;
    }
    for (size_t k = 0; k < v->n_recent && k < RECENT; k++)
        if (is_same(l, v->recent[k].task, v->recent[k].hash, v->recent[k].time_us))
            l->is_repeated = true;
    if (!l->is_repeated)
        v->recent[v->n_recent++ % RECENT] = (struct recent){ l->hash, l->record->time_us, l->task };
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
        buf_printf(out, ", \"other_tasks\": %u, \"event\": ", l->n_also);
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
    if (l->n_also == 1)
        buf_printf(out, " (also %s)", l->also->name);
    else if (l->n_also > 1)
        buf_printf(out, " (also %u other tasks)", l->n_also);
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
    size_t n = 0, all = 0, repeated = 0, seen = 0;
    struct line *lines;
    struct buf out = { 0 };

    for (size_t i = 0; i < v->group.n; i++)
        all += v->sources[i].reply != NULL ? v->sources[i].reply->n_records : 0;
    lines = calloc(all + 1, sizeof(*lines));
    CHECK(lines != NULL);
    for (size_t i = 0; i < v->group.n; i++) {
        const Trainerd__V1__LogsReply *l = v->sources[i].reply;

        for (size_t k = 0; l != NULL && k < l->n_records; k++)
            lines[n++] = (struct line){ .task = &v->group.tasks[i], .record = l->records[k] };
    }
    qsort(lines, n, sizeof(*lines), by_time);
    for (size_t i = 0; v->events_only && i < n; i++) {
        lines[i].hash = hash_of(lines[i].record);
        merge(v, lines, i);
        repeated += lines[i].is_repeated;
    }
    for (size_t i = 0; i < n; i++) {
        if (lines[i].is_repeated)
            continue;
        if (n - repeated - seen++ <= max)
            add_line(&lines[i], v->json, &out);
    }
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
    struct view v = { .events_only = events_only };
    const char *lines = "100";
    bool follow = false, asked = false;
    const struct arg table[] = {
        { "lines", "N", NULL, "the newest N records of all tasks together (100)", &lines, NULL },
        { "follow", NULL, NULL, "go on with each new record, until it is interrupted", NULL, &follow },
        { "json", NULL, NULL, "print one object a line: time, level, task, event, message, other_tasks\n(so many logged the same event; of `events`)", NULL, &v.json },
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
