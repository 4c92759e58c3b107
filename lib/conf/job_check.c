/* job_check.c - rules that concern several keys of a job: defaults that depend on other keys, and
 * contradictions. The error of a contradiction has the position of one key and names the other. */
#include "conf/job_check.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/check.h"
#include "base/err.h"
#include "base/json.h"
#include "base/text.h"
#include "conf/job_check_compression.h"
#include "conf/job_check_deterministic.h"
#include "conf/job_check_phases.h"
#include "conf/job_keys.h"

struct checker {
    const struct json *doc;
    struct conf *c;
    struct err *err;
};

/* Returns the value at a JSON pointer without escapes ("/train/steps"); NULL: absent. */
static const cJSON *value_at(const struct json *doc, const char *pointer)
{
    const cJSON *v = json_root(doc);
    char name[CONF_KEY_PATH_BYTES];

    while (v != NULL && *pointer == '/') {
        size_t n = strcspn(++pointer, "/");

        CHECK(n < sizeof(name));
        memcpy(name, pointer, n);
        name[n] = '\0';
        v = cJSON_GetObjectItemCaseSensitive(v, name);
        pointer += n;
    }
    return v;
}

/* Sets the name of the job to the name of the file without folder and .json. */
static int derive_name(const struct checker *k)
{
    const char *slash = strrchr(k->c->path, '/');
    const char *file = slash == NULL ? k->c->path : slash + 1;
    size_t n = strlen(file);

    if (n > 5 && strcmp(file + n - 5, ".json") == 0)
        n -= 5;
    k->c->name = n == 0 ? "job" : arena_strndup(&k->c->mem, file, n);
    if (k->c->name == NULL)
        return err_set(k->err, ERR_NOMEM, "job file '%s': out of memory", k->c->path);
    return 0;
}

/* Where the job has no value: the optimizer's own defaults, which are PyTorch's and the papers'. */
static void derive_optimizer(const struct checker *k)
{
#define ROW(NAME, word, momentum_, beta2_, epsilon_, decay, ...)                                   \
    [OPTIM_##NAME] = { .momentum = momentum_, .beta2 = beta2_, .epsilon = epsilon_,                \
                       .weight_decay = decay },
    static const struct optim_hyper defaults[] = { OPTIM_LIST(ROW) };
#undef ROW
    const struct optim_hyper *own = &defaults[k->c->optimizer.type];
    struct optim_hyper *h = &k->c->optimizer.hyper;
    const struct {
        const char *name;
        double *value, by_default;
    } rows[] = {
        { "momentum", &h->momentum, own->momentum },
        { "beta2", &h->beta2, own->beta2 },
        { "epsilon", &h->epsilon, own->epsilon },
        { "weight_decay", &h->weight_decay, own->weight_decay },
    };

    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        const struct conf_key *key = conf_key_find("/optimizer", rows[i].name);
        char pointer[CONF_KEY_PATH_BYTES];

        conf_key_path(key, pointer);
        if (value_at(k->doc, pointer) == NULL && conf_key_applies(key, k->c))
            *rows[i].value = rows[i].by_default;
    }
}

/* Sets the default weight decay of groups, and rejects other settings of frozen groups. */
static int derive_groups(const struct checker *k)
{
    const cJSON *groups = value_at(k->doc, "/optimizer/groups");

    for (uint32_t i = 0; i < k->c->n_groups; i++) {
        const cJSON *group = cJSON_GetArrayItem(groups, (int)i);
        struct conf_group *g = &k->c->groups[i];

        if (cJSON_GetObjectItemCaseSensitive(group, "weight_decay") == NULL)
            g->params.weight_decay = k->c->optimizer.hyper.weight_decay;
        if (g->frozen && (g->params.rate_factor != 1 || !g->params.adapts || g->params.lazy ||
                          g->params.weight_decay != k->c->optimizer.hyper.weight_decay))
            return json_error(
                k->doc, group, k->err,
                "parameters that are \"frozen\" have no learning rate, weight decay, adaptation or "
                "lazy rows of their own; remove these keys or \"frozen\"");
    }
    return 0;
}

