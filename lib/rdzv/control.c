/* control.c - the service Control: status, checkpoint, reload, drain, stop. */
#include "rdzv/rdzv_priv.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/location.h"

struct waiting { /* a call that is not answered yet */
    struct rdzv_in *call;
    uint64_t reload; /* of a Reload: number of the reload that answers it */
    struct waiting *next;
};

struct rdzv_control {
    struct waiting *checkpoints, *reloads;
};

/* ---- Status ---- */

/* Allocates memory of an answer. */
static void *make(struct arena *a, size_t n, size_t bytes)
{
    void *memory = arena_array(a, n, bytes);

    CHECK(memory != NULL);
    return memory;
}

static Trainerd__V1__Task *make_task(struct rdzv *r, uint32_t rank, struct arena *a)
{
    Trainerd__V1__Task *t = make(a, 1, sizeof(*t));

    wire_fill_task(&r->cluster, rank, t);
    return t;
}

/* `text` NULL: "". */
static char *make_text(const char *text, size_t max, struct arena *a)
{
    size_t length = text != NULL ? strlen(text) : 0, n = length + 1 < max ? length + 1 : max;
    char *out = make(a, 1, n);

    wire_text(out, n, text, length);
    return out;
}

bool rdzv_step_time(const struct rdzv_progress *p, Trainerd__V1__StepTime *out)
{
    if (!(p->step_seconds > 0))
        return false;
    out->seconds = p->step_seconds;
    out->data = p->share_data;
    out->compute = p->share_compute;
    out->reduce = p->share_reduce;
    out->checkpoint = p->share_checkpoint;
    return true;
}

/* What the task itself reported: this task, or a member with a link to this task. */
static void fill_figures(const struct rdzv *r, uint32_t rank, Trainerd__V1__TaskStatus *out,
                         struct arena *a)
{
    const struct rdzv_progress *p = r->opts.progress;
    const struct rdzv_figures *f = rank == r->opts.self ? NULL : rdzv_links_figures(r->links, rank);
    Trainerd__V1__StepTime *t = make(a, 1, sizeof(*t));
    bool is_known = false;

    trainerd__v1__step_time__init(t);
    if (rank == r->opts.self) {
        out->samples_per_second = p->samples_per_second;
        out->last_trouble = make_text(p->last_trouble, WIRE_TROUBLE_BYTES, a);
        out->n_devices = r->opts.n_devices;
        out->n_servers = r->opts.n_servers;
        out->location = make_text(r->opts.location, LOCATION_BYTES, a);
        is_known = rdzv_step_time(p, t);
    } else if (f != NULL) {
        out->samples_per_second = f->samples_per_second;
        out->last_trouble = make_text(f->trouble, WIRE_TROUBLE_BYTES, a);
        out->n_devices = rdzv_joined_get(r->joined, rank)->n_devices;
        out->n_servers = rdzv_joined_get(r->joined, rank)->n_servers;
        out->location = make_text(rdzv_joined_get(r->joined, rank)->location, LOCATION_BYTES, a);
        is_known = f->step_time.seconds > 0;
        t->seconds = f->step_time.seconds;
        t->data = f->step_time.data;
        t->compute = f->step_time.compute;
        t->reduce = f->step_time.reduce;
        t->checkpoint = f->step_time.checkpoint;
    }
    if (is_known)
        out->step_time = t;
}

static Trainerd__V1__TaskStatus *fill_one(struct rdzv *r, uint32_t rank, uint64_t now_ms,
                                          struct arena *a)
{
    Trainerd__V1__TaskStatus *out = make(a, 1, sizeof(*out));
    const struct member_node *node = rdzv_node(r);
    struct member_peer p;

