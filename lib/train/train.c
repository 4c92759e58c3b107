/* train.c - opens and closes a task; the entry points of train.h. */
#include "train/agree_message.h"
#include "train/train.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/fault.h"
#include "ckpt/ckpt.h"
#include "data/data.h"
#include "engine/select.h"
#include "engine/trace.h"
#include "engine/trace_write.h"
#include "op/op.h"
#include "ps/wants.h"
#include "train/coding.h"
#include "train/copies.h"
#include "train/division.h"
#include "train/groups.h"
#include "train/health.h"
#include "train/open.h"
#include "train/outer.h"
#include "train/progress.h"
#include "train/remote.h"
#include "train/resume.h"
#include "train/sample_log.h"
#include "train/save.h"
#include "train/start.h"
#include "train/task.h"

/* ---- options of the engine ---- */

static void on_note(void *arg, bool is_warning, const char *text)
{
    const struct train *t = arg;

    if (is_warning)
        events_warn(&t->events, 0, text);
    else
        events_note(&t->events, text);
}

static void on_lane(void *arg, uint32_t local, const struct data_batch *b)
{
    const struct train *t = arg;

    sample_log_batch(t->samples, local, b);
}

static void on_check(void *arg, uint64_t step, uint32_t check)
{
    struct train *t = arg;

    t->health.data_step = step;
    t->health.data = check;
}

/* Returns the number of threads of one reader. Small samples in memory are decoded faster than a
 * thread wakes up. */
static uint32_t reading_threads(const struct train_opts *o, uint32_t lane_batch)
{
    size_t sample_bytes = 0;
    bool any_image = false;

    if (o->data.threads > 0)
        return (o->data.threads + o->n_devices - 1) / o->n_devices;
    for (uint32_t i = 0; i < o->n_features; i++) {
        sample_bytes += (size_t)shape_elements(&o->features[i].shape) * sizeof(float);
        any_image = any_image || o->features[i].encoded || o->features[i].n_steps > 0;
    }
    return o->data.origin.cache == DATA_CACHE_MEMORY && !any_image &&
                   sample_bytes * lane_batch <= 1 << 20
               ? 0
               : 1;
}

static enum engine_overlap overlap_of(enum train_overlap o)
{
    switch (o) {
    case TRAIN_OVERLAP_AUTO:
        return ENGINE_OVERLAP_AUTO;
    case TRAIN_OVERLAP_NEVER:
        return ENGINE_OVERLAP_NEVER;
    case TRAIN_OVERLAP_ALWAYS:
        return ENGINE_OVERLAP_ALWAYS;
    }
    CHECK(!"an overlap that does not exist");
    return ENGINE_OVERLAP_AUTO;
}

static int describe_reads(struct train *t, struct err *err)
{
    const struct train_opts *o = t->opts;

    t->reads = calloc(1, sizeof(*t->reads));
    if (t->reads == NULL)
        return err_set(err, ERR_NOMEM, "training: out of memory");
    *t->reads = (struct data_reader_opts){ .seed = o->run.seed,
                                           .shuffle = o->data.shuffle,
                                           .pad = o->data.pad,
                                           .global_batch = o->global_batch,
                                           .lanes = o->lanes,
                                           .threads = reading_threads(o, t->model.lane_batch),
                                           .prefetch = o->data.prefetch > 0 ? o->data.prefetch : 1,
                                           .deadline_ms = o->data_deadline_ms };
    if (t->model.data != NULL) /* NULL: a test without data */
        t->reads->check_every = data_check_every(t->model.data, o->global_batch, o->replicas);
    return 0;
}

