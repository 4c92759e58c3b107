/* fuse_simplify.c - removes nodes that exporters write around the patterns, before the patterns are
 * applied:
 *
 *   nodes that only copy their input      Identity; Cast and CastLike to the same type;
 *                                         Reshape, Expand, Slice and Transpose without effect
 *   Where of a mask and two numbers       that another node has computed already
 *   Reshape, Transpose, Reshape           where the first merges leading axes that the second keeps
 *                                         in front and the third splits again: one Transpose
 *   Reshape, Gemm, Reshape                where the first merges the leading axes and the second
 *                                         splits them again: one MatMul of all axes
 *
 * A node whose result the caller keeps is not removed; its other readers read the input of the
 * node. */
#include <string.h>

#include "graph/plan_fuse.h"

enum { MAX_CHOICES = 64 /* maximum number of recorded masks */ };

static const struct tensor *tensor_of(const struct fuser *f, uint32_t value)
{
    return &f->p->values.at[value].tensor;
}

/* Returns whether a Slice that shortens no axis keeps the order of the elements, which only a
 * negative step changes. */
static bool keeps_order(const struct fuser *f, const struct plan_node *n)
{
    const struct plan_value *v;

    if (n->n_in < 5 || n->in[4] == GRAPH_NONE)
        return fuse_attr(n, "steps") == NULL;
    v = &f->p->values.at[n->in[4]];
    if (v->kind != PLAN_CONST || v->tensor.dtype != TENSOR_I64)
        return false;
    for (int64_t i = 0; i < tensor_elements(&v->tensor); i++)
        if (((const int64_t *)v->tensor.data)[i] < 0)
            return false;
    return true;
}

static bool is_in_order(const struct fuser *f, const struct plan_node *n)
{
    uint32_t rank = tensor_of(f, n->out[0])->shape.rank, perm[TENSOR_MAX_RANK];

    fuse_perm(n, rank, perm);
    for (uint32_t i = 0; i < rank; i++)
        if (perm[i] != i)
            return false;
    return true;
}

/* Returns whether output 0 equals input 0. */
static bool copies_input(const struct fuser *f, const struct plan_node *n)
{
    const struct tensor *x, *y;

    if (n->def->domain != NULL || n->n_in == 0 || n->in[0] == GRAPH_NONE || n->n_out != 1)
        return false;
    x = tensor_of(f, n->in[0]);
    y = tensor_of(f, n->out[0]);
    if (n->stops_gradient || x->dtype != y->dtype || !shape_equal(&x->shape, &y->shape))
        return false;
    if (strcmp(n->def->name, "Slice") == 0)
        return keeps_order(f, n);
    if (strcmp(n->def->name, "Transpose") == 0)
        return is_in_order(f, n);
    return strcmp(n->def->name, "Identity") == 0 || strcmp(n->def->name, "Cast") == 0 ||
           strcmp(n->def->name, "CastLike") == 0 || strcmp(n->def->name, "Reshape") == 0 ||
           strcmp(n->def->name, "Expand") == 0;
}

/* Replaces `value` by the equal tensor `from` in all nodes from `node` on. */
static void redirect(struct fuser *f, uint32_t value, uint32_t from, uint32_t node)
{
    uint32_t left = f->readers[value];

    for (size_t i = node; i < f->p->nodes.n && left > 0; i++) {
        struct plan_node *n = &f->p->nodes.at[i];

        for (uint32_t k = 0; k < n->n_in && !f->removed[i]; k++)
            if (n->in[k] == value) {
                n->in[k] = from;
                f->readers[from]++;
                f->readers[value]--;
                left--;
            }
    }
}

int fuse_same(struct fuser *f, uint32_t node, struct err *err)
{
    const struct plan_node *n = &f->p->nodes.at[node];

    (void)err; /* allocates no memory */
    if (!copies_input(f, n))
        return 0;
    redirect(f, n->out[0], n->in[0], node + 1);
    if (f->readers[n->out[0]] == 0)
        fuse_remove(f, node);
    return 0;
}

/* ---- masks that every layer computes again ---- */

/* Returns whether node `k` computes the same from the same mask as `n`. */
static bool is_same_choice(const struct fuser *f, const struct plan_node *n, uint32_t k)
{
    const struct plan_node *o = &f->p->nodes.at[k];
    float a, b;

    if (f->removed[k] || !fuse_is(o, NULL, "Where") || o->in[0] != n->in[0] ||
        !shape_equal(&tensor_of(f, o->out[0])->shape, &tensor_of(f, n->out[0])->shape))
        return false;
    for (uint32_t i = 1; i < 3; i++)
        if (!fuse_number(f, n->in[i], &a) || !fuse_number(f, o->in[i], &b) || a != b)
            return false;
    return true;
}

int fuse_same_choice(struct fuser *f, uint32_t node, struct err *err)
{
    const struct plan_node *n = &f->p->nodes.at[node];

    for (size_t i = 0; i < f->choices.n; i++) {
        uint32_t k = f->choices.at[i];

        if (!is_same_choice(f, n, k))
            continue;
        redirect(f, n->out[0], f->p->nodes.at[k].out[0], node + 1);
        if (f->readers[n->out[0]] == 0)
            fuse_remove(f, node);
        return 0;
    }
    return f->choices.n == MAX_CHOICES || VEC_PUSH(f->choices, node) ? 0 : plan_no_memory(err);
}

