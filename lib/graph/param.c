/* param.c - selects the initializers that are trained.
 *
 * A backward walk over the nodes finds the values that need a gradient: some op can pass one from
 * an end of the graph to them. A float32 initializer that needs a gradient is trained if the
 * metadata classifies it as a parameter (classify.c). An initializer at an input for which an op
 * keeps running statistics is a statistic. All others are constants.
 *
 * Exporters merge initializers of equal value and distribute them through Identity nodes, which
 * would combine unrelated biases into one parameter. An Identity whose input is an initializer and
 * whose output is used as a parameter is therefore removed: its output becomes a separate
 * initializer, which export writes as such. One initializer with several consumers, without
 * Identity, is a real tie: one parameter, whose gradients are summed. Initializers of nested graphs
 * are constants; one that is used as a parameter is refused.
 *
 * A trained parameter that only Gather nodes along axis 0 read is a table: rows that are not
 * gathered have no gradient. Any other reader (tied weights, a body, an output) makes it an
 * ordinary parameter. The caller decides which tables become remote tables (graph.h). */
#include "graph/param_priv.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/err.h"
#include "base/text.h"
#include "tensor/packed.h"

static int no_memory(struct err *err)
{
    return err_set(err, ERR_NOMEM, "find the parameters: out of memory");
}

static bool is_identity(const struct graph_node *n)
{
    return op_is_onnx(n->def, "Identity") && n->n_in == 1 && n->n_out == 1 &&
           n->in[0] != GRAPH_NONE && n->out[0] != GRAPH_NONE;
}

/* ---- sources and first consumers of values ---- */

static void find_first_uses(struct finder *f)
{
    const struct graph *g = f->g;
    uint32_t i, k;

    for (i = 0; i < g->n_values; i++)
        f->first_use[i] = UINT64_MAX;
    for (i = 0; i < g->n_nodes; i++) {
        const struct graph_node *n = &g->nodes[i];

        for (k = 0; k < n->n_in; k++)
            if (n->in[k] != GRAPH_NONE && f->first_use[n->in[k]] == UINT64_MAX)
                f->first_use[n->in[k]] = (uint64_t)i << 16 | k;
        for (k = 0; k < n->n_captured; k++) /* after the inputs */
            if (f->first_use[n->captured[k]] == UINT64_MAX)
                f->first_use[n->captured[k]] = (uint64_t)i << 16 | ((n->n_in + k) & 0xFFFF);
    }
}

static void find_sources(struct finder *f)
{
    const struct graph *g = f->g;
    uint32_t i;

    for (i = 0; i < g->n_values; i++)
        f->source[i] = g->values[i].initializer != GRAPH_NONE ? i : GRAPH_NONE;
    for (i = 0; i < g->n_nodes; i++)
        if (is_identity(&g->nodes[i]))
            f->source[g->nodes[i].out[0]] = f->source[g->nodes[i].in[0]];
}

/* ---- statistics ---- */

/* The momentum (weight of the old value) of a node's statistics. The row's infer function resolves
 * the attributes that determine it, and needs shapes; those of the sample are not known yet. An op
 * with statistics works per channel (dimension 1 of input 0) regardless of the sample's size, so a
 * small sample is used. */