/* Sets the default waiting times, which are at most half of the deadline. */
static void derive_waits(const struct checker *k)
{
    struct conf *c = k->c;
    double half = c->train.deadline_seconds / 2;

    if (value_at(k->doc, "/elastic/rejoin_seconds") == NULL)
        c->elastic.rejoin_seconds = fmin(10, half);
    if (value_at(k->doc, "/detection/silent_seconds") == NULL)
        c->detection.silent_seconds = fmin(1.2, half);
}

static int derive(const struct checker *k)
{
    struct conf *c = k->c;

    derive_optimizer(k);
    derive_waits(k);
    if (value_at(k->doc, "/train/eval_every_epochs") == NULL && c->data.eval != NULL)
        c->run.eval_every_epochs = 1;
    return c->name == NULL ? derive_name(k) : 0;
}

/* Checks that `name`, given at `value`, is one of data.features. */
static int check_feature(const struct checker *k, const cJSON *value, const char *name)
{
    const char *names[CONF_MAX_FEATURES], *near;
    uint32_t n = k->c->samples.n_features;

    for (uint32_t i = 0; i < n; i++) {
        names[i] = k->c->samples.features[i].data.name;
        if (strcmp(names[i], name) == 0)
            return 0;
    }
    near = text_nearest(name, names, n);
    return json_error(k->doc, value, k->err,
                      "\"%.64s\" is not a feature of /data/features: %s \"%.64s\"%s", name,
                      near != NULL ? "did you mean" : "the first feature is",
                      near != NULL ? near : names[0], near != NULL ? "?" : "");
}

/* Returns loss i and sets *value to its JSON value. 0: model.loss; 1, 2, ...: those of
 * more_losses. */
static struct conf_objective *loss_at(const struct checker *k, uint32_t i, const cJSON **value)
{
    if (i == 0) {
        *value = value_at(k->doc, "/model/loss");
        return &k->c->objective.loss;
    }
    *value = cJSON_GetArrayItem(value_at(k->doc, "/model/more_losses"), (int)i - 1);
    return &k->c->objective.more_losses[i - 1];
}

static int check_losses(const struct checker *k)
{
    uint32_t n = 1 + k->c->objective.n_more_losses;
    int rc = 0;

    for (uint32_t i = 0; i < n && rc == 0; i++) {
        const cJSON *value, *ignored;
        struct conf_objective *o = loss_at(k, i, &value);

        ignored = cJSON_GetObjectItemCaseSensitive(value, "ignore_index");
        if (ignored == NULL || cJSON_IsNull(ignored))
            o->ignore_index = NAN;
        else if (o->ignore_index != trunc(o->ignore_index))
            return json_error(k->doc, ignored, k->err, "expected an integer, found %g",
                              o->ignore_index);
        if (o->labels != NULL)
            rc = check_feature(k, cJSON_GetObjectItemCaseSensitive(value, "labels"), o->labels);
        if (rc == 0 && n > 1 && (o->n_class_weights > 0 || !isnan(o->ignore_index)))
            rc = json_error(k->doc, value, k->err,
                            "with several losses (/model/more_losses) each is a mean over the "
                            "samples, so \"class_weights\" and \"ignore_index\" are not possible; "
                            "use \"type\": \"graph\" for this one");
    }
    return rc;
}

/* Whether a metric applies to losses that compare with these labels. */
static bool metric_applies(enum train_metric_type metric, enum train_labels labels)
{
#define ROW(NAME, word, figure, of_classes, of_sides, of_numbers)                                  \
    [TRAIN_METRIC_##NAME] = { [TRAIN_CLASSES] = (of_classes) != NULL,                              \
                              [TRAIN_SIDES] = (of_sides) != NULL,                                  \
                              [TRAIN_NUMBERS] = (of_numbers) != NULL },
    static const bool applies[][TRAIN_NOTHING + 1] = { TRAIN_METRIC_LIST(ROW) };
#undef ROW

    return applies[metric][labels];
}

