/* report_now.c - what the rest of the daemon reports: phase, trouble, number of steps, leadership. */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "metrics/metrics.h"
#include "daemon/report_priv.h"

void report_set_coordinator(struct report *r, bool leads)
{
    __atomic_store_n(&r->is_lead, leads, __ATOMIC_RELAXED);
}

void report_set_total(struct report *r, uint64_t total_steps, uint64_t steps_per_epoch)
{
    pthread_mutex_lock(&r->lock);
    r->now.total_steps = total_steps;
    r->steps_per_epoch = steps_per_epoch;
    pthread_mutex_unlock(&r->lock);
    metric_set(r->metrics.total_steps, (double)total_steps);
}

void report_phase(struct report *r, const char *phase)
{
    pthread_mutex_lock(&r->lock);
    if (strcmp(r->now.phase, phase) != 0) {
        r->now.phase = phase;
        r->now.phase_since_ms = clock_ms();
        r->done = r->all = 0;
    }
    pthread_mutex_unlock(&r->lock);
    metric_set(r->metrics.complete, strcmp(phase, "complete") == 0);
}

void report_trouble(struct report *r, const char *text)
{
    pthread_mutex_lock(&r->lock);
    snprintf(r->now.last_trouble, sizeof(r->now.last_trouble), "%s", text);
    pthread_mutex_unlock(&r->lock);
}

void report_at_rest(struct report *r)
{
    struct rdzv_progress *p = &r->now;

    pthread_mutex_lock(&r->lock);
    p->samples_per_second = p->step_seconds = 0;
    p->share_data = p->share_compute = p->share_reduce = p->share_checkpoint = 0;
    memset(&r->window, 0, sizeof(r->window));
    pthread_mutex_unlock(&r->lock);
    metric_set(r->metrics.speed, 0);
}
