/* plan_build.c - selects the part of the graph that a plan needs, and infers its shapes.
 *
 * A backward walk from the requested values (losses, metrics, kept tensors, running statistics)
 * marks the needed nodes and inputs. A forward walk then sets the shapes of feeds and infers every
 * node. A node whose inputs are all known, or that depends only on their shapes, is computed
 * immediately and replaced by its result; this removes all arithmetic on shapes that exporters
 * write. Nodes without a reader are removed at the end. */
#include <inttypes.h>
#include <string.h>

#include "base/check.h"
#include "base/err.h"
#include "graph/plan_priv.h"

/* ---- needed values ---- */

static bool updates_statistic(const struct graph *g, const struct graph_node *n)
{
    uint32_t k;

    for (k = 0; k < n->n_in; k++)
        if (n->in[k] != GRAPH_NONE && g->values[n->in[k]].kind == VALUE_PARAM &&
            g->params[g->values[n->in[k]].index].kind == GRAPH_STATISTIC)
            return true;
    return false;
}

/* A statistic is updated whether or not the loss depends on its node. */
static bool node_is_needed(const struct plan_builder *b, const struct graph_node *n)
{
    uint32_t k;

    for (k = 0; k < n->n_out; k++)
        if (n->out[k] != GRAPH_NONE && b->needed[n->out[k]])
            return true;
    return b->p->purpose == PLAN_TRAIN && updates_statistic(b->p->g, n);
}

static int mark_tensor(struct plan_builder *b, const char *name, const char *role, struct err *err)
{
    uint32_t id;
    int rc = name != NULL ? plan_find_tensor(b->p->g, name, role, &id, err) : 0;

    if (name != NULL && rc == 0)
        b->needed[id] = true;
    return rc;
}

static int find_needed(struct plan_builder *b, struct err *err)
{
    const struct plan_opts *o = b->opts;
    const struct graph *g = b->p->g;
    uint32_t i, k;
    int rc = 0;

    for (i = 0; i < o->n_losses && rc == 0; i++)
        rc = mark_tensor(b, o->losses[i].tensor, "loss", err);
    for (i = 0; i < o->n_metrics && rc == 0; i++)
        rc = mark_tensor(b, o->metrics[i].tensor, "metric", err);
    for (i = 0; i < o->n_keep && rc == 0; i++)
        rc = mark_tensor(b, o->keep[i], "keep", err);
    for (i = 0; o->sum_outputs && i < g->io.n_outputs; i++)
        b->needed[g->io.output_values[i]] = true;
    if (rc < 0)
        return rc;
    for (i = g->n_nodes; i-- > 0;) {
        const struct graph_node *n = &g->nodes[i];

        b->node_needed[i] = node_is_needed(b, n);
        for (k = 0; b->node_needed[i] && k < n->n_in; k++)
            if (n->in[k] != GRAPH_NONE)
                b->needed[n->in[k]] = true;
        for (k = 0; b->node_needed[i] && k < n->n_captured; k++)
            b->needed[n->captured[k]] = true;
    }
    return 0;
}

/* ---- nodes ---- */

static int add_constants(struct plan_builder *b, struct err *err)
{
    const struct graph *g = b->p->g;
    uint32_t i;

    for (i = 0; i < g->n_values; i++) {
        const struct graph_value *v = &g->values[i];
        struct tensor t = v->tensor;

        /* A constant in a body is needed even without a mark: only the body reads it. */
        if ((!b->needed[i] && v->initializer != GRAPH_NONE) ||
            (v->kind != VALUE_CONST && v->kind != VALUE_PARAM))
            continue;
        if (v->kind == VALUE_PARAM)
            t.data = NULL; /* it changes: planning must not depend on its values */
        b->map[i] = plan_add_value(b->p, v->name, v->kind == VALUE_PARAM ? PLAN_PARAM : PLAN_CONST,
                                   v->index, &t);
        if (b->map[i] == GRAPH_NONE)
            return plan_no_memory(err);
    }
    return 0;
}

/* CastLike uses only the type of input 1, which is known. It is replaced by a Cast, which does not
 * depend on that input and is folded if input 0 is a constant. */
static int cast_to_type(struct plan *p, struct plan_node *n, struct err *err)
{
    struct op_attr *to;

    if (!op_is_onnx(n->def, "CastLike") || n->in[1] == GRAPH_NONE)
        return 0;
    to = arena_array(&p->mem, (size_t)n->n_attrs + 1, sizeof(*to));
    if (to == NULL)
        return plan_no_memory(err);
    to[0] = (struct op_attr){ .name = "to",
                              .type = OP_ATTR_INT,
                              .i = p->values.at[n->in[1]].tensor.dtype };
    for (uint32_t i = 0; i < n->n_attrs; i++) /* saturate, round_mode */
        to[i + 1] = n->attrs[i];
    n->def = op_find(NULL, "Cast", p->g->opset);
    CHECK(n->def != NULL);
    n->attrs = to;
    n->n_attrs++;
    n->n_in = 1;
    return 0;
}

