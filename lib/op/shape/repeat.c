/* repeat.c - Expand (opset 8): x broadcast to a shape, a constant.
 *            Tile (opset 6): y[i] = x[i mod dim], `repeats` (a constant) times along each axis.
 * dx sums over the repetitions of each element. Any type.
 *
 * Both are an element-wise operand that is broadcast: Tile views y as [r0, d0, r1, d1, ...] and x
 * as [1, d0, 1, d1, ...]. */
#include <inttypes.h>
#include <stdlib.h>

#include "base/err.h"
#include "op/elem/elem.h"

ELEM_FWD(copy_8, uint8_t, ELEM_A)
ELEM_FWD(copy_16, uint16_t, ELEM_A)
ELEM_FWD(copy_32, uint32_t, ELEM_A)
ELEM_FWD(copy_64, uint64_t, ELEM_A)
ELEM_BWD(gather, 0, ELEM_D)

static int repeat_fwd(const struct op_call *c, struct err *err)
{
    size_t size = tensor_dtype_bytes(c->out[0]->dtype);

    (void)err;
    elem_run(c->state,
             size == 1   ? copy_8
             : size == 2 ? copy_16
             : size == 4 ? copy_32
                         : copy_64,
             c->in, 1, c->out[0]);
    return 0;
}

static int repeat_bwd(const struct op_call *c, struct err *err)
{
    (void)err;
    if (c->dout[0] == NULL || c->din[0] == NULL)
        op_bwd_zero(c);
    else
        elem_run_bwd(c->state, gather, 0, c->dout[0]->data, c->in, 1, c->din[0]->data, c->scratch,
                     op_adds(c, 0));
    return 0;
}

static struct elem_loops *loops_new(struct op_plan *p, struct err *err)
{
    struct elem_loops *s = calloc(1, sizeof(*s));

    if (s == NULL)
        (void)err_set(err, ERR_NOMEM, "%s '%s': out of memory", p->def->name, p->node);
    p->state = s;
    return s;
}

static void need_sums(struct op_plan *p, const struct elem_loops *s)
{
    if (op_wants(p, 0) && !s->dense[0])
        p->scratch_bytes = s->elements[0] * sizeof(double);
}

/* ---- Expand ---- */

static int expand_infer(struct op_infer *f, struct err *err)
{
    struct tensor want = { 0 };
    const struct tensor *both[2];
    struct op_infer as_broadcast = *f;
    const int64_t *dims;
    size_t n, k;
    int rc = op_const_ints(f, 1, &dims, &n, err);

    if (rc < 0)
        return rc;
    if (f->in[0] == NULL || f->in[1] == NULL)
        return op_error(f, ERR_INPUT, err, "input %d is missing", f->in[0] == NULL ? 0 : 1);
    if (n > TENSOR_MAX_RANK)
        return op_error(f, ERR_UNSUPPORTED, err,
                        "the shape has %zu dimensions; at most %d are supported", n,
                        TENSOR_MAX_RANK);
    want.shape.rank = (uint32_t)n;
    for (k = 0; k < n; k++) {
        if (dims[k] < 0)
            return op_error(f, ERR_INPUT, err, "the shape has %" PRId64 " at %zu", dims[k], k);
        want.shape.dim[k] = dims[k];
    }
    both[0] = f->in[0];
    both[1] = &want;
    as_broadcast.in = both;
    rc = elem_infer_shape(&as_broadcast, 0, 1, err);
    f->out[0].dtype = f->in[0]->dtype;
    return rc < 0 ? rc : op_check_size(f, err);
}

static int expand_plan(struct op_plan *p, struct err *err)
{
    const struct elem_operand x = { p->in[0], NULL };
    struct elem_loops *s = loops_new(p, err);

    if (s == NULL)
        return ERR_NOMEM;
    elem_loops_make(s, &p->out[0], &x, 1);
    need_sums(p, s);
    return 0;
}

const struct op_def op_expand = {
    .name = "Expand",
    .since = 8,
    .n_in = { 2, 2 },
    .n_out = { 1, 1 },
    .infer = expand_infer,
    .diff = OP_IN(0),
    .layout = OP_LAYOUT_ANY,
    .cpu = { expand_plan, repeat_fwd, repeat_bwd, free },
};

/* ---- Tile ---- */

static int tile_infer(struct op_infer *f, struct err *err)
{
    struct shape *y = &f->out[0].shape;
    const int64_t *repeats;
    size_t n, k;
    int rc = op_const_ints(f, 1, &repeats, &n, err);

    if (rc < 0)
        return rc;
    if (f->in[0] == NULL)
        return op_error(f, ERR_INPUT, err, "input 0 is missing");
    if (n != f->in[0]->shape.rank)
        return op_error(f, ERR_INPUT, err, "%zu repeats for %" PRIu32 " dimensions", n,
                        f->in[0]->shape.rank);
    f->out[0].dtype = f->in[0]->dtype;
    *y = f->in[0]->shape;
    for (k = 0; k < n; k++)
        if (repeats[k] < 0 || __builtin_mul_overflow(y->dim[k], repeats[k], &y->dim[k]))
            return op_error(f, ERR_INPUT, err, "repeats has %" PRId64 " at %zu", repeats[k], k);
    return op_check_size(f, err);
}

static int tile_plan(struct op_plan *p, struct err *err)
{
    const struct tensor *x = p->in[0], *y = &p->out[0];
    struct elem_loops *s = loops_new(p, err);
    struct elem_axis axes[ELEM_AXES];
    size_t elements = (size_t)tensor_elements(x);
    uint32_t order[TENSOR_MAX_RANK], n = 0, k;
    ptrdiff_t step[TENSOR_MAX_RANK];

    if (s == NULL)
        return ERR_NOMEM;
    op_memory_order(y, order);
    op_strides(x, step);
    for (k = 0; k < y->shape.rank; k++) {
        size_t dim = (size_t)x->shape.dim[order[k]], whole = (size_t)y->shape.dim[order[k]];

        axes[n++] = (struct elem_axis){ dim > 0 ? whole / dim : 0, { 0 } };
        axes[n++] = (struct elem_axis){ dim, { dim != 1 ? step[order[k]] : 0 } };
    }
    elem_loops_from(s, axes, n, &elements, 1);
    need_sums(p, s);
    return 0;
}

const struct op_def op_tile = {
    .name = "Tile",
    .since = 6,
    .n_in = { 2, 2 },
    .n_out = { 1, 1 },
    .infer = tile_infer,
    .diff = OP_IN(0),
    .layout = OP_LAYOUT_ANY,
    .cpu = { tile_plan, repeat_fwd, repeat_bwd, free },
};
