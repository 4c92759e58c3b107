/* fuse_norm.c - fuses BatchNormalization, the sum with a residual branch, and Relu (or Relu6, as
 * Clip from 0): one pass over memory instead of three. Any prefix of the chain is fused too. */
#include <math.h>
#include <string.h>

#include "graph/plan_fuse.h"

enum { RESIDUAL = 5 };

/* The norm that computes `value` for a single reader, without a clamp; NULL: none. */
static const struct plan_node *open_norm(const struct fuser *f, uint32_t value)
{
    const struct plan_node *n = fuse_producer(f, value);

    if (n == NULL || !fuse_is_exclusive(f, value) || n->n_attrs + 2 > FUSE_MAX_ATTRS ||
        (!fuse_is(n, NULL, "BatchNormalization") && !fuse_is(n, "trainerd", "BatchNormAdd")))
        return NULL;
    return n;
}

/* The norm as row `op` of domain trainerd. ONNX before opset 14 has no attribute for the training
 * form: it is derived from the number of outputs. */
static struct fuse_row row_of(const struct fuser *f, const struct plan_node *norm, const char *op)
{
    struct fuse_row row = { .def = op_find("trainerd", op, 1),
                            .name = norm->name,
                            .n_in = norm->n_in };
    uint32_t i;

    for (i = 0; i < norm->n_in; i++)
        row.in[i] = norm->in[i];
    for (i = 0; i < norm->n_attrs; i++)
        row.attrs[row.n_attrs++] = norm->attrs[i];
    if (norm->def->until == 13)
        row.attrs[row.n_attrs++] =
            (struct op_attr){ .name = "training_mode", .type = OP_ATTR_INT,
                              .i = f->p->training && norm->n_out > 1 };
    return row;
}

/* Matches a clamp from 0; *ceiling receives the upper bound, which is infinite for Relu. */
static bool clamp_of(const struct fuser *f, const struct plan_node *n, float *ceiling)
{
    const struct op_attr *lo = fuse_attr(n, "min"), *hi = fuse_attr(n, "max");
    float low;

    *ceiling = INFINITY;
    if (fuse_is(n, NULL, "Relu"))
        return true;
    if (lo != NULL || hi != NULL) { /* Clip before opset 11 */
        *ceiling = hi != NULL ? hi->f : INFINITY;
        return lo != NULL && lo->f == 0 && *ceiling > 0;
    }
    if (n->n_in < 2 || !fuse_number(f, n->in[1], &low) || low != 0)
        return false;
    return n->n_in < 3 || n->in[2] == GRAPH_NONE ||
           (fuse_number(f, n->in[2], ceiling) && *ceiling > 0);
}

int fuse_norm_relu(struct fuser *f, uint32_t node, struct err *err)
{
    const struct plan_node *relu = &f->p->nodes.at[node], *norm = open_norm(f, relu->in[0]);
    struct fuse_row row;
    float ceiling;

    if (norm == NULL || !clamp_of(f, relu, &ceiling))
        return 0;
    row = row_of(f, norm, "BatchNormRelu");
    row.attrs[row.n_attrs++] =
        (struct op_attr){ .name = "ceiling", .type = OP_ATTR_FLOAT, .f = ceiling };
    return fuse_into(f, node, &row, err);
}

/* With two norms, the later one gets the other's output as its residual, because it is computed
 * before. */
int fuse_norm_add(struct fuser *f, uint32_t node, struct err *err)
{
    const struct plan_node *add = &f->p->nodes.at[node];
    const struct shape *out = &f->p->values.at[add->out[0]].tensor.shape;
    uint32_t which = f->producer[add->in[1]] != GRAPH_NONE &&
                     (f->producer[add->in[0]] == GRAPH_NONE ||
                      f->producer[add->in[1]] > f->producer[add->in[0]]),
             attempt;
    struct fuse_row row;

    for (attempt = 0; attempt < 2; attempt++, which = !which) {
        uint32_t residual = add->in[!which];
        const struct plan_node *norm = open_norm(f, add->in[which]);

        if (norm == NULL || norm->n_in > RESIDUAL || add->in[0] == add->in[1] ||
            !shape_equal(&f->p->values.at[residual].tensor.shape, out))
            continue;
        /* The residual is computed before the norm, since the fused node has the position of the
         * sum. */
        row = row_of(f, norm, "BatchNormAdd");
        row.in[row.n_in++] = residual;
        return fuse_into(f, node, &row, err);
    }
    return 0;
}