static int node_momentum(const struct finder *f, const struct graph_node *n, int64_t channels,
                         float *out, struct err *err)
{
    struct tensor sample = { .dtype = TENSOR_F32,
                             .shape = shape_of(4, (int64_t)2, channels, (int64_t)2, (int64_t)2) };
    struct tensor vector = { .dtype = TENSOR_F32, .shape = shape_of(1, channels) };
    struct arena mem = { 0 };
    const struct tensor **in = arena_array(&mem, n->n_in, sizeof(*in));
    struct op_infer infer = { .def = n->def,
                              .node = n->name,
                              .opset = f->g->opset,
                              .training = true,
                              .attrs = n->attrs,
                              .n_attrs = n->n_attrs,
                              .n_in = n->n_in,
                              .in = in,
                              .n_out = n->n_out,
                              .mem = &mem };
    uint32_t i;
    int rc;

    infer.out = arena_array(&mem, n->n_out, sizeof(*infer.out));
    infer.param = arena_alloc(&mem, n->def->param_bytes);
    if (in == NULL || infer.out == NULL || infer.param == NULL) {
        arena_fini(&mem);
        return no_memory(err);
    }
    for (i = 0; i < n->n_in; i++) {
        if (n->in[i] == GRAPH_NONE)
            continue;
        in[i] = i == 0 ? &sample : &vector;
        if (f->source[n->in[i]] != GRAPH_NONE)
            in[i] = &f->g->values[f->source[n->in[i]]].tensor;
        else if (f->g->values[n->in[i]].kind == VALUE_CONST)
            in[i] = &f->g->values[n->in[i]].tensor;
    }
    rc = n->def->infer(&infer, err);
    if (rc == 0)
        *out = n->def->stat_momentum(infer.param);
    arena_fini(&mem);
    return rc;
}

/* norm_form.c sets the attribute on nodes that update one average together. */
static bool shares_averages(const struct graph_node *n)
{
    uint32_t i;

    for (i = 0; i < n->n_attrs; i++)
        if (strcmp(n->attrs[i].name, "share") == 0)
            return true;
    return false;
}

static int mark_statistic(struct finder *f, const struct graph_node *n, uint32_t value,
                          struct err *err)
{
    const struct tensor *t = &f->g->values[f->source[value]].tensor;
    float momentum = 1.0f;
    int rc = node_momentum(f, n, tensor_elements(t), &momentum, err);

    if (rc < 0)
        return rc;
    if (momentum >= 1.0f) /* inference form: statistics do not change */
        return 0;
    if ((f->use[value] & USE_STATISTIC) != 0 && (momentum != f->momentum[value] || !shares_averages(n)))
        return err_set(err, ERR_INPUT,
                       "%s '%s': the running statistic '%s' is shared with a node of another momentum; "
                       "export the model so that each normalisation has its own",
                       n->def->name, n->name, f->g->values[value].name);
    f->use[value] |= USE_STATISTIC;
    f->momentum[value] = momentum;
    return 0;
}

/* Export removes all outputs but the first, so no other output may be read. */
static int check_unread(const struct finder *f, const struct graph_node *n, struct err *err)
{
    const struct graph *g = f->g;
    uint32_t i, k;

    for (k = 1; k < n->n_out; k++) {
        bool read = n->out[k] != GRAPH_NONE && f->first_use[n->out[k]] != UINT64_MAX;

        for (i = 0; n->out[k] != GRAPH_NONE && i < g->io.n_outputs && !read; i++)
            read = g->io.output_values[i] == n->out[k];
        if (read)
            return err_set(err, ERR_UNSUPPORTED,
                           "%s '%s': its output '%s' is used; statistics are "
                           "averaged outside the graph: use output 0 alone",
                           n->def->name, n->name, g->values[n->out[k]].name);
    }
    return 0;
}

static int find_statistics(struct finder *f, struct err *err)
{
    const struct graph *g = f->g;
    uint32_t i, k;
    int rc = 0;

    for (i = 0; i < g->n_nodes && rc == 0; i++) {
        const struct graph_node *n = &g->nodes[i];

        if (n->def->stat != 0)
            rc = check_unread(f, n, err);
        for (k = 0; n->def->stat != 0 && k < n->n_in && rc == 0; k++)
            if ((n->def->stat & graph_input_bit(k)) != 0 && n->in[k] != GRAPH_NONE &&
                f->source[n->in[k]] != GRAPH_NONE)
                rc = mark_statistic(f, n, n->in[k], err);
    }
    return rc;
}

/* ---- gradients ---- */

static bool passes_gradient(const struct finder *f, const struct graph_node *n)
{
    uint32_t k;

    if ((!graph_passes_gradient(n->def) && !graph_is_sequence(n->def)) || n->stops_gradient)
        return false;
    for (k = 0; k < n->n_out; k++)
        if (n->out[k] != GRAPH_NONE && (f->use[n->out[k]] & USE_GRADIENT) != 0)
            return true;
    return false;
}

