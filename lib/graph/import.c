/* import.c - from the bytes of a model to values and nodes.
 *
 * In this order: look at the bytes (scan.c), unpack, is it a model we can take at all, what ops
 * are missing (all of them in one message), initializers, inputs, nodes, outputs; then param.c
 * decides what trains. */
#include "graph/graph_priv.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/text.h"

enum {
    LIST_MAX = 12,     /* kinds of missing ops that a message lists */
    NODES_MAX = 20000, /* planning memory is quadratic; the largest networks have a fifth of it */
};

static const uint64_t default_max_bytes = (uint64_t)16 << 30;

struct importer {
    struct graph *g;
    const Onnx__GraphProto *proto;
    struct tensor_source src;
};

static int no_memory(struct err *err)
{
    return err_set(err, ERR_NOMEM, "out of memory");
}

static const char *text_or_empty(const char *s)
{
    return s != NULL ? s : "";
}

static bool is_onnx_domain(const char *domain)
{
    return domain == NULL || domain[0] == '\0' || strcmp(domain, "ai.onnx") == 0;
}

static bool is_constant(const Onnx__NodeProto *p)
{
    return is_onnx_domain(p->domain) && strcmp(text_or_empty(p->op_type), "Constant") == 0;
}

/* What messages call a node. */
static const char *node_name(const Onnx__NodeProto *p)
{
    size_t i;

    if (p->name != NULL && p->name[0] != '\0')
        return p->name;
    for (i = 0; i < p->n_output; i++)
        if (p->output[i][0] != '\0')
            return p->output[i];
    return "(no name)";
}

/* ---- the model as a whole ---- */

static int check_model(struct importer *im, struct err *err)
{
    const Onnx__ModelProto *m = im->g->model;
    int64_t opset = -1;
    size_t i;

    if (m->graph == NULL)
        return err_set(err, ERR_INPUT, "the file holds no graph: is it an ONNX model?");
    for (i = 0; i < m->n_opset_import; i++)
        if (is_onnx_domain(m->opset_import[i]->domain))
            opset = m->opset_import[i]->version;
    if (opset < 0)
        return err_set(err, ERR_INPUT, "the model does not say which opset of ai.onnx it uses");
    if (opset < GRAPH_OPSET_MIN || opset > GRAPH_OPSET_MAX)
        return err_set(err, ERR_UNSUPPORTED,
                       "the model uses opset %" PRId64 "; supported are %d to %d: export it with "
                       "opset_version=17, or convert it with onnx.version_converter",
                       opset, GRAPH_OPSET_MIN, GRAPH_OPSET_MAX);
    if (m->n_functions > 0)
        return err_set(err, ERR_UNSUPPORTED,
                       "the model defines %zu functions of its own; inline them first "
                       "(onnx.inliner.inline_local_functions, or export with dynamo=False)",
                       m->n_functions);
    if (m->graph->n_sparse_initializer > 0)
        return err_set(err, ERR_UNSUPPORTED,
                       "the model has %zu sparse initializers; store them "
                       "as dense ones",
                       m->graph->n_sparse_initializer);
    im->g->opset = (uint32_t)opset;
    im->proto = m->graph;
    return 0;
}

/* ---- ops ---- */

static const struct op_def *find_row(const struct graph *g, const Onnx__NodeProto *p)
{
    /* Our own domain is for the passes: a file cannot reach it. */
    if (!is_onnx_domain(p->domain))
        return NULL;
    return op_find(NULL, text_or_empty(p->op_type), g->opset);
}

static void list_supported(struct buf *out)
{
    const struct op_def *const *rows;
    size_t n, i, k;

    rows = op_all(&n);
    buf_str(out, "; supported are Constant");
    for (i = 0; i < n; i++) {
        bool again = false;

        for (k = 0; k < i && !again; k++)
            again = strcmp(rows[k]->name, rows[i]->name) == 0;
        if (!again && is_onnx_domain(rows[i]->domain))
            buf_printf(out, ", %s", rows[i]->name);
    }
}

