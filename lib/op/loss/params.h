/* params.h - validated attributes and saved values, for the kernels of CPUs and GPUs. */
#ifndef OP_LOSS_PARAMS_H
#define OP_LOSS_PARAMS_H

#include "op/loss/loss.h"

struct cross_entropy {
    struct loss_classes rows;
    float smoothing;
};

struct loss_row { /* in op_call.save, one per row */
    float max;
    float scale; /* 1 / sum_j e^(x_j - max) */
};

struct accuracy {
    struct loss_classes rows;
    int64_t k;
};

struct elements {
    struct loss_elements shape;
    float p; /* the parameter of the formula */
};

struct weighted_sum {
    const float *factors; /* [n_in]; NULL: all 1 */
};

enum loss_reduction { LOSS_NONE, LOSS_SUM, LOSS_MEAN };

struct onnx_loss {
    size_t n, classes, space; /* there are n * space positions */
    enum loss_reduction reduction;
    bool softmax, has_ignored;
    int64_t ignored;
};

struct loss_position { /* in op_call.save, one per position */
    float max, log_sum; /* log_sum: log of the sum of e^(x - max) over the classes */
};

#endif
