/* gpu_memory.c - see gpu_memory.h. */
#include "engine/gpu_memory.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/text.h"
#include "engine/common.h"
#include "engine/gpu_clock.h"
#include "engine/gpu_codes.h"
#include "engine/gpu_copy.h"
#include "engine/gpu_feed.h"
#include "engine/gpu_order.h"
#include "engine/gpu_residual.h"
#include "engine/gpu_types.h"
#include "engine/plans.h"
#include "engine/tables.h"
#include "graph/graph.h"

/* 0: unknown. */
static uint64_t memory_of_gpu(const struct engine_replica *r)
{
    struct cuda_gpu gpus[DEVICE_MAX];
    uint32_t n = 0, i = r->engine->opts->devices[r->local].index;

    return gpu_of(r)->cuda->gpus(gpus, DEVICE_MAX, &n, NULL) == 0 && i < n ? gpus[i].memory_bytes
                                                                           : 0;
}

/* The GPU's memory does not suffice: states the uses of the memory, and the remedy. If the whole
 * GPU has less, the job has to change. */
static int explain_memory(const struct engine_replica *r, struct err *err)
{
    const struct engine *e = r->engine;
    size_t grads = gpu_codes_gradient_bytes(r);
    uint64_t all = e->memory.state_bytes + grads + plans_work_bytes(r), has = memory_of_gpu(r);
    char state_text[32], grads_text[32], work_text[32], name[32];

    text_bytes(state_text, sizeof(state_text), e->memory.state_bytes);
    text_bytes(grads_text, sizeof(grads_text), grads);
    text_bytes(work_text, sizeof(work_text), plans_work_bytes(r));
    device_name(&e->opts->devices[r->local], name, sizeof(name));
    return err_wrap(err, has > 0 && all > has ? ERR_INPUT : ERR_NOMEM,
                    "%s has too little memory: weights and optimizer state take %s, gradients %s, "
                    "a lane of %" PRIu32 " samples %s; more lanes (/train/lanes, now %" PRIu32
                    ") are smaller ones",
                    name, state_text, grads_text, e->opts->lane_batch, work_text, e->opts->lanes);
}

static int allocate(const struct engine_replica *r, void **out, size_t bytes, struct err *err)
{
    int rc = gpu_of(r)->cuda->alloc(out, bytes, err);

    return rc == ERR_NOMEM ? explain_memory(r, err) : rc;
}

static int open_slot(struct engine_replica *r, struct gpu_slot *s, struct err *err)
{
    struct gpu *g = gpu_of(r);
    const struct cuda_api *cuda = g->cuda;
    int rc = cuda->pin((void **)&s->pinned, g->feed.bytes, err);

    if (rc == 0)
        rc = allocate(r, (void **)&s->stage, g->feed.bytes, err);
    if (rc == 0)
        rc = cuda->pin((void **)&s->run, sizeof(*s->run), err);
    if (rc == 0)
        rc = allocate(r, (void **)&s->run_there, sizeof(*s->run), err);
    if (rc == 0)
        rc = cuda->event_open(true, &s->sending, err);
    if (rc == 0)
        rc = cuda->event_open(true, &s->sent, err);
    if (rc == 0)
        rc = cuda->event_open(false, &s->used, err);
    if (rc < 0)
        return rc;
    s->samples = calloc(r->engine->opts->lane_batch, sizeof(*s->samples));
    return s->samples != NULL ? 0 : err_set(err, ERR_NOMEM, "out of memory");
}

static void close_slot(struct gpu *g, struct gpu_slot *s)
{
    g->cuda->unpin(s->pinned);
    g->cuda->free(s->stage);
    g->cuda->unpin(s->run);
    g->cuda->free(s->run_there);
    g->cuda->event_close(s->sending);
    g->cuda->event_close(s->sent);
    g->cuda->event_close(s->used);
    free(s->samples);
}