struct missing {
    const char *op, *domain, *node;
    size_t n;
};

static void add_missing(struct missing *list, size_t *n, size_t *more, const Onnx__NodeProto *p)
{
    const char *op = text_or_empty(p->op_type), *domain = text_or_empty(p->domain);
    size_t i;

    for (i = 0; i < *n; i++)
        if (strcmp(list[i].op, op) == 0 && strcmp(list[i].domain, domain) == 0) {
            list[i].n++;
            return;
        }
    if (*n < LIST_MAX)
        list[(*n)++] = (struct missing){ .op = op, .domain = domain, .node = node_name(p), .n = 1 };
    else
        *more += 1;
}

static int check_ops(struct importer *im, struct err *err)
{
    struct missing list[LIST_MAX];
    struct buf text = { 0 };
    size_t n = 0, more = 0, i;
    int rc;

    for (i = 0; i < im->proto->n_node; i++)
        if (!is_constant(im->proto->node[i]) && find_row(im->g, im->proto->node[i]) == NULL)
            add_missing(list, &n, &more, im->proto->node[i]);
    if (n == 0)
        return 0;
    for (i = 0; i < n; i++)
        buf_printf(&text, "%s%s%s%.60s (%zu node%s, first '%.80s')", i > 0 ? ", " : "",
                   is_onnx_domain(list[i].domain) ? "" : list[i].domain,
                   is_onnx_domain(list[i].domain) ? "" : ".", list[i].op, list[i].n,
                   list[i].n > 1 ? "s" : "", list[i].node);
    if (more > 0)
        buf_printf(&text, " and %zu more nodes", more);
    list_supported(&text);
    rc = text.failed
             ? no_memory(err)
             : err_set(err, ERR_UNSUPPORTED, "ops that are not supported at opset %" PRIu32 ": %s",
                       im->g->opset, text.data);
    buf_fini(&text);
    return rc;
}

/* ---- values ---- */

static int add_value(struct graph *g, const char *name, struct graph_value v, uint32_t *out,
                     struct err *err)
{
    if (name == NULL || name[0] == '\0')
        return err_set(err, ERR_INPUT, "a tensor of the graph has no name");
    v.name = name;
    switch (map_put(&g->by_name, name, g->n_values)) {
    case MAP_NOMEM:
        return no_memory(err);
    case MAP_EXISTED:
        return err_set(err, ERR_INPUT, "two tensors of the graph are called '%s'", name);
    case MAP_NEW:
        break;
    }
    g->values[g->n_values] = v;
    *out = g->n_values++;
    return 0;
}

static const struct graph_value blank = { .initializer = GRAPH_NONE, .identity = GRAPH_NONE };

static int alloc_tables(struct importer *im, struct err *err)
{
    struct graph *g = im->g;
    const Onnx__GraphProto *p = im->proto;
    size_t values = p->n_initializer + p->n_input, nodes = 0, i;

    for (i = 0; i < p->n_node; i++) {
        values += p->node[i]->n_output;
        nodes += !is_constant(p->node[i]);
    }
    if (nodes > NODES_MAX)
        return err_set(err, ERR_UNSUPPORTED, "the graph has %zu nodes; supported are %d", nodes,
                       NODES_MAX);
    if (values >= GRAPH_NONE)
        return err_set(err, ERR_INPUT, "the graph has %zu tensors", values);
    g->values = arena_array(&g->mem, values, sizeof(*g->values));
    g->nodes = arena_array(&g->mem, p->n_node, sizeof(*g->nodes));
    g->inputs = arena_array(&g->mem, p->n_input, sizeof(*g->inputs));
    g->input_values = arena_array(&g->mem, p->n_input, sizeof(*g->input_values));
    g->outputs = arena_array(&g->mem, p->n_output, sizeof(*g->outputs));
    g->output_values = arena_array(&g->mem, p->n_output, sizeof(*g->output_values));
    if (g->values == NULL || g->nodes == NULL || g->inputs == NULL || g->input_values == NULL ||
        g->outputs == NULL || g->output_values == NULL)
        return no_memory(err);
    return 0;
}

