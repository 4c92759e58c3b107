/* fuse_layer_norm.c - fuses normalizations over the last axis that exporters wrote before ops
 * existed for them:
 *   LayerNormalization   d = x - ReduceMean(x); d / Sqrt(ReduceMean(d^2) + epsilon), times a row,
 *                        plus a row
 *   RMSNormalization     the same with x for d, times a row
 * The division may be a product with the reciprocal, the square a power or a product.
 *
 * Also fuses any of them with a sum of two branches as its input: one pass computes the sum and the
 * norm. In backward, one pass adds the gradient of the norm to the gradient that the sum receives
 * from other readers, and passes it to both branches. */
#include <string.h>

#include "graph/plan_fuse.h"

/* Matches the mean over the last axis, which is kept; *of receives its input. */
static bool is_mean(const struct fuser *f, uint32_t value, uint32_t *of)
{
    const struct plan_node *n = fuse_made_by(f, value, "ReduceMean");
    const struct shape *x, *y;
    uint32_t i;

    if (n == NULL)
        return false;
    x = &f->p->values.at[n->in[0]].tensor.shape;
    y = &f->p->values.at[value].tensor.shape;
    if (x->rank == 0 || y->rank != x->rank || y->dim[x->rank - 1] != 1)
        return false;
    for (i = 0; i + 1 < x->rank; i++)
        if (x->dim[i] != y->dim[i])
            return false;
    *of = n->in[0];
    return true;
}

static bool is_square(const struct fuser *f, uint32_t value, uint32_t of)
{
    const struct plan_node *n = fuse_made_by(f, value, "Pow");
    float exponent;

    if (n != NULL)
        return n->in[0] == of && fuse_number(f, n->in[1], &exponent) && exponent == 2.0f;
    n = fuse_made_by(f, value, "Mul");
    return n != NULL && n->in[0] == of && n->in[1] == of;
}

/* Sqrt(ReduceMean(d^2) + epsilon) */
static bool is_deviation(const struct fuser *f, uint32_t value, uint32_t d, float *epsilon)
{
    const struct plan_node *root = fuse_made_by(f, value, "Sqrt");
    const struct plan_node *sum = root != NULL ? fuse_made_by(f, root->in[0], "Add") : NULL;
    uint32_t square, i;

    for (i = 0; sum != NULL && i < 2; i++)
        if (fuse_number(f, sum->in[i], epsilon) && is_mean(f, sum->in[!i], &square) &&
            is_square(f, square, d))
            return *epsilon >= 0;
    return false;
}

/* Matches value = d / deviation; *d receives d. */
static bool is_normalised(const struct fuser *f, uint32_t value, uint32_t *d, float *epsilon)
{
    const struct plan_node *n = fuse_made_by(f, value, "Div"), *inverse;
    uint32_t i;
    float one;

    if (n != NULL) {
        *d = n->in[0];
        return is_deviation(f, n->in[1], *d, epsilon);
    }
    n = fuse_made_by(f, value, "Mul");
    for (i = 0; n != NULL && i < 2; i++) {
        uint32_t deviation = GRAPH_NONE;

        *d = n->in[i];
        inverse = fuse_made_by(f, n->in[!i], "Reciprocal");
        if (inverse != NULL)
            deviation = inverse->in[0];
        inverse = fuse_made_by(f, n->in[!i], "Div");
        if (inverse != NULL && fuse_number(f, inverse->in[0], &one) && one == 1.0f)
            deviation = inverse->in[1];
        if (deviation != GRAPH_NONE && is_deviation(f, deviation, *d, epsilon))
            return true;
    }
    return false;
}

/* Returns whether the value has one number per column of `like` and is known, a parameter, or
 * computed from those (1 + w). */
static bool is_row(const struct fuser *f, uint32_t value, uint32_t like)
{
    const struct plan_value *v = &f->p->values.at[value];
    const struct shape *x = &f->p->values.at[like].tensor.shape;

    return v->kind != PLAN_FEED && v->tensor.dtype == TENSOR_F32 && v->tensor.shape.rank == 1 &&
           x->rank > 0 && v->tensor.shape.dim[0] == x->dim[x->rank - 1];
}

