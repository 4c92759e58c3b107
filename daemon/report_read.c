/* report_read.c - what others read of a report: the progress line, figures for heartbeats. */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/text.h"
#include "daemon/report_priv.h"

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
    text_duration(out, n,
                  (clock_ns() - r->first_step_ns) / (p->step - r->first_step) *
                      (p->total_steps - p->step));
}

/* Without a terminal a long index or load still says that it moves. */
static void log_long_phase(struct report *r, const struct rdzv_progress *p, uint64_t done,
                           uint64_t all)
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
    char line[512], eta[32], speed[32];

    curves_check(r);
    pthread_mutex_lock(&r->lock);
    p = r->now;
    done = r->done;
    all = r->all;
    left(r, &p, eta, sizeof(eta));
    pthread_mutex_unlock(&r->lock);
    text_rate(speed, sizeof(speed), p.samples_per_second);
    if (!log_progress_wanted()) {
        log_long_phase(r, &p, done, all);
        return;
    }
    if (strcmp(p.phase, "train") == 0 && p.step > 0)
        snprintf(line, sizeof(line),
                 "step %llu/%llu  epoch %llu  loss %.4g  %s samples/s  ETA %s  [data %.0f%% compute %.0f%% "
                 "reduction %.0f%%]",
                 (unsigned long long)p.step, (unsigned long long)p.total_steps,
                 (unsigned long long)p.epoch, p.loss, speed, eta, 100 * p.share_data,
                 100 * p.share_compute, 100 * p.share_reduce);
    else if (all > 0)
        snprintf(line, sizeof(line), "%s: %.0f %%", p.phase, 100.0 * report_ratio(done, all));
    else
        snprintf(line, sizeof(line), "%s for %.0f s", p.phase,
                 (double)(clock_ms() - p.phase_since_ms) / 1e3);
    log_progress(line);
}
