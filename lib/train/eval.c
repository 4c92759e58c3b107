/* eval.c - see eval.h. */
#include "train/eval.h"

#include <math.h>
#include <stdio.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/fault.h"
#include "comm/comm.h"
#include "engine/trace.h"
#include "train/remote.h"
#include "train/task.h"

/* Returns the area under the ROC curve: the probability that a sample with the label has a higher
 * score than one without it; equal scores count half. NaN if there is no such pair. */
static double area(const double *with, const double *without, uint32_t bins)
{
    double below = 0, ordered = 0, n_with = 0;

    for (uint32_t i = 0; i < bins; i++) {
        ordered += with[i] * (below + without[i] / 2);
        below += without[i];
        n_with += with[i];
    }
    return n_with * below > 0 ? ordered / (n_with * below) : (double)NAN;
}

/* Computes a metric. sums: those of the metric, then the weight. */
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

static void warn_undefined(struct train *t, uint64_t step, const struct train_eval_report *report)
{
    const struct train_opts *o = t->opts;
    char text[192];
    struct train_event e = { .kind = TRAIN_WARN, .step = step, .text = text };

    for (uint32_t m = 0; m < o->n_metrics; m++) {
        if (o->metrics[m].figure != TRAIN_AREA || !isnan(report->metrics[m]))
            continue;
        snprintf(
            text, sizeof(text),
            "%s is not defined: the evaluation data have labels of one class only; add samples of the other",
            o->metrics[m].name);
        events_send(&t->events, &e);
    }
}

static void report(struct replica *r, uint64_t step, uint64_t begin_ns)
{
    struct train *t = r->train;
    const struct train_opts *o = t->opts;
    uint64_t samples = t->model.eval_samples;
    const double *sums = r->device->arenas->sums[0] + ENGINE_SUM_METRICS;
    struct train_eval_report report = {
        .step = step,
        .epoch = (step - 1) / t->model.steps_per_epoch,
        .samples = samples,
        .loss =
            r->device->arenas->sums[0][ENGINE_SUM_LOSS] /
            (o->mean_of_weights ? r->device->arenas->sums[0][ENGINE_SUM_WEIGHT] : (double)samples),
        .ns = clock_ns() - begin_ns,
    };
    struct train_event e = { .kind = TRAIN_EVAL, .step = step, .eval = &report };

    for (uint32_t m = 0; m < o->n_metrics; m++) {
        uint32_t words = t->engine->metric_words[m];

        report.metrics[m] = figure(o->metrics[m].figure, sums, words);
        sums += words;
    }
    /* Other replicas read it after their next reduction, which this replica has to join. */
    optim_record_evaluation(&t->state.schedule, step, report.loss);
    t->state.facts.evaluated_step = step;
    events_send(&t->events, &e);
    warn_undefined(t, step, &report);
    if (!isfinite(report.loss)) {
        char text[128];
        struct train_event warning = { .kind = TRAIN_WARN, .step = step, .text = text };

        snprintf(text, sizeof(text), "evaluation after step %llu: the loss is %f",
                 (unsigned long long)step, report.loss);
        events_send(&t->events, &warning);
    }
}

int eval_run(struct replica *r, uint64_t step, struct err *err)
{
    struct train *t = r->train;
    uint64_t begin = clock_ns();
    int rc;

    if (r->local == 0)
        events_phase(&t->events, "evaluate", step);
    rc = remote_read_dense(
        r, t->engine_opts.evaluate_average ? ENGINE_ROWS_AVERAGE : ENGINE_ROWS_HELD, err);
    if (rc == 0)
        rc = ops_of(r)->evaluate(r->device, err);
    place_enter(&r->device->place, PHASE_EVALUATION_SUMS);
    if (rc == 0)
        rc = fault_error("train.evaluated", err);
    if (rc == 0 && t->generation.comm != NULL)
        rc = comm_all_reduce_pieces(t->generation.comm, r->local, r->device->arenas->sums[0],
                                    t->engine->memory.sums_bytes, t->engine->eval_words, TENSOR_F64,
                                    err);
    if (rc < 0)
        return err_wrap(err, rc, "evaluation after step %llu", (unsigned long long)step);
    trace_add_until_now(r->device->trace, TRACE_EVALUATION, 0, begin);
    if (r->local != 0)
        return 0;
    if (t->state.facts.evaluated_step < step)
        report(r, step, begin);
    events_phase(&t->events, "train", step);
    return 0;
}
