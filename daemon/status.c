#include "daemon/status.h"

#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/group_view.h"
#include "comm/comm.h"
#include "daemon/memory_watch.h"
#include "daemon/report.h"
#include "daemon/run_priv.h"
#include "daemon/work.h"
#include "proto/trainerd.pb-c.h"
#include "ps/ps.h"
#include "ps/store.h"
#include "ps/wants.h"

static bool is_in_view(const Trainerd__V1__TaskStatus *t)
{
    return strcmp(t->state, "active") == 0;
}

static bool is_ps(const Trainerd__V1__TaskStatus *t)
{
    return t->task != NULL && strcmp(t->task->type, "ps") == 0;
}

/* The number of replicas in the view; 0: the devices of a member are not known here. */
static uint32_t replicas_of(const Trainerd__V1__StatusReply *s)
{
    uint32_t n = 0;

    for (size_t i = 0; i < s->n_tasks; i++) {
        if (is_in_view(s->tasks[i]) && s->tasks[i]->n_devices == 0 && !is_ps(s->tasks[i]))
            return 0;
        n += is_in_view(s->tasks[i]) ? s->tasks[i]->n_devices : 0;
    }
    return n;
}

static void add_pieces(const struct group_view *v, uint32_t n, uint32_t *lanes)
{
    memset(lanes, 0, n * sizeof(*lanes));
    for (uint32_t i = 0; i < v->n_pieces; i++)
        if (v->pieces[i].rank < n)
            lanes[v->pieces[i].rank] += v->pieces[i].n;
}

/* Adds the lanes of each replica to its member, whose location is that of the view: the leader may have inferred it. */
static void add_lanes(Trainerd__V1__StatusReply *s, const struct group_view *view,
                      const uint32_t *lanes, uint32_t n, struct arena *a)
{
    uint32_t at = 0;

    for (uint32_t m = 0; m < view->n_members; m++) {
        const struct group_member *member = &view->members[m];

        for (uint32_t k = 0; member->rank < s->n_tasks && k < member->n_devices && at < n; k++)
            s->tasks[member->rank]->lanes += lanes[at++];
        if (member->rank < s->n_tasks && member->location != NULL) {
            s->tasks[member->rank]->location = arena_strdup(a, member->location);
            CHECK(s->tasks[member->rank]->location != NULL);
        }
    }
}

/* The view has the n replicas that the status counts, or is of another time. */
static void divide(const struct lane_tree *tree, uint32_t lanes, const struct group_view *view,
                   uint32_t n, bool is_current, uint32_t *shares)
{
    if (is_current && group_view_n_ranks(view) == n)
        comm_share_view(tree, lanes, view, shares);
    else
        comm_share(tree, lanes, n, shares);
}

/* The lanes of each member: those of its pieces, if the view has pieces, else as comm_share_view() divides
 * them. The tasks are in the order of the cluster. A view of another generation: as if the order of ranks were
 * that of the cluster. */
static void fill_lanes(const struct lane_tree *tree, Trainerd__V1__StatusReply *s,
                       const struct group_view *view, struct arena *a)
{
    uint32_t n = replicas_of(s), at = 0, *shares;
    bool is_current = view->generation == s->generation;

    if (n == 0 || n > s->lanes || n > COMM_MAX_RANKS || s->lanes > COMM_MAX_LEAVES)
        return;
    shares = arena_array(a, n, sizeof(*shares));
    CHECK(shares != NULL);
    if (!is_current || view->n_pieces == 0)
        divide(tree, s->lanes, view, n, is_current, shares);
    else
        add_pieces(view, n, shares);
    if (is_current)
        add_lanes(s, view, shares, n, a);
    for (size_t i = 0; i < s->n_tasks && !is_current; i++)
        for (uint32_t k = 0; is_in_view(s->tasks[i]) && k < s->tasks[i]->n_devices; k++)
            s->tasks[i]->lanes += shares[at++];
}

static void *make(struct arena *a, size_t bytes)
{
    void *memory = arena_alloc(a, bytes);

    CHECK(memory != NULL);
    return memory;
}

