/* concat.c - Concat: concatenates the inputs along an axis. Each gradient is its part of dy. Any
 * type. From opset 4 on the axis is required; from 11 on it may be negative. */
#include <inttypes.h>
#include <stdlib.h>

#include "base/err.h"
#include "op/op_priv.h"
#include "op/shape/parts.h"

struct concat {
    int64_t axis;
};

static int check_input(struct op_infer *f, uint32_t i, int64_t axis, struct err *err)
{
    const struct tensor *x = f->in[0], *t = f->in[i];
    char a[192], b[192];
    struct shape same;

    if (t == NULL)
        return op_error(f, ERR_INPUT, err, "input %" PRIu32 " is missing", i);
    if (t->dtype != x->dtype)
        return op_error(f, ERR_INPUT, err, "inputs are %s and %s; expected one type",
                        tensor_dtype_name(x->dtype), tensor_dtype_name(t->dtype));
    same = t->shape;
    if (same.rank == x->shape.rank)
        same.dim[axis] = x->shape.dim[axis];
    if (!shape_equal(&same, &x->shape))
        return op_error(f, ERR_INPUT, err, "inputs 0 and %" PRIu32 " have shapes %s and %s; they "
                        "may differ along axis %" PRId64 " only", i,
                        shape_print(&x->shape, a, sizeof(a)), shape_print(&t->shape, b, sizeof(b)),
                        axis);
    return 0;
}

static int concat_infer(struct op_infer *f, struct err *err)
{
    struct concat *c = f->param;
    struct shape *y = &f->out[0].shape;
    uint32_t i;
    int rc = op_attr_i(f, "axis", INT64_MIN, &c->axis, err);

    if (rc < 0)
        return rc;
    if (c->axis == INT64_MIN)
        return op_error(f, ERR_INPUT, err, "attribute 'axis' is missing");
    if (f->in[0] == NULL)
        return op_error(f, ERR_INPUT, err, "input 0 is missing");
    rc = op_axis(f, &c->axis, f->in[0]->shape.rank, err);
    f->out[0].dtype = f->in[0]->dtype;
    *y = f->in[0]->shape;
    for (i = 1; i < f->n_in && rc == 0; i++) {
        rc = check_input(f, i, c->axis, err);
        if (rc == 0 &&
            __builtin_add_overflow(y->dim[c->axis], f->in[i]->shape.dim[c->axis], &y->dim[c->axis]))
            rc = op_error(f, ERR_INPUT, err, "too many elements along axis %" PRId64, c->axis);
    }
    return rc < 0 ? rc : op_check_size(f, err);
}

static int concat_plan(struct op_plan *p, struct err *err)
{
    const struct concat *c = p->param;
    struct parts *s = parts_new(p, p->n_in, err);
    int64_t start[TENSOR_MAX_RANK] = { 0 };
    uint32_t i;

    if (s == NULL)
        return ERR_NOMEM;
    for (i = 0; i < p->n_in; i++) {
        s->at[i].in = i;
        part_box(&s->at[i], p->in[i], &p->out[0], p->in[i]->shape.dim, NULL, NULL, start);
        start[c->axis] += p->in[i]->shape.dim[c->axis];
    }
    return 0;
}

static const char *const attrs[] = { "axis", NULL };

const struct op_def op_concat = {
    .name = "Concat",
    .since = 4,
    .n_in = { 1, OP_MANY },
    .n_out = { 1, 1 },
    .attrs = attrs,
    .param_bytes = sizeof(struct concat),
    .infer = concat_infer,
    .diff = 0xFFFF,
    .layout = OP_LAYOUT_ANY,
    .half = OP_HALF_SAME,
    .half_of = 0xFFFF | OP_OUT(0),
    .cpu = { concat_plan, parts_fwd, parts_bwd, free },
};
