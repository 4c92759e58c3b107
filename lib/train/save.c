/* save.c - see save.h. */
#include "train/save.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/fault.h"
#include "ckpt/ckpt.h"
#include "ps/wants.h"
#include "train/agree_message.h"
#include "train/coding.h"
#include "train/remote.h"
#include "train/task.h"

enum {
    RETRY_MS = 1000,
    RETRY_DOUBLINGS = 5,
    HAND_OVER_TRIES = 2, /* failures of the last save before another member writes it */
    STALL_MS_MIN = 2000,
    LOOK_MS = 100, /* between two looks for the end of the generation */
};

static void on_ckpt_event(void *arg, const struct ckpt_event *event)
{
    struct train *t = arg;
    struct train_event e = { .kind = TRAIN_CHECKPOINT, .step = event->step, .ckpt = event };

    if (event->kind == CKPT_DISCARDED)
        atomic_store_explicit(&t->saving.was_discarded, true, memory_order_release);
    events_send(&t->events, &e);
}

/* Called in the writer's thread: may the current group publish a checkpoint? */
static int may_publish(void *arg, struct err *err)
{
    struct train *t = arg;
    int (*may_save)(void *, struct err *) =
        atomic_load_explicit(&t->generation.may_save, memory_order_acquire);

    return may_save != NULL ? may_save(t->opts->arg, err) : 0;
}

static int wait_copy(void *arg, struct err *err)
{
    struct train *t = arg;

    return t->engine->ops->wait_snapshot(t->engine, err);
}

/* A ckpt_write_rows_fn, called in hand_over(). */
static int write_rows(void *arg, struct ckpt_row_files *files, struct err *err)
{
    return remote_write(arg, files, err);
}

int save_open_writer(struct train *t, struct err *err)
{
    const struct train_opts *o = t->opts;
    struct ckpt_writer_opts w = {
        .directory = o->checkpoint.directory,
        .max_to_keep = o->checkpoint.max_to_keep,
        .model = t->model.tensors.model,
        .n_model = t->model.tensors.n_model,
        .slots = t->model.tensors.slots,
        .n_slots = t->model.tensors.n_slots,
        .state_bytes = ps_wants_dense(o->ps) ? t->model.parts.floats * sizeof(float)
                                             : t->engine->memory.state_bytes,
        .retry_ms = RETRY_MS,
        .on_event = on_ckpt_event,
        .may_publish = may_publish,
        .wait_snapshot = wait_copy,
        .write_rows = remote_has_tables(t) ? write_rows : NULL,
        .arg = t,
    };
    struct ckpt_writer *writer;
    int rc;

    if (t->saving.writer != NULL)
        return 0;
    rc = t->engine->ops->staging(t->engine, &w.staging, err);
    if (rc == 0)
        rc = ckpt_writer_open(&w, &writer, err);
    if (rc == 0)
        /* train_storage() may read it at any time */
        atomic_store_explicit(&t->saving.writer, writer, memory_order_release);
    return rc;
}

static struct ckpt_meta meta_of(struct train *t, uint64_t step)
{
    const struct train_opts *o = t->opts;
    uint64_t in_epoch = step % t->model.steps_per_epoch;
    bool is_evaluated =
        !phases_evaluate(&t->phases, &t->model, step) || t->state.facts.evaluated_step == step;
    const struct period period = phases_period(&t->phases, step);
    const struct train_phase *phase = phases_of(&t->phases, &period);
    struct ckpt_meta m = {
        .step = step,
        .epoch = step / t->model.steps_per_epoch,
        .position = in_epoch * o->global_batch,
        .seed = o->run.seed,
        .lanes = o->lanes,
        .global_batch_size = o->global_batch,
        .complete = step == t->model.total_steps && is_evaluated,
        .evaluated_step = t->state.facts.evaluated_step,
        .loss_scale = loss_scale_is_on(&o->run.loss_scale) ? t->state.facts.scale.scale : 0,
        .loss_scale_good_steps = t->state.facts.scale.good,
        .plateau_step = t->state.schedule.plateau.step,
        .plateau_has_best = t->state.schedule.plateau.has_best,
        .plateau_best = t->state.schedule.plateau.best,
        .plateau_waited = t->state.schedule.plateau.waited,
        .plateau_reductions = t->state.schedule.plateau.reductions,
        .phase = phase != NULL ? period.phase + 1 : 0,
        .groups = phase != NULL ? phase->groups : 0,
        .outer_step = period.outer_step,
        .has_outer_momentum = t->phases.has_local,
        .staleness = ps_staleness_of(o->ps_tables),
        .residual_groups = coding_residual_groups(o),
    };

