/* window.h - the sliding window of convolutions and pools, as defined by ONNX. */
#ifndef OP_WINDOW_H
#define OP_WINDOW_H

#include <stdbool.h>
#include <stdint.h>

#include "op/op.h"

enum { OP_SPATIAL_MAX = 3 };

struct op_window {
    uint32_t spatial; /* number of spatial dimensions, 1 to 3, and of elements in each array
                         below */
    int64_t in[OP_SPATIAL_MAX], out[OP_SPATIAL_MAX];
    int64_t kernel[OP_SPATIAL_MAX], stride[OP_SPATIAL_MAX];
    int64_t dilation[OP_SPATIAL_MAX]; /* 1: dense */
    int64_t pad_lo[OP_SPATIAL_MAX];
    int64_t pad_hi[OP_SPATIAL_MAX]; /* includes the growth by ceil_mode, up to the end of the last
                                       window */
    int64_t grown[OP_SPATIAL_MAX];  /* the part of pad_hi that ceil_mode added */
};

/* Reads auto_pad, dilations, kernel_shape, pads, strides and the shape of input 0 ([n, c, d1..]).
 * `kernel`: the kernel shape known from the weights, which kernel_shape must match if given; NULL:
 * kernel_shape is required. Errors: ERR_INPUT, naming the attribute. */
int op_window_infer(const struct op_infer *f, const int64_t *kernel, bool ceil_mode,
                    struct op_window *w, struct err *err);
/* Reads the attributes of ConvTranspose, also output_padding and output_shape. *w is the window of
 * the convolution whose backward pass this is: w->out is the space of input 0, w->in the space of
 * output 0. */
int op_window_infer_transposed(const struct op_infer *f, const int64_t *kernel, struct op_window *w,
                               struct err *err);
/* Sets *w to one window that covers the whole space of input 0. */
int op_window_whole(const struct op_infer *f, struct op_window *w, struct err *err);
/* Returns the same window with leading axes of size 1, `spatial` dimensions in total. */
struct op_window op_window_lift(const struct op_window *w, uint32_t spatial);

/* The taps of window e along axis k that lie inside the input: `n` taps, the first at input element
 * `at`. */
struct op_taps {
    int64_t at, n;
};
struct op_taps op_window_taps(const struct op_window *w, uint32_t k, int64_t e);

#endif
