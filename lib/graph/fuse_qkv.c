/* fuse_qkv.c - recognizes q, k and v that are parts of the columns of one product, in two forms:
 *
 *   Split along the last axis, perhaps a Reshape of each
 *       q, k, v = qkv.split(width, -1);  q.view(b, t, heads, -1)
 *   Reshape, Transpose, and an index of the first axis (Gather, or Split and Squeeze)
 *       q, k, v = qkv.reshape(b, t, 3, heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
 *
 * In both, an operand is a view of the product, so that no data has to be moved. */
#include "graph/plan_fuse.h"

static const struct shape *shape_at(const struct fuser *f, uint32_t value)
{
    return &f->p->values.at[value].tensor.shape;
}

/* A third of the last axis; 0: not divisible. */
static int64_t columns_of(const struct fuser *f, uint32_t whole)
{
    const struct shape *s = shape_at(f, whole);

    return s->rank > 0 && s->dim[s->rank - 1] % 3 == 0 ? s->dim[s->rank - 1] / 3 : 0;
}

static bool by_split(const struct fuser *f, uint32_t value, uint32_t which, struct fuse_qkv *t)
{
    const struct plan_node *n = fuse_made_by(f, value, "Reshape");
    uint32_t piece = n != NULL ? n->in[0] : value;
    const struct shape *s = shape_at(f, piece);
    int64_t columns, columns_in_view = 1;

    n = fuse_producer(f, piece);
    if (n == NULL || !fuse_is(n, NULL, "Split") || n->n_out != 3 || n->out[which] != piece ||
        f->readers[piece] != 1)
        return false;
    columns = columns_of(f, n->in[0]);
    /* another axis, or parts of different sizes */
    if (columns == 0 || s->dim[s->rank - 1] != columns)
        return false;
    t->whole = n->in[0];
    t->view = *shape_at(f, value);
    for (uint32_t i = t->view.rank; i-- > 0;) {
        columns_in_view *= columns_in_view < columns ? t->view.dim[i] : 1;
        t->perm[i] = i;
    }
    return columns_in_view == columns; /* the last axes of the view are the columns of the part */
}

/* Matches index `which` along the first axis of a value and returns that value; GRAPH_NONE: no
 * match. */
static uint32_t source_of_index(const struct fuser *f, uint32_t value, uint32_t which)
{
    const struct plan_node *n = fuse_made_by(f, value, "Gather");

    if (n != NULL) {
        const struct op_attr *axis = fuse_attr(n, "axis");
        const struct plan_value *at = &f->p->values.at[n->in[1]];

        return (axis == NULL || axis->i == 0) && at->kind == PLAN_CONST &&
                       at->tensor.dtype == TENSOR_I64 && at->tensor.shape.rank == 0 &&
                       *(const int64_t *)at->tensor.data == which
                   ? n->in[0]
                   : GRAPH_NONE;
    }
    n = fuse_made_by(f, value, "Squeeze");
    if (n == NULL || f->readers[n->in[0]] != 1)
        return GRAPH_NONE;
    value = n->in[0];
    n = fuse_producer(f, value);
    return n != NULL && fuse_is(n, NULL, "Split") && n->n_out == 3 && n->out[which] == value &&
                   shape_at(f, value)->dim[0] == 1
               ? n->in[0]
               : GRAPH_NONE;
}

static bool by_index(const struct fuser *f, uint32_t value, uint32_t which, struct fuse_qkv *t)
{
    const struct plan_node *transpose =
        fuse_made_by(f, source_of_index(f, value, which), "Transpose");
    const struct plan_node *reshape =
        transpose != NULL ? fuse_made_by(f, transpose->in[0], "Reshape") : NULL;
    uint32_t perm[TENSOR_MAX_RANK], indexed_axis;
    const struct shape *s;
    int64_t columns_after = 1;

    if (reshape == NULL)
        return false;
    s = shape_at(f, transpose->in[0]);
    if (s->rank < 2 || shape_at(f, value)->rank != s->rank - 1)
        return false;
    fuse_perm(transpose, s->rank, perm);
    indexed_axis = perm[0]; /* the axis that is indexed */
    t->whole = reshape->in[0];
    t->view.rank = s->rank - 1;
    for (uint32_t i = 0; i < s->rank; i++) {
        if (i != indexed_axis)
            t->view.dim[i - (i > indexed_axis)] = s->dim[i];
        if (i > 0)
            t->perm[i - 1] = perm[i] - (perm[i] > indexed_axis);
        if (i > indexed_axis)
            columns_after *= s->dim[i];
    }
    for (uint32_t i = 0; i < t->view.rank; i++)
        if (shape_at(f, value)->dim[i] != t->view.dim[t->perm[i]])
            return false;
    return s->dim[indexed_axis] == 3 && columns_after > 0 &&
           columns_after == columns_of(f, t->whole);
}

bool fuse_qkv(const struct fuser *f, uint32_t value, uint32_t which, struct fuse_qkv *out)
{
    return by_split(f, value, which, out) || by_index(f, value, which, out);
}
