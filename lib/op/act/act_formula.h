/* act_formula.h - the activations: every formula once, for CPUs and GPUs.
 *
 * ACT_FORMULA(id, y, dx) defines act_<id>_y(x, p, q), the value, and act_<id>_dx(d, v, p, q), the
 * gradient of x. Here d is the gradient of the value, v what backward reads (the value or x, as the
 * row says), and p and q are the row's first two attributes. NaN stays NaN. */
#ifndef OP_ACT_ACT_FORMULA_H
#define OP_ACT_ACT_FORMULA_H

#include <stdint.h>

#include "op/formula.h"

/* What backward reads beside the gradient: the input, the output, or nothing. */
#define ACT_READS_in(c_) (c_)->in[0]
#define ACT_READS_out(c_) (c_)->out[0]
#define ACT_READS_none(c_) (c_)->dout[0]

#define ACT_FORMULA(id_, y_, dx_)                                                                  \
    FORMULA float act_##id_##_y(float x, float p, float q)                                         \
    {                                                                                              \
        (void)p, (void)q;                                                                          \
        return (y_);                                                                               \
    }                                                                                              \
    FORMULA float act_##id_##_dx(float d, float v, float p, float q)                               \
    {                                                                                              \
        (void)v, (void)p, (void)q;                                                                 \
        return (dx_);                                                                              \
    }

/* clang-format off */

/* ---- functions of analysis ---- */

#define ACT_TWO_OVER_ROOT_PI 0x1.20dd76p+0f

ACT_FORMULA(exp, op_expf(x), d * v)
ACT_FORMULA(log, op_logf(x), d / v)
ACT_FORMULA(sqrt, sqrtf(x), d * 0.5f / v)
ACT_FORMULA(reciprocal, 1.0f / x, -d * (v * v))
ACT_FORMULA(erf, op_erff(x), d * (ACT_TWO_OVER_ROOT_PI * op_expf(-(v * v))))
ACT_FORMULA(sigmoid, op_sigmoidf(x), d * (v * (1.0f - v)))
ACT_FORMULA(tanh, op_tanhf(x), d * ((1.0f - v) * (1.0f + v))) /* precise near |v| = 1 */

/* Steps are flat almost everywhere. */
ACT_FORMULA(floor, floorf(x), d * 0.0f)
ACT_FORMULA(ceil, ceilf(x), d * 0.0f)
ACT_FORMULA(round_11, rintf(x), d * 0.0f)

ACT_FORMULA(neg, -x, -d)
ACT_FORMULA(abs, x<0.0f ? -x : x == 0.0f ? 0.0f : x, v> 0.0f ? d : v < 0.0f ? -d : v * d)
ACT_FORMULA(sign, x > 0.0f ? 1.0f : x < 0.0f ? -1.0f : x * 0.0f, d * 0.0f)

/* Returns the bits of -x for int32 and int64: the least integer wraps. */
FORMULA uint64_t act_neg_whole(int64_t x)
{
    return 0 - (uint64_t)x;
}

FORMULA uint64_t act_abs_whole(int64_t x)
{
    return x < 0 ? 0 - (uint64_t)x : (uint64_t)x;
}

FORMULA uint64_t act_sign_whole(int64_t x)
{
    return (uint64_t)(x > 0 ? 1 : x < 0 ? -1 : 0);
}

/* ---- circular and hyperbolic functions: in double, by the C library; they are rare, and their
 * arguments may be huge. dx = d times the slope ---- */

#define ACT_ANGLE(id_, f_, slope_)                                                                 \
    ACT_FORMULA(id_, (float)f_((double)x), (float)((double)d * (slope_)))
#define ACT_V ((double)v)

ACT_ANGLE(sin, sin, cos(ACT_V))
ACT_ANGLE(cos, cos, -sin(ACT_V))
ACT_ANGLE(tan, tan, 1 + ACT_V * ACT_V) /* v: the value */
ACT_ANGLE(asin, asin, 1 / sqrt((1 - ACT_V) * (1 + ACT_V)))
ACT_ANGLE(acos, acos, -1 / sqrt((1 - ACT_V) * (1 + ACT_V)))
ACT_ANGLE(atan, atan, 1 / (1 + ACT_V * ACT_V))
ACT_ANGLE(sinh, sinh, cosh(ACT_V))
ACT_ANGLE(cosh, cosh, sinh(ACT_V))
ACT_ANGLE(asinh, asinh, 1 / sqrt(ACT_V * ACT_V + 1))
ACT_ANGLE(acosh, acosh, 1 / sqrt((ACT_V - 1) * (ACT_V + 1)))
ACT_ANGLE(atanh, atanh, 1 / ((1 - ACT_V) * (1 + ACT_V)))

/* ---- Relu and its relatives. Where the slope jumps, it is that of PyTorch: LeakyRelu and Elu take
 * the left slope at 0, Selu and Celu that of the exponential, the others the smaller one ---- */

