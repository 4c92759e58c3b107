/* report.c - what training says, into the log, the metrics and the figures. See report.h. */
#include "daemon/report_priv.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/text.h"
#include "ckpt/ckpt.h"
#include "engine/trace_types.h"
#include "metrics/metrics.h"
#include "rdzv/rdzv.h"
#include "train/loss_scale.h"
#include "train/train.h"

enum { WINDOW_MS = 500 };

static void open_metrics(struct report *r)
{
    static const double bounds[] = { 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, .01, .025, .05, .1,
                                     .25,  .5,     1,    2.5,  5,      10,   30,  60 };
    struct metrics *m = r->opts.metrics;
    struct buf info = { 0 };
    char labels[512];

    snprintf(labels, sizeof(labels), "version=\"%s\"", r->opts.version);
    metric_set(metrics_gauge(m, "trainerd_build_info", labels, "1, with the version as a label."),
               1);
    metrics_label(&info, "name", r->opts.job);
    metrics_label(&info, "task", r->opts.task);
    CHECK(!info.failed);
    metric_set(metrics_gauge(m, "trainerd_job_info", info.data,
                             "1, with the name of the job and the task of this process as labels."),
               1);
    buf_fini(&info);
    r->metrics.complete =
        metrics_gauge(m, "trainerd_complete", NULL,
                      "1: the job is complete and this process ends, 0: it is not.");
    r->metrics.total_steps =
        metrics_gauge(m, "trainerd_total_steps", NULL, "Optimizer steps of the whole job.");
    r->metrics.step = metrics_gauge(m, "trainerd_step", NULL, "Optimizer steps completed.");
    r->metrics.epoch = metrics_gauge(m, "trainerd_epoch", NULL, "Epoch of the last step, from 0.");
    r->metrics.loss =
        metrics_gauge(m, "trainerd_loss", NULL, "Mean training loss of the last step.");
    r->metrics.rate =
        metrics_gauge(m, "trainerd_learning_rate", NULL, "Learning rate of the last step.");
    r->metrics.norm =
        metrics_gauge(m, "trainerd_gradient_norm", NULL, "Norm of the gradient before clipping.");
    r->metrics.speed =
        metrics_gauge(m, "trainerd_samples_per_second", NULL, "Samples per second of the group.");
    r->metrics.eval_loss =
        metrics_gauge(m, "trainerd_eval_loss", NULL, "Mean loss of the last evaluation.");
    for (uint32_t i = 0; i < r->opts.train->n_metrics; i++) {
        snprintf(labels, sizeof(labels), "metric=\"%s\"", r->opts.train->metrics[i].name);
        r->metrics.eval_metric[i] =
            metrics_gauge(m, "trainerd_eval_metric", labels, "A metric of the last evaluation.");
    }
    if (!r->opts.takes_no_steps)
        r->metrics.steps_total =
            metrics_counter(m, "trainerd_steps_total", NULL, "Steps done by this process.");
    r->metrics.samples_total = metrics_counter(
        m, "trainerd_samples_total", NULL, "Samples of the group used since this process started.");
    r->metrics.skipped_total = metrics_counter(m, "trainerd_skipped_records_total", NULL,
                                               "Bad records that this process left out.");
    r->times.step_seconds = metrics_histogram(m, "trainerd_step_seconds", NULL, "Time of a step.",
                                              bounds, COUNT_OF(bounds));
    r->times.data_seconds = metrics_counter(m, "trainerd_data_wait_seconds_total", NULL,
                                            "Time the first replica waited for data.");
    r->times.reduce_seconds = metrics_counter(m, "trainerd_reduce_seconds_total", NULL,
                                              "Time the first replica waited for the reduction.");
    r->times.reduce_work_seconds = metrics_counter(m, "trainerd_reduce_work_seconds_total", NULL,
                                             "Time in the reductions of the first replica, also while "
                                             "it computed.");
    r->times.saved_step =
        metrics_gauge(m, "trainerd_checkpoint_step", NULL, "Step of the last verified checkpoint.");
    r->times.saved_time =
        metrics_gauge(m, "trainerd_checkpoint_timestamp_seconds", NULL,
                      "When the last checkpoint was verified, seconds since 1970.");
    r->times.copy_seconds =
        metrics_counter(m, "trainerd_checkpoint_copy_seconds_total", NULL,
                        "Time the first replica copied its state for the checkpoint writer.");
    r->times.save_seconds = metrics_gauge(m, "trainerd_checkpoint_seconds", NULL,
                                          "From the copy to the verified checkpoint.");
    r->metrics.skipped_steps =
        metrics_counter(m, "trainerd_skipped_steps_total", NULL,
                        "Steps that this process skipped: loss or gradient were not finite.");
    if (loss_scale_is_on(&r->opts.train->run.loss_scale)) {
        r->metrics.loss_scale = metrics_gauge(m, "trainerd_loss_scale", NULL,
                                              "What the loss of the next step is multiplied by.");
        r->metrics.overflowed_steps = metrics_counter(m, "trainerd_overflowed_steps_total", NULL,
                                              "Steps that this process skipped because their gradient left the range "
                                              "of float16: the loss scale was halved.");
    }
    if (r->opts.train->run.n_phases > 0) {
        r->metrics.phase =
            metrics_gauge(m, "trainerd_train_phase", NULL,
                          "Phase of the job (train.phases) of the last step, from 1.");
        r->metrics.groups =
            metrics_gauge(m, "trainerd_local_groups", NULL,
                          "Groups of local SGD in that phase; 0: it is synchronous.");
        r->metrics.outer_step = metrics_gauge(m, "trainerd_outer_step", NULL,
                                              "Outer steps of local SGD that are done.");
    }
    if (r->opts.train->code.kind != CODE_NONE) {
        r->metrics.coded_bytes = metrics_counter(
            m, "trainerd_compression_sent_bytes_total", NULL,
            "Bytes of compressed gradients that this process sent to other hosts, or its GPUs to other GPUs.");
        r->metrics.coded_saved_bytes =
            metrics_counter(m, "trainerd_compression_saved_bytes_total", NULL,
                            "Bytes that float32 gradients would have been in addition.");
    }
    if (r->opts.train->spare != SPARE_OFF) {
        static const char name[] = "trainerd_spare_lanes_total",
                          text[] = "Spare lanes: of the late task, which this process computed (offered), "
                                   "contributed (used), or compared with the other copy (compared); of this "
                                   "process, which another contributed (given); whose two copies this process "
                                   "found to differ (wrong).";

        r->metrics.spare_offered = metrics_counter(m, name, "what=\"offered\"", text);
        r->metrics.spare_used = metrics_counter(m, name, "what=\"used\"", text);
        r->metrics.spare_compared = metrics_counter(m, name, "what=\"compared\"", text);
        r->metrics.spare_given = metrics_counter(m, name, "what=\"given\"", text);
        r->metrics.spare_wrong = metrics_counter(m, name, "what=\"wrong\"", text);
    }
    r->metrics.divergences =
        metrics_counter(m, "trainerd_divergences_total", NULL,
                        "Times that tasks held different gradients or weights.");
    r->metrics.changed_messages =
        metrics_counter(m, "trainerd_changed_messages_total", NULL,
                        "Messages in clear text whose bytes were changed on the way to this task.");
    r->times.save_failures = metrics_counter(m, "trainerd_checkpoint_failures_total", NULL,
                                             "Attempts to write a checkpoint that failed.");
}