static void describe_engine(struct train *t)
{
    const struct train_opts *o = t->opts;
    const struct model *m = &t->model;

    t->engine_opts = (struct engine_opts){
        .devices = o->devices,
        .n_devices = o->n_devices,
        .cancel = &t->generation.cancel,
        .max_replicas = o->replicas,
        .head_bytes = (size_t)AGREE_BYTES * o->n_devices,
        .control_floats = (uint32_t)(CONTROL_WORDS + health_words(o)),
        .lane_tree = o->lane_tree,
        .lanes = o->lanes,
        .lane_batch = m->lane_batch,
        .graph = m->graph,
        .plan = &m->plan,
        .features = m->features,
        .data = m->data,
        .eval_data = m->eval_data,
        .reader = t->reads,
        .steps_per_epoch = m->steps_per_epoch,
        .eval_steps = m->eval_steps,
        .seed = o->run.seed,
        .mean_of_weights = o->mean_of_weights,
        .has_outer = phases_have_local(&o->run),
        .n_delayed = o->ps == NULL ? ps_staleness_of(o->ps_tables) : 0,
        .delays_dense = ps_wants_dense(o->ps_tables),
        .remote_dense = ps_wants_dense(o->ps),
        .evaluate_average = o->optimizer.average.decay > 0 && o->optimizer.average.evaluate,
        .optim = t->optim,
        .hyper = &o->optimizer.hyper,
        .clip_value = o->run.clip_value,
        .overlap = overlap_of(o->overlap),
        .bucket_bytes = o->bucket_bytes,
        .spare = o->spare,
        .ordered = o->deterministic,
        .code = o->only_evaluates ? NULL : &o->code,
        .remote = remote_engine(t),
        .whole_gradients = o->whole_gradients,
        .check_gradients = o->health.check_gradients,
        .snapshots = o->checkpoint.directory != NULL,
        .traces = o->trace != NULL,
        .on_note = on_note,
        .on_check = on_check,
        .on_lane = o->sample_log != NULL ? on_lane : NULL,
        .arg = t,
    };
    division_limit(o, &t->engine_opts);
}

/* ---- opening ---- */

static void on_traced(void *arg, const struct trace_profile *p, const char *trouble)
{
    struct train *t = arg;
    char text[600];
    struct train_event e = { .kind = p != NULL ? TRAIN_PROFILE : TRAIN_WARN,
                             .text = text,
                             .profile = p };

    snprintf(text, sizeof(text), "trace: %s", trouble != NULL ? trouble : "");
    events_send(&t->events, &e);
}

static int open_trace(struct train *t, struct err *err)
{
    const struct train_opts *o = t->opts;
    struct plan *plans[DEVICE_MAX];
    struct trace_opts to = {
        .path = o->trace, .steps = o->trace_steps, .plans = plans, .on_done = on_traced, .arg = t
    };

    if (o->trace == NULL)
        return 0;
    CHECK(o->trace_steps > 0);
    t->engine->ops->describe_trace(t->engine, &to);
    return trace_open(&to, &t->trace, err);
}

static void on_samples_lost(void *arg, const char *text)
{
    const struct train *t = arg;

    events_warn(&t->events, 0, text);
}

static int open_sample_log(struct train *t, struct err *err)
{
    const struct train_opts *o = t->opts;
    struct sample_log_opts so = { .path = o->sample_log,
                                  .replicas = o->n_devices,
                                  .lanes = o->lanes,
                                  .lane_batch = t->model.lane_batch,
                                  .on_loss = on_samples_lost,
                                  .arg = t };

    return o->sample_log != NULL ? sample_log_open(&so, &t->samples, err) : 0;
}

static int open_engine(struct train *t, const struct engine_ops *ops, struct err *err)
{
    int rc = describe_reads(t, err);

    if (rc < 0)
        return rc;
    describe_engine(t);
    rc = ops->open(&t->engine_opts, &t->engine, err);
    if (rc < 0)
        return rc;
    t->generation.engine = t->engine;
    for (uint32_t i = 0; i < t->opts->n_devices; i++)
        t->replicas[i].device = t->engine->replicas[i];
    return 0;
}

