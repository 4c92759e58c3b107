/* generation.c - see generation.h. */
#include "train/generation.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "comm/comm.h"
#include "device/device.h"
#include "engine/engine.h"

enum { QUIET_MS = 20 }; /* how long live peers may take to release this task's memory */

int generation_init(struct generation *g, uint32_t max_replicas, struct err *err)
{
    pthread_mutex_init(&g->lock, NULL);
    g->shares = calloc(max_replicas, sizeof(*g->shares));
    return g->shares != NULL ? 0 : err_set(err, ERR_NOMEM, "generation: out of memory");
}

/* ---- the group ---- */

static char *copy(const char *s)
{
    return strdup(s != NULL ? s : "");
}

static void free_members(struct generation *g)
{
    for (uint32_t i = 0; g->members != NULL && i < g->group.n_members; i++) {
        free((char *)g->members[i].name);
        free((char *)g->members[i].host);
        free((char *)g->members[i].address);
    }
    free(g->members);
    g->members = NULL;
}

void generation_fini(struct generation *g)
{
    free_members(g);
    free(g->shares);
    g->shares = NULL;
    pthread_mutex_destroy(&g->lock);
}

static int copy_group(struct generation *g, const struct train_group *group, struct err *err)
{
    free_members(g); /* of the previous generation */
    g->group = *group;
    g->members = calloc(group->n_members, sizeof(*g->members));
    if (g->members == NULL)
        return err_set(err, ERR_NOMEM, "generation: out of memory");
    for (uint32_t i = 0; i < group->n_members; i++) {
        struct comm_member *m = &g->members[i];

        m->n_ranks = group->members[i].n_ranks;
        m->name = copy(group->members[i].name);
        m->host = copy(group->members[i].host);
        m->address = copy(group->members[i].address);
        if (m->name == NULL || m->host == NULL || m->address == NULL) {
            free_members(g);
            return err_set(err, ERR_NOMEM, "generation: out of memory");
        }
    }
    g->group.members = g->members;
    return 0;
}

uint32_t generation_first_rank(const struct generation *g, uint32_t member)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < member; i++)
        n += g->members[i].n_ranks;
    return n;
}

bool generation_leads(const struct generation *g)
{
    return g->group.self == g->group.coordinator;
}

int generation_begin(struct generation *g, const struct train_group *group, uint32_t lanes,
                     uint32_t n_devices, struct err *err)
{
    bool spin = n_devices <= device_cores();
    int rc;

    CHECK(g->comm == NULL && atomic_load_explicit(&g->running, memory_order_acquire) == 0);
    rc = copy_group(g, group, err);
    if (rc < 0)
        return rc;
    comm_share(lanes, generation_first_rank(g, group->n_members), g->shares);
    atomic_store_explicit(&g->may_save, group->may_save, memory_order_release);
    atomic_store_explicit(&g->deadline_ms, group->deadline_ms, memory_order_relaxed);
    atomic_fetch_and_explicit(&g->requests, ~(unsigned)TRAIN_ASK_PAUSE, memory_order_relaxed);
    g->result = 0;
    g->is_aborted = g->is_unsaved = false;
    cancel_set(&g->cancel, false);
    gate_init(&g->gate, n_devices, spin);
    gate_init(&g->commit_gate, n_devices, spin);
    return 0;
}

/* ---- the communicator ---- */

void generation_set_comm(struct generation *g, struct comm *comm)
{
    pthread_mutex_lock(&g->lock);
    g->comm = comm;
    g->engine->group.comm = comm;
    if (cancel_asked(&g->cancel))
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

void generation_remember(struct generation *g, const struct err *err)
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

void generation_lose(struct generation *g, const struct err *err)
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
    return cancel_asked(&g->cancel) ? err_set(err, ERR_CANCELED, "the generation ended") : 0;
}

int generation_gate(struct generation *g, struct place *place, struct err *err)
{
    if (!place_meet(place, &g->gate))
        return err_set(err, ERR_CANCELED, "the generation ended");
    return 0;
}