/* NULL: the job has no spare lanes. */
static const char *const spare_modes[] = { [SPARE_AUTO] = "auto", [SPARE_ALWAYS] = "always" };

int report_open(const struct report_opts *opts, struct report **out, struct err *err)
{
    struct report *r = calloc(1, sizeof(*r));

    if (r == NULL)
        return err_set(err, ERR_NOMEM, "reports: out of memory");
    r->opts = *opts;
    r->log_every = opts->log_every_steps;
    pthread_mutex_init(&r->lock, NULL);
    curves_begin(r);
    r->started_ms = clock_ms();
    r->now.phase = "starting";
    r->now.doing = "";
    r->now.phase_since_ms = r->started_ms;
    r->now.spare.mode = spare_modes[opts->train->spare];
    open_metrics(r);
    metric_set(r->metrics.complete, 0);
    metric_set(r->metrics.speed, 0); /* as long as no step is made */
    *out = r;
    return 0;
}

void report_close(struct report *r)
{
    if (r == NULL)
        return;
    log_progress(NULL);
    curves_end(r);
    pthread_mutex_destroy(&r->lock);
    free(r);
}

void report_changed_message(struct report *r)
{
    metric_add(r->metrics.changed_messages, 1);
}

/* ---- events ---- */

static void add_step(struct window *w, const struct train_step_report *s, uint32_t n_devices,
                     uint64_t now)
{
    for (uint32_t i = 0; s->device_idle != NULL && i < n_devices; i++)
        if (!isnan(s->device_idle[i])) {
            w->idle += s->device_idle[i];
            w->n_idle++;
        }
    if (w->begin_ns == 0)
        w->begin_ns = now - s->since_ns;
    w->steps += s->steps;
    w->samples += s->samples;
    w->ns += s->ns;
    w->data_ns += s->data_ns;
    w->reduce_ns += s->reduce_ns;
    w->reduce_work_ns += s->reduce_work_ns;
    w->copy_ns += s->copy_ns;
}

