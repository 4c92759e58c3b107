/* loss_formula.h - the formulas of losses and metrics, for CPUs and GPUs. */
#ifndef OP_LOSS_LOSS_FORMULA_H
#define OP_LOSS_LOSS_FORMULA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "op/formula.h"

/* ---- element by element: x the prediction, t the target, d = x - t, p the parameter of the row ---- */

/* A row for each element-wise loss and metric: the rows of ops and the kernels for CPUs and GPUs
 * follow from it (elements.c, elements_cuda.cu).
 *   LOSS(identifier, name of the op, attribute with p or NULL, loss, its slope with respect to x)
 *   METRIC(identifier, name of the op, value): has no gradient, and ignores run->loss_scale */
/* clang-format off */
#define LOSS_ELEMENTS(LOSS, METRIC)                                                                \
LOSS(binary_cross_entropy, "BinaryCrossEntropy", "pos_weight",                                     \
     (1.0f - t) * x +                                                                              \
         (1.0f + (p - 1.0f) * t) * (op_log1pf(op_expf(-fabsf(x))) + (x < 0.0f ? -x : 0.0f)),       \
     (1.0f + (p - 1.0f) * t) * op_sigmoidf(x) - p * t)                                             \
LOSS(mean_squared_error, "MeanSquaredError", NULL, d * d, 2.0f * d)                                \
LOSS(mean_absolute_error, "MeanAbsoluteError", NULL,                                               \
     fabsf(d), d > 0.0f ? 1.0f : d < 0.0f ? -1.0f : d)                                             \
LOSS(huber, "Huber", "delta", fabsf(d) <= p ? 0.5f * d * d : p * (fabsf(d) - 0.5f * p),            \
     d > p ? p : d < -p ? -p : d)                                                                  \
METRIC(binary_accuracy, "BinaryAccuracy",                                                          \
       (((x > 0.0f) == (t > 0.5f)) & (x == x)) ? 1.0f : 0.0f)
/* clang-format on */

/* name_(x, t, p). d is a parameter of an inner function, so that no formula has to use it. */
#define LOSS_FUNCTION(name_, formula_)                                                             \
    FORMULA float name_##_of(float x, float t, float d, float p)                                   \
    {                                                                                              \
        (void)x, (void)t, (void)d, (void)p;                                                        \
        return (formula_);                                                                         \
    }                                                                                              \
    FORMULA float name_(float x, float t, float p) { return name_##_of(x, t, x - t, p); }
#define LOSS_FUNCTIONS(id_, op_, attr_, value_, slope_)                                            \
    LOSS_FUNCTION(loss_##id_, value_)                                                             \
    LOSS_FUNCTION(loss_##id_##_slope, slope_)
#define METRIC_FUNCTION(id_, op_, value_) LOSS_FUNCTION(loss_##id_, value_)
LOSS_ELEMENTS(LOSS_FUNCTIONS, METRIC_FUNCTION)

/* AreaUnderCurve: the bin of a logit, of `bins` of equal width; that of NaN is 0. */
FORMULA uint32_t loss_bin(float x, uint32_t bins)
{
    float p = op_sigmoidf(x) * (float)bins;
    uint32_t bin = p >= 0.0f ? (uint32_t)p : 0;

    return bin < bins ? bin : bins - 1;
}

/* ---- classes ---- */

enum loss_kind { LOSS_COUNTS, LOSS_IGNORED, LOSS_WRONG }; /* of a label */

FORMULA enum loss_kind loss_kind_of(int64_t label, size_t classes, bool has_ignored,
                                    int64_t ignored)
{
    return has_ignored && label == ignored           ? LOSS_IGNORED
           : label < 0 || (uint64_t)label >= classes ? LOSS_WRONG
                                                     : LOSS_COUNTS;
}

/* The loss of a score: -log softmax. log_sum: of e^(x - max) over the classes. */
FORMULA double loss_of_score(float score, float max, double log_sum)
{
    return log_sum + ((double)max - (double)score);
}

/* Adds label smoothing e to the loss of a row. share: the part of its sample's weight; all_weights:
 * the sum of the class weights v_j; weighed: the sum of v_j x_j. */
FORMULA double loss_smoothed(double loss, double e, double share, size_t classes,
                             double all_weights, double log_sum, float max, double weighed)
{
    if (e == 0)
        return loss;
    return (1 - e) * loss +
           e / (double)classes * share * (all_weights * (log_sum + (double)max) - weighed);
}

/* The gradient of a row: dx_j = e^(x_j - max) factor - [j = label] hard - soft v_j. */
struct loss_slope {
    float factor, hard, soft;
};

/* coef: the gradient of the row's loss. v: the class weight of the label. scale: the reciprocal of
 * the sum of e^(x_j - max). */
FORMULA struct loss_slope loss_slope_of(float coef, float v, float smoothing, size_t classes,
                                        float all_weights, float scale)
{
    float hard = v - smoothing * v, soft = smoothing / (float)classes;
    struct loss_slope s;

    s.factor = coef * (hard + soft * all_weights) * scale;
    s.hard = coef * hard;
    s.soft = coef * soft;
    return s;
}

#endif
