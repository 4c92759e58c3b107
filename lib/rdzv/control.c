/* control.c - what every task answers to people and programs. */
#include "rdzv/rdzv_priv.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"

struct waiting { /* a Checkpoint that is not answered yet */
    struct rdzv_in *call;
    struct waiting *next;
};

struct rdzv_control {
    struct waiting *waiting;
};

/* ---- Status ---- */

static void fill_tasks(struct rdzv *r, Trainerd__V1__StatusReply *s, struct arena *a)
{
    static const char *const states[] = { [MEMBER_TASK_MISSING] = "missing",
                                          [MEMBER_TASK_JOINED] = "joined",
                                          [MEMBER_TASK_ACTIVE] = "active",
                                          [MEMBER_TASK_LEFT] = "left" };
    struct member_coord *coord = rdzv_service_coord(r->service);
    uint32_t world = r->cluster.world;
    Trainerd__V1__TaskStatus *tasks = arena_array(a, world, sizeof(*tasks));
    Trainerd__V1__Task *names = arena_array(a, world, sizeof(*names));
    uint64_t now_ms = clock_ms();

    s->tasks = arena_array(a, world, sizeof(*s->tasks));
    CHECK(tasks != NULL && names != NULL && s->tasks != NULL);
    s->n_tasks = world;
    for (uint32_t i = 0; i < world; i++) {
        const struct member_task *t = member_coord_task(coord, i);
        Trainerd__V1__TaskStatus *out = s->tasks[i] = &tasks[i];

        trainerd__v1__task_status__init(out);
        out->task = &names[i];
        rdzv_fill_task(r, i, out->task);
        out->state = (char *)states[t->state];
        out->step = t->step;
        out->phase = (char *)t->phase;
        out->phase_ms = t->phase[0] != '\0' ? now_ms - t->phase_since_ms : 0;
        out->heard_ms = now_ms - t->heard_ms;
        out->samples_per_second = rdzv_service_speed(r->service, i);
        out->last_error = (char *)t->last_error;
    }
}

void rdzv_status(struct rdzv *r, struct rdzv_in *call, void *request)
{
    const struct rdzv_progress *p = r->opts.progress;
    Trainerd__V1__StatusReply s = TRAINERD__V1__STATUS_REPLY__INIT;
    char path[sizeof(p->checkpoint_path)], trouble[sizeof(p->last_trouble)];
    Trainerd__V1__Task self;
    struct arena a = { 0 };

    (void)request;
    rdzv_fill_task(r, r->opts.self, &self);
    s.self = &self;
    s.version = (char *)r->opts.version;
    s.job = (char *)r->opts.job_name;
    s.state = (char *)member_state_name(rdzv_client_state(r->client));
    s.phase = (char *)p->phase;
    s.phase_ms = clock_ms() - p->phase_since_ms;
    s.generation = rdzv_client_generation(r->client);
    s.step = p->step;
    s.total_steps = p->total_steps;
    s.epoch = p->epoch;
    s.loss = p->loss;
    s.samples_per_second = p->samples_per_second;
    s.step_seconds = p->step_seconds;
    s.share_data = p->share_data;
    s.share_compute = p->share_compute;
    s.share_reduce = p->share_reduce;
    s.skipped_records = p->skipped_records;
    s.checkpoint_step = p->checkpoint_step;
    wire_text(path, sizeof(path), p->checkpoint_path, strlen(p->checkpoint_path));
    wire_text(trouble, sizeof(trouble), p->last_trouble, strlen(p->last_trouble));
    s.checkpoint_path = path;
    s.last_trouble = trouble;
    s.uptime_ms = clock_ms() - r->started_ms;
    if (r->service != NULL)
        fill_tasks(r, &s, &a);
    rdzv_in_reply(call, &s.base);
    arena_fini(&a);
}

/* ---- Checkpoint ---- */

static void on_closed(void *arg, struct rdzv_in *call)
{
    struct rdzv_control *c = arg;

    for (struct waiting **at = &c->waiting; *at != NULL; at = &(*at)->next) {
        struct waiting *w = *at;

        if (w->call != call)
            continue;
        *at = w->next;
        free(w);
        return;
    }
}

void rdzv_checkpoint(struct rdzv *r, struct rdzv_in *call, void *request)
{
    struct rdzv_control *c = r->control;
    struct waiting *w = calloc(1, sizeof(*w));
    bool is_first = c->waiting == NULL;

    (void)request;
    CHECK(w != NULL);
    *w = (struct waiting){ .call = call, .next = c->waiting };
    c->waiting = w;
    rdzv_in_on_closed(call, on_closed, c);
    if (is_first) /* one answer serves all that wait for it */
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
    while (c->waiting != NULL) {
        struct waiting *w = c->waiting;

        c->waiting = w->next;
        if (error != NULL)
            rdzv_in_finish(w->call, GRPC_STATUS_FAILED_PRECONDITION, "%s", error);
        else
            rdzv_in_reply(w->call, &reply.base);
        free(w);
    }
}

/* ---- Drain and Stop ---- */

/* false: it is on its way out already, and the caller was told. */
static bool can_stop(struct rdzv *r, struct rdzv_in *call)
{
    enum member_state state = rdzv_client_state(r->client);

    if (state != MEMBER_LEAVING && state != MEMBER_GONE)
        return true;
    rdzv_in_finish(call, GRPC_STATUS_FAILED_PRECONDITION, "this task is leaving already");
    return false;
}

void rdzv_drain(struct rdzv *r, struct rdzv_in *call, void *request)
{
    Trainerd__V1__DrainReply reply = TRAINERD__V1__DRAIN_REPLY__INIT;

    (void)request;
    if (!can_stop(r, call))
        return;
    rdzv_in_reply(call, &reply.base);
    rdzv_stop(r, false);
}

void rdzv_stop_all(struct rdzv *r, struct rdzv_in *call, void *request)
{
    Trainerd__V1__StopReply reply = TRAINERD__V1__STOP_REPLY__INIT;
    enum member_state state = rdzv_client_state(r->client);
    bool is_training = state == MEMBER_ACTIVE || state == MEMBER_DRAINING;
    char coordinator[400];

    (void)request;
    if (!can_stop(r, call))
        return;
    if (!is_training && r->service == NULL) { /* nobody to pass it on to */
        rdzv_in_finish(call, GRPC_STATUS_FAILED_PRECONDITION,
                       "the group is not complete yet: send Stop to its coordinator, %s, or Drain "
                       "to this task",
                       rdzv_full_name(r, r->opts.coordinator, coordinator));
        return;
    }
    rdzv_in_reply(call, &reply.base);
    if (!is_training)
        rdzv_service_ask_stop(r->service);
    rdzv_stop(r, true); /* in training, the data plane takes it to all */
}

/* ---- life ---- */

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
