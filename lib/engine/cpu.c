/* cpu.c - the verbs of engine_cpu that open and close; the others are in cpu_step.c (lanes),
 * cpu_reduce.c, cpu_check.c, cpu_update.c and passes.c. */
#include "engine/cpu.h"

#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "engine/codes.h"
#include "engine/common.h"
#include "engine/cpu_check.h"
#include "engine/cpu_lane.h"
#include "engine/cpu_reduce.h"
#include "engine/cpu_spare.h"
#include "engine/cpu_step.h"
#include "engine/cpu_types.h"
#include "engine/cpu_update.h"
#include "engine/passes.h"
#include "engine/plans.h"
#include "engine/residual.h"
#include "engine/tables.h"
#include "engine/trace_types.h"
#include "graph/graph.h"

static const struct pass pass = { cpu_feed, cpu_run, cpu_fetch_gradients, false };

static void cpu_close(struct engine *e)
{
    for (uint32_t i = 0; e->replicas != NULL && i < e->opts->n_devices; i++) {
        struct engine_replica *r = e->replicas[i];
        struct cpu *c = r != NULL ? r->device : NULL;

        if (r != NULL)
            plans_close(r);
        if (c == NULL)
            continue;
        device_mem_close(&c->work);
        device_mem_close(&c->eval_work);
        free(c);
    }
    codes_close(e);
    residual_close(e);
    engine_fini(e);
    free(e);
}

static int open_replica(struct engine_replica *r, struct err *err)
{
    struct cpu *c = calloc(1, sizeof(*c));
    int rc;

    if (c == NULL)
        return err_set(err, ERR_NOMEM, "replica: out of memory");
    r->device = c;
    rc = device_mem_open(&c->work, plan_work_bytes(r->plans->train), false, err);
    if (rc == 0 && r->plans->eval != NULL)
        rc = device_mem_open(&c->eval_work, plan_work_bytes(r->plans->eval), false, err);
    return rc;
}

/* The slots of a replica: one for each row that its lanes of a step, or a lane of an evaluation, can
 * read. */
static int open_remote(const struct engine *e, struct memory_opts *m, struct err *err)
{
    struct engine_remote *remote = e->opts->remote;
    const struct plans *plans = e->replicas[0]->plans;

    if (remote == NULL)
        return 0;
    for (uint32_t i = 0; i < remote->n_tables; i++) {
        uint64_t room = plan_lookup_room(plans->train, i) * e->opts->max_lanes;
        uint64_t eval = plans->eval != NULL ? plan_lookup_room(plans->eval, i) : 0;

        remote->tables[i].rows = room > eval ? room : eval;
    }
    remote->words = packed_layout(remote->tables, remote->n_tables);
    m->remote = remote->tables;
    m->n_remote = remote->n_tables;
    m->remote_words = remote->words;
    return remote->open(remote->arg, err);
}

static int cpu_open(const struct engine_opts *opts, struct engine **out, struct err *err)
{
    struct engine *e = calloc(1, sizeof(*e));
    struct memory_opts m;
    int rc;

    if (e == NULL)
        return err_set(err, ERR_NOMEM, "engine: out of memory");
    rc = engine_init(e, &engine_cpu, opts, err);
    if (rc == 0)
        rc = plans_open(e, &pass, err);
    for (uint32_t i = 0; rc == 0 && i < opts->n_devices; i++)
        rc = open_replica(e->replicas[i], err);
    if (rc == 0) {
        tables_layout(opts, !opts->whole_gradients, &m);
        rc = open_remote(e, &m, err);
    }
    if (rc == 0)
        rc = residual_open(e, &m, err);
    if (rc == 0)
        rc = engine_open_memory(e, &m, err);
    if (rc == 0)
        rc = codes_open(e, err);
    if (rc == 0)
        spare_open(e, reduce_buckets(e) > 1);
    if (rc < 0) {
        cpu_close(e);
        return rc;
    }
    if (!opts->whole_gradients)
        tables_note(e, true);
    *out = e;
    return 0;
}

static int cpu_replace_region(struct engine *e, struct err *err)
{
    return engine_memory_replace_region(&e->memory, err);
}

