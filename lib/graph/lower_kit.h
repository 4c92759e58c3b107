/* lower_kit.h - helpers of the lowerings that write a formula (lower_move.c, lower_signal.c).
 *
 * All nodes have one opset, independent of the file: rows of the model's opset may expect axes and
 * other arguments in another form. */
#ifndef GRAPH_LOWER_KIT_H
#define GRAPH_LOWER_KIT_H

#include "graph/plan_lower.h"

enum { KIT_OPSET = 18 /* axes of reductions and of Pad are inputs */ };

/* Adds a node with up to three inputs (the first GRAPH_NONE ends the list) and n attributes. */
static inline uint32_t kit_node(struct lowering *l, const char *op, uint32_t a, uint32_t b,
                                uint32_t c, const struct op_attr *attrs, uint32_t n)
{
    struct lower_node node = { .op = op, .opset = KIT_OPSET, .in = { a, b, c }, .n_attrs = n };

    node.n_in = c != GRAPH_NONE ? 3 : b != GRAPH_NONE ? 2 : 1;
    for (uint32_t i = 0; i < n; i++)
        node.attrs[i] = attrs[i];
    return lower_add(l, &node);
}

static inline uint32_t kit_op(struct lowering *l, const char *op, uint32_t a, uint32_t b,
                              uint32_t c)
{
    return kit_node(l, op, a, b, c, NULL, 0);
}

static inline uint32_t kit_op_int(struct lowering *l, const char *op, uint32_t a, uint32_t b,
                                  uint32_t c, const char *name, int64_t value)
{
    const struct op_attr attr = { .name = name, .type = OP_ATTR_INT, .i = value };

    return kit_node(l, op, a, b, c, &attr, 1);
}

/* A constant list of integers; n 0: a scalar. */
static inline uint32_t kit_ints(struct lowering *l, const int64_t *values, uint32_t n)
{
    uint32_t value = l->rc == 0 ? plan_add_ints(l->p, l->from->name, values, n) : GRAPH_NONE;

    if (l->rc == 0 && value == GRAPH_NONE)
        l->rc = plan_no_memory(l->err);
    return value;
}

static inline uint32_t kit_reshape(struct lowering *l, uint32_t x, const struct shape *s)
{
    return kit_op(l, "Reshape", x, kit_ints(l, s->dim, s->rank), GRAPH_NONE);
}

static inline uint32_t kit_transpose(struct lowering *l, uint32_t x, const int64_t *perm,
                                     uint32_t rank)
{
    const struct op_attr attr = { .name = "perm", .type = OP_ATTR_INTS, .n = rank,
                                  .ints = lower_ints(l, perm, rank) };

    return kit_node(l, "Transpose", x, GRAPH_NONE, GRAPH_NONE, &attr, 1);
}

/* The tensor of input i, which must be present and of type t (TENSOR_NONE: any); NULL: rc is
 * set. */
const struct tensor *kit_input(struct lowering *l, uint32_t i, enum tensor_dtype t);
/* Reads input i, which must be integers that are known while planning. *n 0 and *values NULL:
 * absent. false: rc is set. */
bool kit_known(struct lowering *l, uint32_t i, const int64_t **values, size_t *n);
/* The attribute `name` as an axis in 0 .. rank - 1; an invalid axis sets rc. */
int64_t kit_axis(struct lowering *l, const char *name, int64_t dflt, uint32_t rank);
bool kit_check_axis(struct lowering *l, int64_t *axis, uint32_t rank);

#endif