static void update_figures(struct rdzv_progress *p, struct window *w, uint64_t now)
{
    p->samples_per_second = report_ratio(w->samples, 1) / ((double)(now - w->begin_ns) / 1e9);
    p->step_seconds = (double)(now - w->begin_ns) / 1e9 / (double)w->steps;
    p->share_data = report_ratio(w->data_ns, w->ns);
    p->share_reduce = report_ratio(w->reduce_ns, w->ns);
    p->share_checkpoint = report_ratio(w->copy_ns, w->ns);
    p->share_compute = fmax(0, 1 - p->share_data - p->share_reduce - p->share_checkpoint);
    memset(w, 0, sizeof(*w));
}

/* The line of a step, with figures of the time since the line before. Under `lock`. */
static void make_line(struct report *r, const struct train_step_report *s, uint64_t now,
                      struct step_line *out)
{
    struct rdzv_progress figures;

    *out = (struct step_line){
        .step = s->step,
        .epoch = s->epoch,
        .total_steps = r->now.total_steps,
        .loss = s->loss,
        .learning_rate = s->learning_rate,
        .grad_norm = s->grad_norm,
        .loss_scale = s->loss_scale,
        .groups = s->groups,
        .outer_step = s->outer_step,
        .reduce_work = report_ratio(r->logged.reduce_work_ns, r->logged.ns),
        .device_idle = (double)NAN,
    };
    if (r->logged.n_idle > 0)
        out->device_idle = r->logged.idle / (double)r->logged.n_idle;
    update_figures(&figures, &r->logged, now);
    out->samples_per_second = figures.samples_per_second;
    out->share_data = figures.share_data;
    out->share_compute = figures.share_compute;
    out->share_reduce = figures.share_reduce;
}

