/* rnn_formula.h - the functions of the gates and the cells of LSTM and GRU, for CPUs and GPUs.
 *
 * Every function is monotonic (it rises or stays level), and its slope follows from its value y:
 *   Sigmoid          1 / (1 + e^-x)          y (1 - y)
 *   Tanh                                     1 - y^2
 *   Relu             max(x, 0)               y > 0
 *   LeakyRelu        x <= 0 ? a x : x        y <= 0 ? a : 1
 *   ThresholdedRelu  x > a ? x : 0           y > 0
 *   ScaledTanh       a tanh(b x)             b (a - y^2 / a)
 *   HardSigmoid      a x + b within 0 .. 1   a there, else 0
 *   Elu              x <= 0 ? a (e^x - 1) : x    y <= 0 ? y + a : 1
 *   Softsign         x / (1 + |x|)           (1 - |y|)^2
 *   Softplus         ln(1 + e^x)             1 - e^-y
 *   Affine           a x + b                 a */
#ifndef OP_RNN_RNN_FORMULA_H
#define OP_RNN_RNN_FORMULA_H

#include <stdbool.h>

#include "op/formula.h"

/* rnn_##id_(x, a, b) and rnn_##id_##_slope(y, a, b) */
#define RNN_FORMULA(id_, y_, slope_)                                                               \
    FORMULA float rnn_##id_(float x, float a, float b)                                             \
    {                                                                                              \
        (void)a, (void)b;                                                                          \
        return (y_);                                                                               \
    }                                                                                              \
    FORMULA float rnn_##id_##_slope(float y, float a, float b)                                     \
    {                                                                                              \
        (void)y, (void)a, (void)b;                                                                 \
        return (slope_);                                                                           \
    }

/* clang-format off */
RNN_FORMULA(sigmoid, op_sigmoidf(x), y * (1.0f - y))
RNN_FORMULA(tanh, op_tanhf(x), 1.0f - y * y)
RNN_FORMULA(relu, x > 0.0f ? x : 0.0f, y > 0.0f ? 1.0f : 0.0f)
RNN_FORMULA(leaky, x < 0.0f ? a * x : x, y <= 0.0f ? a : 1.0f)
RNN_FORMULA(thresholded, x > a ? x : 0.0f, y > 0.0f ? 1.0f : 0.0f)
RNN_FORMULA(scaled_tanh, a * op_tanhf(b * x), b * (a - y * y / a))
RNN_FORMULA(hard,
            a * x + b < 0.0f ? 0.0f : a * x + b > 1.0f ? 1.0f : a * x + b,
            y > 0.0f && y < 1.0f ? a : 0.0f)
RNN_FORMULA(elu, x < 0.0f ? a * op_expm1f(x) : x, y <= 0.0f ? y + a : 1.0f)
RNN_FORMULA(softsign, x / (1.0f + fabsf(x)), (1.0f - fabsf(y)) * (1.0f - fabsf(y)))
RNN_FORMULA(softplus, op_softplusf(x), -op_expm1f(-y))
RNN_FORMULA(affine, a * x + b, a)
/* clang-format on */

/* ---- cells, a hidden unit at a time; lstm.c and gru.c have the formulas in words ---- */

struct rnn_gates { /* of LSTM: values, slopes, peepholes or gradients */
    float i, o, f, g;
};

FORMULA float rnn_lstm_c(float i, float f, float g, float c_prev)
{
    return f * c_prev + i * g;
}

/* The gradients of the inputs of the functions. hc: h(c), and h_slope its slope; peephole: NULL, or
 * of i, o and f. dc is the gradient of c, and becomes that of c_prev. */
FORMULA struct rnn_gates rnn_lstm_back(const struct rnn_gates *gate, const struct rnn_gates *slope,
                                       const struct rnn_gates *peephole, bool coupled, float hc,
                                       float h_slope, float c_prev, float dh, float *dc)
{
    struct rnn_gates d;
    float dc_now;

    d.o = dh * hc * slope->o;
    dc_now = *dc + dh * gate->o * h_slope + (peephole != NULL ? d.o * peephole->o : 0.0f);
    d.i = dc_now * (coupled ? gate->g - c_prev : gate->g) * slope->i;
    d.f = coupled ? 0.0f : dc_now * c_prev * slope->f;
    d.g = dc_now * gate->i * slope->g;
    *dc = dc_now * gate->f + (peephole != NULL ? d.i * peephole->i + d.f * peephole->f : 0.0f);
    return d;
}

FORMULA float rnn_gru_h(float z, float n, float h_prev)
{
    return (1.0f - z) * n + z * h_prev;
}

/* The gradients of the inputs of the functions of z and n. */
FORMULA float rnn_gru_dz(float dh, float h_prev, float n, float z_slope)
{
    return dh * (h_prev - n) * z_slope;
}

FORMULA float rnn_gru_dn(float dh, float z, float n_slope)
{
    return dh * (1.0f - z) * n_slope;
}

#endif