    snprintf(m.job_digest, sizeof(m.job_digest), "%s", o->job_digest);
    snprintf(m.model_digest, sizeof(m.model_digest), "%s", t->model.digest);
    snprintf(m.data_digest, sizeof(m.data_digest), "%s", t->model.data_digest);
    agree_print_content(t->model.content[0], m.data_content);
    snprintf(m.name, sizeof(m.name), "%s", o->job_name);
    snprintf(m.compression, sizeof(m.compression), "%s", coding_text(o, t->state.facts.coding));
    return m;
}

/* The longest time without progress of the storage while steps wait. */
static uint64_t stall_ms(const struct train *t)
{
    return t->generation.opts.deadline_ms;
}

/* Waits until the parameter servers have written their rows; the steps wait meanwhile. */
static int wait_rows(struct train *t, struct err *err)
{
    int rc = ckpt_wait_rows(t->saving.writer, stall_ms(t), err);

    t->saving.is_reported = rc < 0; /* as an event of the writer */
    if (rc < 0)
        t->saving.last_step = 0;
    return rc;
}

/* The files of dynamic tables have the sizes of this step. */
static int set_sizes(struct train *t, struct err *err)
{
    struct ckpt_sizes *sizes;
    uint32_t n;
    int rc = remote_count(t, &sizes, &n, err);

    if (rc == 0 && n > 0)
        rc = ckpt_set_sizes(t->saving.writer, sizes, n, err);
    free(sizes);
    return rc;
}

/* Passes a copy of the state to the writer. ERR_EXISTS: the previous checkpoint is still being
 * written. */
static int hand_over(struct train *t, uint64_t step, struct err *err)
{
    struct ckpt_meta meta = meta_of(t, step);
    void *staging;
    int rc = save_open_writer(t, err);

    t->saving.is_reported = false;
    if (rc == 0)
        rc = fault_error("train.save", err);
    if (rc == 0 && t->remote != NULL)
        rc = remote_can_write(t, err);
    if (rc == 0)
        rc = ckpt_begin(t->saving.writer, &staging, err);
    if (rc == 0) {
        rc = t->engine->ops->snapshot(t->engine, state_held(&t->state), staging, err);
        if (rc == 0)
            rc = set_sizes(t, err);
        if (rc == 0)
            rc = remote_gather(t, staging, err);
        if (rc < 0)
            ckpt_abandon(t->saving.writer);
    }
    if (rc == 0) {
        ckpt_set_max_to_keep(t->saving.writer, live_keep(&t->live));
        ckpt_hand_over(t->saving.writer, &meta);
        t->saving.last_step = step;
        t->saving.last_ns = clock_ns();
        t->saving.is_due = t->saving.is_urgent = false;
        atomic_fetch_and_explicit(&t->generation.requests, ~(unsigned)TRAIN_REQUEST_CHECKPOINT,
                                  memory_order_relaxed);
        if (remote_has_tables(t))
            rc = wait_rows(t, err);
    }
    return rc;
}

/* Is the state after `step` still to be copied? */
static bool is_marked(const struct train *t, uint64_t step)
{
    return step > 0 && (t->saving.steps[0] == step || t->saving.steps[1] == step);
}

/* Replaces the older mark: at most the state before the present period is still to be copied. */
static void mark(struct train *t, uint64_t step)
{
    t->saving.steps[t->saving.steps[0] > t->saving.steps[1]] = step;
}

/* The writer does not retry a save whose rows are on parameter servers: they change. Saves a later state. */
static void retry_failed(struct train *t)
{
    struct ckpt_failure f;
    uint32_t doublings;

    if (!remote_has_tables(t))
        return;
    save_trouble(t, &f);
    if (f.failures > t->saving.failures) {
        doublings = f.failures - 1 < RETRY_DOUBLINGS ? f.failures - 1 : RETRY_DOUBLINGS;
        t->saving.is_due = true;
        t->saving.retry_ns = clock_ns() + (RETRY_MS * UINT64_C(1000000) << doublings);
    }
    t->saving.failures = f.failures;
}

/* Is a checkpoint due after the period that ends with the step, by its number or for another
 * reason? */
