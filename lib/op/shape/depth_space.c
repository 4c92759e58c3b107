/* depth_space.c - moves blocks of b x b pixels to channels and back, x [n, c, h, w]:
 *   DepthToSpace, mode DCR: y[n, c, h b + i, w b + j] = x[n, (i b + j) C + c, h, w], C = c / b^2
 *                 mode CRD: y[n, c, h b + i, w b + j] = x[n, c b^2 + i b + j, h, w]
 *   SpaceToDepth: the reverse of DCR. Any type. DepthToSpace has a mode from opset 11 on. */
#include <inttypes.h>
#include <stdlib.h>

#include "base/err.h"
#include "op/op_priv.h"
#include "op/shape/parts.h"

struct blocks {
    int64_t side;
    bool channels_outside; /* CRD */
};

static int read_block(struct op_infer *f, struct err *err)
{
    struct blocks *b = f->param;
    const struct tensor *x = f->in[0];
    char text[192];
    int rc = op_attr_i(f, "blocksize", 0, &b->side, err);

    if (rc < 0)
        return rc;
    if (b->side < 1 || b->side > 65535)
        return op_error(f, ERR_INPUT, err, "blocksize is %" PRId64 "; expected 1 to 65535",
                        b->side);
    if (x == NULL)
        return op_error(f, ERR_INPUT, err, "input 0 is missing");
    if (x->shape.rank != 4)
        return op_error(f, ERR_INPUT, err, "input 0 has shape %s; expected 4 dimensions",
                        shape_print(&x->shape, text, sizeof(text)));
    f->out[0].dtype = x->dtype;
    f->out[0].shape = x->shape;
    return 0;
}

static int to_space_infer(struct op_infer *f, struct err *err)
{
    struct blocks *b = f->param;
    int64_t *dim = f->out[0].shape.dim;
    const char *mode = NULL;
    int rc = read_block(f, err);

    if (rc == 0)
        rc = op_attr_s(f, "mode", "DCR", &mode, err);
    if (rc < 0)
        return rc;
    b->channels_outside = strcmp(mode, "CRD") == 0;
    if (!b->channels_outside && strcmp(mode, "DCR") != 0)
        return op_error(f, ERR_INPUT, err, "mode is '%s'; expected DCR or CRD", mode);
    if (dim[1] % (b->side * b->side) != 0)
        return op_error(f, ERR_INPUT, err, "%" PRId64 " channels do not divide into blocks of %"
                        PRId64 " x %" PRId64, dim[1], b->side, b->side);
    dim[1] /= b->side * b->side;
    if (__builtin_mul_overflow(dim[2], b->side, &dim[2]) ||
        __builtin_mul_overflow(dim[3], b->side, &dim[3]))
        return op_error(f, ERR_INPUT, err, "blocksize %" PRId64 " is too large", b->side);
    return 0;
}

static int to_depth_infer(struct op_infer *f, struct err *err)
{
    struct blocks *b = f->param;
    int64_t *dim = f->out[0].shape.dim;
    int rc = read_block(f, err);

    if (rc < 0)
        return rc;
    if (dim[2] % b->side != 0 || dim[3] % b->side != 0)
        return op_error(f, ERR_INPUT, err, "%" PRId64 " x %" PRId64 " pixels do not divide into "
                        "blocks of %" PRId64, dim[2], dim[3], b->side);
    dim[2] /= b->side;
    dim[3] /= b->side;
    if (__builtin_mul_overflow(dim[1], b->side * b->side, &dim[1]))
        return op_error(f, ERR_INPUT, err, "blocksize %" PRId64 " is too large", b->side);
    return 0;
}

/* `deep` has more channels, `wide` more pixels; either may be x. */
static int blocks_plan(struct op_plan *p, const struct tensor *deep, const struct tensor *wide,
                       bool to_space, struct err *err)
{
    const struct blocks *b = p->param;
    int64_t side = b->side, c = wide->shape.dim[1], size[6];
    ptrdiff_t d[TENSOR_MAX_RANK], w[TENSOR_MAX_RANK];
    struct parts *s = parts_new(p, 1, err);
    uint32_t k;

    if (s == NULL)
        return ERR_NOMEM;
    op_strides(deep, d);
    op_strides(wide, w);
    /* n, i, j, c, h, w */
    memcpy(size, (int64_t[]){ deep->shape.dim[0], side, side, c, deep->shape.dim[2],
                              deep->shape.dim[3] }, sizeof(size));
    {
        ptrdiff_t block = b->channels_outside ? d[1] : (ptrdiff_t)c * d[1];
        ptrdiff_t channel = b->channels_outside ? (ptrdiff_t)(side * side) * d[1] : d[1];
        ptrdiff_t of_deep[6] = { d[0], block * (ptrdiff_t)side, block, channel, d[2], d[3] };
        ptrdiff_t of_wide[6] = { w[0], w[2], w[3], w[1], w[2] * (ptrdiff_t)side,
                                 w[3] * (ptrdiff_t)side };

        for (k = 0; k < 6; k++)
            copy_add_axis(&s->at[0].fwd, size[k], to_space ? of_deep[k] : of_wide[k],
                          to_space ? of_wide[k] : of_deep[k]);
    }
    part_finish(&s->at[0]);
    return 0;
}

static int to_space_plan(struct op_plan *p, struct err *err)
{
    return blocks_plan(p, p->in[0], &p->out[0], true, err);
}

static int to_depth_plan(struct op_plan *p, struct err *err)
{
    return blocks_plan(p, &p->out[0], p->in[0], false, err);
}

static const char *const attrs[] = { "blocksize", "mode", NULL };

const struct op_def op_depth_to_space = {
    .name = "DepthToSpace",
    .since = 1,
    .n_in = { 1, 1 },
    .n_out = { 1, 1 },
    .attrs = attrs,
    .param_bytes = sizeof(struct blocks),
    .infer = to_space_infer,
    .diff = OP_IN(0),
    .layout = OP_LAYOUT_ANY,
    .half = OP_HALF_SAME,
    .half_of = OP_IN(0) | OP_OUT(0),
    .cpu = { to_space_plan, parts_fwd, parts_bwd, free },
};

static const char *const only_size[] = { "blocksize", NULL };

const struct op_def op_space_to_depth = {
    .name = "SpaceToDepth",
    .since = 1,
    .n_in = { 1, 1 },
    .n_out = { 1, 1 },
    .attrs = only_size,
    .param_bytes = sizeof(struct blocks),
    .infer = to_depth_infer,
    .diff = OP_IN(0),
    .layout = OP_LAYOUT_ANY,
    .half = OP_HALF_SAME,
    .half_of = OP_IN(0) | OP_OUT(0),
    .cpu = { to_depth_plan, parts_fwd, parts_bwd, free },
};