#define ROW(NAME, word, op, compares, ...) { #word, TRAIN_##compares },
static const struct {
    const char *word;
    enum train_labels labels;
} losses[] = { TRAIN_LOSS_LIST(ROW) };
#undef ROW

/* Sets the error of a metric that does not apply to the first loss: lists the losses to which it
 * applies. */
static int refuse_metric(const struct checker *k, enum train_metric_type metric, const cJSON *at)
{
    const char *words[TRAIN_LOSSES];
    struct buf list = { 0 };
    uint32_t n = 0, i;
    int rc;

    for (i = 0; i < TRAIN_LOSSES; i++)
        if (metric_applies(metric, losses[i].labels))
            words[n++] = losses[i].word;
    for (i = 0; i < n; i++)
        buf_printf(&list, "%s%s", i == 0 ? "" : i + 1 < n ? ", " : " or ", words[i]);
    rc = json_error(k->doc, at, k->err, "this metric needs a /model/loss of type %s",
                    list.data != NULL ? list.data : "another kind");
    buf_fini(&list);
    return rc;
}

/* Checks that each metric can be computed from the tensors of the first loss. */
static int check_metrics(const struct checker *k)
{
    const struct conf *c = k->c;

    for (uint32_t i = 0; i < c->objective.n_metrics; i++)
        if (!metric_applies(c->objective.metrics[i], losses[c->objective.loss.type].labels))
            return refuse_metric(k, c->objective.metrics[i],
                                 cJSON_GetArrayItem(value_at(k->doc, "/model/metrics"), (int)i));
    return 0;
}

static int check_inputs(const struct checker *k)
{
    const cJSON *inputs = value_at(k->doc, "/model/inputs");
    const struct train_input *in = k->c->model.inputs;

    for (uint32_t i = 0; i < k->c->model.n_inputs; i++) {
        const cJSON *value = cJSON_GetObjectItemCaseSensitive(inputs, in[i].feature);
        int rc = check_feature(k, value, in[i].feature);

        if (rc < 0)
            return rc;
        for (uint32_t j = 0; j < i; j++)
            if (strcmp(in[i].input, in[j].input) == 0)
                return json_error(k->doc, value, k->err,
                                  "the graph input \"%.64s\" is fed by /model/inputs/%.64s already",
                                  in[i].input, in[j].feature);
    }
    return 0;
}

/* Checks that the number of elements of a sample is at most INT32_MAX. */
static int check_shapes(const struct checker *k)
{
    const cJSON *features = value_at(k->doc, "/data/features");

    for (uint32_t i = 0; i < k->c->samples.n_features; i++) {
        const struct data_feature *f = &k->c->samples.features[i].data;
        uint64_t elements = 1;

        for (uint32_t d = 0; d < f->shape.rank; d++) {
            const cJSON *shape;

            elements *= (uint64_t)f->shape.dim[d]; /* both below 2^31 */
            if (elements <= INT32_MAX)
                continue;
            shape = cJSON_GetObjectItemCaseSensitive(
                cJSON_GetObjectItemCaseSensitive(features, f->name), "shape");
            return json_error(k->doc, shape, k->err,
                              "a sample has more than %" PRId32 " elements: the first %" PRIu32
                              " dimensions alone have %" PRIu64,
                              INT32_MAX, d + 1, elements);
        }
    }
    return 0;
}

/* Checks the features from which others are derived, and the one of data.pack. */
static int check_derived(const struct checker *k)
{
    const cJSON *features = value_at(k->doc, "/data/features");
    int rc = 0;

    for (uint32_t i = 0; rc == 0 && i < k->c->samples.n_features; i++) {
        const struct conf_feature *f = &k->c->samples.features[i];
        const cJSON *value = cJSON_GetObjectItemCaseSensitive(features, f->data.name);
        const struct {
            const char *key, *of;
        } sources[] = { { "length_of", f->length_of },   { "segment_of", f->segment_of },
                     { "position_of", f->position_of }, { "row_lengths", f->row_lengths },
                     { "row_splits", f->row_splits } };
        uint32_t n = 0;

        for (uint32_t w = 0; rc == 0 && w < COUNT_OF(sources); w++) {
            if (sources[w].of == NULL)
                continue;
            if (n++ > 0)
                return json_error(k->doc, value, k->err,
                                  "expected one of \"length_of\", \"segment_of\", \"position_of\", "
                                  "\"row_lengths\" and \"row_splits\", found more");
            rc = check_feature(k, cJSON_GetObjectItemCaseSensitive(value, sources[w].key),
                               sources[w].of);
        }
    }
    if (rc == 0 && k->c->data.origin.pack != NULL)
        rc = check_feature(k, value_at(k->doc, "/data/pack"), k->c->data.origin.pack);
    return rc;
}