static int open_streams(struct gpu *g, struct err *err)
{
    int rc = g->cuda->stream_open(CUDA_LOW_PRIORITY, &g->streams.work, err);

    if (rc == 0)
        rc = g->cuda->stream_open(CUDA_LOW_PRIORITY, &g->streams.feed, err);
    if (rc == 0) /* peers wait for it */
        rc = g->cuda->stream_open(CUDA_HIGH_PRIORITY, &g->streams.reduce, err);
    if (rc == 0)
        rc = g->cuda->event_open(false, &g->streams.ready, err);
    if (rc == 0)
        rc = g->cuda->event_open(false, &g->streams.reduced, err);
    if (rc == 0)
        rc = g->cuda->event_open(true, &g->timing.began, err);
    if (rc == 0)
        rc = g->cuda->event_open(true, &g->timing.ended, err);
    return rc;
}

/* The state has the layout of the host's. */
static float *in_state(const struct gpu *g, const struct engine *e, const float *host)
{
    return host != NULL ? g->state.floats + (host - e->memory.state) : NULL;
}

/* Gradients of tables are whole. An update that leaves rows alone needs to know which rows were
 * read. */
static void lay_out_grads(struct gpu *g, const struct engine *e)
{
    size_t words;
    uint32_t n_tables;

    g->grads.floats = e->memory.grads;
    if (tables_n_lazy(e->opts) == 0)
        return;
    (void)graph_tables(e->opts->graph, &n_tables, &words);
    g->grads.rows_at = (e->memory.grads + 63) / 64 * 64;
    g->grads.floats = g->grads.rows_at + 64 * words;
}

static int open_codes(struct engine_replica *r, struct err *err)
{
    int rc = gpu_codes_open(r, err);

    if (rc == 0)
        rc = gpu_residual_open(r, err);
    return rc == ERR_NOMEM ? explain_memory(r, err) : rc;
}

static int open_memory(struct engine_replica *r, struct err *err)
{
    struct engine *e = r->engine;
    struct gpu *g = gpu_of(r);
    const struct cuda_api *cuda = g->cuda;
    int rc = allocate(r, (void **)&g->state.floats, e->memory.state_bytes, err);

    for (uint32_t i = 0; rc == 0 && i < e->memory.depth; i++)
        rc = allocate(r, (void **)&g->grads.tree[i], g->grads.floats * sizeof(float), err);
    if (rc == 0 && gpu_order_received_bytes(r) > 0)
        rc = allocate(r, (void **)&g->order.received, gpu_order_received_bytes(r), err);
    if (rc == 0 && gpu_order_received_bytes(r) > 0)
        rc = allocate(r, (void **)&g->order.merges, e->opts->max_replicas, err);
    if (rc == 0)
        rc = gpu_order_open(r, err);
    if (rc == 0)
        rc = open_codes(r, err);
    if (rc == 0)
        rc = allocate(r, &g->plan_work, plans_work_bytes(r), err);
    if (rc == 0)
        rc = allocate(
            r, (void **)&g->report.look,
            cuda_scan_count(e->memory.state_bytes / sizeof(float)) * sizeof(*g->report.look), err);
    if (rc == 0)
        rc = allocate(r, (void **)&g->report.trouble, sizeof(*g->report.trouble), err);
    if (rc == 0)
        rc = cuda->pin((void **)&g->report.readback,
                       sizeof(*g->report.readback) + e->opts->control_floats * sizeof(float), err);
    return rc;
}

static int open_optim(struct engine_replica *r, struct err *err)
{
    struct engine *e = r->engine;
    uint32_t n, n_statistics = 0;
    const struct graph_param *p = graph_params(e->opts->graph, &n);
    struct cuda_statistic *statistics = calloc(n + 1, sizeof(*statistics));
    int rc;

    if (statistics == NULL)
        return err_set(err, ERR_NOMEM, "out of memory");
    for (uint32_t i = 0; i < n; i++)
        if (p[i].kind == GRAPH_STATISTIC)
            statistics[n_statistics++] =
                (struct cuda_statistic){ p[i].offset, p[i].elements, p[i].momentum };
    rc = gpu_of(r)->cuda->math->optim_open(optim_options(e->opts->optim), statistics, n_statistics,
                                           &gpu_of(r)->optim, err);
    free(statistics);
    return rc;
}

