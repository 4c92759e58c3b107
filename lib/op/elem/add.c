/* add.c - Add: y = a + b.   da = dy, db = dy, summed where broadcast. Opset 7: NumPy
 * broadcasting. */
#include "op/elem/elem.h"

#include <stdlib.h>

ELEM_FWD(add_f32, float, ELEM_A + ELEM_B)
ELEM_FWD(add_i32, uint32_t, ELEM_A + ELEM_B)
ELEM_FWD(add_i64, uint64_t, ELEM_A + ELEM_B)
ELEM_BWD(add_da, 0, ELEM_D)
ELEM_BWD(add_db, 1, ELEM_D)

static const struct elem_kernels kernels = {
    .f32 = add_f32, .i32 = add_i32, .i64 = add_i64, .bwd = { add_da, add_db }
};
ELEM_ROW(add)

const struct op_def op_add = {
    .name = "Add",
    .since = 7,
    .n_in = { 2, 2 },
    .n_out = { 1, 1 },
    .infer = add_infer,
    .diff = OP_IN(0) | OP_IN(1),
    .in_place = true,
    .layout = OP_LAYOUT_ANY,
    .half = OP_HALF_MIX,
    .half_of = OP_IN(0) | OP_IN(1) | OP_OUT(0),
    .cpu = { elem_plan, add_fwd, add_bwd, free },
};
