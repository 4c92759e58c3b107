/* loss.h - losses and metrics: ops over (predictions, targets, weights), which the planner
 * appends.
 *
 * Inputs: predictions [n, ...] float32, targets (below), weights [n] float32, one per sample. A
 * sample of weight 0 (padding of the last batch) is ignored, also if its predictions are NaN;
 * its label must be valid nevertheless. Output 0: the weighted sum over the batch, one float32
 * (AreaUnderCurve: a histogram). Output 1 (optional): the sum of the weights of the samples that
 * are not ignored. Losses and their weights are multiplied by run->loss_scale.
 *
 * If a sample has several positions (or elements), each has an equal share of its weight.
 *
 * Classes: predictions [n, c] or [n, c, d..] or [n, d.., c], labels int64 [n] or [n, d..] in 0
 * .. c-1. The attribute class_axis (1 or -1) states the axis of the classes; without it, the shape
 * of the labels determines the axis, and predictions that both axes fit are refused. Labels equal
 * to ignore_index are ignored, others weigh class_weights[label].
 *
 * Elements: targets float32, one per prediction. */
#ifndef OP_LOSS_LOSS_H
#define OP_LOSS_LOSS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct err;
struct op_call;
struct op_infer;
struct op_plan;
struct tensor;

struct loss_classes { /* the first member of the op's param */
    size_t n, positions, classes;
    bool is_last; /* a row of scores is contiguous; else its scores are `positions` apart */
    bool has_ignored;
    int64_t ignored;
    const float *weights; /* [classes]; NULL: all 1 */
    double all_weights;   /* the sum of the class weights */
};

/* Reads the attributes ignore_index, class_weights and class_axis, validates the shapes, and sets
 * both outputs. Errors: ERR_INPUT. */
int loss_infer_classes(struct op_infer *f, struct err *err);
/* Reports that label `at` has the value `value`, which is out of range: ERR_INPUT. */
int loss_refuse(const struct op_call *c, const char *op, size_t at, int64_t value, struct err *err);
/* Reports the first label that is out of range, with its sample: ERR_INPUT. */
int loss_check_labels(const struct loss_classes *s, const struct op_call *c, const char *op,
                      struct err *err);
/* Bytes of scratch for loss_row() of one row of x; 0 if rows are contiguous and float32. */
size_t loss_row_bytes(const struct loss_classes *s, const struct tensor *x);
/* Returns the scores at position p of sample i as float32: in place, or copied to `scratch`. */
const float *loss_row(const struct loss_classes *s, const struct tensor *x, size_t i, size_t p,
                      float *scratch);
/* Stores `from` as that row of dx, or adds it. */
void loss_store_row(const struct loss_classes *s, const float *from, const struct tensor *dx,
                    size_t i, size_t p, bool add);
/* The weight of a label in a sample of this weight; 0: the label is ignored. */
double loss_share(const struct loss_classes *s, int64_t label, float weight);

struct loss_elements {
    size_t n, elements; /* samples, and elements of each */
};
int loss_infer_elements(struct op_infer *f, struct err *err);

/* Stores outputs 0 and 1 if they are present. */
void loss_store(const struct op_call *c, double sum, double weight, double scale);

#endif
