/* window.h - the sliding window of convolutions and pools, as ONNX describes it. */
#ifndef OP_WINDOW_H
#define OP_WINDOW_H

#include <stdbool.h>
#include <stdint.h>

#include "op/op.h"

enum { OP_SPATIAL_MAX = 3 };

struct op_window {
    uint32_t spatial; /* dimensions: 1 to 3; the arrays below have so many elements */
    int64_t in[OP_SPATIAL_MAX], out[OP_SPATIAL_MAX];
    int64_t kernel[OP_SPATIAL_MAX], stride[OP_SPATIAL_MAX];
    int64_t dilation[OP_SPATIAL_MAX]; /* 1: dense */
    int64_t pad_lo[OP_SPATIAL_MAX];
    int64_t pad_hi[OP_SPATIAL_MAX]; /* with ceil_mode grown to what the last window reaches */
};

/* Reads auto_pad, dilations, kernel_shape, pads, strides and the shape of input 0 ([n, c, d1..]).
 * `kernel`: known from the weights (kernel_shape, if given, must agree); NULL: kernel_shape is
 * required. Errors name the attribute. */
int op_window_infer(const struct op_infer *f, const int64_t *kernel, bool ceil_mode,
                    struct op_window *w, struct err *err);

#endif