static bool is_due(struct train *t, uint64_t step)
{
    uint64_t before = phases_period(&t->phases, step).before;
    bool due;

    retry_failed(t);
    if (atomic_exchange_explicit(&t->saving.was_discarded, false, memory_order_acq_rel))
        /* this task may save again: save now, not after a whole interval */
        t->saving.is_due = true;
    due = step != t->saving.last_step &&
          (t->saving.is_due || live_save_is_overdue(&t->live, t->saving.last_ns));
    if (atomic_load_explicit(&t->generation.requests, memory_order_relaxed) &
        TRAIN_REQUEST_CHECKPOINT)
        due = true;
    if (is_marked(t, before)) /* that copy suffices */
        due = false;
    return due || (step != t->saving.last_step && live_save_is_due(&t->live, before, step));
}

static bool can_begin(const struct train *t)
{
    return clock_ns() >= t->saving.retry_ns &&
           (t->saving.writer == NULL || !ckpt_is_busy(t->saving.writer));
}

bool save_is_wanted(const struct train *t)
{
    return t->opts->checkpoint.directory != NULL && can_begin(t) &&
           (t->saving.is_due || live_save_is_overdue(&t->live, t->saving.last_ns) ||
            (atomic_load_explicit(&t->generation.requests, memory_order_relaxed) &
             TRAIN_REQUEST_CHECKPOINT) != 0);
}

/* Must the step wait for the writer, since begin_ns? A pause saves when the generation ends. */
static bool must_wait_for_previous(const struct train *t, uint64_t begin_ns)
{
    struct ckpt_failure f;

    if (t->saving.writer == NULL || !ckpt_is_busy(t->saving.writer) ||
        (atomic_load_explicit(&t->generation.requests, memory_order_relaxed) &
         TRAIN_REQUEST_PAUSE) != 0)
        return false;
    save_trouble(t, &f);
    return f.stalled_ms < stall_ms(t) / 4 && (clock_ns() - begin_ns) / 1000000 < stall_ms(t);
}

int save_wait_for_previous(struct replica *r, struct err *err)
{
    static const struct ckpt_flush_limits look = { .wait_ms = LOOK_MS };
    struct train *t = r->train;
    struct place *place = &r->device->place;
    uint64_t begin_ns = clock_ns();
    enum phase phase = place_read(place).phase;
    int rc = 0;

    if (!t->saving.is_urgent || !generation_is_coordinator(&t->generation) ||
        !must_wait_for_previous(t, begin_ns))
        return 0;
    place_enter(place, PHASE_WRITER);
    while (rc == 0 && must_wait_for_previous(t, begin_ns)) {
        rc = generation_check(&t->generation, err);
        if (rc == 0)
            (void)ckpt_flush(t->saving.writer, &look, NULL); /* a failure is an event of the writer */
    }
    place_enter(place, phase);
    return rc;
}

bool save_is_due(struct train *t, uint64_t step)
{
    if (t->opts->checkpoint.directory == NULL || step == 0 || !is_due(t, step))
        return false;
    if (!can_begin(t)) {
        t->saving.is_due = true; /* after a later step */
        return false;
    }
    /* the previous state is still to be copied if it is due too */
    if (!is_marked(t, step))
        mark(t, step);
    t->saving.is_due = true; /* until a copy is passed to the writer */
    return true;
}

bool save_if_due(struct train *t, uint64_t step)
{
    struct train_event e = { .kind = TRAIN_WARN, .step = step };
    struct err err;
    int rc;

    if (!is_marked(t, step))
        return false;
    rc = hand_over(t, step, &err);
    t->saving.is_due = rc < 0;
    if (rc < 0 && t->saving.is_reported) { /* the rows could not be written */
        t->saving.retry_ns = clock_ns() + RETRY_MS * 1000000ull;
    } else if (rc < 0 && rc != ERR_EXISTS) { /* the writer could not be opened */
        t->saving.retry_ns = clock_ns() + RETRY_MS * 1000000ull;
        err_wrap(&err, rc, "checkpoint of step %llu", (unsigned long long)step);
        e.text = err.text;
        events_send(&t->events, &e);
    }
    return rc == 0;
}

static struct ckpt_flush_limits patience(const struct train *t, uint64_t wait_ms)
{
    uint64_t stall_ms = t->generation.opts.deadline_ms / 4;

    if (group_view_n_trainers(&t->generation.opts.view) < 2)
        return (struct ckpt_flush_limits){ .wait_ms = wait_ms };
    return (struct ckpt_flush_limits){ .wait_ms = wait_ms,
                                   .tries = HAND_OVER_TRIES,
                                   .stall_ms = stall_ms > STALL_MS_MIN ? stall_ms : STALL_MS_MIN };
}

