/* lower_norm.c - lowers RMSNormalization (23) to the row of that name (op/norm/layer_norm.c), whose
 * scale must have the shape of the normalized axes. In ONNX the scale broadcasts to the input: a
 * scale that broadcasts to these axes is expanded first, any other is multiplied after a
 * normalization with scale 1. */
#include "graph/plan_lower.h"

#include "base/err.h"

/* The axes of x from `axis` on. */
static struct shape row_of(const struct shape *x, int64_t axis)
{
    struct shape row = { .rank = x->rank - (uint32_t)axis };

    for (uint32_t k = 0; k < row.rank; k++)
        row.dim[k] = x->dim[axis + k];
    return row;
}

static uint32_t ones(struct lowering *l, const struct shape *s)
{
    void *data;
    uint32_t value = lower_constant(l, TENSOR_F32, s, &data);

    for (int64_t i = 0; value != GRAPH_NONE && i < shape_elements(s); i++)
        ((float *)data)[i] = 1;
    return value;
}

void lower_rms_norm(struct lowering *l)
{
    const uint32_t x = lower_in(l, 0), scale = lower_in(l, 1);
    const struct shape *s = &lower_tensor(l, x)->shape, *own = &lower_tensor(l, scale)->shape;
    struct lower_node n = { .op = "RMSNormalization", .n_in = 2, .in = { x, scale }, .n_attrs = l->from->n_attrs };
    struct shape row, both;
    int64_t axis;
    bool is_row, multiplies = false;
    uint32_t y;

    l->rc = op_attr_i(&l->attrs, "axis", -1, &axis, l->err);
    if (l->rc < 0)
        return;
    if (axis < -(int64_t)s->rank || axis >= (int64_t)s->rank) {
        LOWER_ERROR(l, ERR_INPUT, "axis is out of range: the input has %u dimensions",
                    (unsigned)s->rank);
        return;
    }
    row = row_of(s, axis < 0 ? axis + (int64_t)s->rank : axis);
    is_row = shape_elements(own) == shape_elements(&row);
    if (!is_row && shape_broadcast(own, &row, &both) && shape_equal(&both, &row)) {
        n.in[1] = lower_op(l, "Expand", scale, plan_add_ints(l->p, "(shape)", row.dim, row.rank),
                           GRAPH_NONE);
    } else if (!is_row && shape_broadcast(own, s, &both) && shape_equal(&both, s)) {
        n.in[1] = ones(l, &row);
        multiplies = true;
    }
    for (uint32_t i = 0; i < n.n_attrs && i < LOWER_MAX_ATTRS; i++)
        n.attrs[i] = l->from->attrs[i];
    y = lower_add(l, &n); /* refuses a scale that does not broadcast */
    lower_out(l, 0, multiplies ? lower_op(l, "Mul", y, scale, GRAPH_NONE) : y);
}
