/* sub.c - Sub: y = a - b.   da = dy, db = -dy, summed where broadcast. Opset 7: NumPy
 * broadcasting; later versions only add types. */
#include "op/elem/elem.h"

#include <stdlib.h>

ELEM_FWD(sub_f32, float, ELEM_A - ELEM_B)
ELEM_FWD(sub_i32, uint32_t, ELEM_A - ELEM_B)
ELEM_FWD(sub_i64, uint64_t, ELEM_A - ELEM_B)
ELEM_BWD(sub_da, 0, ELEM_D)
ELEM_BWD(sub_db, 1, -ELEM_D)

static const struct elem_kernels kernels = {
    .f32 = sub_f32, .i32 = sub_i32, .i64 = sub_i64, .bwd = { sub_da, sub_db }
};
ELEM_ROW(sub)

const struct op_def op_sub = {
    .name = "Sub",
    .since = 7,
    .n_in = { 2, 2 },
    .n_out = { 1, 1 },
    .infer = sub_infer,
    .diff = OP_IN(0) | OP_IN(1),
    .in_place = true,
    .layout = OP_LAYOUT_ANY,
    .half = OP_HALF_MIX,
    .half_of = OP_IN(0) | OP_IN(1) | OP_OUT(0),
    .cpu = { elem_plan, sub_fwd, sub_bwd, free },
};
