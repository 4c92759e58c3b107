/* model.c - see model.h. */
#include "train/model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/crc32c.h"
#include "base/err.h"
#include "base/text.h"
#include "data/data.h"
#include "engine/memory.h"
#include "engine/residual_layout.h"
#include "ps/wants.h"
#include "train/events.h"
#include "train/train_types.h"
#include "train/weights.h"

/* ---- inputs and features ---- */

static const struct graph_io *find_input(const struct graph *g, const char *name)
{
    uint32_t n;
    const struct graph_io *in = graph_inputs(g, &n);

    for (uint32_t i = 0; i < n; i++)
        if (strcmp(in[i].name, name) == 0)
            return &in[i];
    return NULL;
}

static int find_feature(const struct train_opts *o, const char *name, uint32_t *out,
                        struct err *err)
{
    for (uint32_t i = 0; i < o->n_features; i++)
        if (strcmp(o->features[i].name, name) == 0) {
            *out = i;
            return 0;
        }
    return err_set(err, ERR_INPUT, "no feature '%s' in /data/features", name);
}

/* Every input of the graph must be fed. */
static int check_inputs(const struct model *m, struct err *err)
{
    const struct train_opts *o = m->opts;
    const char *names[64];
    uint32_t n;
    const struct graph_io *in = graph_inputs(m->graph, &n);

    for (uint32_t i = 0; i < n && i < 64; i++)
        names[i] = in[i].name;
    for (uint32_t i = 0; i < o->model.n_inputs; i++)
        if (find_input(m->graph, o->model.inputs[i].input) == NULL) {
            const char *near = text_nearest(o->model.inputs[i].input, names, n < 64 ? n : 64);

            return err_set(err, ERR_INPUT, "/model/inputs/%s: '%s' has no input '%s'%s%s%s%s%s",
                           o->model.inputs[i].feature, o->model.onnx, o->model.inputs[i].input,
                           near ? "; did you mean '" : "", near ? near : "", near ? "'?" : "",
                           !near && n > 0 ? "; its first input is " : "",
                           !near && n > 0 ? names[0] : "");
        }
    for (uint32_t i = 0; i < n; i++) {
        uint32_t k = 0;

        while (k < o->model.n_inputs && strcmp(o->model.inputs[k].input, in[i].name) != 0)
            k++;
        if (k == o->model.n_inputs)
            return err_set(err, ERR_INPUT,
                           "/model/inputs: input '%s' of '%s' is fed by no feature: name the "
                           "feature that feeds it",
                           in[i].name, o->model.onnx);
    }
    return 0;
}

/* A feature is decoded once, so all its uses must have the same type. */
static int check_one_type(const struct model *m, uint32_t target, struct err *err)
{
    const struct train_opts *o = m->opts;
    const struct train_target *label = &o->targets[target];

    for (uint32_t i = 0; i < o->model.n_inputs; i++) {
        enum tensor_dtype dtype = find_input(m->graph, o->model.inputs[i].input)->dtype;

        if (m->features[i] == m->features[o->model.n_inputs + target] && dtype != label->dtype)
            return err_set(err, ERR_INPUT, "feature '%s' is the label (%s) and feeds %s input '%s'",
                           label->feature, tensor_dtype_name(label->dtype),
                           tensor_dtype_name(dtype), o->model.inputs[i].input);
    }
    for (uint32_t i = 0; i < target; i++)
        if (m->features[o->model.n_inputs + i] == m->features[o->model.n_inputs + target] &&
            o->targets[i].dtype != label->dtype)
            return err_set(err, ERR_INPUT,
                           "feature '%s' is the label of two losses that want %s and %s",
                           label->feature, tensor_dtype_name(o->targets[i].dtype),
                           tensor_dtype_name(label->dtype));
    return 0;
}

