/* weights.c - loads initial values from a weights file, matched by name.
 *
 * The names of a graph that was exported with its metadata are those of the module's tensors, which
 * are also the names in a safetensors file. The file must contain every parameter, every running
 * statistic and every other tensor of the state_dict(), unless the job lists it as fresh. Any other
 * constant that the file contains (a non-persistent buffer) gets the file's value too. Float types
 * are converted to the type of the graph; shapes must be equal. Values of parameters remain in the
 * file until graph_fill_initial(); those of constants are copied now. */
#include "graph/graph_priv.h"

#include <fnmatch.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/err.h"
#include "base/mapping.h"
#include "base/text.h"

enum { LISTED = 5, SUGGEST_MAX = 4096 };

struct loader {
    struct graph *g;
    const struct graph_weights *w;
    struct map used;    /* names of the file that the graph has */
    struct buf missing; /* names of the first LISTED missing tensors, quoted */
    uint32_t n_missing;
    const char *first_missing;
};

static int no_memory(struct err *err)
{
    return err_set(err, ERR_NOMEM, "load weights: out of memory");
}

static bool is_float(enum tensor_dtype t)
{
    return t == TENSOR_F32 || t == TENSOR_F64 || t == TENSOR_F16 || t == TENSOR_BF16;
}

static bool is_fresh(const struct graph_weights *w, const char *name)
{
    uint32_t i;

    for (i = 0; i < w->n_fresh; i++)
        if (fnmatch(w->fresh[i], name, 0) == 0)
            return true;
    return false;
}

/* ---- one value ---- */

static int check_shape(const struct graph_value *v, const struct graph_weight *found,
                       struct err *err)
{
    char in_model[192], in_file[192];

    if (!shape_equal(&v->tensor.shape, &found->tensor.shape))
        return err_set(err, ERR_INPUT, "'%s' is %s in the model, but %s in the file", v->name,
                       shape_print(&v->tensor.shape, in_model, sizeof(in_model)),
                       shape_print(&found->tensor.shape, in_file, sizeof(in_file)));
    if (v->tensor.dtype == found->tensor.dtype ||
        (v->tensor.dtype == TENSOR_F32 && is_float(found->tensor.dtype)))
        return 0;
    return err_set(err, ERR_INPUT, "'%s' is %s in the model, but %s in the file", v->name,
                   tensor_dtype_name(v->tensor.dtype), tensor_dtype_name(found->tensor.dtype));
}

static int load_constant(struct loader *l, struct graph_value *v, const struct graph_weight *found,
                         struct err *err)
{
    size_t bytes = tensor_bytes(&v->tensor);
    void *copy = arena_alloc(&l->g->mem, bytes);

    if (copy == NULL)
        return no_memory(err);
    if (v->tensor.dtype == TENSOR_F32)
        graph_read_floats(&found->tensor, found->mapping, copy);
    else if (bytes > 0)
        memcpy(copy, found->tensor.data, bytes);
    v->tensor.data = copy;
    return found->mapping != NULL ? mapping_check(found->mapping, err) : 0;
}

static void load_param(struct loader *l, struct graph_value *v, const struct graph_weight *found)
{
    struct graph_param *p = &l->g->params[v->index];
    bool in_place =
        found->tensor.dtype == TENSOR_F32 && (uintptr_t)found->tensor.data % _Alignof(float) == 0;

    l->g->initials[v->index] = (struct graph_initial){ .from = found->tensor, .mapping = found->mapping };
    p->initial = in_place ? found->tensor.data : NULL;
}

static int add_missing(struct loader *l, const struct graph_value *v, bool is_required,
                       struct err *err)
{
    if (!is_required)
        return 0;
    if (is_fresh(l->w, v->name)) {
        l->g->report.weights.fresh++;
        return 0;
    }
    if (l->n_missing++ == 0)
        l->first_missing = v->name;
    if (l->n_missing <= LISTED)
        buf_printf(&l->missing, "%s'%s'", l->n_missing > 1 ? ", " : "", v->name);
    return l->missing.failed ? no_memory(err) : 0;
}