void save_trouble(const struct train *t, struct ckpt_failure *out)
{
    struct ckpt_writer *writer = atomic_load_explicit(&t->saving.writer, memory_order_acquire);

    *out = (struct ckpt_failure){ .text = "" };
    if (writer != NULL)
        ckpt_failure(writer, out);
}

int save_check_storage(struct train *t, struct err *err)
{
    struct ckpt_failure trouble;

    if (!generation_is_coordinator(&t->generation) ||
        group_view_n_trainers(&t->generation.opts.view) < 2)
        return 0;
    save_trouble(t, &trouble);
    if (trouble.code != ERR_CORRUPT || trouble.failures < HAND_OVER_TRIES)
        return 0;
    return err_set(err, ERR_DEVICE, "the storage of this task is wrong: %s", trouble.text);
}

static int save_once(struct train *t, uint64_t step, const struct ckpt_flush_limits *wait,
                     struct err *err)
{
    int rc = 0;

    if (t->saving.writer != NULL && t->saving.last_step != step &&
        (!remote_has_tables(t) || ckpt_is_busy(t->saving.writer))) {
        /* the previous checkpoint; if it failed, this one replaces it */
        rc = ckpt_flush(t->saving.writer, wait, err);
        rc = rc == ERR_TIMEOUT ? rc : 0;
    }
    if (rc == 0 && t->saving.last_step != step)
        rc = hand_over(t, step, err);
    if (rc == 0 && t->saving.writer != NULL)
        rc = ckpt_flush(t->saving.writer, wait, err);
    return rc;
}

static bool may_repeat(const struct train *t, int rc)
{
    return remote_has_tables(t) && (rc == ERR_FULL || rc == ERR_IO || rc == ERR_CORRUPT) &&
           generation_check(&t->generation, NULL) == 0;
}

/* Saves until the limits are reached: a writer whose rows are on parameter servers does not retry by itself. */
static int save_repeatedly(struct train *t, uint64_t step, uint64_t wait_ms, struct err *err)
{
    struct timespec nap = { .tv_sec = RETRY_MS / 1000 };
    uint64_t begin_ns = clock_ns(), waited_ms;
    struct ckpt_flush_limits wait = patience(t, wait_ms);
    uint32_t tries = 0;
    int rc;

    for (;;) {
        rc = save_once(t, step, &wait, err);
        waited_ms = (clock_ns() - begin_ns) / 1000000;
        if (rc < 0 && remote_has_tables(t))
            t->saving.last_step = 0; /* that save was discarded */
        if (!may_repeat(t, rc) || waited_ms + RETRY_MS >= wait_ms ||
            (wait.tries > 0 && ++tries >= wait.tries))
            return rc;
        nanosleep(&nap, NULL);
        wait.wait_ms = wait_ms - waited_ms;
    }
}

int save_now(struct train *t, uint64_t step, uint64_t wait_ms, struct err *err)
{
    int rc;

    if (t->opts->checkpoint.directory == NULL)
        return 0;
    events_phase(&t->events, "save", step);
    rc = save_repeatedly(t, step, wait_ms, err);
    if (rc == ERR_REFUSED || rc == ERR_CANCELED) { /* another task coordinates the group */
        t->saving.last_step = 0;                   /* the checkpoint was discarded */
        rc = err_wrap(err, ERR_PEER, "another task writes the checkpoints now");
    }
    /* the disk or the memory of this host is wrong, not the input of the job */
    if (rc == ERR_CORRUPT)
        rc = err_wrap(err, ERR_DEVICE, "the storage of this task is wrong");
    return rc < 0 ? err_wrap(err, rc, "last checkpoint, step %llu", (unsigned long long)step) : 0;
}

void save_stop_publishing(struct train *t)
{
    if (t->saving.writer == NULL)
        return;
    ckpt_abandon(t->saving.writer);
    t->saving.last_step = 0; /* the content of the disk is unknown when this task leads again */
}

int save_before_rest(struct replica *r, uint64_t step, struct err *err)
{
    struct train *t = r->train;

    if (t->remote == NULL || r->local != 0 || !generation_is_coordinator(&t->generation) ||
        t->opts->checkpoint.directory == NULL || step == t->saving.last_step)
        return 0;
    place_enter(&r->device->place, PHASE_SAVE);
    return save_now(t, step, t->generation.opts.deadline_ms, err);
}
