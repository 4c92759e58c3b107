/* soft.c - smooth relatives of Relu and Sigmoid:
 *   Softplus  ln(1 + e^x)           dx = dy / (1 + e^-x)
 *   Softsign  x / (1 + |x|)         dx = dy / (1 + |x|)^2
 *   Mish      x t, t = tanh(ln(1 + e^x))
 *             dx = dy (t + x (1 - t^2) / (1 + e^-x))
 *   Swish     x s, s = 1 / (1 + e^-x)
 *             dx = dy s (1 + x (1 - s)); domain trainerd: ONNX has it from opset 24 on
 * tanh(ln(1 + e^x)) = n / (n + 2) with n = e^x (e^x + 2); from 20 on it is 1. */
#include "op/act/act.h"
#include "op/vmath.h"

OP_INLINE float mish_gate(float x)
{
    float e = vm_exp(x > 20.0f ? 20.0f : x), n = e * (e + 2.0f);

    return n / (n + 2.0f);
}

OP_INLINE float mish_slope(float x)
{
    float t = mish_gate(x);

    return t + x * ((1.0f - t) * (1.0f + t) * vm_sigmoid(x));
}

ACT_UNARY(softplus, vm_softplus(ACT_X), in, ACT_D *vm_sigmoid(ACT_V))
ACT_UNARY(softsign, ACT_X / (1.0f + fabsf(ACT_X)), in,
          ACT_D / ((1.0f + fabsf(ACT_V)) * (1.0f + fabsf(ACT_V))))
ACT_UNARY(mish, ACT_X *mish_gate(ACT_X), in, ACT_D *mish_slope(ACT_V))

OP_INLINE float swish_slope(float x)
{
    float s = vm_sigmoid(x);

    return s * (1.0f + x * (1.0f - s));
}

ACT_UNARY(swish, ACT_X *vm_sigmoid(ACT_X), in, ACT_D *swish_slope(ACT_V))

ACT_ROW(softplus, "Softplus", 1, OP_IN(0))
ACT_ROW(softsign, "Softsign", 1, OP_IN(0))
ACT_ROW(mish, "Mish", 18, OP_IN(0))

const struct op_def op_swish = { ACT_FIELDS(swish, "Swish", 1, OP_IN(0)),
                                 .domain = "trainerd", .infer = infer_same_shape };
