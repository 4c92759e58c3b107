/* gpu_feed.c - see gpu_feed.h. */
#include "engine/gpu_feed.h"

#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "engine/gpu_clock.h"
#include "engine/gpu_types.h"
#include "engine/gpu_wait.h"
#include "engine/plans.h"
#include "engine/trace.h"
#include "graph/graph.h"

size_t gpu_input_at(const struct engine_replica *r, struct plan *plan, uint32_t i)
{
    size_t at = 0;

    for (uint32_t k = 0; k < i && k < plans_n_inputs(r->engine); k++)
        at += gpu_round(tensor_bytes(plan_input(plan, k)));
    return at;
}

/* ---- a batch on its way ---- */

struct fill {
    struct engine_replica *r;
    struct gpu_slot *s;
};

static void *pinned_at(void *arg, struct plan *plan, uint32_t i)
{
    struct fill *f = arg;

    return f->s->pinned + gpu_input_at(f->r, plan, i);
}

static void fill_slot(struct engine_replica *r, struct gpu_slot *s, struct plan *plan,
                      const struct data_batch *b)
{
    const struct engine *e = r->engine;
    struct fill f = { r, s };

    plans_copy_batch(e, plan, b, pinned_at, &f);
    memcpy(s->samples, b->samples, e->opts->lane_batch * sizeof(*s->samples));
    s->b = *b;
    s->b.samples = s->samples;
    s->b.features = NULL;
    s->b.weights = NULL;
}

/* Keeps the duration of the last copy of the slot, which has ended. The caller of the step takes the
 * durations; what it leaves is replaced. */
static void add_time(struct engine_replica *r, struct gpu_slot *s)
{
    if (!s->is_timed)
        return;
    if (r->n_feeds == ENGINE_FEEDS)
        r->n_feeds = 0;
    r->feed_ms[r->n_feeds++] = (float)gpu_of(r)->cuda->elapsed_ms(s->sending, s->sent);
    s->is_timed = false;
}

/* To the stage, when the previous lane in the slot has been copied out of it, and its transfer has
 * ended. */
static int send_slot(struct engine_replica *r, struct gpu_slot *s, struct plan *plan,
                     const struct data_batch *b, struct err *err)
{
    struct gpu *g = gpu_of(r);
    int rc = gpu_wait(r, s->sent, err);

    if (rc < 0)
        return rc;
    add_time(r, s);
    fill_slot(r, s, plan, b);
    rc = g->cuda->wait(g->streams.feed, s->used, err);
    if (rc == 0)
        rc = g->cuda->record(s->sending, g->streams.feed, err);
    if (rc == 0)
        rc = gpu_span_begin(r, TRACE_FEED, err);
    if (rc == 0)
        rc = g->cuda->copy(s->stage, s->pinned, g->feed.bytes, g->streams.feed, err);
    if (rc == 0)
        rc = gpu_span_end(r, TRACE_FEED, TRACE_DATA, b->lane, err);
    if (rc == 0)
        rc = g->cuda->record(s->sent, g->streams.feed, err);
    s->is_full = s->is_timed = rc == 0;
    return rc;
}

int gpu_send_batch(struct engine_replica *r, struct gpu_slot *s, struct err *err)
{
    const struct data_batch *b;
    uint64_t before = clock_ns(), now;
    int rc = data_next(r->plans->reader, &b, err);

    now = clock_ns();
    r->data_ns += now - before;
    if (rc < 0 || b == NULL)
        return rc;
    trace_add(r->trace, TRACE_DATA, b->lane, before, now);
    rc = send_slot(r, s, r->plans->train, b, err);
    data_release(r->plans->reader);
    return rc;
}

int gpu_copy_inputs(struct engine_replica *r, struct gpu_slot *s, struct plan *plan,
                    struct err *err)
{
    struct gpu *g = gpu_of(r);
    int rc = 0;

    for (uint32_t i = 0; rc == 0 && i < plans_n_inputs(r->engine); i++) {
        const struct tensor *in = plan_input(plan, i);

        rc = g->cuda->copy(in->data, s->stage + gpu_input_at(r, plan, i), tensor_bytes(in),
                           g->streams.work, err);
    }
    return rc;
}

int gpu_send_run(struct engine_replica *r, struct gpu_slot *s, const struct op_run *run,
                 struct err *err)
{
    struct gpu *g = gpu_of(r);

    *s->run = *run;
    s->run->queue = g->streams.work;
    s->run->device = s->run_there;
    s->run->invalid = g->report.trouble;
    return g->cuda->copy(s->run_there, s->run, sizeof(*s->run), g->streams.work, err);
}

int gpu_feed(struct engine_replica *r, struct plan *plan, const struct data_batch *b,
             struct err *err)
{
    struct gpu *g = gpu_of(r);
    /* the other one may hold what comes next */
    struct gpu_slot *s = &g->feed.slot[(g->feed.next + 1) % GPU_SLOTS];
    int rc;

    gpu_clock_reset(r);
    rc = send_slot(r, s, plan, b, err);
    s->is_full = false;
    if (rc == 0)
        rc = g->cuda->wait(g->streams.work, s->sent, err);
    if (rc == 0)
        rc = gpu_copy_inputs(r, s, plan, err);
    return rc < 0 ? rc : g->cuda->record(s->used, g->streams.work, err);
}