/* Finds a value under its name in the graph, else under a name that the module ties to it: files
 * often contain a tied parameter once. `name` receives the name in the file. */
static bool find_value(const struct loader *l, const struct graph_value *v,
                       char name[GRAPH_WEIGHT_NAME_BYTES], struct graph_weight *found)
{
    const struct graph_metadata_target *targets = l->g->file.metadata.targets;
    uint32_t k;

    if (graph_weights_name(l->w, v->name, name, GRAPH_WEIGHT_NAME_BYTES) &&
        l->w->find(l->w->arg, name, found))
        return true;
    for (k = graph_first_alias(l->g, v->name); k != METADATA_NONE; k = targets[k].next_alias)
        if (graph_weights_name(l->w, targets[k].name, name, GRAPH_WEIGHT_NAME_BYTES) &&
            l->w->find(l->w->arg, name, found))
            return true;
    return false;
}

/* The file may contain a tied parameter under several names; the bytes must then be equal. */
static int check_aliases(struct loader *l, const struct graph_value *v,
                         const struct graph_weight *found, struct err *err)
{
    const struct graph_metadata_target *targets = l->g->file.metadata.targets;
    struct graph_weight other = { .mapping = NULL };
    char name[GRAPH_WEIGHT_NAME_BYTES];
    uint32_t k;

    for (k = graph_first_alias(l->g, v->name); k != METADATA_NONE; k = targets[k].next_alias) {
        if (!graph_weights_name(l->w, targets[k].name, name, sizeof(name)) ||
            !l->w->find(l->w->arg, name, &other))
            continue;
        if (other.tensor.dtype != found->tensor.dtype ||
            !shape_equal(&other.tensor.shape, &found->tensor.shape) ||
            memcmp(other.tensor.data, found->tensor.data, tensor_bytes(&found->tensor)) != 0)
            return err_set(err, ERR_INPUT,
                           "the module ties '%s' to '%s', but the file has other values for '%s'; "
                           "export a module in which they are not tied",
                           targets[k].name, v->name, name);
        if (map_put(&l->used, name, 0) == MAP_NOMEM)
            return no_memory(err);
    }
    return 0;
}

/* Refuses a tensor that the exporter computed from parameters: its values in the ONNX file do not
 * match the weights of another file. */
static int refuse_computed(const struct loader *l, const struct graph_value *v, struct err *err)
{
    const struct graph_metadata_tensor *t = graph_metadata_of(l->g, v->name);

    if (t == NULL || (t->kind != METADATA_FOLDED && t->kind != METADATA_CHANGED))
        return 0;
    return err_set(
        err, ERR_INPUT,
        "the exporter computed '%s' from parameters of the module%s%s, and other weights "
        "cannot take its place: export with torch.onnx.export(model, args, "
        "\"model.onnx\", dynamo=True, optimize=False), which keeps every parameter",
        v->name, t->target != METADATA_NONE ? ", among them " : "",
        t->target != METADATA_NONE ? l->g->file.metadata.targets[t->target].name : "");
}

static int load_value(struct loader *l, struct graph_value *v, struct err *err)
{
    bool is_param = v->kind == VALUE_PARAM;
    struct graph_weight found = { .mapping = NULL };
    char name[GRAPH_WEIGHT_NAME_BYTES];
    int rc;

    if (!is_param && (v->kind != VALUE_CONST || v->initializer == GRAPH_NONE))
        return 0;
    if (v->fill != NULL) {
        l->g->report.weights.fresh++;
        return 0;
    }
    rc = refuse_computed(l, v, err);
    if (rc < 0)
        return rc;
    if (!find_value(l, v, name, &found))
        return add_missing(l, v, is_param || graph_is_state(l->g, v), err);
    rc = check_shape(v, &found, err);
    if (rc == 0)
        rc = check_aliases(l, v, &found, err);
    if (rc == 0 && is_param)
        load_param(l, v, &found);
    else if (rc == 0)
        rc = load_constant(l, v, &found, err);
    v->is_loaded = true;
    l->g->report.weights.loaded++;
    if (rc == 0 && strcmp(name, v->name) != 0) {
        v->file_name = arena_strdup(&l->g->mem, name);
        if (v->file_name == NULL)
            return no_memory(err);
    }
    if (rc == 0 && map_put(&l->used, name, 0) == MAP_NOMEM)
        rc = no_memory(err);
    return rc;
}

