/* soft.c - smooth relatives of Relu and Sigmoid:
 *   Softplus  ln(1 + e^x)           dx = dy / (1 + e^-x)
 *   Softsign  x / (1 + |x|)         dx = dy / (1 + |x|)^2
 *   Mish      x t, t = tanh(ln(1 + e^x))
 *             dx = dy (t + x (1 - t^2) / (1 + e^-x))
 *   Swish     x s, s = 1 / (1 + e^-x)
 *             dx = dy s (1 + x (1 - s)); domain trainerd: ONNX has it from opset 24 on */
#include "op/act/act.h"

ACT_SOFT_LIST(ACT_ROW)

ACT_KERNELS(swish, false, in)
const struct op_def op_swish = { ACT_FIELDS(swish, "Swish", 1, in), .domain = "trainerd",
                                 .infer = infer_same_shape };
