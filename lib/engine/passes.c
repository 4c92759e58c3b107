/* passes.c - see passes.h.
 *
 * Evaluation. The set is cut into global batches and lanes like the training set (in file order,
 * the last batch padded with weight zero). Every lane adds up in double over its batches, and lanes
 * are added along the tree: the figures do not depend on the placement of lanes. A loss that the graph
 * computes as a mean cannot leave out the padding: each sample of a batch with padding is then
 * evaluated alone, in a batch of copies of it.
 *
 * Non-finite numbers. Steps are repeatable: every replica computes its lanes of the step again and
 * checks every number (plan_trace_nonfinite). The finding of the lowest lane is the result. Without a finding
 * the numbers of the lanes may be so large that their sum is infinite; otherwise the hardware
 * computed or stored a wrong value. */
#include "engine/passes.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/err.h"
#include "base/fault.h"
#include "base/group_view.h"
#include "comm/comm.h"
#include "data/data.h"
#include "engine/common.h"
#include "engine/lanes.h"
#include "engine/plans.h"
#include "engine/refused.h"
#include "graph/graph.h"
#include "op/op.h"

/* ---- evaluation ---- */

/* Adds the sums of a batch. */
static int batch_sums(struct engine_replica *r, const struct data_batch *b, double *sums,
                      struct err *err)
{
    const struct engine *e = r->engine;
    struct plan *plan = r->plans->eval;
    struct op_invalid refused = { .found = 0 };
    struct op_run run = { .seed = e->opts->seed,
                          .step = b->step,
                          .lane = b->lane,
                          .loss_scale = 1,
                          .refused = &refused,
                          .cancel = e->opts->cancel };
    int rc = r->plans->pass->feed(r, plan, b, err);

    if (rc == 0)
        rc = fault_error("train.evaluate", err);
    if (rc == 0)
        rc = r->plans->pass->run(r, plan, &run, false, err);
    if (rc < 0)
        return refused.found != 0 ? refused_place(r, plan, e->opts->eval_data, b, &refused, rc, err)
                                  : rc;
    sums[ENGINE_SUM_LOSS] += plan_loss(plan);
    if (e->opts->mean_of_weights)
        sums[ENGINE_SUM_WEIGHT] += plan_loss_weight(plan);
    sums += ENGINE_SUM_METRICS;
    for (uint32_t m = 0; m < e->opts->plan->n_metrics; m++) {
        plan_metric_add(plan, m, sums);
        sums += e->metric_words[m];
    }
    return 0;
}

static bool has_loss_of_graph(const struct engine *e)
{
    for (uint32_t i = 0; i < e->opts->plan->n_losses; i++)
        if (e->opts->plan->losses[i].op == NULL)
            return true;
    return false;
}

/* A batch of copies of one sample. */
struct copies {
    void **features; /* owned, with the arrays; [n] NULL: no input reads the feature */
    float *weights;  /* owned; 1 for the first copy */
    uint32_t n;
};

static void copies_free(struct copies *c)
{
    for (uint32_t i = 0; c->features != NULL && i < c->n; i++)
        free(c->features[i]);
    free(c->features);
    free(c->weights);
}

static int copies_new(const struct engine *e, struct plan *plan, struct copies *out,
                      struct err *err)
{
    uint32_t n_inputs = plans_n_inputs(e) - 1;
    bool fits;

    *out = (struct copies){ .weights = calloc(e->opts->lane_batch, sizeof(float)) };
    for (uint32_t i = 0; i < n_inputs; i++)
        if (e->opts->features[i] >= out->n)
            out->n = e->opts->features[i] + 1;
    out->features = calloc((size_t)out->n + 1, sizeof(*out->features));
    fits = out->weights != NULL && out->features != NULL;
    for (uint32_t i = 0; fits && i < n_inputs; i++) {
        void **at = &out->features[e->opts->features[i]];

        if (*at == NULL)
            *at = malloc(tensor_bytes(plan_input(plan, i)));
        fits = *at != NULL;
    }
    if (!fits) {
        copies_free(out);
        return err_set(err, ERR_NOMEM, "out of memory");
    }
    out->weights[0] = 1;
    return 0;
}

