/* step.c - see step.h. */
#include "train/step.h"

#include <stdatomic.h>
#include <math.h>
#include <time.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/fault.h"
#include "engine/trace.h"
#include "train/apply.h"
#include "train/copies.h"
#include "train/health.h"
#include "train/remote.h"
#include "train/sample_log.h"
#include "train/save.h"
#include "train/step_report.h"
#include "train/task.h"

enum { PERMISSION_MS = 2 };

int step_wait_for_permission(struct replica *r, struct err *err)
{
    const struct train_generation *g = &r->train->generation.opts;
    struct timespec nap = { .tv_nsec = PERMISSION_MS * 1000000 };
    int rc;

    if (r->local != 0 || !generation_is_coordinator(&r->train->generation))
        return 0;
    rc = save_check_storage(r->train, err);
    if (rc < 0 || g->may_step == NULL || g->may_step(r->train->opts->arg))
        return rc;
    place_enter(&r->device->place, PHASE_PERMISSION);
    do {
        rc = generation_check(&r->train->generation, err);
        if (rc < 0)
            return rc;
        nanosleep(&nap, NULL);
    } while (!g->may_step(r->train->opts->arg));
    return 0;
}

static int write_control(struct replica *r, uint64_t step, struct err *err)
{
    struct train *t = r->train;
    float *control = engine_control(r->device);
    int rc = save_wait_for_previous(r, err);

    if (rc < 0)
        return rc;
    control[CONTROL_PAUSE] = (atomic_load_explicit(&t->generation.requests, memory_order_relaxed) &
                              TRAIN_REQUEST_PAUSE) != 0;
    control[CONTROL_CHECKSUM] =
        (generation_is_coordinator(&t->generation) && save_is_due(t, step)) ||
        health_checksum_is_due(t, step - 1, step);
    control[CONTROL_COPIES] = generation_is_coordinator(&t->generation) && copies_are_due(t, step);
    control[CONTROL_UNLOGGED] = step_report_unlogged(t, step - 1);
    health_contribute(t, step, control);
    return remote_collect(r, step, control, err);
}

static int read_control(struct replica *r, uint64_t step, struct step_result *out, struct err *err)
{
    const struct train *t = r->train;
    const float *control = engine_control(r->device);
    double scale = r->device->scale;
    int rc = 0;

    out->loss = control[ENGINE_LOSS] / scale;
    if (t->opts->mean_of_weights) { /* the divisor is known after the all-reduce */
        float sum = control[ENGINE_WEIGHT] / (float)scale;
        float weight = sum > 0 ? sum : 1; /* 0: all gradients are 0 too */

        out->loss /= (double)weight;
        rc = ops_of(r)->scale(r->device, 1.0f / weight, err);
    }
    out->trouble = control[ENGINE_TROUBLE] > 0;
    out->pause = control[CONTROL_PAUSE] > 0;
    out->copies = control[CONTROL_COPIES] > 0;
    remote_read_control(r, control, out);
    out->checksum = control[CONTROL_CHECKSUM] > 0;
    step_report_logged(r, step - 1);
    return rc < 0 ? rc : health_compare_data(r, step, err);
}

static void report_wrong_copy(const struct replica *r, uint64_t step, const char *text)
{
    struct train_event e = {
        .kind = TRAIN_WRONG_COPY, .step = step, .text = text, .all = r->device->spare.wrong
    };

    if (r->device->spare.wrong > 0)
        events_send(&r->train->events, &e);
}

static int finish_reduction(struct replica *r, uint64_t step, struct step_result *out,
                            struct err *err)
{
    int rc = step_wait_for_permission(r, err);

    if (rc < 0)
        return rc;
    if (r->local == 0)
        rc = write_control(r, step, err);
    if (rc == 0) {
        rc = ops_of(r)->reduce(r->device, step, err);
        if (rc < 0)
            report_wrong_copy(r, step, err->text);
    }
    return rc < 0 ? rc : read_control(r, step, out, err);
}

int step_look_back(struct replica *r, uint64_t step, struct err *err)
{
    uint64_t before;
    int rc = health_compare(r, step + 1, err);

    if (rc < 0 || r->local != 0 || !generation_is_coordinator(&r->train->generation) ||
        !health_allows(r->train, step))
        return rc;
    place_enter(&r->device->place, PHASE_COPY);
    before = clock_ns();
    if (save_if_due(r->train, step)) {
        trace_add_until_now(r->device->trace, TRACE_CHECKPOINT, 0, before);
        r->train->events.copy_ns += clock_ns() - before;
    }
    return 0;
}

