/* cpu_step.c - see cpu_step.h. */
#include "engine/cpu_step.h"

#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/clones.h"
#include "base/err.h"
#include "data/data.h"
#include "engine/common.h"
#include "engine/cpu_reduce.h"
#include "engine/plans.h"
#include "engine/trace.h"
#include "graph/graph.h"
#include "op/op.h"

/* ---- a batch ---- */

static void *input_at(void *arg, struct plan *plan, uint32_t i)
{
    (void)arg;
    return plan_input(plan, i)->data;
}

int cpu_feed(struct engine_replica *r, struct plan *plan, const struct data_batch *b,
             struct err *err)
{
    (void)err;
    plans_copy_batch(r->engine, plan, b, input_at, NULL);
    return 0;
}

static struct packed *rows_of(const struct engine_replica *r, uint32_t arena)
{
    return r->engine->memory.opts.n_tables > 0 ? &r->arenas->rows[arena] : NULL;
}

int cpu_run(struct engine_replica *r, struct plan *plan, const struct op_run *run, bool backward,
            struct err *err)
{
    int rc;

    if (backward)
        plan_set_packed(plan, rows_of(r, 0));
    rc = plan_forward(plan, run, err);
    return rc < 0 || !backward ? rc
                               : plan_backward(plan, run, r->arenas->grads[0], NULL, NULL, err);
}

int cpu_show(struct engine_replica *r, struct err *err)
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
    data_release(r->plans->reader);
    place_enter(&r->place, PHASE_LANE);
    now = clock_ns();
    r->data_ns += now - before;
    trace_add(r->trace, TRACE_DATA, lane, before, now);
    return 0;
}

static int run_plan(struct engine_replica *r, const struct op_run *run, float *grads,
                    plan_ready_fn *ready, struct err *err)
{
    struct plan *plan = r->plans->train;
    uint64_t before = trace_clock(r->trace);
    int rc = plan_forward(plan, run, err);

    if (rc == 0) {
        trace_calls(r->trace, false, run->lane, before);
        before = trace_clock(r->trace);
        rc = plan_backward(plan, run, grads, ready, r, err);
    }
    if (rc == 0)
        trace_calls(r->trace, true, run->lane, before);
    return rc < 0 ? err_wrap(err, rc, "lane %u", run->lane) : 0;
}

static void write_control(const struct engine_replica *r, float *grads)
{
    const struct engine *e = r->engine;
    float *control = grads + e->memory.params;

    memset(control, 0, e->opts->control_floats * sizeof(float));
    control[ENGINE_LOSS] = plan_loss(r->plans->train);
    if (e->opts->mean_of_weights)
        control[ENGINE_WEIGHT] = plan_loss_weight(r->plans->train);
}

int cpu_run_lanes(struct engine_replica *r, uint64_t step, struct err *err)
{
    const struct engine *e = r->engine;
    struct op_run run = {
        .seed = e->opts->seed, .step = step, .cancel = e->opts->cancel, .loss_scale = r->loss_scale
    };
    uint32_t top = 0; /* arenas of the stack that are occupied */

    r->data_ns = 0;
    reduce_begin(r, step);
    for (uint32_t i = 0; i < r->n_lanes; i++) {
        bool overlaps = i + 1 == r->n_lanes && r->n_buckets > 1;
        float *grads = r->arenas->grads[top];
        int rc;

        run.lane = r->first_lane + i;
        rc = engine_check_canceled(e, err);
        if (rc == 0)
            rc = feed_lane(r, run.lane, err);
        plan_set_packed(r->plans->train, rows_of(r, top));
        if (rc == 0)
            rc = run_plan(r, &run, grads, overlaps ? reduce_ready : NULL, err);
        if (rc < 0)
            return rc;
        write_control(r, grads);
        reduce_add_lanes(r, i, ++top, e->memory.grads);
        top -= lane_merges(r, i);
    }
    return 0;
}

/* ---- the sum over all replicas ---- */

int cpu_reduce(struct engine_replica *r, uint64_t step, struct err *err)
{
    uint64_t before = clock_ns(), now;
    int rc = 0;

    place_bucket(&r->place, step, r->n_buckets - 1);
    if (r->engine->group.comm != NULL)
        rc = reduce_rest(r, err);
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
