/* bits.c - BitwiseAnd, BitwiseOr, BitwiseXor, BitwiseNot (opset 18), BitShift (opset 11): of
 * integers, with NumPy broadcasting. A shift by the width or more leaves 0.   No gradient. */
#include "op/elem/bits.h"
#include "op/elem/elem.h"

#include <stdlib.h>
#include <string.h>

#include "base/err.h"

#define BITS(id_, name_, operator_)                                                                \
    ELEM_FWD(id_##_i32, uint32_t, ELEM_A operator_ ELEM_B)                                         \
    ELEM_FWD(id_##_i64, uint64_t, ELEM_A operator_ ELEM_B)                                         \
    static const struct elem_kernels id_##_kernels = { .i32 = id_##_i32, .i64 = id_##_i64 };       \
    ELEM_ROW_OF_TWO(id_, name_, 18, true)

BITS(bitwise_and, "BitwiseAnd", &)
BITS(bitwise_or, "BitwiseOr", |)
BITS(bitwise_xor, "BitwiseXor", ^)

/* ---- BitShift ---- */

/* For int64: smaller unsigned types are computed in int64, so neither operand is negative. */
ELEM_FWD(left_64, uint64_t, ELEM_B < 64 ? ELEM_A << ELEM_B : 0)
ELEM_FWD(right_64, uint64_t, ELEM_B < 64 ? ELEM_A >> ELEM_B : 0)

static const struct elem_kernels left = { .i64 = left_64, .u64 = left_64 };
static const struct elem_kernels right = { .i64 = right_64, .u64 = right_64 };

static int shift_infer(struct op_infer *f, struct err *err)
{
    struct bit_shift *p = f->param;
    const char *direction;
    int rc = op_attr_s(f, "direction", "", &direction, err);

    if (rc < 0)
        return rc;
    p->to_left = strcmp(direction, "LEFT") == 0;
    if (!p->to_left && strcmp(direction, "RIGHT") != 0)
        return op_error(f, ERR_INPUT, err, "direction is '%s'; expected LEFT or RIGHT", direction);
    return elem_infer(f, p->to_left ? &left : &right, err);
}

static int shift_fwd(const struct op_call *c, struct err *err)
{
    const struct bit_shift *p = c->param;

    (void)err;
    return elem_fwd(c, p->to_left ? &left : &right);
}

static const char *const shift_attrs[] = { "direction", NULL };

const struct op_def op_bit_shift = {
    .name = "BitShift",
    .since = 11,
    .until = 27,
    .n_in = { 2, 2 },
    .n_out = { 1, 1 },
    .attrs = shift_attrs,
    .param_bytes = sizeof(struct bit_shift),
    .infer = shift_infer,
    .in_place = true,
    .layout = OP_LAYOUT_ANY,
    .cpu = { elem_plan, shift_fwd, NULL, free },
};

/* ---- BitwiseNot: byte by byte, for every width ---- */

static int not_infer(struct op_infer *f, struct err *err)
{
    const struct tensor *x = f->in[0];

    if (x == NULL)
        return op_error(f, ERR_INPUT, err, "input 0 is missing");
    if (x->dtype == TENSOR_F32 || x->dtype == TENSOR_F64 || x->dtype == TENSOR_F16 ||
        x->dtype == TENSOR_BF16 || x->dtype == TENSOR_BOOL)
        return op_error(f, ERR_INPUT, err, "input 0 is %s; expected integers",
                        tensor_dtype_name(x->dtype));
    f->out[0].dtype = x->dtype;
    f->out[0].shape = x->shape;
    return 0;
}

static int not_fwd(const struct op_call *c, struct err *err)
{
    const uint8_t *x = c->in[0]->data;
    size_t n = tensor_bytes(c->in[0]), i;
    uint8_t *y = c->out[0]->data;

    (void)err;
    OP_EACH
    for (i = 0; i < n; i++)
        y[i] = (uint8_t)~x[i];
    return 0;
}

const struct op_def op_bitwise_not = {
    .name = "BitwiseNot",
    .since = 18,
    .n_in = { 1, 1 },
    .n_out = { 1, 1 },
    .infer = not_infer,
    .in_place = true,
    .layout = OP_LAYOUT_ANY,
    .cpu = { .fwd = not_fwd },
};
