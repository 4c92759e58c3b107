/* status_metrics.c - metrics of the membership, from the status. A series of another task exists only
 * on the task that leads, which alone knows it. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/check.h"
#include "daemon/status.h"
#include "metrics/metrics.h"
#include "opts/ps.h"
#include "proto/trainerd.pb-c.h"

struct task_metrics {
    struct metric *present, *restarts, *seconds[4]; /* seconds: see parts[] */
    uint64_t incarnation; /* of the process that was seen last; 0: none yet */
};

struct table_metrics {
    char *name; /* owned */
    struct metric *rows, *admitted, *expired;
    uint64_t n_admitted, n_expired; /* that were added to the counters */
};

struct server_metrics { /* of a task that is a parameter server; NULL: not seen yet */
    struct metric *version, *shards, *copying, *bytes, *read, *updated;
    struct metric *staleness;
    uint64_t rows_read, rows_updated; /* that were added to the counters */
    uint64_t rows_stale[PS_AGES]; /* that were added to the histogram */
    struct table_metrics *tables; /* [n_tables] owned; of dynamic tables that were seen */
    size_t n_tables;
};

struct status_metrics {
    struct metrics *m;
    struct metric *generation, *generations, *expected, *members, *leads, *phase_seconds, *remaining;
    struct metric *phase;     /* the series of the present phase; NULL: none yet */
    char phase_name[32];
    uint64_t seen_generation; /* of the last update */
    struct task_metrics *tasks; /* [n_tasks] */
    size_t n_tasks;
    struct server_metrics server;
    struct metric *memory_used, *memory_limit;
};

static const char *const parts[] = { "data", "compute", "reduce", "checkpoint" };

struct status_metrics *status_metrics_new(struct metrics *m)
{
    struct status_metrics *x = calloc(1, sizeof(*x));

    CHECK(x != NULL);
    x->m = m;
    x->generation =
        metrics_gauge(m, "trainerd_generation", NULL, "Number of the present generation.");
    x->generations = metrics_counter(m, "trainerd_generations_total", NULL,
                                     "Generations that this process has trained in or waited for.");
    x->expected = metrics_gauge(m, "trainerd_tasks", NULL, "Training tasks of the cluster.");
    x->members = metrics_gauge(m, "trainerd_members", NULL,
                               "Tasks in the present generation; 0: it has ended.");
    x->leads =
        metrics_gauge(m, "trainerd_leads", NULL, "1: this task leads the group, 0: it does not.");
    x->phase_seconds =
        metrics_gauge(m, "trainerd_phase_seconds", NULL, "Time since the present phase began.");
    x->remaining =
        metrics_gauge(m, "trainerd_remaining_seconds", NULL,
                      "Estimated time until the last step of the job begins; +Inf: not known yet.");
    x->memory_used = metrics_gauge(m, "trainerd_memory_used_bytes", NULL,
                                   "Memory in use of the limit that this task reaches first.");
    x->memory_limit = metrics_gauge(
        m, "trainerd_memory_limit_bytes", NULL,
        "Limit of the control group, the host or the process that this task reaches first.");
    return x;
}

void status_metrics_free(struct status_metrics *x)
{
    if (x == NULL)
        return;
    for (size_t i = 0; i < x->server.n_tables; i++)
        free(x->server.tables[i].name);
    free(x->server.tables);
    free(x->tasks);
    free(x);
}

/* One series has the value 1: that of the present phase. */
static void update_phase(struct status_metrics *x, const Trainerd__V1__StatusReply *s)
{
    struct buf labels = { 0 };

    metric_set(x->phase_seconds, (double)s->phase_ms / 1e3);
    if (strcmp(x->phase_name, s->phase) == 0)
        return;
    if (x->phase != NULL)
        metric_forget(x->phase);
    snprintf(x->phase_name, sizeof(x->phase_name), "%s", s->phase);
    metrics_label(&labels, "phase", s->phase);
    CHECK(!labels.failed);
    x->phase =
        metrics_gauge(x->m, "trainerd_phase", labels.data, "1, with the present phase as a label.");
    metric_set(x->phase, 1);
    buf_fini(&labels);
}

