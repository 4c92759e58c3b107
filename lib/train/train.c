/* train.c - opening and closing. */
#include "train/train.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/crc32c.h"
#include "base/text.h"
#include "engine/trace_write.h"
#include "op/op.h"
#include "train/gpu.h"
#include "train/train_priv.h"

bool train_on_gpus(const struct train *t)
{
    return t->opts->devices[0].kind == DEVICE_CUDA;
}

void train_tell(const struct train *t, const struct train_event *e)
{
    t->opts->on_event(t->opts->arg, e);
}

void train_phase(const struct train *t, const char *phase, uint64_t step)
{
    struct train_event e = { .kind = TRAIN_PHASE, .step = step, .text = phase };

    train_tell(t, &e);
}

/* ---- opening ---- */

static void on_index(void *arg, uint64_t done, uint64_t all, uint64_t records)
{
    struct train *t = arg;
    struct train_event e = { .kind = TRAIN_PROGRESS, .done = done, .all = all, .step = records };

    train_tell(t, &e);
}

static const struct graph_io *find_input(const struct graph *g, const char *name)
{
    uint32_t n;
    const struct graph_io *in = graph_inputs(g, &n);

    for (uint32_t i = 0; i < n; i++)
        if (strcmp(in[i].name, name) == 0)
            return &in[i];
    return NULL;
}

static int find_feature(const struct train_opts *o, const char *name, uint32_t *out, struct err *err)
{
    for (uint32_t i = 0; i < o->n_features; i++)
        if (strcmp(o->features[i].name, name) == 0) {
            *out = i;
            return 0;
        }
    return err_set(err, ERR_INPUT, "no feature '%s' in /data/features", name);
}

/* Every input of the graph must be fed. */
static int check_inputs(const struct train *t, struct err *err)
{
    const struct train_opts *o = t->opts;
    const char *names[64];
    uint32_t n;
    const struct graph_io *in = graph_inputs(t->graph, &n);

    for (uint32_t i = 0; i < n && i < 64; i++)
        names[i] = in[i].name;
    for (uint32_t i = 0; i < o->n_inputs; i++)
        if (find_input(t->graph, o->inputs[i].input) == NULL) {
            const char *near = text_nearest(o->inputs[i].input, names, n < 64 ? n : 64);

            return err_set(err, ERR_INPUT, "/model/inputs/%s: '%s' has no input '%s'%s%s%s%s%s",
                           o->inputs[i].feature, o->onnx, o->inputs[i].input, near ? "; did you mean '" : "",
                           near ? near : "", near ? "'?" : "",
                           !near && n > 0 ? "; its first input is " : "", !near && n > 0 ? names[0] : "");
        }
    for (uint32_t i = 0; i < n; i++) {
        uint32_t k = 0;

        while (k < o->n_inputs && strcmp(o->inputs[k].input, in[i].name) != 0)
            k++;
        if (k == o->n_inputs)
            return err_set(err, ERR_INPUT,
                           "/model/inputs: input '%s' of '%s' is fed by no feature: name the feature that feeds it",
                           in[i].name, o->onnx);
    }
    return 0;
}

static void on_data_trouble(void *arg, const char *text)
{
    struct train *t = arg;
    struct train_event e = { .kind = TRAIN_WARN, .text = text };

    train_tell(t, &e);
}

static int open_data(struct train *t, bool training, const struct cancel *cancel,
                     struct data_set **out, struct err *err)
{
    const struct train_opts *o = t->opts;
    struct data_feature *f = calloc(o->n_features, sizeof(*f));
    struct data_opts d = {
        .format = o->format,
        .glob = training ? o->train_glob : o->eval_glob,
        .parts = o->parts,
        .n_parts = training ? o->n_parts : 0,
        .features = f,
        .n_features = o->n_features,
        .pack = o->pack,
        .csv_header = o->csv_header,
        .csv_delimiter = o->csv_delimiter,
        .training = training,
        .skip_bad = o->skip_bad,
        .cache_memory = o->cache_memory,
        .cache_directory = o->cache_directory,
        .deadline_ms = o->data_deadline_ms,
        .index_directory = o->index_directory,
        .check_seed = o->seed,
        .cancel = cancel,
        .on_progress = on_index,
        .on_trouble = on_data_trouble,
        .arg = t,
    };
    int rc = 0;

