/* describe_run.c - see describe_run.h. */
#include "daemon/describe_run.h"

#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/check.h"
#include "base/err.h"
#include "base/json.h"
#include "conf/job_print.h"
#include "daemon/settle.h"
#include "graph/graph.h"
#include "metrics/summary_run.h"

enum { NAME_BYTES = 192 };

/* Values that follow from the job and the cluster, in place of the keys of the job. */
struct resolved {
    const char *name;
    double value;
};

static void add_value(struct summary_run *run, const struct resolved *resolved, size_t n_resolved,
                      const char *name, const cJSON *value)
{
    for (size_t i = 0; i < n_resolved; i++)
        if (strcmp(resolved[i].name, name) == 0)
            return;
    if (cJSON_IsNumber(value))
        summary_run_number(run, name, value->valuedouble);
    else if (cJSON_IsBool(value))
        summary_run_flag(run, name, cJSON_IsTrue(value));
    else if (cJSON_IsString(value))
        summary_run_text(run, name, value->valuestring);
}

/* Adds the numbers, flags and words of an object and of the objects in it: "optimizer.schedule.type".
 * Lists are left out: the plugin has no type for them. */
static void add_object(struct summary_run *run, const struct resolved *resolved, size_t n_resolved,
                       const char *prefix, const cJSON *object)
{
    const cJSON *value;

    cJSON_ArrayForEach(value, object)
    {
        char name[NAME_BYTES];

        snprintf(name, sizeof(name), "%s%s%s", prefix, prefix[0] != '\0' ? "." : "", value->string);
        if (cJSON_IsObject(value))
            add_object(run, resolved, n_resolved, name, value);
        else
            add_value(run, resolved, n_resolved, name, value);
    }
}

static int add_job(const struct settled *s, struct summary_run *run, struct err *err)
{
    static const char *const objects[] = { "model", "train", "optimizer" };
    const struct resolved resolved[] = {
        { "optimizer.learning_rate", s->learning_rate },
        { "train.global_batch_size", s->lanes.global_batch },
        { "train.batch_size_per_replica", (double)s->lanes.global_batch / s->replicas },
        { "train.lanes", s->lanes.n },
    };
    struct buf text = { 0 };
    struct json *doc = NULL;
    int rc;

    conf_print_canonical(s->conf, &text);
    rc = text.failed ? err_set(err, ERR_NOMEM, "out of memory")
                     : json_parse("the resolved job", text.data, text.len, 0, &doc, err);
    buf_fini(&text);
    if (rc < 0)
        return rc;
    for (size_t i = 0; i < COUNT_OF(resolved); i++)
        summary_run_number(run, resolved[i].name, resolved[i].value);
    summary_run_number(run, "replicas", s->replicas);
    for (size_t i = 0; i < COUNT_OF(objects); i++)
        add_object(run, resolved, COUNT_OF(resolved), objects[i],
                   cJSON_GetObjectItemCaseSensitive(json_root(doc), objects[i]));
    json_free(doc);
    return 0;
}

static void add_metrics(const struct settled *s, struct summary_run *run)
{
    summary_run_metric(run, "loss", false);
    if (s->conf->data.eval == NULL)
        return;
    summary_run_metric(run, "eval/loss", true);
    for (uint32_t i = 0; i < s->train.n_metrics; i++) {
        char tag[NAME_BYTES];

        snprintf(tag, sizeof(tag), "eval/%s", s->train.metrics[i].name);
        summary_run_metric(run, tag, true);
    }
}

static void add_node(void *arg, const struct graph_described *from)
{
    struct summary_run *run = arg;

    summary_run_node(run, &(struct summary_node){
                              .name = from->name,
                              .op = from->op,
                              .inputs = from->inputs,
                              .n_inputs = from->n_inputs,
                              .dtype = from->dtype != TENSOR_NONE ? tensor_dtype_name(from->dtype) : NULL,
                              .has_shape = from->dtype != TENSOR_NONE && from->has_shape,
                              .dims = from->shape.dim,
                              .rank = (uint32_t)from->shape.rank });
}

int describe_run(const struct settled *s, const struct graph *g, struct summary_run **out,
                 struct err *err)
{
    struct summary_run *run = summary_run_new(s->conf->name);
    int rc = run != NULL ? add_job(s, run, err) : err_set(err, ERR_NOMEM, "out of memory");

    if (rc == 0) {
        add_metrics(s, run);
        rc = graph_describe(g, add_node, run, err);
    }
    if (rc == 0 && summary_run_failed(run))
        rc = err_set(err, ERR_NOMEM, "out of memory");
    if (rc < 0) {
        summary_run_free(run);
        return err_wrap(err, rc, "description of the run for TensorBoard");
    }
    *out = run;
    return 0;
}
