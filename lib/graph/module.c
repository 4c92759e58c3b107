/* module.c - determines which tensors of the file belong to the module.
 *
 * An exported weights file must load into the module that the model was exported from, so it
 * contains exactly the tensors of the module's state_dict(). Parameters and running statistics are
 * known. A constant belongs to the module if the job froze it or a weights file contained it.
 * Otherwise PyTorch's signature decides, if the file has one. Its lines are
 *
 *     p_fc_weight: PARAMETER target='fc.weight'
 *     b_bn_running_mean: BUFFER target='bn.running_mean' persistent=True
 *
 * and non-persistent buffers are not in state_dict(). Without a signature the name decides:
 * exporters name tensors of a module by their path ("bn.weight"), and constants of formulas
 * "val_12", "onnx::Mul_3" or "/Constant_output_0". */
#include "graph/graph_priv.h"

#include <string.h>

#include "base/err.h"

static bool is_path_of_module(const char *name)
{
    const char *dot = strchr(name, '.');

    return dot != NULL && dot > name && dot[1] != '\0' && name[0] != '/' &&
           strstr(name, "::") == NULL;
}

static const struct graph_metadata_target *target_of(const struct graph *g, const char *name)
{
    uint64_t k;

    return map_get(&g->file.metadata.by_name, name, &k) ? &g->file.metadata.targets[k] : NULL;
}

/* Returns whether the constant is a parameter or a persistent buffer of the module. */
bool graph_is_state(const struct graph *g, const struct graph_value *v)
{
    const struct graph_metadata_target *t = target_of(g, v->name);

    return t != NULL ? !t->is_volatile : v->is_frozen;
}

static bool is_of_module(const struct graph *g, const struct graph_value *v)
{
    if (v->kind == VALUE_PARAM)
        return true;
    if (v->kind != VALUE_CONST || v->initializer == GRAPH_NONE)
        return false;
    if (graph_is_state(g, v))
        return true;
    return target_of(g, v->name) == NULL &&
           (v->is_loaded || (!g->file.metadata.has_signature && is_path_of_module(v->name)));
}

uint32_t graph_first_alias(const struct graph *g, const char *name)
{
    const struct graph_metadata_target *t = target_of(g, name);

    return t != NULL ? t->aliases : METADATA_NONE;
}

/* Returns whether the job defines the second name of a tied parameter: the module has this name,
 * the graph does not, and the weights file stores the values under it. */
static bool is_tied_by_job(const struct graph *g, const struct graph_value *v)
{
    const struct graph_metadata_target *t =
        v->file_name != NULL ? target_of(g, v->file_name) : NULL;
    uint64_t k;

    return t != NULL && t->is_parameter && t->alias_of == METADATA_NONE &&
           !map_get(&g->by_name, v->file_name, &k);
}

static void add_alias(struct graph *g, uint32_t *n, const char *name)
{
    g->module.tensors[*n] = g->module.tensors[*n - 1];
    g->module.tensors[*n].name = name;
    *n += 1;
}

int graph_find_module_tensors(struct graph *g, struct err *err)
{
    uint32_t i, k, n = 0;

    g->module.tensors = arena_array(&g->mem, 2 * (size_t)g->n_values + g->file.metadata.n_targets,
                                    sizeof(*g->module.tensors));
    if (g->module.tensors == NULL)
        return err_set(err, ERR_NOMEM, "tensors of the module: out of memory");
    for (i = 0; i < g->n_values; i++) {
        const struct graph_value *v = &g->values[i];
        struct graph_tensor *t = &g->module.tensors[n];

        if (!is_of_module(g, v))
            continue;
        t->name = v->name;
        t->tensor = v->tensor;
        t->is_remote = v->kind == VALUE_PARAM && graph_param_is_remote(g, v->index);
        t->is_param = v->kind == VALUE_PARAM && !t->is_remote;
        if (t->is_param)
            t->offset = g->params[v->index].offset;
        if (t->is_remote)
            t->remote = v->index - g->n_params;
        if (v->kind == VALUE_PARAM)
            t->tensor.data = NULL;
        n++;
        for (k = graph_first_alias(g, v->name); k != METADATA_NONE;
             k = g->file.metadata.targets[k].next_alias)
            add_alias(g, &n, g->file.metadata.targets[k].name);
        if (is_tied_by_job(g, v))
            add_alias(g, &n, v->file_name);
    }
    g->module.n = n;
    return 0;
}

const struct graph_tensor *graph_module_tensors(const struct graph *g, uint32_t *n)
{
    *n = g->module.n;
    return g->module.tensors;
}
