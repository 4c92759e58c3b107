/* save.c - checkpoints and the exported model: the work of the coordinator between steps.
 *
 * Only local replica 0 comes here: within the next step, when the state was compared, behind the last
 * step, and train_save() when no generation runs. Nobody writes the state before this replica has come
 * to the commit gate of the next step. So the copy needs no barrier. */
#include "train/gpu.h"
#include "train/train_priv.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/fault.h"
#include "base/fs.h"

enum {
    RETRY_MS = 1000,
    LOAD_TRIES = 4,
    HAND_OVER_TRIES = 2, /* failures of the last save before another member writes it */
    STALL_MS_MIN = 2000,
};

/* <parameter>/<slot>, in an arena of the state. */
static int name_slot(struct train *t, const struct graph_param *p, const char *slot,
                     const float *arena, struct err *err)
{
    char *name = t->slot_names[t->n_slots];
    int len = snprintf(name, sizeof(t->slot_names[0]), "%s/%s", p->name, slot);

    if (len < 0 || (size_t)len >= sizeof(t->slot_names[0]))
        return err_set(err, ERR_INPUT, "parameter '%.80s...': its name is longer than %zu bytes",
                       p->name, sizeof(t->slot_names[0]) - 32);
    t->slot_tensors[t->n_slots++] = (struct ckpt_tensor){
        .name = name,
        .dtype = TENSOR_F32,
        .shape = p->shape,
        .offset = ((size_t)(arena - t->mem.state) + p->offset) * sizeof(float),
    };
    return 0;
}

/* A parameter that the module ties is in the file under each of its names, since PyTorch's
 * load_state_dict() requires all of them; the entries share their place in the state. */
static void name_tied(struct train *t, const struct graph_param *p, uint32_t n)
{
    uint32_t n_tensors;
    const struct graph_tensor *of = graph_module_tensors(t->graph, &n_tensors);

    for (uint32_t i = 0, last = 0; i < n_tensors; i++) {
        if (!of[i].is_param)
            continue;
        for (uint32_t k = 0; p[last].offset != of[i].offset && k < n; k++)
            last = last + 1 < n ? last + 1 : 0;
        if (strcmp(p[last].name, of[i].name) != 0)
            t->model_tensors[t->n_model++] =
                (struct ckpt_tensor){ .name = of[i].name,
                                      .dtype = TENSOR_F32,
                                      .shape = of[i].tensor.shape,
                                      .offset = of[i].offset * sizeof(float) };
    }
}

/* The layout of the state as named tensors. */
static int name_tensors(struct train *t, struct err *err)
{
    const struct optim_def *optim = t->opts->optimizer;
    uint32_t n, n_module;
    const struct graph_param *p = graph_params(t->graph, &n);

    (void)graph_module_tensors(t->graph, &n_module);
    t->model_tensors = calloc((size_t)n + n_module + 1, sizeof(*t->model_tensors));
    t->slot_tensors = calloc((size_t)n * (optim->n_slots + 1) + 1, sizeof(*t->slot_tensors));
    t->slot_names = calloc((size_t)n * (optim->n_slots + 1) + 1, sizeof(*t->slot_names));
    if (t->model_tensors == NULL || t->slot_tensors == NULL || t->slot_names == NULL)
        return err_set(err, ERR_NOMEM, "checkpoint: out of memory");
    t->n_model = n;
    for (uint32_t i = 0; i < n; i++) {
        t->model_tensors[i] = (struct ckpt_tensor){ .name = p[i].name,
                                                    .dtype = TENSOR_F32,
                                                    .shape = p[i].shape,
                                                    .offset = p[i].offset * sizeof(float) };
    }
    if (n > 0)
        name_tied(t, p, n);
    for (uint32_t i = 0; i < n; i++) {
        int rc = 0;

        if (p[i].kind != GRAPH_TRAINED)
            continue;
        for (uint32_t s = 0; rc == 0 && s < optim->n_slots; s++)
            if (t->mem.slots[s] != NULL)
                rc = name_slot(t, &p[i], optim->slots[s].name, t->mem.slots[s], err);
        if (rc == 0 && t->mem.average != NULL)
            rc = name_slot(t, &p[i], "average", t->mem.average, err);
        if (rc < 0)
            return rc;
    }
    return 0;
}

