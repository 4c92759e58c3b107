/* module.c - which tensors of the file the module has.
 *
 * An exported file of weights must load into the module that the model was exported from, so it has
 * everything that the module's state_dict() has and nothing else. Parameters and running statistics
 * are known. A constant belongs to the module if the job froze it or a file of weights had it;
 * otherwise its name decides: exporters name what they take from a module by its path ("bn.weight"),
 * and constants of formulas "val_12", "onnx::Mul_3" or "/Constant_output_0". */
#include "graph/graph_priv.h"

#include <string.h>

#include "base/err.h"

static bool is_path_of_module(const char *name)
{
    const char *dot = strchr(name, '.');

    return dot != NULL && dot > name && dot[1] != '\0' && name[0] != '/' && strstr(name, "::") == NULL;
}

static bool is_of_module(const struct graph_value *v)
{
    if (v->kind == VALUE_PARAM)
        return true;
    return v->kind == VALUE_CONST && v->initializer != GRAPH_NONE &&
           (v->is_frozen || v->is_loaded || is_path_of_module(v->name));
}

int graph_find_module_tensors(struct graph *g, struct err *err)
{
    uint32_t i, n = 0;

    g->tensors = arena_array(&g->mem, g->n_values, sizeof(*g->tensors));
    if (g->tensors == NULL)
        return err_set(err, ERR_NOMEM, "tensors of the module: out of memory");
    for (i = 0; i < g->n_values; i++) {
        const struct graph_value *v = &g->values[i];
        struct graph_tensor *t = &g->tensors[n];

        if (!is_of_module(v))
            continue;
        t->name = v->name;
        t->tensor = v->tensor;
        t->is_param = v->kind == VALUE_PARAM;
        if (t->is_param) {
            t->offset = g->params[v->index].offset;
            t->tensor.data = NULL;
        }
        n++;
    }
    g->n_tensors = n;
    return 0;
}

const struct graph_tensor *graph_module_tensors(const struct graph *g, uint32_t *n)
{
    *n = g->n_tensors;
    return g->tensors;
}
