/* fuse_rotary.c - fuses rotary position embedding in the form of the transformers models:
 *   x cos + Concat(-x[h:], x[:h]) sin     along the last axis, where h is half of it
 * The halves may be computed by two Slices or one Split; factors and terms may have any order. A
 * preceding Transpose that keeps the last axis in place is done by the node too. The node has no
 * gradient for its angles, so trained angles are not fused. */
#include "graph/plan_fuse.h"

static const struct tensor *tensor_of(const struct fuser *f, uint32_t value)
{
    return &f->p->values.at[value].tensor;
}

static int64_t last_of(const struct fuser *f, uint32_t value)
{
    const struct shape *s = &tensor_of(f, value)->shape;

    return s->rank > 0 ? s->dim[s->rank - 1] : 0;
}

/* Reads a known int64 with one element. */
static bool known_int(const struct fuser *f, uint32_t value, int64_t *out)
{
    const struct plan_value *v = value != GRAPH_NONE ? &f->p->values.at[value] : NULL;

    if (v == NULL || v->kind != PLAN_CONST || v->tensor.dtype != TENSOR_I64 ||
        tensor_elements(&v->tensor) != 1)
        return false;
    *out = *(const int64_t *)v->tensor.data;
    return true;
}

/* Returns whether the value is half `which` of the last axis of *x. */
static bool is_half(const struct fuser *f, uint32_t value, uint32_t which, uint32_t *x)
{
    const struct plan_node *n = fuse_producer(f, value);
    int64_t width, start, axis, rank, step = 1;

    if (n == NULL)
        return false;
    width = last_of(f, n->in[0]);
    *x = n->in[0];
    if (width < 2 || width % 2 != 0 || last_of(f, value) != width / 2 ||
        tensor_elements(tensor_of(f, value)) * 2 != tensor_elements(tensor_of(f, *x)))
        return false;
    if (fuse_is(n, NULL, "Split"))
        return n->n_out == 2 && n->out[which] == value && f->readers[value] == 1;
    rank = (int64_t)tensor_of(f, *x)->shape.rank;
    return fuse_is(n, NULL, "Slice") && fuse_is_exclusive(f, value) && n->n_in >= 4 &&
           known_int(f, n->in[1], &start) && known_int(f, n->in[3], &axis) &&
           (axis == -1 || axis == rank - 1) &&
           (n->n_in < 5 || n->in[4] == GRAPH_NONE || known_int(f, n->in[4], &step)) && step == 1 &&
           (start == (which == 0 ? 0 : width / 2) || start == (which == 0 ? -width : -width / 2));
}

/* Matches value = Concat(-second half of *x, first half of *x). */
static bool is_rotated(const struct fuser *f, uint32_t value, uint32_t *x, bool *is_split)
{
    const struct plan_node *join = fuse_made_by(f, value, "Concat"), *minus;
    const struct op_attr *axis = join != NULL ? fuse_attr(join, "axis") : NULL;
    uint32_t again;

    if (axis == NULL || join->n_in != 2 || !fuse_is_exclusive(f, value) ||
        (axis->i != -1 && axis->i != (int64_t)tensor_of(f, value)->shape.rank - 1))
        return false;
    minus = fuse_made_by(f, join->in[0], "Neg");
    if (minus == NULL || !fuse_is_exclusive(f, join->in[0]))
        return false;
    *is_split = fuse_producer(f, minus->in[0]) != NULL &&
                fuse_is(fuse_producer(f, minus->in[0]), NULL, "Split");
    return is_half(f, minus->in[0], 1, x) && is_half(f, join->in[1], 0, &again) && again == *x;
}

/* Sets *out to whether the value broadcasts to x, has all of its last axis, and is not trained. */
static int is_angle(const struct fuser *f, uint32_t value, uint32_t x, bool *out, struct err *err)
{
    const struct tensor *t = tensor_of(f, value), *to = tensor_of(f, x);
    struct shape both;
    bool is_trained;
    int rc;

    *out = t->dtype == TENSOR_F32 && last_of(f, value) == last_of(f, x) &&
           shape_broadcast(&t->shape, &to->shape, &both) && shape_equal(&both, &to->shape);
    if (!*out)
        return 0;
    rc = plan_is_trained(f->p, value, &is_trained, err);
    *out = *out && !is_trained;
    return rc;
}

/* Matches term = rotated(*x) * sine. */
static bool find_sine(const struct fuser *f, uint32_t term, uint32_t *x, uint32_t *sine,
                      bool *is_split)
{
    const struct plan_node *n = fuse_made_by(f, term, "Mul");

    for (uint32_t i = 0; n != NULL && fuse_is_exclusive(f, term) && i < 2; i++)
        if (is_rotated(f, n->in[i], x, is_split)) {
            *sine = n->in[!i];
            return true;
        }
    return false;
}

/* If only the chain reads the output of a preceding Transpose, the row does the Transpose: *x
 * becomes its input. */
static int absorb_transpose(const struct fuser *f, uint32_t *x, uint32_t readers,
                            struct fuse_row *row, struct err *err)
{
    const struct plan_node *n = f->readers[*x] == readers ? fuse_made_by(f, *x, "Transpose") : NULL;
    uint32_t rank = tensor_of(f, *x)->shape.rank, perm[TENSOR_MAX_RANK];
    int64_t *axes;

    if (n == NULL)
        return 0;
    fuse_perm(n, rank, perm);
    if (perm[rank - 1] != rank - 1)
        return 0;
    axes = arena_array(&f->p->mem, rank, sizeof(*axes));
    if (axes == NULL)
        return plan_no_memory(err);
    for (uint32_t i = 0; i < rank; i++)
        axes[i] = perm[i];
    row->attrs[row->n_attrs++] = (struct op_attr){ .name = "perm", .type = OP_ATTR_INTS, .n = rank, .ints = axes };
    *x = n->in[0];
    return 0;
}

int fuse_rotary(struct fuser *f, uint32_t node, struct err *err)
{
    const struct plan_node *sum = &f->p->nodes.at[node];
    struct fuse_row row = { .def = op_find("trainerd", "Rotary", 1), .name = sum->name, .n_in = 3 };
    uint32_t i, x = GRAPH_NONE, sine = GRAPH_NONE, cosine;
    const struct plan_node *plain;
    bool fits[2], is_split = false;
    int rc;

    for (i = 0; i < 2 && !find_sine(f, sum->in[i], &x, &sine, &is_split);)
        i++;
    plain = i < 2 ? fuse_made_by(f, sum->in[!i], "Mul") : NULL;
    if (plain == NULL || !fuse_is_exclusive(f, sum->in[!i]) ||
        (plain->in[0] != x && plain->in[1] != x) ||
        !shape_equal(&tensor_of(f, x)->shape, &tensor_of(f, sum->out[0])->shape))
        return 0;
    cosine = plain->in[plain->in[0] == x ? 1 : 0];
    rc = is_angle(f, cosine, x, &fits[0], err);
    if (rc == 0)
        rc = is_angle(f, sine, x, &fits[1], err);
    if (rc < 0 || !fits[0] || !fits[1])
        return rc;
    row.in[0] = x;
    /* readers: the product with cos, and the halves */
    rc = absorb_transpose(f, &row.in[0], is_split ? 2 : 3, &row, err);
    if (rc < 0)
        return rc;
    row.in[1] = cosine;
    row.in[2] = sine;
    return fuse_into(f, node, &row, err);
}
