/* settle_data.c - /data of the job as options of the data library. */
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/err.h"
#include "daemon/settle.h"

static struct data_step step_of(const struct conf_map *m)
{
    struct data_step step = m->step;

    step.in_training = m->when != CONF_MAP_EVALUATION;
    step.in_evaluation = m->when != CONF_MAP_TRAINING;
    for (uint32_t k = m->n_std; k < DATA_CHANNELS_MAX; k++)
        step.std[k] = 1; /* channels that the image does not have */
    return step;
}

/* normalize has a value for each channel. */
static int check_channels(const struct conf_map *m, uint32_t i, const struct data_feature *f,
                          struct err *err)
{
    uint32_t rank = f->shape.rank;
    int64_t channels = rank == 3 ? f->shape.dim[f->channels_last ? 2 : 0] : 1;

    if (m->step.op != DATA_NORMALIZE || m->n_mean == channels)
        return 0;
    return err_set(err, ERR_INPUT,
                   "/data/map/%u/mean: %u values, and feature '%s' has %lld channels: one for each",
                   i, m->n_mean, f->name, (long long)channels);
}

static int settle_steps(struct settled *s, struct data_feature *f, struct data_step *to,
                        struct err *err)
{
    const struct conf *c = s->conf;

    f->steps = to;
    for (uint32_t i = 0; i < c->samples.n_map; i++) {
        if (strcmp(c->samples.map[i].feature, f->name) != 0)
            continue;
        if (check_channels(&c->samples.map[i], i, f, err) < 0)
            return ERR_INPUT;
        to[f->n_steps++] = step_of(&c->samples.map[i]);
    }
    return 0;
}

static struct data_feature feature_of(const struct conf_feature *f)
{
    const struct {
        enum data_derived derived;
        const char *of;
    } ways[] = { { DATA_LENGTH, f->length_of },
                 { DATA_SEGMENT, f->segment_of },
                 { DATA_POSITION, f->position_of } };
    struct data_feature to = f->data;

    for (uint32_t i = 0; i < COUNT_OF(ways); i++)
        if (ways[i].of != NULL) {
            to.derived = ways[i].derived;
            to.of = ways[i].of;
        }
    to.rows = f->row_lengths != NULL  ? DATA_ROW_LENGTHS
              : f->row_splits != NULL ? DATA_ROW_SPLITS
                                      : DATA_NO_ROWS;
    to.rows_by = f->row_lengths != NULL ? f->row_lengths : f->row_splits;
    return to;
}

int settle_data(struct settled *s, struct err *err)
{
    const struct conf *c = s->conf;
    struct train_opts *t = &s->train;
    struct data_step *to = calloc(c->samples.n_map + 1, sizeof(*s->arrays.steps));
    int rc = 0;

    s->arrays.steps = to;
    if (to == NULL)
        return err_set(err, ERR_NOMEM, "out of memory");
    for (uint32_t i = 0; rc == 0 && i < c->samples.n_features; i++) {
        s->arrays.features[i] = feature_of(&c->samples.features[i]);
        rc = settle_steps(s, &s->arrays.features[i], to, err);
        to += s->arrays.features[i].n_steps;
    }
    t->data = c->data;
    if (c->samples.csv_delimiter != NULL)
        t->data.origin.csv_delimiter = c->samples.csv_delimiter[0];
    if (c->data.origin.n_parts > 0)
        t->data.train = c->data.origin.parts[0].glob;
    t->features = s->arrays.features;
    t->n_features = c->samples.n_features;
    t->data_deadline_ms = (uint64_t)(c->train.deadline_seconds * 1000);
    return rc;
}
