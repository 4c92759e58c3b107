/* tanh.c - Tanh: y = tanh(x).   dx = dy (1 - y^2), as (1 - y)(1 + y), which keeps its precision
 * near |y| = 1. */
#include "op/act/act.h"
#include "op/vmath.h"

ACT_UNARY(tanh, vm_tanh(ACT_X), out, ACT_D * ((1.0f - ACT_V) * (1.0f + ACT_V)))

const struct op_def op_tanh = {
    .name = "Tanh",
    .since = 6,
    .n_in = { 1, 1 },
    .n_out = { 1, 1 },
    .infer = infer_same_shape,
    .diff = OP_IN(0),
    .bwd_reads = OP_OUT(0),
    .in_place = true,
    .layout = OP_LAYOUT_ANY,
    .half = OP_HALF_SAME,
    .half_of = OP_IN(0) | OP_OUT(0),
    .cpu = { .fwd = tanh_fwd, .bwd = tanh_bwd },
};