int train_new(const struct train_opts *opts, struct train **out, struct err *err)
{
    struct train *t;
    int rc;

    CHECK(opts->lanes >= opts->replicas && opts->global_batch % opts->lanes == 0);
    CHECK(opts->n_devices > 0 && opts->replicas >= opts->n_devices &&
          opts->min_replicas <= opts->replicas);
    t = calloc(1, sizeof(*t));
    if (t == NULL)
        return err_set(err, ERR_NOMEM, "training: out of memory");
    t->opts = opts;
    t->events.on_event = opts->on_event;
    t->events.arg = opts->arg;
    t->saving.last_ns = clock_ns();
    live_set_checkpoint(&t->live, opts->checkpoint.every_steps, opts->checkpoint.every_seconds,
                        opts->checkpoint.max_to_keep);
    live_set_norm(&t->live, opts->run.log_every_steps);
    t->live.norm_every[0] = t->live.norm_every[1] = opts->run.log_every_steps;
    rc = generation_init(&t->generation, opts->replicas, err);
    t->replicas = calloc(opts->n_devices, sizeof(*t->replicas));
    if (rc == 0 && t->replicas == NULL)
        rc = err_set(err, ERR_NOMEM, "training: out of memory");
    if (rc < 0) {
        train_close(t);
        return rc;
    }
    for (uint32_t i = 0; i < opts->n_devices; i++) {
        t->replicas[i].train = t;
        t->replicas[i].local = i;
    }
    *out = t;
    return 0;
}

int train_open_engine(struct train *t, const struct engine_ops *ops, struct err *err)
{
    int rc;

    t->state.schedule = t->opts->optimizer.schedule;
    t->state.schedule.total_steps = t->model.total_steps;
    state_begin(&t->state, &t->opts->run.loss_scale);
    rc = phases_open(&t->phases, t->opts, &t->state.schedule, t->model.total_steps, err);
    if (rc == 0)
        rc = coding_check(t->opts, err);
    if (rc == 0)
        rc = open_engine(t, ops, err);
    if (rc == 0)
        rc = outer_open(t, err);
    if (rc == 0)
        rc = copies_open(t, err);
    if (rc == 0)
        rc = open_trace(t, err);
    if (rc == 0)
        rc = open_sample_log(t, err);
    if (rc == 0)
        rc = model_fill_first(&t->model, &t->engine->memory, err);
    if (rc == 0) {
        engine_memory_fill_average(&t->engine->memory, true);
        engine_memory_fill_delayed(&t->engine->memory);
    }
    return rc;
}

static void note_async(const struct train *t)
{
    uint32_t bound = ps_bound_of(t->opts->ps);
    char text[256];

    if (bound == 0)
        return;
    snprintf(text, sizeof(text),
             "asynchronous phases: tasks are at most %u steps apart, and results depend on time: they do not repeat "
             "to the bit",
             bound);
    events_note(&t->events, text);
}

/* Each step of delay multiplies the largest stable learning rate by less than 1. */
static void warn_staleness(const struct train *t)
{
    uint32_t bound = ps_bound_of(t->opts->ps_tables);
    uint32_t k = bound > 0 ? bound : ps_staleness_of(t->opts->ps_tables);
    double rate = t->opts->optimizer.schedule.learning_rate;
    char text[512];

    if (k <= 2)
        return;
    snprintf(text, sizeof(text),
             "/parameter_server/staleness: with rows that are %s%u steps older, learning rates diverge that are stable "
             "with 0; if the loss of this job grows with the learning rate %g, first try %g, the rate / (%u + 1)",
             bound > 0 ? "up to " : "", k, rate, rate / (k + 1), k);
    events_warn(&t->events, 0, text);
}

int train_open(const struct train_opts *opts, const struct cancel *cancel, struct train **out,
               struct err *err)
{
    struct train *t;
    int rc = train_new(opts, &t, err);

    if (rc < 0)
        return rc;
    op_thread_init();
    rc = model_open(&t->model, opts, &t->events, cancel, err);
    if (rc == 0)
        rc = groups_open(opts, t->model.graph, &t->optim, err);
    if (rc == 0)
        warn_staleness(t);
    if (rc == 0)
        note_async(t);
    if (rc == 0)
        rc = remote_open(t, err);
    if (rc == 0) {
        events_phase(&t->events, "plan", 0);
        rc = train_open_engine(t, engine_select(&opts->devices[0]), err);
    }
    if (rc == 0)
        rc = model_name_tensors(&t->model, &t->engine->memory, err);
    if (rc < 0) {
        train_close(t);
        return rc;
    }
    *out = t;
    return 0;
}

