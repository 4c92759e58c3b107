/* plans.c - see plans.h. */
#include "engine/plans.h"

#include <stdlib.h>
#include <string.h>

#include "base/cancel.h"
#include "base/check.h"
#include "base/err.h"
#include "data/data.h"
#include "engine/common.h"
#include "engine/trace_types.h"
#include "graph/graph.h"

/* ---- plans ---- */

static int open_plan(const struct engine *e, enum plan_purpose purpose, struct plan **out,
                     struct err *err)
{
    struct plan_opts p = *e->opts->plan;

    p.purpose = purpose;
    p.cuda = device_cuda(&e->opts->devices[0]);
    if (purpose != PLAN_EVAL)
        p.n_metrics = 0;
    return plan_new(e->opts->graph, &p, out, err);
}

static int open_plans_of(struct engine_replica *r, const struct pass *pass, struct err *err)
{
    const struct engine *e = r->engine;
    const struct device *d = &e->opts->devices[r->local];
    struct plans *p = calloc(1, sizeof(*p));
    int rc = 0;

    if (p == NULL)
        return err_set(err, ERR_NOMEM, "plan: out of memory");
    r->plans = p;
    p->pass = pass;
    pthread_mutex_init(&p->lock, NULL);
    if (d->kind == DEVICE_CUDA) /* a plan's constants are uploaded to the entered GPU */
        rc = device_enter(d, err);
    if (rc == 0)
        rc = open_plan(e, PLAN_TRAIN, &p->train, err);
    if (rc == 0 && e->opts->eval_data != NULL)
        rc = open_plan(e, PLAN_EVAL, &p->eval, err);
    return rc;
}

static void note_plan(const struct engine *e, const struct plan *plan)
{
    uint32_t n;
    const char *const *notes = plan_notes(plan, &n);

    for (uint32_t i = 0; i < n; i++)
        engine_note(e, false, notes[i]);
    notes = plan_warnings(plan, &n);
    for (uint32_t i = 0; i < n; i++)
        engine_note(e, true, notes[i]);
}

/* Lets the readers refuse numbers that the plan cannot use. */
static void limit_features(const struct engine *e, const struct plan *plan)
{
    struct plan_range r;

    for (uint32_t i = 0; i + 1 < plans_n_inputs(e); i++) {
        struct data_range range;

        if (!plan_input_range(plan, i, &r))
            continue;
        range = (struct data_range){ r.least, r.greatest, r.other, r.has_other, r.what };
        data_set_range(e->opts->data, e->opts->features[i], &range);
        if (e->opts->eval_data != NULL)
            data_set_range(e->opts->eval_data, e->opts->features[i], &range);
    }
}

int plans_open(struct engine *e, const struct pass *pass, struct err *err)
{
    const struct engine_opts *o = e->opts;
    const struct plans *first;
    int rc = 0;

    CHECK(o->plan->n_metrics <= ENGINE_MAX_METRICS);
    for (uint32_t i = 0; rc == 0 && i < o->n_devices; i++)
        rc = open_plans_of(e->replicas[i], pass, err);
    if (rc < 0)
        return rc;
    first = e->replicas[0]->plans;
    note_plan(e, first->train);
    limit_features(e, first->train);
    e->work_bytes = plan_work_bytes(first->train);
    for (uint32_t i = 0; first->eval != NULL && i < o->plan->n_metrics; i++) {
        e->metric_words[i] = plan_metric_words(first->eval, i);
        e->eval_words += e->metric_words[i];
    }
    return 0;
}

void plans_close(struct engine_replica *r)
{
    struct plans *p = r->plans;

    if (p == NULL)
        return;
    plans_close_readers(r);
    plan_free(p->train);
    plan_free(p->eval);
    pthread_mutex_destroy(&p->lock);
    free(p);
    r->plans = NULL;
}

size_t plans_work_bytes(const struct engine_replica *r)
{
    const struct plans *p = r->plans;
    size_t train = plan_work_bytes(p->train), eval = p->eval != NULL ? plan_work_bytes(p->eval) : 0;

    return train > eval ? train : eval;
}

/* ---- batches ---- */

uint32_t plans_n_inputs(const struct engine *e)
{
    return e->opts->plan->n_feeds + e->opts->plan->n_targets + 1; /* the samples' weights */
}