/* Sets the default `when` of each operation, and checks its feature and values. */
static int check_map(const struct checker *k)
{
    static const enum conf_map_when whens[] = {
        [DATA_RANDOM_RESIZED_CROP] = CONF_MAP_TRAINING, [DATA_RANDOM_CROP] = CONF_MAP_TRAINING,
        [DATA_CENTER_CROP] = CONF_MAP_EVALUATION,       [DATA_FLIP] = CONF_MAP_TRAINING,
        [DATA_COLOR_JITTER] = CONF_MAP_TRAINING,        [DATA_NORMALIZE] = CONF_MAP_ALWAYS,
    };
    const cJSON *map = value_at(k->doc, "/data/map");

    for (uint32_t i = 0; i < k->c->samples.n_map; i++) {
        const cJSON *step = cJSON_GetArrayItem(map, (int)i);
        struct conf_map *m = &k->c->samples.map[i];
        const struct data_step *s = &m->step;
        int rc = check_feature(k, cJSON_GetObjectItemCaseSensitive(step, "feature"), m->feature);

        if (rc < 0)
            return rc;
        if (cJSON_GetObjectItemCaseSensitive(step, "when") == NULL)
            m->when = whens[m->step.op];
        if (s->scale[0] > s->scale[1] || s->ratio[0] > s->ratio[1])
            return json_error(k->doc, step, k->err, "%s is above %s",
                              s->scale[0] > s->scale[1] ? "min_area" : "min_ratio",
                              s->scale[0] > s->scale[1] ? "max_area" : "max_ratio");
        if (m->n_mean != m->n_std)
            return json_error(
                k->doc, step, k->err,
                "expected as many values of mean as of std, one for each channel, found %" PRIu32
                " and %" PRIu32,
                m->n_mean, m->n_std);
    }
    return 0;
}

static int check_csv(const struct checker *k)
{
    struct conf *c = k->c;

    if (c->data.origin.format != DATA_CSV)
        return 0;
    if (c->samples.csv_delimiter == NULL)
        c->samples.csv_delimiter = ",";
    if (strlen(c->samples.csv_delimiter) == 1 &&
        strchr("\"\r\n", c->samples.csv_delimiter[0]) == NULL)
        return 0;
    return json_error(k->doc, value_at(k->doc, "/data/csv/delimiter"), k->err,
                      "expected one character that is neither a quote nor a line end");
}

/* Without /train/lanes the product of the factors is the number of lanes. */
static int check_lane_tree(const struct checker *k)
{
    struct conf *c = k->c;
    uint32_t n = c->train.n_lane_tree, lanes = 1;
    struct lane_tree tree;
    struct err why;

    if (n == 0)
        return 0;
    if (lane_tree_make(c->train.lane_tree, n, &tree, &why) < 0)
        return json_error(k->doc, value_at(k->doc, "/train/lane_tree"), k->err, "%s", why.text);
    for (uint32_t i = 0; i < n; i++)
        lanes *= c->train.lane_tree[i];
    if (c->train.lanes == 0)
        c->train.lanes = lanes;
    if (c->train.lanes == lanes)
        return 0;
    return json_error(k->doc, value_at(k->doc, "/train/lane_tree"), k->err,
                      "the product of the factors is %" PRIu32 ", but /train/lanes is %" PRIu32
                      ": use factors of %" PRIu32 ", or remove /train/lanes",
                      lanes, c->train.lanes, c->train.lanes);
}

