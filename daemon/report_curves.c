/* report_curves.c - TensorBoard curves: who draws them, where, and what a slow disk does to them. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/err.h"
#include "base/log.h"
#include "daemon/report_priv.h"
#include "metrics/summary.h"
#include "metrics/summary_run.h"

static char *copy(const char *s)
{
    char *c = s != NULL ? strdup(s) : NULL;

    CHECK(s == NULL || c != NULL);
    return c;
}

void curves_begin(struct report *r)
{
    pthread_mutex_init(&r->curves.lock, NULL);
    r->curves.directory = copy(r->opts.summary_directory);
}

void curves_end(struct report *r)
{
    report_end_summary(r->curves.summary);
    summary_run_free(r->curves.run);
    free(r->curves.directory);
    pthread_mutex_destroy(&r->curves.lock);
}

void report_set_run(struct report *r, struct summary_run *run)
{
    r->curves.run = run;
}

/* Curves that a slow or full disk did not take are missed, not waited for; that is said once. */
void curves_check(struct report *r)
{
    uint64_t lost = 0;
    char directory[4096];

    pthread_mutex_lock(&r->curves.lock);
    if (r->curves.summary != NULL && !r->curves.loss_is_logged)
        lost = summary_dropped(r->curves.summary);
    if (lost > 0) {
        r->curves.loss_is_logged = true;
        snprintf(directory, sizeof(directory), "%s", r->curves.directory);
    }
    pthread_mutex_unlock(&r->curves.lock);
    if (lost == 0)
        return;
    report_trouble(r, "points of the curves were lost: the summary directory is full or slow");
    log_warn("summary", "%llu points of the curves were lost: %s is full or slow; training goes on",
             (unsigned long long)lost, directory);
}

void report_end_summary(struct summary *s)
{
    struct err err;

    if (s != NULL && summary_flush(s, &err) < 0)
        log_warn("summary", "the last points of the curves are lost: %s", err.text);
    summary_close(s);
}

void curves_point(struct report *r, uint64_t step, const char *tag, float value)
{
    pthread_mutex_lock(&r->curves.lock);
    if (r->curves.summary != NULL &&
        report_is_coordinator(r)) /* the curves of a former chief end where it ended */
        summary_scalar(r->curves.summary, step, tag, value);
    pthread_mutex_unlock(&r->curves.lock);
}

void curves_step(struct report *r, const struct train_step_report *s, double speed,
                 double device_idle)
{
    curves_point(r, s->step, "loss", (float)s->loss);
    curves_point(r, s->step, "learning_rate", (float)s->learning_rate);
    if (!isnan(s->grad_norm))
        curves_point(r, s->step, "gradient_norm", (float)s->grad_norm);
    if (s->loss_scale > 0)
        curves_point(r, s->step, "loss_scale", (float)s->loss_scale);
    curves_point(r, s->step, "samples_per_second", (float)speed);
    if (!isnan(device_idle))
        curves_point(r, s->step, "device_idle", (float)device_idle);
    if (s->skipped > 0)
        curves_point(r, s->step, "skipped_records", (float)s->skipped);
}

/* The directory may change while it is opened: then the other one is opened. */
void curves_open(struct report *r, uint64_t step)
{
    struct err err;
    bool is_settled = !report_is_coordinator(r);

    while (!is_settled) {
        struct summary *fresh = NULL;
        char *directory = NULL;
        uint32_t moves;
        int rc = 0;

        pthread_mutex_lock(&r->curves.lock);
        r->curves.draws = true;
        moves = r->curves.moves;
        if (r->curves.summary == NULL)
            directory = copy(r->curves.directory);
        pthread_mutex_unlock(&r->curves.lock);
        if (directory == NULL)
            return;
        rc = summary_open(directory, step > 0 ? step + 1 : 0, &fresh, &err);
        if (rc == 0 && r->curves.run != NULL)
            summary_describe(fresh, r->curves.run);
        free(directory);
        pthread_mutex_lock(&r->curves.lock);
        is_settled = r->curves.moves == moves;
        if (is_settled)
            r->curves.summary = fresh;
        pthread_mutex_unlock(&r->curves.lock);
        if (!is_settled) {
            summary_close(fresh);
        } else if (rc < 0) {
            report_trouble(r, err.text);
            log_warn("summary", "no curves will be written: %s", err.text);
        }
    }
}

bool report_set_summary(struct report *r, const char *directory, struct summary *fresh,
                        struct summary **old)
{
    char *next = copy(directory);
    bool is_enough;

    if (fresh != NULL && r->curves.run != NULL)
        summary_describe(fresh, r->curves.run);
    pthread_mutex_lock(&r->curves.lock);
    is_enough = fresh != NULL || directory == NULL || !r->curves.draws;
    if (is_enough) {
        *old = r->curves.summary;
        r->curves.summary = fresh;
        free(r->curves.directory);
        r->curves.directory = next;
        r->curves.moves++;
        r->curves.loss_is_logged = false;
    }
    pthread_mutex_unlock(&r->curves.lock);
    if (!is_enough)
        free(next);
    return is_enough;
}
