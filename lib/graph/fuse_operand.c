/* fuse_operand.c - traces q, k and v of an attention back to the tensors that contain them.
 *
 * Transposes become an order of axes, factors become one number. Heads of keys and values that are
 * shared by several heads of queries are written as
 *   Unsqueeze, Expand, Reshape   [.., heads, s, d] -> [.., heads, repeats, s, d] -> [.., all, s, d]
 * and are read without the repetition: head i of q uses head i / repeats. */
#include "graph/fuse_scores.h"

static const struct shape *shape_of_value(const struct fuser *f, uint32_t value)
{
    return &f->p->values.at[value].tensor.shape;
}

/* Returns whether `wide` is the shape `x` with one more axis at `at`, of any size. */
static bool has_axis_at(const struct shape *x, const struct shape *wide, uint32_t at)
{
    if (wide->rank != x->rank + 1)
        return false;
    for (uint32_t i = 0; i < x->rank; i++)
        if (x->dim[i] != wide->dim[i + (i >= at)])
            return false;
    return true;
}

/* Matches a value in which each index along *axis of *from is repeated *repeats times. */
static bool is_repeated(const struct fuser *f, uint32_t value, uint32_t *from, uint32_t *axis,
                        int64_t *repeats)
{
    const struct plan_node *join = fuse_made_by(f, value, "Reshape");
    const struct plan_node *wide = join != NULL ? fuse_made_by(f, join->in[0], "Expand") : NULL;
    const struct plan_node *apart = wide != NULL ? fuse_producer(f, wide->in[0]) : NULL;
    const struct shape *x, *one, *many, *y;

    if (apart == NULL || (!fuse_is(apart, NULL, "Unsqueeze") && !fuse_is(apart, NULL, "Reshape")))
        return false;
    x = shape_of_value(f, apart->in[0]);
    one = shape_of_value(f, wide->in[0]);
    many = shape_of_value(f, join->in[0]);
    y = shape_of_value(f, value);
    if (y->rank != x->rank || one->rank != many->rank)
        return false;
    for (uint32_t at = 1; at < one->rank; at++) {
        uint32_t i = 0;

        if (one->dim[at] != 1 || many->dim[at] < 2 || !has_axis_at(x, one, at) ||
            !has_axis_at(x, many, at))
            continue;
        while (i < x->rank && y->dim[i] == (i == at - 1 ? x->dim[i] * many->dim[at] : x->dim[i]))
            i++;
        if (i < x->rank)
            continue;
        *from = apart->in[0];
        *axis = at - 1;
        *repeats = many->dim[at];
        return true;
    }
    return false;
}

void fuse_trace(const struct fuser *f, uint32_t value, bool is_transposed, bool may_scale,
                bool may_repeat, struct fuse_operand *o)
{
    uint32_t rank = shape_of_value(f, value)->rank, i;

    *o = (struct fuse_operand){ .value = value, .scale = 1, .repeats = 1 };
    for (i = 0; i < rank; i++)
        o->perm[i] = is_transposed && i + 2 >= rank ? 2 * rank - 3 - i : i;
    for (;;) {
        const struct plan_node *n = fuse_producer(f, o->value);
        uint32_t from, axis, perm[TENSOR_MAX_RANK];
        int64_t repeats;
        float by;

        if (n == NULL)
            return;
        if (fuse_is(n, NULL, "Transpose")) {
            fuse_perm(n, rank, perm);
            for (i = 0; i < rank; i++)
                o->perm[i] = perm[o->perm[i]];
            o->value = n->in[0];
        } else if (may_scale && fuse_is_exclusive(f, o->value) &&
                   fuse_is_scaled(f, n, &from, &by)) {
            o->scale *= by;
            o->value = from;
        } else if (may_repeat && o->repeats == 1 &&
                   is_repeated(f, o->value, &from, &axis, &repeats)) {
            o->value = from;
            o->repeats = repeats;
            for (i = 0; i < rank; i++)
                if (o->perm[i] == axis)
                    o->axis = i;
        } else {
            return;
        }
    }
}

int64_t fuse_operand_dim(const struct fuser *f, const struct fuse_operand *o, uint32_t axis)
{
    int64_t dim = shape_of_value(f, o->value)->dim[o->perm[axis]];

    return o->repeats > 1 && axis == o->axis ? dim * o->repeats : dim;
}
