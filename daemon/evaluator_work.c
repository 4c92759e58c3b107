/* evaluator_work.c - the work of an evaluator that waits for disks. See evaluator.h.
 *
 * Order of a recorded evaluation: the best checkpoint is kept, the point of the curves is flushed, the
 * state is replaced. A process that is killed in between evaluates the checkpoint again: the result
 * is the same, and curves begin with a purge of the points from that step on. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fs.h"
#include "base/log.h"
#include "daemon/complete.h"
#include "daemon/evaluator.h"
#include "daemon/report.h"
#include "daemon/run_priv.h"
#include "metrics/metrics.h"
#include "metrics/summary.h"

static const char *directory_of(const struct run *r)
{
    return r->s->conf->checkpoint.directory;
}

static void show(struct evaluator *e)
{
    if (e->state.evaluated_step > 0) /* a series is absent until its value is known */
        metric_set(e->evaluated_step, (double)e->state.evaluated_step);
    if (!e->state.has_best)
        return;
    metric_set(e->best_step, (double)e->state.best_step);
    metric_set(e->best_value, e->state.best);
}

static void log_begin(const struct run *r, bool is_other)
{
    const struct evaluator_state *s = &r->evaluator->state;
    char known[256] = "";

    if (s->has_best)
        snprintf(known, sizeof(known), "; evaluated up to step %llu, best: step %llu with %s %.6g",
                 (unsigned long long)s->evaluated_step, (unsigned long long)s->best_step, s->metric,
                 s->best);
    if (is_other)
        log_warn("evaluator",
                 "'%s' was written for another metric or mode: all checkpoints are evaluated again",
                 r->s->evaluator.directory);
    log_info("evaluator", "following %s; the %s %s is the best%s%s%s", directory_of(r),
             s->higher_is_better ? "highest" : "lowest", s->metric,
             r->s->evaluator.keeps_best ? ", its checkpoint is kept in " : "",
             r->s->evaluator.keeps_best ? r->s->evaluator.directory : "", known);
}

void evaluator_open_metrics(struct run *r)
{
    struct evaluator *e = r->evaluator;
    char labels[160];

    snprintf(labels, sizeof(labels), "metric=\"%s\"", r->s->evaluator.metric_name);
    e->evaluated_step = metrics_gauge(r->http.metrics, "trainerd_evaluated_step", NULL,
                                      "Step of the last checkpoint that this evaluator evaluated.");
    e->best_step =
        metrics_gauge(r->http.metrics, "trainerd_best_step", NULL, "Step of the best checkpoint.");
    e->best_value = metrics_gauge(r->http.metrics, "trainerd_best_value", labels,
                                  "Value of the best checkpoint.");
}

/* Returns true if the best checkpoint of the state is in the folder, as far as it is to be kept. */
static bool has_kept_best(const struct run *r)
{
    const struct evaluator_state *s = &r->evaluator->state;
    char name[64], *path;
    bool is_there;

    if (!r->s->evaluator.keeps_best || !s->has_best)
        return true;
    snprintf(name, sizeof(name), "step-%08llu", (unsigned long long)s->best_step);
    path = fs_join(r->s->evaluator.directory, name);
    is_there = path != NULL && ckpt_peek_folder(path, NULL, &r->evaluator->current, NULL) == 0;
    free(path);
    return is_there;
}

static int lock_folder(struct evaluator *e, const char *folder, struct err *err)
{
    int rc = e->lock >= 0 ? 0 : fs_mkdirs(folder, err);

    if (rc < 0 || e->lock >= 0)
        return rc;
    rc = evaluator_lock(folder, &e->lock, err);
    if (rc == 0 && e->lock < 0)
        log_warn("evaluator",
                 "the file system of '%s' has no locks: run one process of this evaluator", folder);
    return rc;
}

/* Reads the state and prepares the folder. */
static int begin(struct run *r, struct err *err)
{
    const struct settled_evaluator *o = &r->s->evaluator;
    struct evaluator *e = r->evaluator;
    bool is_other;
    int rc;

    snprintf(e->state.metric, sizeof(e->state.metric), "%s", o->metric_name);
    e->state.higher_is_better = o->higher_is_better;
    rc = lock_folder(e, o->directory, err);
    if (rc == 0)
        rc = ckpt_keep_prepare(o->directory, err);
    if (rc == 0)
        rc = evaluator_state_read(o->directory, &e->state, &is_other, err);
    if (rc < 0)
        return err_wrap(err, rc, "evaluator");
    if (!has_kept_best(r)) {
        log_warn(
            "evaluator",
            "'%s' lacks the best checkpoint, of step %llu: all checkpoints are evaluated again",
            o->directory, (unsigned long long)e->state.best_step);
        evaluator_state_reset(&e->state);
    }
    e->has_begun = true;
    show(e);
    log_begin(r, is_other);
    return 0;
}

