/* summary_run.c - see summary_run.h. The messages are built in an arena and packed for each file.
 *
 * Three events: a GraphDef, and two summaries of the plugin hparams whose tags and empty tensor are
 * those that the plugin expects: the experiment (which columns exist) and the session (its values). */
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/buf.h"
#include "base/vec.h"
#include "metrics/summary_priv.h"
#include "proto/summary.pb-c.h"

enum { HPARAM_STRING = 1, HPARAM_BOOL = 2, HPARAM_NUMBER = 3 }; /* HParamInfo.type */
enum { METRIC_TRAINING = 1, METRIC_VALIDATION = 2 };            /* MetricInfo.dataset_type */
enum { FLOAT = 1 };                                             /* TensorProto.dtype */

struct summary_run {
    struct arena mem;
    bool failed;
    char *name;
    VEC(Tensorflow__HParamInfo *) infos;
    VEC(Tensorflow__SessionStartInfo__HParamsEntry *) values;
    VEC(Tensorflow__MetricInfo *) metrics;
    VEC(Tensorflow__NodeDef *) nodes;
};

struct summary_run *summary_run_new(const char *name)
{
    struct summary_run *run = calloc(1, sizeof(*run));

    if (run == NULL)
        return NULL;
    run->name = arena_strdup(&run->mem, name);
    run->failed = run->name == NULL;
    return run;
}

void summary_run_free(struct summary_run *run)
{
    if (run == NULL)
        return;
    VEC_FINI(run->infos);
    VEC_FINI(run->values);
    VEC_FINI(run->metrics);
    VEC_FINI(run->nodes);
    arena_fini(&run->mem);
    free(run);
}

bool summary_run_failed(const struct summary_run *run)
{
    return run->failed;
}

/* ---- building; a failed run builds nothing more ---- */

static char *copy(struct summary_run *run, const char *s)
{
    char *c = run->failed ? NULL : arena_strdup(&run->mem, s);

    run->failed = c == NULL;
    return c;
}

static void *allocate(struct summary_run *run, size_t n, size_t size)
{
    void *p = run->failed ? NULL : arena_array(&run->mem, n > 0 ? n : 1, size);

    run->failed = p == NULL;
    return p;
}

/* Adds a hyper-parameter; returns its value, which the caller sets, or NULL. */
static Tensorflow__HParamValue *add_value(struct summary_run *run, const char *name, int type)
{
    Tensorflow__HParamInfo *info = allocate(run, 1, sizeof(*info));
    Tensorflow__SessionStartInfo__HParamsEntry *entry = allocate(run, 1, sizeof(*entry));
    Tensorflow__HParamValue *value = allocate(run, 1, sizeof(*value));
    char *key = copy(run, name);

    if (run->failed)
        return NULL;
    tensorflow__hparam_info__init(info);
    tensorflow__session_start_info__hparams_entry__init(entry);
    tensorflow__hparam_value__init(value);
    info->name = entry->key = key;
    info->type = type;
    entry->value = value;
    run->failed = !VEC_PUSH(run->infos, info) || !VEC_PUSH(run->values, entry);
    return run->failed ? NULL : value;
}

void summary_run_number(struct summary_run *run, const char *name, double number)
{
    Tensorflow__HParamValue *v = add_value(run, name, HPARAM_NUMBER);

    if (v == NULL)
        return;
    v->kind_case = TENSORFLOW__HPARAM_VALUE__KIND_NUMBER_VALUE;
    v->number_value = number;
}

void summary_run_text(struct summary_run *run, const char *name, const char *text)
{
    Tensorflow__HParamValue *v = add_value(run, name, HPARAM_STRING);

    if (v == NULL)
        return;
    v->kind_case = TENSORFLOW__HPARAM_VALUE__KIND_STRING_VALUE;
    v->string_value = copy(run, text);
}

void summary_run_flag(struct summary_run *run, const char *name, bool flag)
{
    Tensorflow__HParamValue *v = add_value(run, name, HPARAM_BOOL);

    if (v == NULL)
        return;
    v->kind_case = TENSORFLOW__HPARAM_VALUE__KIND_BOOL_VALUE;
    v->bool_value = flag;
}

void summary_run_metric(struct summary_run *run, const char *tag, bool is_of_evaluation)
{
    Tensorflow__MetricInfo *metric = allocate(run, 1, sizeof(*metric));
    Tensorflow__MetricInfo__MetricName *name = allocate(run, 1, sizeof(*name));
    char *text = copy(run, tag);

    if (run->failed)
        return;
    tensorflow__metric_info__init(metric);
    tensorflow__metric_info__metric_name__init(name);
    name->tag = text;
    metric->name = name;
    metric->dataset_type = is_of_evaluation ? METRIC_VALIDATION : METRIC_TRAINING;
    run->failed = !VEC_PUSH(run->metrics, metric);
}

