/* fuse_product.c - MatMul with what stands around it: a transposed operand is read as it lies, and
 * a row that is added to every row of the result is added inside. */
#include "graph/plan_fuse.h"

/* The value whose last two axes a Transpose swaps to make `value`, and nothing else. */
static bool swapped(const struct fuser *f, uint32_t value, uint32_t *from)
{
    const struct plan_node *n = fuse_maker(f, value);
    const struct op_attr *perm;
    uint32_t rank, i;

    if (n == NULL || !fuse_is(n, NULL, "Transpose"))
        return false;
    rank = f->p->values.at[value].tensor.shape.rank;
    perm = fuse_attr(n, "perm");
    if (rank < 2 || (perm == NULL && rank != 2) || (perm != NULL && perm->n != rank))
        return false;
    for (i = 0; perm != NULL && i < rank; i++) {
        int64_t want = i + 2 == rank ? i + 1 : i + 1 == rank ? i - 1 : i;

        if (perm->ints[i] != want)
            return false;
    }
    *from = n->in[0];
    return true;
}

static struct op_attr flag(const char *name, int64_t value)
{
    return (struct op_attr){ .name = name, .type = OP_ATTR_INT, .i = value };
}

int fuse_product_transposes(struct fuser *f, uint32_t node, struct err *err)
{
    const struct plan_node *n = &f->p->nodes.at[node];
    struct fuse_row row = { .def = op_find("trainerd", "MatMul", 1),
                            .name = n->name,
                            .n_in = 2,
                            .n_attrs = 2,
                            .in = { n->in[0], n->in[1] } };
    bool a = swapped(f, n->in[0], &row.in[0]), b = swapped(f, n->in[1], &row.in[1]);

    if (!a && !b)
        return 0;
    row.attrs[0] = flag("transA", a);
    row.attrs[1] = flag("transB", b);
    return fuse_into(f, node, &row, err);
}

/* The product that makes `value` and has no row added yet. */
static const struct plan_node *open_product(const struct fuser *f, uint32_t value)
{
    const struct plan_node *n = fuse_maker(f, value);

    if (n == NULL || !fuse_is_ours(f, value) ||
        (!fuse_is(n, NULL, "MatMul") && !fuse_is(n, "trainerd", "MatMul")))
        return NULL;
    return n->n_in == 2 ? n : NULL;
}

int fuse_product_bias(struct fuser *f, uint32_t node, struct err *err)
{
    const struct plan_node *add = &f->p->nodes.at[node];
    const struct shape *out = &f->p->values.at[add->out[0]].tensor.shape;
    uint32_t which, i;

    for (which = 0; which < 2; which++) {
        const struct plan_node *n = open_product(f, add->in[which]);
        uint32_t bias = add->in[!which];
        const struct plan_value *v = &f->p->values.at[bias];
        struct fuse_row row = { .def = op_find("trainerd", "MatMul", 1), .n_in = 3 };

        if (n == NULL || (v->kind != PLAN_PARAM && v->kind != PLAN_CONST) ||
            v->tensor.shape.rank != 1 || out->rank < 2 ||
            v->tensor.shape.dim[0] != out->dim[out->rank - 1] ||
            f->p->values.at[n->in[1]].tensor.shape.rank < 2)
            continue;
        row.name = n->name;
        row.in[0] = n->in[0];
        row.in[1] = n->in[1];
        row.in[2] = bias;
        for (i = 0; i < n->n_attrs; i++)
            row.attrs[row.n_attrs++] = n->attrs[i];
        return fuse_into(f, node, &row, err);
    }
    return 0;
}