/* Marks the ends: outputs of the graph, and values without a reader (a loss may read them). */
static void mark_graph_ends(struct finder *f)
{
    const struct graph *g = f->g;
    uint32_t i;

    for (i = 0; i < g->n_values; i++)
        if (g->values[i].kind == VALUE_NODE && f->first_use[i] == UINT64_MAX)
            f->use[i] |= USE_GRADIENT;
    for (i = 0; i < g->io.n_outputs; i++)
        f->use[g->io.output_values[i]] |=
            USE_OUTPUT | (g->values[g->io.output_values[i]].kind == VALUE_NODE ? USE_GRADIENT : 0);
}

static void propagate_gradient(struct finder *f, const struct graph_node *n);

static bool propagate_use(struct finder *f, uint32_t from, uint32_t to)
{
    uint8_t use = f->use[from] & USE_GRADIENT, old;

    if (to == GRAPH_NONE)
        return false;
    old = f->use[to];
    f->use[to] |= use;
    return f->use[to] != old;
}

/* Propagates marks between a node and its bodies. Outputs of a body correspond to outputs of the
 * node: the branches of If one to one; those of Loop after the condition and those of Scan from the
 * first on, loop-carried values before scan outputs. A loop-carried value is read by the next
 * iteration, so the propagate_gradient of the body repeats until nothing changes. */
static void propagate_through_bodies(struct finder *f, const struct graph_node *n)
{
    bool is_if = n->n_bodies == 2, is_loop = strcmp(n->def->name, "Loop") == 0, again;
    uint32_t skip_out = is_loop ? 1 : 0, skip_in = is_loop ? 2 : 0, round = graph_n_carried(n), b,
             k;

    for (b = 0; b < n->n_bodies; b++) {
        const struct graph_body *body = &n->bodies[b];

        for (k = 0; k < n->n_out && k + skip_out < body->n_out; k++)
            if (n->out[k] != GRAPH_NONE)
                (void)propagate_use(f, n->out[k], body->out[k + skip_out]);
        for (again = true; again;) {
            again = false;
            for (k = body->n_nodes; k-- > 0;)
                propagate_gradient(f, &body->nodes[k]);
            for (k = 0; k < round; k++)
                again = propagate_use(f, body->in[k + skip_in], body->out[k + skip_out]) || again;
        }
        for (k = skip_in; !is_if && k < body->n_in && k < n->n_in; k++)
            (void)propagate_use(f, body->in[k], n->in[k]);
    }
}

static void propagate_gradient(struct finder *f, const struct graph_node *n)
{
    uint32_t k;

    if (n->n_bodies > 0) {
        propagate_through_bodies(f, n);
        return;
    }
    if (!passes_gradient(f, n))
        return;
    for (k = 0; k < n->n_in; k++)
        if (n->in[k] != GRAPH_NONE && (n->def->diff & graph_input_bit(k)) != 0)
            f->use[n->in[k]] |= USE_GRADIENT;
}

static void find_gradients(struct finder *f)
{
    const struct graph *g = f->g;
    uint32_t i;

    mark_graph_ends(f);
    for (i = g->n_nodes; i-- > 0;) {
        const struct graph_node *n = &g->nodes[i];

        if (!g->file.metadata.has_signature && is_identity(n) &&
            f->source[n->out[0]] != GRAPH_NONE &&
            g->values[f->source[n->out[0]]].tensor.dtype == TENSOR_F32 &&
            f->first_use[n->out[0]] != UINT64_MAX && (f->use[n->out[0]] & USE_OUTPUT) == 0 &&
            (f->use[n->out[0]] & (USE_GRADIENT | USE_STATISTIC)) != 0)
            f->dropped[i] = true;
        else
            propagate_gradient(f, n);
    }
}