/* ---- missing and surplus tensors ---- */

/* If a name of the file is a prefix, a "." and the missing name, or the missing name is a prefix, a
 * "." and a name of the file: writes the line of JSON that adds or removes the prefix. */
static bool prefix_remedy(const struct loader *l, char *out, size_t size)
{
    const char *name = l->first_missing;
    size_t len = strlen(name);
    uint32_t i;

    for (i = 0; i < l->w->n_names; i++) {
        const char *other = l->w->names[i];
        size_t n = strlen(other);

        if (n > len + 1 && other[n - len - 1] == '.' && strcmp(other + n - len, name) == 0) {
            snprintf(out, size, "\"weights_names\": {\"*\": \"%.*s*\"}", (int)(n - len), other);
            return true;
        }
        if (len > n + 1 && name[len - n - 1] == '.' && strcmp(name + len - n, other) == 0) {
            snprintf(out, size, "\"weights_names\": {\"%.*s*\": \"*\"}", (int)(len - n), name);
            return true;
        }
    }
    return false;
}

static int refuse_missing(struct loader *l, struct err *err)
{
    const char *near = text_nearest(l->first_missing, l->w->names,
                                    l->w->n_names < SUGGEST_MAX ? l->w->n_names : SUGGEST_MAX);
    char line[600], nearest[400] = "";

    if (near != NULL)
        snprintf(nearest, sizeof(nearest), "; the nearest name there is '%s'", near);
    if (!prefix_remedy(l, line, sizeof(line)))
        snprintf(line, sizeof(line), "\"weights_names\": {\"%s\": \"%s\"}", l->first_missing,
                 near != NULL ? near : "the name in the file");
    return err_set(err, ERR_INPUT,
                   "%" PRIu32 " parameters of the model are not in the file: %s%s%s. If the file "
                   "has them under another name, write in /model %s; if they begin with the "
                   "model's own values, write in /model \"weights_fresh\": [\"%s\"]",
                   l->n_missing, l->missing.data, l->n_missing > LISTED ? ", ..." : "", nearest,
                   line, l->first_missing);
}

static int note(struct loader *l, struct err *err)
{
    struct graph_weights_facts *facts = &l->g->report.weights;
    struct buf list = { 0 };
    uint64_t at;
    uint32_t i;
    int rc;

    for (i = 0; i < l->w->n_names; i++)
        if (!map_get(&l->used, l->w->names[i], &at) && facts->surplus++ < LISTED)
            buf_printf(&list, "%s'%s'", facts->surplus > 1 ? ", " : ": ", l->w->names[i]);
    rc = list.failed ? no_memory(err) : 0;
    if (rc == 0)
        rc = graph_note(l->g, err,
                        "weights '%s': %" PRIu32 " tensors loaded, %" PRIu32 " keep the values of "
                        "the model, %" PRIu32 " of the file are not in the model%s%s",
                        l->w->path, facts->loaded, facts->fresh, facts->surplus,
                        list.data != NULL ? list.data : "", facts->surplus > LISTED ? ", ..." : "");
    buf_fini(&list);
    return rc;
}

int graph_load_weights(struct graph *g, const struct graph_weights *w, struct err *err)
{
    struct loader l = { .g = g, .w = w };
    uint32_t i;
    int rc = 0;

    mapping_enable_thread();
    for (i = 0; i < g->n_values && rc == 0; i++)
        rc = load_value(&l, &g->values[i], err);
    if (rc == 0 && l.n_missing > 0)
        rc = refuse_missing(&l, err);
    if (rc == 0)
        rc = note(&l, err);
    map_fini(&l.used);
    buf_fini(&l.missing);
    return rc < 0 ? err_wrap(err, rc, "weights '%s'", w->path) : 0;
}

struct graph_weights_facts graph_weights_facts(const struct graph *g)
{
    return g->report.weights;
}
