/* lower_add.c - the nodes that a lowering adds (plan_lower.h). */
#include <string.h>

#include "base/check.h"
#include "base/err.h"
#include "graph/plan_lower.h"

static bool has_failed(struct lowering *l, bool is_fine)
{
    if (l->rc == 0 && !is_fine)
        l->rc = plan_no_memory(l->err);
    return l->rc < 0;
}

uint32_t lower_add(struct lowering *l, const struct lower_node *from)
{
    struct plan *p = l->p;
    struct plan_node n = { .name = l->from->name, .n_in = from->n_in, .n_out = 1, .n_attrs = from->n_attrs };
    struct op_attr *attrs = arena_array(&p->mem, from->n_attrs, sizeof(*attrs));
    uint32_t out;

    n.in = arena_array(&p->mem, n.n_in, sizeof(*n.in));
    if (has_failed(l, attrs != NULL && n.in != NULL))
        return GRAPH_NONE;
    n.def = op_find(from->domain, from->op,
                    from->domain != NULL ? 1
                    : from->opset != 0   ? from->opset
                                         : p->g->opset);
    CHECK(n.def != NULL);
    memcpy(n.in, from->in, n.n_in * sizeof(*n.in));
    memcpy(attrs, from->attrs, n.n_attrs * sizeof(*attrs));
    n.attrs = attrs;
    l->rc = plan_add_node(p, &n, &n.name, l->err);
    if (l->rc < 0) {
        l->rc = plan_add_cast(l->b, &n, &n.name, l->rc, l->err);
        return l->rc < 0 ? GRAPH_NONE : n.out[0];
    }
    out = n.out[0];
    l->rc = plan_mark_samples(p, &n, l->err);
    if (l->rc == 0)
        l->rc = plan_fold_node(p, &n, l->err);
    return l->rc < 0 ? GRAPH_NONE : out;
}

uint32_t lower_op(struct lowering *l, const char *op, uint32_t a, uint32_t b, uint32_t c)
{
    struct lower_node n = { .op = op, .in = { a, b, c } };

    n.n_in = c != GRAPH_NONE ? 3 : b != GRAPH_NONE ? 2 : 1;
    return lower_add(l, &n);
}

const int64_t *lower_ints(struct lowering *l, const int64_t *values, size_t n)
{
    int64_t *ints = arena_array(&l->p->mem, n, sizeof(*ints));

    if (has_failed(l, ints != NULL))
        return NULL;
    memcpy(ints, values, n * sizeof(*ints));
    return ints;
}

uint32_t lower_transpose(struct lowering *l, uint32_t x, const int64_t *perm, uint32_t rank)
{
    const struct lower_node n = { .op = "Transpose", .n_in = 1, .in = { x }, .n_attrs = 1,
                                  .attrs = { { .name = "perm", .type = OP_ATTR_INTS, .n = rank,
                                               .ints = lower_ints(l, perm, rank) } } };

    return lower_add(l, &n);
}

uint32_t lower_reshape(struct lowering *l, uint32_t x, const int64_t *dim, uint32_t rank)
{
    uint32_t shape = plan_add_ints(l->p, "(shape)", dim, rank);

    return has_failed(l, shape != GRAPH_NONE) ? GRAPH_NONE
                                              : lower_op(l, "Reshape", x, shape, GRAPH_NONE);
}

uint32_t lower_cast(struct lowering *l, uint32_t x, enum tensor_dtype to)
{
    const struct lower_node n = { .op = "Cast", .n_in = 1, .in = { x }, .n_attrs = 1,
                                  .attrs = { { .name = "to", .type = OP_ATTR_INT, .i = to } } };

    return lower_add(l, &n);
}

uint32_t lower_concat(struct lowering *l, uint32_t a, uint32_t b, int64_t axis)
{
    const struct lower_node n = { .op = "Concat", .n_in = 2, .in = { a, b }, .n_attrs = 1,
                                  .attrs = { { .name = "axis", .type = OP_ATTR_INT, .i = axis } } };

    return lower_add(l, &n);
}

uint32_t lower_constant(struct lowering *l, enum tensor_dtype dtype, const struct shape *shape,
                        void **data)
{
    struct tensor t = { .dtype = dtype, .shape = *shape };
    uint32_t value;
    char *room = arena_alloc(&l->p->mem, tensor_bytes(&t) + 64);

    if (has_failed(l, room != NULL))
        return GRAPH_NONE;
    t.data = (void *)(((uintptr_t)room + 63) / 64 * 64); /* kernels require 64-byte alignment */
    value = plan_add_value(l->p, l->from->name, PLAN_CONST, 0, &t);
    *data = t.data;
    return has_failed(l, value != GRAPH_NONE) ? GRAPH_NONE : value;
}

uint32_t lower_number(struct lowering *l, float number)
{
    const struct shape none = { .rank = 0 };
    void *data;
    uint32_t value = lower_constant(l, TENSOR_F32, &none, &data);

    if (value != GRAPH_NONE)
        *(float *)data = number;
    return value;
}

uint32_t lower_in(const struct lowering *l, uint32_t i)
{
    return i < l->from->n_in && l->from->in[i] != GRAPH_NONE ? l->b->map[l->from->in[i]]
                                                             : GRAPH_NONE;
}

const struct tensor *lower_tensor(const struct lowering *l, uint32_t value)
{
    return &l->p->values.at[value].tensor;
}

bool lower_is_needed(const struct lowering *l, uint32_t i)
{
    return i < l->from->n_out && l->from->out[i] != GRAPH_NONE && l->b->needed[l->from->out[i]];
}

void lower_out(struct lowering *l, uint32_t i, uint32_t value)
{
    if (l->rc < 0)
        return;
    l->p->values.at[value].name = l->p->g->values[l->from->out[i]].name; /* for messages */
    l->b->map[l->from->out[i]] = value;
}