static int add_graph_node(struct plan_builder *b, const struct graph_node *from, struct err *err)
{
    const struct graph *g = b->p->g;
    struct plan *p = b->p;
    struct plan_node n = { .def = from->def,
                           .name = from->name,
                           .attrs = from->attrs,
                           .n_attrs = from->n_attrs,
                           .n_in = from->n_in,
                           .n_out = from->n_out,
                           .stream = from->stream,
                           .stops_gradient = from->stops_gradient,
                           .draws_fixed = from->draws_fixed };
    const char **names = arena_array(&p->mem, n.n_out, sizeof(*names));
    uint32_t i;
    int rc;

    rc = plan_check_dropped(p, from, err);
    if (rc < 0)
        return rc;
    if (from->n_bodies > 0)
        return plan_control(b, from, err);
    if (graph_is_sequence(from->def))
        return plan_sequence(b, from, err);
    for (i = 0; i < from->n_in; i++) {
        if (from->in[i] == GRAPH_NONE || !plan_is_sequence(b->map[from->in[i]]))
            continue;
        if (!op_is_onnx(from->def, "Identity"))
            return plan_refuse_sequence(from, g->values[from->in[i]].name, err);
        b->map[from->out[0]] = b->map[from->in[i]];
        return 0;
    }
    if (graph_is_lowered(from->def) || plan_is_wide_pool(b, from) || plan_is_clamp(b, from))
        return plan_lower(b, from, err);
    n.in = arena_array(&p->mem, n.n_in, sizeof(*n.in));
    if (names == NULL || n.in == NULL)
        return plan_no_memory(err);
    for (i = 0; i < n.n_in; i++)
        n.in[i] = from->in[i] != GRAPH_NONE ? b->map[from->in[i]] : GRAPH_NONE;
    for (i = 0; i < n.n_out; i++)
        names[i] = from->out[i] != GRAPH_NONE ? g->values[from->out[i]].name : NULL;
    rc = cast_to_type(p, &n, err);
    if (rc == 0)
        rc = plan_replace_batch(b, &n, err);
    if (rc < 0)
        return rc;
    rc = plan_add_node(p, &n, names, err);
    if (rc < 0)
        rc = plan_add_cast(b, &n, names, rc, err);
    else
        rc = plan_mark_and_fold(p, &n, err);
    for (i = 0; i < n.n_out && rc == 0; i++)
        if (from->out[i] != GRAPH_NONE)
            b->map[from->out[i]] = n.out[i];
    return rc;
}

/* ---- dead nodes ---- */

static void mark_live(bool *is_live, uint32_t value)
{
    if (value != GRAPH_NONE)
        is_live[value] = true;
}

/* Removes nodes whose results were only needed for shapes, or were folded. */
static int remove_dead(struct plan *p, struct err *err)
{
    struct arena mem = { 0 };
    bool *is_live = arena_array(&mem, p->values.n, sizeof(*is_live));
    bool *keeps_node = arena_array(&mem, p->nodes.n, sizeof(*keeps_node));
    size_t kept = 0, i;
    uint32_t k;

    if (is_live == NULL || keeps_node == NULL) {
        arena_fini(&mem);
        return plan_no_memory(err);
    }
    mark_live(is_live, p->loss.value);
    mark_live(is_live, p->loss.weight);
    for (k = 0; k < p->n_metrics; k++) {
        mark_live(is_live, p->metrics[k].value);
        mark_live(is_live, p->metrics[k].weight);
    }
    for (k = 0; k < p->n_kept; k++)
        mark_live(is_live, p->kept[k].value);
    for (i = p->nodes.n; i-- > 0;) {
        const struct plan_node *n = &p->nodes.at[i];

        for (k = 0; k < n->n_out; k++)
            keeps_node[i] = keeps_node[i] || (n->out[k] != GRAPH_NONE && is_live[n->out[k]]);
        for (k = 0; k < n->n_in; k++)
            keeps_node[i] = keeps_node[i] || plan_needs_stat(p, n, k);
        for (k = 0; keeps_node[i] && k < n->n_in; k++)
            mark_live(is_live, n->in[k]);
    }
    for (i = 0; i < p->nodes.n; i++)
        if (keeps_node[i])
            p->nodes.at[kept++] = p->nodes.at[i];
    p->nodes.n = kept; /* plan_layouts() renumbers them */
    arena_fini(&mem);
    return 0;
}

/* ---- kept tensors and outputs ---- */

static int add_kept(struct plan_builder *b, struct err *err)
{
    struct plan *p = b->p;
    uint32_t i, id;
    int rc = 0;

    p->kept = arena_array(&p->mem, b->opts->n_keep, sizeof(*p->kept));
    if (p->kept == NULL)
        return plan_no_memory(err);
    for (i = 0; i < b->opts->n_keep && rc == 0; i++) {
        rc = plan_find_tensor(p->g, b->opts->keep[i], "keep", &id, err);
        if (rc == 0)
            p->kept[p->n_kept++] =
                (struct plan_kept){ .name = p->g->values[id].name, .value = b->map[id] };
    }
    return rc;
}

