/* eval.c - loss and metrics over the whole evaluation set.
 *
 * The set is cut into global batches and lanes like the training set (in file order, the last batch
 * padded with weight zero), every lane adds up in double over its batches, lanes are added along the
 * tree: the figures do not depend on who computed what either. */
#include "train/gpu.h"
#include "train/train_priv.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/fault.h"
#include "op/op.h"

enum { SUM_LOSS, SUM_WEIGHT, SUM_METRICS }; /* the metrics' sums one after the other */

static int lane_sums(struct replica *r, uint64_t step, uint32_t lane, double *sums, struct err *err)
{
    struct train *t = r->train;
    struct op_run run = { .seed = t->opts->seed, .step = step, .lane = lane, .loss_scale = 1,
                          .cancel = &t->cancel };
    int rc;

    place_enter(&r->place, PHASE_EVALUATION_DATA);
    rc = step_feed(r, r->eval_plan, r->side_reader, err);
    place_enter(&r->place, PHASE_EVALUATE);
    if (rc == 0)
        rc = fault_error("train.evaluate", err);
    if (rc == 0)
        rc = r->gpu != NULL ? gpu_run(r, r->eval_plan, &run, false, err) : plan_forward(r->eval_plan, &run, err);
    if (rc < 0)
        return rc;
    sums[SUM_LOSS] += plan_loss(r->eval_plan);
    if (t->opts->mean_of_weights)
        sums[SUM_WEIGHT] += plan_loss_weight(r->eval_plan);
    sums += SUM_METRICS;
    for (uint32_t m = 0; m < t->opts->n_metrics; m++) {
        plan_metric_add(r->eval_plan, m, sums);
        sums += plan_metric_words(r->eval_plan, m);
    }
    return 0;
}

/* A reader delivers step by step, lane by lane; the sums are kept per lane: the stack has an entry
 * for each while batches run (depth is not enough, so they live in `per_lane`). */
static int all_lanes(struct replica *r, double *per_lane, struct err *err)
{
    struct train *t = r->train;

    for (uint64_t s = 1; s <= t->eval_steps; s++)
        for (uint32_t i = 0; i < r->n_lanes; i++) {
            int rc = lane_sums(r, s, r->first_lane + i, per_lane + (size_t)i * t->eval_words, err);

            if (rc == 0)
                rc = train_check_canceled(t, err);
            if (rc < 0)
                return rc;
        }
    return 0;
}

static void add_lanes(struct replica *r, const double *per_lane)
{
    uint32_t n = r->n_lanes, words = r->train->eval_words, top = 0;

    for (uint32_t i = 0; i < n; i++) {
        memcpy(r->sums[top++], per_lane + (size_t)i * words, words * sizeof(*per_lane));
        for (uint32_t m = lane_merges(r, i); m > 0; m--, top--)
            tree_add_f64(r->sums[top - 2], r->sums[top - 1], words);
    }
}

/* The chance that one with the label has the higher score of a pair with one without it; equal ones
 * count half. */
static double area(const double *with, const double *without, uint32_t bins)
{
    double below = 0, ordered = 0, n_with = 0;

    for (uint32_t i = 0; i < bins; i++) {
        ordered += with[i] * (below + without[i] / 2);
        below += without[i];
        n_with += with[i];
    }
    return ordered / (n_with * below);
}

/* sums: the metric's, and behind them the weight. */
static double figure(enum train_figure kind, const double *sums, uint32_t words)
{
    switch (kind) {
    case TRAIN_MEAN:
        return sums[0] / sums[1];
    case TRAIN_EXP_MEAN:
        return exp(sums[0] / sums[1]);
    case TRAIN_AREA:
        return area(sums, sums + words / 2, words / 2);
    }
    CHECK(!"a figure that does not exist");
    return 0;
}

static void tell(struct replica *r, uint64_t step, uint64_t begin_ns)
{
    struct train *t = r->train;
    const struct train_opts *o = t->opts;
    uint64_t samples = data_samples(t->eval_data);
    const double *sums = r->sums[0] + SUM_METRICS;
    struct train_eval_report report = {
        .step = step,
        .epoch = (step - 1) / t->steps_per_epoch,
        .samples = samples,
        .loss = r->sums[0][SUM_LOSS] /
                (o->mean_of_weights ? r->sums[0][SUM_WEIGHT] : (double)samples),
        .ns = clock_ns() - begin_ns,
    };
    struct train_event e = { .kind = TRAIN_EVAL, .step = step, .eval = &report };

    for (uint32_t m = 0; m < o->n_metrics; m++) {
        uint32_t words = plan_metric_words(r->eval_plan, m);

        report.metrics[m] = figure(o->metrics[m].figure, sums, words);
        sums += words;
    }
    /* Other replicas read it behind their next reduction, which this one has to join. */
    optim_evaluated(&t->schedule, step, report.loss);
    t->facts.evaluated_step = step;
    train_tell(t, &e);
    if (!isfinite(report.loss)) {
        char text[128];
        struct train_event warning = { .kind = TRAIN_WARN, .step = step, .text = text };

        snprintf(text, sizeof(text), "evaluation after step %llu: the loss is %f",
                 (unsigned long long)step, report.loss);
        train_tell(t, &warning);
    }
}

bool eval_due(const struct train *t, uint64_t step)
{
    if (t->eval_data == NULL || step == 0)
        return false;
    if (step == t->total_steps)
        return true;
    return t->opts->eval_every_epochs > 0 &&
           step % (t->steps_per_epoch * t->opts->eval_every_epochs) == 0;
}

static int all_sums(struct replica *r, struct err *err)
{
    struct train *t = r->train;
    struct data_reader_opts ro = replica_reads(r, 1, t->eval_steps);
    double *per_lane = calloc((size_t)r->n_lanes * t->eval_words, sizeof(*per_lane));
    int rc;

    if (per_lane == NULL)
        return err_set(err, ERR_NOMEM, "out of memory");
    ro.shuffle = false;
    ro.pad = true;
    rc = reader_open(t, t->eval_data, &ro, &r->side_reader, err);
    if (rc == 0)
        rc = all_lanes(r, per_lane, err);
    if (rc == 0)
        add_lanes(r, per_lane);
    reader_close(t, &r->side_reader);
    free(per_lane);
    return rc;
}

int eval_run(struct replica *r, uint64_t step, struct err *err)
{
    struct train *t = r->train;
    uint64_t begin = clock_ns();
    int rc;

    if (r->local == 0)
        train_phase(t, "evaluate", step);
    rc = all_sums(r, err);
    place_enter(&r->place, PHASE_EVALUATION_SUMS);
    if (rc == 0)
        rc = fault_error("train.evaluated", err);
    if (rc == 0 && t->comm != NULL)
        rc = comm_all_reduce(t->comm, r->local, r->sums[0], t->eval_words, TENSOR_F64, COMM_SUM,
                             err);
    if (rc < 0)
        return err_wrap(err, rc, "evaluation after step %llu", (unsigned long long)step);
    trace_until_now(r->trace, TRACE_EVALUATION, 0, begin);
    if (r->local != 0)
        return 0;
    if (t->facts.evaluated_step < step)
        tell(r, step, begin);
    train_phase(t, "train", step);
    return 0;
}
