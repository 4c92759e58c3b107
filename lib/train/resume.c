/* resume.c - see resume.h. */
#include "train/resume.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/fault.h"
#include "ckpt/ckpt.h"
#include "data/data.h"
#include "ps/wants.h"
#include "train/agree_message.h"
#include "train/coding.h"
#include "train/remote.h"
#include "train/save.h"
#include "train/task.h"

enum { LOAD_TRIES = 4 };

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

_Static_assert((int)CKPT_CONTENT_DIGITS == AGREE_CONTENT_PARTS * AGREE_PART_DIGITS,
               "a manifest has all parts");

/* A manifest without content, of an earlier version, is not compared. The names and sizes of the files are equal. */
static int check_same_content(const struct train *t, const struct ckpt_info *info, struct err *err)
{
    char here[CKPT_CONTENT_DIGITS + 1], place[1100];
    const char *there = info->meta.data_content;
    uint32_t part = 0;

    agree_print_content(t->model.content[0], here);
    if (there[0] == '\0' || strcmp(here, there) == 0)
        return 0;
    if (strlen(there) == CKPT_CONTENT_DIGITS)
        while (memcmp(here + AGREE_PART_DIGITS * part, there + AGREE_PART_DIGITS * part,
                      AGREE_PART_DIGITS) == 0)
            part++;
    data_content_place(t->model.data, part, place, sizeof(place));
    return err_set(err, ERR_INPUT,
                   "%s was trained on data with other content in %s (checksum %.8s, found %.8s): restore the file, "
                   "or use another checkpoint directory",
                   info->path, place, there + AGREE_PART_DIGITS * part, here + AGREE_PART_DIGITS * part);
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

int resume_newest(struct train *t, struct err *err)
{
    const struct train_opts *o = t->opts;
    struct ckpt_info *info;
    int rc = fault_error("train.load", err);

    if (rc == 0 && o->checkpoint.directory != NULL) /* report an unusable directory now */
        rc = ckpt_create_directory(o->checkpoint.directory, err);
    if (rc == 0 && o->checkpoint.directory != NULL)
        rc = save_open_writer(t, err);
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

int resume_path(struct train *t, const char *path, struct ckpt_info *out, struct err *err)
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