/* Converts outputs of removed Identity nodes to initializers, and removes the nodes. */
static void remove_identities(struct finder *f)
{
    struct graph *g = f->g;
    uint32_t i, k, kept = 0;

    for (i = 0; i < g->n_nodes; i++) {
        const struct graph_node *n = &g->nodes[i];

        if (f->dropped[i]) {
            struct graph_value *v = &g->values[n->out[0]];
            const struct graph_value *from = &g->values[f->source[n->out[0]]];

            v->kind = VALUE_CONST;
            v->initializer = from->initializer;
            v->identity = n->proto;
            v->tensor = from->tensor;
            v->external = from->external;
            v->half = from->half;
            continue;
        }
        g->nodes[kept++] = *n;
    }
    g->n_nodes = kept;
    /* Indices of nodes have changed. */
    for (i = 0; i < g->n_nodes; i++)
        for (k = 0; k < g->nodes[i].n_out; k++)
            if (g->nodes[i].out[k] != GRAPH_NONE)
                g->values[g->nodes[i].out[k]].index = i;
    find_first_uses(f);
}

/* ---- tables ---- */

/* Does the node use the type or the shape of the input alone? Exporters write such nodes beside an embedding. */
static bool reads_no_element(const struct graph_node *n, uint32_t input)
{
    static const struct {
        const char *op;
        uint32_t input;
    } rows[] = { { "Shape", 0 },          { "Size", 0 },
                 { "CastLike", 1 },       { "EyeLike", 0 },
                 { "RandomNormalLike", 0 }, { "RandomUniformLike", 0 } };

    for (size_t i = 0; n->def->domain == NULL && i < COUNT_OF(rows); i++)
        if (input == rows[i].input && strcmp(n->def->name, rows[i].op) == 0)
            return true;
    return false;
}

static bool reads_rows(const struct graph *g, const struct graph_node *n, uint32_t input)
{
    int64_t axis = 0;
    uint32_t i;

    if (reads_no_element(n, input))
        return true;
    if (!op_is_onnx(n->def, "Gather") || input != 0)
        return false;
    for (i = 0; i < n->n_attrs; i++)
        if (strcmp(n->attrs[i].name, "axis") == 0)
            axis = n->attrs[i].i;
    return axis == 0 || axis == -(int64_t)g->values[n->in[0]].tensor.shape.rank;
}

/* A body that is executed several times may read all rows. */
static void find_uses_of_body(struct finder *f, const struct graph_body *body)
{
    for (uint32_t i = 0; i < body->n_out; i++)
        f->use[body->out[i]] |= USE_WHOLE;
    for (uint32_t i = 0; i < body->n_nodes; i++) {
        const struct graph_node *n = &body->nodes[i];

        for (uint32_t k = 0; k < n->n_in; k++)
            if (n->in[k] != GRAPH_NONE && !reads_no_element(n, k))
                f->use[n->in[k]] |= USE_WHOLE;
        for (uint32_t k = 0; k < n->n_bodies; k++)
            find_uses_of_body(f, &n->bodies[k]);
    }
}

static void find_whole_uses(struct finder *f)
{
    const struct graph *g = f->g;
    uint32_t i, k;

    for (i = 0; i < g->io.n_outputs; i++)
        f->use[g->io.output_values[i]] |= USE_WHOLE;
    for (i = 0; i < g->n_nodes; i++) {
        const struct graph_node *n = &g->nodes[i];

        for (k = 0; k < n->n_in; k++)
            if (n->in[k] != GRAPH_NONE && !reads_rows(g, n, k))
                f->use[n->in[k]] |= USE_WHOLE;
        for (k = 0; k < n->n_bodies; k++)
            find_uses_of_body(f, &n->bodies[k]);
    }
}

/* ---- the arena ---- */

static size_t round_up(size_t floats)
{
    return (floats + GRAPH_PARAM_ALIGN - 1) / GRAPH_PARAM_ALIGN * GRAPH_PARAM_ALIGN;
}

