/* replica.c - see replica.h. */
#include "train/replica.h"

#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "engine/trace.h"
#include "op/op.h"
#include "train/agree.h"
#include "train/agree_message.h"
#include "train/async.h"
#include "train/coding.h"
#include "train/copies.h"
#include "train/eval.h"
#include "train/export.h"
#include "train/health.h"
#include "train/outer.h"
#include "train/remote.h"
#include "train/resume.h"
#include "train/save.h"
#include "train/step.h"
#include "train/task.h"
#include "train/transfer.h"

enum { TRACE_WARM_STEPS = 3 };

/* Work after a step, or after the held step when a generation begins. */
static int between(struct replica *r, uint64_t step, bool evaluates, struct err *err)
{
    int rc = 0;

    place_enter(&r->device->place, PHASE_BETWEEN);
    if (evaluates) {
        rc = eval_run(r, step, err);
        place_enter(&r->device->place, PHASE_BETWEEN);
    }
    return rc;
}

/* Trains the period after step `held`. *step: its last step. */
static int one_period(struct replica *r, uint64_t held, uint64_t *step, struct step_result *result,
                      struct err *err)
{
    const struct period period = phases_period(&r->train->phases, held + 1);

    *step = period.last;
    if (period.is_async)
        return async_run(r, held, step, result, err);
    return period.is_local ? outer_run(r, &period, held, result, err)
                           : step_run(r, period.last, result, err);
}

static int steps(struct replica *r, uint64_t held, struct err *err)
{
    struct train *t = r->train;
    struct step_result result = { .pause = r->votes[VOTE_PAUSE] > 0 && !remote_has_more(t) };
    uint64_t last = held;
    int rc = 0;

    if (t->generation.opts.only_evaluates)
        return between(r, held, true, err);
    if (!result.pause || held == t->model.total_steps)
        rc = between(r, held, r->votes[VOTE_UNEVALUATED] > 0, err);
    if (rc == 0 && held > 0)
        rc = health_checksum(r, held, err);
    if (r->local == 0 && generation_is_coordinator(&t->generation) &&
        !phases_period(&t->phases, held + 1).is_async)
        (void)save_is_due(t, held); /* called again after the first comparison */
    if (rc == 0 && held < t->model.total_steps && !result.pause)
        rc = ops_of(r)->open_reader(r->device, held + 1, t->model.total_steps, err);
    while (rc == 0 && last < t->model.total_steps && !result.pause) {
        uint64_t k;

        rc = one_period(r, last, &k, &result, err);
        if (k == t->model.total_steps)
            result.pause = false; /* the generation ends in any case */
        if (rc == 0) /* an evaluation that a pause delays is pending in the next generation */
            rc = between(r, k, phases_evaluate(&t->phases, &t->model, k) && !result.pause, err);
        last = k;
    }
    if (rc == 0)
        rc = health_compare_last(r, last, err);
    if (rc == 0 && result.pause && last > 0)
        rc = save_before_rest(r, last, err);
    return rc;
}

/* Starts the trace after the first steps, which touch memory for the first time, if later steps
 * exist. */
static int start_trace(struct train *t, uint64_t held, struct err *err)
{
    uint64_t left = t->model.total_steps - held, first = held + 1;

    if (t->trace == NULL || t->was_traced)
        return 0;
    if (left == 0) {
        events_warn(&t->events, 0, "trace: no step is left that could be traced");
        return 0;
    }
    if (left > t->opts->trace_steps)
        first += left - t->opts->trace_steps < TRACE_WARM_STEPS ? left - t->opts->trace_steps
                                                                : TRACE_WARM_STEPS;
    t->was_traced = t->is_tracing = true;
    return trace_start(t->trace, first, t->generation.opts.view.self + 1,
                       t->generation.opts.view.members[t->generation.opts.view.self].name, err);
}

/* Called by local replica 0 for the whole process. */
static int join_group(struct train *t, struct err *err)
{
    struct replica *r = &t->replicas[0];
    int rc = 0;

    if (t->generation.has_exposed_region) {
        rc = t->engine->ops->replace_region(t->engine, err);
        t->generation.has_exposed_region = rc < 0;
    }
    if (rc == 0 && generation_is_coordinator(&t->generation) &&
        t->generation.opts.view.newest_step == 0 && state_held(&t->state) == 0) {
        place_enter(&r->device->place, PHASE_LOAD);
        rc = resume_newest(t, err);
    }
    if (rc == 0 && !generation_is_coordinator(&t->generation))
        save_stop_publishing(t);
    else if (rc == 0 && t->generation.opts.view.coordinator > 0 && !t->saving.was_leading)
        /* the storage of a lower rank failed: this task writes the missing checkpoint */
        t->saving.is_due = true;
    t->saving.was_leading = generation_is_coordinator(&t->generation);
    /* that state may no longer exist; a due checkpoint stays due (is_due) */
    t->saving.steps[0] = t->saving.steps[1] = 0;
    outer_join(t);
    if (rc == 0)
        rc = generation_check(&t->generation, err);
    place_enter(&r->device->place, PHASE_CONNECT);
    return rc < 0 ? rc : agree_connect(t, err);
}

