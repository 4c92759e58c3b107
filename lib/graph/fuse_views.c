/* fuse_views.c - simplifies the products of einsum in the form of tf2onnx: every operand gets unit
 * axes, is transposed with them and merged to one batch axis; the product is split again.
 *
 *   Transpose of an Unsqueeze             becomes a view of a Transpose without the unit axes
 *   a view that adds or removes unit axes, before or after another view   becomes one Reshape
 *   view of MatMul of merged operands     becomes the product of the operands before merging
 *
 * A view is a Reshape, Squeeze, Unsqueeze or Flatten: the same elements in the same order. */
#include "graph/plan_fuse.h"

static const struct shape *shape_of_value(const struct fuser *f, uint32_t value)
{
    return &f->p->values.at[value].tensor.shape;
}

/* Returns the node whose output `value` is a view of that node's input, or NULL if another kind of
 * node computes it. */
static const struct plan_node *view_of(const struct fuser *f, uint32_t value)
{
    static const char *const views[] = { "Reshape", "Squeeze", "Unsqueeze", "Flatten" };

    for (size_t i = 0; i < sizeof(views) / sizeof(*views); i++) {
        const struct plan_node *n = fuse_made_by(f, value, views[i]);

        if (n != NULL)
            return n;
    }
    return NULL;
}

/* Replaces node `node` by Reshape(x) to the shape of its output. */
static int replace_by_reshape(struct fuser *f, uint32_t node, uint32_t x, struct err *err)
{
    const struct plan_node *n = &f->p->nodes.at[node];
    const struct shape *y = shape_of_value(f, n->out[0]);
    struct tensor t = { .dtype = TENSOR_I64, .shape = { .rank = 1, .dim = { y->rank } } };
    struct fuse_row row = { .def = op_find(NULL, "Reshape", 14), .name = n->name, .n_in = 2 };
    int64_t *dims = arena_array(&f->p->mem, TENSOR_MAX_RANK, sizeof(*dims));

    if (dims == NULL)
        return plan_no_memory(err);
    for (uint32_t i = 0; i < y->rank; i++) {
        if (y->dim[i] == 0) /* a dimension of 0 would mean "as the input" */
            return 0;
        dims[i] = y->dim[i];
    }
    t.data = dims;
    row.in[0] = x;
    row.in[1] = fuse_add_constant(f, n->name, &t);
    return row.in[1] == GRAPH_NONE ? plan_no_memory(err) : fuse_into(f, node, &row, err);
}

/* Returns whether `y` has the axes of `x` and additional unit axes. */
static bool adds_units(const struct shape *x, const struct shape *y)
{
    uint32_t k = 0;

    for (uint32_t i = 0; i < y->rank; i++) {
        if (y->dim[i] == 1)
            continue;
        while (k < x->rank && x->dim[k] == 1)
            k++;
        if (k == x->rank || x->dim[k++] != y->dim[i])
            return false;
    }
    return y->rank > x->rank;
}

/* Returns whether a view only adds or removes unit axes. A Reshape counts only if the result has
 * more than 4 axes: other patterns match those that split and merge axes. */
static bool is_of_units(const struct fuser *f, const struct plan_node *n)
{
    const struct shape *y = shape_of_value(f, n->out[0]);

    return fuse_is(n, NULL, "Squeeze") || fuse_is(n, NULL, "Unsqueeze") ||
           (y->rank > 4 && adds_units(shape_of_value(f, n->in[0]), y));
}

int fuse_view_of_view(struct fuser *f, uint32_t node, struct err *err)
{
    const struct plan_node *n = &f->p->nodes.at[node];
    const struct plan_node *first = view_of(f, n->out[0]) == n ? view_of(f, n->in[0]) : NULL;

    if (first == NULL || !fuse_is_exclusive(f, n->in[0]) ||
        shape_of_value(f, n->out[0])->rank == 0 || (!is_of_units(f, n) && !is_of_units(f, first)))
        return 0;
    return replace_by_reshape(f, node, first->in[0], err);
}

/* ---- a Transpose with unit axes ---- */

/* Finds the axes that an Unsqueeze adds: bit i of *added is axis i of its output. */
static bool added_axes(const struct fuser *f, const struct plan_node *n, uint32_t *added)
{
    const struct op_attr *a = fuse_attr(n, "axes");
    const struct plan_value *v = n->n_in > 1 ? &f->p->values.at[n->in[1]] : NULL;
    int64_t rank = shape_of_value(f, n->out[0])->rank, count;
    const int64_t *list;

    if (v != NULL && (v->kind != PLAN_CONST || v->tensor.dtype != TENSOR_I64))
        return false;
    if (v == NULL && a == NULL)
        return false;
    list = v != NULL ? v->tensor.data : a->ints;
    count = v != NULL ? tensor_elements(&v->tensor) : (int64_t)a->n;
    *added = 0;
    for (int64_t i = 0; i < count; i++)
        *added |= 1u << (list[i] < 0 ? list[i] + rank : list[i]);
    return true;
}