static int check_lanes(const struct checker *k)
{
    uint32_t lanes = k->c->train.lanes, batch = k->c->train.global_batch_size;

    if (lanes == 0 || batch % lanes == 0)
        return 0;
    return json_error(k->doc, value_at(k->doc, "/train/global_batch_size"), k->err,
                      "%" PRIu32 " samples cannot be divided equally among %" PRIu32
                      " lanes (/train/lanes): use a multiple of the lanes, such as %" PRIu64,
                      batch, lanes, ((uint64_t)batch / lanes + 1) * lanes);
}

/* Scales must be powers of two, because a multiplication by a power of two is exact. */
static int check_scale(const struct checker *k)
{
    const struct conf *c = k->c;
    const struct {
        const char *pointer;
        double value, lowest, highest;
    } rows[] = {
        { "/train/loss_scale/min_scale", c->run.loss_scale.min, 0, c->run.loss_scale.max },
        { "/train/loss_scale/max_scale", c->run.loss_scale.max, 0, INFINITY },
        { "/train/loss_scale/initial_scale", c->run.loss_scale.initial, c->run.loss_scale.min,
          c->run.loss_scale.max },
    };

    for (size_t i = 0; i < COUNT_OF(rows) && c->run.precision == PLAN_FLOAT16; i++) {
        const cJSON *value = value_at(k->doc, rows[i].pointer);
        int e;
        double fraction = frexp(rows[i].value, &e);

        if (value == NULL) /* a default that contradicts a given value */
            value = value_at(k->doc, "/train/loss_scale");
        if (fraction != 0.5)
            return json_error(k->doc, value, k->err,
                              "expected a power of two, such as %g, found %g", ldexp(1, e),
                              rows[i].value);
        if (rows[i].value < rows[i].lowest || rows[i].value > rows[i].highest)
            return json_error(k->doc, value, k->err,
                              "%s is %.10g: expected min_scale <= initial_scale <= max_scale, "
                              "found %.10g, %.10g and %.10g",
                              strrchr(rows[i].pointer, '/') + 1, rows[i].value,
                              c->run.loss_scale.min, c->run.loss_scale.initial,
                              c->run.loss_scale.max);
    }
    return 0;
}

static int check_warmup(const struct checker *k)
{
    uint64_t warmup = k->c->optimizer.schedule.warmup_steps, steps = k->c->run.steps;

    if (steps == 0 || warmup <= steps) /* with epochs, the number of steps depends on the data */
        return 0;
    return json_error(k->doc, value_at(k->doc, "/optimizer/schedule/warmup_steps"), k->err,
                      "%" PRIu64 " steps of warm-up are more than the %" PRIu64 " of /train/steps",
                      warmup, steps);
}

/* Checks that the optimizer has a momentum or beta1, and that base_momentum is not above it. */
static int check_cycle(const struct checker *k)
{
    static const struct {
        const char *key;
        size_t at;
    } moves[] = { { "momentum", offsetof(struct conf, optimizer.hyper.momentum) },
                  { "beta1", offsetof(struct conf, optimizer.hyper.beta1) } };
    const cJSON *value = value_at(k->doc, "/optimizer/schedule/base_momentum");
    double base = k->c->optimizer.schedule.base_momentum;

    for (size_t i = 0; base > 0 && i < COUNT_OF(moves); i++) {
        double own = *(const double *)((const char *)k->c + moves[i].at);

        if (!conf_key_applies(conf_key_find("/optimizer", moves[i].key), k->c))
            continue;
        if (base <= own)
            return 0;
        return json_error(k->doc, value, k->err, "%g is above the optimizer's \"%s\", which is %g",
                          base, moves[i].key, own);
    }
    return base > 0 ? json_error(
                          k->doc, value, k->err,
                          "this optimizer has neither \"momentum\" nor \"beta1\" that could cycle")
                    : 0;
}