/* Adds the sums of each sample of a batch with padding. */
static int sample_sums(struct engine_replica *r, const struct data_batch *b, double *sums,
                       struct err *err)
{
    const struct engine *e = r->engine;
    uint32_t n_inputs = plans_n_inputs(e) - 1, batch = e->opts->lane_batch;
    struct copies c;
    int rc = copies_new(e, r->plans->eval, &c, err);

    if (rc < 0)
        return rc;
    for (uint32_t s = 0; rc == 0 && s < batch; s++) {
        struct data_batch one = *b;

        if (b->weights[s] == 0)
            continue;
        for (uint32_t i = 0; i < n_inputs; i++) {
            uint32_t f = e->opts->features[i];
            size_t bytes = tensor_bytes(plan_input(r->plans->eval, i)) / batch;

            for (uint32_t k = 0; k < batch; k++)
                memcpy((uint8_t *)c.features[f] + k * bytes,
                       (const uint8_t *)b->features[f] + s * bytes, bytes);
        }
        one.features = (const void *const *)c.features;
        one.weights = c.weights;
        rc = batch_sums(r, &one, sums, err);
    }
    copies_free(&c);
    return rc;
}

static int lane_sums(struct engine_replica *r, double *sums, struct err *err)
{
    const struct data_batch *b;
    int rc;

    place_enter(&r->place, PHASE_EVALUATION_DATA);
    rc = data_next(r->plans->side, &b, err);
    if (rc < 0)
        return rc;
    CHECK(b != NULL); /* the reader was opened up to the last step that is asked for */
    place_enter(&r->place, PHASE_EVALUATE);
    rc = has_loss_of_graph(r->engine) && b->n_real < r->engine->opts->lane_batch
             ? sample_sums(r, b, sums, err)
             : batch_sums(r, b, sums, err);
    data_release(r->plans->side);
    return rc;
}

/* A reader delivers step by step, lane by lane, so the sums are kept per lane. */
static int all_lanes(struct engine_replica *r, double *per_lane, struct err *err)
{
    const struct engine *e = r->engine;

    for (uint64_t s = 1; s <= e->opts->eval_steps; s++)
        for (uint32_t i = 0; i < r->n_lanes; i++) {
            int rc = lane_sums(r, per_lane + (size_t)i * e->eval_words, err);

            if (rc == 0)
                rc = engine_check_canceled(e, err);
            if (rc < 0)
                return rc;
        }
    return 0;
}

static void add_lanes(struct engine_replica *r, const double *per_lane)
{
    uint32_t words = r->engine->eval_words, top = 0;
    double **sums = r->arenas->sums;

    for (uint32_t i = 0; i < r->n_lanes; i++) {
        memcpy(sums[top++], per_lane + (size_t)i * words, words * sizeof(*per_lane));
        for (uint32_t m = lane_merges(r, i); m > 0; m--, top--)
            tree_add_f64(sums[top - 2], sums[top - 1], words);
    }
}

int passes_evaluate(struct engine_replica *r, struct err *err)
{
    double *per_lane = calloc((size_t)r->n_lanes * r->engine->eval_words, sizeof(*per_lane));
    int rc;

    if (per_lane == NULL)
        return err_set(err, ERR_NOMEM, "out of memory");
    rc = plans_open_side(r, true, 1, r->engine->opts->eval_steps, err);
    if (rc == 0)
        rc = all_lanes(r, per_lane, err);
    if (rc == 0)
        add_lanes(r, per_lane);
    plans_close_side(r);
    free(per_lane);
    return rc;
}

/* ---- which gradient is not finite ---- */

static bool all_finite(const float *x, size_t n)
{
    size_t i = 0;

    while (i < n && isfinite(x[i]))
        i++;
    return i == n;
}

static bool is_finite_param(const struct engine_replica *r, const struct graph_param *p,
                            uint32_t *table)
{
    const struct memory *m = &r->engine->memory;
    const struct packed *rows = &r->arenas->rows[0];
    const float *grads = r->arenas->grads[0];
    size_t first;

    if (!p->is_table || m->opts.n_tables == 0)
        return all_finite(grads + p->offset, p->elements);
    first = rows->first[*table];
    ++*table;
    return all_finite(grads + m->dense + first, rows->first[*table] - first);
}