struct candidate {
    uint32_t value;
    enum graph_param_kind kind;
    uint64_t order; /* trained: first consumer; the gradient is complete after its backward */
    bool is_table;
    bool is_remote; /* is_table: the values are on parameter servers */
    bool is_delayed;
};

/* Backward ends with the first consumer of a parameter; the parameter whose first consumer is the
 * last one is completed first. */
static int compare(const void *pa, const void *pb)
{
    const struct candidate *a = pa, *b = pb;
    uint64_t node_a = a->order >> 16, node_b = b->order >> 16;

    if (a->is_remote != b->is_remote)
        return b->is_remote ? -1 : 1;
    if (a->kind != b->kind)
        return a->kind == GRAPH_TRAINED ? -1 : 1;
    if (a->is_table != b->is_table)
        return b->is_table ? -1 : 1;
    if (node_a != node_b)
        return (a->kind == GRAPH_TRAINED ? node_a > node_b : node_a < node_b) ? -1 : 1;
    if (a->order != b->order)
        return a->order < b->order ? -1 : 1;
    return a->value < b->value ? -1 : 1;
}

static size_t width_of(const struct shape *s)
{
    return (size_t)(shape_elements(s) / s->dim[0]);
}

static int lay_out_tables(struct graph *g, struct err *err)
{
    uint32_t i;

    g->arena.tables = arena_array(&g->mem, g->arena.n_tables, sizeof(*g->arena.tables));
    g->remotes = arena_array(&g->mem, g->n_remotes, sizeof(*g->remotes));
    if (g->arena.tables == NULL || g->remotes == NULL)
        return no_memory(err);
    for (i = 0; i < g->arena.n_tables; i++) {
        const struct graph_param *p = &g->params[g->arena.first_table + i];

        g->arena.tables[i].rows = (size_t)p->shape.dim[0];
        g->arena.tables[i].width = width_of(&p->shape);
    }
    g->arena.table_words = packed_layout(g->arena.tables, g->arena.n_tables);
    for (i = 0; i < g->n_remotes; i++) {
        const struct graph_param *p = &g->params[g->n_params + i];
        const struct graph_value *v = &g->values[g->param_values[g->n_params + i]];

        g->remotes[i] = (struct graph_remote){ .name = p->name,
                                               .rows = (uint64_t)p->shape.dim[0],
                                               .width = (uint32_t)width_of(&p->shape),
                                               .shape = p->shape };
        if (v->fill != NULL)
            g->remotes[i].fill = *v->fill;
        if (v->is_dynamic)
            g->remotes[i].rows = 0;
    }
    return 0;
}

/* Adds the parameter to the arena, or a remote table to those before it, which are at *end. */
static void add_param(struct finder *f, const struct candidate *c, uint32_t i, size_t *end)
{
    struct graph *g = f->g;
    struct graph_value *v = &g->values[c->value];
    struct graph_param *p = &g->params[i];

    p->name = v->name;
    p->kind = c->kind;
    p->shape = v->tensor.shape;
    p->initial = v->tensor.data;
    p->offset = *end;
    p->elements = (size_t)tensor_elements(&v->tensor);
    p->momentum = p->kind == GRAPH_STATISTIC ? f->momentum[c->value] : 0;
    p->is_table = c->is_table;
    p->is_delayed = c->is_delayed;
    *end += round_up(p->elements);
    v->kind = VALUE_PARAM;
    v->index = i;
    g->param_values[i] = c->value;
}

static int lay_out(struct finder *f, struct candidate *list, uint32_t n, struct err *err)
{
    struct graph *g = f->g;
    uint32_t i;

    g->params = arena_array(&g->mem, n, sizeof(*g->params));
    g->param_values = arena_array(&g->mem, n, sizeof(*g->param_values));
    if (g->params == NULL || g->param_values == NULL)
        return no_memory(err);
    if (n > 0)
        qsort(list, n, sizeof(*list), compare);
    for (i = 0; i < n && !list[i].is_remote; i++) {
        add_param(f, &list[i], i, &g->arena.floats);
        if (list[i].kind == GRAPH_TRAINED)
            g->arena.trained_floats = g->arena.floats;
        if (list[i].kind == GRAPH_TRAINED && !list[i].is_table)
            g->arena.dense_floats = g->arena.floats;
        if (list[i].is_table && g->arena.n_tables++ == 0)
            g->arena.first_table = i;
    }
    g->n_params = i;
    g->n_remotes = n - i;
    for (; i < n; i++)
        add_param(f, &list[i], i, &g->arena.remote_floats);
    return lay_out_tables(g, err);
}