static int bind_features(struct model *m, struct err *err)
{
    const struct train_opts *o = m->opts;
    int rc = 0;

    m->features = calloc((size_t)o->model.n_inputs + o->n_targets + 1, sizeof(*m->features));
    if (m->features == NULL)
        return err_set(err, ERR_NOMEM, "features: out of memory");
    for (uint32_t i = 0; rc == 0 && i < o->model.n_inputs; i++)
        rc = find_feature(o, o->model.inputs[i].feature, &m->features[i], err);
    for (uint32_t i = 0; rc == 0 && i < o->n_targets; i++) {
        rc = find_feature(o, o->targets[i].feature, &m->features[o->model.n_inputs + i], err);
        if (rc == 0)
            rc = check_one_type(m, i, err);
    }
    return rc;
}

/* What the plans of an engine are made of. */
static int describe_plan(struct model *m, struct err *err)
{
    const struct train_opts *o = m->opts;

    m->feeds = calloc((size_t)o->model.n_inputs + o->n_targets + 1, sizeof(*m->feeds));
    m->metrics = calloc((size_t)o->n_metrics + 1, sizeof(*m->metrics));
    if (m->feeds == NULL || m->metrics == NULL)
        return err_set(err, ERR_NOMEM, "plan: out of memory");
    for (uint32_t i = 0; i < o->model.n_inputs; i++)
        m->feeds[i] =
            (struct plan_feed){ .name = o->model.inputs[i].input,
                                .source = o->model.inputs[i].feature,
                                .dtype = find_input(m->graph, o->model.inputs[i].input)->dtype,
                                .shape = o->features[m->features[i]].shape };
    for (uint32_t i = 0; i < o->n_targets; i++)
        m->feeds[o->model.n_inputs + i] =
            (struct plan_feed){ .name = "labels",
                                .source = o->targets[i].feature,
                                .dtype = o->targets[i].dtype,
                                .shape = o->features[m->features[o->model.n_inputs + i]].shape };
    for (uint32_t i = 0; i < o->n_metrics; i++)
        m->metrics[i] = o->metrics[i].measure;
    m->plan = (struct plan_opts){ .batch = m->lane_batch,
                                  .precision = o->run.precision,
                                  .feeds = m->feeds,
                                  .n_feeds = o->model.n_inputs,
                                  .targets = m->feeds + o->model.n_inputs,
                                  .n_targets = o->n_targets,
                                  .losses = o->losses,
                                  .n_losses = o->n_losses,
                                  .metrics = m->metrics,
                                  .n_metrics = o->n_metrics };
    return 0;
}

/* ---- the graph ---- */

static void send_notes(const struct model *m, const char *const *notes, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        events_note(m->events, notes[i]);
}

static bool is_selected(const void *arg, const char *name, uint64_t rows, uint64_t width)
{
    return ps_wants(arg, name, rows, width);
}

static struct graph_opts graph_options(const struct train_opts *o)
{
    return (struct graph_opts){ .path = o->model.onnx,
                                .trainable = o->model.trainable,
                                .n_trainable = o->model.n_trainable,
                                .frozen = o->model.frozen,
                                .n_frozen = o->model.n_frozen,
                                .padding = o->model.padding,
                                .n_padding = o->model.n_padding,
                                .ties = o->model.tied,
                                .n_ties = o->model.n_tied,
                                .batch_norm = o->model.batch_norm,
                                .tables = o->model.tables,
                                .n_tables = o->model.n_tables,
                                .seed = o->run.seed,
                                .is_remote = o->ps != NULL ? is_selected : NULL,
                                .is_delayed = ps_staleness_of(o->ps_tables) > 0 ? is_selected : NULL,
                                .delays_dense = o->ps == NULL && ps_wants_dense(o->ps_tables) &&
                                                ps_staleness_of(o->ps_tables) > 0,
                                .remote_arg = o->ps != NULL ? o->ps : o->ps_tables };
}

/* The rows of a dynamic table are on parameter servers only. */
static int check_dynamic(const struct model *m, struct err *err)
{
    const struct train_opts *o = m->opts;

    for (uint32_t i = 0; o->ps == NULL && i < o->model.n_tables; i++)
        if (o->model.tables[i].size == TABLE_DYNAMIC)
            return err_set(err, ERR_UNSUPPORTED,
                           "/model/tables/%s/rows: only ps tasks keep dynamic tables, and this cluster has none: "
                           "start the job with at least one ps task (trainerctl local --ps 1), or write a number "
                           "of rows",
                           o->model.tables[i].name);
    return 0;
}