static int read_initializers(struct importer *im, struct err *err)
{
    size_t i;
    int rc = 0;

    for (i = 0; i < im->proto->n_initializer && rc == 0; i++) {
        const Onnx__TensorProto *p = im->proto->initializer[i];
        struct graph_value v = blank;
        char what[160];
        uint32_t id;

        snprintf(what, sizeof(what), "initializer '%.120s'", text_or_empty(p->name));
        v.kind = VALUE_CONST;
        v.initializer = (uint32_t)i;
        rc = graph_read_tensor(&im->src, p, what, &v.tensor, err);
        if (rc == 0)
            rc = add_value(im->g, p->name, v, &id, err);
    }
    return rc;
}

/* Type and shape of an input or output. A dimension with a name or nothing is -1. */
static int read_io(const Onnx__ValueInfoProto *p, const char *which, bool need_shape,
                   struct graph_io *out, struct err *err)
{
    const Onnx__TypeProto__Tensor *t = p->type != NULL ? p->type->tensor_type : NULL;
    size_t i;

    out->name = text_or_empty(p->name);
    if (t == NULL && !need_shape)
        return 0;
    if (t == NULL)
        return err_set(err, ERR_UNSUPPORTED, "graph %s '%s' is not a tensor", which, out->name);
    out->dtype = (enum tensor_dtype)t->elem_type;
    if (tensor_dtype_bytes(out->dtype) == 0)
        return err_set(err, ERR_UNSUPPORTED,
                       "graph %s '%s' has ONNX data type %d, which is not "
                       "supported",
                       which, out->name, t->elem_type);
    if (t->shape == NULL && need_shape)
        return err_set(err, ERR_INPUT,
                       "graph %s '%s' has no shape; export it with one (dimensions "
                       "may be dynamic)",
                       which, out->name);
    if (t->shape == NULL)
        return 0;
    if (t->shape->n_dim > TENSOR_MAX_RANK)
        return err_set(err, ERR_UNSUPPORTED, "graph %s '%s' has %zu dimensions; supported are %d",
                       which, out->name, t->shape->n_dim, TENSOR_MAX_RANK);
    out->shape.rank = (uint32_t)t->shape->n_dim;
    for (i = 0; i < t->shape->n_dim; i++) {
        const Onnx__TensorShapeProto__Dimension *d = t->shape->dim[i];
        bool is_fixed = d->value_case == ONNX__TENSOR_SHAPE_PROTO__DIMENSION__VALUE_DIM_VALUE;

        if (is_fixed && d->dim_value < 0)
            return err_set(err, ERR_INPUT, "graph %s '%s': dimension %zu is %" PRId64, which,
                           out->name, i, d->dim_value);
        out->shape.dim[i] = is_fixed ? d->dim_value : -1;
    }
    return 0;
}

static int read_inputs(struct importer *im, struct err *err)
{
    struct graph *g = im->g;
    size_t i;
    int rc = 0;

    for (i = 0; i < im->proto->n_input && rc == 0; i++) {
        const Onnx__ValueInfoProto *p = im->proto->input[i];
        struct graph_value v = blank;
        uint64_t known;

        /* Old files list initializers as inputs too: defaults that nobody overrides here. */
        if (p->name != NULL && map_get(&g->by_name, p->name, &known) &&
            g->values[known].kind == VALUE_CONST)
            continue;
        v.kind = VALUE_INPUT;
        v.index = g->n_inputs;
        rc = read_io(p, "input", true, &g->inputs[g->n_inputs], err);
        if (rc == 0)
            rc = add_value(g, p->name, v, &g->input_values[g->n_inputs], err);
        g->n_inputs++;
    }
    return rc;
}

