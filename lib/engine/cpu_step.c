/* cpu_step.c - see cpu_step.h. */
#include "engine/cpu_step.h"

#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/clones.h"
#include "base/err.h"
#include "base/fault.h"
#include "data/data.h"
#include "engine/codes.h"
#include "engine/common.h"
#include "engine/cpu_lane.h"
#include "engine/cpu_reduce.h"
#include "engine/cpu_spare.h"
#include "engine/plans.h"
#include "engine/refused.h"
#include "engine/residual.h"
#include "engine/trace.h"
#include "graph/graph.h"
#include "op/op.h"

static struct packed *rows_of(const struct engine_replica *r, uint32_t arena)
{
    return r->engine->memory.opts.n_tables > 0 ? &r->arenas->rows[arena] : NULL;
}

/* Selects the memory of gradient arena `arena`: packed tables, and remote tables, for which the
 * plan of an evaluation passes no arena. */
static void set_tables(struct engine_replica *r, struct plan *plan, bool backward, uint32_t arena)
{
    const struct engine_remote *remote = r->engine->opts->remote;

    if (backward)
        plan_set_packed(plan, rows_of(r, arena));
    if (remote != NULL)
        plan_set_remote(plan, remote->values(remote->arg, r->local),
                        backward ? &r->arenas->remote[arena] : NULL, r->engine->memory.remote_at);
}

static int forward(struct engine_replica *r, struct plan *plan, const struct op_run *run,
                   struct err *err)
{
    const struct engine_remote *remote = r->engine->opts->remote;
    const struct plan_lookup *lookups;
    uint32_t n;
    int rc;

    if (remote == NULL)
        return plan_forward(plan, run, err);
    rc = plan_forward_indices(plan, run, err);
    lookups = plan_lookups(plan, &n);
    if (rc == 0)
        rc = remote->lookup(remote->arg, r->local, lookups, n, err);
    return rc < 0 ? rc : plan_forward(plan, run, err);
}

static void begin_lookups(struct engine_replica *r, enum engine_rows use)
{
    const struct engine_remote *remote = r->engine->opts->remote;

    if (remote != NULL)
        remote->begin(remote->arg, r->local, use);
}

int cpu_run(struct engine_replica *r, struct plan *plan, const struct op_run *run, bool backward,
            struct err *err)
{
    int rc;

    begin_lookups(r, backward                            ? ENGINE_ROWS_OF_LANES
                     : r->engine->opts->evaluate_average ? ENGINE_ROWS_AVERAGE
                                                         : ENGINE_ROWS_HELD);
    set_tables(r, plan, backward, 0);
    rc = forward(r, plan, run, err);
    return rc < 0 || !backward ? rc
                               : plan_backward(plan, run, r->arenas->grads[0], NULL, NULL, err);
}

int cpu_fetch_gradients(struct engine_replica *r, struct err *err)
{
    (void)r;
    (void)err;
    return 0; /* gradients are in the host's memory */
}

/* ---- lanes ---- */

static int feed_lane(struct engine_replica *r, uint32_t lane, struct err *err)
{
    const struct engine_opts *o = r->engine->opts;
    uint64_t before = clock_ns(), now;
    const struct data_batch *b;
    int rc;

    place_enter(&r->place, PHASE_DATA);
    rc = data_next(r->plans->reader, &b, err);
    if (rc < 0)
        return rc;
    CHECK(b != NULL); /* the reader was opened up to the last step that is asked for */
    (void)cpu_feed(r, r->plans->train, b, err); /* a copy within the host: cannot fail */
    if (o->on_lane != NULL)
        o->on_lane(o->arg, r->local, b);
    if (b->check != 0)
        o->on_check(o->arg, b->step, b->check);
    data_release(r->plans->reader);
    place_enter(&r->place, PHASE_LANE);
    now = clock_ns();
    r->data_ns += now - before;
    trace_add(r->trace, TRACE_DATA, lane, before, now);
    return 0;
}

int cpu_skip_lanes(struct engine_replica *r, uint32_t n, struct err *err)
{
    uint64_t before = clock_ns();
    const struct data_batch *b;

    if (n > 0)
        place_enter(&r->place, PHASE_DATA);
    for (; n > 0; n--) {
        int rc = data_next(r->plans->reader, &b, err);

        if (rc < 0)
            return rc;
        CHECK(b != NULL); /* as in feed_lane() */
        data_release(r->plans->reader);
    }
    r->data_ns += clock_ns() - before;
    return 0;
}

