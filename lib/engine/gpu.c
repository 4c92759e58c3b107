/* gpu.c - the verbs of engine_gpu that open, close, begin and end; gpu.h draws the streams. Others:
 * gpu_step.c (lanes), gpu_reduce.c, gpu_update.c, gpu_copy.c (state to the host), passes.c. */
#include "engine/gpu.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/err.h"
#include "engine/codes.h"
#include "engine/common.h"
#include "engine/gpu_buckets.h"
#include "engine/gpu_clock.h"
#include "engine/gpu_comm.h"
#include "engine/gpu_copy.h"
#include "engine/gpu_feed.h"
#include "engine/gpu_memory.h"
#include "engine/gpu_pass.h"
#include "engine/gpu_reduce.h"
#include "engine/gpu_residual.h"
#include "engine/gpu_step.h"
#include "engine/gpu_types.h"
#include "engine/gpu_update.h"
#include "engine/gpu_wait.h"
#include "engine/passes.h"
#include "engine/plans.h"
#include "engine/residual.h"
#include "engine/tables.h"
#include "engine/trace_types.h"
#include "graph/graph.h"

static const struct pass pass = { gpu_feed, gpu_run, gpu_fetch_gradients, true };

/* ---- a task ---- */

static void gpu_close(struct engine *e)
{
    for (uint32_t i = 0; e->replicas != NULL && i < e->opts->n_devices; i++)
        if (e->replicas[i] != NULL) {
            gpu_close_device(e->replicas[i]);
            plans_close(e->replicas[i]);
        }
    codes_close(e);
    residual_close(e);
    free(e->device_idle);
    engine_fini(e);
    free(e);
}

static int open_parts(struct engine *e, struct err *err)
{
    const struct engine_opts *o = e->opts;
    struct memory_opts m;
    int rc;

    e->device_idle = calloc(o->n_devices, sizeof(*e->device_idle));
    if (e->device_idle == NULL)
        return err_set(err, ERR_NOMEM, "engine: out of memory");
    for (uint32_t i = 0; i < o->n_devices; i++)
        e->device_idle[i] = NAN;
    e->n_states = o->n_devices;
    rc = codes_open(e, err);
    if (rc == 0)
        rc = plans_open(e, &pass, err);
    if (rc == 0) {
        tables_layout(o, false, &m);
        rc = residual_open(e, &m, err);
    }
    if (rc == 0) {
        m.exchange_floats = 0; /* of the host: a GPU has its own */
        rc = engine_open_memory(e, &m, err);
    }
    for (uint32_t i = 0; rc == 0 && i < o->n_devices; i++)
        rc = gpu_open_device(e->replicas[i], err);
    return rc;
}

static int gpu_open(const struct engine_opts *opts, struct engine **out, struct err *err)
{
    struct engine *e = calloc(1, sizeof(*e));
    int rc;

    if (e == NULL)
        return err_set(err, ERR_NOMEM, "engine: out of memory");
    rc = engine_init(e, &engine_gpu, opts, err);
    if (rc == 0)
        rc = open_parts(e, err);
    if (rc < 0) {
        gpu_close(e);
        return rc;
    }
    tables_note(e, false);
    *out = e;
    return 0;
}

static int gpu_replace_region(struct engine *e, struct err *err)
{
    return engine_memory_replace_region(&e->memory, err);
}

static bool gpu_overlaps(const struct engine *e)
{
    (void)e;
    return false; /* NCCL's streams overlap by themselves; no thread of the host reduces */
}

static void gpu_describe_trace(struct engine *e, struct trace_opts *out)
{
    plans_describe_trace(e, out);
    out->pieces = gpu_pieces(e);
    out->on_gpus = true;
}

static void gpu_discard(struct engine *e)
{
    for (uint32_t i = 0; i < e->opts->n_devices; i++)
        gpu_of(e->replicas[i])->state.is_held = false;
}

/* ---- a generation ---- */

static int gpu_begin(struct engine_replica *r, struct err *err)
{
    struct gpu *g = gpu_of(r);
    int rc;

    CHECK(g->lanes == NULL && g->comm == NULL);
    if (g->is_lost)
        return err_set(err, ERR_DEVICE, "the GPU is lost to this process");
    g->lanes = calloc((size_t)r->n_lanes * GPU_SLOTS + 1, sizeof(*g->lanes));
    if (g->lanes == NULL)
        return err_set(err, ERR_NOMEM, "out of memory");
    g->n_lanes = r->n_lanes;
    g->feed.next = 0;
    g->first_step = 0;
    g->report.readback->computed = 0;
    g->timing.notes_device = true;
    for (uint32_t i = 0; i < GPU_SLOTS; i++)
        g->feed.slot[i].is_full = false;
    gpu_clock_reset(r);
    rc = g->cuda->fill(g->report.trouble, 0, sizeof(*g->report.trouble), g->streams.work, err);
    return rc < 0 ? rc : gpu_connect(r, err);
}