void plans_copy_batch(const struct engine *e, struct plan *plan, const struct data_batch *b,
                      void *(*at)(void *arg, struct plan *plan, uint32_t i), void *arg)
{
    uint32_t weights = plans_n_inputs(e) - 1;

    for (uint32_t i = 0; i < weights; i++)
        memcpy(at(arg, plan, i), b->features[e->opts->features[i]],
               tensor_bytes(plan_input(plan, i)));
    memcpy(at(arg, plan, weights), b->weights, e->opts->lane_batch * sizeof(float));
}

/* ---- readers ---- */

/* A reader is visible to plans_cancel() from here on; a generation that ended before cancels it
 * now. */
static int open_reader(struct engine_replica *r, struct data_set *data,
                       const struct data_reader_opts *opts, struct data_reader **at,
                       struct err *err)
{
    struct data_reader *reader;
    int rc = data_reader_open(data, opts, &reader, err);

    if (rc < 0)
        return rc;
    pthread_mutex_lock(&r->plans->lock);
    *at = reader;
    if (cancel_requested(r->engine->opts->cancel))
        data_reader_cancel(reader);
    pthread_mutex_unlock(&r->plans->lock);
    return 0;
}

static void close_reader(struct engine_replica *r, struct data_reader **at)
{
    struct data_reader *reader;

    pthread_mutex_lock(&r->plans->lock);
    reader = *at;
    *at = NULL;
    pthread_mutex_unlock(&r->plans->lock);
    data_reader_close(reader);
}

static struct data_reader_opts reads(const struct engine_replica *r, uint64_t first, uint64_t last)
{
    struct data_reader_opts o = *r->engine->opts->reader;

    o.first_lane = r->first_lane;
    o.n_lanes = r->n_lanes;
    o.second_lane = r->second_lane;
    o.n_second = r->n_second;
    o.first_step = first;
    o.last_step = last;
    o.prefetch *= r->n_lanes;
    if (r->local != 0) /* one replica of a task checks its data */
        o.check_every = 0;
    return o;
}

int plans_open_reader(struct engine_replica *r, uint64_t first, uint64_t last, struct err *err)
{
    struct data_reader_opts o = reads(r, first, last);

    return open_reader(r, r->engine->opts->data, &o, &r->plans->reader, err);
}

int plans_open_side(struct engine_replica *r, bool evaluates, uint64_t first, uint64_t last,
                    struct err *err)
{
    const struct engine_opts *eo = r->engine->opts;
    struct data_reader_opts o = reads(r, first, last);

    if (evaluates) {
        o.shuffle = false;
        o.pad = true;
    }
    return open_reader(r, evaluates ? eo->eval_data : eo->data, &o, &r->plans->side, err);
}

int plans_open_helped(struct engine_replica *r, uint64_t step, struct err *err)
{
    struct data_reader_opts o = reads(r, step, step);

    o.first_lane = r->helped_lane;
    o.n_lanes = r->n_helped;
    o.second_lane = o.n_second = 0;
    o.check_every = 0;
    o.prefetch = r->engine->opts->reader->prefetch * r->n_helped;
    return open_reader(r, r->engine->opts->data, &o, &r->plans->side, err);
}

int plans_open_lane(const struct engine_replica *r, uint64_t step, uint32_t lane,
                    struct data_reader **out, struct err *err)
{
    struct data_reader_opts o = reads(r, step, step);

    o.first_lane = lane;
    o.n_lanes = o.prefetch = 1;
    o.second_lane = o.n_second = o.threads = 0;
    o.check_every = 0;
    return data_reader_open(r->engine->opts->data, &o, out, err);
}

void plans_close_readers(struct engine_replica *r)
{
    close_reader(r, &r->plans->reader);
    close_reader(r, &r->plans->side);
}

void plans_close_side(struct engine_replica *r)
{
    close_reader(r, &r->plans->side);
}

void plans_cancel(struct engine *e)
{
    for (uint32_t i = 0; i < e->opts->n_devices; i++) {
        struct plans *p = e->replicas[i]->plans;

        pthread_mutex_lock(&p->lock);
        if (p->reader != NULL)
            data_reader_cancel(p->reader);
        if (p->side != NULL)
            data_reader_cancel(p->side);
        pthread_mutex_unlock(&p->lock);
    }
}

void plans_describe_trace(struct engine *e, struct trace_opts *out)
{
    for (uint32_t i = 0; i < e->opts->n_devices; i++)
        out->plans[i] = e->replicas[i]->plans->train;
    out->n_replicas = e->opts->n_devices;
    out->lanes = e->opts->max_lanes;
}
