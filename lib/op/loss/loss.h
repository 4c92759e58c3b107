/* loss.h - losses and metrics: rows over (predictions, targets, weights), made by the planner.
 *
 * Inputs: predictions [n, ...] float32, targets (below), weights [n] float32, one for each sample.
 * A sample of weight 0 counts for nothing, whatever its predictions (padding of the last batch);
 * its label must be valid all the same. Outputs: 0 the weighted sum over the batch, one float32
 * (AreaUnderCurve: a histogram); 1 (optional) the sum of the weights of what counted. Losses are
 * times run->loss_scale, and so are their weights.
 *
 * With several positions (or elements) in a sample, each has an equal share of its weight.
 *
 * Classes: predictions [n, c] or [n, c, d..] or [n, d.., c], labels int64 [n] or [n, d..] in 0 ..
 * c-1. Which axis the classes are follows from the shape of the labels; where both would do it is
 * axis 1, as in ONNX and PyTorch. Labels equal to ignore_index count for nothing, others by
 * class_weights[label].
 *
 * Elements: targets float32, as many for each sample as there are predictions. */
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

struct loss_classes { /* begins the op's settled attributes */
    size_t n, positions, classes;
    bool is_last; /* a row of scores is contiguous; else the classes are `positions` apart */
    bool has_ignored;
    int64_t ignored;
    const float *weights; /* [classes]; NULL: all 1 */
    double all_weights;   /* their sum */
};

/* Attributes ignore_index and class_weights, shapes, and both outputs. */
int loss_infer_classes(struct op_infer *f, struct err *err);
/* ERR_INPUT: label `at` is `value`, which is out of range. */
int loss_refuse(const struct op_call *c, const char *op, size_t at, int64_t value, struct err *err);
/* ERR_INPUT, naming sample and label, if one is out of range. */
int loss_check_labels(const struct loss_classes *s, const struct op_call *c, const char *op,
                      struct err *err);
/* Bytes of scratch for loss_row() of one row of x; 0 where rows are contiguous and float32. */
size_t loss_row_bytes(const struct loss_classes *s, const struct tensor *x);
/* The scores at position p of sample i as float32: in place, or copied to `scratch`. */
const float *loss_row(const struct loss_classes *s, const struct tensor *x, size_t i, size_t p,
                      float *scratch);
/* What was computed in place or in `from` becomes that row of dx, or is added to it. */
void loss_put_row(const struct loss_classes *s, const float *from, const struct tensor *dx, size_t i,
                  size_t p, bool add);
/* What label l at a sample of this weight counts for; 0: ignored. */
double loss_share(const struct loss_classes *s, int64_t label, float weight);

struct loss_elements {
    size_t n, elements; /* elements of a sample */
};
int loss_infer_elements(struct op_infer *f, struct err *err);

/* Stores outputs 0 and 1, as far as somebody reads them. */
void loss_store(const struct op_call *c, double sum, double weight, double scale);

#endif
