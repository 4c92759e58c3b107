/* cudnn.cuh - a convolution or one of its gradients, computed by cuDNN.
 *
 * Opening selects the engine: the first one proposed by cuDNN's heuristics that is deterministic,
 * accumulates in float32, and computes in the type of its operands, except for TF32 if allowed.
 * Running only launches.
 * Threads: any thread may open one; an open one is used by one thread at a time, with its GPU
 * current. */
#ifndef OP_CONV_CUDNN_CUH
#define OP_CONV_CUDNN_CUH

#include "device/device_cuda.cuh"

extern "C" {
#include "op/window.h"
#include "tensor/tensor.h"
}

/* The three tensors of a convolution. Each can be computed from the other two:
 *   CONV_X   x [n, c, in..]                  the gradient of the images
 *   CONV_W   w [o, c / group, kernel..]      the gradient of the weights
 *   CONV_Y   y [n, o, out..]                 the convolution */
enum conv_operand { CONV_X, CONV_W, CONV_Y, CONV_OPERANDS };

struct cudnn_conv_spec {
    enum conv_operand computed;
    enum tensor_layout layout;          /* layout of all three */
    enum tensor_dtype images, weights;  /* types of x and y, and of w */
    int64_t n, c, o, group;             /* all > 0 */
    const struct op_window *window;     /* 2 or 3 axes; pad_lo is used on both sides; borrowed
                                           during the call */
    bool add;                           /* accumulate instead of overwriting */
    bool tf32;                          /* float32 factors may be rounded to TF32 */
};

struct cudnn_conv;

/* Creates the kernel. Errors: ERR_UNSUPPORTED (no engine: another layout or other types may have
 * one), ERR_DEVICE, ERR_NOMEM; the message has shapes, types and cuDNN's version. */
int cudnn_conv_open(const struct cudnn_conv_spec *spec, struct cudnn_conv **out, struct err *err);
void cudnn_conv_close(struct cudnn_conv *c); /* NULL is allowed */
size_t cudnn_conv_scratch_bytes(const struct cudnn_conv *c);
/* Enqueues the kernel. at: the addresses of the operands, multiples of 16, as is scratch. Errors:
 * ERR_DEVICE. */
int cudnn_conv_run(struct cudnn_conv *c, void *const at[CONV_OPERANDS], void *scratch,
                   cudaStream_t s, struct err *err);

#endif
