/* gpu.c - a GPU's memory, and its part of a generation. See gpu.h. */
#include "train/gpu_priv.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/text.h"
#include "comm/ras.h"
#include "graph/graph.h"

/* ---- memory ---- */

uint32_t gpu_n_inputs(const struct train *t)
{
    return t->opts->n_inputs + t->opts->n_targets + 1; /* the samples' weights */
}

size_t gpu_input_at(const struct replica *r, struct plan *plan, uint32_t i)
{
    size_t at = 0;

    for (uint32_t k = 0; k < i && k < gpu_n_inputs(r->train); k++)
        at += gpu_round(tensor_bytes(plan_input(plan, k)));
    return at;
}

/* Of either plan: they never run at once. */
static size_t work_bytes(const struct replica *r)
{
    size_t trains = plan_work_bytes(r->plan), evaluates = r->eval_plan != NULL ? plan_work_bytes(r->eval_plan) : 0;

    return trains > evaluates ? trains : evaluates;
}

/* 0: it does not tell. */
static uint64_t memory_of_gpu(const struct replica *r)
{
    struct cuda_gpu gpus[DEVICE_MAX];
    uint32_t n = 0, i = r->train->opts->devices[r->local].index;

    return r->gpu->cuda->gpus(gpus, DEVICE_MAX, &n, NULL) == 0 && i < n ? gpus[i].memory_bytes : 0;
}

/* The GPU's memory does not suffice: what it is for, and what takes less. If the GPU has not as much at all, it
 * is the job that has to change. */
static int explain_memory(const struct replica *r, struct err *err)
{
    const struct train *t = r->train;
    size_t grads = t->mem.depth * r->gpu->grads_floats * sizeof(float);
    uint64_t all = t->mem.state_bytes + grads + work_bytes(r), has = memory_of_gpu(r);
    char state_text[32], grads_text[32], work_text[32], name[32];

    text_bytes(state_text, sizeof(state_text), t->mem.state_bytes);
    text_bytes(grads_text, sizeof(grads_text), grads);
    text_bytes(work_text, sizeof(work_text), work_bytes(r));
    device_name(&t->opts->devices[r->local], name, sizeof(name));
    return err_wrap(err, has > 0 && all > has ? ERR_INPUT : ERR_NOMEM,
                    "%s has too little memory: weights and optimizer state take %s, gradients %s, a lane of %" PRIu32
                    " samples %s; more lanes (/train/lanes, now %" PRIu32 ") are smaller ones", name, state_text, grads_text,
                    t->lane_batch, work_text, t->opts->lanes);
}

/* A GPU's memory. */
static int take(const struct replica *r, void **out, size_t bytes, struct err *err)
{
    int rc = r->gpu->cuda->alloc(out, bytes, err);

    return rc == ERR_NOMEM ? explain_memory(r, err) : rc;
}

static int open_slot(struct replica *r, struct gpu_slot *s, struct err *err)
{
    struct gpu *g = r->gpu;
    const struct cuda_api *cuda = g->cuda;
    int rc = cuda->pin((void **)&s->pinned, g->inputs_bytes, err);

    if (rc == 0)
        rc = take(r, (void **)&s->stage, g->inputs_bytes, err);
    if (rc == 0)
        rc = cuda->pin((void **)&s->run, sizeof(*s->run), err);
    if (rc == 0)
        rc = take(r, (void **)&s->run_there, sizeof(*s->run), err);
    if (rc == 0)
        rc = cuda->event_open(false, &s->brought, err);
    if (rc == 0)
        rc = cuda->event_open(false, &s->taken, err);
    if (rc < 0)
        return rc;
    s->samples = calloc(r->train->lane_batch, sizeof(*s->samples));
    return s->samples != NULL ? 0 : err_set(err, ERR_NOMEM, "out of memory");
}

static void close_slot(struct gpu *g, struct gpu_slot *s)
{
    g->cuda->unpin(s->pinned);
    g->cuda->free(s->stage);
    g->cuda->unpin(s->run);
    g->cuda->free(s->run_there);
    g->cuda->event_close(s->brought);
    g->cuda->event_close(s->taken);
    free(s->samples);
}