static void on_ckpt_event(void *arg, const struct ckpt_event *event)
{
    struct train *t = arg;
    struct train_event e = { .kind = TRAIN_CHECKPOINT, .step = event->step, .ckpt = event };

    if (event->kind == CKPT_DISCARDED)
        __atomic_store_n(&t->was_discarded, true, __ATOMIC_RELEASE);
    train_tell(t, &e);
}

int save_open(struct train *t, struct err *err)
{
    t->last_save_ns = clock_ns();
    return name_tensors(t, err);
}

/* In the writer's thread: may the group that we are in now publish? */
static int may_publish(void *arg, struct err *err)
{
    struct train *t = arg;
    int (*may_save)(void *, struct err *) = __atomic_load_n(&t->may_save, __ATOMIC_ACQUIRE);

    return may_save != NULL ? may_save(t->opts->arg, err) : 0;
}

static int arrive(void *arg, struct err *err)
{
    return gpu_fetched(arg, err);
}

static int open_writer(struct train *t, struct err *err)
{
    const struct train_opts *o = t->opts;
    bool on_gpus = train_on_gpus(t);
    struct ckpt_writer_opts w = {
        .directory = o->checkpoint_directory,
        .max_to_keep = o->max_to_keep,
        .model = t->model_tensors,
        .n_model = t->n_model,
        .slots = t->slot_tensors,
        .n_slots = t->n_slots,
        .state_bytes = t->mem.state_bytes,
        .retry_ms = RETRY_MS,
        .on_event = on_ckpt_event,
        .may_publish = may_publish,
        .arrive = on_gpus ? arrive : NULL,
        .arg = t,
    };
    struct ckpt_writer *writer;
    int rc = 0;

    if (t->writer != NULL)
        return 0;
    if (on_gpus)
        rc = gpu_staging(t, &w.staging, err);
    if (rc == 0)
        rc = ckpt_writer_open(&w, &writer, err);
    if (rc == 0)
        __atomic_store_n(&t->writer, writer, __ATOMIC_RELEASE); /* train_storage() may look at any time */
    return rc;
}

static void on_skip(void *arg, const char *path, const char *why)
{
    struct train *t = arg;
    char text[2048];
    struct train_event e = { .kind = TRAIN_WARN, .text = text };

    snprintf(text, sizeof(text), "skipping checkpoint %s: %s", path, why);
    train_tell(t, &e);
}

static void on_progress(void *arg, uint64_t done, uint64_t all)
{
    struct train *t = arg;
    struct train_event e = { .kind = TRAIN_PROGRESS, .done = done, .all = all };

    train_tell(t, &e);
}

/* What must not differ between a checkpoint and the job that resumes it, because the step number would mean
 * other samples. The rest of the job may change (more epochs, another rate): that is said. */
static int check_same_order(struct train *t, const struct ckpt_info *info, struct err *err)
{
    const struct train_opts *o = t->opts;
    const struct ckpt_meta *m = &info->meta;
    const char *advice = "use another checkpoint directory, or the job as it was";

    if (m->seed != o->seed)
        return err_set(err, ERR_INPUT, "%s was trained with seed %llu, the job says %llu: %s", info->path,
                       (unsigned long long)m->seed, (unsigned long long)o->seed, advice);
    if (m->lanes != o->lanes || m->global_batch_size != o->global_batch)
        return err_set(err, ERR_INPUT,
                       "%s was trained with %u lanes and global batch size %u, the job has %u and %u: %s",
                       info->path, m->lanes, m->global_batch_size, o->lanes, o->global_batch, advice);
    if (strcmp(m->data_digest, data_digest(t->data)) != 0)
        return err_set(err, ERR_INPUT,
                       "%s was trained on other record files than %s names now: %s", info->path,
                       o->train_glob, advice);
    if (m->step > t->total_steps)
        return err_set(err, ERR_INPUT, "%s is at step %llu, behind the job's last step %llu: %s",
                       info->path, (unsigned long long)m->step, (unsigned long long)t->total_steps,
                       advice);
    if (m->epoch != m->step / t->steps_per_epoch ||
        m->position != m->step % t->steps_per_epoch * o->global_batch)
        return err_set(err, ERR_INPUT,
                       "%s: its manifest contradicts step %llu; expected epoch %llu, position %llu, found epoch "
                       "%llu, position %llu: %s", info->path, (unsigned long long)m->step,
                       (unsigned long long)(m->step / t->steps_per_epoch),
                       (unsigned long long)(m->step % t->steps_per_epoch * o->global_batch),
                       (unsigned long long)m->epoch, (unsigned long long)m->position, advice);
    if (strcmp(m->job_digest, o->job_digest) != 0) {
        char text[5000];
        struct train_event e = { .kind = TRAIN_WARN, .text = text };

        snprintf(text, sizeof(text),
                 "%s was written by a job file that differed in what decides the result; going on from it",
                 info->path);
        train_tell(t, &e);
    }
    return 0;
}

