/* lower_deform.c - lowers DeformConv (19) to columns and a product:
 *   columns = trainerd.DeformColumns(X, offset, mask)     [n, c taps, points]
 *   Y = W [group, m / group, c / group taps] columns + B
 * so that the gradients of W and B are those of MatMul and Add. */
#include "graph/lower_kit.h"

#include <inttypes.h>

#include "base/err.h"

enum { X, W, OFFSET, BIAS, MASK };

/* Sets the attributes of the columns; false: rc is set. */
static bool columns_attrs(struct lowering *l, const struct shape *w, struct lower_node *n)
{
    static const char *const lists[] = { "dilations", "kernel_shape", "pads", "strides" };
    const int64_t *kernel = lower_ints(l, w->dim + 2, 2), *list;
    int64_t groups;
    size_t len, k;

    for (k = 0; k < 4 && l->rc == 0; k++) {
        l->rc = op_attr_ints(&l->attrs, lists[k], &list, &len, l->err);
        if (l->rc < 0)
            break;
        if (k == 1 && list != NULL && (len != 2 || list[0] != w->dim[2] || list[1] != w->dim[3]))
            LOWER_ERROR(l, ERR_INPUT,
                        "kernel_shape differs from that of the weights, %" PRId64 " by %" PRId64,
                        w->dim[2], w->dim[3]);
        else if (k == 1 || list != NULL)
            n->attrs[n->n_attrs++] = (struct op_attr){ .name = lists[k], .type = OP_ATTR_INTS, .n = k == 1 ? 2 : len,
                                                       .ints = k == 1 ? kernel : list };
    }
    if (l->rc == 0)
        l->rc = op_attr_i(&l->attrs, "offset_group", 1, &groups, l->err);
    if (l->rc == 0)
        n->attrs[n->n_attrs++] = (struct op_attr){ .name = "offset_group", .type = OP_ATTR_INT, .i = groups };
    return l->rc == 0;
}

/* The product, [n, m, oh, ow]. Its size is that of the offsets, which DeformColumns has
 * validated. */
static uint32_t product(struct lowering *l, uint32_t columns, int64_t group)
{
    const struct shape *w = &lower_tensor(l, lower_in(l, W))->shape;
    const struct shape *offset = &lower_tensor(l, lower_in(l, OFFSET))->shape;
    const struct shape c = lower_tensor(l, columns)->shape;
    int64_t each = c.dim[1] / group, m = w->dim[0];
    const struct shape left = { .rank = 3, .dim = { group, m / group, each } };
    const struct shape right = { .rank = 4, .dim = { c.dim[0], group, each, c.dim[2] } };
    const struct shape out = { .rank = 4, .dim = { c.dim[0], m, offset->dim[2], offset->dim[3] } };
    uint32_t filters = kit_reshape(l, lower_in(l, W), &left),
             sides = kit_reshape(l, columns, &right);

    return kit_reshape(l, kit_op(l, "MatMul", filters, sides, GRAPH_NONE), &out);
}

void lower_deform_conv(struct lowering *l)
{
    const struct tensor *x = kit_input(l, X, TENSOR_F32), *w = kit_input(l, W, TENSOR_F32);
    struct lower_node n = { .domain = "trainerd", .op = "DeformColumns", .n_in = 2 };
    int64_t group = 1, c, m;
    uint32_t y, bias = lower_in(l, BIAS);

    if (x == NULL || w == NULL || kit_input(l, OFFSET, TENSOR_F32) == NULL)
        return;
    if (x->shape.rank != 4 || w->shape.rank != 4) {
        LOWER_ERROR(l, ERR_UNSUPPORTED, "the input has %" PRIu32 " dimensions and the weights %" PRIu32
                    "; expected 4: [n, c, height, width], [m, c / group, height, width]", x->shape.rank, w->shape.rank);
        return;
    }
    c = x->shape.dim[1];
    m = w->shape.dim[0];
    l->rc = op_attr_i(&l->attrs, "group", 1, &group, l->err);
    if (l->rc == 0 && (group < 1 || m < 1 || c < 1 || c % group != 0 || m % group != 0 ||
                       w->shape.dim[1] != c / group))
        LOWER_ERROR(l, ERR_INPUT, "group is %" PRId64 " with %" PRId64 " channels and %" PRId64 " filters of %" PRId64
                    "; expected a divisor of both, and filters of channels / group", group, c, m, w->shape.dim[1]);
    else if (l->rc == 0 && bias != GRAPH_NONE &&
             (lower_tensor(l, bias)->shape.rank != 1 || lower_tensor(l, bias)->shape.dim[0] != m))
        LOWER_ERROR(l, ERR_INPUT,
                    "the bias has the wrong shape; expected a list of %" PRId64
                    " numbers, one per filter",
                    m);
    if (l->rc < 0 || !columns_attrs(l, &w->shape, &n))
        return;
    n.in[0] = lower_in(l, X);
    n.in[1] = lower_in(l, OFFSET);
    n.in[2] = lower_in(l, MASK);
    n.n_in = n.in[2] != GRAPH_NONE ? 3 : 2;
    y = lower_add(l, &n);
    if (l->rc < 0)
        return;
    y = product(l, y, group);
    if (bias != GRAPH_NONE) {
        const struct shape channel = { .rank = 3, .dim = { m, 1, 1 } };

        y = kit_op(l, "Add", y, kit_reshape(l, bias, &channel), GRAPH_NONE);
    }
    lower_out(l, 0, y);
}