    if (f == NULL)
        return err_set(err, ERR_NOMEM, "features: out of memory");
    for (uint32_t i = 0; i < o->n_features; i++) {
        f[i] = o->features[i];
        f[i].fed = TENSOR_F32;
    }
    for (uint32_t i = 0; i < o->n_inputs; i++) /* a graph input says what it wants */
        f[t->feature_of_input[i]].fed = find_input(t->graph, o->inputs[i].input)->dtype;
    for (uint32_t i = 0; i < o->n_targets; i++)
        f[t->feature_of_target[i]].fed = o->targets[i].dtype;
    rc = data_open(&d, out, err);
    free(f);
    return rc;
}

/* A feature is decoded once, so all who use it must want the same type. */
static int check_one_type(const struct train *t, uint32_t target, struct err *err)
{
    const struct train_opts *o = t->opts;
    const struct train_target *label = &o->targets[target];

    for (uint32_t i = 0; i < o->n_inputs; i++) {
        enum tensor_dtype dtype = find_input(t->graph, o->inputs[i].input)->dtype;

        if (t->feature_of_input[i] == t->feature_of_target[target] && dtype != label->dtype)
            return err_set(err, ERR_INPUT, "feature '%s' is the label (%s) and feeds %s input '%s'",
                           label->feature, tensor_dtype_name(label->dtype),
                           tensor_dtype_name(dtype), o->inputs[i].input);
    }
    for (uint32_t i = 0; i < target; i++)
        if (t->feature_of_target[i] == t->feature_of_target[target] &&
            o->targets[i].dtype != label->dtype)
            return err_set(err, ERR_INPUT, "feature '%s' is the label of two losses that want %s and %s",
                           label->feature, tensor_dtype_name(o->targets[i].dtype),
                           tensor_dtype_name(label->dtype));
    return 0;
}

static int bind_features(struct train *t, struct err *err)
{
    const struct train_opts *o = t->opts;
    int rc = 0;

    t->feature_of_input = calloc(o->n_inputs + 1, sizeof(*t->feature_of_input));
    t->feature_of_target = calloc(o->n_targets + 1, sizeof(*t->feature_of_target));
    if (t->feature_of_input == NULL || t->feature_of_target == NULL)
        return err_set(err, ERR_NOMEM, "features: out of memory");
    for (uint32_t i = 0; rc == 0 && i < o->n_inputs; i++)
        rc = find_feature(o, o->inputs[i].feature, &t->feature_of_input[i], err);
    for (uint32_t i = 0; rc == 0 && i < o->n_targets; i++) {
        rc = find_feature(o, o->targets[i].feature, &t->feature_of_target[i], err);
        if (rc == 0)
            rc = check_one_type(t, i, err);
    }
    return rc;
}

static int settle_steps(struct train *t, struct err *err)
{
    const struct train_opts *o = t->opts;

    t->steps_per_epoch = data_steps_per_epoch(t->data, o->global_batch, o->pad);
    if (t->steps_per_epoch == 0)
        return err_set(err, ERR_INPUT,
                       "%s holds %llu records, fewer than one global batch of %u: a smaller batch, or "
                       "\"remainder\": \"pad\"",
                       o->train_glob, (unsigned long long)data_samples(t->data), o->global_batch);
    if (o->steps == 0 && o->epochs > UINT64_MAX / 2 / t->steps_per_epoch)
        return err_set(err, ERR_INPUT, "/train/epochs: %llu epochs of %llu steps are too many",
                       (unsigned long long)o->epochs, (unsigned long long)t->steps_per_epoch);
    t->total_steps = o->steps > 0 ? o->steps : o->epochs * t->steps_per_epoch;
    t->schedule = o->schedule;
    t->schedule.total_steps = t->total_steps;
    if (t->eval_data != NULL) {
        t->eval_steps = data_steps_per_epoch(t->eval_data, o->global_batch, true);
        if (data_samples(t->eval_data) == 0)
            return err_set(err, ERR_INPUT, "%s holds no records", o->eval_glob);
    }
    return 0;
}

static int open_plan(struct train *t, enum plan_purpose purpose, struct plan **plan,
                     struct device_mem *work, struct err *err)
{
    const struct train_opts *o = t->opts;
    struct plan_feed *feeds = calloc((size_t)o->n_inputs + o->n_targets + 1, sizeof(*feeds));
    struct plan_measure metrics[TRAIN_MAX_METRICS];
    struct plan_opts p = {
        .purpose = purpose,
        .batch = t->lane_batch,
        .precision = o->precision,
        .feeds = feeds,
        .n_feeds = o->n_inputs,
        .targets = feeds + o->n_inputs,
        .n_targets = o->n_targets,
        .losses = o->losses,
        .n_losses = o->n_losses,
        .metrics = metrics,
        .n_metrics = purpose == PLAN_EVAL ? o->n_metrics : 0,
        .cuda = device_cuda(&o->devices[0]),
    };
    int rc;