/* No file limits the size of a generated table, and memory that is reserved is not yet there: a mistake
 * in a number would occupy the memory of the machine. */
static int check_tables(const struct model *m, struct err *err)
{
    double giga = 1 << 30;
    double bytes = (double)graph_arena_floats(m->graph) * sizeof(float);
    double there = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);

    if (m->opts->model.n_tables == 0 || bytes <= there)
        return 0;
    return err_set(err, ERR_NOMEM,
                   "/model/tables: the parameters of this task need %.1f GiB, the machine has %.1f GiB; "
                   "keep tables on parameter servers",
                   bytes / giga, there / giga);
}

static int open_graph(struct model *m, struct err *err)
{
    const struct train_opts *o = m->opts;
    struct graph_opts g = graph_options(o);
    const char *const *notes;
    uint32_t n;
    int rc;

    events_phase(m->events, "import", 0);
    rc = weights_open(&m->weights, o, m->events, &g, err);
    if (rc == 0)
        rc = graph_import(&g, &m->graph, err);
    if (rc < 0)
        return rc;
    notes = graph_notes(m->graph, &n);
    send_notes(m, notes, n);
    rc = check_dynamic(m, err);
    if (rc == 0)
        rc = check_tables(m, err);
    if (rc == 0)
        rc = check_inputs(m, err);
    return rc < 0 ? rc : bind_features(m, err);
}

static void ignore_event(void *arg, const struct train_event *e)
{
    (void)arg, (void)e;
}

int model_read_digest(const struct train_opts *opts, char out[65], struct err *err)
{
    const struct events quiet = { .on_event = ignore_event };
    /* a digest that is set prevents a read of the content */
    struct weights_file weights = { .digest = "-" };
    struct graph_opts g = graph_options(opts);
    struct graph *graph;
    int rc;

    rc = weights_open(&weights, opts, &quiet, &g, err);
    if (rc == 0)
        rc = graph_import(&g, &graph, err);
    if (rc == 0) {
        snprintf(out, 65, "%s", graph_digest(graph));
        graph_free(graph);
    }
    weights_close(&weights);
    return rc;
}

/* ---- data ---- */

static void on_index(void *arg, uint64_t done, uint64_t all, uint64_t records)
{
    struct model *m = arg;
    struct train_event e = { .kind = TRAIN_PROGRESS, .done = done, .all = all, .step = records };

    events_send(m->events, &e);
}

static void on_data_trouble(void *arg, const char *text)
{
    struct model *m = arg;

    events_warn(m->events, 0, text);
}

static int open_data(struct model *m, bool training, const struct cancel *cancel,
                     struct data_set **out, struct err *err)
{
    const struct train_opts *o = m->opts;
    struct data_feature *f = calloc(o->n_features, sizeof(*f));
    struct data_opts d = {
        .origin = o->data.origin,
        .glob = training ? o->data.train : o->data.eval,
        .features = f,
        .n_features = o->n_features,
        .training = training,
        .deadline_ms = o->data_deadline_ms,
        .check_seed = o->run.seed,
        .cancel = cancel,
        .on_progress = on_index,
        .on_warning = on_data_trouble,
        .arg = m,
    };
    int rc = 0;

    if (f == NULL)
        return err_set(err, ERR_NOMEM, "features: out of memory");
    for (uint32_t i = 0; i < o->n_features; i++) {
        f[i] = o->features[i];
        f[i].fed = TENSOR_F32;
    }
    for (uint32_t i = 0; i < o->model.n_inputs; i++) /* the graph input determines the type */
        f[m->features[i]].fed = find_input(m->graph, o->model.inputs[i].input)->dtype;
    for (uint32_t i = 0; i < o->n_targets; i++)
        f[m->features[o->model.n_inputs + i]].fed = o->targets[i].dtype;
    rc = data_open(&d, out, err);
    free(f);
    return rc;
}