static int open_streams(struct gpu *g, struct err *err)
{
    int rc = g->cuda->stream_open(CUDA_SOME_TIME, &g->work, err);

    if (rc == 0)
        rc = g->cuda->stream_open(CUDA_SOME_TIME, &g->feed, err);
    if (rc == 0) /* peers wait for it */
        rc = g->cuda->stream_open(CUDA_FIRST, &g->sums, err);
    if (rc == 0)
        rc = g->cuda->event_open(false, &g->ready, err);
    if (rc == 0)
        rc = g->cuda->event_open(false, &g->summed, err);
    if (rc == 0)
        rc = g->cuda->event_open(true, &g->began, err);
    if (rc == 0)
        rc = g->cuda->event_open(true, &g->ended, err);
    return rc;
}

/* The state has the layout of the host's. */
static float *in_state(const struct gpu *g, const struct train *t, const float *host)
{
    return host != NULL ? g->state + (host - t->mem.state) : NULL;
}

/* Gradients of tables are whole: who leaves rows alone has to be told which. */
static void lay_out_grads(struct gpu *g, const struct train *t)
{
    size_t words;
    uint32_t n_tables;

    g->grads_floats = t->mem.grads;
    if (update_resting_tables(t) == 0)
        return;
    (void)graph_tables(t->graph, &n_tables, &words);
    g->rows_at = (t->mem.grads + 63) / 64 * 64;
    g->grads_floats = g->rows_at + 64 * words;
}

static int open_memory(struct replica *r, struct err *err)
{
    struct train *t = r->train;
    struct gpu *g = r->gpu;
    const struct cuda_api *cuda = g->cuda;
    int rc = take(r, (void **)&g->state, t->mem.state_bytes, err);

    for (uint32_t i = 0; rc == 0 && i < t->mem.depth; i++)
        rc = take(r, (void **)&g->grads[i], g->grads_floats * sizeof(float), err);
    if (rc == 0)
        rc = take(r, &g->plan_work, work_bytes(r), err);
    if (rc == 0)
        rc = take(r, (void **)&g->look,
                  cuda_look_room(t->mem.state_bytes / sizeof(float)) * sizeof(*g->look), err);
    if (rc == 0)
        rc = take(r, (void **)&g->trouble, sizeof(*g->trouble), err);
    if (rc == 0)
        rc = cuda->pin((void **)&g->back, sizeof(*g->back) + gpu_control_floats(t) * sizeof(float), err);
    return rc;
}

static int open_optim(struct replica *r, struct err *err)
{
    struct train *t = r->train;
    uint32_t n, n_statistics = 0;
    const struct graph_param *p = graph_params(t->graph, &n);
    struct cuda_statistic *statistics = calloc(n + 1, sizeof(*statistics));
    int rc;

    if (statistics == NULL)
        return err_set(err, ERR_NOMEM, "out of memory");
    for (uint32_t i = 0; i < n; i++)
        if (p[i].kind == GRAPH_STATISTIC)
            statistics[n_statistics++] = (struct cuda_statistic){ p[i].offset, p[i].elements, p[i].momentum };
    rc = r->gpu->cuda->math->optim_open(optim_options(t->optim), statistics, n_statistics, &r->gpu->optim, err);
    free(statistics);
    return rc;
}

