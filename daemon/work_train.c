/* work_train.c - the work of a training task: forwards to lib/train. */
#include <stdio.h>

#include "base/err.h"
#include "base/log.h"
#include "daemon/describe_run.h"
#include "daemon/outputs.h"
#include "daemon/reload.h"
#include "daemon/report.h"
#include "daemon/run_priv.h"
#include "daemon/work.h"

static int open_train(struct run *r, void **out, struct err *err)
{
    struct train *t = NULL;
    int rc = settle_outputs_and_data(r->s, err);

    *out = NULL;
    if (rc < 0)
        return rc;
    rc = outputs_check(r->s, err);
    if (rc < 0 && (rc != ERR_INPUT || r->s->cluster->is_local || settled_is_evaluator(r->s)))
        return rc;
    if (rc < 0) /* another task of the group may be able to write */
        snprintf(r->opening.refused, sizeof(r->opening.refused), "%s", err->text);
    rc = train_open(&r->train_opts, &r->cancel, &t, err);
    *out = t;
    return rc;
}

/* Curves without a description are curves nevertheless. */
static void describe(struct run *r)
{
    struct summary_run *description;
    struct err err;

    if (settled_is_evaluator(r->s))
        return;
    if (describe_run(r->s, train_graph(r->train), &description, &err) < 0)
        log_warn("summary", "%s", err.text);
    else
        report_set_run(r->report, description);
}

static void train_opened(struct run *r)
{
    struct train_facts f;

    r->train = r->work;
    train_facts(r->train, &f);
    report_set_total(r->report, f.total_steps, f.steps_per_epoch);
    reload_train(r->reload, r->train);
    describe(r);
}

static int start_train(void *work, const struct train_generation *g, train_end_fn *on_end,
                       struct err *err)
{
    return train_start(work, g, on_end, err);
}

static void request_train(void *work, unsigned kinds)
{
    train_request(work, kinds);
}

static void abort_train(void *work, const char *why)
{
    train_abort(work, why);
}

static uint64_t held_by_train(const void *work)
{
    return train_held(work);
}

static void progress_of_train(const void *work, struct train_progress *out)
{
    train_progress(work, out);
}

static int save_train(void *work, uint64_t wait_ms, struct err *err)
{
    return train_save(work, wait_ms, err);
}

static void close_train(void *work)
{
    train_close(work);
}

const struct work_ops work_train = {
    .what = "model and data",
    .open = open_train,
    .opened = train_opened,
    .start = start_train,
    .request = request_train,
    .abort = abort_train,
    .held = held_by_train,
    .progress = progress_of_train,
    .save = save_train,
    .close = close_train,
};