static int check_waits(const struct checker *k)
{
    const struct conf *c = k->c;
    double deadline = c->train.deadline_seconds, factor = c->health.stuck_factor;

    if (c->elastic.rejoin_seconds > deadline)
        return json_error(
            k->doc, value_at(k->doc, "/elastic/rejoin_seconds"), k->err,
            "expected at most %g s, after which the job ends (/train/deadline_seconds), found %g",
            deadline, c->elastic.rejoin_seconds);
    if (c->detection.silent_seconds >= deadline)
        return json_error(
            k->doc, value_at(k->doc, "/detection/silent_seconds"), k->err,
            "expected less than %g s, after which the job ends (/train/deadline_seconds), "
            "found %g",
            deadline, c->detection.silent_seconds);
    if (factor > 0 && factor < 2)
        return json_error(k->doc, value_at(k->doc, "/detection/stuck_factor"), k->err,
                          "steps of a healthy task differ by more than a factor of %g: expected at "
                          "least 2, or 0 to disable the check",
                          factor);
    return 0;
}

static int check_advice(const struct checker *k)
{
    double spread = k->c->advice.at[ADVICE_LANE_SPREAD];

    if (spread > 0 && spread <= 1)
        return json_error(k->doc, value_at(k->doc, "/health/advice/lane_spread"), k->err,
                          "the slowest task is never faster than the median: expected more than 1, or 0 "
                          "for no warning, found %g",
                          spread);
    return 0;
}

/* Checks that evaluators can compute the metric, and that no evaluator removes checkpoints of the
 * job. */
static int check_evaluator(const struct checker *k)
{
    const struct conf *c = k->c;
    const char *directory = c->evaluator.directory;
    uint32_t i = 0;

    while (i < c->objective.n_metrics && c->objective.metrics[i] != c->evaluator.metric)
        i++;
    if (c->evaluator.metric != TRAIN_METRICS && i == c->objective.n_metrics)
        return json_error(k->doc, value_at(k->doc, "/evaluator/metric"), k->err,
                          "this metric is not computed: add it to /model/metrics, or use \"loss\"");
    if (directory != NULL && c->checkpoint.directory != NULL &&
        strcmp(directory, c->checkpoint.directory) == 0)
        return json_error(k->doc, value_at(k->doc, "/evaluator/directory"), k->err,
                          "this is /checkpoint/directory: name another folder, in which the evaluator "
                          "keeps one checkpoint");
    return 0;
}

/* Checks that either both names have one '*', which stands for the same text, or none. */
static int check_weights_names(const struct checker *k)
{
    const cJSON *names = value_at(k->doc, "/model/weights_names");

    for (uint32_t i = 0; i < k->c->model.n_weights_names; i++) {
        const struct graph_rename *r = &k->c->model.weights_names[i];
        const char *left = strchr(r->graph, '*'), *right = strchr(r->file, '*');

        if ((left != NULL && strchr(left + 1, '*') != NULL) ||
            (right != NULL && strchr(right + 1, '*') != NULL) || (left == NULL) != (right == NULL))
            return json_error(k->doc, cJSON_GetObjectItemCaseSensitive(names, r->graph), k->err,
                              "expected one * on each side, or none on either, as in "
                              "{\"*\": \"model.*\"}");
    }
    return 0;
}

/* Checks that the keys on which other keys depend are given. */
static int check_needs(const struct checker *k)
{
    const struct conf *c = k->c;
    const struct {
        const char *pointer;
        bool is_used;
        const char *needed;
        bool is_given;
    } rows[] = {
        { "/model/metrics", c->objective.n_metrics > 0, "/data/eval", c->data.eval != NULL },
        { "/model/weights_names", c->model.n_weights_names > 0, "/model/weights",
          c->model.weights != NULL },
        { "/model/weights_fresh", c->model.n_weights_fresh > 0, "/model/weights",
          c->model.weights != NULL },
        { "/export/dtype", c->export.dtype != TENSOR_F32, "/export/safetensors",
          c->export.safetensors != NULL },
        { "/train/eval_every_epochs", c->run.eval_every_epochs > 0, "/data/eval",
          c->data.eval != NULL },
        { "/optimizer/schedule/type", c->optimizer.schedule.type == OPTIM_PLATEAU, "/data/eval",
          c->data.eval != NULL },
        { "/evaluator/directory", c->evaluator.directory != NULL, "/checkpoint/directory",
          c->checkpoint.directory != NULL },
        { "/checkpoint/every_steps", c->checkpoint.every_steps > 0, "/checkpoint/directory",
          c->checkpoint.directory != NULL },
        { "/checkpoint/every_seconds", c->checkpoint.every_seconds > 0, "/checkpoint/directory",
          c->checkpoint.directory != NULL },
    };

    for (size_t i = 0; i < COUNT_OF(rows); i++)
        if (rows[i].is_used && !rows[i].is_given)
            return json_error(k->doc, value_at(k->doc, rows[i].pointer), k->err,
                              "this needs %s, which is not given", rows[i].needed);
    return 0;
}

