/* settle_data.c - /data of the job as options of the data library. */
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/err.h"
#include "daemon/settle.h"

static struct data_step step_of(const struct conf_map *m)
{
    static const enum data_step_op ops[] = {
        [CONF_RANDOM_RESIZED_CROP] = DATA_RANDOM_RESIZED_CROP,
        [CONF_RANDOM_CROP] = DATA_RANDOM_CROP,
        [CONF_CENTER_CROP] = DATA_CENTER_CROP,
        [CONF_FLIP] = DATA_FLIP,
        [CONF_COLOR_JITTER] = DATA_COLOR_JITTER,
        [CONF_NORMALIZE] = DATA_NORMALIZE,
    };
    struct data_step step = {
        .op = ops[m->op],
        .in_training = m->when != CONF_MAP_EVALUATION,
        .in_evaluation = m->when != CONF_MAP_TRAINING,
        .scale = { m->min_area, m->max_area },
        .ratio = { m->min_ratio, m->max_ratio },
        .padding = m->padding,
        .fraction = m->fraction,
        .probability = m->probability,
        .brightness = m->brightness,
        .contrast = m->contrast,
        .saturation = m->saturation,
        .hue = m->hue,
    };

    for (uint32_t k = 0; k < DATA_CHANNELS_MAX; k++) {
        step.mean[k] = k < m->n_mean ? m->mean[k] : 0;
        step.std[k] = k < m->n_std ? m->std[k] : 1;
    }
    return step;
}

/* normalize has a value for each channel. */
static int check_channels(const struct conf_map *m, uint32_t i, const struct data_feature *f,
                          struct err *err)
{
    uint32_t rank = f->shape.rank;
    int64_t channels = rank == 3 ? f->shape.dim[f->channels_last ? 2 : 0] : 1;

    if (m->op != CONF_NORMALIZE || m->n_mean == channels)
        return 0;
    return err_set(err, ERR_INPUT,
                   "/data/map/%u/mean: %u values, and feature '%s' has %lld channels: one for each", i,
                   m->n_mean, f->name, (long long)channels);
}

static int settle_steps(struct settled *s, struct data_feature *f, struct data_step *to,
                        struct err *err)
{
    const struct conf *c = s->conf;

    f->steps = to;
    for (uint32_t i = 0; i < c->data.n_map; i++) {
        if (strcmp(c->data.map[i].feature, f->name) != 0)
            continue;
        if (check_channels(&c->data.map[i], i, f, err) < 0)
            return ERR_INPUT;
        to[f->n_steps++] = step_of(&c->data.map[i]);
    }
    return 0;
}

static struct data_feature feature_of(const struct conf_feature *f)
{
    static const enum tensor_dtype dtypes[] = {
        [CONF_FLOAT32] = TENSOR_F32, [CONF_INT64] = TENSOR_I64,   [CONF_INT32] = TENSOR_I32,
        [CONF_UINT8] = TENSOR_U8,    [CONF_UINT16] = TENSOR_U16, [CONF_UINT32] = TENSOR_U32,
    };
    static const enum data_derived ways[] = { DATA_LENGTH, DATA_SEGMENT, DATA_POSITION };
    const char *of[] = { f->length_of, f->segment_of, f->position_of };
    struct data_feature to = { .name = f->name,
                               .stored = dtypes[f->dtype],
                               .shape = { .rank = f->rank },
                               .scale = f->scale,
                               .offset = f->offset,
                               .pad = f->pad,
                               .truncate = f->truncate,
                               .pad_value = f->pad_value,
                               .column = f->column,
                               .encoded = f->encoded,
                               .channels_last = f->layout == CONF_CHANNELS_LAST };

    for (uint32_t i = 0; i < COUNT_OF(ways); i++)
        if (of[i] != NULL) {
            to.derived = ways[i];
            to.of = of[i];
        }
    to.rows = f->row_lengths != NULL  ? DATA_ROW_LENGTHS
              : f->row_splits != NULL ? DATA_ROW_SPLITS
                                      : DATA_NO_ROWS;
    to.rows_by = f->row_lengths != NULL ? f->row_lengths : f->row_splits;
    for (uint32_t d = 0; d < f->rank; d++)
        to.shape.dim[d] = f->shape[d];
    return to;
}

static int settle_parts(struct settled *s, struct err *err)
{
    const struct conf *c = s->conf;
    struct train_opts *t = &s->train;

    t->train_glob = c->data.train;
    t->eval_glob = c->data.eval;
    if (c->data.n_mixture == 0)
        return 0;
    s->parts = calloc(c->data.n_mixture, sizeof(*s->parts));
    if (s->parts == NULL)
        return err_set(err, ERR_NOMEM, "out of memory");
    for (uint32_t i = 0; i < c->data.n_mixture; i++)
        s->parts[i] = (struct data_part){ .glob = c->data.mixture[i].files,
                                          .weight = c->data.mixture[i].weight };
    t->parts = s->parts;
    t->n_parts = c->data.n_mixture;
    t->train_glob = s->parts[0].glob;
    return 0;
}

int settle_data(struct settled *s, struct err *err)
{
    static const enum data_format formats[] = { [CONF_FORMAT_TFRECORD] = DATA_TFRECORD,
                                                [CONF_FORMAT_CSV] = DATA_CSV,
                                                [CONF_FORMAT_NPY] = DATA_NPY,
                                                [CONF_FORMAT_TOKENS] = DATA_TOKENS };
    const struct conf *c = s->conf;
    struct train_opts *t = &s->train;
    struct data_step *to;
    int rc = settle_parts(s, err);

    s->steps = to = calloc(c->data.n_map + 1, sizeof(*s->steps));
    if (rc == 0 && to == NULL)
        rc = err_set(err, ERR_NOMEM, "out of memory");
    for (uint32_t i = 0; rc == 0 && i < c->data.n_features; i++) {
        s->features[i] = feature_of(&c->data.features[i]);
        rc = settle_steps(s, &s->features[i], to, err);
        to += s->features[i].n_steps;
    }
    t->format = formats[c->data.format];
    t->csv_header = c->data.csv.header;
    t->csv_delimiter = c->data.csv.delimiter != NULL ? c->data.csv.delimiter[0] : '\0';
    t->features = s->features;
    t->n_features = c->data.n_features;
    t->pack = c->data.pack;
    t->shuffle = c->data.shuffle;
    t->skip_bad = c->data.on_bad_record == CONF_BAD_SKIP;
    t->cache_memory = c->data.cache == CONF_CACHE_MEMORY;
    t->cache_directory = c->data.cache == CONF_CACHE_DISK ? c->data.cache_directory : NULL;
    t->pad = c->data.remainder == CONF_REMAINDER_PAD;
    t->index_directory = c->data.index_directory;
    t->data_threads = c->data.threads;
    t->prefetch = c->data.prefetch;
    t->data_deadline_ms = (uint64_t)(c->train.deadline_seconds * 1000);
    return rc;
}
