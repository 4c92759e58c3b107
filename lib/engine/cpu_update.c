/* cpu_update.c - see cpu_update.h. */
#include "engine/cpu_update.h"

#include <math.h>
#include <string.h>

#include "base/check.h"
#include "base/fault.h"
#include "engine/residual.h"
#include "graph/graph.h"

static struct optim_state state_of(const struct engine_replica *r)
{
    const struct memory *m = &r->engine->memory;
    struct optim_state s = { .w = m->state,
                             .g = r->arenas->grads[0],
                             .packed = m->opts.n_tables > 0 ? &r->arenas->rows[0] : NULL,
                             .values = r->arenas->grads[0] + m->dense,
                             .average = m->average };

    memcpy(s.slots, m->slots, sizeof(s.slots));
    return s;
}

static void meet(struct engine_replica *r)
{
    bool whole = place_meet(&r->place, r->engine->group.commit_gate);

    CHECK(whole); /* no thread breaks the commit gate */
}

void cpu_gradient_norm(struct engine_replica *r, bool wanted, double *norm)
{
    const struct engine_opts *o = r->engine->opts;
    const struct optim_state state = state_of(r);

    *norm = NAN;
    if (o->clip_value > 0)
        optim_clip_values(o->optim, r->local, &state, (float)(o->clip_value * r->scale));
    if (!wanted)
        return;
    optim_measure_gradient(o->optim, r->local, &state);
    meet(r);
    *norm = optim_gradient_norm(o->optim, r->remote_squares) / r->scale;
}

static void move_statistics(struct engine *e, const float *grads)
{
    uint32_t n;
    const struct graph_param *params = graph_params(e->opts->graph, &n);
    float share = 1.0f / (float)e->group.lanes;

    for (uint32_t i = 0; i < n; i++) {
        float *w = e->memory.state + params[i].offset;
        const float *g = grads + params[i].offset;
        float keep = params[i].momentum;

        if (params[i].kind != GRAPH_STATISTIC)
            continue;
        for (size_t k = 0; k < params[i].elements; k++)
            w[k] = keep * w[k] + (1.0f - keep) * (g[k] * share);
    }
    engine_memory_fill_average(&e->memory, false);
}

int cpu_update(struct engine_replica *r, const struct optim_hyper *h, struct err *err)
{
    struct engine *e = r->engine;
    struct optim *o = e->opts->optim;
    const struct optim_state state = state_of(r);

    (void)err;
    if (residual_is_on(e))
        residual_apply(r);
    if (e->memory.delayed != NULL) {
        if (r->local == 0)
            engine_memory_delay(&e->memory);
        meet(r);
    }
    if (optim_needs_norms(o)) {
        optim_measure(o, r->local, h, &state);
        meet(r);
    }
    optim_update(o, r->local, h, &state);
    if (r->local != 0)
        return 0;
    move_statistics(e, r->arenas->grads[0]);
    if (fault_hit("health.flip_weight"))
        /* the last bit of a fraction, which only a checksum detects */
        *(uint8_t *)e->memory.state ^= 1;
    return 0;
}
