/* function.c - the functions of the gates of LSTM, GRU and RNN, over rows; rnn_formula.h has the
 * formulas. A clip holds x within its bounds; where y is that of a bound the slope is 0. */
#include <math.h>

#include "base/check.h"
#include "base/err.h"
#include "op/op_priv.h"
#include "op/rnn/rnn_formula.h"
#include "op/rnn/rnn_priv.h"

struct rnn_function {
    const char *name;
    bool has_alpha, has_beta;
    float alpha, beta;
    void (*y)(float *x, size_t n, float a, float b);
    void (*slope)(const float *y, float *restrict s, size_t n, float a, float b);
};

#define LOOPS(enumerator_, id_)                                                                    \
    CLONES static void id_##_y(float *x, size_t n, float a, float b)                               \
    {                                                                                              \
        size_t k;                                                                                  \
                                                                                                   \
        OP_EACH                                                                                    \
        for (k = 0; k < n; k++)                                                                    \
            x[k] = rnn_##id_(x[k], a, b);                                                          \
    }                                                                                              \
    CLONES static void id_##_slope(const float *y, float *restrict s, size_t n, float a, float b)  \
    {                                                                                              \
        size_t k;                                                                                  \
                                                                                                   \
        OP_EACH                                                                                    \
        for (k = 0; k < n; k++)                                                                    \
            s[k] = rnn_##id_##_slope(y[k], a, b);                                                  \
    }
RNN_EACH_FUNCTION(LOOPS)

#define ROW(name_, id_, has_a_, has_b_, a_, b_)                                                    \
    { name_, has_a_, has_b_, a_, b_, id_##_y, id_##_slope }

static const struct rnn_function functions[] = {
    [RNN_SIGMOID] = ROW("Sigmoid", sigmoid, false, false, 0, 0),
    [RNN_TANH] = ROW("Tanh", tanh, false, false, 0, 0),
    [RNN_RELU] = ROW("Relu", relu, false, false, 0, 0),
    [RNN_LEAKY] = ROW("LeakyRelu", leaky, true, false, 0.01f, 0),
    [RNN_THRESHOLDED] = ROW("ThresholdedRelu", thresholded, true, false, 1, 0),
    [RNN_SCALED_TANH] = ROW("ScaledTanh", scaled_tanh, true, true, 1, 1),
    [RNN_HARD] = ROW("HardSigmoid", hard, true, true, 0.2f, 0.5f),
    [RNN_ELU] = ROW("Elu", elu, true, false, 1, 0),
    [RNN_SOFTSIGN] = ROW("Softsign", softsign, false, false, 0, 0),
    [RNN_SOFTPLUS] = ROW("Softplus", softplus, false, false, 0, 0),
    [RNN_AFFINE] = ROW("Affine", affine, true, true, 1, 0),
};

static float next(struct rnn_numbers *list, bool has, float dflt)
{
    if (!has || list->n == 0)
        return dflt;
    list->n--;
    return *list->at++;
}

int rnn_act_init(const struct op_infer *f, const char *name, struct rnn_numbers *alpha,
                 struct rnn_numbers *beta, struct rnn_act *a, struct err *err)
{
    size_t i = 0;

    while (i < COUNT_OF(functions) && strcmp(functions[i].name, name) != 0)
        i++;
    if (i == COUNT_OF(functions))
        return op_error(f, ERR_UNSUPPORTED, err, "activation '%s'; expected Sigmoid, Tanh, Relu, "
                        "LeakyRelu, ThresholdedRelu, ScaledTanh, HardSigmoid, Elu, Softsign, "
                        "Softplus or Affine", name);
    *a = (struct rnn_act){ .f = &functions[i], .id = (enum rnn_function_id)i };
    a->alpha = next(alpha, a->f->has_alpha, a->f->alpha);
    a->beta = next(beta, a->f->has_beta, a->f->beta);
    if (!(a->alpha >= 0) || !isfinite(a->alpha) || !isfinite(a->beta) ||
        (a->f->y == scaled_tanh_y && (a->alpha == 0 || a->beta < 0)))
        return op_error(f, ERR_UNSUPPORTED, err, "activation '%s' with alpha %g and beta %g; only "
                        "functions that rise work", name, (double)a->alpha, (double)a->beta);
    return 0;
}

void rnn_act_clip(struct rnn_act *a, float clip)
{
    a->clips = true;
    a->clip = clip;
    a->lo = -clip;
    a->hi = clip;
    a->f->y(&a->lo, 1, a->alpha, a->beta);
    a->f->y(&a->hi, 1, a->alpha, a->beta);
}

void rnn_act_run(const struct rnn_act *a, float *x, size_t n)
{
    size_t k;

    for (k = 0; k < n && a->clips; k++)
        x[k] = x[k] < -a->clip ? -a->clip : x[k] > a->clip ? a->clip : x[k];
    a->f->y(x, n, a->alpha, a->beta);
}

void rnn_act_slope(const struct rnn_act *a, const float *y, float *restrict slope, size_t n)
{
    size_t k;

    a->f->slope(y, slope, n, a->alpha, a->beta);
    for (k = 0; k < n && a->clips; k++)
        slope[k] = y[k] <= a->lo || y[k] >= a->hi ? 0.0f : slope[k];
}