    member_node_peer(node, rank, &p);
    trainerd__v1__task_status__init(out);
    out->task = make_task(r, rank, a);
    out->state = p.is_in_view                                ? "active"
                 : p.is_present                              ? "joined"
                 : member_node_state(node) == MEMBER_LEADING ? "missing"
                                                             : "unknown";
    out->present = p.is_present;
    out->step = p.progress.held;
    out->step_held = p.held;
    out->phase = (char *)p.progress.phase;
    out->phase_ms = p.progress.phase_ms;
    out->limit_ms = p.progress.limit_ms;
    out->incarnation = p.incarnation;
    if (p.heard_ms > 0 && p.heard_ms < now_ms)
        out->heard_ms = now_ms - p.heard_ms;
    if (member_node_state(node) == MEMBER_LEADING && p.quarantine_until_ms > now_ms)
        out->quarantine_ms = p.quarantine_until_ms - now_ms;
    fill_figures(r, rank, out, a);
    out->last_error = make_text(p.last_error, 1024, a);
    return out;
}

/* Fills in the state of the group, as the node knows it. */
static void fill_group(struct rdzv *r, Trainerd__V1__StatusReply *s, struct arena *a)
{
    const struct member_node *node = rdzv_node(r);
    const struct group_view *v = member_node_view(node);
    uint32_t leader = member_node_leader(node), world = r->cluster.world;
    uint64_t now_ms = clock_ms();

    s->state = (char *)member_node_state_name(member_node_state(node));
    s->generation = v->generation;
    s->cause = make_text(member_node_cause(node), 1024, a);
    if (leader != MEMBER_NO_RANK)
        s->leader = make_task(r, leader, a);
    s->n_view = v->generation > 0 ? v->n_members : 0;
    s->view = make(a, world, sizeof(*s->view));
    for (uint32_t i = 0; i < s->n_view; i++)
        s->view[i] = make_task(r, v->members[i].rank, a);
    s->n_tasks = world;
    s->tasks = make(a, world, sizeof(*s->tasks));
    for (uint32_t i = 0; i < world; i++)
        s->tasks[i] = fill_one(r, i, now_ms, a);
}

static void fill_gpus(const struct rdzv_progress *p, Trainerd__V1__StatusReply *s, struct arena *a)
{
    s->n_gpus = p->n_gpus;
    s->gpus = make(a, p->n_gpus > 0 ? p->n_gpus : 1, sizeof(*s->gpus));
    for (uint32_t i = 0; i < p->n_gpus; i++) {
        const struct rdzv_gpu *g = &p->gpus[i];
        Trainerd__V1__Gpu *out = make(a, 1, sizeof(*out));

        trainerd__v1__gpu__init(out);
        out->index = g->index;
        out->name = make_text(g->name, sizeof(g->name), a);
        out->uuid = make_text(g->uuid, sizeof(g->uuid), a);
        out->idle = g->idle;
        out->utilization = g->utilisation;
        out->memory_used = g->memory_used;
        out->memory_total = g->memory_total;
        out->temperature = g->celsius;
        out->power = g->watts;
        out->ecc_errors = g->ecc_errors;
        out->clock_mhz = g->clock_mhz;
        out->throttled = make_text(g->throttled, sizeof(g->throttled), a);
        s->gpus[i] = out;
    }
}

/* Returns NULL if the job has no spare lanes. */
static Trainerd__V1__SpareStatus *make_spare(const struct rdzv_spare *p, struct arena *a)
{
    Trainerd__V1__SpareStatus *s;

    if (p->mode == NULL)
        return NULL;
    s = make(a, 1, sizeof(*s));
    trainerd__v1__spare_status__init(s);
    s->mode = (char *)p->mode;
    s->offered = p->offered;
    s->used = p->used;
    s->compared = p->compared;
    s->given = p->given;
    s->wrong = p->wrong;
    return s;
}