static int adopt_state(struct replica *r, uint64_t *held, struct err *err)
{
    struct train *t = r->train;
    struct agreement agreement;
    int rc = agree_on_state(r, &agreement, err);

    if (rc < 0)
        return rc;
    *held = agreement.step;

    if (r->votes[VOTE_BEHIND] > 0)
        rc = transfer_state(r, *held, err);
    if (rc == 0 && r->local == 0)
        rc = health_adopt(t, *held, r->votes, err);
    if (rc == 0 && r->local == 0) { /* the maximum over all tasks, wherever each trace starts */
        uint64_t traced = (uint64_t)r->votes[VOTE_TRACES];

        t->engine->group.no_graphs_until = traced > 0 ? *held + TRACE_WARM_STEPS + traced : 0;
        t->engine->group.overlap = agreement.overlap;
        coding_adopt(t, &agreement);
        copies_begin(t);
    }
    if (rc == 0)
        /* the state is complete in memory now */
        rc = generation_gate(&t->generation, &r->device->place, err);
    if (rc == 0)
        rc = ops_of(r)->bind(r->device, *held, err);
    if (rc == 0)
        place_step(&r->device->place, *held);
    return rc;
}

static int report_connected(struct train *t, uint64_t held, struct err *err)
{
    struct train_event e = { .kind = TRAIN_CONNECTED,
                             .step = t->generation.opts.only_evaluates ? held - 1 : held };

    t->events.last_step_ns = clock_ns();
    events_send(&t->events, &e);
    if (!t->events.has_resumed) {
        e.kind = TRAIN_RESUMED;
        e.text = t->events.resumed_path;
        events_send(&t->events, &e);
        t->events.has_resumed = true;
    }
    events_phase(&t->events, "train", held);
    return start_trace(t, held, err);
}

static bool is_storage_failure(int rc)
{
    return rc == ERR_IO || rc == ERR_FULL || rc == ERR_NOENT || rc == ERR_EXISTS ||
           rc == ERR_TIMEOUT || rc == ERR_UNSUPPORTED;
}

/* Finishes the job: last checkpoint and export, on the coordinator. */
static int finish(struct replica *r, struct err *err)
{
    struct train *t = r->train;
    int rc;

    place_enter(&r->device->place, PHASE_SAVE);
    rc = save_now(t, t->model.total_steps, t->generation.opts.deadline_ms, err);
    if (rc == 0) {
        place_enter(&r->device->place, PHASE_EXPORT);
        rc = export_model(t, err);
    }
    t->generation.is_unsaved = is_storage_failure(rc);
    return rc;
}

int replica_run(struct replica *r, struct err *err)
{
    struct train *t = r->train;
    uint64_t held = 0;
    int rc = device_enter(&t->opts->devices[r->local], err);

    op_thread_init();
    if (rc == 0 && r->local == 0)
        rc = join_group(t, err);
    if (rc == 0)
        rc = generation_gate(&t->generation, &r->device->place, err);
    if (rc == 0)
        rc = ops_of(r)->begin(r->device, err);
    if (rc == 0)
        rc = adopt_state(r, &held, err);
    if (rc == 0)
        rc = remote_settle(r, &held, err);
    if (rc == ERR_REFUSED) {
        err->code = ERR_DEVICE;
        rc = health_roll_back(r, err);
    }
    if (rc == 0 && r->local == 0)
        rc = report_connected(t, held, err);
    if (rc == 0)
        /* no replica starts a step before all have the state */
        rc = generation_gate(&t->generation, &r->device->place, err);
    if (rc == 0)
        rc = steps(r, held, err);
    if (rc == 0 && r->local == 0 && generation_is_coordinator(&t->generation) &&
        !t->generation.opts.only_evaluates && state_held(&t->state) == t->model.total_steps)
        rc = finish(r, err);
    if (rc == 0)
        rc = remote_end(r, err);
    return rc;
}
