/* gpu_step.c - see gpu_step.h. */
#include "engine/gpu_step.h"

#include <string.h>

#include "base/check.h"
#include "base/err.h"
#include "base/fault.h"
#include "engine/common.h"
#include "engine/gpu_buckets.h"
#include "engine/gpu_clock.h"
#include "engine/gpu_feed.h"
#include "engine/gpu_residual.h"
#include "engine/gpu_sums.h"
#include "engine/gpu_types.h"
#include "engine/gpu_wait.h"
#include "engine/plans.h"
#include "engine/residual.h"
#include "graph/graph.h"

struct ready {
    struct engine_replica *r;
    uint32_t lane;
    int rc;
    struct err *err;
};

static void on_ready(void *arg, size_t offset, size_t n)
{
    struct ready *x = arg;
    struct engine_replica *r = x->r;
    size_t floats = gpu_bucket_floats(r->engine), whole = (offset + n) / floats * floats,
           from = gpu_of(r)->grads.added;

    if (whole <= from || x->rc < 0)
        return;
    x->rc = gpu_add_lanes(r, x->lane, lane_merges(r, x->lane) + 1, from, whole, x->err);
    if (x->rc == 0)
        x->rc = gpu_all_reduce(r, from, whole, x->err);
    gpu_of(r)->grads.added = whole;
}

/* ---- a lane ---- */

static int write_numbers(struct engine_replica *r, float *grads, struct err *err)
{
    struct engine *e = r->engine;
    struct gpu *g = gpu_of(r);
    float *control = grads + e->memory.params;
    int rc =
        g->cuda->fill(control, 0, e->opts->control_floats * sizeof(float), g->streams.work, err);

    if (rc == 0)
        rc = g->cuda->copy(control + ENGINE_LOSS, plan_loss_at(r->plans->train), sizeof(float),
                           g->streams.work, err);
    if (rc == 0 && e->opts->mean_of_weights)
        rc = g->cuda->copy(control + ENGINE_WEIGHT, plan_loss_weight_at(r->plans->train),
                           sizeof(float), g->streams.work, err);
    return rc;
}

/* All work of the GPU for lane i, whose gradients go to arena top - 1 of the tree. May be captured.
 */
static int calls(struct engine_replica *r, struct gpu_slot *s, uint32_t i, uint32_t top,
                 struct err *err)
{
    struct gpu *g = gpu_of(r);
    bool last = i + 1 == r->n_lanes;
    struct ready ready = { .r = r, .lane = i, .err = err };
    struct op_run run = *s->run;
    uint32_t from;
    int rc = gpu_span_begin(r, TRACE_WORK, err);

    if (rc == 0)
        rc = gpu_copy_inputs(r, s, r->plans->train, err);
    if (rc == 0)
        rc = gpu_span_end(r, TRACE_WORK, TRACE_DATA, run.lane, err);
    /* a captured lane has no trace */
    plan_watch(r->plans->train, r->trace != NULL ? gpu_span_call : NULL, r);
    g->grads.added = 0;
    g->codes.sent = g->codes.plain = 0;
    from = gpu_span_position(r);
    if (rc == 0)
        rc = plan_forward(r->plans->train, &run, err);
    if (rc == 0)
        gpu_span_enclose(r, TRACE_FORWARD, run.lane, from);
    if (rc == 0) /* backward may use the memory of the loss */
        rc = write_numbers(r, g->grads.tree[top - 1], err);
    if (rc == 0)
        rc = gpu_span_begin(r, TRACE_WORK, err);
    from = gpu_span_position(r);
    if (rc == 0)
        rc = plan_backward(r->plans->train, &run, g->grads.tree[top - 1],
                           last && g->comm != NULL && !residual_is_on(r->engine) ? on_ready : NULL,
                           &ready, err);
    plan_watch(r->plans->train, NULL, NULL);
    if (rc == 0)
        rc = ready.rc;
    if (rc == 0)
        gpu_span_enclose(r, TRACE_BACKWARD, run.lane, from);
    if (rc == 0)
        rc = gpu_add_lanes(r, i, top, g->grads.added, g->grads.floats, err);
    if (rc == 0 && last && g->comm != NULL)
        rc = g->cuda->copy(&g->report.readback->computed, &s->run_there->step,
                           sizeof(g->report.readback->computed), g->streams.work, err);
    if (rc == 0 && g->grads.added > 0) /* after the buckets, too */
        rc = gpu_wait_all_reduce(r, err);
    return rc;
}

/* The first time, the libraries of a lane choose their algorithms; the second time the calls are
 * captured. A lane has one graph for even and one for odd steps, because its slot differs between
 * them if the number of lanes is odd: NCCL requires its sums captured by all ranks in the same step
 * or by none, however many lanes each rank has. */