int gpu_open_device(struct engine_replica *r, struct err *err)
{
    struct engine *e = r->engine;
    const struct device *d = &e->opts->devices[r->local];
    struct gpu *g = calloc(1, sizeof(*g));
    int rc;

    if (g == NULL)
        return err_set(err, ERR_NOMEM, "out of memory");
    r->device = g;
    g->cuda = device_cuda(d);
    rc = device_enter(d, err);
    if (rc == 0)
        rc = open_streams(g, err);
    lay_out_grads(g, e);
    if (rc == 0)
        rc = open_memory(r, err);
    if (rc < 0)
        return rc;
    if (g->grads.rows_at > 0)
        plan_record_rows(r->plans->train, g->grads.rows_at);
    for (uint32_t s = 0; s < OPTIM_MAX_SLOTS; s++)
        g->state.slots[s] = in_state(g, e, e->memory.slots[s]);
    g->state.average = in_state(g, e, e->memory.average);
    plan_bind(r->plans->train, g->state.floats, g->plan_work);
    if (r->plans->eval != NULL)
        plan_bind(r->plans->eval, e->opts->evaluate_average ? g->state.average : g->state.floats,
                  g->plan_work);
    g->feed.bytes = gpu_input_at(r, r->plans->train, UINT32_MAX);
    for (uint32_t i = 0; rc == 0 && i < GPU_SLOTS; i++)
        rc = open_slot(r, &g->feed.slot[i], err);
    if (rc == 0)
        rc = open_optim(r, err);
    if (rc == 0)
        rc = gpu_clock_open(r, err);
    return rc < 0 ? rc : gpu_copies_open(r, err);
}

void gpu_free_lanes(struct gpu *g)
{
    for (uint32_t i = 0; i < g->n_lanes * GPU_SLOTS; i++)
        g->cuda->graph_close(g->lanes[i].graph);
    free(g->lanes);
    g->lanes = NULL;
    g->n_lanes = 0;
}

void gpu_close_device(struct engine_replica *r)
{
    struct gpu *g = gpu_of(r);

    if (g == NULL || g->is_lost) /* the process ends: it frees all, and does not wait */
        return;
    /* what cannot be freed ends with the process */
    (void)device_enter(&r->engine->opts->devices[r->local], NULL);
    gpu_free_lanes(g);
    g->cuda->math->optim_close(g->optim);
    gpu_copies_close(g);
    gpu_clock_close(g);
    for (uint32_t i = 0; i < GPU_SLOTS; i++)
        close_slot(g, &g->feed.slot[i]);
    g->cuda->unpin(g->report.readback);
    g->cuda->free(g->report.look);
    g->cuda->free(g->report.trouble);
    g->cuda->free(g->plan_work);
    for (uint32_t i = 0; i < MEMORY_MAX_TREE; i++)
        g->cuda->free(g->grads.tree[i]);
    g->cuda->free(g->order.received);
    g->cuda->free(g->order.merges);
    gpu_order_close(r);
    gpu_codes_close(r);
    gpu_residual_close(r);
    g->cuda->free(g->state.floats);
    g->cuda->event_close(g->streams.ready);
    g->cuda->event_close(g->streams.reduced);
    g->cuda->event_close(g->timing.began);
    g->cuda->event_close(g->timing.ended);
    g->cuda->stream_close(g->streams.reduce);
    g->cuda->stream_close(g->streams.feed);
    g->cuda->stream_close(g->streams.work);
    free(g);
    r->device = NULL;
}
