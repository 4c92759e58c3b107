/* act_list.h - a row for each activation whose op and kernels follow from its formula in
 * act_formula.h.
 *
 * A new activation is a formula there, a row here, its line in op/op_list.h and a case in
 * test/op/test_act_ops.c; an op of ONNX also has a row in test/graph/reviewed_versions.h. The C file
 * of a list makes the rows of ops and the kernels for CPUs; the .cu file makes those for GPUs.
 *
 *   ROW(id, name, first opset, what backward reads: in, out or none)
 *   WIDE(...)  the same for results that need the precision of float32, whatever feeds them
 *   WITH(..., names of the float attributes, their defaults) */
#ifndef OP_ACT_ACT_LIST_H
#define OP_ACT_ACT_LIST_H

/* clang-format off */

#define ACT_FUNCTION_LIST(ROW, WIDE)   \
WIDE(exp, "Exp", 6, out)               \
WIDE(log, "Log", 6, in)                \
WIDE(sqrt, "Sqrt", 6, out)             \
WIDE(reciprocal, "Reciprocal", 6, out) \
WIDE(erf, "Erf", 9, in)                \
ROW(sigmoid, "Sigmoid", 6, out)        \
ROW(tanh, "Tanh", 6, out)              \
ROW(floor, "Floor", 6, none)           \
ROW(ceil, "Ceil", 6, none)             \
ROW(round_11, "Round", 11, none)

#define ACT_ANGLE_LIST(WIDE) \
WIDE(sin, "Sin", 7, in)      \
WIDE(cos, "Cos", 7, in)      \
WIDE(tan, "Tan", 7, out)     \
WIDE(asin, "Asin", 7, in)    \
WIDE(acos, "Acos", 7, in)    \
WIDE(atan, "Atan", 7, in)    \
WIDE(sinh, "Sinh", 9, in)    \
WIDE(cosh, "Cosh", 9, in)    \
WIDE(asinh, "Asinh", 9, in)  \
WIDE(acosh, "Acosh", 9, in)  \
WIDE(atanh, "Atanh", 9, in)

#define ACT_RECTIFIER_LIST(ROW, WITH)                                                          \
ROW(relu, "Relu", 6, out)                                                                      \
WITH(leaky_relu, "LeakyRelu", 6, in, alpha, 0.01f)                                             \
WITH(thresholded_relu, "ThresholdedRelu", 10, in, alpha, 1.0f)                                 \
WITH(elu, "Elu", 6, in, alpha, 1.0f)                                                           \
WITH(selu, "Selu", 6, in, alpha_gamma, 1.67326319217681884765625f, 1.05070102214813232421875f) \
WITH(celu, "Celu", 12, in, alpha, 1.0f)                                                        \
WITH(hard_sigmoid, "HardSigmoid", 6, out, alpha_beta, 0.2f, 0.5f)                              \
ROW(hard_swish, "HardSwish", 14, in)                                                           \
WITH(shrink, "Shrink", 9, in, lambd_bias, 0.5f, 0.0f)

#define ACT_SOFT_LIST(ROW)       \
ROW(softplus, "Softplus", 1, in) \
ROW(softsign, "Softsign", 1, in) \
ROW(mish, "Mish", 18, in)

/* clang-format on */

#endif
