/* gpu_reduce.c - see gpu_reduce.h. */
#include "engine/gpu_reduce.h"

#include <stdatomic.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/fault.h"
#include "engine/common.h"
#include "engine/gpu_clock.h"
#include "engine/gpu_codes.h"
#include "engine/gpu_feed.h"
#include "engine/gpu_pass.h"
#include "engine/gpu_residual.h"
#include "engine/gpu_sums.h"
#include "engine/gpu_types.h"
#include "engine/gpu_wait.h"
#include "engine/plans.h"
#include "engine/refused.h"
#include "engine/trace.h"

/* A note as evidence that the requested device did the work, by its own clock. */
static void note_device(struct engine_replica *r)
{
    struct engine *e = r->engine;
    struct gpu *g = gpu_of(r);
    char text[256], name[32];

    if (!g->timing.notes_device)
        return;
    g->timing.notes_device = false;
    device_name(&e->opts->devices[r->local], name, sizeof(name));
    snprintf(text, sizeof(text),
             "%s computed lanes %" PRIu32 " to %" PRIu32 " of the first step in %.1f ms", name,
             r->first_lane, r->first_lane + r->n_lanes - 1,
             g->cuda->elapsed_ms(g->timing.began, g->timing.ended));
    engine_note(e, false, text);
}

/* The lanes have written loss and weight on the GPU. The caller's words come from replica 0; those
 * of the other replicas are 0. */
static int send_control(struct engine_replica *r, struct err *err)
{
    struct engine *e = r->engine;
    struct gpu *g = gpu_of(r);
    size_t n = e->opts->control_floats - ENGINE_WORDS;
    float *from = g->report.readback->control + ENGINE_WORDS;
    int rc = g->cuda->copy(g->grads.tree[0] + e->memory.params + ENGINE_TROUBLE,
                           &g->report.trouble->found, sizeof(float), g->streams.work, err);

    if (rc < 0 || r->local != 0)
        return rc;
    memcpy(from, r->arenas->grads[0] + e->memory.params + ENGINE_WORDS, n * sizeof(float));
    return g->cuda->copy(g->grads.tree[0] + e->memory.params + ENGINE_WORDS, from,
                         n * sizeof(float), g->streams.work, err);
}

/* Fault points change the gradient of the last GPU of a task: the others have to detect it. */
static int inject_faults(struct engine_replica *r, struct err *err)
{
    int rc = 0;

    if (r->local + 1 != r->engine->opts->n_devices)
        return 0;
    if (fault_hit("health.flip_gradient"))
        rc = gpu_inject(r, GPU_GRADIENT, false, err);
    if (rc == 0 && fault_hit("health.not_finite"))
        rc = gpu_inject(r, GPU_GRADIENT, true, err);
    return rc;
}

static int look(struct engine_replica *r, struct err *err)
{
    struct engine *e = r->engine;
    struct gpu *g = gpu_of(r);
    float clip = (float)(e->opts->clip_value * r->scale);
    int rc = inject_faults(r, err);

    if (rc == 0)
        rc = g->cuda->math->optim_scan(g->optim, g->grads.tree[0], clip, g->report.look,
                                       g->streams.work, err);
    if (rc == 0)
        rc = g->cuda->copy(&g->report.readback->look, g->report.look, sizeof(*g->report.look),
                           g->streams.work, err);
    return rc < 0 ? rc : gpu_span_end(r, TRACE_WORK, TRACE_CHECK, 0, err);
}

/* The first batch of the next lane goes to the GPU while this step's sums are in progress. */
static int fetch_ahead(struct engine_replica *r, struct err *err)
{
    struct gpu_slot *s = &gpu_of(r)->feed.slot[gpu_of(r)->feed.next];

    return s->is_full ? 0 : gpu_send_batch(r, s, err);
}

struct sums_wait {
    struct engine_replica *r;
    /* when the wait for other GPUs began, and was stated last; 0: this GPU computes */
    uint64_t since_ns, stated_ns;
};

enum { STATE_NS = 50000000 };

