/* cudnn.cuh - a convolution, or one of its gradients, as cuDNN computes it.
 *
 * What is computed is settled when it is opened: the engine is the first of those that cuDNN's heuristics
 * propose which gives the same bits every time, adds up in float32, and takes no shortcut in the type of
 * its numbers but that of TF32 where it may. Running it only launches.
 * Threads: any may open; an open one is used by one thread at a time, with its GPU entered. */
#ifndef OP_CONV_CUDNN_CUH
#define OP_CONV_CUDNN_CUH

#include "device/device_cuda.cuh"

extern "C" {
#include "op/window.h"
#include "tensor/tensor.h"
}

/* The three tensors of a convolution, each of which can be what is computed from the other two:
 *   CONV_X   x [n, c, in..]                  the gradient of the images
 *   CONV_W   w [o, c / group, kernel..]      the gradient of the weights
 *   CONV_Y   y [n, o, out..]                 the convolution itself */
enum conv_operand { CONV_X, CONV_W, CONV_Y, CONV_OPERANDS };

struct cudnn_conv_spec {
    enum conv_operand computed;
    enum tensor_layout layout;          /* of all three */
    enum tensor_dtype images, weights;  /* of x and y, and of w */
    int64_t n, c, o, group;             /* all > 0 */
    const struct op_window *window;     /* 2 or 3 axes; pad_lo on both sides. Borrowed during the call */
    bool add;                           /* to what is there, and not overwrite it */
    bool tf32;                          /* factors that are float32 may be rounded to TF32 */
};

struct cudnn_conv;

/* Errors: ERR_UNSUPPORTED (no engine for it: another layout or other types may have one), ERR_DEVICE,
 * ERR_NOMEM; the text has shapes, types and cuDNN's version. */
int cudnn_conv_open(const struct cudnn_conv_spec *spec, struct cudnn_conv **out, struct err *err);
void cudnn_conv_close(struct cudnn_conv *c); /* NULL is fine */
size_t cudnn_conv_scratch_bytes(const struct cudnn_conv *c);
/* at: the addresses of the operands, multiples of 16, as is scratch. */
int cudnn_conv_run(struct cudnn_conv *c, void *const at[CONV_OPERANDS], void *scratch, cudaStream_t s,
                   struct err *err);

#endif
