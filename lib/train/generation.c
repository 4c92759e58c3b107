/* generation.c - see generation.h. */
#include "train/generation.h"

#include <stdatomic.h>
#include <stdlib.h>

#include "base/check.h"
#include "base/lane_tree.h"
#include "comm/comm.h"
#include "device/device.h"
#include "engine/engine.h"

enum { QUIET_MS = 20 }; /* how long live peers may take to release this task's memory */

int generation_init(struct generation *g, uint32_t max_replicas, struct err *err)
{
    pthread_mutex_init(&g->lock, NULL);
    g->shares = calloc(max_replicas, sizeof(*g->shares));
    g->leaves = calloc(max_replicas, sizeof(*g->leaves));
    return g->shares != NULL && g->leaves != NULL
               ? 0
               : err_set(err, ERR_NOMEM, "generation: out of memory");
}

/* ---- the group ---- */

void generation_fini(struct generation *g)
{
    arena_fini(&g->memory);
    free(g->shares);
    free(g->leaves);
    g->shares = g->leaves = NULL;
    pthread_mutex_destroy(&g->lock);
}

static int copy_opts(struct generation *g, const struct train_generation *opts, struct err *err)
{
    arena_fini(&g->memory); /* of the previous generation */
    g->opts = *opts;
    if (group_view_copy(&opts->view, &g->memory, &g->opts.view))
        return 0;
    g->opts.view = (struct group_view){ .generation = 0 };
    return err_set(err, ERR_NOMEM, "generation: out of memory");
}

uint32_t generation_first_rank(const struct generation *g, uint32_t member)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < member; i++)
        n += g->opts.view.members[i].n_devices;
    return n;
}

bool generation_is_coordinator(const struct generation *g)
{
    return g->opts.view.self == g->opts.view.coordinator;
}

int generation_begin(struct generation *g, const struct train_generation *opts,
                     const struct train_opts *o, struct err *err)
{
    bool spin = o->n_devices <= device_cores();
    int rc;

    CHECK(g->comm == NULL && atomic_load_explicit(&g->running, memory_order_acquire) == 0);
    rc = copy_opts(g, opts, err);
    if (rc < 0)
        return rc;
    comm_share_view(&o->lane_tree, o->lanes, &g->opts.view, g->shares);
    lane_tree_leaves(&o->lane_tree, g->shares, group_view_n_ranks(&g->opts.view), g->leaves);
    atomic_store_explicit(&g->may_save, opts->may_save, memory_order_release);
    atomic_store_explicit(&g->deadline_ms, opts->deadline_ms, memory_order_relaxed);
    atomic_fetch_and_explicit(&g->requests, ~(unsigned)TRAIN_REQUEST_PAUSE, memory_order_relaxed);
    g->result = 0;
    g->is_aborted = g->is_unsaved = false;
    cancel_set(&g->cancel, false);
    gate_init(&g->gate, o->n_devices, spin);
    gate_init(&g->commit_gate, o->n_devices, spin);
    return 0;
}

/* ---- the communicator ---- */

void generation_set_comm(struct generation *g, struct comm *comm)
{
    pthread_mutex_lock(&g->lock);
    g->comm = comm;
    g->engine->group.comm = comm;
    if (cancel_requested(&g->cancel))
        comm_abort(comm, "the generation ended");
    pthread_mutex_unlock(&g->lock);
}

void generation_disconnect(struct generation *g)
{
    struct comm *comm;

    pthread_mutex_lock(&g->lock);
    comm = g->comm;
    g->comm = NULL;
    g->engine->group.comm = NULL;
    pthread_mutex_unlock(&g->lock);
    /* A peer that was suspended in a call continues to write when it resumes. */
    if (!comm_close_quiet(comm, QUIET_MS))
        g->has_exposed_region = true;
}

/* ---- ending early ---- */

static void remember(struct generation *g, const struct err *err, bool is_aborted)
{
    if (g->result != 0)
        return;
    g->result = err->code;
    g->error = *err;
    g->is_aborted = is_aborted;
}

void generation_set_error(struct generation *g, const struct err *err)
{
    pthread_mutex_lock(&g->lock);
    remember(g, err, false);
    pthread_mutex_unlock(&g->lock);
}

static void end_early(struct generation *g, const struct err *err, bool is_aborted)
{
    pthread_mutex_lock(&g->lock);
    remember(g, err, is_aborted);
    cancel_set(&g->cancel, true);
    if (g->comm != NULL)
        comm_abort(g->comm, err->text);
    g->engine->ops->cancel(g->engine);
    pthread_mutex_unlock(&g->lock);
    gate_break(&g->gate);
}

void generation_fail(struct generation *g, const struct err *err)
{
    end_early(g, err, false);
}

void generation_fail_device(struct generation *g, const struct err *err)
{
    pthread_mutex_lock(&g->lock);
    g->result = err->code;
    g->error = *err;
    g->is_aborted = false;
    pthread_mutex_unlock(&g->lock);
    generation_fail(g, err);
}

void generation_abort(struct generation *g, const char *why)
{
    struct err err;

    (void)err_set(&err, ERR_CANCELED, "%s", why);
    end_early(g, &err, true);
}

int generation_check(const struct generation *g, struct err *err)
{
    return cancel_requested(&g->cancel) ? err_set(err, ERR_CANCELED, "the generation ended") : 0;
}

int generation_gate(struct generation *g, struct place *place, struct err *err)
{
    if (!place_meet(place, &g->gate))
        return err_set(err, ERR_CANCELED, "the generation ended");
    return 0;
}
