/* copies.c - see copies.h. */
#include "train/copies.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/fault.h"
#include "base/text.h"
#include "comm/comm.h"
#include "engine/residual.h"
#include "train/task.h"

enum { CHUNK_BYTES = 4 << 20 };

struct copies {
    struct device_mem memory; /* owned; as the engine's state */
    struct facts facts;
    bool exists; /* the two fields above are valid */
};

int copies_open(struct train *t, struct err *err)
{
    const struct memory *m = &t->engine->memory;
    char size[32];
    int rc;

    if (!residual_exists(t->engine) || t->opts->only_evaluates)
        return 0;
    t->copies = calloc(1, sizeof(*t->copies));
    if (t->copies == NULL)
        return err_set(err, ERR_NOMEM, "copy of the state: out of memory");
    t->copies->memory.fd = -1;
    rc = engine_memory_open_spare(m, &t->copies->memory, err);
    if (rc == 0)
        return 0;
    text_bytes(size, sizeof(size), m->state_bytes);
    return err_wrap(err, rc,
                    "/communication/compression: a code with residuals keeps a copy of the state, which needs %s "
                    "more; use fewer groups, or a code without residuals", size);
}

void copies_close(struct train *t)
{
    if (t->copies != NULL)
        device_mem_close(&t->copies->memory);
    free(t->copies);
    t->copies = NULL;
}

static bool are_on(const struct train *t)
{
    return t->copies != NULL && residual_is_on(t->engine);
}

static void copy_state(struct train *t)
{
    struct copies *c = t->copies;

    memcpy(c->memory.base, t->engine->memory.state, t->engine->memory.state_bytes);
    c->facts = t->state.facts;
    c->facts.step = state_held(&t->state);
    c->facts.plateau = t->state.schedule.plateau;
    c->exists = true;
}

void copies_begin(struct train *t)
{
    if (t->copies != NULL)
        t->copies->exists = false;
    if (are_on(t))
        copy_state(t);
}

bool copies_are_due(const struct train *t, uint64_t step)
{
    return are_on(t) && step % t->opts->code.copy_every_steps == 0;
}

/* ---- the residuals of all groups ---- */

struct exchange {
    struct replica *r;
    char *chunk; /* the gradient arena of the replica, which peers can reach */
    size_t room;
};

/* Sends the residual of a group from the rank that has its lanes to all tasks. */
static int send_group(const struct exchange *x, uint32_t group, uint32_t root, bool is_own,
                      struct err *err)
{
    struct replica *r = x->r;
    const struct engine *e = r->train->engine;
    char *residual = (char *)residual_of_group(e, group);
    size_t all = residual_floats(e) * sizeof(float), bytes;
    int rc = 0;

    for (size_t at = 0; rc == 0 && at < all; at += bytes) {
        bytes = all - at < x->room ? all - at : x->room;
        if (r->device->rank == root)
            memcpy(x->chunk, residual + at, bytes);
        rc = comm_broadcast(e->group.comm, r->local, x->chunk, bytes, root, err);
        if (rc == 0 && r->local == 0 && !is_own) /* the replicas of a task share the state */
            memcpy(residual + at, x->chunk, bytes);
    }
    return rc;
}

static int send_groups(const struct exchange *x, struct err *err)
{
    const struct engine *e = x->r->train->engine;
    uint32_t groups = x->r->train->opts->code.groups, lanes = e->opts->lanes / groups;
    uint32_t first = x->r->device->rank - x->r->local, own = first + e->opts->n_devices;
    uint32_t root = 0, end = e->group.shares[0] / lanes;
    int rc = 0;

    for (uint32_t g = 0; rc == 0 && g < groups; g++) {
        if (g == end)
            end += e->group.shares[++root] / lanes;
        place_chunk(&x->r->device->place, g);
        rc = send_group(x, g, root, root >= first && root < own, err);
    }
    return rc;
}

static int exchange_residuals(struct replica *r, struct err *err)
{
    struct train *t = r->train;
    struct exchange x = { .r = r,
                          .chunk = engine_scratch(r->device),
                          .room = t->engine->memory.params * sizeof(float) };
    int rc;

    if (t->generation.comm == NULL)
        return 0;
    if (x.room > CHUNK_BYTES)
        x.room = CHUNK_BYTES;
    place_enter(&r->device->place, PHASE_TRANSFER);
    rc = send_groups(&x, err);
    memset(x.chunk, 0, x.room); /* gradients find it as if nothing had been there */
    return rc;
}

/* ---- steps ---- */

static bool is_whole_after(const struct train *t, uint64_t step, const struct step_result *result)
{
    return result->copies || result->checksum || result->pause || step == t->model.total_steps;
}

int copies_make(struct replica *r, uint64_t step, struct err *err)
{
    struct train *t = r->train;
    const struct engine_ops *ops = t->engine->ops;
    int rc;

    if (!are_on(t))
        return 0;
    rc = fault_error("train.copies", err);
    if (rc == 0 && ops->fetch_residuals != NULL)
        rc = ops->fetch_residuals(r->device, step, err);
    if (rc == 0)
        rc = exchange_residuals(r, err);
    /* no replica of this task receives or changes the state now */
    if (rc == 0)
        rc = generation_gate(&t->generation, &r->device->place, err);
    if (rc == 0 && ops->store_residuals != NULL)
        rc = ops->store_residuals(r->device, err);
    if (rc < 0)
        return err_wrap(err, rc, "residuals of all groups");
    if (r->local == 0)
        copy_state(t);
    return generation_gate(&t->generation, &r->device->place, err);
}

int copies_end_step(struct replica *r, uint64_t step, const struct step_result *result,
                    struct err *err)
{
    return is_whole_after(r->train, step, result) ? copies_make(r, step, err) : 0;
}

void copies_return(struct train *t)
{
    struct copies *c = t->copies;
    uint64_t held = state_held(&t->state);
    char text[256];

    if (!are_on(t) || !c->exists || held <= c->facts.step)
        return;
    memcpy(t->engine->memory.state, c->memory.base, t->engine->memory.state_bytes);
    t->engine->memory.step = c->facts.step;
    state_replace(&t->state, &c->facts);
    snprintf(text, sizeof(text),
             "this task returns from step %" PRIu64 " to its copy of the state after step %" PRIu64
             ", as all tasks do: the residuals of a lost task are lost, and the steps are trained again with the "
             "same result",
             held, c->facts.step);
    events_note(&t->events, text);
}