int fuse_row_norm(struct fuser *f, uint32_t node, struct err *err)
{
    const struct plan_node *n = &f->p->nodes.at[node], *minus;
    uint32_t i, d, of;

    for (i = 0; i < 2; i++) {
        struct fuse_row row = { .name = n->name, .n_in = 2, .n_attrs = 1 };
        float epsilon;

        if (!is_row(f, n->in[i], n->out[0]) || !fuse_is_exclusive(f, n->in[!i]) ||
            !is_normalised(f, n->in[!i], &d, &epsilon))
            continue;
        minus = fuse_made_by(f, d, "Sub");
        if (minus != NULL && is_mean(f, minus->in[1], &of) && of == minus->in[0]) {
            row.def = op_find(NULL, "LayerNormalization", 17);
            d = of;
        } else {
            row.def = op_find("trainerd", "RMSNormalization", 1);
        }
        row.in[0] = d;
        row.in[1] = n->in[i];
        row.attrs[0] = (struct op_attr){ .name = "epsilon", .type = OP_ATTR_FLOAT, .f = epsilon };
        return fuse_into(f, node, &row, err);
    }
    return 0;
}

int fuse_row_norm_bias(struct fuser *f, uint32_t node, struct err *err)
{
    const struct plan_node *n = &f->p->nodes.at[node];
    uint32_t i, k;

    for (i = 0; i < 2; i++) {
        const struct plan_node *norm = fuse_made_by(f, n->in[!i], "LayerNormalization");
        struct fuse_row row = { .n_in = 3 };

        if (norm == NULL || norm->n_in != 2 || !fuse_is_exclusive(f, n->in[!i]) ||
            norm->n_attrs > FUSE_MAX_ATTRS || !is_row(f, n->in[i], n->out[0]) ||
            (fuse_attr(norm, "axis") != NULL && fuse_attr(norm, "axis")->i != -1))
            continue;
        row.def = norm->def;
        row.name = norm->name;
        row.in[0] = norm->in[0];
        row.in[1] = norm->in[1];
        row.in[2] = n->in[i];
        for (k = 0; k < norm->n_attrs; k++)
            row.attrs[row.n_attrs++] = norm->attrs[k];
        return fuse_into(f, node, &row, err);
    }
    return 0;
}

int fuse_row_norm_add(struct fuser *f, uint32_t node, struct err *err)
{
    const struct plan_node *norm = &f->p->nodes.at[node];
    const struct plan_node *sum = fuse_made_by(f, norm->in[0], "Add");
    bool is_rms = strcmp(norm->def->name, "RMSNormalization") == 0;
    struct fuse_row row = { .def = op_find("trainerd", is_rms ? "RMSNormAdd" : "LayerNormAdd", 1),
                            .name = norm->name,
                            .n_in = 4,
                            .has_second = true,
                            .second = norm->in[0] };
    uint32_t k;

    if (sum == NULL || norm->n_attrs > FUSE_MAX_ATTRS || sum->in[0] == sum->in[1] ||
        !fuse_is_first(f, norm->in[0], node))
        return 0;
    for (k = 0; k < 2; k++) {
        const struct tensor *t = &f->p->values.at[sum->in[k]].tensor;

        if (t->dtype != TENSOR_F32 ||
            !shape_equal(&t->shape, &f->p->values.at[norm->in[0]].tensor.shape))
            return 0;
    }
    for (k = 1; k < norm->n_out; k++) /* mean or deviation */
        if (norm->out[k] != GRAPH_NONE && f->readers[norm->out[k]] > 0)
            return 0;
    row.in[0] = sum->in[0];
    row.in[1] = norm->in[1];
    row.in[2] = norm->n_in > 2 ? norm->in[2] : GRAPH_NONE;
    row.in[3] = sum->in[1];
    for (k = 0; k < norm->n_attrs; k++)
        row.attrs[row.n_attrs++] = norm->attrs[k];
    return fuse_into(f, node, &row, err);
}