int fuse_unit_transpose(struct fuser *f, uint32_t node, struct err *err)
{
    const struct plan_node *transpose = &f->p->nodes.at[node];
    const struct plan_node *wide = fuse_made_by(f, transpose->in[0], "Unsqueeze");
    struct fuse_row row = {
        .def = op_find(NULL, "Transpose", 13), .name = transpose->name, .n_in = 1, .n_attrs = 1
    };
    uint32_t added, perm[TENSOR_MAX_RANK], first, i, k = 0;
    struct tensor t;
    int64_t *axes;
    int rc;

    if (wide == NULL || !fuse_is_exclusive(f, transpose->in[0]) || !added_axes(f, wide, &added))
        return 0;
    t = f->p->values.at[wide->in[0]].tensor;
    fuse_perm(transpose, shape_of_value(f, transpose->in[0])->rank, perm);
    axes = arena_array(&f->p->mem, TENSOR_MAX_RANK, sizeof(*axes));
    if (axes == NULL)
        return plan_no_memory(err);
    /* the axis of x: minus the added axes before it */
    for (i = 0; i < shape_of_value(f, transpose->in[0])->rank; i++)
        if ((added & (1u << perm[i])) == 0)
            axes[k++] = perm[i] - (uint32_t)__builtin_popcount(added & ((1u << perm[i]) - 1));
    for (i = 0; i < k; i++)
        t.shape.dim[i] = shape_of_value(f, wide->in[0])->dim[axes[i]];
    row.in[0] = wide->in[0];
    row.attrs[0] = (struct op_attr){ .name = "perm", .type = OP_ATTR_INTS, .n = k, .ints = axes };
    first = f->producer[transpose->in[0]];
    if (!fuse_new_output(f, first, node, &t)) /* `first` becomes the Transpose, with a new output */
        return plan_no_memory(err);
    rc = fuse_into(f, first, &row, err);
    return rc == 0 ? replace_by_reshape(f, node, f->p->nodes.at[first].out[0], err) : rc;
}

/* ---- products with one batch axis ---- */

/* Matches `value` [m, a, b] whose first axis merges the leading axes of *from; *swapped: a and b
 * are then swapped. */
static bool is_merged(const struct fuser *f, uint32_t value, const struct shape *lead,
                      uint32_t *from, bool *swapped)
{
    const struct plan_node *n = fuse_made_by(f, value, "Transpose"), *merge;
    uint32_t perm[TENSOR_MAX_RANK];
    const struct shape *x, *y;

    *swapped = false;
    if (n != NULL) {
        fuse_perm(n, 3, perm);
        if (shape_of_value(f, value)->rank != 3 || perm[0] != 0 || perm[1] != 2)
            return false;
        *swapped = true;
        value = n->in[0];
    }
    merge = view_of(f, value);
    if (merge == NULL)
        return false;
    x = shape_of_value(f, merge->in[0]);
    y = shape_of_value(f, value);
    *from = merge->in[0];
    if (x->rank != lead->rank || x->dim[x->rank - 1] != y->dim[2] ||
        x->dim[x->rank - 2] != y->dim[1])
        return false;
    for (uint32_t i = 0; i + 2 < x->rank; i++)
        if (x->dim[i] != lead->dim[i])
            return false;
    return true;
}

int fuse_merged_batch(struct fuser *f, uint32_t node, struct err *err)
{
    const struct plan_node *split = &f->p->nodes.at[node];
    const struct plan_node *product = fuse_made_by(f, split->in[0], "MatMul");
    struct fuse_row row = { .def = op_find("trainerd", "MatMul", 1), .n_in = 2, .n_attrs = 2 };
    const struct shape *y = shape_of_value(f, split->out[0]), *three;
    bool swapped[2];

    if (product == NULL || view_of(f, split->out[0]) != split ||
        !fuse_is_exclusive(f, split->in[0]) || y->rank < 4)
        return 0;
    three = shape_of_value(f, split->in[0]);
    if (three->rank != 3 || y->dim[y->rank - 1] != three->dim[2] ||
        y->dim[y->rank - 2] != three->dim[1] ||
        !is_merged(f, product->in[0], y, &row.in[0], &swapped[0]) ||
        !is_merged(f, product->in[1], y, &row.in[1], &swapped[1]))
        return 0;
    row.name = product->name;
    row.attrs[0] = (struct op_attr){ .name = "transA", .type = OP_ATTR_INT, .i = swapped[0] };
    row.attrs[1] = (struct op_attr){ .name = "transB", .type = OP_ATTR_INT, .i = swapped[1] };
    return fuse_into(f, node, &row, err);
}
