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
    int64_t grown[OP_SPATIAL_MAX];  /* the part of pad_hi by which ceil_mode has grown it */
};

/* Reads auto_pad, dilations, kernel_shape, pads, strides and the shape of input 0 ([n, c, d1..]).
 * `kernel`: known from the weights (kernel_shape, if given, must agree); NULL: kernel_shape is
 * required. Errors name the attribute. */
int op_window_infer(const struct op_infer *f, const int64_t *kernel, bool ceil_mode,
                    struct op_window *w, struct err *err);
/* For ConvTranspose: reads also output_padding and output_shape. *w is the window of the
 * convolution of which it is the way back: `out` is the space of input 0, `in` that of output 0. */
int op_window_infer_transposed(const struct op_infer *f, const int64_t *kernel, struct op_window *w,
                               struct err *err);
/* One window that is all of the space of input 0. */
int op_window_whole(const struct op_infer *f, struct op_window *w, struct err *err);
/* The same window with axes of size 1 in front, up to `spatial`. */
struct op_window op_window_lift(const struct op_window *w, uint32_t spatial);

/* The taps of window e along axis k that are inside: `n` of them, the first at element `at`. */
struct op_taps {
    int64_t at, n;
};
struct op_taps op_window_taps(const struct op_window *w, uint32_t k, int64_t e);

#endif