static Tensorflow__TensorShape *make_shape(struct summary_run *run, const int64_t *dims,
                                           uint32_t rank)
{
    Tensorflow__TensorShape *shape = allocate(run, 1, sizeof(*shape));
    Tensorflow__TensorShape__Dim *each = allocate(run, rank, sizeof(*each));
    Tensorflow__TensorShape__Dim **list = allocate(run, rank, sizeof(*list));

    if (run->failed)
        return NULL;
    tensorflow__tensor_shape__init(shape);
    for (uint32_t i = 0; i < rank; i++) {
        tensorflow__tensor_shape__dim__init(&each[i]);
        each[i].size = dims[i];
        list[i] = &each[i];
    }
    shape->n_dim = rank;
    shape->dim = list;
    return shape;
}

/* Adds an attribute to a node, whose array of attributes has room; returns its value. */
static Tensorflow__AttrValue *add_attr(struct summary_run *run, Tensorflow__NodeDef *node,
                                       char *key)
{
    Tensorflow__NodeDef__AttrEntry *entry = allocate(run, 1, sizeof(*entry));
    Tensorflow__AttrValue *value = allocate(run, 1, sizeof(*value));

    if (run->failed)
        return NULL;
    tensorflow__node_def__attr_entry__init(entry);
    tensorflow__attr_value__init(value);
    entry->key = key;
    entry->value = value;
    node->attr[node->n_attr++] = entry;
    return value;
}

static void add_attrs(struct summary_run *run, const struct summary_node *from,
                      Tensorflow__NodeDef *node)
{
    static char output_shapes[] = "_output_shapes", dtype[] = "dtype";
    Tensorflow__AttrValue *value;

    if (from->has_shape && (value = add_attr(run, node, output_shapes)) != NULL) {
        Tensorflow__AttrValue__ListValue *list = allocate(run, 1, sizeof(*list));
        Tensorflow__TensorShape **shapes = allocate(run, 1, sizeof(Tensorflow__TensorShape *));
        Tensorflow__TensorShape *shape = make_shape(run, from->dims, from->rank);

        if (run->failed)
            return;
        tensorflow__attr_value__list_value__init(list);
        shapes[0] = shape;
        list->n_shape = 1;
        list->shape = shapes;
        value->value_case = TENSORFLOW__ATTR_VALUE__VALUE_LIST;
        value->list = list;
    }
    if (from->dtype != NULL && (value = add_attr(run, node, dtype)) != NULL) {
        char *text = copy(run, from->dtype);

        value->value_case = TENSORFLOW__ATTR_VALUE__VALUE_S;
        value->s.data = (uint8_t *)text;
        value->s.len = text != NULL ? strlen(text) : 0;
    }
}

void summary_run_node(struct summary_run *run, const struct summary_node *from)
{
    enum { ATTRS = 2 };
    Tensorflow__NodeDef *node = allocate(run, 1, sizeof(*node));
    char **inputs = allocate(run, from->n_inputs, sizeof(*inputs));
    Tensorflow__NodeDef__AttrEntry **attrs =
        allocate(run, ATTRS, sizeof(Tensorflow__NodeDef__AttrEntry *));
    char *name = copy(run, from->name), *op = copy(run, from->op);

    if (run->failed)
        return;
    tensorflow__node_def__init(node);
    for (uint32_t i = 0; i < from->n_inputs; i++)
        inputs[i] = copy(run, from->inputs[i]);
    node->name = name;
    node->op = op;
    node->n_input = from->n_inputs;
    node->input = inputs;
    node->attr = attrs;
    add_attrs(run, from, node);
    run->failed = run->failed || !VEC_PUSH(run->nodes, node);
}

/* ---- encoding ---- */

static void pack(const ProtobufCMessage *m, struct buf *out)
{
    size_t n = protobuf_c_message_get_packed_size(m);
    uint8_t *data = malloc(n > 0 ? n : 1);

    if (data == NULL) {
        out->failed = true;
        return;
    }
    protobuf_c_message_pack(m, data);
    buf_add(out, data, n);
    free(data);
}

static void add_event(const Tensorflow__Event *e, struct buf *out)
{
    struct buf packed = { 0 };

    pack(&e->base, &packed);
    if (packed.failed)
        out->failed = true;
    else
        summary_add_record(out, packed.data, (uint32_t)packed.len);
    buf_fini(&packed);
}