/* ---- Transposes of trailing axes ---- */

/* The number of leading axes of `apart` that the first axis of `merged` combines; 0: no match. */
static uint32_t merged_axes(const struct shape *apart, const struct shape *merged)
{
    uint32_t lead = apart->rank - merged->rank + 1;
    int64_t first = 1;

    if (merged->rank < 2 || apart->rank < merged->rank)
        return 0;
    for (uint32_t i = 0; i < lead; i++)
        first *= apart->dim[i];
    if (merged->dim[0] != first)
        return 0;
    for (uint32_t i = 1; i < merged->rank; i++)
        if (merged->dim[i] != apart->dim[lead - 1 + i])
            return 0;
    return lead;
}

int fuse_merged_transpose(struct fuser *f, uint32_t node, struct err *err)
{
    const struct plan_node *split = &f->p->nodes.at[node];
    const struct plan_node *transpose = fuse_made_by(f, split->in[0], "Transpose");
    const struct plan_node *merge =
        transpose != NULL ? fuse_made_by(f, transpose->in[0], "Reshape") : NULL;
    struct fuse_row row = { .def = op_find(NULL, "Transpose", 13), .n_in = 1, .n_attrs = 1 };
    const struct shape *x, *merged, *y = &tensor_of(f, split->out[0])->shape;
    uint32_t perm[TENSOR_MAX_RANK], lead, i;
    int64_t *axes;

    if (merge == NULL || !fuse_is_exclusive(f, split->in[0]))
        return 0;
    x = &tensor_of(f, merge->in[0])->shape;
    merged = &tensor_of(f, transpose->in[0])->shape;
    lead = merged_axes(x, merged);
    fuse_perm(transpose, merged->rank, perm);
    if (lead < 2 || perm[0] != 0 || y->rank != x->rank)
        return 0;
    axes = arena_array(&f->p->mem, x->rank, sizeof(*axes));
    if (axes == NULL)
        return plan_no_memory(err);
    for (i = 0; i < x->rank; i++) {
        axes[i] = i < lead ? i : lead - 1 + perm[i - lead + 1];
        if (y->dim[i] != x->dim[axes[i]])
            return 0;
    }
    row.name = transpose->name;
    row.in[0] = merge->in[0];
    row.attrs[0] =
        (struct op_attr){ .name = "perm", .type = OP_ATTR_INTS, .n = x->rank, .ints = axes };
    return fuse_into(f, node, &row, err);
}

/* ---- products of the last axis ---- */

static bool is_one(const struct plan_node *n, const char *name)
{
    const struct op_attr *a = fuse_attr(n, name);

    return a == NULL || a->f == 1.0f;
}

/* Returns whether the Gemm multiplies rows and its bias, if any, is a row. */
static bool is_product_of_rows(const struct fuser *f, const struct plan_node *n)
{
    const struct op_attr *transposed_b = fuse_attr(n, "transA");
    const struct shape *y = &tensor_of(f, n->out[0])->shape, *bias;

    if (!fuse_is(n, NULL, "Gemm") || (transposed_b != NULL && transposed_b->i != 0) ||
        !is_one(n, "alpha") || !is_one(n, "beta"))
        return false;
    if (n->n_in < 3 || n->in[2] == GRAPH_NONE)
        return true;
    bias = &tensor_of(f, n->in[2])->shape;
    return bias->rank == 1 && bias->dim[0] == y->dim[1];
}

int fuse_merged_product(struct fuser *f, uint32_t node, struct err *err)
{
    const struct plan_node *split = &f->p->nodes.at[node];
    const struct plan_node *product = fuse_made_by(f, split->in[0], "Gemm");
    const struct plan_node *merge =
        product != NULL ? fuse_made_by(f, product->in[0], "Reshape") : NULL;
    struct fuse_row row = { .def = op_find("trainerd", "MatMul", 1), .n_in = 2, .n_attrs = 1 };
    const struct shape *x, *y = &tensor_of(f, split->out[0])->shape;
    const struct op_attr *transposed_b;

    if (merge == NULL || !fuse_is_exclusive(f, split->in[0]) || !is_product_of_rows(f, product))
        return 0;
    x = &tensor_of(f, merge->in[0])->shape;
    if (x->rank < 2 || y->rank != x->rank ||
        x->dim[x->rank - 1] != tensor_of(f, product->in[0])->shape.dim[1] ||
        y->dim[x->rank - 1] != tensor_of(f, split->in[0])->shape.dim[1])
        return 0;
    for (uint32_t i = 0; i + 1 < x->rank; i++)
        if (x->dim[i] != y->dim[i])
            return 0;
    row.name = product->name;
    row.in[0] = merge->in[0];
    row.in[1] = product->in[1];
    if (product->n_in > 2 && product->in[2] != GRAPH_NONE)
        row.in[row.n_in++] = product->in[2];
    transposed_b = fuse_attr(product, "transB");
    row.attrs[0] = (struct op_attr){ .name = "transB",
                                     .type = OP_ATTR_INT,
                                     .i = transposed_b != NULL && transposed_b->i != 0 };
    return fuse_into(f, node, &row, err);
}