static int take_state(struct engine_replica *r, uint64_t held, struct err *err)
{
    struct engine *e = r->engine;
    struct gpu *g = gpu_of(r);
    int rc = 0;

    /* with residuals, the GPU has those of its own groups only, and the host's state is whole (train/copies.h) */
    CHECK(!residual_is_on(e) || e->memory.step == held);
    if (!residual_is_on(e) && g->state.is_held && g->state.held == held && held > 0)
        return 0;
    rc = g->cuda->copy(g->state.floats, e->memory.state, e->memory.state_bytes, g->streams.work,
                       err);
    if (rc == 0)
        rc = gpu_wait(r, NULL, err);
    g->state.is_held = rc == 0;
    g->state.held = held;
    return rc;
}

static void note_sums(const struct engine *e)
{
    const char *text = "gradients are summed up by NCCL while backward computes";

    if (residual_is_on(e))
        text = "gradients are summed up along the tree over lanes, and exchanged by NCCL, after backward: the largest "
               "numbers, or the factors, of a parameter are known when its gradient is complete";
    else if (e->opts->ordered || codes_are_on(e))
        text =
            "gradients are summed up along the tree over lanes, and exchanged by NCCL, while backward computes";
    engine_note(e, false, text);
}

static int gpu_bind(struct engine_replica *r, uint64_t held, struct err *err)
{
    if (r->local == 0 && r->engine->group.comm != NULL)
        note_sums(r->engine);
    if (r->local == 0)
        codes_note(r->engine);
    plan_watch(r->plans->train, NULL, NULL);
    return take_state(r, held, err);
}

struct rest {
    uint64_t begin_ns, deadline_ms;
};

static int look_at_clock(void *arg, struct err *err)
{
    const struct rest *x = arg;

    if (x->deadline_ms == 0 || (clock_ns() - x->begin_ns) / 1000000 <= x->deadline_ms)
        return 0;
    return err_set(err, ERR_DEVICE,
                   "the GPU does not come to rest within %.1f s: only the end of the process "
                   "frees it",
                   (double)x->deadline_ms / 1e3);
}

/* Waits until all work on its streams is done; the wait is not canceled, but has a deadline. */
static int come_to_rest(struct engine_replica *r, struct err *err)
{
    struct gpu *g = gpu_of(r);
    struct cuda_stream *streams[] = { g->streams.reduce, g->streams.feed, g->streams.work,
                                      gpu_copies_stream(g) };
    struct rest x = { clock_ns(), r->engine->group.deadline_ms };
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < COUNT_OF(streams); i++)
        rc = device_watch(g->cuda, streams[i], NULL, look_at_clock, &x, err);
    return rc;
}

static int gpu_end(struct engine_replica *r, struct err *err)
{
    struct gpu *g = gpu_of(r);
    char name[32];
    int rc;

    /* Captured graphs first: NCCL keeps a communicator while a graph contains its sums. A graph
     * that runs is freed when it has ended. */
    gpu_free_lanes(g);
    rc = gpu_disconnect(r, err);
    if (rc == 0)
        rc = come_to_rest(r, err);
    plans_close_readers(r);
    if (rc == 0)
        return 0;
    g->is_lost = true; /* and with it its state */
    device_name(&r->engine->opts->devices[r->local], name, sizeof(name));
    return err_wrap(err, rc, "%s", name);
}

const struct engine_ops engine_gpu = {
    .name = "gpu",
    .open = gpu_open,
    .close = gpu_close,
    .cancel = plans_cancel,
    .replace_region = gpu_replace_region,
    .overlaps = gpu_overlaps,
    .describe_trace = gpu_describe_trace,
    .sync = gpu_sync,
    .snapshot = gpu_snapshot,
    .wait_snapshot = gpu_wait_snapshot,
    .staging = gpu_staging,
    .abandon_staging = gpu_abandon_staging,
    .discard = gpu_discard,
    .fetch_residuals = gpu_residual_fetch,
    .store_residuals = gpu_residual_store,
    .begin = gpu_begin,
    .bind = gpu_bind,
    .open_reader = plans_open_reader,
    .end = gpu_end,
    .run_lanes = gpu_run_lanes,
    .reduce = gpu_reduce,
    .scale = gpu_scale,
    .inspect = gpu_inspect,
    .verify_gradient = gpu_verify_gradient,
    .gradient_norm = gpu_gradient_norm,
    .update = gpu_update,
    .skip_update = gpu_skip_update,
    .checksum = gpu_checksum,
    .verify_state = gpu_verify_state,
    .end_step = gpu_clock_step_end,
    .evaluate = passes_evaluate,
    .describe_nonfinite = passes_describe_nonfinite,
    .locate_nonfinite = passes_locate_nonfinite,
};
