/* relu.c - Relu: y = max(x, 0).   dx = dy where y > 0, else 0. NaN stays NaN. */
#include "op/act/act.h"

ACT_UNARY(relu, ACT_X < 0.0f ? 0.0f : ACT_X, out, ACT_V <= 0.0f ? 0.0f : ACT_D)

const struct op_def op_relu = {
    .name = "Relu",
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
    .cpu = { .fwd = relu_fwd, .bwd = relu_bwd },
};
