/* module.c - which tensors of the file the module has.
 *
 * An exported file of weights must load into the module that the model was exported from, so it has
 * everything that the module's state_dict() has and nothing else. Parameters and running statistics
 * are known. A constant belongs to the module if the job froze it or a file of weights had it.
 * Otherwise PyTorch's signature decides, if the file has it: its lines are
 *
 *     p_fc_weight: PARAMETER target='fc.weight'
 *     b_bn_running_mean: BUFFER target='bn.running_mean' persistent=True
 *
 * and buffers that are not persistent are not in state_dict(). Without a signature the name decides:
 * exporters name what they take from a module by its path ("bn.weight"), and constants of formulas
 * "val_12", "onnx::Mul_3" or "/Constant_output_0". */
#include "graph/graph_priv.h"

#include <stdlib.h>
#include <string.h>

#include "base/err.h"

static bool is_path_of_module(const char *name)
{
    const char *dot = strchr(name, '.');

    return dot != NULL && dot > name && dot[1] != '\0' && name[0] != '/' && strstr(name, "::") == NULL;
}

/* ---- the signature ---- */

#define SIGNATURE "pkg.torch.export.ExportedProgram.graph_signature"

static const char *signature_of(const struct graph *g)
{
    const Onnx__GraphProto *p = g->unpacked->graph;
    size_t i;

    for (i = 0; i < p->n_metadata_props; i++)
        if (p->metadata_props[i]->key != NULL && strcmp(p->metadata_props[i]->key, SIGNATURE) == 0)
            return p->metadata_props[i]->value;
    return NULL;
}

/* Puts the target of one line, if it has one. The value: is it in state_dict()? */
static int put_line(const char *line, size_t n, struct map *out, struct err *err)
{
    static const char before[] = "target='";
    const char *name = memmem(line, n, before, sizeof(before) - 1), *end;
    bool is_volatile = memmem(line, n, "persistent=False", 16) != NULL;
    char *copy;
    int rc = 0;

    if (name == NULL)
        return 0;
    name += sizeof(before) - 1;
    end = memchr(name, '\'', n - (size_t)(name - line));
    if (end == NULL)
        return 0;
    copy = strndup(name, (size_t)(end - name));
    if (copy == NULL || map_put(out, copy, !is_volatile) == MAP_NOMEM)
        rc = err_set(err, ERR_NOMEM, "signature of the module: out of memory");
    free(copy);
    return rc;
}

static int read_signature(const char *text, struct map *out, struct err *err)
{
    int rc = 0;

    while (*text != '\0' && rc == 0) {
        size_t n = strcspn(text, "\n");

        rc = put_line(text, n, out, err);
        text += n + (text[n] == '\n');
    }
    return rc;
}

/* ---- */

/* `signature`: NULL, the file has none. */
static bool is_of_module(const struct graph_value *v, const struct map *signature)
{
    uint64_t is_saved;

    if (v->kind == VALUE_PARAM)
        return true;
    if (v->kind != VALUE_CONST || v->initializer == GRAPH_NONE)
        return false;
    if (signature != NULL && map_get(signature, v->name, &is_saved))
        return is_saved != 0;
    return v->is_frozen || v->is_loaded || (signature == NULL && is_path_of_module(v->name));
}

uint32_t graph_first_alias(const struct graph *g, const char *name)
{
    uint64_t k;

    return map_get(&g->evidence.by_name, name, &k) ? g->evidence.targets[k].aliases : EVIDENCE_NONE;
}

/* The job names the second name of a tied parameter: the module has it, the graph does not, and the
 * file of weights has the values under it. */
static bool is_tied_by_job(const struct graph *g, const struct graph_value *v,
                           const struct map *signature)
{
    uint64_t k;

    return v->file_name != NULL && signature != NULL && map_get(signature, v->file_name, &k) &&
           !map_get(&g->by_name, v->file_name, &k) &&
           (!map_get(&g->evidence.by_name, v->file_name, &k) ||
            g->evidence.targets[k].alias_of == EVIDENCE_NONE);
}

static void add_alias(struct graph *g, uint32_t *n, const char *name)
{
    g->tensors[*n] = g->tensors[*n - 1];
    g->tensors[*n].name = name;
    *n += 1;
}

static int list_tensors(struct graph *g, const struct map *signature, struct err *err)
{
    uint32_t i, k, n = 0;

    g->tensors = arena_array(&g->mem, 2 * (size_t)g->n_values + g->evidence.n_targets,
                             sizeof(*g->tensors));
    if (g->tensors == NULL)
        return err_set(err, ERR_NOMEM, "tensors of the module: out of memory");
    for (i = 0; i < g->n_values; i++) {
        const struct graph_value *v = &g->values[i];
        struct graph_tensor *t = &g->tensors[n];

        if (!is_of_module(v, signature))
            continue;
        t->name = v->name;
        t->tensor = v->tensor;
        t->is_param = v->kind == VALUE_PARAM;
        if (t->is_param) {
            t->offset = g->params[v->index].offset;
            t->tensor.data = NULL;
        }
        n++;
        for (k = graph_first_alias(g, v->name); k != EVIDENCE_NONE;
             k = g->evidence.targets[k].next_alias)
            add_alias(g, &n, g->evidence.targets[k].name);
        if (is_tied_by_job(g, v, signature))
            add_alias(g, &n, v->file_name);
    }
    g->n_tensors = n;
    return 0;
}

int graph_find_module_tensors(struct graph *g, struct err *err)
{
    const char *text = signature_of(g);
    struct map signature = { 0 };
    int rc = text != NULL ? read_signature(text, &signature, err) : 0;

    if (rc == 0)
        rc = list_tensors(g, text != NULL ? &signature : NULL, err);
    map_fini(&signature);
    return rc;
}

const struct graph_tensor *graph_module_tensors(const struct graph *g, uint32_t *n)
{
    *n = g->n_tensors;
    return g->tensors;
}