    if (feeds == NULL)
        return err_set(err, ERR_NOMEM, "plan: out of memory");
    for (uint32_t i = 0; i < o->n_inputs; i++)
        feeds[i] = (struct plan_feed){ .name = o->inputs[i].input,
                                       .source = o->inputs[i].feature,
                                       .dtype = find_input(t->graph, o->inputs[i].input)->dtype,
                                       .shape = o->features[t->feature_of_input[i]].shape };
    for (uint32_t i = 0; i < o->n_targets; i++)
        feeds[o->n_inputs + i] =
            (struct plan_feed){ .name = "labels",
                                .source = o->targets[i].feature,
                                .dtype = o->targets[i].dtype,
                                .shape = o->features[t->feature_of_target[i]].shape };
    for (uint32_t i = 0; i < p.n_metrics; i++)
        metrics[i] = o->metrics[i].measure;
    rc = plan_new(t->graph, &p, plan, err);
    free(feeds);
    if (rc == 0 && p.cuda == NULL) /* a GPU's: gpu_open() */
        rc = device_mem_open(work, plan_work_bytes(*plan), false, err);
    return rc;
}

static void tell_notes(struct train *t, const char *const *notes, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        struct train_event e = { .kind = TRAIN_NOTE, .text = notes[i] };

        train_tell(t, &e);
    }
}

static struct graph_opts model_opts(const struct train_opts *o)
{
    return (struct graph_opts){ .path = o->onnx,
                                .trainable = o->trainable,
                                .n_trainable = o->n_trainable,
                                .frozen = o->frozen,
                                .n_frozen = o->n_frozen,
                                .padding = o->padding,
                                .n_padding = o->n_padding,
                                .batch_norm = o->batch_norm };
}

static int open_model(struct train *t, struct err *err)
{
    const struct train_opts *o = t->opts;
    struct graph_opts g = model_opts(o);
    const char *const *notes;
    uint32_t n;
    int rc;

    train_phase(t, "import", 0);
    rc = weights_open(t, &g, err);
    if (rc == 0)
        rc = graph_import(&g, &t->graph, err);
    if (rc < 0)
        return rc;
    notes = graph_notes(t->graph, &n);
    tell_notes(t, notes, n);
    rc = check_inputs(t, err);
    return rc < 0 ? rc : bind_features(t, err);
}

static void ignore_event(void *arg, const struct train_event *e)
{
    (void)arg, (void)e;
}

int train_model_digest(const struct train_opts *opts, char out[65], struct err *err)
{
    struct train *t = calloc(1, sizeof(*t)); /* for the weights, which an import may need */
    struct train_opts quiet = *opts;
    struct graph_opts g = model_opts(opts);
    struct graph *graph;
    int rc;

    if (t == NULL)
        return err_set(err, ERR_NOMEM, "model: out of memory");
    quiet.on_event = ignore_event;
    t->opts = &quiet;
    snprintf(t->weights_digest, sizeof(t->weights_digest), "-"); /* set: their content need not be read */
    rc = weights_open(t, &g, err);
    if (rc == 0)
        rc = graph_import(&g, &graph, err);
    if (rc == 0) {
        snprintf(out, 65, "%s", graph_digest(graph));
        graph_free(graph);
    }
    weights_close(t);
    free(t);
    return rc;
}

static int open_plans(struct train *t, struct err *err)
{
    const struct train_opts *o = t->opts;
    const char *const *notes;
    uint32_t n_notes;
    int rc = 0;

    train_phase(t, "plan", 0);
    for (uint32_t i = 0; rc == 0 && i < o->n_devices; i++) {
        struct replica *r = &t->replicas[i];

        if (train_on_gpus(t))
            rc = device_enter(&o->devices[i], err);
        if (rc == 0)
            rc = open_plan(t, PLAN_TRAIN, &r->plan, &r->work, err);
        if (rc == 0 && t->eval_data != NULL)
            rc = open_plan(t, PLAN_EVAL, &r->eval_plan, &r->eval_work, err);
    }
    if (rc == 0) {
        notes = plan_notes(t->replicas[0].plan, &n_notes);
        tell_notes(t, notes, n_notes);
    }
    t->eval_words = 2; /* loss and weight */
    for (uint32_t i = 0; rc == 0 && t->eval_data != NULL && i < o->n_metrics; i++)
        t->eval_words += plan_metric_words(t->replicas[0].eval_plan, i);
    return rc;
}