/* The commit gate: the step is applied in all replicas of this task, or in none. After the gate all
 * replicas have the same result and no call fails. */
static int commit(struct replica *r, uint64_t step, const struct step_result *result, bool *finite,
                  struct err *err)
{
    uint64_t before = trace_clock(r->device->trace);
    int rc;

    place_enter(&r->device->place, PHASE_CHECK);
    rc = fault_error("train.commit", err);
    if (rc == 0)
        ops_of(r)->inspect(r->device);
    if (rc == 0)
        rc = generation_gate(&r->train->generation, &r->device->place, err);
    trace_add_until_now(r->device->trace, TRACE_CHECK, 0, before);
    if (rc == 0 && result->trouble) /* the task that owns the GPU reports the number */
        rc = err_set(err, ERR_PEER,
                     "a GPU of another task met a number that its model cannot use (an index, a "
                     "label): its log names it. The step is not applied");
    if (rc == 0)
        rc = health_check_step(r, step, result->loss, finite, err);
    *finite = *finite && !result->remote_bad;
    return rc;
}

static int update(struct replica *r, uint64_t step, double *norm, struct err *err)
{
    uint64_t before = trace_clock(r->device->trace);
    int rc;

    place_enter(&r->device->place, PHASE_UPDATE);
    rc = apply_update(r, step, norm, err);
    trace_add_until_now(r->device->trace, TRACE_UPDATE, 0, before);
    return rc;
}

/* Applies or skips the step. An error of update() is returned after the step was applied
 * completely. */
static int apply(struct replica *r, uint64_t step, const struct step_result *result, bool finite,
                 uint64_t begin, struct err *err)
{
    struct train *t = r->train;
    double norm = NAN;
    int rc = 0;

    if (finite) {
        if (r->local == 0)
            sample_log_done(t->samples, step); /* agreed, and about to be applied */
        rc = update(r, step, &norm, err);
        health_updated(r);
    } else if (health_overflowed(r, result->loss)) {
        health_skip_overflow(r, step);
        if (r->local == 0)
            sample_log_done(t->samples, step); /* agreed, with nothing to apply */
    } else {
        rc = health_handle_nonfinite(r, step, result, err);
        if (rc < 0)
            return rc;
        if (r->local == 0)
            sample_log_done(t->samples, step); /* agreed, with nothing to apply */
    }
    if (r->local != 0)
        return rc;
    t->state.facts.loss = result->loss;
    t->state.facts.grad_norm = norm;
    step_report(r, &t->state.facts, begin);
    return rc;
}

static int make(struct replica *r, uint64_t step, struct step_result *out, bool *finite,
                struct err *err)
{
    int rc = fault_error("train.forward", err);

    if (rc == 0)
        rc = remote_read_dense(r, ENGINE_ROWS_OF_LANES, err);
    if (rc == 0)
        rc = ops_of(r)->run_lanes(r->device, step, err);
    if (rc == 0)
        rc = fault_error("train.reduce", err);
    if (rc == 0)
        rc = sample_log_write(r->train->samples, r->local, err); /* before the last contribution */
    if (rc == 0)
        rc = finish_reduction(r, step, out, err);
    if (rc == 0)
        rc = step_look_back(r, step - 1, err);
    return rc < 0 ? rc : commit(r, step, out, finite, err);
}

int step_run(struct replica *r, uint64_t step, struct step_result *out, struct err *err)
{
    struct train *t = r->train;
    uint64_t begin = clock_ns();
    bool finite = true;
    int rc;

    r->device->scale = t->state.facts.scale.scale;
    r->device->loss_scale = (float)(r->device->scale / (double)model_samples_of(&t->model, step));
    r->device->trace = t->is_tracing ? trace_begin(t->trace, r->local, step) : NULL;
    place_step(&r->device->place, step);
    rc = make(r, step, out, &finite, err);
    if (rc == 0)
        rc = apply(r, step, out, finite, begin, err);
    if (rc == 0)
        rc = copies_end_step(r, step, out, err);
    if (rc == 0 && out->checksum)
        rc = health_checksum(r, step, err);
    if (rc == 0)
        rc = ops_of(r)->end_step(r->device, err);
    if (rc < 0)
        return err_wrap(err, rc, "step %llu", (unsigned long long)step);
    if (trace_end_step(r->device->trace, begin))
        r->device->trace = NULL;
    return 0;
}
