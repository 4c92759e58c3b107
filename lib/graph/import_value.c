/* import_value.c - the values of an import, and what the files of the import share: names, domains, errors. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "graph/import_priv.h"

int import_no_memory(struct err *err)
{
    return err_set(err, ERR_NOMEM, "out of memory");
}

const char *import_text(const char *s)
{
    return s != NULL ? s : "";
}

bool import_is_onnx(const char *domain)
{
    return domain == NULL || domain[0] == '\0' || strcmp(domain, "ai.onnx") == 0;
}

int graph_check_opsets(const char *what, Onnx__OperatorSetIdProto *const *list, size_t n,
                       struct err *err)
{
    struct map seen = { 0 };
    uint64_t first;
    size_t i;
    int rc = 0;

    for (i = 0; i < n && rc == 0; i++) {
        const char *domain = import_is_onnx(list[i]->domain) ? "ai.onnx" : list[i]->domain;

        if (map_get(&seen, domain, &first) && list[first]->version == list[i]->version &&
            strcmp(import_text(list[first]->domain), import_text(list[i]->domain)) != 0)
            continue; /* Paddle lists the default domain in both spellings */
        if (map_get(&seen, domain, &first))
            rc = err_set(err, ERR_INPUT,
                         "%s imports opset %" PRId64 " of %s and also %" PRId64
                         "; expected one opset_import of a domain: delete one of them, or export "
                         "the model again",
                         what, list[first]->version, domain, list[i]->version);
        else if (map_put(&seen, domain, i) == MAP_NOMEM)
            rc = import_no_memory(err);
    }
    map_fini(&seen);
    return rc;
}

int import_add_value(struct importer *im, const struct scope *scope, const char *name,
                     struct graph_value v, uint32_t *out, struct err *err)
{
    struct graph *g = im->g;

    if (name == NULL || name[0] == '\0')
        return err_set(err, ERR_INPUT, "a tensor of the graph has no name");
    v.name = name;
    if (g->n_values >= GRAPH_NONE - 1)
        return err_set(err, ERR_INPUT, "the graph has more than %" PRIu32 " tensors", g->n_values);
    if (!vec_grow((void **)&g->values, &g->cap_values, (size_t)g->n_values + 1, sizeof(*g->values)))
        return import_no_memory(err);
    switch (map_put(scope->names, name, g->n_values)) {
    case MAP_NOMEM:
        return import_no_memory(err);
    case MAP_EXISTED:
        return err_set(err, ERR_INPUT, "two tensors of the graph have the name '%s'", name);
    case MAP_NEW:
        break;
    }
    g->values[g->n_values] = v;
    *out = g->n_values++;
    return 0;
}

int import_initializers(struct importer *im, const Onnx__GraphProto *p, const struct scope *scope,
                        bool is_inner, struct err *err)
{
    size_t i;
    int rc = 0;

    if (p->n_sparse_initializer > 0)
        return err_set(err, ERR_UNSUPPORTED,
                       "a graph has %zu sparse initializers; store them as dense ones",
                       p->n_sparse_initializer);
    for (i = 0; i < p->n_initializer && rc == 0; i++) {
        const Onnx__TensorProto *t = p->initializer[i];
        struct graph_value v = { .kind = VALUE_CONST,
                                 .initializer = is_inner ? GRAPH_NONE : (uint32_t)i,
                                 .identity = GRAPH_NONE };
        char what[160];
        uint32_t id;

        snprintf(what, sizeof(what), "initializer '%.120s'", import_text(t->name));
        im->src.stays_mapped = !is_inner;
        rc = graph_read_tensor(&im->src, t, what, &v.tensor, err);
        im->src.stays_mapped = false;
        v.external = im->src.mapped;
        v.half = im->src.half;
        if (rc == 0 && !is_inner)
            rc = import_generate(im, t->name, &v, err);
        if (rc == 0)
            rc = import_add_value(im, scope, t->name, v, &id, err);
    }
    return rc;
}