/* ---- recording ---- */

/* Curves that cannot be written are missed, as on the chief; an evaluation is recorded without. */
static void draw(struct run *r)
{
    const struct train_eval_report *v = &r->evaluation;
    struct evaluator *e = r->evaluator;
    const char *directory = r->s->evaluator.curves;
    struct err err;
    int rc = 0;

    if (directory[0] == '\0' || v->step == e->drawn_step)
        return;
    if (e->curves != NULL && v->step < e->drawn_step) { /* another run of the job: purge again */
        summary_close(e->curves);
        e->curves = NULL;
    }
    if (e->curves == NULL)
        rc = summary_open(directory, v->step, &e->curves, &err);
    if (rc == 0) {
        summary_scalar(e->curves, v->step, "eval/loss", (float)v->loss);
        for (uint32_t i = 0; i < r->s->train.n_metrics; i++) {
            char tag[SUMMARY_TAG_MAX + 1];

            snprintf(tag, sizeof(tag), "eval/%.100s", r->s->train.metrics[i].name);
            summary_scalar(e->curves, v->step, tag, (float)v->metrics[i]);
        }
        rc = summary_flush(e->curves, &err);
    }
    if (rc < 0) {
        report_trouble(r->report, err.text);
        log_warn("summary", "the point of step %llu is missing in the curves: %s",
                 (unsigned long long)v->step, err.text);
    }
    e->drawn_step = v->step;
}

static void log_best(const struct run *r, const struct evaluator_state *was)
{
    const struct evaluator_state *s = &r->evaluator->state;
    char before[128] = "";

    if (was->has_best)
        snprintf(before, sizeof(before), ", before: step %llu with %.6g",
                 (unsigned long long)was->best_step, was->best);
    log_record(LOG_INFO, "best",
               (struct log_field[]){ LOG_U64("step", s->best_step), LOG_STR("metric", s->metric),
                                     LOG_F64("value", s->best) },
               3, "the best checkpoint is of step %llu with %s %.6g%s%s%s", (unsigned long long)s->best_step,
               s->metric, s->best, before, r->s->evaluator.keeps_best ? "; it is kept in " : "",
               r->s->evaluator.keeps_best ? r->s->evaluator.directory : "");
}

static void drop_pinned(struct evaluator *e)
{
    struct err err;

    if (e->is_pinned && ckpt_unpin(&e->pinned, &err) < 0)
        log_warn("evaluator", "%s; the next start of this evaluator removes it", err.text);
    e->is_pinned = false;
}

static int record(struct run *r, struct err *err)
{
    const struct settled_evaluator *o = &r->s->evaluator;
    struct evaluator *e = r->evaluator;
    struct evaluator_state was = e->state;
    double value =
        o->metric == SETTLED_LOSS ? r->evaluation.loss : r->evaluation.metrics[o->metric];
    bool is_best =
        evaluator_state_record(&e->state, e->current.meta.job_digest, e->current.meta.step, value);
    int rc = 0;

    e->is_evaluated = false;
    if (is_best && e->is_pinned) {
        rc = ckpt_keep(o->directory, &e->pinned, err);
        e->is_pinned = rc < 0;
    }
    drop_pinned(e);
    if (rc == 0) {
        draw(r);
        rc = evaluator_state_write(o->directory, &e->state, err);
    }
    if (rc < 0) { /* the checkpoint is evaluated again */
        e->state = was;
        return rc;
    }
    show(e);
    if (is_best)
        log_best(r, &was);
    return 0;
}

/* ---- the next checkpoint ---- */

static int load(struct run *r, const struct ckpt_entry *entry, struct err *err)
{
    struct evaluator *e = r->evaluator;
    char name[64], *path;
    int rc;

    if (r->s->evaluator.keeps_best) {
        rc = ckpt_pin(directory_of(r), entry->step, r->s->evaluator.directory, &e->pinned, err);
        e->is_pinned = rc == 0;
        if (rc == 0)
            rc = train_load(r->train, e->pinned.path, &e->current, err);
    } else {
        snprintf(name, sizeof(name), "step-%08llu", (unsigned long long)entry->step);
        path = fs_join(directory_of(r), name);
        rc = path != NULL ? train_load(r->train, path, &e->current, err)
                          : err_set(err, ERR_NOMEM, "evaluator: out of memory");
        free(path);
    }
    if (rc < 0)
        drop_pinned(e);
    return rc;
}

/* Loads entry `at` of n. Returns true if the search for a checkpoint ends with *outcome; false: the
 * entry was removed or is damaged. */
