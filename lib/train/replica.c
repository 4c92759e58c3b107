/* replica.c - the thread of a replica, for one generation:
 *
 *     connect -> agree on model, data and state -> steps -> save, export -> end
 *
 * Every replica of every task takes the same decisions at the same step, from the step number and
 * from what was reduced with the gradients. */
#include "train/train_priv.h"

#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "op/op.h"

enum { TRACE_WARM_STEPS = 3 };

static int gate(struct replica *r, struct err *err)
{
    if (!gate_wait(&r->train->gate))
        return err_set(err, ERR_CANCELED, "the generation ended");
    return 0;
}

/* One thread connects for the whole process. */
static int connect_peers(struct replica *r, struct err *err)
{
    struct train *t = r->train;
    const struct train_group *g = &t->group;
    struct comm_opts o = {
        .generation = g->generation,
        .members = t->members,
        .n_members = g->n_members,
        .self = g->self,
        .listener = g->listener,
        .arena = &t->mem.region,
        .shared_memory = g->shared_memory,
        .deadline_ms = g->deadline_ms,
        .on_broken = g->on_broken,
        .arg = t->opts->arg,
    };
    struct comm *comm;
    struct train_event e = { .kind = TRAIN_NOTE };
    int rc;

    if (g->n_members == 1 && t->opts->n_devices == 1)
        return 0; /* nobody to reduce with */
    train_phase(t, "connect", t->held_step);
    memcpy(o.key, g->key, sizeof(o.key));
    rc = comm_open(&o, &t->cancel, &comm, err);
    if (rc < 0)
        return err_wrap(err, rc, "connect generation %llu", (unsigned long long)g->generation);
    pthread_mutex_lock(&t->lock);
    t->comm = comm;
    pthread_mutex_unlock(&t->lock);
    e.text = comm_describe(comm);
    train_tell(t, &e);
    return 0;
}

static int same(const char *what, const char *here, const char *there, struct err *err)
{
    if (strcmp(here, there) == 0)
        return 0;
    return err_set(err, ERR_INPUT, "the %s of this task (digest %.16s) differs from the chief's (%.16s): "
                                   "give every task the same file", what, here, there);
}

/* What the chief holds goes to everybody: step, then weights and optimizer state. */
static int agree(struct replica *r, uint64_t *step, struct err *err)
{
    struct train *t = r->train;
    struct agreement *a = t->mem.agreement;
    int rc;

    if (r->local == 0) {
        memset(a, 0, sizeof(*a));
        a->step = t->held_step;
        a->plateau = t->schedule.plateau;
        snprintf(a->model_digest, sizeof(a->model_digest), "%s", graph_digest(t->graph));
        snprintf(a->data_digest, sizeof(a->data_digest), "%s", data_digest(t->data));
        a->overlap = reduce_decide(t);
    }
    rc = gate(r, err);
    if (rc == 0 && t->comm != NULL)
        rc = comm_broadcast(t->comm, r->local, a, sizeof(*a), 0, err);
    if (rc == 0)
        rc = gate(r, err);
    if (rc < 0)
        return rc;
    rc = same("model", graph_digest(t->graph), a->model_digest, err);
    if (rc == 0)
        rc = same("training data", data_digest(t->data), a->data_digest, err);
    if (rc == 0 && t->comm != NULL)
        rc = comm_broadcast(t->comm, r->local, t->mem.state, t->mem.state_bytes, 0, err);
    if (r->local == 0)
        t->schedule.plateau = a->plateau;
    *step = a->step;
    return rc;
}

static int open_reader(struct replica *r, uint64_t from, struct err *err)
{
    struct train *t = r->train;
    const struct train_opts *o = t->opts;
    size_t sample_bytes = 0;
    bool any_image = false;
    struct data_reader_opts ro = {
        .seed = o->seed,
        .shuffle = o->shuffle,
        .pad = o->pad,
        .global_batch = o->global_batch,
        .lanes = o->lanes,
        .first_lane = r->first_lane,
        .n_lanes = t->lanes_per_replica,
        .first_step = from,
        .last_step = t->total_steps,
        .threads = o->data_threads,
        .prefetch = (o->prefetch > 0 ? o->prefetch : 1) * t->lanes_per_replica,
        .deadline_ms = o->data_deadline_ms,
    };

    for (uint32_t i = 0; i < o->n_features; i++) {
        sample_bytes += (size_t)shape_elements(&o->features[i].shape) * sizeof(float);
        any_image = any_image || o->features[i].encoded || o->features[i].n_steps > 0;
    }
    if (ro.threads == 0 && !(o->cache_memory && !any_image && sample_bytes * t->lane_batch <= 1 << 20))
        ro.threads = 1; /* decoding from memory is cheaper than waking a thread for it */
    else if (ro.threads > 0)
        ro.threads = (ro.threads + o->n_devices - 1) / o->n_devices;
    return data_reader_open(t->data, &ro, &r->reader, err);
}

static bool eval_due(const struct train *t, uint64_t step)
{
    if (t->eval_data == NULL)
        return false;
    if (step == t->total_steps)
        return true;
    return t->opts->eval_every_epochs > 0 &&
           step % (t->steps_per_epoch * t->opts->eval_every_epochs) == 0;
}

