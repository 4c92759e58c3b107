/* sigmoid.c - Sigmoid: y = 1 / (1 + e^-x).   dx = dy y (1 - y). */
#include "op/act/act.h"
#include "op/vmath.h"

ACT_UNARY(sigmoid, vm_sigmoid(ACT_X), out, ACT_D * (ACT_V * (1.0f - ACT_V)))

const struct op_def op_sigmoid = {
    .name = "Sigmoid",
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
    .cpu = { .fwd = sigmoid_fwd, .bwd = sigmoid_bwd },
};