/* States the wait for peers again and again (place.h). */
static int look_at_sums(void *arg, struct err *err)
{
    struct sums_wait *w = arg;
    struct engine_replica *r = w->r;
    int rc = gpu_poll(r, err);

    if (rc < 0) {
        if (rc == ERR_CANCELED && w->since_ns > 0)
            gpu_note_wait(r, w->since_ns, "the all-reduce of the GPUs");
        return rc;
    }
    if (gpu_of(r)->comm == NULL || atomic_load_explicit(&gpu_of(r)->report.readback->computed,
                                                        memory_order_relaxed) != gpu_of(r)->step)
        return 0;
    if (w->since_ns == 0)
        w->since_ns = clock_ns();
    if (clock_ns() - w->stated_ns > STATE_NS) {
        w->stated_ns = clock_ns();
        place_wait(&r->place, PLACE_WAITS_PEERS);
    }
    return gpu_check_peers(r, w->since_ns, err);
}

static int wait_for_sums(struct engine_replica *r, struct err *err)
{
    struct sums_wait w = { .r = r };
    int rc = device_watch(gpu_of(r)->cuda, gpu_of(r)->streams.work, NULL, look_at_sums, &w, err);

    r->reduce_ns = w.since_ns > 0 ? clock_ns() - w.since_ns : 0;
    return rc < 0 ? err_wrap(err, rc, "sum up the gradients (NCCL)") : 0;
}

static int all_reduce(struct engine_replica *r, uint64_t step, struct err *err)
{
    struct engine *e = r->engine;
    struct gpu *g = gpu_of(r);
    size_t n = e->opts->control_floats * sizeof(float);
    int rc = gpu_begin_work(r, err);

    if (rc == 0)
        rc = send_control(r, err);
    if (rc == 0 && g->comm != NULL)
        rc = fault_error("train.bucket", err);
    if (rc == 0 && g->comm != NULL)
        rc = gpu_all_reduce(r, g->grads.added, g->grads.floats, err);
    if (rc == 0 && g->comm != NULL)
        rc = gpu_wait_all_reduce(r, err);
    if (rc == 0 && g->comm == NULL)
        rc = gpu_codes_round_all(r, err);
    if (rc == 0 && g->comm == NULL)
        rc = gpu_residual_reduce(r, err);
    if (rc == 0)
        rc = g->cuda->copy(g->report.readback->control, g->grads.tree[0] + e->memory.params, n,
                           g->streams.work, err);
    /* else the gradient is not final before gpu_scale() */
    if (rc == 0 && !e->opts->mean_of_weights)
        rc = look(r, err);
    if (rc == 0)
        rc = gpu_clock_work_end(r, err);
    if (rc == 0)
        rc = fetch_ahead(r, err);
    if (rc < 0)
        return rc;
    rc = wait_for_sums(r, err);
    place_wait(&r->place, PLACE_WORKS);
    if (rc < 0)
        return rc;
    r->coded_bytes = g->codes.sent; /* earlier, local replica 0 may still report those of the step before */
    r->coded_plain_bytes = g->codes.plain;
    memcpy(r->arenas->grads[0] + e->memory.params, g->report.readback->control, n);
    note_device(r);
    gpu_clock_read(r);
    if (g->report.readback->control[ENGINE_TROUBLE] > 0) /* on any GPU of the group */
        rc = gpu_check_trouble(r, r->plans->train, err);
    if (rc == ERR_INPUT)
        rc = refused_place_lane(r, step, &g->report.readback->trouble, rc, err);
    return rc < 0 ? err_wrap(err, rc, "lane %" PRIu32, g->report.readback->trouble.lane) : 0;
}

int gpu_reduce(struct engine_replica *r, uint64_t step, struct err *err)
{
    uint64_t before = clock_ns();
    int rc;

    place_bucket(&r->place, step, 0);
    rc = all_reduce(r, step, err);
    trace_add(r->trace, TRACE_REDUCTION, 0, before, clock_ns());
    return rc;
}

int gpu_scale(struct engine_replica *r, float by, struct err *err)
{
    struct engine *e = r->engine;
    struct gpu *g = gpu_of(r);
    int rc = gpu_begin_work(r, err);

    if (rc == 0)
        rc = g->cuda->math->scale(g->grads.tree[0], e->memory.trained, by, g->streams.work, err);
    if (rc == 0)
        rc = look(r, err);
    if (rc == 0)
        rc = gpu_clock_work_end(r, err);
    return rc < 0 ? rc : gpu_wait(r, NULL, err);
}
