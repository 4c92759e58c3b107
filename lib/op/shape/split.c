/* split.c - Split: divides the input along an axis, one part per output. dx is the concatenation of
 * the gradients. Any type. The sizes: opset 2 attribute `split`, 13 input 1, a constant. Without
 * them: equal parts; 18: parts of ceil(size / num_outputs), and the last has the remainder. */
#include <inttypes.h>
#include <stdlib.h>

#include "base/arena.h"
#include "base/err.h"
#include "op/op_priv.h"
#include "op/shape/parts.h"

struct split {
    int64_t axis;
    int64_t *start; /* [n_out] */
};

/* Computes equal sizes of the outputs. */
static int equal_sizes(struct op_infer *f, int64_t axis, struct err *err)
{
    int64_t dim = f->in[0]->shape.dim[axis], n = f->n_out, asked, each, i;
    int rc = op_attr_i(f, "num_outputs", n, &asked, err);

    if (rc < 0)
        return rc;
    if (asked != n)
        return op_error(f, ERR_INPUT, err, "num_outputs is %" PRId64 "; there are %" PRId64
                        " outputs", asked, n);
    each = dim / n + (dim % n != 0);
    if (dim % n != 0 && (f->def->since < 18 || each * (n - 1) > dim))
        return op_error(f, ERR_INPUT, err, "%" PRId64 " elements along axis %" PRId64
                        " do not divide into %" PRId64 " pieces", dim, axis, n);
    for (i = 0; i < n; i++)
        f->out[i].shape.dim[axis] = i + 1 < n ? each : dim - each * (n - 1);
    return 0;
}

static int follow(struct op_infer *f, int64_t axis, const int64_t *sizes, size_t n, struct err *err)
{
    int64_t rest = f->in[0]->shape.dim[axis];
    uint32_t i;

    if (n != f->n_out)
        return op_error(f, ERR_INPUT, err, "split has %zu sizes; there are %" PRIu32 " outputs", n,
                        f->n_out);
    for (i = 0; i < n; i++) {
        if (sizes[i] < 0 || sizes[i] > rest)
            return op_error(f, ERR_INPUT, err, "split requests %" PRId64 " elements for output %"
                            PRIu32 "; %" PRId64 " are left along axis %" PRId64, sizes[i], i, rest,
                            axis);
        f->out[i].shape.dim[axis] = sizes[i];
        rest -= sizes[i];
    }
    if (rest != 0)
        return op_error(f, ERR_INPUT, err, "split leaves %" PRId64 " elements of axis %" PRId64
                        " unassigned", rest, axis);
    return 0;
}

static int split_infer(struct op_infer *f, struct err *err)
{
    struct split *s = f->param;
    const int64_t *sizes = NULL;
    size_t n = 0;
    uint32_t i;
    int rc = op_attr_i(f, "axis", 0, &s->axis, err);

    if (rc < 0)
        return rc;
    if (f->in[0] == NULL)
        return op_error(f, ERR_INPUT, err, "input 0 is missing");
    rc = op_axis(f, &s->axis, f->in[0]->shape.rank, err);
    if (rc == 0)
        rc = f->def->since < 13 ? op_attr_ints(f, "split", &sizes, &n, err)
                                : op_const_ints(f, 1, &sizes, &n, err);
    if (rc < 0)
        return rc;
    for (i = 0; i < f->n_out; i++) {
        f->out[i].dtype = f->in[0]->dtype;
        f->out[i].shape = f->in[0]->shape;
    }
    rc = sizes != NULL ? follow(f, s->axis, sizes, n, err) : equal_sizes(f, s->axis, err);
    s->start = arena_array(f->mem, f->n_out, sizeof(*s->start));
    if (rc == 0 && s->start == NULL)
        rc = op_error(f, ERR_NOMEM, err, "out of memory");
    for (i = 1; i < f->n_out && rc == 0; i++)
        s->start[i] = s->start[i - 1] + f->out[i - 1].shape.dim[s->axis];
    return rc;
}

static int split_plan(struct op_plan *p, struct err *err)
{
    const struct split *c = p->param;
    struct parts *s = parts_new(p, p->n_out, err);
    int64_t start[TENSOR_MAX_RANK] = { 0 };
    uint32_t i;

    if (s == NULL)
        return ERR_NOMEM;
    for (i = 0; i < p->n_out; i++) {
        s->at[i].out = i;
        start[c->axis] = c->start[i];
        if (p->out[i].dtype != TENSOR_NONE) /* else the output is unused in both directions */
            part_box(&s->at[i], p->in[0], &p->out[i], p->out[i].shape.dim, start, NULL, NULL);
    }
    return 0;
}

static const char *const attrs_2[] = { "axis", "split", NULL };
static const char *const attrs_13[] = { "axis", NULL };
static const char *const attrs_18[] = { "axis", "num_outputs", NULL };

#define FIELDS                                                                                     \
    .name = "Split", .n_out = { 1, OP_MANY }, .param_bytes = sizeof(struct split),                 \
    .infer = split_infer, .diff = OP_IN(0), .layout = OP_LAYOUT_ANY, .half = OP_HALF_SAME,         \
    .half_of = OP_IN(0) | 0xFFFF0000u,                                                             \
    .cpu = { split_plan, parts_fwd, parts_bwd, free }

const struct op_def op_split_2 = { FIELDS, .since = 2, .until = 12, .n_in = { 1, 1 },
                                   .attrs = attrs_2 };
const struct op_def op_split_13 = { FIELDS, .since = 13, .until = 17, .n_in = { 1, 2 },
                                    .attrs = attrs_13 };
const struct op_def op_split_18 = { FIELDS, .since = 18, .n_in = { 1, 2 }, .attrs = attrs_18 };