static void fill_tables(const struct run *r, Trainerd__V1__ServerStatus *s, struct arena *a)
{
    uint32_t n = work_ps_tables(r->work, NULL, 0), found;
    struct ps_table_facts *facts = make(a, (n + 1) * sizeof(*facts));

    found = work_ps_tables(r->work, facts, n); /* another job may have begun */
    n = found < n ? found : n;
    s->n_tables = n;
    s->tables = make(a, (n + 1) * sizeof(Trainerd__V1__TableStatus *));
    for (uint32_t i = 0; i < n; i++) {
        s->tables[i] = make(a, sizeof(*s->tables[i]));
        trainerd__v1__table_status__init(s->tables[i]);
        s->tables[i]->name = facts[i].name;
        s->tables[i]->rows = facts[i].rows;
        s->tables[i]->admitted = facts[i].admitted;
        s->tables[i]->expired = facts[i].expired;
    }
}

/* The tables that this task holds as a parameter server. */
static void fill_server(const struct run *r, Trainerd__V1__StatusReply *s, struct arena *a)
{
    struct ps_facts f;

    if (!r->s->is_ps || r->work == NULL)
        return;
    work_ps_facts(r->work, &f);
    s->server = make(a, sizeof(*s->server));
    trainerd__v1__server_status__init(s->server);
    s->server->version = f.step;
    s->server->shards = f.n_shards;
    s->server->copying = f.n_copied;
    s->server->bytes = f.bytes;
    s->server->rows_read = f.rows_read;
    s->server->rows_updated = f.rows_updated;
    s->server->bounded = ps_bound_of(r->s->ps) > 0;
    s->server->staleness = s->server->bounded ? ps_bound_of(r->s->ps) : ps_staleness_of(r->s->ps);
    s->server->n_rows_stale = COUNT_OF(f.rows_stale);
    s->server->rows_stale = make(a, sizeof(f.rows_stale));
    memcpy(s->server->rows_stale, f.rows_stale, sizeof(f.rows_stale));
    fill_tables(r, s->server, a);
}

static void fill_memory(const struct run *r, Trainerd__V1__StatusReply *s, struct arena *a)
{
    struct memory_status *m = make(a, sizeof(*m));

    if (!memory_watch_status(r->memory, m))
        return;
    s->memory = make(a, sizeof(*s->memory));
    trainerd__v1__memory_status__init(s->memory);
    s->memory->used = m->limit.used;
    s->memory->limit = m->limit.bytes;
    s->memory->source = m->limit.source;
    s->memory->warning = m->warning;
}

void status_complete(struct run *r, Trainerd__V1__StatusReply *s, const struct group_view *view,
                     struct arena *a)
{
    report_describe(r->report, s, a);
    fill_lanes(&r->s->lanes.tree, s, view, a);
    fill_server(r, s, a);
    fill_memory(r, s, a);
}

void status_describe_alone(struct run *r, Trainerd__V1__StatusReply *s, struct arena *a)
{
    const struct rdzv_progress *p = &r->progress;
    Trainerd__V1__TaskStatus *t = make(a, sizeof(*t));
    Trainerd__V1__StepTime *time = make(a, sizeof(*time));
    bool is_local = r->s->cluster->is_local;

    s->self = make(a, sizeof(*s->self));
    trainerd__v1__task__init(s->self);
    s->self->type = is_local ? "local" : (char *)cluster_type_name(r->s->cluster->self->type);
    s->self->index = r->s->cluster->self->index;
    s->version = TRAINERD_VERSION;
    s->job = (char *)r->s->conf->name;
    s->devices = r->s->devices[0].kind == DEVICE_CUDA ? "cuda" : "cpu";
    s->state = is_local ? "alone" : "evaluator";
    s->uptime_ms = clock_ms() - r->started_ms;
    rdzv_describe_progress(p, s, a);
    s->generation = r->generation_count;
    trainerd__v1__task_status__init(t);
    trainerd__v1__step_time__init(time);
    t->task = s->self;
    t->state = r->generation > 0 ? "active" : "joined";
    t->present = true;
    t->step = t->step_held = p->step;
    t->phase = (char *)(p->doing[0] != '\0' ? p->doing : p->phase);
    t->phase_ms = clock_ms() - (p->doing[0] != '\0' ? p->doing_since_ms : p->phase_since_ms);
    t->samples_per_second = p->samples_per_second;
    t->n_devices = r->s->n_devices;
    t->location = (char *)r->s->location;
    t->last_trouble = s->last_trouble;
    if (p->step_seconds > 0) {
        *time = (Trainerd__V1__StepTime){ time->base, p->step_seconds, p->share_data, p->share_compute,
                                          p->share_reduce, p->share_checkpoint };
        t->step_time = time;
    }
    s->tasks = make(a, sizeof(*s->tasks));
    s->tasks[s->n_tasks++] = t;
    status_complete(r, s, &(struct group_view){ .generation = 0 }, a);
}
