/* gpu_residual.c - see gpu_residual.h. The codes are in gpu_residual_top_k.c and gpu_residual_power_sgd.c, and
 * gpu_residual_pack.c has what these share. */
#include "engine/gpu_residual.h"

#include <inttypes.h>

#include "base/err.h"
#include "engine/gpu_clock.h"
#include "engine/gpu_residual_priv.h"
#include "engine/gpu_types.h"
#include "engine/gpu_wait.h"
#include "engine/residual.h"
#include "opts/code.h"

static const struct gpu_residual_code *code_of(const struct engine_replica *r)
{
    return r->engine->residual.code->kind == CODE_TOP_K ? &gpu_residual_top_k
                                                        : &gpu_residual_power_sgd;
}

/* ---- a task ---- */

/* The parts of the memory, in floats. */
struct sizes {
    size_t left, exchange, messages, q, begin_q;
};

static struct sizes sizes_of(const struct engine_replica *r)
{
    const struct engine *e = r->engine;
    const struct residual_layout *l = &e->residual;
    size_t groups = e->opts->max_lanes / residual_group_lanes(e); /* of a replica, at most */

    return (struct sizes){ .left = groups * l->floats,
                           .exchange = gpu_residual_plain(r) + groups * l->p_floats,
                           .messages = l->code->groups * l->message,
                           .q = groups * l->q_floats,
                           .begin_q = l->q_floats };
}

size_t gpu_residual_bytes(const struct engine_replica *r)
{
    struct sizes s;

    if (!residual_exists(r->engine))
        return 0;
    s = sizes_of(r);
    return (s.left + s.exchange + s.messages + s.q + s.begin_q) * sizeof(float);
}

static int allocate(struct engine_replica *r, float **out, size_t floats, struct err *err)
{
    return floats > 0 ? gpu_of(r)->cuda->alloc((void **)out, floats * sizeof(float), err) : 0;
}

int gpu_residual_open(struct engine_replica *r, struct err *err)
{
    struct gpu_residual *k = &gpu_of(r)->residual;
    struct sizes s;
    int rc;

    if (!residual_exists(r->engine))
        return 0;
    s = sizes_of(r);
    rc = allocate(r, &k->left, s.left, err);
    if (rc == 0)
        rc = allocate(r, &k->exchange, s.exchange, err);
    if (rc == 0)
        rc = allocate(r, &k->messages, s.messages, err);
    if (rc == 0)
        rc = allocate(r, &k->q, s.q, err);
    if (rc == 0)
        rc = allocate(r, &k->begin_q, s.begin_q, err);
    return rc;
}

void gpu_residual_close(struct engine_replica *r)
{
    struct gpu *g = gpu_of(r);
    struct gpu_residual *k = &g->residual;

    g->cuda->free(k->left);
    g->cuda->free(k->exchange);
    g->cuda->free(k->messages);
    g->cuda->free(k->q);
    g->cuda->free(k->begin_q);
    *k = (struct gpu_residual){ 0 };
}

/* ---- a step ---- */

/* Multiplies x [n] by a power of two. */
static int scale(struct engine_replica *r, float *x, size_t n, double by, struct err *err)
{
    struct gpu *g = gpu_of(r);

    return by == 1 ? 0 : g->cuda->math->scale(x, n, (float)by, g->streams.work, err);
}

int gpu_residual_begin_step(struct engine_replica *r, struct err *err)
{
    struct gpu *g = gpu_of(r);
    size_t n;
    int rc;

    if (!residual_is_on(r->engine))
        return 0;
    n = gpu_residual_groups(r) * r->engine->residual.floats;
    rc = gpu_clock_work_begin(r, err);
    if (rc == 0)
        rc = g->cuda->copy(g->residual.left, gpu_residual_in_state(r, gpu_residual_first(r)),
                           n * sizeof(float), g->streams.work, err);
    if (rc == 0)
        rc = scale(r, g->residual.left, n, r->scale, err);
    return rc < 0 ? rc : gpu_clock_work_end(r, err);
}

