/* repair.c - corrects defects of exporters without changing what the network computes.
 *
 * PyTorch 2.15 (torch.onnx.export with dynamo=True, optimize=False) writes Conv3d(bias=False) with
 * a bias of zeros of shape [channels, 2]. ONNX requires [channels], and ONNX Runtime refuses such a
 * model. The bias is removed, also from the export, and a note reports it. */
#include "graph/graph_priv.h"

#include <inttypes.h>

#include "base/err.h"

static const struct graph_node *producer(const struct graph *g, uint32_t value)
{
    return value != GRAPH_NONE && g->values[value].kind == VALUE_NODE
               ? &g->nodes[g->values[value].index]
               : NULL;
}

static bool is_zero(const struct tensor *t)
{
    int64_t n = tensor_elements(t), i;

    if (t->dtype != TENSOR_F32 || t->data == NULL)
        return false;
    for (i = 0; i < n; i++)
        if (((const float *)t->data)[i] != 0)
            return false;
    return true;
}

/* Returns whether the value is a constant zero, or casts of one. */
static bool is_cast_of_zero(const struct graph *g, uint32_t value)
{
    const struct graph_node *n;

    while ((n = producer(g, value)) != NULL &&
           (op_is_onnx(n->def, "Cast") || op_is_onnx(n->def, "CastLike") ||
            op_is_onnx(n->def, "Identity")))
        value = n->in[0];
    return value != GRAPH_NONE && g->values[value].kind == VALUE_CONST &&
           is_zero(&g->values[value].tensor);
}

/* Returns whether the value is a two-dimensional tensor of zeros: Expand(0, Concat(channels, 2)),
 * or the same folded. */
static bool is_invalid_bias(const struct graph *g, uint32_t value)
{
    const struct graph_node *expand = producer(g, value), *shape;

    if (value == GRAPH_NONE)
        return false;
    if (g->values[value].kind == VALUE_CONST)
        return g->values[value].tensor.shape.rank == 2 && is_zero(&g->values[value].tensor);
    if (expand == NULL || !op_is_onnx(expand->def, "Expand") || expand->n_in != 2 ||
        !is_cast_of_zero(g, expand->in[0]))
        return false;
    shape = producer(g, expand->in[1]);
    return shape != NULL && op_is_onnx(shape->def, "Concat") && shape->n_in == 2;
}

int graph_repair(struct graph *g, struct err *err)
{
    const char *first = NULL;
    uint32_t n = 0, i;

    for (i = 0; i < g->n_nodes; i++) {
        struct graph_node *node = &g->nodes[i];

        if (!op_is_onnx(node->def, "Conv") || node->n_in != 3 || !is_invalid_bias(g, node->in[2]))
            continue;
        node->n_in = 2;
        if (n++ == 0)
            first = node->name;
    }
    if (n == 0)
        return 0;
    return graph_note(g, err,
                      "%" PRIu32 " convolutions (first '%s') have a bias of zeros with two "
                      "dimensions, which PyTorch 2.15 writes for bias=False with optimize=False and "
                      "ONNX does not allow: it is dropped, also in the export",
                      n, first);
}