static bool try_entry(struct run *r, const struct ckpt_entry *entries, size_t n, size_t at,
                      size_t skipped, enum evaluator_outcome *outcome, struct err *err)
{
    struct evaluator *e = r->evaluator;
    unsigned long long step = entries[at].step;
    int rc;

    report_phase(r->report, "load");
    rc = load(r, &entries[at], err);
    if (rc == 0) {
        if (skipped > 0)
            log_warn("behind", "evaluations are slower than the job writes checkpoints: %zu older checkpoint%s skipped, "
                               "continuing with step %llu", skipped, skipped == 1 ? " is" : "s are", step);
        e->newest_seen = entries[n - 1].step;
        *outcome = EVALUATOR_LOADED;
        return true;
    }
    if (rc == ERR_NOENT) {
        log_info("evaluator", "the checkpoint of step %llu was removed before it was evaluated",
                 step);
        return false;
    }
    if (rc == ERR_CORRUPT || rc == ERR_UNSUPPORTED) {
        report_trouble(r->report, err->text);
        log_record(LOG_WARN, "damaged", (struct log_field[]){ LOG_U64("step", step) }, 1,
                   "skipping checkpoint %s/step-%08llu: %s", directory_of(r), step, err->text);
        evaluator_damaged_add(&e->damaged, &entries[at]);
        return false;
    }
    *outcome = EVALUATOR_FAILED;
    return true;
}

/* Every checkpoint is evaluated: the newest one decides whether the job is complete, or whether the
 * directory belongs to a new run, whose steps are evaluated from the first one on. */
static enum evaluator_outcome examine_newest(struct run *r, struct err *err)
{
    struct evaluator_state *s = &r->evaluator->state;
    struct ckpt_info *newest = malloc(sizeof(*newest));
    enum evaluator_outcome outcome = EVALUATOR_NOTHING;
    int rc = newest != NULL ? ckpt_peek(directory_of(r), NULL, newest, err)
                            : err_set(err, ERR_NOMEM, "evaluator: out of memory");

    if (rc == ERR_NOENT || s->evaluated_step == 0) {
        outcome = rc == ERR_NOMEM ? EVALUATOR_FAILED : EVALUATOR_NOTHING;
    } else if (rc < 0) {
        outcome = EVALUATOR_FAILED;
    } else if (newest->meta.step <= s->evaluated_step &&
               strcmp(newest->meta.job_digest, s->job_digest) != 0) {
        log_warn(
            "evaluator",
            "%s is of another run of the job: its checkpoints are evaluated from the first one on",
            newest->path);
        evaluator_state_reset(s);
        r->evaluator->newest_seen = 0;
    } else if (newest->meta.step == s->evaluated_step &&
               complete_is_last_step(r->s->conf, &newest->meta)) {
        snprintf(err->text, sizeof(err->text),
                 "the job is complete and its last checkpoint, of step %llu, is evaluated",
                 (unsigned long long)s->evaluated_step);
        outcome = EVALUATOR_COMPLETE;
    }
    free(newest);
    return outcome;
}

static enum evaluator_outcome find_next(struct run *r, struct err *err)
{
    struct evaluator *e = r->evaluator;

    for (;;) { /* each turn ends the search, or excludes a checkpoint */
        enum evaluator_outcome outcome = EVALUATOR_NOTHING;
        struct ckpt_entry *entries;
        size_t n, skipped;
        ptrdiff_t at;
        bool is_over = true;
        int rc = ckpt_entries(directory_of(r), &entries, &n, err);

        if (rc < 0) /* the job creates the directory */
            return rc == ERR_NOENT ? EVALUATOR_NOTHING : EVALUATOR_FAILED;
        at = evaluator_choose(entries, n, e->state.evaluated_step, e->newest_seen, &e->damaged,
                              &skipped);
        if (at < 0)
            outcome = examine_newest(r, err);
        else
            is_over = try_entry(r, entries, n, (size_t)at, skipped, &outcome, err);
        free(entries);
        if (is_over || cancel_requested(&r->cancel))
            return outcome;
    }
}

enum evaluator_outcome evaluator_work(struct run *r, struct err *err)
{
    int rc = r->evaluator->has_begun ? 0 : begin(r, err);

    if (rc == 0 && r->evaluator->is_evaluated)
        rc = record(r, err);
    return rc < 0 ? EVALUATOR_FAILED : find_next(r, err);
}

void evaluator_end(struct run *r)
{
    struct err err;

    drop_pinned(r->evaluator);
    if (r->evaluator->curves != NULL && summary_flush(r->evaluator->curves, &err) < 0)
        log_warn("summary", "the last points of the curves are lost: %s", err.text);
    summary_close(r->evaluator->curves);
    r->evaluator->curves = NULL;
    if (r->evaluator->lock >= 0)
        close(r->evaluator->lock);
    r->evaluator->lock = -1;
}