static void cpu_describe_trace(struct engine *e, struct trace_opts *out)
{
    plans_describe_trace(e, out);
    out->pieces = reduce_buckets(e);
    out->on_gpus = false;
}

/* ---- the state, which is the host's ---- */

static int cpu_sync(struct engine *e, uint64_t held, struct err *err)
{
    (void)held;
    (void)e;
    (void)err;
    return 0;
}

static int cpu_snapshot(struct engine *e, uint64_t held, void *to, struct err *err)
{
    (void)held;
    (void)err;
    memcpy(to, e->memory.state, e->memory.state_bytes);
    return 0;
}

static int cpu_wait_snapshot(struct engine *e, struct err *err)
{
    (void)e;
    (void)err;
    return 0;
}

static int cpu_staging(struct engine *e, void **out, struct err *err)
{
    (void)e;
    (void)err;
    *out = NULL;
    return 0;
}

static void cpu_abandon_staging(struct engine *e)
{
    (void)e;
}

static void cpu_discard(struct engine *e)
{
    (void)e;
}

/* ---- a generation ---- */

static int cpu_begin(struct engine_replica *r, struct err *err)
{
    (void)r;
    (void)err;
    return 0;
}

static void bind_train(struct engine_replica *r)
{
    struct memory *m = &r->engine->memory;

    plan_bind(r->plans->train, m->state, cpu_of(r)->work.base);
    plan_bind_delayed(r->plans->train, engine_memory_delayed(m, m->opts.n_delayed));
}

static int cpu_bind(struct engine_replica *r, uint64_t held, struct err *err)
{
    struct engine *e = r->engine;
    struct cpu *c = cpu_of(r);
    struct plans *p = r->plans;
    int rc = codes_keep(r, err);

    (void)held;
    if (rc == 0)
        rc = residual_begin(r, err);
    if (rc == 0)
        rc = reduce_open(r, err);
    if (rc < 0)
        return rc;
    plan_watch(p->train, NULL, NULL);
    bind_train(r);
    if (p->eval != NULL)
        plan_bind(p->eval, e->opts->evaluate_average ? e->memory.average : e->memory.state,
                  c->eval_work.base);
    return 0;
}

static void cpu_select(struct engine_replica *r, float *model)
{
    struct engine *e = r->engine;

    engine_memory_select(&e->memory, model);
    bind_train(r);
}

static int cpu_end(struct engine_replica *r, struct err *err)
{
    (void)err;
    reduce_close(r);
    codes_free(r);
    residual_end(r);
    plans_close_readers(r);
    return 0;
}

/* ---- a step ---- */

static void cpu_skip_update(struct engine_replica *r, uint64_t step)
{
    (void)step;
    if (r->local == 0)
        engine_memory_delay(&r->engine->memory);
}

static int cpu_end_step(struct engine_replica *r, struct err *err)
{
    (void)r;
    (void)err;
    return 0; /* spans were written as they ended */
}

const struct engine_ops engine_cpu = {
    .name = "cpu",
    .open = cpu_open,
    .close = cpu_close,
    .cancel = plans_cancel,
    .replace_region = cpu_replace_region,
    .overlaps = reduce_overlaps,
    .describe_trace = cpu_describe_trace,
    .sync = cpu_sync,
    .snapshot = cpu_snapshot,
    .wait_snapshot = cpu_wait_snapshot,
    .staging = cpu_staging,
    .abandon_staging = cpu_abandon_staging,
    .discard = cpu_discard,
    .begin = cpu_begin,
    .bind = cpu_bind,
    .open_reader = plans_open_reader,
    .end = cpu_end,
    .select = cpu_select,
    .run_lanes = cpu_run_lanes,
    .skip_lanes = cpu_skip_lanes,
    .reduce = cpu_reduce,
    .scale = cpu_scale,
    .inspect = cpu_inspect,
    .verify_gradient = cpu_verify_gradient,
    .gradient_norm = cpu_gradient_norm,
    .update = cpu_update,
    .skip_update = cpu_skip_update,
    .checksum = cpu_checksum,
    .verify_state = cpu_verify_state,
    .end_step = cpu_end_step,
    .evaluate = passes_evaluate,
    .describe_nonfinite = passes_describe_nonfinite,
    .locate_nonfinite = passes_locate_nonfinite,
};