/* Read beside the state, which stays what it is if the file is not what it seemed. */
static int load(struct train *t, const struct ckpt_info *info, struct err *err)
{
    const struct loss_scale kept = { info->meta.loss_scale, info->meta.loss_scale_good_steps };
    struct device_mem aside;
    int rc = memory_aside(t, &aside, err);

    if (rc == 0)
        rc = ckpt_load(info->path, t->model_tensors, t->n_model, t->slot_tensors, t->n_slots,
                       aside.base, err);
    if (rc < 0) {
        device_mem_close(&aside);
        return rc;
    }
    memory_take(t, &aside);
    update_fill_average(t, false);
    t->schedule.plateau = (struct optim_plateau){
        .step = info->meta.plateau_step,
        .has_best = info->meta.plateau_has_best,
        .best = info->meta.plateau_best,
        .waited = info->meta.plateau_waited,
        .reductions = info->meta.plateau_reductions,
    };
    t->facts = (struct facts){ .step = info->meta.step,
                               .evaluated_step = info->meta.complete ? info->meta.step
                                                                     : info->meta.evaluated_step,
                               .loss = NAN,
                               .grad_norm = NAN,
                               .scale = loss_scale_resume(&t->opts->loss_scale, kept) };
    t->last_saved_step = info->meta.step;
    snprintf(t->resumed_path, sizeof(t->resumed_path), "%s", info->path);
    __atomic_store_n(&t->held_step, info->meta.step, __ATOMIC_RELEASE);
    t->shadow_step = info->meta.step;
    return 0;
}

static const char OTHER_MODEL[] =
    "the checkpoint directory belongs to another model: use the model as it was, name another checkpoint.directory, "
    "or move the checkpoints to another folder (those of a complete run: --restart, for a group `trainerctl restart JOB`)";

/* No checkpoint was found: `rc` of ckpt_newest() becomes 0 where training may begin at step 0. */
static int without_checkpoint(struct train *t, int rc, struct err *err)
{
    struct train_event e = { .kind = TRAIN_WARN };

    if (rc == ERR_NOENT)
        return 0;
    if (rc == ERR_INPUT)
        return err_wrap(err, rc, "%s", OTHER_MODEL);
    if (rc != ERR_CORRUPT)
        return rc;
    if (!t->opts->restart_from_scratch)
        return err_wrap(err, ERR_INPUT, "every checkpoint is damaged: copy a good one there, move them to another "
                        "folder, or set checkpoint.restart_from_scratch to true to begin at step 0");
    err_wrap(err, rc, "training begins at step 0, as checkpoint.restart_from_scratch allows");
    e.text = err->text;
    train_tell(t, &e);
    return 0;
}