static void add_graph(const struct summary_run *run, double wall_time, struct buf *out)
{
    Tensorflow__GraphDef graph = TENSORFLOW__GRAPH_DEF__INIT;
    Tensorflow__VersionDef versions = TENSORFLOW__VERSION_DEF__INIT;
    Tensorflow__Event e = TENSORFLOW__EVENT__INIT;
    struct buf packed = { 0 };

    if (run->nodes.n == 0)
        return;
    versions.producer = 22;
    graph.versions = &versions;
    graph.n_node = run->nodes.n;
    graph.node = run->nodes.at;
    pack(&graph.base, &packed);
    e.wall_time = wall_time;
    e.what_case = TENSORFLOW__EVENT__WHAT_GRAPH_DEF;
    e.graph_def.data = (uint8_t *)packed.data;
    e.graph_def.len = packed.len;
    if (packed.failed)
        out->failed = true;
    else
        add_event(&e, out);
    buf_fini(&packed);
}

static void add_hparams(const Tensorflow__HParamsPluginData *data, char *tag, double wall_time,
                        struct buf *out)
{
    static char plugin[] = "hparams";
    Tensorflow__TensorShape__Dim none = TENSORFLOW__TENSOR_SHAPE__DIM__INIT, *dims[] = { &none };
    Tensorflow__TensorShape shape = TENSORFLOW__TENSOR_SHAPE__INIT;
    Tensorflow__TensorProto empty = TENSORFLOW__TENSOR_PROTO__INIT;
    Tensorflow__SummaryMetadata__PluginData content =
        TENSORFLOW__SUMMARY_METADATA__PLUGIN_DATA__INIT;
    Tensorflow__SummaryMetadata metadata = TENSORFLOW__SUMMARY_METADATA__INIT;
    Tensorflow__Summary__Value value = TENSORFLOW__SUMMARY__VALUE__INIT, *values[] = { &value };
    Tensorflow__Summary summary = TENSORFLOW__SUMMARY__INIT;
    Tensorflow__Event e = TENSORFLOW__EVENT__INIT;
    struct buf packed = { 0 };

    pack(&data->base, &packed);
    shape.n_dim = 1;
    shape.dim = dims;
    empty.dtype = FLOAT;
    empty.tensor_shape = &shape;
    content.plugin_name = plugin;
    content.content.data = (uint8_t *)packed.data;
    content.content.len = packed.len;
    metadata.plugin_data = &content;
    value.tag = tag;
    value.metadata = &metadata;
    value.value_case = TENSORFLOW__SUMMARY__VALUE__VALUE_TENSOR;
    value.tensor = &empty;
    summary.n_value = 1;
    summary.value = values;
    e.wall_time = wall_time;
    e.what_case = TENSORFLOW__EVENT__WHAT_SUMMARY;
    e.summary = &summary;
    if (packed.failed)
        out->failed = true;
    else
        add_event(&e, out);
    buf_fini(&packed);
}

void summary_run_encode(const struct summary_run *run, uint64_t wall_us, struct buf *out)
{
    static char experiment_tag[] = "_hparams_/experiment",
                session_tag[] = "_hparams_/session_start_info";
    Tensorflow__Experiment experiment = TENSORFLOW__EXPERIMENT__INIT;
    Tensorflow__SessionStartInfo session = TENSORFLOW__SESSION_START_INFO__INIT;
    Tensorflow__HParamsPluginData data = TENSORFLOW__HPARAMS_PLUGIN_DATA__INIT;
    double wall_time = (double)wall_us / 1e6;

    add_graph(run, wall_time, out);
    experiment.name = run->name;
    experiment.time_created_secs = wall_time;
    experiment.n_hparam_infos = run->infos.n;
    experiment.hparam_infos = run->infos.at;
    experiment.n_metric_infos = run->metrics.n;
    experiment.metric_infos = run->metrics.at;
    data.data_case = TENSORFLOW__HPARAMS_PLUGIN_DATA__DATA_EXPERIMENT;
    data.experiment = &experiment;
    add_hparams(&data, experiment_tag, wall_time, out);
    /* without group_name: sessions of one group count as repetitions with equal values */
    session.n_hparams = run->values.n;
    session.hparams = run->values.at;
    session.start_time_secs = wall_time;
    data.data_case = TENSORFLOW__HPARAMS_PLUGIN_DATA__DATA_SESSION_START_INFO;
    data.session_start_info = &session;
    add_hparams(&data, session_tag, wall_time, out);
}
