/* lower_scatter.c - lowers TensorScatter (24) to ScatterElements: the rows of `update` along `axis`
 * replace those of the cache from write_indices[sample] on (0 if absent); circular: modulo the rows
 * of the cache. Only in PLAN_RUN: a training step has no cache. */
#include "graph/plan_lower.h"

#include <inttypes.h>
#include <string.h>

#include "base/err.h"

enum { CACHE, UPDATE, INDICES };

static void read_node(struct lowering *l, int64_t *axis, bool *is_circular)
{
    const struct shape *cache = &lower_tensor(l, lower_in(l, CACHE))->shape,
                       *update = &lower_tensor(l, lower_in(l, UPDATE))->shape;
    const char *mode;
    bool fits;

    if (l->p->purpose != PLAN_RUN) {
        LOWER_ERROR(l, ERR_UNSUPPORTED, "it updates a cache of keys and values, which a training step does not have; "
                    "export the model without a cache (transformers: config.use_cache = False)");
        return;
    }
    l->rc = op_attr_i(&l->attrs, "axis", -2, axis, l->err);
    if (l->rc == 0)
        l->rc = op_attr_s(&l->attrs, "mode", "linear", &mode, l->err);
    if (l->rc < 0)
        return;
    *is_circular = strcmp(mode, "circular") == 0;
    *axis += *axis < 0 ? (int64_t)cache->rank : 0;
    fits = cache->rank == update->rank && *axis > 0 && *axis < (int64_t)cache->rank;
    for (uint32_t k = 0; fits && k < cache->rank; k++)
        fits = k == (uint32_t)*axis ? update->dim[k] <= cache->dim[k]
                                    : update->dim[k] == cache->dim[k];
    if (!fits || (!*is_circular && strcmp(mode, "linear") != 0))
        LOWER_ERROR(l, ERR_INPUT, "expected an update that is at most as long as the cache along an axis after the "
                    "first and as large elsewhere, and mode linear or circular");
}

/* The index along the axis of every element of the update. */
static uint32_t places(struct lowering *l, int64_t axis, bool is_circular)
{
    const struct shape update = lower_tensor(l, lower_in(l, UPDATE))->shape;
    const int64_t rows = lower_tensor(l, lower_in(l, CACHE))->shape.dim[axis];
    struct shape line = { .rank = update.rank }, first = { .rank = update.rank };
    uint32_t at;
    void *data;

    for (uint32_t k = 0; k < update.rank; k++) {
        line.dim[k] = k == (uint32_t)axis ? update.dim[k] : 1;
        first.dim[k] = k == 0 ? update.dim[k] : 1;
    }
    at = lower_constant(l, TENSOR_I64, &line, &data);
    for (int64_t i = 0; at != GRAPH_NONE && i < update.dim[axis]; i++)
        ((int64_t *)data)[i] = i;
    if (lower_in(l, INDICES) != GRAPH_NONE && l->rc == 0 &&
        tensor_elements(lower_tensor(l, lower_in(l, INDICES))) != update.dim[0])
        LOWER_ERROR(l, ERR_INPUT, "write_indices: expected one for each of %" PRId64 " samples",
                    update.dim[0]);
    else if (lower_in(l, INDICES) != GRAPH_NONE)
        at = lower_op(l, "Add", at, lower_reshape(l, lower_in(l, INDICES), first.dim, first.rank),
                      GRAPH_NONE);
    if (is_circular)
        at = lower_op(l, "Mod", at, plan_add_ints(l->p, "(rows)", &rows, 0), GRAPH_NONE);
    return lower_op(l, "Expand", at, plan_add_ints(l->p, "(shape)", update.dim, update.rank),
                    GRAPH_NONE);
}

void lower_scatter(struct lowering *l)
{
    struct lower_node n = { .op = "ScatterElements", .n_in = 3, .n_attrs = 1,
                            .attrs = { { .name = "axis", .type = OP_ATTR_INT } } };
    int64_t axis = 0;
    bool is_circular = false;

    read_node(l, &axis, &is_circular);
    if (l->rc < 0)
        return;
    n.in[0] = lower_in(l, CACHE);
    n.in[1] = places(l, axis, is_circular);
    n.in[2] = lower_in(l, UPDATE);
    n.attrs[0].i = axis;
    lower_out(l, 0, lower_add(l, &n));
}