/* With all parameters on ps tasks no table is selected. */
static int check_ps_tables(const struct checker *k)
{
    const struct ps_settings *p = &k->c->ps;

    if (!k->c->has_ps || !ps_wants_dense(p) || p->tables == PS_TABLES_AUTO)
        return 0;
    return json_error(
        k->doc, value_at(k->doc, "/parameter_server/tables"), k->err,
        "with /parameter_server/dense \"ps\" all tables are on ps tasks: remove this key");
}

/* Checks what dynamic tables need, and refuses what this version does not support with them. */
static int check_dynamic(const struct checker *k)
{
    const struct conf *c = k->c;
    const cJSON *tables = value_at(k->doc, "/model/tables");

    for (uint32_t i = 0; i < c->model.n_tables; i++) {
        const struct graph_table *t = &c->model.tables[i];
        const cJSON *table = cJSON_GetObjectItemCaseSensitive(tables, t->name);

        if (t->size != TABLE_DYNAMIC)
            continue;
        if (!c->has_ps)
            return json_error(k->doc, cJSON_GetObjectItemCaseSensitive(table, "rows"), k->err,
                              "only ps tasks keep dynamic tables: add the section parameter_server, and start "
                              "the job with at least one ps task, or write a number of rows");
        if (c->ps.staleness > 0 && c->ps.staleness_kind == PS_STALENESS_EXACT)
            return json_error(k->doc, value_at(k->doc, "/parameter_server/staleness"), k->err,
                              "table '%s' of /model/tables is dynamic, and parameter servers keep no older "
                              "versions of such rows: write 0, or a number of rows", t->name);
        if (t->max_rows > 0 && t->max_rows < 1024)
            return json_error(k->doc, cJSON_GetObjectItemCaseSensitive(table, "max_rows"), k->err,
                              "each of 1024 shards has an equal part of the rows: expected 0 (no limit), or at "
                              "least 1024, found %" PRIu64, t->max_rows);
        if (c->export.safetensors != NULL)
            return json_error(k->doc, value_at(k->doc, "/export/safetensors"), k->err,
                              "table '%s' of /model/tables is dynamic, and its rows are not exported to one file: "
                              "remove this key, and join the last checkpoint with `trainerctl convert`, which "
                              "writes ids and rows as safetensors", t->name);
    }
    return 0;
}

static int check_phases(const struct checker *k)
{
    return conf_check_phases(k->doc, k->c, k->err);
}

static int check_compression(const struct checker *k)
{
    return conf_check_compression(k->doc, k->c, k->err);
}

static int check_deterministic(const struct checker *k)
{
    return conf_check_deterministic(k->doc, k->c, k->err);
}

int conf_check(const struct json *doc, struct conf *c, struct err *err)
{
    static int (*const checks[])(const struct checker *) = {
        derive,      derive_groups, check_losses, check_metrics, check_inputs, check_shapes,
        check_map,   check_derived, check_csv,    check_lane_tree, check_lanes,   check_warmup, check_needs,
        check_cycle, check_waits,   check_advice, check_weights_names, check_scale,
        check_evaluator, check_ps_tables, check_dynamic, check_phases, check_compression,
        check_deterministic,
    };
    const struct checker k = { doc, c, err };

    for (size_t i = 0; i < COUNT_OF(checks); i++) {
        int rc = checks[i](&k);

        if (rc < 0)
            return rc;
    }
    return 0;
}
