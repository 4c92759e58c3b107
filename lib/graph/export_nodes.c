/* export_nodes.c - see export_priv.h: the nodes of the exported model. */
#include "graph/export_priv.h"

#include <string.h>

#include "base/err.h"

/* ---- inference form ---- */

/* Removes training_mode, and all outputs but the normalized values. */
static int infer_batch_norm(struct exporter *e, Onnx__NodeProto *n, struct err *err)
{
    Onnx__AttributeProto **kept = arena_array(&e->mem, n->n_attribute, sizeof(*kept));
    size_t n_kept = 0, i;

    if (kept == NULL)
        return export_no_memory(err);
    for (i = 0; i < n->n_attribute; i++)
        if (strcmp(n->attribute[i]->name, "training_mode") != 0)
            kept[n_kept++] = n->attribute[i];
    n->attribute = kept;
    n->n_attribute = n_kept;
    if (n->n_output > 1)
        n->n_output = 1;
    return 0;
}

/* Removes the third input (training_mode, from opset 12 on), after which the node copies its input.
 * Nodes of older opsets do so already. */
static int infer_dropout(struct exporter *e, Onnx__NodeProto *n, struct err *err)
{
    (void)e, (void)err;
    if (n->n_input > 2)
        n->n_input = 2;
    return 0;
}

static const struct {
    const char *op;
    int (*to_inference)(struct exporter *e, Onnx__NodeProto *n, struct err *err);
} switches[] = {
    { "BatchNormalization", infer_batch_norm },
    { "Dropout", infer_dropout },
};

int export_copy_nodes(struct exporter *e, struct err *err)
{
    const struct graph *g = e->g;
    const Onnx__GraphProto *from = g->file.model->graph;
    Onnx__NodeProto **list = arena_array(&e->mem, from->n_node, sizeof(*list));
    bool *removed = arena_array(&e->mem, from->n_node, sizeof(*removed));
    size_t n = 0, i, k;
    int rc = 0;

    if (list == NULL || removed == NULL)
        return export_no_memory(err);
    for (i = 0; i < g->n_values; i++)
        if (g->values[i].identity != GRAPH_NONE)
            removed[g->values[i].identity] = true;
    for (i = 0; i < from->n_node && rc == 0; i++) {
        if (removed[i])
            continue;
        list[n] = from->node[i];
        for (k = 0; k < sizeof(switches) / sizeof(switches[0]) && rc == 0; k++) {
            Onnx__NodeProto *copy;

            if (strcmp(from->node[i]->op_type, switches[k].op) != 0)
                continue;
            copy = arena_alloc(&e->mem, sizeof(*copy));
            if (copy == NULL)
                return export_no_memory(err);
            *copy = *from->node[i];
            list[n] = copy;
            rc = switches[k].to_inference(e, copy, err);
        }
        n++;
    }
    e->graph.node = list;
    e->graph.n_node = n;
    return rc;
}

int export_remove_inputs(struct exporter *e, struct err *err)
{
    const struct graph *g = e->g;
    uint32_t i;
    size_t k;

    for (i = 0; i < g->n_nodes; i++) {
        const struct graph_node *n = &g->nodes[i];
        const Onnx__NodeProto *from = g->file.model->graph->node[n->proto];
        Onnx__NodeProto *copy;

        if (strcmp(n->def->name, "Conv") != 0 || from->n_input <= n->n_in)
            continue;
        for (k = 0; k < e->graph.n_node && e->graph.node[k] != from; k++)
            ;
        if (k == e->graph.n_node)
            continue;
        copy = arena_alloc(&e->mem, sizeof(*copy));
        if (copy == NULL)
            return export_no_memory(err);
        *copy = *from;
        copy->n_input = n->n_in;
        e->graph.node[k] = copy;
    }
    return 0;
}

/* ---- unread constants ---- */

static bool is_same(const char *a, const char *b)
{
    return a != NULL && b != NULL && strcmp(a, b) == 0;
}

/* Nested graphs are opaque bytes here; the imported nodes list the outer values that they read. */
static bool is_captured(const struct graph *g, const char *name)
{
    uint32_t i, k;

    for (i = 0; i < g->n_nodes; i++)
        for (k = 0; k < g->nodes[i].n_captured; k++)
            if (is_same(g->values[g->nodes[i].captured[k]].name, name))
                return true;
    return false;
}

static bool is_read(const struct exporter *e, const char *name)
{
    size_t i, k;

    for (i = 0; i < e->graph.n_node; i++)
        for (k = 0; k < e->graph.node[i]->n_input; k++)
            if (is_same(e->graph.node[i]->input[k], name))
                return true;
    for (i = 0; i < e->graph.n_output; i++)
        if (is_same(e->graph.output[i]->name, name))
            return true;
    /* Without the initializer, an input of the same name would have to be fed. */
    for (i = 0; i < e->graph.n_input; i++)
        if (is_same(e->graph.input[i]->name, name))
            return true;
    return is_captured(e->g, name);
}

/* Removes the initializer or Constant node of this name. The exporter owns both lists. */
static void remove_constant(struct exporter *e, const char *name)
{
    size_t n = 0, i;

    for (i = 0; i < e->graph.n_initializer; i++)
        if (!is_same(e->graph.initializer[i]->name, name))
            e->graph.initializer[n++] = e->graph.initializer[i];
    e->graph.n_initializer = n;
    for (n = 0, i = 0; i < e->graph.n_node; i++) {
        const Onnx__NodeProto *p = e->graph.node[i];

        if (!is_same(p->op_type, "Constant") || p->n_output != 1 || !is_same(p->output[0], name))
            e->graph.node[n++] = e->graph.node[i];
    }
    e->graph.n_node = n;
}

void export_remove_unread(struct exporter *e)
{
    const Onnx__GraphProto *from = e->g->file.model->graph;
    const char *last = NULL;
    size_t i;

    for (i = 0; i < e->g->n_unread; i++)
        if (!is_read(e, e->g->unread[i]))
            remove_constant(e, e->g->unread[i]);

    for (i = 0; i < from->n_node; i++) {
        const Onnx__NodeProto *p = from->node[i];
        const char *mode = is_same(p->op_type, "Dropout") && p->n_input > 2 ? p->input[2] : NULL;

        if (mode == NULL || mode[0] == '\0' || is_same(mode, last))
            continue; /* exporters share one training_mode; it is searched once */
        last = mode;
        if (!is_read(e, mode))
            remove_constant(e, mode);
    }
}
