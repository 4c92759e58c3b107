/* start.c - see start.h. */
#include "train/start.h"

#include <stdatomic.h>

#include "base/check.h"
#include "base/err.h"
#include "base/fault.h"
#include "base/thread.h"
#include "comm/comm.h"
#include "engine/trace.h"
#include "train/copies.h"
#include "train/division.h"
#include "train/health.h"
#include "train/replica.h"
#include "train/sample_log.h"
#include "train/task.h"

/* ---- the end ---- */

void start_join(struct train *t)
{
    for (uint32_t i = 0; t->replicas != NULL && i < t->opts->n_devices; i++)
        if (t->replicas[i].started) {
            pthread_join(t->replicas[i].thread, NULL);
            t->replicas[i].started = false;
        }
}

/* Called in the last thread. */
static void end_generation(struct train *t)
{
    struct generation *g = &t->generation;
    uint64_t held;
    bool failed, is_aborted;
    enum train_end end;
    struct err err;

    if (t->is_tracing)
        trace_end(t->trace,
                  state_held(&t->state) == t->model.total_steps ? g->opts.deadline_ms : 0);
    generation_disconnect(g);
    pthread_mutex_lock(&g->lock);
    failed = g->result < 0;
    is_aborted = g->is_aborted;
    err = g->error;
    pthread_mutex_unlock(&g->lock);
    if (failed)
        copies_return(t);
    (void)fault_hit("train.ended");
    held = state_held(&t->state);
    if (!failed) {
        g->on_end(t->opts->arg, held == t->model.total_steps ? TRAIN_COMPLETE : TRAIN_PAUSED, held,
                  0, "");
        return;
    }
    end = is_aborted ? TRAIN_ABORTED : g->is_unsaved ? TRAIN_UNSAVED : health_end(t);
    g->on_end(t->opts->arg, end, held, err.code, err.text);
}

static void *thread_main(void *arg)
{
    struct replica *r = arg;
    struct train *t = r->train;
    struct err err;

    place_own(&r->device->place);
    if (replica_run(r, &err) < 0)
        generation_fail(&t->generation, &err); /* ends the calls of helper threads too */
    if (ops_of(r)->end(r->device, &err) < 0)
        generation_fail_device(&t->generation, &err);
    r->device->trace = NULL;
    place_enter(&r->device->place, PHASE_REST);
    if (atomic_fetch_sub_explicit(&t->generation.running, 1, memory_order_acq_rel) == 1)
        end_generation(t);
    return NULL;
}

/* ---- the beginning ---- */

/* The leader sent the view, so an invalid view is an error of a peer (ERR_PEER): this task joins again. */
static int check_view(const struct train *t, const struct group_view *v, struct err *err)
{
    const struct train_opts *o = t->opts;
    uint32_t world = group_view_n_ranks(v);
    uint32_t least = o->min_replicas > 0 ? o->min_replicas : o->replicas;

    CHECK(v->self < v->n_members && v->coordinator < v->n_members &&
          (v->newest_step == 0 || v->newest_member < v->n_members));
    if (v->members[v->self].n_devices != o->n_devices)
        return err_set(err, ERR_PEER, "the group counts on %u replicas of %s, which has %u",
                       v->members[v->self].n_devices, v->members[v->self].name, o->n_devices);
    if (world > o->replicas)
        return err_set(err, ERR_PEER, "the group has %u replicas, this job was planned for %u",
                       world, o->replicas);
    if (world < least)
        return err_set(err, ERR_PEER, "the group has %u replicas, this job was planned for %u%s",
                       world, least, least < o->replicas ? " or more" : "");
    if (v->newest_step < state_held(&t->state))
        return err_set(
            err, ERR_PEER,
            "the group continues from step %llu, but %s holds the state after step %llu, "
            "which must not be discarded",
            (unsigned long long)v->newest_step, v->members[v->self].name,
            (unsigned long long)state_held(&t->state));
    return division_check(o, v, world, err);
}

static void describe_group(struct train *t)
{
    struct generation *g = &t->generation;

    t->engine->group = (struct engine_group){ .view = &g->opts.view,
                                              .deadline_ms = g->opts.deadline_ms,
                                              .commit_gate = &g->commit_gate,
                                              .compares = t->health.compares,
                                              .shares = g->shares,
                                              .lanes = t->opts->lanes };
}

/* All threads are started, or none: the threads that have started end, and on_end is not
 * called. */
static int start_threads(struct train *t, struct err *err)
{
    for (uint32_t i = 0; i < t->opts->n_devices; i++) {
        struct replica *r = &t->replicas[i];
        int rc = fault_error("train.thread", err);

        if (rc == 0) {
            place_start(&r->device->place, state_held(&t->state), PLACE_WORKS);
            place_start(&r->device->helper_place, state_held(&t->state), PLACE_WAITS_LOCAL);
            rc = thread_start(&r->thread, "trains a replica", thread_main, r, err);
            r->started = rc == 0;
        }
        if (rc == 0)
            continue;
        generation_fail(&t->generation, err);
        start_join(t);
        generation_disconnect(&t->generation);
        atomic_store_explicit(&t->generation.running, 0, memory_order_release);
        return rc;
    }
    return 0;
}

int start_generation(struct train *t, const struct train_generation *opts, train_end_fn *on_end,
                     struct err *err)
{
    const struct train_opts *o = t->opts;
    int rc = check_view(t, &opts->view, err);

    if (rc < 0)
        return rc;
    start_join(t); /* of the previous generation */
    rc = generation_begin(&t->generation, opts, o, err);
    if (rc < 0)
        return rc;
    t->generation.on_end = on_end;
    for (uint32_t i = 0; i < o->n_devices; i++) {
        division_place(&t->generation.opts.view, t->generation.shares,
                       generation_first_rank(&t->generation, opts->view.self) + i,
                       t->replicas[i].device);
        division_place_spare(&t->generation.opts.view, t->generation.shares,
                             group_view_n_ranks(&opts->view), t->replicas[i].device);
    }
    sample_log_group(t->samples, opts->view.generation, opts->key, sizeof(opts->key));
    health_begin(t);
    describe_group(t);
    t->is_tracing = false;
    atomic_store_explicit(&t->generation.running, o->n_devices, memory_order_release);
    return start_threads(t, err);
}