static void on_traced(void *arg, const struct trace_profile *p, const char *trouble)
{
    struct train *t = arg;
    char text[600];
    struct train_event e = { .kind = p != NULL ? TRAIN_PROFILE : TRAIN_WARN, .text = text,
                             .profile = p };

    snprintf(text, sizeof(text), "trace: %s", trouble != NULL ? trouble : "");
    train_tell(t, &e);
}

static int open_trace(struct train *t, struct err *err)
{
    const struct train_opts *o = t->opts;
    struct plan *plans[DEVICE_MAX];
    struct trace_opts to = { .path = o->trace, .steps = o->trace_steps, .plans = plans,
                             .n_replicas = o->n_devices, .lanes = t->max_lanes,
                             .pieces = train_on_gpus(t) ? gpu_pieces(t) : reduce_buckets(t),
                             .on_gpus = train_on_gpus(t), .on_done = on_traced, .arg = t };

    if (o->trace == NULL)
        return 0;
    CHECK(o->trace_steps > 0);
    for (uint32_t i = 0; i < o->n_devices; i++)
        plans[i] = t->replicas[i].plan;
    return trace_open(&to, &t->trace, err);
}

static int open_sample_log(struct train *t, struct err *err)
{
    const struct train_opts *o = t->opts;
    struct sample_log_opts so = { .path = o->sample_log, .replicas = o->n_devices, .lanes = o->lanes,
                                  .lane_batch = t->lane_batch };

    return o->sample_log != NULL ? sample_log_open(&so, &t->samples, err) : 0;
}

static int copy_initial(struct train *t, const struct graph *g, struct err *err)
{
    int rc = graph_fill_initial(g, t->mem.state, err);

    if (rc == 0)
        update_fill_average(t, true);
    return rc;
}

int train_start_over(struct train *t, struct err *err)
{
    const struct train_opts *o = t->opts;
    struct graph_opts g = model_opts(o);
    struct graph *graph;
    uint32_t crc;
    int rc = weights_open(t, &g, err);

    if (rc == 0)
        rc = graph_import(&g, &graph, err);
    if (rc < 0) {
        weights_close(t);
        return err_wrap(err, rc, "read the initial weights again");
    }
    if (strcmp(graph_digest(graph), graph_digest(t->graph)) != 0) {
        graph_free(graph);
        weights_close(t);
        return err_set(err, ERR_INPUT, "'%s' is another model than it was: its initial weights are "
                                       "needed again", o->onnx);
    }
    memset(t->mem.state, 0, t->mem.state_bytes);
    rc = copy_initial(t, graph, err);
    graph_free(graph);
    weights_close(t);
    if (rc < 0)
        return rc;
    crc = crc32c(0, t->mem.state, t->mem.params * sizeof(float));
    if (crc != t->fresh_crc)
        return err_set(err, ERR_INPUT, "the initial weights in '%s' are others than they were (checksum "
                                       "%08x, before %08x)", o->weights != NULL ? o->weights : o->onnx,
                       crc, t->fresh_crc);
    t->shadow_step = 0;
    t->facts = train_fresh_facts(t);
    t->schedule.plateau = (struct optim_plateau){ 0 };
    return 0;
}

struct facts train_fresh_facts(const struct train *t)
{
    return (struct facts){ .loss = NAN, .grad_norm = NAN, .scale = loss_scale_begin(&t->opts->loss_scale) };
}

static int fill_fresh(struct train *t, struct err *err)
{
    int rc;

    t->facts = train_fresh_facts(t);
    rc = copy_initial(t, t->graph, err);
    graph_forget_initial(t->graph);
    weights_close(t);
    t->fresh_crc = crc32c(0, t->mem.state, t->mem.params * sizeof(float));
    return rc;
}

/* The largest share of lanes that a replica can get: it falls with the size of the group, so the
 * smallest group that may train has it. */