static void on_step(struct report *r, const struct train_step_report *s)
{
    uint64_t now = clock_ns();
    uint32_t every = __atomic_load_n(&r->log_every, __ATOMIC_RELAXED);
    bool due = s->step / every > (s->step - s->steps) / every || s->step == s->steps;
    struct step_line line;
    uint64_t skipped;

    pthread_mutex_lock(&r->lock);
    skipped = s->skipped - r->now.skipped_records;
    r->now.skipped_records = s->skipped;
    r->now.step = s->step;
    r->now.epoch = s->epoch;
    r->now.loss = s->loss;
    r->now.loss_scale = s->loss_scale;
    r->now.train_phase = s->phase;
    r->now.groups = s->groups;
    r->now.outer_step = s->outer_step;
    r->now.coded_bytes += s->coded_bytes;
    r->now.coded_saved_bytes += s->coded_plain_bytes - s->coded_bytes;
    r->now.spare.offered += s->spare_offered;
    r->now.spare.used += s->spare_used;
    r->now.spare.compared += s->spare_compared;
    r->now.spare.given += s->spare_given;
    if (r->first_step == 0) {
        r->first_step = s->step;
        r->first_step_ns = now;
    }
    history_step(r, s);
    add_step(&r->window, s, r->opts.train->n_devices, now);
    add_step(&r->logged, s, r->opts.train->n_devices, now);
    if (now - r->window.begin_ns >= WINDOW_MS * UINT64_C(1000000))
        update_figures(&r->now, &r->window, now);
    if (due || s->step == r->now.total_steps) {
        due = true;
        make_line(r, s, now, &line);
        if (r->now.samples_per_second == 0)
            r->now.samples_per_second = line.samples_per_second;
    }
    pthread_mutex_unlock(&r->lock);

    metric_set(r->metrics.step, (double)s->step);
    metric_set(r->metrics.epoch, (double)s->epoch);
    metric_set(r->metrics.loss, s->loss);
    metric_set(r->metrics.rate, s->learning_rate);
    if (r->metrics.steps_total != NULL)
        metric_add(r->metrics.steps_total, (double)s->steps);
    metric_add(r->metrics.samples_total, (double)s->samples);
    metric_add(r->metrics.skipped_total, (double)skipped);
    metric_observe(r->times.step_seconds, (double)s->ns / 1e9 / (double)s->steps);
    metric_add(r->times.data_seconds, (double)s->data_ns / 1e9);
    metric_add(r->times.reduce_seconds, (double)s->reduce_ns / 1e9);
    metric_add(r->times.reduce_work_seconds, (double)s->reduce_work_ns / 1e9);
    metric_add(r->times.copy_seconds, (double)s->copy_ns / 1e9);
    if (r->metrics.coded_bytes != NULL) {
        metric_add(r->metrics.coded_bytes, (double)s->coded_bytes);
        metric_add(r->metrics.coded_saved_bytes, (double)(s->coded_plain_bytes - s->coded_bytes));
    }
    if (r->metrics.spare_given != NULL) {
        metric_add(r->metrics.spare_offered, s->spare_offered);
        metric_add(r->metrics.spare_used, s->spare_used);
        metric_add(r->metrics.spare_compared, s->spare_compared);
        metric_add(r->metrics.spare_given, s->spare_given);
        lines_spare(r, s);
    }
    if (!isnan(s->grad_norm))
        metric_set(r->metrics.norm, s->grad_norm);
    if (s->loss_scale > 0)
        metric_set(r->metrics.loss_scale, s->loss_scale);
    if (s->phase > 0) {
        metric_set(r->metrics.phase, s->phase);
        metric_set(r->metrics.groups, s->groups);
        metric_set(r->metrics.outer_step, (double)s->outer_step);
    }
    if (due) {
        metric_set(r->metrics.speed, line.samples_per_second);
        lines_step(r, &line);
        curves_step(r, s, line.samples_per_second, line.device_idle);
    }
}

static void on_eval(struct report *r, const struct train_eval_report *e)
{
    const struct train_opts *t = r->opts.train;

    pthread_mutex_lock(&r->lock);
    r->eval = *e;
    r->has_eval = true;
    history_eval(r, e);
    pthread_mutex_unlock(&r->lock);
    metric_set(r->metrics.eval_loss, e->loss);
    curves_point(r, e->step, "eval/loss", (float)e->loss);
    for (uint32_t i = 0; i < t->n_metrics; i++) {
        char tag[128];

        metric_set(r->metrics.eval_metric[i], e->metrics[i]);
        snprintf(tag, sizeof(tag), "eval/%s", t->metrics[i].name);
        curves_point(r, e->step, tag, (float)e->metrics[i]);
    }
    lines_eval(r, e);
}

