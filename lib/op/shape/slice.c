/* slice.c - Slice: x[start:end:step] along some axes, as in Python: negative starts and ends count
 * from the end, ranges are clipped to the axis, and a negative step reverses. Starts, ends, axes
 * (default: the first ones) and steps are constants: inputs from opset 10 on, attributes (without
 * steps) before. dx is dy at the selected elements, else 0. Any type. */
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

/* Returns the number of elements; normalises *start and *step. */
static int64_t normalise(int64_t dim, int64_t *start, int64_t end, int64_t *step)
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

enum { STARTS = 1, ENDS, AXES, STEPS, LISTS }; /* the inputs */

/* Computes output 0 and the parameters from the lists; a NULL list of axes or steps has its
 * default. */
static int apply_lists(struct op_infer *f, const int64_t *const *list, const size_t *n,
                       struct err *err)
{
    struct slice *s = f->param;
    const struct tensor *x = f->in[0];
    uint32_t k, seen = 0;
    size_t i;
    int rc;

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
            return op_error(f, ERR_INPUT, err, "axis %" PRId64 " is repeated", axis);
        seen |= 1u << axis;
        s->start[axis] = list[1][i];
        s->step[axis] = list[4] != NULL ? list[4][i] : 1;
        if (s->step[axis] == 0)
            return op_error(f, ERR_INPUT, err, "the step along axis %" PRId64 " is 0", axis);
        f->out[0].shape.dim[axis] =
            normalise(x->shape.dim[axis], &s->start[axis], list[2][i], &s->step[axis]);
    }
    return 0;
}

static int slice_infer(struct op_infer *f, struct err *err)
{
    const int64_t *list[LISTS] = { NULL };
    size_t n[LISTS] = { 0 };
    uint32_t k;
    int rc = 0;

    if (f->in[0] == NULL)
        return op_error(f, ERR_INPUT, err, "input 0 is missing");
    for (k = STARTS; k < LISTS && rc == 0; k++)
        rc = op_const_ints(f, k, &list[k], &n[k], err);
    return rc < 0 ? rc : apply_lists(f, list, n, err);
}

static int slice_infer_1(struct op_infer *f, struct err *err)
{
    const int64_t *list[LISTS] = { NULL };
    size_t n[LISTS] = { 0 };
    int rc;

    if (f->in[0] == NULL)
        return op_error(f, ERR_INPUT, err, "input 0 is missing");
    rc = op_attr_ints(f, "starts", &list[STARTS], &n[STARTS], err);
    if (rc == 0)
        rc = op_attr_ints(f, "ends", &list[ENDS], &n[ENDS], err);
    if (rc == 0)
        rc = op_attr_ints(f, "axes", &list[AXES], &n[AXES], err);
    if (rc == 0 && (list[STARTS] == NULL || list[ENDS] == NULL))
        rc = op_error(f, ERR_INPUT, err, "attribute '%s' is missing",
                      list[STARTS] == NULL ? "starts" : "ends");
    return rc < 0 ? rc : apply_lists(f, list, n, err);
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

static const char *const attrs_1[] = { "axes", "ends", "starts", NULL };

#define FIELDS                                                                                     \
    .name = "Slice", .n_out = { 1, 1 }, .param_bytes = sizeof(struct slice), .diff = OP_IN(0),     \
    .layout = OP_LAYOUT_ANY, .half = OP_HALF_SAME, .half_of = OP_IN(0) | OP_OUT(0),                \
    .cpu = { slice_plan, parts_fwd, parts_bwd, free }

const struct op_def op_slice = { FIELDS, .since = 10, .n_in = { 3, 5 }, .infer = slice_infer };
const struct op_def op_slice_1 = { FIELDS, .since = 1, .until = 9, .n_in = { 1, 1 },
                                   .attrs = attrs_1, .infer = slice_infer_1 };