/* Requested values and outputs must be tensors. */
static int check_sequences(const struct plan_builder *b, struct err *err)
{
    const struct plan_opts *o = b->opts;
    const struct graph *g = b->p->g;
    uint32_t i;

    for (i = 0; i < g->n_values; i++) {
        const char *name = g->values[i].name;
        bool is_requested = false;
        uint32_t k;

        if (!plan_is_sequence(b->map[i]))
            continue;
        for (k = 0; k < o->n_losses; k++)
            is_requested = is_requested ||
                           (o->losses[k].tensor != NULL && strcmp(o->losses[k].tensor, name) == 0);
        for (k = 0; k < o->n_metrics; k++)
            is_requested = is_requested || strcmp(o->metrics[k].tensor, name) == 0;
        for (k = 0; k < o->n_keep; k++)
            is_requested = is_requested || strcmp(o->keep[k], name) == 0;
        for (k = 0; k < g->io.n_outputs && o->sum_outputs; k++)
            is_requested = is_requested || g->io.output_values[k] == i;
        if (is_requested)
            return err_set(err, ERR_UNSUPPORTED,
                           "'%s' is a sequence of tensors; expected a tensor for outputs, losses and "
                           "metrics",
                           name);
    }
    return 0;
}

/* Outputs must have the type that the file declares. */
static int check_declared(const struct plan_builder *b, struct err *err)
{
    const struct graph *g = b->p->g;
    uint32_t i;

    for (i = 0; i < g->io.n_outputs; i++) {
        uint32_t id = b->map[g->io.output_values[i]];
        enum tensor_dtype declared = g->io.outputs[i].dtype, found;

        if (id == GRAPH_NONE || plan_is_sequence(id) || declared == TENSOR_NONE)
            continue;
        found = b->p->values.at[id].tensor.dtype;
        if (found != declared)
            return err_set(err, ERR_INPUT,
                           "graph output '%s' is declared as %s, but its node computes %s: export "
                           "the model again, or "
                           "correct the type in graph.output",
                           g->io.outputs[i].name, tensor_dtype_name(declared),
                           tensor_dtype_name(found));
    }
    return 0;
}

static int build(struct plan_builder *b, struct err *err)
{
    const struct graph *g = b->p->g;
    uint32_t i;
    int rc = find_needed(b, err);

    if (rc == 0)
        rc = plan_feeds(b, err);
    if (rc == 0)
        rc = add_constants(b, err);
    for (i = 0; i < g->n_nodes && rc == 0; i++)
        if (b->node_needed[i])
            rc = add_graph_node(b, &g->nodes[i], err);
    if (rc == 0)
        rc = check_sequences(b, err);
    if (rc == 0)
        rc = check_declared(b, err);
    if (rc == 0)
        rc = plan_measures(b, err);
    if (rc == 0)
        rc = add_kept(b, err);
    if (rc < 0 && b->file_batch != 0)
        return err_wrap(err, rc,
                        "model input '%s': its batch is fixed at %" PRId64
                        ", but a lane has %" PRIu32
                        " samples, and the graph requires the fixed batch (export it with a dynamic batch, "
                        "dynamic_axes={'%s': {0: 'batch'}}, or give each lane %" PRId64 " samples)",
                        b->fixed_input, b->file_batch, b->p->batch, b->fixed_input, b->file_batch);
    if (rc == 0)
        rc = remove_dead(b->p, err);
    return rc == 0 ? plan_check_selections(b->p, err) : rc;
}

int plan_build(struct plan *p, const struct plan_opts *opts, struct err *err)
{
    const struct graph *g = p->g;
    struct plan_builder b = { .p = p, .opts = opts, .add_node = add_graph_node };
    struct arena mem = { 0 };
    uint32_t i;
    int rc;

    if (opts->batch == 0 && opts->purpose != PLAN_RUN)
        return err_set(err, ERR_INPUT, "a lane has no samples: expected a batch of at least 1");
    p->inputs.n_feeds = opts->n_feeds;
    p->inputs.n = opts->n_feeds + opts->n_targets + (opts->purpose != PLAN_RUN ? 1 : 0);
    p->inputs.values = arena_array(&p->mem, p->inputs.n, sizeof(*p->inputs.values));
    b.needed = arena_array(&mem, g->n_values, sizeof(*b.needed));
    b.map = arena_array(&mem, g->n_values, sizeof(*b.map));
    b.node_needed = arena_array(&mem, g->n_nodes, sizeof(*b.node_needed));
    if (p->inputs.values == NULL || b.needed == NULL || b.map == NULL || b.node_needed == NULL) {
        arena_fini(&mem);
        return plan_no_memory(err);
    }
    for (i = 0; i < g->n_values; i++)
        b.map[i] = GRAPH_NONE;
    rc = build(&b, err);
    arena_fini(&mem);
    return rc;
}