static int launch(struct engine_replica *r, struct gpu_slot *s, uint32_t i, uint32_t top,
                  struct err *err)
{
    struct gpu *g = gpu_of(r);
    struct gpu_lane *lane = &g->lanes[i * GPU_SLOTS + (g->step - g->first_step) % GPU_SLOTS];
    struct err ignored;
    int rc;

    CHECK(lane->slot == NULL || lane->slot == s);
    /* a captured graph contains no marks */
    CHECK(r->trace == NULL || g->step <= r->engine->group.no_graphs_until);
    if (lane->slot == NULL || g->step <= r->engine->group.no_graphs_until) {
        lane->slot = s;
        return calls(r, s, i, top, err); /* leaves g->added */
    }
    if (lane->graph == NULL) {
        rc = g->cuda->capture_begin(g->streams.work, err);
        if (rc < 0)
            return rc;
        rc = calls(r, s, i, top, err);
        if (rc < 0) {
            /* an incomplete graph */
            if (g->cuda->capture_end(g->streams.work, &lane->graph, &ignored) == 0)
                g->cuda->graph_close(lane->graph);
            lane->graph = NULL;
            return rc;
        }
        rc = g->cuda->capture_end(g->streams.work, &lane->graph, err);
        if (rc < 0)
            return rc;
        lane->added = g->grads.added;
        lane->sent = g->codes.sent;
        lane->plain = g->codes.plain;
    }
    g->grads.added = lane->added;
    g->codes.sent = lane->sent;
    g->codes.plain = lane->plain;
    return g->cuda->launch(lane->graph, g->streams.work, err);
}

static int run_lane(struct engine_replica *r, const struct op_run *run, uint32_t i, uint32_t top,
                    struct err *err)
{
    struct gpu *g = gpu_of(r);
    struct gpu_slot *s = &g->feed.slot[g->feed.next];
    int rc = 0;

    place_enter(&r->place, PHASE_DATA);
    if (!s->is_full)
        rc = gpu_send_batch(r, s, err);
    CHECK(rc < 0 || s->is_full); /* the reader was opened up to the last step that is asked for */
    if (rc < 0)
        return rc;
    if (r->engine->opts->on_lane != NULL)
        r->engine->opts->on_lane(r->engine->opts->arg, r->local, &s->b);
    if (s->b.check != 0)
        r->engine->opts->on_check(r->engine->opts->arg, s->b.step, s->b.check);
    place_enter(&r->place, PHASE_LANE);
    rc = gpu_wait(r, s->used,
                  err); /* the previous lane in this slot: its `run` may be overwritten */
    if (rc == 0 && i + 1 == r->n_lanes && g->comm != NULL)
        rc = fault_error("train.bucket", err); /* the buckets that its calls sum up */
    if (rc == 0)
        rc = gpu_send_run(r, s, run, err);
    if (rc == 0)
        rc = g->cuda->wait(g->streams.work, s->sent, err);
    if (rc == 0)
        rc = gpu_clock_work_begin(r, err);
    g->codes.step = &s->run_there->step;
    if (rc == 0)
        rc = launch(r, s, i, top, err);
    if (rc == 0)
        rc = gpu_clock_work_end(r, err);
    if (rc == 0)
        rc = g->cuda->record(s->used, g->streams.work, err);
    s->is_full = false;
    g->feed.next = (g->feed.next + 1) % GPU_SLOTS;
    return rc < 0 ? err_wrap(err, rc, "lane %u", run->lane) : 0;
}

int gpu_run_lanes(struct engine_replica *r, uint64_t step, struct err *err)
{
    struct engine *e = r->engine;
    struct op_run run = { .seed = e->opts->seed, .step = step, .loss_scale = r->loss_scale };
    uint32_t top = 0;
    int rc = gpu_of(r)->timing.notes_device
                 ? gpu_of(r)->cuda->record(gpu_of(r)->timing.began, gpu_of(r)->streams.work, err)
                 : 0;

    /* sums of the step before */
    memset(r->arenas->grads[0] + e->memory.params, 0, e->opts->control_floats * sizeof(float));
    gpu_of(r)->step = step;
    r->data_ns = 0;
    gpu_clock_step_begin(r);
    if (gpu_of(r)->first_step == 0)
        gpu_of(r)->first_step = step;
    if (rc == 0)
        rc = gpu_residual_begin_step(r, err);
    for (uint32_t i = 0; rc == 0 && i < r->n_lanes; i++) {
        run.lane = r->first_lane + i;
        rc = engine_check_canceled(e, err);
        if (rc == 0)
            rc = run_lane(r, &run, i, ++top, err);
        top -= lane_merges(r, i);
    }
    if (rc == 0 && gpu_of(r)->timing.notes_device)
        rc = gpu_of(r)->cuda->record(gpu_of(r)->timing.ended, gpu_of(r)->streams.work, err);
    return rc;
}
