/* mul.c - Mul: y = a b.   da = dy b, db = dy a, summed where broadcast. Opset 7: NumPy
 * broadcasting. */
#include "op/elem/elem.h"

#include <stdlib.h>

ELEM_FWD(mul_f32, float, ELEM_A * ELEM_B)
ELEM_FWD(mul_i32, uint32_t, ELEM_A * ELEM_B)
ELEM_FWD(mul_i64, uint64_t, ELEM_A * ELEM_B)
ELEM_BWD(mul_da, 0, ELEM_D * ELEM_B)
ELEM_BWD(mul_db, 1, ELEM_D * ELEM_A)

static const struct elem_kernels kernels = {
    .f32 = mul_f32, .i32 = mul_i32, .i64 = mul_i64, .bwd = { mul_da, mul_db },
    .bwd_reads = true
};
ELEM_ROW(mul)

const struct op_def op_mul = {
    .name = "Mul",
    .since = 7,
    .n_in = { 2, 2 },
    .n_out = { 1, 1 },
    .infer = mul_infer,
    .diff = OP_IN(0) | OP_IN(1),
    .bwd_reads = OP_IN(0) | OP_IN(1),
    .in_place = true,
    .layout = OP_LAYOUT_ANY,
    .half = OP_HALF_MIX,
    .half_of = OP_IN(0) | OP_IN(1) | OP_OUT(0),
    .cpu = { elem_plan, mul_fwd, mul_bwd, free },
};
