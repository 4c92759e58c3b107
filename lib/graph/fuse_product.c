/* fuse_product.c - fuses MatMul with its neighbours: transposed operands are read directly, and a
 * row that is added to every row of the result is added by the product. On a GPU, two products with
 * weights and Relu or the Gelu with tanh between them become one node. */
#include <string.h>

#include "graph/plan_fuse.h"

/* Matches a Transpose that only swaps the last two axes; *from receives its input. */
static bool swapped(const struct fuser *f, uint32_t value, uint32_t *from)
{
    const struct plan_node *n = fuse_producer(f, value);
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

/* ---- two layers ---- */

struct layer { /* a product x w (+ bias) */
    uint32_t x, w, bias; /* GRAPH_NONE: no bias */
    bool trans;          /* w is transposed */
};

static int64_t int_of(const struct plan_node *n, const char *name)
{
    const struct op_attr *a = fuse_attr(n, name);

    return a != NULL ? a->i : 0;
}

static bool is_one(const struct plan_node *n, const char *name)
{
    const struct op_attr *a = fuse_attr(n, name);

    return a == NULL || a->f == 1.0f;
}

/* Returns whether the node is a layer; *l receives its operands. */
static bool layer_of(const struct fuser *f, const struct plan_node *n, struct layer *l)
{
    bool gemm = fuse_is(n, NULL, "Gemm");
    const struct plan_value *values = f->p->values.at;

    if (!gemm && !fuse_is(n, NULL, "MatMul") && !fuse_is(n, "trainerd", "MatMul"))
        return false;
    *l = (struct layer){ n->in[0], n->in[1], n->n_in > 2 ? n->in[2] : GRAPH_NONE,
                         int_of(n, "transB") != 0 };
    return int_of(n, "transA") == 0 && (!gemm || (is_one(n, "alpha") && is_one(n, "beta"))) &&
           values[l->w].tensor.shape.rank == 2 && values[l->x].tensor.shape.rank >= 2 &&
           (l->bias == GRAPH_NONE || (values[l->bias].tensor.shape.rank == 1 &&
                                      values[l->bias].tensor.shape.dim[0] ==
                                          values[l->w].tensor.shape.dim[l->trans ? 0 : 1]));
}

/* The functions that the GPU library computes in its products; NULL: another function. */
static const char *function_of(const struct plan_node *n)
{
    const struct op_attr *a;

    if (fuse_is(n, NULL, "Relu"))
        return "relu";
    a = fuse_is(n, NULL, "Gelu") ? fuse_attr(n, "approximate") : NULL;
    return a != NULL && strcmp(a->s, "tanh") == 0 ? "gelu" : NULL;
}

/* Not used on a CPU, where the products of the library have no such epilogue. */
int fuse_two_layers(struct fuser *f, uint32_t node, struct err *err)
{
    const struct plan_node *n = &f->p->nodes.at[node], *between, *first;
    struct fuse_row row = { .def = op_find("trainerd", "Mlp", 1),
                            .name = n->name,
                            .n_in = 5,
                            .n_attrs = 3 };
    struct layer up, down;
    const char *function;

    if (f->p->device.cuda == NULL || !layer_of(f, n, &down) || !fuse_is_exclusive(f, down.x))
        return 0;
    between = fuse_producer(f, down.x);
    function = function_of(between);
    if (function == NULL || !fuse_is_exclusive(f, between->in[0]))
        return 0;
    first = fuse_producer(f, between->in[0]);
    if (!layer_of(f, first, &up))
        return 0;
    row.in[0] = up.x;
    row.in[1] = up.w;
    row.in[2] = up.bias;
    row.in[3] = down.w;
    row.in[4] = down.bias;
    row.attrs[0] = (struct op_attr){ .name = "function", .type = OP_ATTR_STRING, .s = function };
    row.attrs[1] = flag("trans1", up.trans);
    row.attrs[2] = flag("trans2", down.trans);
    return fuse_into(f, node, &row, err);
}

/* ---- bias ---- */

/* The product that computes `value` and has no bias yet; NULL: none. */
static const struct plan_node *open_product(const struct fuser *f, uint32_t value)
{
    const struct plan_node *n = fuse_producer(f, value);

    if (n == NULL || !fuse_is_exclusive(f, value) ||
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