static bool is_float(enum tensor_dtype t)
{
    return t == TENSOR_F32 || t == TENSOR_F64 || t == TENSOR_F16 || t == TENSOR_BF16;
}

/* Does the caller select this table? */
static bool selects(const struct finder *f, const struct graph_value *v,
                    bool (*with)(const void *, const char *, uint64_t, uint64_t))
{
    const struct shape *s = &v->tensor.shape;

    if (with == NULL || width_of(s) > UINT32_MAX)
        return false;
    return v->is_dynamic || with(f->opts->remote_arg, v->name, (uint64_t)s->dim[0], width_of(s));
}

/* Appends the tensor to `list` if it is trained or a statistic. */
static int classify(struct finder *f, uint32_t value, struct candidate *list, uint32_t *n,
                    struct err *err)
{
    struct graph_value *v = &f->g->values[value];
    uint8_t use = f->use[value] & (USE_GRADIENT | USE_STATISTIC);
    enum graph_class classification;
    int rc;

    if (v->kind != VALUE_CONST || !is_float(v->tensor.dtype))
        return 0;
    if (v->initializer == GRAPH_NONE)
        return classify_inner(f, value, err);
    if (use == (USE_GRADIENT | USE_STATISTIC))
        return err_set(err, ERR_INPUT,
                       "initializer '%s' is a running statistic and a weight at "
                       "once; export the model so that each has its own",
                       v->name);
    rc = classify_value(f, value, &classification, err);
    if (rc < 0 || (classification != GRAPH_IS_TRAINED && classification != GRAPH_IS_STATISTIC)) {
        v->is_frozen = classification == GRAPH_IS_FROZEN;
        return rc;
    }
    if (v->tensor.dtype != TENSOR_F32)
        return err_set(err, ERR_UNSUPPORTED,
                       "weight '%s' is %s; expected float32: export the model "
                       "after model.float()",
                       v->name, tensor_dtype_name(v->tensor.dtype));
    if (tensor_elements(&v->tensor) == 0)
        return 0;
    list[*n] = (struct candidate){ .value = value,
                                   .order = f->first_use[value],
                                   .kind = classification == GRAPH_IS_STATISTIC ? GRAPH_STATISTIC
                                                                         : GRAPH_TRAINED,
                                   .is_table = use == USE_GRADIENT &&
                                               (f->use[value] & USE_WHOLE) == 0 &&
                                               /* Gather refuses a scalar */
                                               v->tensor.shape.rank > 0 &&
                                               v->tensor.shape.dim[0] <= UINT32_MAX };
    list[*n].is_remote = list[*n].is_table && selects(f, v, f->opts->is_remote);
    list[*n].is_delayed = list[*n].is_table
                              ? !list[*n].is_remote && selects(f, v, f->opts->is_delayed)
                              : list[*n].kind == GRAPH_TRAINED && f->opts->delays_dense;
    *n += 1;
    return 0;
}

static int select_params(struct finder *f, struct arena *mem, struct err *err)
{
    const struct graph *g = f->g;
    struct candidate *list = arena_array(mem, g->n_values, sizeof(*list));
    uint32_t n = 0, i;
    int rc = list != NULL ? 0 : no_memory(err);

    if (rc == 0)
        rc = form_find_roles(f, mem, err);
    f->has_unseen = graph_next_unseen(&g->file.metadata, 0) < g->file.metadata.n_targets;
    for (i = 0; i < g->n_values && rc == 0; i++)
        rc = classify(f, i, list, &n, err);
    if (rc == 0)
        rc = classify_finish(f, err);
    return rc < 0 ? rc : lay_out(f, list, n, err);
}