int gpu_open(struct replica *r, struct err *err)
{
    struct train *t = r->train;
    const struct device *d = &t->opts->devices[r->local];
    struct gpu *g = calloc(1, sizeof(*g));
    int rc;

    if (g == NULL)
        return err_set(err, ERR_NOMEM, "out of memory");
    r->gpu = g;
    g->cuda = device_cuda(d);
    rc = device_enter(d, err);
    if (rc == 0)
        rc = open_streams(g, err);
    lay_out_grads(g, t);
    if (rc == 0)
        rc = open_memory(r, err);
    if (rc < 0)
        return rc;
    if (g->rows_at > 0)
        plan_tell_rows(r->plan, g->rows_at);
    for (uint32_t s = 0; s < OPTIM_MAX_SLOTS; s++)
        g->slots[s] = in_state(g, t, t->mem.slots[s]);
    g->average = in_state(g, t, t->mem.average);
    plan_bind(r->plan, g->state, g->plan_work);
    if (r->eval_plan != NULL)
        plan_bind(r->eval_plan, t->opts->evaluate_average ? g->average : g->state, g->plan_work);
    g->inputs_bytes = gpu_input_at(r, r->plan, UINT32_MAX);
    for (uint32_t i = 0; rc == 0 && i < GPU_SLOTS; i++)
        rc = open_slot(r, &g->slot[i], err);
    if (rc == 0)
        rc = open_optim(r, err);
    if (rc == 0)
        rc = gpu_clock_open(r, err);
    return rc < 0 ? rc : gpu_copies_open(r, err);
}

static void drop_lanes(struct gpu *g)
{
    for (uint32_t i = 0; i < g->n_lanes * GPU_SLOTS; i++)
        g->cuda->graph_close(g->lanes[i].graph);
    free(g->lanes);
    g->lanes = NULL;
    g->n_lanes = 0;
}

void gpu_close(struct replica *r)
{
    struct gpu *g = r->gpu;

    if (g == NULL || g->is_lost) /* the process ends: it frees all, and does not wait */
        return;
    (void)device_enter(&r->train->opts->devices[r->local], NULL); /* what is not given back goes with the process */
    drop_lanes(g);
    g->cuda->math->optim_close(g->optim);
    gpu_copies_close(g);
    gpu_clock_close(g);
    for (uint32_t i = 0; i < GPU_SLOTS; i++)
        close_slot(g, &g->slot[i]);
    g->cuda->unpin(g->back);
    g->cuda->free(g->look);
    g->cuda->free(g->trouble);
    g->cuda->free(g->plan_work);
    for (uint32_t i = 0; i < MAX_TREE; i++)
        g->cuda->free(g->grads[i]);
    g->cuda->free(g->state);
    g->cuda->event_close(g->ready);
    g->cuda->event_close(g->summed);
    g->cuda->event_close(g->began);
    g->cuda->event_close(g->ended);
    g->cuda->stream_close(g->sums);
    g->cuda->stream_close(g->feed);
    g->cuda->stream_close(g->work);
    free(g);
    r->gpu = NULL;
}

/* ---- the state ---- */

int gpu_look_around(struct replica *r, struct err *err)
{
    const struct gpu *g = r->gpu;
    int rc = train_check_canceled(r->train, err);

    if (rc == 0 && g->comm != NULL && (rc = g->cuda->comm_state(g->comm, err)) < 0)
        return err_wrap(err, rc, "the sums of the GPUs");
    return rc < 0 ? rc : 0;
}

static int look_around(void *arg, struct err *err)
{
    return gpu_look_around(arg, err);
}

int gpu_wait(struct replica *r, struct cuda_event *e, struct err *err)
{
    return device_watch(r->gpu->cuda, e == NULL ? r->gpu->work : NULL, e, look_around, r, err);
}

int gpu_wait_stream(struct replica *r, struct cuda_stream *s, struct err *err)
{
    return device_watch(r->gpu->cuda, s, NULL, look_around, r, err);
}

int gpu_check_peers(const struct replica *r, uint64_t since_ns, struct err *err)
{
    uint64_t ms = (clock_ns() - since_ns) / 1000000, deadline = r->train->group.deadline_ms;
    char words[COMM_RAS_BYTES];

    /* As with the sums of CPUs: a peer that gives something up at the deadline says why. */
    if (deadline == 0 || ms <= deadline + deadline / 4)
        return 0;
    comm_ras_ask(words, sizeof(words));
    return err_set(err, ERR_TIMEOUT, "the other GPUs did not come within %.1f s; %s", (double)ms / 1e3, words);
}