void train_close(struct train *t)
{
    if (t == NULL)
        return;
    start_join(t);
    trace_close(t->trace);
    sample_log_close(t->samples);
    if (!ckpt_writer_close(t->saving.writer) && t->engine != NULL)
        t->engine->ops->abandon_staging(t->engine);
    if (t->engine != NULL)
        t->engine->ops->close(t->engine);
    remote_close(t->remote);
    outer_close(t);
    copies_close(t);
    optim_free(t->optim);
    model_close(&t->model);
    generation_fini(&t->generation);
    free(t->replicas);
    free(t->reads);
    free(t);
}

/* ---- entry points ---- */

int train_model_digest(const struct train_opts *opts, char out[65], struct err *err)
{
    return model_read_digest(opts, out, err);
}

int train_check_trace(const char *path, struct err *err)
{
    return trace_check_path(path, err);
}

void train_set_checkpoint(struct train *t, uint64_t every_steps, double every_seconds,
                          uint32_t max_to_keep)
{
    live_set_checkpoint(&t->live, every_steps, every_seconds, max_to_keep);
}

void train_set_unlogged(struct train *t, uint64_t step)
{
    atomic_store_explicit(&t->events.unlogged_step, step, memory_order_relaxed);
}

void train_set_norm(struct train *t, uint64_t every_steps)
{
    live_set_norm(&t->live, every_steps);
}

int train_start(struct train *t, const struct train_generation *g, train_end_fn *on_end,
                struct err *err)
{
    return start_generation(t, g, on_end, err);
}

void train_request(struct train *t, unsigned kinds)
{
    atomic_fetch_or_explicit(&t->generation.requests, kinds, memory_order_relaxed);
}

void train_abort(struct train *t, const char *why)
{
    generation_abort(&t->generation, why);
}

uint64_t train_held(const struct train *t)
{
    return state_held(&t->state);
}

int train_save(struct train *t, uint64_t wait_ms, struct err *err)
{
    uint64_t held = train_held(t);
    int rc;

    CHECK(atomic_load_explicit(&t->generation.running, memory_order_acquire) == 0);
    rc = held > 0 ? fault_error("train.save_rest", err) : 0;
    return rc == 0 && held > 0 ? save_now(t, held, wait_ms, err) : rc;
}

int train_load(struct train *t, const char *path, struct ckpt_info *out, struct err *err)
{
    CHECK(atomic_load_explicit(&t->generation.running, memory_order_acquire) == 0);
    return resume_path(t, path, out, err);
}

void train_storage(struct train *t, struct ckpt_failure *out)
{
    save_trouble(t, out);
}

void train_progress(const struct train *t, struct train_progress *out)
{
    progress_of(t->engine, atomic_load_explicit(&t->generation.deadline_ms, memory_order_relaxed),
                t->opts->health.stuck_factor, out);
}

void train_facts(const struct train *t, struct train_facts *out)
{
    uint32_t n;
    const struct graph_param *p = graph_params(t->model.graph, &n);

    *out = (struct train_facts){
        .records = t->model.samples,
        .eval_records = t->model.eval_samples,
        .steps_per_epoch = t->model.steps_per_epoch,
        .total_steps = t->model.total_steps,
        .state_bytes = t->engine->memory.state_bytes,
        .model_bytes = t->engine->memory.model_bytes,
        .work_bytes = t->engine->work_bytes,
        .learning_rate = t->opts->optimizer.schedule.learning_rate,
        .resumed_step = train_held(t),
        .weights = graph_weights_facts(t->model.graph),
    };
    for (uint32_t i = 0; i < n; i++)
        out->parameters += p[i].kind == GRAPH_TRAINED ? p[i].elements : 0;
}

const struct graph *train_graph(const struct train *t)
{
    return t->model.graph;
}

uint32_t train_diverged(const struct train *t)
{
    return t->health.peer;
}
