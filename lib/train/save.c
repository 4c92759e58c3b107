/* save.c - see save.h. */
#include "train/save.h"

#include <stdatomic.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/fault.h"
#include "ckpt/ckpt.h"
#include "data/data.h"
#include "ps/wants.h"
#include "train/coding.h"
#include "train/remote.h"
#include "train/task.h"

enum {
    RETRY_MS = 1000,
    RETRY_DOUBLINGS = 5,
    LOAD_TRIES = 4,
    HAND_OVER_TRIES = 2, /* failures of the last save before another member writes it */
    STALL_MS_MIN = 2000,
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

static int open_writer(struct train *t, struct err *err)
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

static void on_skip(void *arg, const char *path, const char *why)
{
    struct train *t = arg;
    char text[2048];
    struct train_event e = { .kind = TRAIN_WARN, .text = text };

    snprintf(text, sizeof(text), "skipping checkpoint %s: %s", path, why);
    events_send(&t->events, &e);
}

static void on_progress(void *arg, uint64_t done, uint64_t all)
{
    struct train *t = arg;
    struct train_event e = { .kind = TRAIN_PROGRESS, .done = done, .all = all };

    events_send(&t->events, &e);
}

/* ---- the content of the training data ---- */

enum { PART_DIGITS = 8 };
_Static_assert((int)CKPT_CONTENT_DIGITS == AGREE_CONTENT_PARTS * PART_DIGITS,
               "a manifest has all parts");

static void print_content(const uint32_t content[AGREE_CONTENT_PARTS],
                          char out[CKPT_CONTENT_DIGITS + 1])
{
    for (size_t i = 0; i < AGREE_CONTENT_PARTS; i++)
        snprintf(out + PART_DIGITS * i, PART_DIGITS + 1, "%08x", content[i]);
}

/* A manifest without content, of an earlier version, is not compared. The names and sizes of the files are equal. */
static int check_same_content(const struct train *t, const struct ckpt_info *info, struct err *err)
{
    char here[CKPT_CONTENT_DIGITS + 1], place[1100];
    const char *there = info->meta.data_content;
    uint32_t part = 0;

    print_content(t->model.content[0], here);
    if (there[0] == '\0' || strcmp(here, there) == 0)
        return 0;
    if (strlen(there) == CKPT_CONTENT_DIGITS)
        while (memcmp(here + PART_DIGITS * part, there + PART_DIGITS * part, PART_DIGITS) == 0)
            part++;
    data_content_place(t->model.data, part, place, sizeof(place));
    return err_set(err, ERR_INPUT,
                   "%s was trained on data with other content in %s (checksum %.8s, found %.8s): restore the file, "
                   "or use another checkpoint directory",
                   info->path, place, there + PART_DIGITS * part, here + PART_DIGITS * part);
}

/* Checks that a checkpoint and the job that resumes it assign the same samples to each step. The
 * rest of the job may differ (more epochs, another rate), which is logged. */
static int check_same_order(struct train *t, const struct ckpt_info *info, struct err *err)
{
    const struct train_opts *o = t->opts;
    const struct ckpt_meta *m = &info->meta;
    const char *advice = "use another checkpoint directory, or the job as it was";
    int rc;

    if (m->seed != o->run.seed)
        return err_set(err, ERR_INPUT,
                       "%s was trained with seed %llu, but the job has seed %llu: %s", info->path,
                       (unsigned long long)m->seed, (unsigned long long)o->run.seed, advice);
    if (m->lanes != o->lanes || m->global_batch_size != o->global_batch)
        return err_set(
            err, ERR_INPUT,
            "%s was trained with %u lanes and global batch size %u, the job has %u and %u: %s",
            info->path, m->lanes, m->global_batch_size, o->lanes, o->global_batch, advice);
    if (strcmp(m->data_digest, t->model.data_digest) != 0)
        return err_set(err, ERR_INPUT, "%s was trained on other record files than %s names now: %s",
                       info->path, o->data.train, advice);
    rc = check_same_content(t, info, err);
    if (rc < 0)
        return rc;
    if (m->step > t->model.total_steps)
        return err_set(err, ERR_INPUT,
                       "%s is of step %llu, after the last step %llu of the job: %s", info->path,
                       (unsigned long long)m->step, (unsigned long long)t->model.total_steps,
                       advice);
    if (m->epoch != m->step / t->model.steps_per_epoch ||
        m->position != m->step % t->model.steps_per_epoch * o->global_batch)
        return err_set(err, ERR_INPUT,
                       "%s: its manifest contradicts step %llu; expected epoch %llu, position "
                       "%llu, found epoch "
                       "%llu, position %llu: %s",
                       info->path, (unsigned long long)m->step,
                       (unsigned long long)(m->step / t->model.steps_per_epoch),
                       (unsigned long long)(m->step % t->model.steps_per_epoch * o->global_batch),
                       (unsigned long long)m->epoch, (unsigned long long)m->position, advice);
    if (strcmp(m->job_digest, o->job_digest) != 0) {
        char text[5000];
        struct train_event e = { .kind = TRAIN_WARN, .text = text };

        snprintf(text, sizeof(text),
                 "%s was written by a job file that differed in what decides the result; going on "
                 "from it",
                 info->path);
        events_send(&t->events, &e);
    }
    return 0;
}

/* Parameter servers read the other parts from the checkpoint; here their names and shapes are compared alone. */
static int load_weights(const struct tensors *x, const char *path, uint32_t n_slots, void *to,
                        struct err *err)
{
    struct ckpt_tensor *slots = malloc(((size_t)n_slots + 1) * sizeof(*slots));
    int rc;