static int run_plan(struct engine_replica *r, const struct op_run *run, float *grads,
                    plan_ready_fn *ready, struct err *err)
{
    struct plan *plan = r->plans->train;
    uint64_t before = trace_clock(r->trace);
    int rc = fault_error("train.lane", err);

    if (rc == 0)
        rc = forward(r, plan, run, err);
    if (rc == 0) {
        trace_calls(r->trace, false, run->lane, before);
        before = trace_clock(r->trace);
        rc = plan_backward(plan, run, grads, ready, r, err);
    }
    if (rc == 0)
        trace_calls(r->trace, true, run->lane, before);
    else if (run->refused != NULL && run->refused->found != 0)
        rc = refused_place_lane(r, run->step, run->refused, rc, err);
    return rc < 0 ? err_wrap(err, rc, "lane %u", run->lane) : 0;
}

/* The gradients of remote tables are final after the lanes. */
static int push_remote(struct engine_replica *r, uint64_t step, struct err *err)
{
    const struct engine_remote *remote = r->engine->opts->remote;

    if (remote == NULL)
        return 0;
    return remote->push(remote->arg, r->local, step, &r->arenas->remote[0],
                        r->arenas->grads[0] + r->engine->memory.remote_at, err);
}

int cpu_run_lanes(struct engine_replica *r, uint64_t step, struct err *err)
{
    const struct engine *e = r->engine;
    struct op_invalid refused = { .found = 0 };
    struct op_run run = {
        .seed = e->opts->seed, .step = step, .cancel = e->opts->cancel, .stops_arg = r,
        .loss_scale = r->loss_scale, .refused = &refused
    };
    uint32_t top = 0; /* arenas of the stack that are occupied */
    int rc;

    r->data_ns = 0;
    rc = cpu_skip_lanes(r, spare_begin(r, step), err);
    if (rc < 0)
        return rc;
    begin_lookups(r, ENGINE_ROWS_OF_LANES);
    reduce_begin(r, step);
    for (uint32_t i = 0; i < r->n_lanes; i++) {
        bool overlaps = i + 1 == r->n_lanes && r->n_buckets > 1;
        float *grads = r->arenas->grads[top];

        spare_lane_begins(r, i);
        run.stops = spare_is_block(r, i) ? spare_is_offered : NULL;
        if (run.stops != NULL && spare_is_offered(r)) {
            spare_give(r, i);
            break;
        }
        run.lane = engine_lane(r, i);
        rc = engine_check_canceled(e, err);
        if (rc == 0)
            rc = feed_lane(r, run.lane, err);
        set_tables(r, r->plans->train, true, top);
        if (rc == 0)
            rc = run_plan(r, &run, grads, overlaps ? reduce_ready : NULL, err);
        if (rc == ERR_CANCELED && run.stops != NULL && engine_check_canceled(e, NULL) == 0) {
            spare_give(r, i + 1);
            break;
        }
        if (rc < 0)
            return rc;
        cpu_write_control(r, grads);
        reduce_add_lanes(r, i, ++top, e->memory.grads);
        top -= spare_merges(r, i);
    }
    spare_lanes_end(r);
    return push_remote(r, step, err);
}

/* ---- the sum over all replicas ---- */

int cpu_reduce(struct engine_replica *r, uint64_t step, struct err *err)
{
    uint64_t before = clock_ns(), now;
    int rc = 0;

    place_bucket(&r->place, step, r->n_buckets - 1);
    if (r->engine->group.comm != NULL)
        rc = reduce_rest(r, err);
    else if (residual_is_on(r->engine))
        rc = residual_reduce(r, r->engine->memory.grads, err);
    else
        codes_round_all(r, step);
    now = clock_ns();
    r->reduce_ns = now - before;
    trace_add(r->trace, TRACE_REDUCTION, 0, before, now);
    return rc;
}

CLONES static void multiply(float *x, size_t n, float factor)
{
    for (size_t i = 0; i < n; i++)
        x[i] *= factor;
}

int cpu_scale(struct engine_replica *r, float by, struct err *err)
{
    (void)err;
    if (by != 1.0f)
        multiply(r->arenas->grads[0], r->engine->memory.dense + packed_floats(&r->arenas->rows[0]),
                 by);
    return 0;
}
