/* div.c - Div: y = a / b.   da = dy / b, db = -dy a / b^2, summed where broadcast. Integers are
 * truncated towards 0; the least one by -1 wraps. Opset 7: NumPy broadcasting. */
#include "op/elem/divisor.h"
#include "op/elem/elem.h"

#include <stdlib.h>

#include "base/err.h"

ELEM_FWD(div_f32, float, ELEM_A / ELEM_B)
ELEM_FWD(div_i32, int32_t, elem_quotient_i32(ELEM_A, ELEM_B))
ELEM_FWD(div_i64, int64_t, elem_quotient_i64(ELEM_A, ELEM_B))
ELEM_FWD(div_u64, uint64_t, elem_quotient_u64(ELEM_A, ELEM_B))
ELEM_BWD(div_da, 0, ELEM_D / ELEM_B)
ELEM_BWD(div_db, 1, elem_div_db(ELEM_D, ELEM_A, ELEM_B))

static const struct elem_kernels kernels = {
    .f32 = div_f32, .i32 = div_i32, .i64 = div_i64, .u64 = div_u64, .bwd = { div_da, div_db },
    .bwd_reads = true
};

int elem_refuse_divisor(const char *op, size_t at, struct err *err)
{
    return err_set(err, ERR_INPUT, "%s: element %zu of the integer divisor is 0", op, at);
}

int elem_check_divisor(const struct op_call *c, const char *op, struct err *err)
{
    const struct tensor *b = c->in[1];
    bool is_whole = b->dtype == TENSOR_I32 || b->dtype == TENSOR_I64 || b->dtype == TENSOR_U64;
    size_t n = is_whole ? (size_t)tensor_elements(b) : 0, i;

    for (i = 0; i < n; i++)
        if (b->dtype == TENSOR_I32 ? ((const int32_t *)b->data)[i] == 0
                                   : ((const int64_t *)b->data)[i] == 0)
            return elem_refuse_divisor(op, i, err);
    return 0;
}

static int div_infer(struct op_infer *f, struct err *err)
{
    return elem_infer(f, &kernels, err);
}

static int div_refuse(const struct op_call *c, size_t at, int64_t value, struct err *err)
{
    (void)c;
    (void)value;
    return elem_refuse_divisor("Div", at, err);
}

static int div_fwd(const struct op_call *c, struct err *err)
{
    int rc = elem_check_divisor(c, "Div", err);

    return rc < 0 ? rc : elem_fwd(c, &kernels);
}

static int div_bwd(const struct op_call *c, struct err *err)
{
    (void)err;
    return elem_bwd(c, &kernels);
}

const struct op_def op_div = {
    .name = "Div",
    .since = 7,
    .n_in = { 2, 2 },
    .n_out = { 1, 1 },
    .infer = div_infer,
    .diff = OP_IN(0) | OP_IN(1),
    .bwd_reads = OP_IN(0) | OP_IN(1),
    .in_place = true,
    .layout = OP_LAYOUT_ANY,
    .half = OP_HALF_MIX,
    .half_of = OP_IN(0) | OP_IN(1) | OP_OUT(0),
    .refuse = div_refuse,
    .cpu = { elem_plan, div_fwd, div_bwd, free },
};