static int steps(struct replica *r, uint64_t held, struct err *err)
{
    struct train *t = r->train;
    struct step_result result = { .stop = false };
    uint64_t last = held;
    int rc = 0;

    if (held == t->total_steps)
        return 0;
    /* A checkpoint is older than the evaluation of its step; a plateau schedule must have heard it. */
    if (held > 0 && t->schedule.type == OPTIM_PLATEAU && eval_due(t, held) &&
        t->mem.agreement->plateau.step < held)
        rc = eval_run(r, held, err);
    if (rc == 0)
        rc = health_weigh(r, held, err);
    if (rc == 0)
        rc = open_reader(r, held + 1, err);
    for (uint64_t k = held + 1; rc == 0 && k <= t->total_steps && !result.stop; k++) {
        rc = step_run(r, k, &result, err);
        if (rc < 0)
            return rc;
        if (r->local == 0) {
            t->end_step = k;
            t->last = result;
        }
        if (!result.stop && eval_due(t, k))
            rc = eval_run(r, k, err);
        last = k;
    }
    if (rc == 0)
        rc = health_last(r, last, err);
    return rc;
}

/* Not the first steps, which touch memory for the first time, unless there are no others. */
static int start_trace(struct train *t, uint64_t held, struct err *err)
{
    uint64_t left = t->total_steps - held, first = held + 1;

    struct train_event e = { .kind = TRAIN_WARN, .text = "trace: no step is left that could be traced" };

    if (t->trace == NULL)
        return 0;
    if (left == 0) {
        train_tell(t, &e);
        return 0;
    }
    if (left > t->opts->trace_steps)
        first += left - t->opts->trace_steps < TRACE_WARM_STEPS ? left - t->opts->trace_steps
                                                                : TRACE_WARM_STEPS;
    return trace_start(t->trace, first, t->group.self + 1, t->members[t->group.self].name, err);
}

static int generation(struct replica *r, struct err *err)
{
    struct train *t = r->train;
    uint64_t held = 0;
    int rc = device_enter(&t->opts->devices[r->local], err);

    op_thread_init();
    if (rc == 0 && r->local == 0)
        rc = connect_peers(r, err);
    if (rc == 0)
        rc = gate(r, err);
    if (rc == 0)
        rc = agree(r, &held, err);
    if (rc == 0)
        rc = reduce_open(r, err);
    if (rc < 0)
        return rc;
    plan_bind(r->plan, t->mem.state, r->work.base);
    if (r->eval_plan != NULL)
        plan_bind(r->eval_plan, t->opts->evaluate_average ? t->mem.average : t->mem.state,
                  r->eval_work.base);
    if (r->local == 0) {
        struct train_event e = { .kind = TRAIN_RESUMED, .step = held, .text = t->resumed_path };

        t->end_step = t->held_step = held;
        t->last_report_ns = t->last_save_ns = clock_ns();
        train_tell(t, &e);
        train_phase(t, "train", held);
        rc = start_trace(t, held, err);
    }
    if (rc == 0)
        rc = gate(r, err); /* nobody steps before everyone has the state */
    if (rc == 0)
        rc = steps(r, held, err);
    if (rc == 0 && r->local == 0 && t->opts->is_chief) {
        rc = save_now(t, t->end_step, err);
        if (rc == 0 && t->end_step == t->total_steps)
            rc = save_export(t, err);
    }
    return rc;
}

static void tell_stopped(struct train *t)
{
    char text[512];

    if (t->last.askers == 1 && t->last.asker < t->group.n_members)
        snprintf(text, sizeof(text), "%s was asked to %s", t->members[t->last.asker].name,
                 t->last.stop_everywhere ? "end the job" : "leave");
    else
        snprintf(text, sizeof(text), "%u tasks were asked to leave", t->last.askers);
    t->on_end(t->opts->arg, TRAIN_STOPPED, t->end_step, t->last.stop_everywhere, 0, text);
}

void *replica_main(void *arg)
{
    struct replica *r = arg;
    struct train *t = r->train;
    struct err err;

    if (generation(r, &err) < 0)
        train_fail(t, &err); /* also lets the reducer out of its call */
    reduce_close(r);
    data_reader_close(r->reader);
    r->reader = NULL;
    if (__atomic_sub_fetch(&t->running, 1, __ATOMIC_ACQ_REL) > 0)
        return NULL;
    /* the last one out */
    trace_end(t->trace, t->group.deadline_ms);
    if (t->health.rolls_back)
        t->on_end(t->opts->arg, TRAIN_ROLL_BACK, t->held_step, false, t->error.code, t->error.text);
    else if (t->health.differs && t->health.peer != UINT32_MAX)
        t->on_end(t->opts->arg, TRAIN_DIVERGED, t->held_step, false, t->error.code, t->error.text);
    else if (t->result < 0)
        t->on_end(t->opts->arg, TRAIN_FAILED, t->end_step, false, t->error.code, t->error.text);
    else if (t->end_step == t->total_steps)
        t->on_end(t->opts->arg, TRAIN_COMPLETE, t->end_step, false, 0, "");
    else
        tell_stopped(t);
    return NULL;
}