int gpu_residual_take_group(struct engine_replica *r, uint32_t lane, uint32_t merges,
                            const float *sum, struct err *err)
{
    const struct residual_layout *l = &r->engine->residual;
    struct gpu *g = gpu_of(r);
    uint32_t lanes;
    int rc = 0;

    if (!residual_is_on(r->engine))
        return 0;
    lanes = residual_group_lanes(r->engine);
    if ((lane + 1) % lanes != 0 || merges != (uint32_t)__builtin_ctz(lanes))
        return 0;
    for (uint32_t k = 0; rc == 0 && k < l->n; k++)
        rc = g->cuda->math->residual_add(gpu_residual_left(r, lane / lanes) + l->parts[k].at,
                                         sum + l->parts[k].offset, l->parts[k].elements,
                                         g->streams.work, err);
    return rc < 0 ? rc : code_of(r)->take_group(r, lane / lanes, err);
}

int gpu_residual_reduce(struct engine_replica *r, struct err *err)
{
    struct gpu *g = gpu_of(r);
    int rc;

    if (!residual_is_on(r->engine))
        return 0;
    rc = code_of(r)->reduce(r, g->comm != NULL ? g->streams.reduce : g->streams.work, err);
    if (g->comm != NULL) {
        /* reduce-scatter and all-gather */
        double halves = 2.0 * (g->order.world - 1) / g->order.world;

        g->codes.sent += (uint64_t)(code_of(r)->sent(r) * sizeof(float));
        g->codes.plain += (uint64_t)(halves * (double)r->engine->residual.floats * sizeof(float));
    }
    return rc;
}

int gpu_residual_apply(struct engine_replica *r, struct err *err)
{
    const struct residual_layout *l = &r->engine->residual;
    struct gpu *g = gpu_of(r);
    float *residuals, *q;
    size_t n;
    int rc;

    if (!residual_is_on(r->engine))
        return 0;
    q = gpu_residual_in_state(r, l->code->groups);
    residuals = gpu_residual_in_state(r, gpu_residual_first(r));
    n = gpu_residual_groups(r) * l->floats;
    rc = g->cuda->copy(residuals, g->residual.left, n * sizeof(float), g->streams.work, err);
    if (rc == 0)
        rc = scale(r, residuals, n, 1 / r->scale, err);
    if (rc == 0 && l->q_floats > 0)
        rc = g->cuda->copy(q, g->residual.q, l->q_floats * sizeof(float), g->streams.work, err);
    return rc < 0 ? rc : scale(r, q, l->q_floats, 1 / r->scale, err);
}

/* ---- between two steps ---- */

/* Copies floats [begin, end) of the state to the host. */
static int fetch(struct engine_replica *r, const float *begin, const float *end, struct err *err)
{
    struct gpu *g = gpu_of(r);
    float *to = r->engine->memory.state + (begin - g->state.floats);

    return end > begin ? g->cuda->copy(to, begin, (size_t)(end - begin) * sizeof(float),
                                       g->streams.work, err)
                       : 0;
}

int gpu_residual_fetch(struct engine_replica *r, uint64_t held, struct err *err)
{
    const struct residual_layout *l = &r->engine->residual;
    struct engine *e = r->engine;
    struct gpu *g = gpu_of(r);
    uint32_t first = gpu_residual_first(r), n = gpu_residual_groups(r);
    const float *q = gpu_residual_in_state(r, l->code->groups);
    int rc;

    if (!g->state.is_held || g->state.held != held)
        return err_set(err, ERR_DEVICE, "the GPU does not hold the state after step %" PRIu64,
                       held);
    rc = fetch(r, gpu_residual_in_state(r, first), gpu_residual_in_state(r, first + n), err);
    if (rc == 0 && r->local == 0)
        rc = fetch(r, g->state.floats, gpu_residual_in_state(r, 0), err);
    if (rc == 0 && r->local == 0)
        rc = fetch(r, q, q + l->q_floats, err);
    if (rc == 0)
        rc = gpu_wait(r, NULL, err);
    if (rc == 0 && r->local == 0)
        e->memory.step = held;
    return rc;
}

int gpu_residual_store(struct engine_replica *r, struct err *err)
{
    const struct engine *e = r->engine;
    struct gpu *g = gpu_of(r);
    int rc;

    if (g->comm == NULL) /* all groups are its own */
        return 0;
    rc = g->cuda->copy(gpu_residual_in_state(r, 0), residual_of_group(e, 0),
                       e->residual.code->groups * e->residual.floats * sizeof(float),
                       g->streams.work, err);
    return rc < 0 ? rc : gpu_wait(r, NULL, err);
}