static void on_checkpoint(struct report *r, const struct ckpt_event *e)
{
    struct log_field fields[] = {
        LOG_U64("step", e->step),
        LOG_STR("path", e->path != NULL ? e->path : ""),
        LOG_U64("bytes", e->bytes),
        LOG_F64("seconds", (double)e->ns / 1e9),
    };
    char size[32], took[32];

    history_checkpoint(r, e);
    switch (e->kind) {
    case CKPT_WRITTEN:
        text_bytes(size, sizeof(size), e->bytes);
        text_duration(took, sizeof(took), e->ns);
        pthread_mutex_lock(&r->lock);
        r->now.checkpoint_step = e->step;
        snprintf(r->now.checkpoint_path, sizeof(r->now.checkpoint_path), "%s", e->path);
        pthread_mutex_unlock(&r->lock);
        metric_set(r->times.saved_step, (double)e->step);
        metric_set(r->times.saved_time, (double)clock_wall_us() / 1e6);
        metric_set(r->times.save_seconds, (double)e->ns / 1e9);
        log_record(LOG_INFO, "checkpoint", fields, COUNT_OF(fields),
                   "checkpoint %s: %s written and verified in %s", e->path, size, took);
        break;
    case CKPT_FAILED:
        metric_add(r->times.save_failures, 1);
        report_trouble(r, e->text);
        log_record(e->final   ? LOG_ERROR
                   : e->again ? LOG_DEBUG
                              : LOG_WARN,
                   "checkpoint_failed", fields, COUNT_OF(fields), "checkpoint of step %llu: %s%s",
                   (unsigned long long)e->step, e->text,
                   e->final ? "" : "; training goes on, it will be tried again");
        break;
    case CKPT_DISCARDED:
        log_record(e->again ? LOG_DEBUG : LOG_WARN, "checkpoint_discarded", fields,
                   COUNT_OF(fields), "checkpoint of step %llu is discarded: %s",
                   (unsigned long long)e->step, e->text);
        break;
    case CKPT_REMOVED:
        log_record(LOG_DEBUG, "checkpoint_removed", fields, COUNT_OF(fields), "removed %s",
                   e->path);
        break;
    }
}

void report_set_log_every(struct report *r, uint32_t steps)
{
    __atomic_store_n(&r->log_every, steps, __ATOMIC_RELAXED);
}

static void on_resumed(struct report *r, const struct train_event *e)
{
    struct log_field fields[] = { LOG_U64("step", e->step), LOG_STR("path", e->text) };

    pthread_mutex_lock(&r->lock);
    r->now.step = e->step;
    pthread_mutex_unlock(&r->lock);
    if (e->step == 0)
        log_record(LOG_INFO, "start", fields, 1, "starting from the weights of the model file");
    else if (e->text[0] != '\0')
        log_record(LOG_INFO, "resume", fields, 2, "resuming after step %llu from %s",
                   (unsigned long long)e->step, e->text);
    else
        log_record(LOG_INFO, "resume", fields, 1, "resuming after step %llu with the chief's state",
                   (unsigned long long)e->step);
}