static uint32_t most_lanes(const struct train *t)
{
    const struct train_opts *o = t->opts;
    uint32_t world = o->min_replicas > 0 ? o->min_replicas : o->replicas, most = 1;

    comm_share(o->lanes, world, t->shares);
    for (uint32_t i = 0; i < world; i++)
        most = t->shares[i] > most ? t->shares[i] : most;
    return most;
}

int train_open(const struct train_opts *opts, const struct cancel *cancel, struct train **out,
               struct err *err)
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
    t->lane_batch = opts->global_batch / opts->lanes;
    pthread_mutex_init(&t->lock, NULL);
    t->replicas = calloc(opts->n_devices, sizeof(*t->replicas));
    t->shares = calloc(opts->replicas, sizeof(*t->shares));
    t->device_idle = calloc(opts->n_devices, sizeof(*t->device_idle));
    if (t->replicas == NULL || t->shares == NULL || t->device_idle == NULL) {
        rc = err_set(err, ERR_NOMEM, "training: out of memory");
        goto fail;
    }
    for (uint32_t i = 0; i < opts->n_devices; i++) {
        t->replicas[i].train = t;
        t->replicas[i].local = i;
        t->device_idle[i] = NAN;
    }
    t->max_lanes = most_lanes(t);
    live_open(t);
    op_thread_init();
    rc = open_model(t, err);
    if (rc == 0) {
        train_phase(t, "index", 0);
        rc = open_data(t, true, cancel, &t->data, err);
    }
    if (rc == 0 && opts->eval_glob != NULL)
        rc = open_data(t, false, cancel, &t->eval_data, err);
    if (rc == 0)
        rc = settle_steps(t, err);
    if (rc == 0)
        rc = open_plans(t, err);
    if (rc == 0)
        rc = memory_open(t, err);
    if (rc == 0)
        rc = update_open(t, err);
    for (uint32_t i = 0; rc == 0 && i < opts->n_devices && train_on_gpus(t); i++)
        rc = gpu_open(&t->replicas[i], err);
    if (rc == 0)
        rc = open_trace(t, err);
    if (rc == 0)
        rc = open_sample_log(t, err);
    if (rc < 0)
        goto fail;
    tables_tell(t);
    rc = fill_fresh(t, err);
    if (rc == 0)
        rc = save_open(t, err);
    if (rc < 0)
        goto fail;
    *out = t;
    return 0;

fail:
    train_close(t);
    return rc;
}

void train_close(struct train *t)
{
    if (t == NULL)
        return;
    generation_close(t);
    trace_close(t->trace);
    sample_log_close(t->samples);
    if (!ckpt_writer_close(t->writer))
        gpu_leave_staging(t);
    for (uint32_t i = 0; t->replicas != NULL && i < t->opts->n_devices; i++) {
        gpu_close(&t->replicas[i]);
        plan_free(t->replicas[i].plan);
        plan_free(t->replicas[i].eval_plan);
        device_mem_close(&t->replicas[i].work);
        device_mem_close(&t->replicas[i].eval_work);
    }
    free(t->replicas);
    free(t->shares);
    free(t->device_idle);
    data_free(t->data);
    data_free(t->eval_data);
    graph_free(t->graph);
    weights_close(t);
    memory_close(t);
    optim_free(t->optim);
    free(t->slot_names);
    free(t->model_tensors);
    free(t->slot_tensors);
    free(t->feature_of_input);
    free(t->feature_of_target);
    pthread_mutex_destroy(&t->lock);
    free(t);
}

int train_check_trace(const char *path, struct err *err)
{
    return trace_check(path, err);
}

void train_facts(const struct train *t, struct train_facts *out)
{
    uint32_t n;
    const struct graph_param *p = graph_params(t->graph, &n);

    *out = (struct train_facts){
        .records = data_samples(t->data),
        .eval_records = t->eval_data != NULL ? data_samples(t->eval_data) : 0,
        .steps_per_epoch = t->steps_per_epoch,
        .total_steps = t->total_steps,
        .state_bytes = t->mem.state_bytes,
        .work_bytes = plan_work_bytes(t->replicas[0].plan),
        .learning_rate = t->opts->schedule.learning_rate,
        .resumed_step = train_held(t),
        .weights = graph_weights_facts(t->graph),
    };
    for (uint32_t i = 0; i < n; i++)
        out->parameters += p[i].kind == GRAPH_TRAINED ? p[i].elements : 0;
}

uint32_t train_diverged(const struct train *t)
{
    return t->health.peer;
}
