/* settle_evaluator.c - the options of an evaluator task, and what its training options lack: it reads
 * checkpoints and never writes or exports the state. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/fs.h"
#include "daemon/settle.h"

/* Evaluators other than the first add their index to the name of a folder. */
static int name_folder(const struct settled *s, const char *name, char out[4096], struct err *err)
{
    enum { ROOM = 4096 };
    uint32_t index = s->cluster->self->index;
    int n =
        index == 0 ? snprintf(out, ROOM, "%s", name) : snprintf(out, ROOM, "%s-%u", name, index);

    return n < ROOM ? 0
                    : err_set(err, ERR_INPUT,
                              "%s: the name of the folder '%.64s...' is longer than %d bytes",
                              s->task_name, name, ROOM - 1);
}

static int name_folders(struct settled *s, struct err *err)
{
    const struct conf *c = s->conf;
    char *parent = fs_dirname(c->checkpoint.directory);
    char *best = parent != NULL ? fs_join(parent, "best") : NULL;
    char *curves = c->summary.directory != NULL ? fs_join(c->summary.directory, "eval") : NULL;
    int rc;

    if (best == NULL || (c->summary.directory != NULL && curves == NULL))
        rc = err_set(err, ERR_NOMEM, "out of memory");
    else
        rc = name_folder(s, c->evaluator.directory != NULL ? c->evaluator.directory : best,
                         s->evaluator.directory, err);
    if (rc == 0 && curves != NULL)
        rc = name_folder(s, curves, s->evaluator.curves, err);
    if (rc == 0 && strcmp(s->evaluator.directory, c->checkpoint.directory) == 0)
        rc = err_set(err, ERR_INPUT, "%s: its folder '%s' is /checkpoint/directory: name another one in "
                                     "/evaluator/directory", s->task_name, s->evaluator.directory);
    free(parent);
    free(best);
    free(curves);
    return rc;
}

static bool higher_is_better(const struct conf *c)
{
    enum train_metric_type m = c->evaluator.metric;

    if (c->evaluator.mode != CONF_BEST_AUTO)
        return c->evaluator.mode == CONF_BEST_MAX;
    return m == TRAIN_METRIC_ACCURACY || m == TRAIN_METRIC_TOP_K_ACCURACY || m == TRAIN_METRIC_AUC;
}

static void settle_metric(struct settled *s)
{
    const struct conf *c = s->conf;
    struct settled_evaluator *e = &s->evaluator;

    e->metric = SETTLED_LOSS;
    e->metric_name = "loss";
    for (uint32_t i = 0; i < c->objective.n_metrics; i++)
        if (c->objective.metrics[i] == c->evaluator.metric) {
            e->metric = i;
            e->metric_name = s->train.metrics[i].name;
        }
    e->higher_is_better = higher_is_better(c);
}

void settled_print_evaluator(const struct settled *s, struct buf *out)
{
    const struct settled_evaluator *e = &s->evaluator;

    buf_str(out, ",\n  \"evaluator\": {\"follows\": ");
    buf_json(out, s->conf->checkpoint.directory);
    buf_str(out, ", \"directory\": ");
    buf_json(out, e->directory);
    buf_str(out, ", \"curves\": ");
    if (e->curves[0] != '\0')
        buf_json(out, e->curves);
    else
        buf_str(out, "null");
    buf_str(out, ", \"metric\": ");
    buf_json(out, e->metric_name);
    buf_printf(out, ", \"mode\": \"%s\", \"keeps_best\": %s}", e->higher_is_better ? "max" : "min",
               e->keeps_best ? "true" : "false");
}

int settle_evaluator(struct settled *s, struct err *err)
{
    struct train_opts *t = &s->train;

    if (!settled_is_evaluator(s))
        return 0;
    if (s->conf->checkpoint.directory == NULL)
        return err_set(err, ERR_INPUT, "/checkpoint/directory: %s follows it, and it is not given",
                       s->task_name);
    if (s->conf->data.eval == NULL)
        return err_set(err, ERR_INPUT, "/data/eval: %s evaluates on it, and it is not given",
                       s->task_name);
    for (uint32_t i = 0; i < t->model.n_tables; i++)
        if (t->model.tables[i].size == TABLE_DYNAMIC)
            return err_set(err, ERR_UNSUPPORTED,
                           "/model/tables/%s/rows: %s has no rows of ps tasks, which alone keep dynamic tables: "
                           "remove this task; the training tasks evaluate, or write a number of rows",
                           t->model.tables[i].name, s->task_name);
    /* It computes all lanes (micro-batches) alone, in the order of the group. */
    t->replicas = t->min_replicas = s->n_devices;
    t->only_evaluates = true;
    t->checkpoint = (struct train_checkpoint){ .directory = NULL };
    t->export = (struct train_export){ .onnx = NULL };
    t->trace = t->sample_log = NULL;
    s->evaluator.keeps_best = s->conf->evaluator.keep_best;
    settle_metric(s);
    return name_folders(s, err);
}