FORMULA float act_within_0_1(float x)
{
    return x < 0.0f ? 0.0f : x > 1.0f ? 1.0f : x;
}

ACT_FORMULA(relu, x < 0.0f ? 0.0f : x, v <= 0.0f ? 0.0f : d)
ACT_FORMULA(leaky_relu, x < 0.0f ? p * x : x, v <= 0.0f ? p * d : d)
ACT_FORMULA(thresholded_relu, x <= p ? 0.0f : x, v <= p ? 0.0f : d)
ACT_FORMULA(elu, x < 0.0f ? p * op_expm1f(x) : x, v <= 0.0f ? d * (p * op_expf(v)) : d)
ACT_FORMULA(selu, q * (x <= 0.0f ? p * op_expm1f(x) : x),
            d * (q * (v <= 0.0f ? p * op_expf(v) : 1.0f)))
ACT_FORMULA(celu, x < 0.0f ? p * op_expm1f(x / p) : x, v < 0.0f ? d * op_expf(v / p) : d)
ACT_FORMULA(hard_sigmoid, act_within_0_1(p * x + q), v <= 0.0f || v >= 1.0f ? 0.0f : p * d)
ACT_FORMULA(hard_swish, x * act_within_0_1(x * (1.0f / 6.0f) + 0.5f),
            v <= -3.0f  ? 0.0f
            : v >= 3.0f ? d
                        : d * (v * (1.0f / 3.0f) + 0.5f))
ACT_FORMULA(shrink, x<-p ? x + q : x> p ? x - q : x * 0.0f, v<-p || v> p ? d : 0.0f)

/* Clip: hi where lo > hi. The derivative at a bound is 0, as in PyTorch (2.15) and in relu6 of
 * TensorFlow. */
FORMULA float act_clip_y(float x, float lo, float hi)
{
    float v = x < lo ? lo : x;

    return v > hi ? hi : v;
}

FORMULA float act_clip_dx(float d, float x, float lo, float hi)
{
    return x <= lo || x >= hi ? 0.0f : d;
}

/* ---- smooth relatives of Relu. tanh(ln(1 + e^x)) = n / (n + 2), n = e^x (e^x + 2); 1 from 20 on
 * ---- */

FORMULA float act_mish_gate(float x)
{
    float e = op_expf(x > 20.0f ? 20.0f : x), n = e * (e + 2.0f);

    return n / (n + 2.0f);
}

FORMULA float act_mish_slope(float x)
{
    float t = act_mish_gate(x);

    return t + x * ((1.0f - t) * (1.0f + t) * op_sigmoidf(x));
}

FORMULA float act_sigmoid_slope(float x)
{
    float s = op_sigmoidf(x);

    return s * (1.0f - s);
}

FORMULA float act_swish_slope(float x)
{
    float s = op_sigmoidf(x);

    return s * (1.0f + x * (1.0f - s));
}

ACT_FORMULA(softplus, op_softplusf(x), d * op_sigmoidf(v))
ACT_FORMULA(softsign, x / (1.0f + fabsf(x)), d / ((1.0f + fabsf(v)) * (1.0f + fabsf(v))))
ACT_FORMULA(mish, x * act_mish_gate(x), d * act_mish_slope(v))
ACT_FORMULA(swish, x * op_sigmoidf(x), d * act_swish_slope(v))

/* ---- Gelu: x P(x), P the distribution function of the normal distribution, and its approximation
 * by tanh u, u = sqrt(2 / pi) (x + 0.044715 x^3) ---- */

#define ACT_ROOT_HALF 0x1.6a09e6p-1f
#define ACT_ONE_OVER_ROOT_2_PI 0x1.988454p-2f
#define ACT_ROOT_2_OVER_PI 0x1.988454p-1f
#define ACT_CUBIC 0.044715f

FORMULA float act_normal(float x)
{
    return 0.5f * (1.0f + op_erff(x * ACT_ROOT_HALF));
}

FORMULA float act_gelu_exact_slope(float x)
{
    return act_normal(x) + x * (ACT_ONE_OVER_ROOT_2_PI * op_expf(-0.5f * (x * x)));
}

FORMULA float act_tanh_of_cubic(float x)
{
    return op_tanhf(ACT_ROOT_2_OVER_PI * (x + ACT_CUBIC * (x * (x * x))));
}

FORMULA float act_gelu_tanh_slope(float x)
{
    float t = act_tanh_of_cubic(x);
    float du = ACT_ROOT_2_OVER_PI * (1.0f + 3.0f * ACT_CUBIC * (x * x));

    return 0.5f * ((1.0f + t) + x * ((1.0f - t) * (1.0f + t) * du));
}

ACT_FORMULA(gelu_exact, x * act_normal(x), d * act_gelu_exact_slope(v))
ACT_FORMULA(gelu_tanh, x * (0.5f * (1.0f + act_tanh_of_cubic(x))), d * act_gelu_tanh_slope(v))

/* clang-format on */

#endif