/* A line for each part where a person reads, an array of them in the one record for a program. */
static void on_profile(struct report *r, const struct trace_profile *p)
{
    struct buf parts = { 0 };
    uint64_t last = p->first_step + p->steps - 1;

    for (uint32_t i = 0; i < p->n_parts; i++) {
        buf_str(&parts, i == 0 ? "[{\"what\":" : ",{\"what\":");
        buf_json(&parts, p->parts[i].what);
        buf_printf(&parts, ",\"direction\":\"%s\",\"seconds\":", p->parts[i].direction);
        buf_f64(&parts, p->parts[i].seconds);
        buf_str(&parts, ",\"share\":");
        buf_f64(&parts, p->parts[i].seconds / p->step_seconds);
        buf_str(&parts, "}");
    }
    buf_str(&parts, "]");
    /* Before the record: a reader of the record may ask for the trace at once. */
    pthread_mutex_lock(&r->lock);
    r->now.trace_path = r->opts.train->trace;
    pthread_mutex_unlock(&r->lock);
    log_record(LOG_INFO, "profile",
               (struct log_field[]){ LOG_STR("path", p->path), LOG_U64("first_step", p->first_step),
                                     LOG_U64("steps", p->steps), LOG_U64("replicas", p->replicas),
                                     LOG_F64("step_seconds", p->step_seconds),
                                     LOG_JSON_TEXT("parts", parts.failed ? NULL : parts.data) },
               6, "steps %llu to %llu took %.3f ms each (mean of %u replica%s); the time line is %s, and "
                  "this is where the time went:",
               (unsigned long long)p->first_step, (unsigned long long)last, 1e3 * p->step_seconds, p->replicas,
               p->replicas == 1 ? "" : "s", p->path);
    buf_fini(&parts);
    for (uint32_t i = 0; log_is_text() && i < p->n_parts; i++)
        log_info("profile", "%6.2f %%  %10.3f ms  %s %s",
                 100 * p->parts[i].seconds / p->step_seconds, 1e3 * p->parts[i].seconds,
                 p->parts[i].what, p->parts[i].direction);
}

static void on_difference(struct report *r, const struct train_event *e)
{
    if (e->kind == TRAIN_WRONG_COPY) {
        pthread_mutex_lock(&r->lock);
        r->now.spare.wrong += e->all;
        pthread_mutex_unlock(&r->lock);
        metric_add(r->metrics.spare_wrong, (double)e->all);
    }
    metric_add(r->metrics.divergences, 1);
    report_trouble(r, e->text);
    log_error("differs", "%s", e->text);
}

void report_event(struct report *r, const struct train_event *e)
{
    switch (e->kind) {
    case TRAIN_PHASE:
        report_phase(r, e->text);
        log_debug("phase", "%s", e->text);
        break;
    case TRAIN_NOTE:
        log_info("note", "%s", e->text);
        break;
    case TRAIN_WARN:
        report_trouble(r, e->text);
        log_warn("warning", "%s", e->text);
        break;
    case TRAIN_SKIPPED:
        metric_add(r->metrics.skipped_steps, 1);
        report_trouble(r, e->text);
        log_warn("skipped", "%s", e->text);
        break;
    case TRAIN_OVERFLOWED: /* as it should be, now and then */
        metric_add(r->metrics.overflowed_steps, 1);
        log_info("overflowed", "%s", e->text);
        break;
    case TRAIN_DIFFERS:
    case TRAIN_WRONG_COPY:
        on_difference(r, e);
        break;
    case TRAIN_PROGRESS:
        pthread_mutex_lock(&r->lock);
        r->done = e->done;
        r->all = e->all;
        pthread_mutex_unlock(&r->lock);
        break;
    case TRAIN_CONNECTED:
        curves_open(r, e->step);
        break;
    case TRAIN_RESUMED:
        on_resumed(r, e);
        break;
    case TRAIN_STEP:
        on_step(r, e->report);
        break;
    case TRAIN_EVAL:
        on_eval(r, e->eval);
        break;
    case TRAIN_LOGGED:
        lines_logged(r, e->step, e->done != 0);
        break;
    case TRAIN_CHECKPOINT:
        on_checkpoint(r, e->ckpt);
        break;
    case TRAIN_EXPORTED:
        log_info("export", "trained model written to %s", e->text);
        break;
    case TRAIN_PROFILE:
        on_profile(r, e->profile);
        break;
    }
}
