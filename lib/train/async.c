/* async.c - see async.h. */
#include "train/async.h"

#include <inttypes.h>
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/fault.h"
#include "comm/comm.h"
#include "engine/trace.h"
#include "ps/client.h"
#include "train/apply.h"
#include "train/health.h"
#include "train/remote.h"
#include "train/save.h"
#include "train/step.h"
#include "train/step_report.h"
#include "train/task.h"

/* The steps up to one limit. */
struct run {
    struct replica *r;
    struct train *t;
    uint64_t done;     /* the newest step whose facts were reported */
    uint32_t at;       /* the next lane that the reader delivers */
    uint64_t begin_ns; /* of the newest unit */
    uint64_t wait_ns;  /* waited for servers and other tasks since then */
    bool has_asked;    /* the coordinator wants all tasks to stop */
    bool has_note;     /* a step that ends the generation */
    uint64_t note_step;
    char note[300];
};

/* ---- the limit ---- */

/* Returns the first step after `held` after which the job needs the state. */
static uint64_t find_limit(struct train *t, uint64_t held)
{
    uint64_t step = held + 1;

    for (; step < t->model.total_steps; step++) {
        const struct period period = phases_period(&t->phases, step);

        if (phases_ends_phase(&t->phases, &period) ||
            phases_evaluate(&t->phases, &t->model, step) ||
            (t->opts->checkpoint.directory != NULL && live_save_is_due(&t->live, step - 1, step)))
            break;
    }
    return step;
}

static bool wants_stop(const struct run *w)
{
    const struct train *t = w->t;

    return w->has_note || w->r->votes[VOTE_PAUSE] > 0 || save_is_wanted(t) ||
           (atomic_load_explicit(&t->generation.requests, memory_order_relaxed) &
            TRAIN_REQUEST_PAUSE) != 0;
}

/* The coordinator: permission to go on, and an earlier limit if the job needs the state now. */
static int coordinate(struct run *w, struct err *err)
{
    int rc;

    if (!generation_is_coordinator(&w->t->generation))
        return 0;
    rc = step_wait_for_permission(w->r, err);
    if (rc < 0 || w->has_asked || !wants_stop(w))
        return rc;
    w->has_asked = true;
    return remote_limit(w->r, 0, err);
}

/* ---- complete steps ---- */

/* A step with units that changed nothing. Policies other than skipping need all tasks at the same step. */
static void note_skipped(struct run *w, const struct ps_step_facts *f)
{
    struct train *t = w->t;
    struct train_event e = { .kind = TRAIN_SKIPPED, .step = f->step, .text = w->note };

    if (w->has_note)
        return;
    w->note_step = f->step;
    snprintf(w->note, sizeof(w->note),
             "step %" PRIu64 ": loss or gradient of %" PRIu32
             " of %u lanes are not finite; these lanes were left out",
             f->step, f->n_skipped, t->opts->lanes);
    t->state.facts.skips_in_row++;
    if (t->opts->health.non_finite != TRAIN_SKIP ||
        t->state.facts.skips_in_row > HEALTH_MAX_SKIPS) {
        w->has_note = true;
        return;
    }
    t->health.skips++;
    e.all = t->health.skips;
    events_send(&t->events, &e);
}

static void report_step(struct run *w, const struct ps_step_facts *f)
{
    struct train *t = w->t;
    struct engine_replica *d = w->r->device;
    struct train_event logged = { .kind = TRAIN_LOGGED, .step = f->step, .done = true };

    if (f->n_skipped > 0)
        note_skipped(w, f);
    else
        t->state.facts.skips_in_row = 0;
    live_end_step(&t->live, f->step);
    t->state.facts.step = f->step;
    t->state.facts.loss = f->loss;
    t->state.facts.grad_norm = f->norm;
    t->state.facts.learning_rate = optim_rate(&t->state.schedule, f->step);
    t->state.facts.grad_scale = (float)(1 / t->state.facts.scale.scale);
    t->state.facts.is_skipped = false;
    if (f->step > state_held(&t->state))
        state_hold(&t->state, f->step);
    d->reduce_ns = d->reduce_work_ns = w->wait_ns;
    step_report(w->r, &t->state.facts, w->begin_ns);
    if (!generation_is_coordinator(&t->generation))
        events_send(&t->events, &logged);
    w->done = f->step;
}

/* ---- a unit ---- */

/* Asks for the next unit of a step. */
static int ask(struct run *w, uint64_t step, struct ps_next *out, struct err *err)
{
    uint64_t before = clock_ns();
    int rc;

    place_enter(&w->r->device->place, PHASE_REDUCE);
    rc = remote_next(w->r, step, w->done, out, err);
    w->wait_ns += clock_ns() - before;
    for (uint32_t i = 0; rc == 0 && i < out->n_facts; i++)
        report_step(w, &out->facts[i]);
    return rc;
}

/* The lanes that another task has applied are read, and not computed. */
static int skip_lanes(struct run *w, uint32_t end, struct err *err)
{
    int rc = 0;

    if (w->at < end)
        rc = ops_of(w->r)->skip_lanes(w->r->device, end - w->at, err);
    w->at = end;
    return rc;
}

/* Returns the number of the update among those of the job: the corrections of adam count updates. */
static uint64_t number_of(const struct run *w, uint64_t step)
{
    uint32_t world = comm_world(w->t->generation.comm);

    return (phases_slot_steps(&w->t->phases, step) - 1) * world + w->r->device->rank + 1;
}

