/* lift.c - converts Constant nodes to initializers in files whose weights may be Constant nodes.
 *
 * Paddle writes every weight as a Constant node. Training needs initializers, into which export
 * writes the new values. The message is changed as restore_form.c does: export writes the
 * initializer, which computes the same. Only tensors of floating-point numbers with several elements
 * are converted; form.c then classifies them as any other initializer. */
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "graph/import_priv.h"
#include "graph/param_priv.h"

enum { FLOAT = 1, FLOAT16 = 10, DOUBLE = 11, BFLOAT16 = 16 }; /* TensorProto.DataType */

static bool is_float(int32_t type)
{
    return type == FLOAT || type == FLOAT16 || type == DOUBLE || type == BFLOAT16;
}

/* The tensor of a Constant node that may be a weight; NULL: another node. */
static Onnx__TensorProto **weight_of(const Onnx__NodeProto *n)
{
    Onnx__TensorProto *t;
    int64_t elements = 1;
    size_t i;

    if (strcmp(import_text(n->op_type), "Constant") != 0 || !import_is_onnx(n->domain) ||
        n->n_output != 1 || n->n_attribute != 1 || n->attribute[0]->t == NULL ||
        strcmp(import_text(n->attribute[0]->name), "value") != 0)
        return NULL;
    t = n->attribute[0]->t;
    for (i = 0; i < t->n_dims; i++)
        elements = t->dims[i] <= 0 || elements > INT32_MAX ? 0 : elements * t->dims[i];
    return t->has_data_type && is_float(t->data_type) && elements > 1 ? &n->attribute[0]->t : NULL;
}

int graph_lift_constants(struct graph *g, struct err *err)
{
    Onnx__GraphProto *p = g->file.model->graph;
    Onnx__TensorProto **list;
    size_t n = 0, kept = 0, i;

    if (!form_may_have_inner_weights(g))
        return 0;
    for (i = 0; i < p->n_node; i++)
        n += weight_of(p->node[i]) != NULL;
    if (n == 0)
        return 0;
    list = realloc(p->initializer, (p->n_initializer + n) * sizeof(*list));
    if (list == NULL)
        return import_no_memory(err);
    p->initializer = list;
    for (i = 0; i < p->n_node; i++) {
        Onnx__NodeProto *node = p->node[i];
        Onnx__TensorProto **from = weight_of(node);
        char *name = from != NULL ? strdup(node->output[0]) : NULL;

        if (from == NULL) {
            p->node[kept++] = node;
            continue;
        }
        if (name == NULL) { /* the message stays valid */
            memmove(p->node + kept, p->node + i, (p->n_node - i) * sizeof(*p->node));
            p->n_node -= i - kept;
            return import_no_memory(err);
        }
        if ((*from)->name != NULL && (*from)->name != protobuf_c_empty_string)
            free((*from)->name);
        (*from)->name = name;
        list[p->n_initializer++] = *from;
        *from = NULL;
        onnx__node_proto__free_unpacked(node, NULL);
    }
    p->n_node = kept;
    return 0;
}
