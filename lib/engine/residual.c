/* residual.c - see residual.h. The codes are in residual_top_k.c and residual_power_sgd.c, and residual_pack.c has what
 * these share. */
#include "engine/residual.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/err.h"
#include "code/code.h"
#include "code/residual.h"
#include "comm/comm.h"
#include "engine/common.h"
#include "engine/cpu_types.h"
#include "engine/residual_priv.h"
#include "graph/graph.h"

/* ---- the task ---- */

static size_t most(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* Messages have equal slots for all ranks, of which the largest has the groups of a subtree: with N ranks and G
 * groups, N slots have fewer than 2 G messages. */
static size_t exchange_floats(const struct residual_layout *l, size_t grads)
{
    size_t plain = grads - l->floats, messages = 2 * (size_t)l->code->groups * l->message;

    return (plain + RESIDUAL_GRAIN) / RESIDUAL_GRAIN * RESIDUAL_GRAIN +
           most(messages, most(l->p_floats, l->q_floats));
}

int residual_open(struct engine *e, struct memory_opts *m, struct err *err)
{
    const struct engine_opts *o = e->opts;
    int rc = residual_layout_open(&e->residual, o->graph, o->code, err);

    if (rc < 0 || !residual_exists(e))
        return rc;
    CHECK(o->code->groups > 0 && o->lanes % o->code->groups == 0);
    m->residual_floats = residual_layout_state(&e->residual);
    m->exchange_floats = exchange_floats(&e->residual, m->params + o->control_floats);
    return 0;
}

void residual_close(struct engine *e)
{
    residual_layout_close(&e->residual);
}

bool residual_exists(const struct engine *e)
{
    return e->residual.code != NULL;
}

bool residual_is_on(const struct engine *e)
{
    return residual_exists(e) && e->group.codes;
}

uint32_t residual_group_lanes(const struct engine *e)
{
    return e->opts->lanes / e->residual.code->groups;
}

void residual_note(const struct engine *e)
{
    const struct residual_layout *l = &e->residual;
    size_t dense = graph_dense_floats(e->opts->graph);
    char how[64], text[320];

    if (l->code->kind == CODE_TOP_K)
        snprintf(how, sizeof(how), "the largest %g %% of their numbers", 100 * l->code->fraction);
    else
        snprintf(how, sizeof(how), "factors of rank %u", l->code->rank);
    snprintf(text, sizeof(text),
             "gradients are coded as %s between %u groups of %u lanes: of %.1f %% of the numbers, those of %u "
             "parameters of at least %llu bytes, %s are sent, and the rest is added to the next step",
             code_name(l->code->kind), l->code->groups, residual_group_lanes(e),
             dense > 0 ? 100.0 * (double)l->floats / (double)dense : 0.0, l->n,
             (unsigned long long)l->code->min_bytes, how);
    engine_note(e, false, text);
}

size_t residual_floats(const struct engine *e)
{
    return e->residual.floats;
}

/* ---- a generation ---- */

static struct residual_work *work_of(const struct engine_replica *r)
{
    return cpu_of(r)->residual;
}

static int open_work(const struct engine_replica *r, struct residual_work *w, struct err *err)
{
    w->left = calloc(w->n_groups * w->layout->floats + 1, sizeof(*w->left));
    if (w->left == NULL)
        return err_set(err, ERR_NOMEM, "residuals of %u groups: out of memory", w->n_groups);
    return w->code->begin(r, w, err);
}

int residual_begin(struct engine_replica *r, struct err *err)
{
    const struct engine *e = r->engine;
    struct residual_work *w;

    if (!residual_is_on(e))
        return 0;
    CHECK(r->n_lanes % residual_group_lanes(e) == 0); /* whole groups: coding_check() */
    w = calloc(1, sizeof(*w));
    if (w == NULL)
        return err_set(err, ERR_NOMEM, "residuals: out of memory");
    cpu_of(r)->residual = w;
    *w = (struct residual_work){
        .code = e->residual.code->kind == CODE_TOP_K ? &residual_top_k : &residual_power_sgd,
        .layout = &e->residual,
        .first_group = r->first_lane / residual_group_lanes(e),
        .n_groups = r->n_lanes / residual_group_lanes(e),
    };
    return open_work(r, w, err);
}

void residual_end(struct engine_replica *r)
{
    struct residual_work *w = work_of(r);

    if (w == NULL)
        return;
    free(w->left);
    free(w->messages);
    free(w->partial);
    free(w->p);
    free(w->q);
    free(w->begin_q);
    free(w);
    cpu_of(r)->residual = NULL;
}

/* ---- a step ---- */

void residual_take_group(struct engine_replica *r, uint32_t lane, const float *grads)
{
    struct residual_work *w = work_of(r);
    uint32_t i = lane / residual_group_lanes(r->engine);
    const float *residual = residual_of_group(r->engine, w->first_group + i);

    for (uint32_t k = 0; k < w->layout->n; k++) {
        const struct residual_part *p = &w->layout->parts[k];

        code_residual_add(grads + p->offset, residual + p->at, p->elements,
                          residual_left(w, i) + p->at);
    }
    w->code->take_group(r, w, i);
}

int residual_reduce(struct engine_replica *r, size_t end, struct err *err)
{
    return work_of(r)->code->reduce(r, work_of(r), end, err);
}

void residual_apply(struct engine_replica *r)
{
    const struct engine *e = r->engine;
    const struct residual_work *w = work_of(r);
    const struct residual_layout *l = w->layout;

    memcpy(residual_of_group(e, w->first_group), w->left, w->n_groups * l->floats * sizeof(float));
    if (r->local == 0 && l->q_floats > 0)
        memcpy(residual_of_group(e, l->code->groups), w->q, l->q_floats * sizeof(float));
}

void residual_count(const struct engine_replica *r, uint64_t *sent, uint64_t *plain)
{
    const struct comm *comm = r->engine->group.comm;
    const struct residual_work *w = work_of(r);
    uint32_t nodes = comm_nodes(comm), ranks = comm_world(comm) / nodes;
    double halves = 2.0 * (nodes - 1) / nodes; /* reduce-scatter and all-gather */

    *sent = (uint64_t)(w->code->sent(w, ranks, nodes) * sizeof(float) / ranks);
    *plain = (uint64_t)(halves * (double)w->layout->floats * sizeof(float) / ranks);
}