static int apply_unit(struct run *w, const struct ps_unit *unit, struct err *err)
{
    struct engine_replica *d = w->r->device;
    struct remote_update u = { .hyper = apply_hyper(w->t, unit->step, d->scale),
                               .clip_norm = w->t->opts->run.clip_norm,
                               .loss = engine_control(d)[ENGINE_LOSS] / d->scale };
    uint64_t before = clock_ns();
    int rc;

    u.hyper.step = number_of(w, unit->step);
    u.hyper.learning_rate *= (double)unit->n / w->t->opts->lanes;
    place_enter(&d->place, PHASE_REDUCE);
    rc = remote_apply_unit(w->r, &u, err);
    w->wait_ns += clock_ns() - before;
    return rc;
}

static int run_unit(struct run *w, const struct ps_unit *unit, struct err *err)
{
    struct train *t = w->t;
    struct engine_replica *d = w->r->device;
    uint32_t first_lane = d->first_lane, n_lanes = d->n_lanes;
    int rc = skip_lanes(w, unit->first, err);

    w->begin_ns = clock_ns();
    w->wait_ns = 0;
    d->scale = t->state.facts.scale.scale;
    d->loss_scale = (float)(d->scale * t->opts->lanes /
                            ((double)unit->n * (double)model_samples_of(&t->model, unit->step)));
    d->trace = t->is_tracing ? trace_begin(t->trace, w->r->local, unit->step) : NULL;
    place_step(&d->place, unit->step);
    if (rc == 0)
        rc = fault_error("train.forward", err);
    if (rc == 0)
        rc = remote_begin_unit(w->r, unit, err);
    d->first_lane = unit->first;
    d->n_lanes = unit->n;
    if (rc == 0)
        rc = ops_of(w->r)->run_lanes(d, unit->step, err);
    d->first_lane = first_lane;
    d->n_lanes = n_lanes;
    w->at = unit->first + unit->n;
    if (rc == 0)
        rc = fault_error("train.reduce", err);
    if (rc == 0)
        rc = apply_unit(w, unit, err);
    if (rc == 0)
        rc = ops_of(w->r)->end_step(d, err);
    if (rc == 0 && trace_end_step(d->trace, w->begin_ns))
        d->trace = NULL;
    return rc < 0 ? err_wrap(err, rc, "step %" PRIu64, unit->step) : 0;
}

/* Computes the lanes of this task, step after step, until all tasks stop. */
static int run_units(struct run *w, uint64_t held, struct ps_next *next, struct err *err)
{
    const struct engine_replica *d = w->r->device;
    uint32_t first = d->first_lane, end = d->first_lane + d->n_lanes;
    uint64_t step = held + 1;
    int rc = 0;

    for (;;) {
        rc = coordinate(w, err);
        if (rc == 0)
            rc = ask(w, step, next, err);
        if (rc < 0 || next->what == PS_NEXT_STOP)
            return rc;
        rc = next->what == PS_NEXT_UNIT ? run_unit(w, &next->unit, err) : skip_lanes(w, end, err);
        if (rc < 0)
            return rc;
        if (w->at == end) {
            w->at = first;
            step++;
        }
    }
}

/* ---- the stop ---- */

/* All tasks are here, after the same step. */
static int agree(struct run *w, uint64_t last, struct step_result *out, struct err *err)
{
    struct train *t = w->t;
    float *control = engine_control(w->r->device);
    uint32_t n = t->engine->opts->control_floats;
    int rc;

    memset(control, 0, n * sizeof(*control));
    control[CONTROL_PAUSE] = (atomic_load_explicit(&t->generation.requests, memory_order_relaxed) &
                              TRAIN_REQUEST_PAUSE) != 0;
    place_bucket(&w->r->device->place, last, 0);
    rc = comm_all_reduce(t->generation.comm, w->r->local, control, n, TENSOR_F32, COMM_SUM, err);
    if (rc < 0)
        return rc;
    *out = (struct step_result){ .loss = t->state.facts.loss, .pause = control[CONTROL_PAUSE] > 0 };
    memset(control, 0, n * sizeof(*control));
    return 0;
}

static void save(struct run *w, uint64_t last)
{
    struct train *t = w->t;
    uint64_t before = clock_ns();

    if (!generation_is_coordinator(&t->generation) || last == t->model.total_steps ||
        !save_is_due(t, last)) /* the end of the job saves the last step */
        return;
    place_enter(&w->r->device->place, PHASE_COPY);
    if (save_if_due(t, last))
        t->events.copy_ns += clock_ns() - before;
}

int async_run(struct replica *r, uint64_t held, uint64_t *last, struct step_result *out,
              struct err *err)
{
    struct train *t = r->train;
    struct run w = {
        .r = r, .t = t, .done = remote_reported(r), .at = r->device->first_lane, .begin_ns = clock_ns()
    };
    struct ps_next next;
    int rc = 0;

    if (generation_is_coordinator(&t->generation))
        rc = remote_limit(r, find_limit(t, held), err);
    if (rc == 0)
        rc = run_units(&w, held, &next, err);
    if (rc < 0)
        return rc;
    CHECK(w.at == r->device->first_lane);
    *last = next.unit.step - 1; /* the first step that no task has begun */
    remote_stop(r, *last, next.version);
    rc = agree(&w, *last, out, err);
    if (rc == 0 && w.has_note)
        rc = health_handle_local(r, *last, w.note_step, w.note, err);
    if (rc == 0)
        save(&w, *last);
    return rc;
}
