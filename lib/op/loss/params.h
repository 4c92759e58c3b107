/* params.h - settled attributes, and what forward keeps, as the kernels for CPUs and for GPUs read them. */
#ifndef OP_LOSS_PARAMS_H
#define OP_LOSS_PARAMS_H

#include "op/loss/loss.h"

struct cross_entropy {
    struct loss_classes rows;
    float smoothing;
};

struct loss_row { /* op_call.save, one per sample */
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
    size_t n, classes, space; /* positions: n * space */
    enum loss_reduction reduction;
    bool softmax, has_ignored;
    int64_t ignored;
};

struct loss_position { /* op_call.save */
    float max, log_sum; /* of e^(x - max) over the classes */
};

#endif