/* ---- nodes ---- */

static int unknown_input(struct importer *im, const Onnx__NodeProto *p, const char *input,
                         struct err *err)
{
    size_t i, k;

    for (i = 0; i < im->proto->n_node; i++)
        for (k = 0; k < im->proto->node[i]->n_output; k++)
            if (strcmp(im->proto->node[i]->output[k], input) == 0)
                return err_set(err, ERR_INPUT,
                               "%s '%s' reads '%s' before %s '%s' makes it: ONNX wants nodes in an "
                               "order in which they can run",
                               text_or_empty(p->op_type), node_name(p), input,
                               text_or_empty(im->proto->node[i]->op_type),
                               node_name(im->proto->node[i]));
    return err_set(err, ERR_INPUT, "%s '%s' reads '%s', which nothing in the graph makes",
                   text_or_empty(p->op_type), node_name(p), input);
}

static int check_counts(const struct graph_node *node, struct err *err)
{
    const struct op_def *d = node->def;

    if (node->n_in < d->n_in.min || node->n_in > d->n_in.max)
        return err_set(err, ERR_INPUT,
                       "%s '%s' has %" PRIu32 " inputs, expected %" PRIu32 " to %" PRIu32, d->name,
                       node->name, node->n_in, d->n_in.min, d->n_in.max);
    if (node->n_out < d->n_out.min || node->n_out > d->n_out.max)
        return err_set(err, ERR_INPUT,
                       "%s '%s' has %" PRIu32 " outputs, expected %" PRIu32 " to %" PRIu32, d->name,
                       node->name, node->n_out, d->n_out.min, d->n_out.max);
    if (node->n_out == 0 || node->out[0] == GRAPH_NONE)
        return err_set(err, ERR_INPUT, "%s '%s' has no output 0", d->name, node->name);
    return 0;
}

static int read_edges(struct importer *im, const Onnx__NodeProto *p, struct graph_node *node,
                      struct err *err)
{
    struct graph *g = im->g;
    uint32_t *in = arena_array(&g->mem, p->n_input, sizeof(*in));
    uint32_t *out = arena_array(&g->mem, p->n_output, sizeof(*out));
    size_t i;
    int rc = 0;

    if (in == NULL || out == NULL)
        return no_memory(err);
    for (i = 0; i < p->n_input; i++) {
        uint64_t id = GRAPH_NONE;

        if (p->input[i][0] != '\0' && !map_get(&g->by_name, p->input[i], &id))
            return unknown_input(im, p, p->input[i], err);
        in[i] = (uint32_t)id;
    }
    for (i = 0; i < p->n_output && rc == 0; i++) {
        struct graph_value v = blank;

        v.kind = VALUE_NODE;
        v.index = g->n_nodes;
        out[i] = GRAPH_NONE;
        if (p->output[i][0] != '\0')
            rc = add_value(g, p->output[i], v, &out[i], err);
    }
    node->in = in;
    node->out = out;
    node->n_in = (uint32_t)p->n_input;
    node->n_out = (uint32_t)p->n_output;
    /* Absent ones at the end say nothing: BatchNormalization tells training by its outputs. */
    while (node->n_in > 0 && in[node->n_in - 1] == GRAPH_NONE)
        node->n_in--;
    while (node->n_out > 0 && out[node->n_out - 1] == GRAPH_NONE)
        node->n_out--;
    return rc;
}

static int read_constant(struct importer *im, const Onnx__NodeProto *p, struct err *err)
{
    struct graph_value v = blank;
    uint32_t id;
    int rc;

    v.kind = VALUE_CONST;
    if (p->n_output != 1)
        return err_set(err, ERR_INPUT, "Constant '%s' has %zu outputs, expected 1", node_name(p),
                       p->n_output);
    rc = graph_read_constant(&im->src, p, node_name(p), &v.tensor, err);
    return rc < 0 ? rc : add_value(im->g, p->output[0], v, &id, err);
}