static void open_task(struct status_metrics *x, struct task_metrics *t,
                      const Trainerd__V1__Task *task)
{
    struct buf labels = { 0 };
    char name[80];
    size_t n;

    snprintf(name, sizeof(name), "%.40s %u", task->type, task->index);
    metrics_label(&labels, "task", name);
    CHECK(!labels.failed);
    n = labels.len;
    t->present =
        metrics_gauge(x->m, "trainerd_task_present", labels.data,
                      "1: the task is in the group, 0: it is missing. Known to the leader.");
    t->restarts = metrics_counter(x->m, "trainerd_task_restarts_total", labels.data,
                                  "Further processes of the task since this task first saw one.");
    for (size_t i = 0; i < COUNT_OF(parts); i++) {
        labels.len = n;
        metrics_label(&labels, "part", parts[i]);
        CHECK(!labels.failed);
        t->seconds[i] =
            metrics_gauge(x->m, "trainerd_task_step_seconds", labels.data,
                          "Where the time of a step goes: mean of the last window of the task.");
    }
    buf_fini(&labels);
}

static void update_step_time(struct task_metrics *t, const Trainerd__V1__StepTime *time)
{
    const double shares[] = { time != NULL ? time->data : 0, time != NULL ? time->compute : 0,
                              time != NULL ? time->reduce : 0, time != NULL ? time->checkpoint : 0 };

    for (size_t i = 0; i < COUNT_OF(parts); i++) {
        if (time != NULL)
            metric_set(t->seconds[i], shares[i] * time->seconds);
        else
            metric_forget(t->seconds[i]);
    }
}

static void update_task(struct task_metrics *t, const Trainerd__V1__TaskStatus *s, bool leads)
{
    if (t->incarnation != 0 && s->incarnation != 0 && t->incarnation != s->incarnation)
        metric_add(t->restarts, 1);
    if (s->incarnation != 0)
        t->incarnation = s->incarnation;
    if (leads)
        metric_set(t->present, s->present ? 1 : 0);
    else
        metric_forget(t->present);
    update_step_time(t, s->step_time);
}

static void open_server(struct status_metrics *x, struct server_metrics *p)
{
    static const double ages[] = { 0, 1, 2, 4, 8, 16 };

    p->version = metrics_gauge(x->m, "trainerd_ps_version", NULL,
                               "Step after which the rows of this parameter server are.");
    p->shards = metrics_gauge(x->m, "trainerd_ps_shards", NULL,
                              "Shards of the tables on this parameter server, of 1024.");
    p->copying = metrics_gauge(x->m, "trainerd_ps_shards_copying", NULL,
                               "Shards whose rows are still being copied from another server.");
    p->bytes = metrics_gauge(x->m, "trainerd_ps_bytes", NULL,
                             "Memory of rows, optimizer state and averages.");
    p->read = metrics_counter(x->m, "trainerd_ps_rows_read_total", NULL, "Rows sent to replicas.");
    p->updated =
        metrics_counter(x->m, "trainerd_ps_rows_updated_total", NULL,
                        "Gradients of rows received; one from each replica that read the row.");
    p->staleness = metrics_histogram(
        x->m, "trainerd_staleness_steps", NULL,
        "Steps by which rows that steps computed with were older than the newest.", ages,
        COUNT_OF(ages));
}

/* Finds the metrics of a dynamic table, or adds them. */
static struct table_metrics *find_table(struct status_metrics *x, const char *name)
{
    struct server_metrics *p = &x->server;
    struct table_metrics *t;
    struct buf labels = { 0 };

    for (size_t i = 0; i < p->n_tables; i++)
        if (strcmp(p->tables[i].name, name) == 0)
            return &p->tables[i];
    t = realloc(p->tables, (p->n_tables + 1) * sizeof(*t));
    CHECK(t != NULL);
    p->tables = t;
    t += p->n_tables++;
    *t = (struct table_metrics){ .name = strdup(name) };
    metrics_label(&labels, "table", name);
    CHECK(t->name != NULL && !labels.failed);
    t->rows = metrics_gauge(x->m, "trainerd_ps_dynamic_rows", labels.data,
                            "Trained rows of a dynamic table on this parameter server.");
    t->admitted = metrics_counter(x->m, "trainerd_ps_admitted_rows_total", labels.data,
                                  "Rows of a dynamic table that steps have added.");
    t->expired = metrics_counter(x->m, "trainerd_ps_expired_rows_total", labels.data,
                                 "Trained rows of a dynamic table that were removed.");
    buf_fini(&labels);
    return t;
}