/* Refuses padding that would count in a step. A loss that the graph computes is a mean over the places of a lane; a
 * running average of the graph is one over all places. */
static int check_padding(const struct model *m, struct err *err)
{
    const struct train_opts *o = m->opts;
    const struct graph_param *p;
    const char *what = NULL;
    uint32_t n, multiple = m->lane_batch;

    if (!o->data.pad)
        return 0;
    for (uint32_t i = 0; i < o->n_losses; i++)
        if (o->losses[i].op == NULL)
            what = "the mean that the graph computes as its loss";
    p = graph_params(m->graph, &n);
    for (uint32_t i = 0; i < n; i++)
        if (p[i].kind == GRAPH_STATISTIC) {
            what = "the running averages of batch normalization";
            multiple = o->global_batch;
        }
    if (what == NULL || m->samples % multiple == 0)
        return 0;
    return err_set(err, ERR_INPUT,
                   "/data/remainder: with \"pad\", %s would count the copies that fill the last batch; expected a number "
                   "of samples that is a multiple of %u (%s), found %llu; use \"drop\", or another global batch size",
                   what, multiple, multiple == o->global_batch ? "the global batch size" : "the samples of a lane",
                   (unsigned long long)m->samples);
}

static int settle_steps(struct model *m, struct err *err)
{
    const struct train_opts *o = m->opts;

    m->steps_per_epoch = data_steps_per_epoch(m->data, o->global_batch, o->data.pad);
    if (m->steps_per_epoch == 0)
        return err_set(
            err, ERR_INPUT,
            "%s holds %llu records, fewer than one global batch of %u: a smaller batch, or "
            "\"remainder\": \"pad\"",
            o->data.train, (unsigned long long)data_samples(m->data), o->global_batch);
    if (o->run.steps == 0 && o->run.epochs > UINT64_MAX / 2 / m->steps_per_epoch)
        return err_set(err, ERR_INPUT, "/train/epochs: %llu epochs of %llu steps are too many",
                       (unsigned long long)o->run.epochs, (unsigned long long)m->steps_per_epoch);
    m->total_steps = o->run.steps > 0 ? o->run.steps : o->run.epochs * m->steps_per_epoch;
    m->samples = data_samples(m->data);
    if (m->eval_data != NULL) {
        m->eval_steps = data_steps_per_epoch(m->eval_data, o->global_batch, true);
        m->eval_samples = data_samples(m->eval_data);
        if (m->eval_samples == 0)
            return err_set(err, ERR_INPUT, "%s holds no records", o->data.eval);
    }
    return check_padding(m, err);
}

/* ---- initial parameters ---- */

/* Imports the file again, as it was. The caller frees *out and closes m->weights. */
static int import_again(struct model *m, struct graph **out, struct err *err)
{
    const struct train_opts *o = m->opts;
    struct graph_opts g = graph_options(o);
    struct graph *graph;
    int rc;

    rc = weights_open(&m->weights, o, m->events, &g, err);
    if (rc == 0)
        rc = graph_import(&g, &graph, err);
    if (rc < 0) {
        weights_close(&m->weights);
        return err_wrap(err, rc, "read the initial weights again");
    }
    if (strcmp(graph_digest(graph), m->digest) != 0) {
        graph_free(graph);
        weights_close(&m->weights);
        return err_set(err, ERR_INPUT,
                       "'%s' is another model than it was: its initial weights are "
                       "needed again",
                       o->model.onnx);
    }
    *out = graph;
    return 0;
}

/* Reads the file again: the initial values were released after the first time. */
static int fill_again(struct model *m, float *params, struct err *err)
{
    const struct train_opts *o = m->opts;
    struct graph *graph;
    uint32_t crc;
    int rc = import_again(m, &graph, err);

    if (rc < 0)
        return rc;
    rc = graph_fill_initial(graph, params, err);
    graph_free(graph);
    weights_close(&m->weights);
    if (rc < 0)
        return rc;
    crc = crc32c(0, params, graph_arena_floats(m->graph) * sizeof(float));
    if (crc != m->initial_crc)
        return err_set(err, ERR_INPUT,
                       "the initial weights in '%s' are others than they were (checksum "
                       "%08x, before %08x)",
                       o->model.weights != NULL ? o->model.weights : o->model.onnx, crc,
                       m->initial_crc);
    return 0;
}