void gpu_tell_wait(const struct replica *r, uint64_t since_ns, const char *what)
{
    enum { LONG_MS = 1000 };
    uint64_t ms = (clock_ns() - since_ns) / 1000000;
    char words[COMM_RAS_BYTES], text[COMM_RAS_BYTES + 160];
    struct train_event e = { .kind = TRAIN_WARN, .text = text };

    if (ms < LONG_MS || r->local != 0)
        return;
    comm_ras_ask(words, sizeof(words));
    snprintf(text, sizeof(text), "%s did not come for %.1f s; %s (NCCL_DEBUG=INFO in the environment tells more)",
             what, (double)ms / 1e3, words);
    train_tell(r->train, &e);
}

int gpu_give(struct replica *r, uint64_t held, struct err *err)
{
    struct train *t = r->train;
    struct gpu *g = r->gpu;
    int rc = 0;

    if (g->has_state && g->held == held && held > 0)
        return 0;
    rc = g->cuda->copy(g->state, t->mem.state, t->mem.state_bytes, g->work, err);
    if (rc == 0)
        rc = gpu_wait(r, NULL, err);
    g->has_state = rc == 0;
    g->held = held;
    return rc;
}

void gpu_hold(struct replica *r, uint64_t held)
{
    r->gpu->held = held;
}

void gpu_forget(struct replica *r)
{
    r->gpu->has_state = false;
}

int gpu_spoil(struct replica *r, enum gpu_number which, bool all, struct err *err)
{
    struct gpu *g = r->gpu;
    float *there = which == GPU_GRADIENT ? g->grads[0] : g->state, *here = &g->back->number;
    int rc = g->cuda->copy(here, there, sizeof(*here), g->work, err);

    if (rc == 0)
        rc = gpu_wait(r, NULL, err);
    if (all)
        *here = NAN;
    else
        *(uint8_t *)here ^= 1; /* of a fraction: nothing else would tell */
    if (rc == 0)
        rc = g->cuda->copy(there, here, sizeof(*here), g->work, err);
    if (rc == 0)
        rc = gpu_wait(r, NULL, err);
    return rc;
}

/* ---- a generation ---- */

static const char *name_of_rank(const struct train *t, uint32_t rank)
{
    uint32_t i = 0;

    for (; i + 1 < t->group.n_members && rank >= t->members[i].n_ranks; i++)
        rank -= t->members[i].n_ranks;
    return t->members[i].name;
}

/* NCCL's words on tasks that were given one GPU, for a person. */
static int explain(const struct replica *r, int rc, struct err *err)
{
    const struct train *t = r->train;
    const char *twice = rc < 0 ? strstr(err->text, "Duplicate GPU detected") : NULL;
    unsigned a, b;
    char name[32];

    if (twice == NULL || sscanf(twice, "Duplicate GPU detected : rank %u and rank %u", &a, &b) != 2)
        return rc;
    device_name(&t->opts->devices[r->local], name, sizeof(name));
    return err_set(err, rc, "%s and %s of this host have one GPU, %s of this task: give each a GPU of its own "
                            "(--devices cuda:0 and --devices cuda:1); for a test another NCCL_HOSTID in the "
                            "environment of each makes them hosts", name_of_rank(t, a < b ? a : b),
                   name_of_rank(t, a < b ? b : a), name);
}

