/* report_read.c - what others read of a report: the progress line, figures for heartbeats, JSON. */
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/text.h"
#include "daemon/report_priv.h"
#include "daemon/sensors.h"

enum { LONG_PHASE_MS = 2000 };

void report_progress(struct report *r, struct rdzv_progress *out)
{
    pthread_mutex_lock(&r->lock);
    *out = r->now;
    pthread_mutex_unlock(&r->lock);
}

static void left(const struct report *r, const struct rdzv_progress *p, char *out, size_t n)
{
    if (r->first_step == 0 || p->step <= r->first_step || p->total_steps < p->step) { /* or went back to before */
        snprintf(out, n, "?");
        return;
    }
    text_duration(out, n, (clock_ns() - r->first_step_ns) / (p->step - r->first_step) * (p->total_steps - p->step));
}

/* Without a terminal a long index or load still says that it moves. */
static void log_long_phase(struct report *r, const struct rdzv_progress *p, uint64_t done, uint64_t all)
{
    uint64_t now = clock_ms();

    if (all == 0 || done == all || now - p->phase_since_ms < LONG_PHASE_MS ||
        now - r->phase_logged_ms < LONG_PHASE_MS)
        return;
    r->phase_logged_ms = now;
    log_info("progress", "%s: %.0f %% after %.0f s", p->phase, 100.0 * report_ratio(done, all),
             (double)(now - p->phase_since_ms) / 1e3);
}

void report_draw(struct report *r)
{
    struct rdzv_progress p;
    uint64_t done, all;
    char line[512], eta[32];

    curves_check(r);
    pthread_mutex_lock(&r->lock);
    p = r->now;
    done = r->done;
    all = r->all;
    left(r, &p, eta, sizeof(eta));
    pthread_mutex_unlock(&r->lock);
    if (!log_progress_wanted()) {
        log_long_phase(r, &p, done, all);
        return;
    }
    if (strcmp(p.phase, "train") == 0 && p.step > 0)
        snprintf(line, sizeof(line),
                 "step %llu/%llu  epoch %llu  loss %.4g  %.0f samples/s  ETA %s  [data %.0f%% compute %.0f%% "
                 "reduction %.0f%%]",
                 (unsigned long long)p.step, (unsigned long long)p.total_steps,
                 (unsigned long long)p.epoch, p.loss, p.samples_per_second, eta, 100 * p.share_data,
                 100 * p.share_compute, 100 * p.share_reduce);
    else if (all > 0)
        snprintf(line, sizeof(line), "%s: %.0f %%", p.phase, 100.0 * report_ratio(done, all));
    else
        snprintf(line, sizeof(line), "%s for %.0f s", p.phase,
                 (double)(clock_ms() - p.phase_since_ms) / 1e3);
    log_progress(line);
}

void report_status(struct report *r, struct sensors *sensors, struct buf *out)
{
    struct rdzv_progress p;
    struct train_eval_report eval;
    bool has_eval;

    pthread_mutex_lock(&r->lock);
    p = r->now;
    eval = r->eval;
    has_eval = r->has_eval;
    pthread_mutex_unlock(&r->lock);
    buf_str(out, "{\"job\": ");
    buf_json(out, r->opts.job);
    buf_str(out, ", \"task\": ");
    buf_json(out, r->opts.task);
    buf_str(out, ", \"phase\": ");
    buf_json(out, p.phase);
    buf_printf(out, ", \"phase_ms\": %llu, \"step\": %llu, \"total_steps\": %llu, \"epoch\": %llu, \"loss\": ",
               (unsigned long long)(clock_ms() - p.phase_since_ms), (unsigned long long)p.step,
               (unsigned long long)p.total_steps, (unsigned long long)p.epoch);
    buf_f64(out, p.loss);
    buf_str(out, ", \"samples_per_second\": ");
    buf_f64(out, p.samples_per_second);
    buf_printf(out, ", \"checkpoint_step\": %llu, \"checkpoint\": ", (unsigned long long)p.checkpoint_step);
    buf_json(out, p.checkpoint_path);
    buf_printf(out, ", \"skipped_records\": %llu", (unsigned long long)p.skipped_records);
    if (p.loss_scale > 0) {
        buf_str(out, ", \"loss_scale\": ");
        buf_f64(out, p.loss_scale);
    }
    if (has_eval) {
        buf_printf(out, ", \"eval\": {\"step\": %llu, \"loss\": ", (unsigned long long)eval.step);
        buf_f64(out, eval.loss);
        for (uint32_t i = 0; i < r->opts.train->n_metrics; i++) {
            buf_str(out, ", ");
            buf_json(out, r->opts.train->metrics[i].name);
            buf_str(out, ": ");
            buf_f64(out, eval.metrics[i]);
        }
        buf_str(out, "}");
    }
    if (sensors != NULL) {
        buf_str(out, ", \"gpus\": ");
        sensors_print(sensors, out);
    }
    buf_str(out, ", \"last_trouble\": ");
    buf_json(out, p.last_trouble);
    buf_printf(out, ", \"uptime_ms\": %llu}\n", (unsigned long long)(clock_ms() - r->started_ms));
}
