/* slice.c - Slice (opset 10): x[start:end:step] along some axes, as in Python: negative starts and
 * ends count from the end, what lies outside is cut, a negative step goes backwards. Starts, ends,
 * axes (default: the first ones) and steps are constants.   dx is dy in its place, 0 elsewhere.
 * Any type. */
#include <inttypes.h>
#include <stdlib.h>

#include "base/err.h"
#include "op/op_priv.h"
#include "op/shape/parts.h"

struct slice {
    int64_t start[TENSOR_MAX_RANK], step[TENSOR_MAX_RANK];
};

static int64_t clamp(int64_t v, int64_t lo, int64_t hi)
{
    return v < lo ? lo : v > hi ? hi : v;
}

/* How many elements; *start and *step become exact. */
static int64_t settle(int64_t dim, int64_t *start, int64_t end, int64_t *step)
{
    bool forward = *step > 0;
    int64_t last = forward ? dim : dim - 1;

    *step = *step < -INT64_MAX ? -INT64_MAX : *step;
    *start = clamp(*start < 0 ? *start + dim : *start, 0, last);
    end = clamp(end < 0 ? end + dim : end, forward ? 0 : -1, last);
    if (dim == 0 || (forward ? end <= *start : end >= *start))
        return 0;
    return forward ? (end - *start - 1) / *step + 1 : (*start - end - 1) / -*step + 1;
}

static int slice_infer(struct op_infer *f, struct err *err)
{
    struct slice *s = f->param;
    const int64_t *list[5] = { NULL }; /* starts, ends, axes, steps at 1 .. 4 */
    size_t n[5] = { 0 }, i;
    const struct tensor *x = f->in[0];
    uint32_t k, seen = 0;
    int rc = 0;

    if (x == NULL)
        return op_error(f, ERR_INPUT, err, "input 0 is missing");
    for (k = 1; k < 5 && rc == 0; k++)
        rc = op_const_ints(f, k, &list[k], &n[k], err);
    if (rc < 0)
        return rc;
    if (n[1] != n[2] || (list[3] != NULL && n[3] != n[1]) || (list[4] != NULL && n[4] != n[1]))
        return op_error(f, ERR_INPUT, err, "%zu starts, %zu ends, %zu axes and %zu steps; expected "
                        "as many of each", n[1], n[2], n[3], n[4]);
    f->out[0].dtype = x->dtype;
    f->out[0].shape = x->shape;
    for (k = 0; k < TENSOR_MAX_RANK; k++)
        s->step[k] = 1;
    for (i = 0; i < n[1]; i++) {
        int64_t axis = list[3] != NULL ? list[3][i] : (int64_t)i;

        rc = op_axis(f, &axis, x->shape.rank, err);
        if (rc < 0)
            return rc;
        if ((seen & (1u << axis)) != 0)
            return op_error(f, ERR_INPUT, err, "axis %" PRId64 " comes twice", axis);
        seen |= 1u << axis;
        s->start[axis] = list[1][i];
        s->step[axis] = list[4] != NULL ? list[4][i] : 1;
        if (s->step[axis] == 0)
            return op_error(f, ERR_INPUT, err, "the step along axis %" PRId64 " is 0", axis);
        f->out[0].shape.dim[axis] =
            settle(x->shape.dim[axis], &s->start[axis], list[2][i], &s->step[axis]);
    }
    return 0;
}

static int slice_plan(struct op_plan *p, struct err *err)
{
    const struct slice *c = p->param;
    struct parts *s = parts_new(p, 1, err);

    if (s == NULL)
        return ERR_NOMEM;
    part_box(&s->at[0], p->in[0], &p->out[0], p->out[0].shape.dim, c->start, c->step, NULL);
    s->gaps = tensor_elements(p->in[0]) != tensor_elements(&p->out[0]);
    return 0;
}

const struct op_def op_slice = {
    .name = "Slice",
    .since = 10,
    .n_in = { 3, 5 },
    .n_out = { 1, 1 },
    .param_bytes = sizeof(struct slice),
    .infer = slice_infer,
    .diff = OP_IN(0),
    .layout = OP_LAYOUT_ANY,
    .half = OP_HALF_SAME,
    .half_of = OP_IN(0) | OP_OUT(0),
    .cpu = { slice_plan, parts_fwd, parts_bwd, free },
};