    if (slots == NULL)
        return err_set(err, ERR_NOMEM, "checkpoint: out of memory");
    for (uint32_t i = 0; i < n_slots; i++) {
        slots[i] = x->slots[i];
        slots[i].offset = CKPT_ELSEWHERE;
    }
    rc = ckpt_load(path, x->model, x->n_model, slots, n_slots, to, err);
    free(slots);
    return rc;
}

static int load_tensors(const struct train *t, const struct ckpt_info *info, void *to,
                        struct err *err)
{
    const struct tensors *x = &t->model.tensors;
    /* without them: the job had no phase with local SGD, or no residuals; they begin at zero */
    bool has_all = info->meta.has_outer_momentum || info->meta.residual_groups > 0;
    uint32_t n_slots = has_all ? x->n_slots : x->n_inner;
    int rc = coding_check_resume(t->opts, &info->meta, info->path, err);

    if (rc < 0)
        return rc;

    if (info->meta.staleness != ps_staleness_of(t->opts->ps_tables))
        return err_set(err, ERR_INPUT,
                       "%s has tables of the last %u steps, and the job has /parameter_server/staleness %u: "
                       "write %u there, or use another checkpoint directory",
                       info->path, info->meta.staleness, ps_staleness_of(t->opts->ps_tables),
                       info->meta.staleness);
    if (info->meta.has_outer_momentum && !t->phases.has_local)
        return err_set(err, ERR_INPUT,
                       "%s has the outer momentum of local SGD, but /train/phases has no phase with "
                       "\"local_sgd\": keep these phases, also those that are complete", info->path);
    return ps_wants_dense(t->opts->ps)
               ? load_weights(x, info->path, n_slots, to, err)
               : ckpt_load(info->path, x->model, x->n_model, x->slots, n_slots, to, err);
}

static int load_state(struct train *t, const struct ckpt_info *info, struct err *err)
{
    struct device_mem aside;
    int rc = engine_memory_open_spare(&t->engine->memory, &aside, err);

    if (rc == 0)
        rc = load_tensors(t, info, aside.base, err);
    if (rc == 0)
        engine_memory_use_spare(&t->engine->memory, &aside, info->meta.step);
    device_mem_close(&aside);
    return rc;
}

/* Reads a checkpoint to separate memory, so that the state does not change if the file is
 * invalid. */
static int load(struct train *t, const struct ckpt_info *info, struct err *err)
{
    const struct loss_scale kept = { info->meta.loss_scale, info->meta.loss_scale_good_steps };
    struct facts facts;
    int rc = t->remote != NULL ? remote_loaded(t, info, err) : 0;

    if (rc == 0)
        rc = load_state(t, info, err);
    if (rc < 0)
        return rc;
    engine_memory_fill_average(&t->engine->memory, false);
    facts = (struct facts){ .step = info->meta.step,
                            .evaluated_step =
                                info->meta.complete ? info->meta.step : info->meta.evaluated_step,
                            .loss = NAN,
                            .grad_norm = NAN,
                            .scale = loss_scale_resume(&t->opts->run.loss_scale, kept),
                            .coding = coding_from_text(t->opts, info->meta.compression),
                            .plateau = { .step = info->meta.plateau_step,
                                         .has_best = info->meta.plateau_has_best,
                                         .best = info->meta.plateau_best,
                                         .waited = info->meta.plateau_waited,
                                         .reductions = info->meta.plateau_reductions } };
    state_replace(&t->state, &facts);
    t->saving.last_step = info->meta.step;
    snprintf(t->events.resumed_path, sizeof(t->events.resumed_path), "%s", info->path);
    return 0;
}

static const char OTHER_MODEL[] = "the checkpoint directory belongs to another model: use the "
                                  "model as it was, name another checkpoint.directory, "
                                  "or move the checkpoints to another folder (those of a complete "
                                  "run: --restart, for a group `trainerctl restart JOB`)";

/* No checkpoint was found: returns 0 in place of `rc` of ckpt_newest() if training may start at
 * step 0. */
static int without_checkpoint(struct train *t, int rc, struct err *err)
{
    struct train_event e = { .kind = TRAIN_WARN };

    if (rc == ERR_NOENT)
        return 0;
    if (rc == ERR_INPUT)
        return err_wrap(err, rc, "%s", OTHER_MODEL);
    if (rc != ERR_CORRUPT)
        return rc;
    if (!t->opts->checkpoint.restart_from_scratch)
        return err_wrap(
            err, ERR_INPUT,
            "every checkpoint is damaged: copy a good one there, move them to another "
            "folder, or set checkpoint.restart_from_scratch to true to begin at step 0");
    err_wrap(err, rc, "training begins at step 0, as checkpoint.restart_from_scratch allows");
    e.text = err->text;
    events_send(&t->events, &e);
    return 0;
}

int save_load_newest(struct train *t, struct err *err)
{
    const struct train_opts *o = t->opts;
    struct ckpt_info *info;
    int rc = fault_error("train.load", err);

    if (rc == 0 && o->checkpoint.directory != NULL) /* report an unusable directory now */
        rc = ckpt_create_directory(o->checkpoint.directory, err);
    if (rc == 0 && o->checkpoint.directory != NULL)
        rc = open_writer(t, err);
    if (rc < 0 || o->checkpoint.directory == NULL)
        return rc;
    info = calloc(1, sizeof(*info));
    if (info == NULL)
        return err_set(err, ERR_NOMEM, "checkpoint: out of memory");
    events_phase(&t->events, "load", 0);
    /* A verified checkpoint may be damaged or removed before it is loaded; then an older one may
     * exist. */
    for (int i = 0; i < LOAD_TRIES; i++) {
        rc = ckpt_newest(o->checkpoint.directory, t->model.digest, on_skip, on_progress, t, info,
                         err);
        if (rc < 0) {
            rc = without_checkpoint(t, rc, err);
            break;
        }
        rc = check_same_order(t, info, err);
        if (rc < 0)
            break;
        rc = load(t, info, err);
        if (rc != ERR_CORRUPT && rc != ERR_NOENT)
            break;
    }
    if (rc < 0)
        err_wrap(err, rc, "resume");
    free(info);
    return rc;
}

int save_load_path(struct train *t, const char *path, struct ckpt_info *out, struct err *err)
{
    int rc = ckpt_peek_folder(path, t->model.digest, out, err);

    if (rc == ERR_INPUT)
        err_wrap(err, rc, "'%s': evaluate with the model file with which the job trains", path);
    if (rc == 0 && out->meta.step == 0)
        rc = err_set(err, ERR_INPUT, "'%s' is of step 0, whose state no job saves", path);
    if (rc < 0)
        return rc;
    t->engine->ops->discard(t->engine); /* a device may hold the same step of another run */
    rc = load(t, out, err);
    if (rc < 0)
        return rc;
    t->state.facts.evaluated_step = 0;
    t->events.has_resumed = true;
    return 0;
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
    print_content(t->model.content[0], m.data_content);
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
    int rc = open_writer(t, err);

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

void save_wait_for_previous(struct train *t)
{
    struct ckpt_flush_limits limits = { .wait_ms = stall_ms(t), .tries = 1, .stall_ms = stall_ms(t) / 4 };

    if (t->saving.writer != NULL && ckpt_is_busy(t->saving.writer))
        (void)ckpt_flush(t->saving.writer, &limits, NULL); /* a failure is an event of the writer */
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
