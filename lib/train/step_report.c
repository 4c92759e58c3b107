/* step_report.c - see step_report.h. */
#include "train/step_report.h"

#include <stdatomic.h>

#include "base/clock.h"
#include "train/task.h"

static uint64_t samples_of(const struct train *t, const struct period *period)
{
    uint64_t n = 0;

    for (uint64_t k = period->before + 1; k <= period->last; k++)
        n += model_samples_of(&t->model, k);
    return n;
}

static uint32_t lanes_of(const struct train *t)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < t->opts->n_devices; i++)
        n += t->engine->replicas[i]->n_lanes - t->engine->replicas[i]->spare.given;
    return n;
}

void step_report(struct replica *r, const struct facts *facts, uint64_t begin_ns)
{
    struct train *t = r->train;
    uint64_t now = clock_ns();
    bool here = begin_ns != 0;
    const struct period period = phases_period(&t->phases, facts->step);
    const struct train_phase *phase = phases_of(&t->phases, &period);
    struct train_step_report report = {
        .step = facts->step,
        .epoch = (facts->step - 1) / t->model.steps_per_epoch,
        .loss = facts->loss,
        .learning_rate = optim_rate(&t->state.schedule, facts->step),
        .grad_norm = facts->grad_norm,
        .loss_scale = loss_scale_is_on(&t->opts->run.loss_scale) ? facts->scale.scale : 0,
        .steps = period.last - period.before,
        .phase = phase != NULL ? period.phase + 1 : 0,
        .groups = phase != NULL ? phase->groups : 0,
        .outer_step = period.outer_step,
        .samples = samples_of(t, &period),
        .skipped = model_skipped(&t->model),
        .ns = here ? now - begin_ns : 0,
        .data_ns = here ? r->device->data_ns : 0,
        .reduce_ns = here ? r->device->reduce_ns : 0,
        .reduce_work_ns = here ? r->device->reduce_work_ns : 0,
        .copy_ns = here ? t->events.copy_ns : 0,
        .since_ns = now - t->events.last_step_ns,
        .device_idle = here ? t->engine->device_idle : NULL,
        .comm = t->generation.comm,
        .lanes = lanes_of(t),
        .own_lanes = r->device->n_lanes - r->device->spare.given,
        .spare_given = r->device->spare.given,
        .spare_given_ns = r->device->spare.given_ns,
        .spare_offered = r->device->spare.offered,
        .spare_used = r->device->spare.used,
        .spare_compared = r->device->spare.compared,
        .spare_helped = r->device->spare.helped,
        .spare_helper = r->device->spare.helper,
        .feed_ms = r->device->feed_ms,
        .n_feeds = r->device->n_feeds,
    };
    struct train_event e = { .kind = TRAIN_STEP, .step = facts->step, .report = &report };

    for (uint32_t i = 0; here && i < t->opts->n_devices; i++) {
        report.coded_bytes += t->replicas[i].device->coded_bytes;
        report.coded_plain_bytes += t->replicas[i].device->coded_plain_bytes;
    }
    t->events.last_step_ns = now;
    t->events.copy_ns = 0;
    r->device->n_feeds = 0; /* the report below has the durations */
    events_send(&t->events, &e);
}

float step_report_unlogged(const struct train *t, uint64_t step)
{
    uint64_t unlogged = atomic_load_explicit(&t->events.unlogged_step, memory_order_relaxed);

    return generation_is_coordinator(&t->generation) && step > 0 && unlogged == step;
}

void step_report_logged(struct replica *r, uint64_t step)
{
    const struct train *t = r->train;
    bool is_written = engine_control(r->device)[CONTROL_UNLOGGED] == 0;
    struct train_event e = { .kind = TRAIN_LOGGED, .step = step, .done = is_written };

    if (r->local == 0 && step > 0 && !generation_is_coordinator(&t->generation))
        events_send(&t->events, &e);
}