/* Adds what a count has grown. It begins again where the server begins with another job. */
static void count_up(struct metric *m, uint64_t *before, uint64_t now)
{
    metric_add(m, (double)(now < *before ? now : now - *before));
    *before = now;
}

static void update_tables(struct status_metrics *x, const Trainerd__V1__ServerStatus *s)
{
    for (size_t i = 0; i < s->n_tables; i++) {
        struct table_metrics *t = find_table(x, s->tables[i]->name);

        metric_set(t->rows, (double)s->tables[i]->rows);
        count_up(t->admitted, &t->n_admitted, s->tables[i]->admitted);
        count_up(t->expired, &t->n_expired, s->tables[i]->expired);
    }
}

static void update_server(struct status_metrics *x, const Trainerd__V1__ServerStatus *s)
{
    struct server_metrics *p = &x->server;

    if (s == NULL)
        return;
    if (p->version == NULL)
        open_server(x, p);
    metric_set(p->version, (double)s->version);
    metric_set(p->shards, s->shards);
    metric_set(p->copying, s->copying);
    metric_set(p->bytes, (double)s->bytes);
    metric_add(p->read, (double)(s->rows_read - p->rows_read));
    metric_add(p->updated, (double)(s->rows_updated - p->rows_updated));
    for (size_t age = 0; age < s->n_rows_stale && age < COUNT_OF(p->rows_stale); age++) {
        metric_observe_many(p->staleness, (double)age, s->rows_stale[age] - p->rows_stale[age]);
        p->rows_stale[age] = s->rows_stale[age];
    }
    p->rows_read = s->rows_read;
    p->rows_updated = s->rows_updated;
    update_tables(x, s);
}

static void update_memory(struct status_metrics *x, const Trainerd__V1__MemoryStatus *m)
{
    if (m == NULL) {
        metric_forget(x->memory_used);
        metric_forget(x->memory_limit);
        return;
    }
    metric_set(x->memory_used, (double)m->used);
    metric_set(x->memory_limit, (double)m->limit);
}

/* An evaluator and a ps task, which take no steps, serve no estimate. */
static void update_remaining(struct status_metrics *x, const Trainerd__V1__StatusReply *s)
{
    double steps = s->total_steps > s->step ? (double)(s->total_steps - s->step - 1) : 0;

    if (strcmp(s->self->type, "evaluator") == 0 || strcmp(s->self->type, "ps") == 0)
        return;
    metric_set(x->remaining, s->total_steps == 0 || (steps > 0 && s->step_seconds <= 0)
                                 ? INFINITY
                                 : steps * s->step_seconds);
}

void status_metrics_update(struct status_metrics *x, const Trainerd__V1__StatusReply *s)
{
    bool leads = strcmp(s->state, "leading") == 0 || strcmp(s->state, "alone") == 0;

    update_phase(x, s);
    update_server(x, s->server);
    update_memory(x, s->memory);
    update_remaining(x, s);
    metric_set(x->leads, leads ? 1 : 0);
    metric_set(x->expected, (double)s->n_tasks);
    metric_set(x->members, (double)(s->n_view > 0 ? s->n_view : strcmp(s->state, "alone") == 0));
    if (s->generation > 0)
        metric_set(x->generation, (double)s->generation);
    if (s->generation != x->seen_generation && s->generation > 0)
        metric_add(x->generations, 1);
    x->seen_generation = s->generation;
    if (x->tasks == NULL) {
        x->n_tasks = s->n_tasks;
        x->tasks = calloc(s->n_tasks + 1, sizeof(*x->tasks));
        CHECK(x->tasks != NULL);
        for (size_t i = 0; i < s->n_tasks; i++)
            open_task(x, &x->tasks[i], s->tasks[i]->task);
    }
    for (size_t i = 0; i < x->n_tasks; i++)
        update_task(&x->tasks[i], s->tasks[i], leads);
}