/* ---- notes ---- */

/* Names that an exporter generated: "onnx::MatMul_123", "123". */
static bool is_anonymous(const char *name)
{
    return strstr(name, "::") != NULL || strspn(name, "0123456789") == strlen(name);
}

static int write_notes(struct finder *f, struct err *err)
{
    struct graph *g = f->g;
    const struct graph_param *anonymous = NULL;
    bool is_trained = g->arena.trained_floats > 0 || g->n_remotes > 0;
    const char *copy = NULL;
    uint32_t n_anonymous = 0, n_copies = 0, i;
    int rc = 0;

    for (i = 0; i < g->n_params + g->n_remotes; i++) {
        const struct graph_param *p = &g->params[i];

        if (p->kind == GRAPH_TRAINED && is_anonymous(p->name) && n_anonymous++ == 0)
            anonymous = p;
        if (g->values[g->param_values[i]].identity != GRAPH_NONE && n_copies++ == 0)
            copy = p->name;
    }
    if (anonymous != NULL)
        rc = graph_note(g, err,
                        "trains %" PRIu32 " initializers with generated names (first '%s'): "
                        "the export folded constants, so ties between weights may be lost; export "
                        "with training=TrainingMode.TRAINING and do_constant_folding=False",
                        n_anonymous, anonymous->name);
    if (rc == 0 && copy != NULL)
        rc = graph_note(g, err,
                        "%" PRIu32 " initializers of equal value were shared through "
                        "Identity nodes (first '%s'): each becomes a separate parameter",
                        n_copies, copy);
    if (rc == 0 && text_starts(g->file.producer, "tf2onnx") && is_trained)
        rc = graph_note(g, err,
                        "tf2onnx removes biases of zeros and scales of ones, so a model that was never "
                        "trained may lack parameters here: compare what trainerctl inspect lists with the "
                        "variables of the model");
    if (rc == 0 && !is_trained)
        rc = graph_note(g, err, "the model has no trained parameters");
    return rc;
}

int graph_find_params(struct graph *g, const struct graph_opts *opts, struct err *err)
{
    struct arena mem = { 0 };
    struct finder f = { .g = g, .opts = opts };
    int rc;

    if (opts->all_constant)
        return 0;
    rc = graph_restore_norms(g, err);
    if (rc < 0)
        return rc;
    f.use = arena_array(&mem, g->n_values, sizeof(*f.use));
    f.source = arena_array(&mem, g->n_values, sizeof(*f.source));
    f.momentum = arena_array(&mem, g->n_values, sizeof(*f.momentum));
    f.first_use = arena_array(&mem, g->n_values, sizeof(*f.first_use));
    f.dropped = arena_array(&mem, g->n_nodes, sizeof(*f.dropped));
    f.frozen_used = arena_array(&mem, opts->n_frozen, sizeof(*f.frozen_used));
    f.trainable_used = arena_array(&mem, opts->n_trainable, sizeof(*f.trainable_used));
    if (f.use == NULL || f.source == NULL || f.momentum == NULL || f.first_use == NULL ||
        f.dropped == NULL || f.frozen_used == NULL || f.trainable_used == NULL) {
        arena_fini(&mem);
        return no_memory(err);
    }
    rc = graph_set_norm_forms(g, opts, err);
    if (rc == 0)
        rc = graph_set_padding(g, opts, err);
    find_first_uses(&f);
    find_sources(&f);
    if (rc == 0)
        rc = find_statistics(&f, err);
    if (rc == 0) {
        find_gradients(&f);
        remove_identities(&f);
        find_whole_uses(&f);
        rc = select_params(&f, &mem, err);
    }
    if (rc == 0)
        rc = graph_check_norm_forms(g, opts, err);
    if (rc == 0)
        rc = write_notes(&f, err);
    if (rc == 0)
        rc = graph_check_biases(g, opts, err);
    arena_fini(&mem);
    return rc;
}