int passes_describe_nonfinite(struct engine_replica *r, const char *separator, char *text, size_t n,
                              struct err *err)
{
    uint32_t n_params, table = 0;
    const struct graph_param *p = graph_params(r->engine->opts->graph, &n_params);
    int rc = r->plans->pass->fetch_gradients(r, err);

    if (rc < 0)
        return rc;
    for (uint32_t i = 0; i < n_params; i++) {
        if (is_finite_param(r, &p[i], &table))
            continue;
        engine_append(text, n, "%sthe reduced %s of '%s' holds NaN or infinity", separator,
                      p[i].kind == GRAPH_STATISTIC ? "statistic" : "gradient", p[i].name);
        return 0;
    }
    return 0;
}

/* ---- a step that is computed again ---- */

static float largest_of(const float *x, size_t n, float largest)
{
    for (size_t i = 0; i < n; i++)
        largest = fabsf(x[i]) > largest ? fabsf(x[i]) : largest;
    return largest;
}

static void describe_lane(const struct engine_replica *r, const struct op_run *run,
                          const struct data_batch *b, const struct plan_nonfinite *c, char *text,
                          size_t n)
{
    const struct engine *e = r->engine;
    const struct engine_opts *o = e->opts;
    char name[32];
    uint64_t batch = (uint64_t)o->lanes * o->lane_batch;
    uint64_t first =
        (run->step - 1) % o->steps_per_epoch * batch + (uint64_t)run->lane * o->lane_batch;

    text[0] = '\0';
    engine_append(
        text, n, "lane %" PRIu32 " (positions %" PRIu64 " to %" PRIu64 " of epoch %" PRIu64 ")",
        run->lane, first, first + o->lane_batch - 1, (run->step - 1) / o->steps_per_epoch);
    if (c->sample < o->lane_batch)
        engine_append(text, n, ", sample %" PRIu64 " of the data at position %" PRIu64,
                      b->samples[c->sample], first + c->sample);
    engine_append(text, n, ": %s", c->text);
    device_name(&o->devices[r->local], name, sizeof(name));
    if (r->plans->pass->names_device)
        engine_append(text, n, ", on %s of %s", name,
                      e->group.view->members[e->group.view->self].name);
}

/* One lane; out->largest grows. */
static int run_again(struct engine_replica *r, const struct op_run *run,
                     const struct plan_nonfinite *culprit, struct engine_nonfinite *out,
                     struct err *err)
{
    const struct memory *m = &r->engine->memory;
    const struct pass *pass = r->plans->pass;
    struct plan *plan = r->plans->train;
    const struct data_batch *b;
    float *grads = r->arenas->grads[0], top;
    int rc = data_next(r->plans->side, &b, err);

    if (rc < 0)
        return rc;
    CHECK(b != NULL);
    rc = pass->feed(r, plan, b, err);
    if (rc == 0)
        rc = pass->run(r, plan, run, true, err);
    if (rc == 0)
        rc = pass->fetch_gradients(r, err);
    if (rc == 0 && culprit->found) {
        out->lane = run->lane;
        describe_lane(r, run, b, culprit, out->text, sizeof(out->text));
    }
    if (rc == 0) {
        top = largest_of(grads, m->dense, fabsf(plan_loss(plan)));
        if (m->opts.n_tables > 0)
            top = largest_of(grads + m->dense, packed_floats(&r->arenas->rows[0]), top);
        out->largest += top;
    }
    data_release(r->plans->side);
    return rc;
}

int passes_locate_nonfinite(struct engine_replica *r, uint64_t step, struct engine_nonfinite *out,
                            struct err *err)
{
    const struct engine_opts *o = r->engine->opts;
    struct op_run run = {
        .seed = o->seed, .step = step, .cancel = o->cancel, .loss_scale = r->loss_scale
    };
    struct plan_nonfinite culprit = { .found = false };
    int rc = plans_open_side(r, false, step, step, err);

    if (rc < 0)
        return rc;
    *out = (struct engine_nonfinite){ .lane = o->lanes };
    plan_trace_nonfinite(r->plans->train, &culprit);
    for (uint32_t i = 0; rc == 0 && i < r->n_lanes && !culprit.found; i++) {
        run.lane = engine_lane(r, i);
        rc = run_again(r, &run, &culprit, out, err);
    }
    plan_trace_nonfinite(r->plans->train, NULL);
    plans_close_side(r);
    return rc;
}
