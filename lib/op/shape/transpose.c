/* transpose.c - Transpose: axis k of y is axis perm[k] of x; without perm, the axes are reversed.
 * Any type. */
#include <inttypes.h>
#include <stdlib.h>

#include "base/err.h"
#include "op/op_priv.h"
#include "op/shape/parts.h"

struct transpose {
    uint8_t perm[TENSOR_MAX_RANK];
};

static int transpose_infer(struct op_infer *f, struct err *err)
{
    struct transpose *t = f->param;
    const struct tensor *x = f->in[0];
    const int64_t *perm;
    uint32_t seen = 0, k;
    size_t n;
    int rc = op_attr_ints(f, "perm", &perm, &n, err);

    if (rc < 0)
        return rc;
    if (x == NULL)
        return op_error(f, ERR_INPUT, err, "input 0 is missing");
    if (perm != NULL && n != x->shape.rank)
        return op_error(f, ERR_INPUT, err, "perm has %zu axes; the input has %" PRIu32, n,
                        x->shape.rank);
    f->out[0].dtype = x->dtype;
    f->out[0].shape.rank = x->shape.rank;
    for (k = 0; k < x->shape.rank; k++) {
        int64_t axis = perm != NULL ? perm[k] : (int64_t)(x->shape.rank - 1 - k);

        if (axis < 0 || axis >= x->shape.rank || (seen & (1u << axis)) != 0)
            return op_error(f, ERR_INPUT, err, "perm has %" PRId64 " at %" PRIu32
                            "; expected each of 0 to %" PRIu32 " once", axis, k,
                            x->shape.rank - 1);
        seen |= 1u << axis;
        t->perm[k] = (uint8_t)axis;
        f->out[0].shape.dim[k] = x->shape.dim[axis];
    }
    return 0;
}

static int transpose_plan(struct op_plan *p, struct err *err)
{
    const struct transpose *t = p->param;
    ptrdiff_t from[TENSOR_MAX_RANK], to[TENSOR_MAX_RANK];
    struct parts *s = parts_new(p, 1, err);
    uint32_t k;

    if (s == NULL)
        return ERR_NOMEM;
    op_strides(p->in[0], from);
    op_strides(&p->out[0], to);
    for (k = 0; k < p->out[0].shape.rank; k++)
        copy_add_axis(&s->at[0].fwd, p->out[0].shape.dim[k], from[t->perm[k]], to[k]);
    part_finish(&s->at[0]);
    return 0;
}

static const char *const attrs[] = { "perm", NULL };

const struct op_def op_transpose = {
    .name = "Transpose",
    .since = 1,
    .n_in = { 1, 1 },
    .n_out = { 1, 1 },
    .attrs = attrs,
    .param_bytes = sizeof(struct transpose),
    .infer = transpose_infer,
    .diff = OP_IN(0),
    .half = OP_HALF_SAME,
    .half_of = OP_IN(0) | OP_OUT(0),
    .layout = OP_LAYOUT_PLAIN,
    .cpu = { transpose_plan, parts_fwd, parts_bwd, free },
};