int save_load_newest(struct train *t, struct err *err)
{
    const struct train_opts *o = t->opts;
    struct ckpt_info *info;
    int rc = fault_error("train.load", err);

    if (rc == 0 && o->checkpoint_directory != NULL)
        rc = ckpt_directory(o->checkpoint_directory, err); /* one that cannot be used is told now */
    if (rc == 0 && o->checkpoint_directory != NULL)
        rc = open_writer(t, err);
    if (rc < 0 || o->checkpoint_directory == NULL)
        return rc;
    info = calloc(1, sizeof(*info));
    if (info == NULL)
        return err_set(err, ERR_NOMEM, "checkpoint: out of memory");
    train_phase(t, "load", 0);
    /* What was verified can be damaged or removed before it is loaded: then there may be an older one. */
    for (int i = 0; i < LOAD_TRIES; i++) {
        rc = ckpt_newest(o->checkpoint_directory, graph_digest(t->graph), on_skip, on_progress, t, info,
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

static struct ckpt_meta meta_of(const struct train *t, uint64_t step)
{
    const struct train_opts *o = t->opts;
    uint64_t in_epoch = step % t->steps_per_epoch;
    bool is_evaluated = !eval_due(t, step) || t->facts.evaluated_step == step;
    struct ckpt_meta m = {
        .step = step,
        .epoch = step / t->steps_per_epoch,
        .position = in_epoch * o->global_batch,
        .seed = o->seed,
        .lanes = o->lanes,
        .global_batch_size = o->global_batch,
        .complete = step == t->total_steps && is_evaluated,
        .evaluated_step = t->facts.evaluated_step,
        .loss_scale = loss_scale_is_on(&o->loss_scale) ? t->facts.scale.scale : 0,
        .loss_scale_good_steps = t->facts.scale.good,
        .plateau_step = t->schedule.plateau.step,
        .plateau_has_best = t->schedule.plateau.has_best,
        .plateau_best = t->schedule.plateau.best,
        .plateau_waited = t->schedule.plateau.waited,
        .plateau_reductions = t->schedule.plateau.reductions,
    };

    snprintf(m.job_digest, sizeof(m.job_digest), "%s", o->job_digest);
    snprintf(m.model_digest, sizeof(m.model_digest), "%s", graph_digest(t->graph));
    snprintf(m.data_digest, sizeof(m.data_digest), "%s", data_digest(t->data));
    snprintf(m.name, sizeof(m.name), "%s", o->job_name);
    return m;
}

/* ERR_EXISTS: the one before is still on its way to the disk. */
static int hand_over(struct train *t, uint64_t step, struct err *err)
{
    struct ckpt_meta meta = meta_of(t, step);
    void *staging;
    int rc = open_writer(t, err);

    if (rc == 0)
        rc = fault_error("train.save", err);
    if (rc == 0)
        rc = ckpt_begin(t->writer, &staging, err);
    if (rc == 0) {
        rc = gpu_fetch(t, staging, err);
        if (rc < 0)
            ckpt_abandon(t->writer);
    }
    if (rc == 0) {
        live_set_keep(t);
        ckpt_hand_over(t->writer, &meta);
        t->last_saved_step = step;
        t->last_save_ns = clock_ns();
        t->save_due = false;
        __atomic_and_fetch(&t->requests, ~(unsigned)TRAIN_ASK_CHECKPOINT, __ATOMIC_RELAXED);
    }
    return rc;
}

/* Of the steps behind which a checkpoint is due by their number, or for another reason. */
static bool is_due(struct train *t, uint64_t step)
{
    bool due;

    if (__atomic_exchange_n(&t->was_discarded, false, __ATOMIC_ACQ_REL))
        t->save_due = true; /* we may save again by now: not as late as after a whole interval */
    due = step != t->last_saved_step && (t->save_due || live_save_is_late(t));
    if (__atomic_load_n(&t->requests, __ATOMIC_RELAXED) & TRAIN_ASK_CHECKPOINT)
        due = true;
    if (step > 1 && t->save_steps[(step - 1) & 1] == step - 1) /* that copy will do */
        due = false;
    return due || (step != t->last_saved_step && live_save_is_due(t, step));
}

bool save_is_due(struct train *t, uint64_t step)
{
    if (t->opts->checkpoint_directory == NULL || step == 0 || !is_due(t, step))
        return false;
    if (clock_ns() < t->writer_retry_ns || (t->writer != NULL && ckpt_is_busy(t->writer))) {
        t->save_due = true; /* behind a later step */
        return false;
    }
    t->save_steps[step & 1] = step; /* the one before is still to be copied, if it is due too */
    t->save_due = true; /* until it is handed over */
    return true;
}

bool save_if_due(struct train *t, uint64_t step)
{
    struct train_event e = { .kind = TRAIN_WARN, .step = step };
    struct err err;
    int rc;

    if (t->save_steps[step & 1] != step || step == 0)
        return false;
    rc = hand_over(t, step, &err);
    t->save_due = rc < 0;
    if (rc < 0 && rc != ERR_EXISTS) { /* it has no writer yet, and could not get one */
        t->writer_retry_ns = clock_ns() + RETRY_MS * 1000000ull;
        err_wrap(&err, rc, "checkpoint of step %llu", (unsigned long long)step);
        e.text = err.text;
        train_tell(t, &e);
    }
    return rc == 0;
}

bool train_leads(const struct train *t)
{
    return t->group.self == t->group.coordinator;
}

static struct ckpt_patience patience(const struct train *t, uint64_t wait_ms)
{
    uint64_t stall_ms = t->group.deadline_ms / 4;

    if (t->group.n_members < 2)
        return (struct ckpt_patience){ .wait_ms = wait_ms };
    return (struct ckpt_patience){ .wait_ms = wait_ms,
                                   .tries = HAND_OVER_TRIES,
                                   .stall_ms = stall_ms > STALL_MS_MIN ? stall_ms : STALL_MS_MIN };
}

void train_storage(struct train *t, struct ckpt_trouble *out)
{
    struct ckpt_writer *writer = __atomic_load_n(&t->writer, __ATOMIC_ACQUIRE);

    *out = (struct ckpt_trouble){ .text = "" };
    if (writer != NULL)
        ckpt_trouble(writer, out);
}

int save_check_storage(struct train *t, struct err *err)
{
    struct ckpt_trouble trouble;

    if (!train_leads(t) || t->group.n_members < 2)
        return 0;
    train_storage(t, &trouble);
    if (trouble.code != ERR_CORRUPT || trouble.failures < HAND_OVER_TRIES)
        return 0;
    return err_set(err, ERR_DEVICE, "the storage of this task is wrong: %s", trouble.text);
}

int save_now(struct train *t, uint64_t step, uint64_t wait_ms, struct err *err)
{
    struct ckpt_patience wait = patience(t, wait_ms);
    int rc = 0;

    if (t->opts->checkpoint_directory == NULL)
        return 0;
    train_phase(t, "save", step);
    if (t->writer != NULL && t->last_saved_step != step) {
        rc = ckpt_flush(t->writer, &wait, err); /* the one before; if it failed, this one replaces it */
        rc = rc == ERR_TIMEOUT ? rc : 0;
    }
    if (rc == 0 && t->last_saved_step != step)
        rc = hand_over(t, step, err);
    if (rc == 0 && t->writer != NULL)
        rc = ckpt_flush(t->writer, &wait, err);
    if (rc == ERR_REFUSED || rc == ERR_CANCELED) { /* the group goes on elsewhere */
        t->last_saved_step = 0; /* it was discarded */
        rc = err_wrap(err, ERR_PEER, "another task writes the checkpoints now");
    }
    if (rc == ERR_CORRUPT) /* the disk or the memory of this host is wrong, not the input of the job */
        rc = err_wrap(err, ERR_DEVICE, "the storage of this task is wrong");
    return rc < 0 ? err_wrap(err, rc, "last checkpoint, step %llu", (unsigned long long)step) : 0;
}

int train_save(struct train *t, uint64_t wait_ms, struct err *err)
{
    uint64_t held = train_held(t);

    CHECK(__atomic_load_n(&t->running, __ATOMIC_ACQUIRE) == 0);
    return held > 0 ? save_now(t, held, wait_ms, err) : 0;
}

void save_leave(struct train *t)
{
    if (t->writer == NULL)
        return;
    ckpt_abandon(t->writer);
    t->last_saved_step = 0; /* who knows what is on the disk when we lead again */
}

static int make_folder_of(const char *path, struct err *err)
{
    char *dir = fs_dirname(path);
    int rc = dir != NULL ? fs_mkdirs(dir, err) : err_set(err, ERR_NOMEM, "out of memory");

    free(dir);
    return rc;
}

static int export_onnx(struct train *t, const char *path, struct err *err)
{
    return graph_export(t->graph, t->opts->export_average ? t->mem.average : t->mem.state, path, err);
}

int save_export(struct train *t, struct err *err)
{
    const struct {
        const char *path;
        int (*write)(struct train *t, const char *path, struct err *err);
    } files[] = {
        { t->opts->export_onnx, export_onnx },
        { t->opts->export_safetensors, weights_export },
    };

    if (files[0].path == NULL && files[1].path == NULL)
        return 0;
    train_phase(t, "export", t->total_steps);
    for (size_t i = 0; i < COUNT_OF(files); i++) {
        struct train_event e = { .kind = TRAIN_EXPORTED, .step = t->total_steps, .text = files[i].path };
        int rc;

        if (files[i].path == NULL)
            continue;
        rc = fault_error("train.export", err);
        if (rc < 0)
            return rc;
        rc = make_folder_of(files[i].path, err);
        if (rc == 0)
            rc = gpu_shadow(t, err);
        if (rc == 0)
            rc = files[i].write(t, files[i].path, err);
        if (rc < 0)
            return err_wrap(err, rc, "export");
        train_tell(t, &e);
    }
    return 0;
}