void rdzv_describe_progress(const struct rdzv_progress *p, Trainerd__V1__StatusReply *s,
                            struct arena *a)
{
    s->phase = (char *)p->phase;
    s->phase_ms = clock_ms() - p->phase_since_ms;
    s->step = p->step;
    s->total_steps = p->total_steps;
    s->epoch = p->epoch;
    s->loss = p->loss;
    s->samples_per_second = p->samples_per_second;
    s->step_seconds = p->step_seconds;
    s->share_data = p->share_data;
    s->share_compute = p->share_compute;
    s->share_reduce = p->share_reduce;
    s->skipped_records = p->skipped_records;
    s->loss_scale = p->loss_scale;
    s->train_phase = p->train_phase;
    s->groups = p->groups;
    s->outer_step = p->outer_step;
    s->compression_sent_bytes = p->coded_bytes;
    s->compression_saved_bytes = p->coded_saved_bytes;
    s->spare = make_spare(&p->spare, a);
    s->checkpoint_step = p->checkpoint_step;
    s->checkpoint_path = make_text(p->checkpoint_path, sizeof(p->checkpoint_path), a);
    s->last_trouble = make_text(p->last_trouble, sizeof(p->last_trouble), a);
    s->lease_token = p->lease_token;
    s->lease = make_text(p->lease, sizeof(p->lease), a);
    s->share_checkpoint = p->share_checkpoint;
    s->time_us = clock_wall_us();
    s->page = (char *)(p->page != NULL ? p->page : "");
    s->n_advice = p->n_advice;
    s->advice = wire_write_advice(a, p->advice, p->n_advice);
    fill_gpus(p, s, a);
}

void rdzv_describe(struct rdzv *r, Trainerd__V1__StatusReply *s, struct arena *a)
{
    s->self = make_task(r, r->opts.self, a);
    s->version = (char *)r->opts.version;
    s->job = (char *)r->opts.job_name;
    s->uptime_ms = clock_ms() - r->started_ms;
    s->devices = (char *)r->opts.ident.devices;
    rdzv_describe_progress(r->opts.progress, s, a);
    fill_group(r, s, a);
    if (r->opts.on_status != NULL)
        r->opts.on_status(r->opts.arg, s, a);
}

void rdzv_status(struct rdzv *r, struct rdzv_in *call, void *request)
{
    Trainerd__V1__StatusReply s = TRAINERD__V1__STATUS_REPLY__INIT;
    struct arena a = { 0 };

    (void)request;
    rdzv_describe(r, &s, &a);
    rdzv_in_reply(call, &s.base);
    arena_fini(&a);
}

/* ---- calls that wait ---- */

static void on_closed(void *arg, struct rdzv_in *call, const char *why)
{
    struct waiting **list = arg;

    (void)why;
    for (struct waiting **at = list; *at != NULL; at = &(*at)->next) {
        struct waiting *w = *at;

        if (w->call != call)
            continue;
        *at = w->next;
        free(w);
        return;
    }
}

static void add_waiting(struct waiting **list, struct rdzv_in *call, uint64_t reload)
{
    struct waiting *w = calloc(1, sizeof(*w));

    CHECK(w != NULL);
    *w = (struct waiting){ .call = call, .reload = reload, .next = *list };
    *list = w;
    rdzv_in_on_closed(call, on_closed, list);
}

/* Answers the calls that wait for reload `last` or an earlier one. `error` NULL: with `reply`. */
static void answer_waiting(struct waiting **list, uint64_t last, const ProtobufCMessage *reply,
                           const char *error)
{
    for (struct waiting **at = list; *at != NULL;) {
        struct waiting *w = *at;

        if (w->reload > last) {
            at = &w->next;
            continue;
        }
        *at = w->next;
        if (error != NULL)
            rdzv_in_finish(w->call, GRPC_STATUS_FAILED_PRECONDITION, "%s", error);
        else
            rdzv_in_reply(w->call, reply);
        free(w);
    }
}

/* ---- Checkpoint ---- */