static int read_nodes(struct importer *im, struct err *err)
{
    struct graph *g = im->g;
    uint32_t streams = 0;
    size_t i;
    int rc = 0;

    for (i = 0; i < im->proto->n_node && rc == 0; i++) {
        const Onnx__NodeProto *p = im->proto->node[i];
        struct graph_node *node = &g->nodes[g->n_nodes];

        if (is_constant(p)) {
            rc = read_constant(im, p, err);
            continue;
        }
        node->name = node_name(p);
        node->def = find_row(g, p);
        node->proto = (uint32_t)i;
        node->stream = node->def->random ? streams++ : 0;
        rc = read_edges(im, p, node, err);
        if (rc == 0)
            rc = check_counts(node, err);
        if (rc == 0)
            rc = graph_read_attrs(&im->src, p, node, err);
        g->n_nodes++;
    }
    return rc;
}

static int read_outputs(struct importer *im, struct err *err)
{
    struct graph *g = im->g;
    size_t i;
    int rc;

    for (i = 0; i < im->proto->n_output; i++) {
        uint64_t id;

        rc = read_io(im->proto->output[i], "output", false, &g->outputs[i], err);
        if (rc < 0)
            return rc;
        if (!map_get(&g->by_name, g->outputs[i].name, &id))
            return err_set(err, ERR_INPUT, "graph output '%s' is made by no node",
                           g->outputs[i].name);
        g->output_values[i] = (uint32_t)id;
        g->n_outputs++;
    }
    return 0;
}

/* ---- */

static int (*const steps[])(struct importer *, struct err *) = {
    check_model, check_ops, alloc_tables, read_initializers, read_inputs, read_nodes, read_outputs,
};

static int import(struct graph *g, const struct graph_opts *opts, const void *bytes, size_t n,
                  struct err *err)
{
    struct importer im = { .g = g };
    size_t i;
    int rc = graph_scan(bytes, n, err);

    if (rc < 0)
        return rc;
    g->path = arena_strdup(&g->mem, opts->path != NULL ? opts->path : "");
    if (g->path == NULL)
        return no_memory(err);
    g->model = onnx__model_proto__unpack(NULL, n, bytes);
    if (g->model == NULL)
        return err_set(err, ERR_INPUT,
                       "not a readable ONNX model: the fields do not fit the "
                       "schema; the file is damaged or not ONNX");
    im.src.mem = &g->mem;
    im.src.model_path = g->path;
    im.src.budget = opts->max_bytes > 0 ? opts->max_bytes : default_max_bytes;
    for (i = 0; i < sizeof(steps) / sizeof(steps[0]) && rc == 0; i++)
        rc = steps[i](&im, err);
    if (rc == 0)
        rc = graph_find_params(g, opts, err);
    return rc < 0 ? rc : graph_make_digest(g, err);
}

int graph_import_bytes(const struct graph_opts *opts, const void *bytes, size_t n,
                       struct graph **out, struct err *err)
{
    struct graph *g = calloc(1, sizeof(*g));
    int rc;

    if (g == NULL)
        return no_memory(err);
    rc = import(g, opts, bytes, n, err);
    if (rc < 0) {
        graph_free(g);
        return err_wrap(err, rc, "model '%s'", opts->path != NULL ? opts->path : "(in memory)");
    }
    *out = g;
    return 0;
}

int graph_import(const struct graph_opts *opts, struct graph **out, struct err *err)
{
    uint64_t limit = opts->max_bytes > 0 ? opts->max_bytes : default_max_bytes;
    uint8_t *bytes;
    size_t n;
    int rc = graph_read_file(opts->path, limit, &bytes, &n, err);

    if (rc < 0)
        return err_wrap(err, rc, "model '%s'", opts->path);
    rc = graph_import_bytes(opts, bytes, n, out, err);
    free(bytes);
    return rc;
}