int model_open_initial(struct model *m, struct graph **out, struct err *err)
{
    return import_again(m, out, err);
}

void model_close_initial(struct model *m, struct graph *graph)
{
    graph_free(graph);
    weights_close(&m->weights);
}

int model_name_tensors(struct model *m, const struct memory *mem, struct err *err)
{
    struct residual_layout layout;
    struct tensors_residual residual = {
        .layout = &layout,
        .at = mem->residual != NULL ? (size_t)(mem->residual - mem->state) : SIZE_MAX,
    };
    int rc = residual_layout_open(&layout, m->graph, &m->opts->code, err);

    parts_layout(&m->parts, mem, ps_staleness_of(m->opts->ps_tables));
    if (rc == 0)
        rc = tensors_name(&m->tensors, &m->parts, &residual, m->opts, m->graph, err);
    residual_layout_close(&layout);
    return rc;
}

int model_fill_first(struct model *m, const struct memory *mem, struct err *err)
{
    int rc = 0;

    if (m->graph != NULL) {
        rc = graph_fill_initial(m->graph, mem->state, err);
        graph_release_initial(m->graph);
        weights_close(&m->weights);
        m->fill = fill_again;
    }
    m->initial_crc = crc32c(0, mem->state, mem->params * sizeof(float));
    return rc;
}

/* ---- opening ---- */

int model_open(struct model *m, const struct train_opts *opts, const struct events *events,
               const struct cancel *cancel, struct err *err)
{
    int rc;

    m->opts = opts;
    m->events = events;
    m->lane_batch = opts->global_batch / opts->lanes;
    rc = open_graph(m, err);
    if (rc == 0) {
        events_phase(events, "index", 0);
        rc = open_data(m, true, cancel, &m->data, err);
    }
    if (rc == 0 && opts->data.eval != NULL)
        rc = open_data(m, false, cancel, &m->eval_data, err);
    if (rc == 0)
        rc = settle_steps(m, err);
    if (rc == 0)
        rc = describe_plan(m, err);
    if (rc < 0)
        return rc;
    snprintf(m->digest, sizeof(m->digest), "%s", graph_digest(m->graph));
    snprintf(m->data_digest, sizeof(m->data_digest), "%s", data_digest(m->data));
    _Static_assert((int)DATA_CONTENT_PARTS == (int)AGREE_CONTENT_PARTS,
                   "the message has room for data_content()");
    data_content(m->data, m->content[0]);
    if (m->eval_data != NULL)
        data_content(m->eval_data, m->content[1]);
    return 0;
}

void model_close(struct model *m)
{
    data_free(m->data);
    data_free(m->eval_data);
    graph_free(m->graph);
    weights_close(&m->weights);
    free(m->features);
    free(m->feeds);
    free(m->metrics);
    tensors_free(&m->tensors);
    *m = (struct model){ 0 };
}

/* ---- queries ---- */

uint32_t model_differing_part(const uint32_t *a, const uint32_t *b)
{
    uint32_t part = 0;

    while (part < AGREE_CONTENT_PARTS && a[part] == b[part])
        part++;
    return part;
}

uint64_t model_samples_of(const struct model *m, uint64_t step)
{
    uint64_t batch = m->opts->global_batch;
    uint64_t first = (step - 1) % m->steps_per_epoch * batch;
    uint64_t left = m->samples - first;

    return left < batch ? left : batch;
}

bool model_evaluates_since(const struct model *m, uint64_t before, uint64_t step)
{
    uint64_t every = m->steps_per_epoch * m->opts->run.eval_every_epochs;

    if (m->eval_samples == 0 || step == 0)
        return false;
    return step == m->total_steps || (every > 0 && step / every > before / every);
}

uint64_t model_skipped(const struct model *m)
{
    return (m->data != NULL ? data_skipped(m->data) : 0) +
           (m->eval_data != NULL ? data_skipped(m->eval_data) : 0);
}