void rdzv_checkpoint(struct rdzv *r, struct rdzv_in *call, void *request)
{
    bool is_first = r->control->checkpoints == NULL;

    (void)request;
    add_waiting(&r->control->checkpoints, call, 0);
    if (is_first) /* one checkpoint answers all open calls */
        r->opts.on_checkpoint(r->opts.arg);
}

void rdzv_control_checkpoint_done(struct rdzv_control *c, uint64_t step, const char *path,
                                  const char *error)
{
    Trainerd__V1__CheckpointReply reply = TRAINERD__V1__CHECKPOINT_REPLY__INIT;
    char text[4096];

    wire_text(text, sizeof(text), path, strlen(path));
    reply.step = step;
    reply.path = text;
    answer_waiting(&c->checkpoints, 0, &reply.base, error);
}

/* ---- Reload ---- */

void rdzv_reload(struct rdzv *r, struct rdzv_in *call, void *request)
{
    uint64_t number = r->opts.on_reload(r->opts.arg);

    (void)request;
    if (number == 0)
        rdzv_in_finish(call, GRPC_STATUS_FAILED_PRECONDITION, "no reload can start now: the task ends, or has no "
                                                              "memory for a thread");
    else
        add_waiting(&r->control->reloads, call, number);
}

void rdzv_control_reload_done(struct rdzv_control *c, uint64_t number,
                              const struct rdzv_change *changes, uint32_t n_changes,
                              const char *error)
{
    Trainerd__V1__ReloadReply reply = TRAINERD__V1__RELOAD_REPLY__INIT;
    struct arena a = { 0 };

    if (c->reloads == NULL)
        return;
    reply.n_changes = n_changes;
    reply.changes = make(&a, n_changes > 0 ? n_changes : 1, sizeof(*reply.changes));
    for (uint32_t i = 0; i < n_changes; i++) {
        Trainerd__V1__ReloadChange *out = make(&a, 1, sizeof(*out));

        trainerd__v1__reload_change__init(out);
        out->key = make_text(changes[i].key, 256, &a);
        out->from = make_text(changes[i].from, 4096, &a);
        out->to = make_text(changes[i].to, 4096, &a);
        out->note = make_text(changes[i].note, 256, &a);
        reply.changes[i] = out;
    }
    answer_waiting(&c->reloads, number, &reply.base, error);
    arena_fini(&a);
}

/* ---- Drain and Stop ---- */

/* A repeated call has no further effect; a call after the end is rejected. */
static void stop(struct rdzv *r, struct rdzv_in *call, const ProtobufCMessage *reply,
                 bool everywhere)
{
    if (rdzv_group_has_ended(r->group)) {
        rdzv_in_finish(call, GRPC_STATUS_FAILED_PRECONDITION, "this task is leaving already");
        return;
    }
    rdzv_in_reply(call, reply);
    rdzv_log(r,
             everywhere ? "Stop was called on this task: the job saves and ends on every task"
                        : "Drain was called on this task: this task saves and leaves",
             false);
    rdzv_report(r, &(struct member_event){ .kind = MEMBER_EV_STOP, .everywhere = everywhere });
}

void rdzv_drain(struct rdzv *r, struct rdzv_in *call, void *request)
{
    Trainerd__V1__DrainReply reply = TRAINERD__V1__DRAIN_REPLY__INIT;

    (void)request;
    stop(r, call, &reply.base, false);
}

void rdzv_stop_all(struct rdzv *r, struct rdzv_in *call, void *request)
{
    Trainerd__V1__StopReply reply = TRAINERD__V1__STOP_REPLY__INIT;

    (void)request;
    stop(r, call, &reply.base, true);
}

/* ---- open and close ---- */

struct rdzv_control *rdzv_control_new(void)
{
    struct rdzv_control *c = calloc(1, sizeof(*c));

    CHECK(c != NULL);
    return c;
}

void rdzv_control_free(struct rdzv_control *c)
{
    free(c);
}