static int connect_gpus(struct replica *r, struct err *err)
{
    struct train *t = r->train;
    struct gpu *g = r->gpu;
    uint32_t world = 0;
    unsigned char *id = (unsigned char *)r->grads[0]; /* where peers can see it */
    struct timespec nap = { .tv_nsec = 1000000 };
    uint64_t begin_ns = clock_ns();
    int rc = 0;

    for (uint32_t i = 0; i < t->group.n_members; i++)
        world += t->members[i].n_ranks;
    if (world == 1)
        return 0;
    place_enter(&r->place, PHASE_NCCL);
    memset(id, 0, CUDA_ID_BYTES);
    if (r->rank == 0)
        rc = g->cuda->comm_id(id, err);
    if (rc == 0)
        rc = comm_broadcast(t->comm, r->local, id, CUDA_ID_BYTES, 0, err);
    if (rc == 0)
        rc = g->cuda->comm_open(id, r->rank, world, &t->cancel, &g->comm, err);
    memset(id, 0, CUDA_ID_BYTES); /* it is the secret of this generation's sums */
    while (rc == 0 && (rc = g->cuda->comm_state(g->comm, err)) == 0) {
        place_wait(&r->place, PLACE_WAITS_PEERS);
        rc = train_check_canceled(t, err);
        if (rc < 0)
            gpu_tell_wait(r, begin_ns, "the other GPUs");
        if (rc == 0)
            rc = gpu_check_peers(r, begin_ns, err);
        nanosleep(&nap, NULL);
    }
    rc = explain(r, rc, err);
    return rc < 0 ? err_wrap(err, rc, "connect the GPUs (NCCL)") : 0;
}

int gpu_begin(struct replica *r, struct err *err)
{
    struct gpu *g = r->gpu;
    int rc;

    CHECK(g->lanes == NULL && g->comm == NULL);
    if (g->is_lost)
        return err_set(err, ERR_DEVICE, "the GPU is lost to this process");
    g->lanes = calloc((size_t)r->n_lanes * GPU_SLOTS + 1, sizeof(*g->lanes));
    if (g->lanes == NULL)
        return err_set(err, ERR_NOMEM, "out of memory");
    g->n_lanes = r->n_lanes;
    g->next = 0;
    g->first_step = 0;
    g->back->computed = 0;
    g->proves = true;
    for (uint32_t i = 0; i < GPU_SLOTS; i++)
        g->slot[i].is_full = false;
    gpu_clock_forget(r);
    rc = g->cuda->fill(g->trouble, 0, sizeof(*g->trouble), g->work, err);
    return rc < 0 ? rc : connect_gpus(r, err);
}

static int end_comm(struct replica *r, struct err *err)
{
    struct gpu *g = r->gpu;
    struct cuda_comm *comm = g->comm;

    g->comm = NULL;
    if (comm == NULL)
        return 0;
    /* In a generation that ended early a sum may be under way that a peer will never join. */
    return train_canceled(r->train) ? g->cuda->comm_abort(comm, err) : g->cuda->comm_close(comm, err);
}

struct rest {
    uint64_t begin_ns, deadline_ms;
};

static int look_at_clock(void *arg, struct err *err)
{
    const struct rest *x = arg;

    if (x->deadline_ms == 0 || (clock_ns() - x->begin_ns) / 1000000 <= x->deadline_ms)
        return 0;
    return err_set(err, ERR_DEVICE, "the GPU does not come to rest within %.1f s: only the end of the process "
                                    "frees it", (double)x->deadline_ms / 1e3);
}

/* All that was put on its streams is done: nobody asks whether it is canceled any more. */
static int come_to_rest(struct replica *r, struct err *err)
{
    struct gpu *g = r->gpu;
    struct cuda_stream *streams[] = { g->sums, g->feed, g->work, gpu_copies_stream(g) };
    struct rest x = { clock_ns(), r->train->group.deadline_ms };
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < COUNT_OF(streams); i++)
        rc = device_watch(g->cuda, streams[i], NULL, look_at_clock, &x, err);
    return rc;
}

void gpu_end(struct replica *r)
{
    struct gpu *g = r->gpu;
    struct err err;
    char name[32];
    int rc;

    /* First the graphs: NCCL lets no communicator go while one is left with its sums in it. One that is under
     * way goes when it has come to its end. */
    drop_lanes(g);
    rc = end_comm(r, &err);
    if (rc == 0)
        rc = come_to_rest(r, &err);
    if (rc == 0)
        return;
    g->is_lost = true; /* and with it its state */
    device_name(&r->train->opts->devices[r->local], name, sizeof(name));
    (void)err_wrap(&err, rc, "%s", name);
    train_lose(r->train, &err);
}
