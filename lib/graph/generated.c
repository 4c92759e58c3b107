/* generated.c - tables that the job makes larger than the model file: an initializer [1, width] becomes a
 * table [rows, width] whose initial rows are generated (tensor/fill.h). A dynamic table, whose indices are ids,
 * keeps its shape: the rows are on parameter servers only.
 *
 * The import sees values that are zero. They are addresses without memory: no table of the file's size or
 * larger is ever built, and a remote table needs none at all. */
#include <inttypes.h>
#include <string.h>
#include <sys/mman.h>

#include "base/err.h"
#include "base/text.h"
#include "graph/import_priv.h"

/* name: NULL in a damaged file. */
static const struct graph_table *find(const struct graph_opts *opts, const char *name)
{
    for (uint32_t i = 0; name != NULL && i < opts->n_tables; i++)
        if (strcmp(opts->tables[i].name, name) == 0)
            return &opts->tables[i];
    return NULL;
}

static int reserve(struct graph *g, struct tensor *t, struct err *err)
{
    uint64_t limit = (uint64_t)1 << 46; /* bytes: half of the addresses of a process */
    uint64_t width = (uint64_t)tensor_elements(t) / (uint64_t)t->shape.dim[0];
    struct graph_reserved *r = &g->reserved[g->n_reserved];
    void *at = MAP_FAILED;

    if (width <= limit / sizeof(float) / (uint64_t)t->shape.dim[0]) {
        r->bytes = tensor_bytes(t);
        at = mmap(NULL, r->bytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    }
    if (at == MAP_FAILED)
        return err_set(err, ERR_NOMEM,
                       "%" PRId64 " rows of %" PRIu64 " floats exceed the addresses",
                       t->shape.dim[0], width);
    t->data = r->at = at;
    g->n_reserved++;
    return 0;
}

int import_generate(struct importer *im, const char *name, struct graph_value *v, struct err *err)
{
    const struct graph_opts *o = im->opts;
    const struct graph_table *table = find(o, name);
    struct table_fill *fill;
    int rc;

    if (table == NULL)
        return 0;
    if (v->tensor.dtype != TENSOR_F32 || v->half.data != NULL || v->tensor.shape.rank != 2 ||
        v->tensor.shape.dim[0] != 1 || v->tensor.shape.dim[1] < 1) {
        char shape[192];

        return err_set(err, ERR_INPUT,
                       "/model/tables/%s: the initializer is %s %s, expected float32 [1, width]",
                       name, tensor_dtype_name(v->tensor.dtype),
                       shape_print(&v->tensor.shape, shape, sizeof(shape)));
    }
    if (im->g->reserved == NULL)
        im->g->reserved = arena_array(&im->g->mem, o->n_tables, sizeof(*im->g->reserved));
    fill = arena_alloc(&im->g->mem, sizeof(*fill));
    if (im->g->reserved == NULL || fill == NULL)
        return err_set(err, ERR_NOMEM, "/model/tables/%s: out of memory", name);
    *fill = table_fill_of(table->fill, table->fill == TABLE_UNIFORM ? table->range : table->stddev,
                          o->seed, name);
    v->is_dynamic = table->size == TABLE_DYNAMIC;
    if (!v->is_dynamic)
        v->tensor.shape.dim[0] = (int64_t)table->rows;
    v->external = NULL;
    v->fill = fill;
    rc = reserve(im->g, &v->tensor, err);
    return rc < 0 ? err_wrap(err, rc, "/model/tables/%s", name) : 0;
}

static int refuse_unknown(const struct graph *g, const char *name, struct err *err)
{
    const char *names[256], *near;
    uint32_t n = 0;

    for (uint32_t i = 0; i < g->n_values && n < 256; i++)
        if (g->values[i].initializer != GRAPH_NONE && g->values[i].tensor.shape.rank == 2)
            names[n++] = g->values[i].name;
    near = text_nearest(name, names, n);
    return err_set(err, ERR_INPUT, "/model/tables: the model has no initializer '%s'%s%s%s", name,
                   near != NULL ? "; did you mean '" : "", near != NULL ? near : "",
                   near != NULL ? "'?" : "");
}

int graph_check_generated(const struct graph *g, const struct graph_opts *opts, struct err *err)
{
    for (uint32_t i = 0; i < opts->n_tables; i++) {
        const char *name = opts->tables[i].name;
        const struct graph_value *v;
        uint64_t id;

        if (!map_get(&g->by_name, name, &id) || g->values[id].fill == NULL)
            return refuse_unknown(g, name, err);
        v = &g->values[id];
        if (v->kind != VALUE_PARAM || !g->params[v->index].is_table)
            return err_set(err, ERR_INPUT,
                           "/model/tables/%s: the tensor is no table that is trained: expected that "
                           "only Gather nodes along axis 0 read it, and that it is not frozen",
                           name);
    }
    return 0;
}

void graph_free_generated(struct graph *g)
{
    for (uint32_t i = 0; i < g->n_reserved; i++)
        munmap(g->reserved[i].at, g->reserved[i].bytes);
    g->n_reserved = 0;
}
