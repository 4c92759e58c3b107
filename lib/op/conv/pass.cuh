/* pass.cuh - a convolution or one of its gradients on our tensors: images channels-last of any
 * float type, weights plain float32, any padding.
 *
 * cuDNN supports less: weights of the type and layout of the images, the same padding on both
 * sides. Therefore operands are staged if necessary, that is, copied to scratch in another form,
 * and results copied back. The first layout (pass.cu) for which cuDNN has an engine is used. */
#ifndef OP_CONV_PASS_CUH
#define OP_CONV_PASS_CUH

#include "op/conv/cudnn.cuh"

struct conv_pass_spec {
    enum conv_operand computed;
    enum tensor_dtype images;
    int64_t n, c, o, group;         /* n may be 0 */
    const struct op_window *window; /* borrowed during the call */
    bool may_add;                   /* conv_pass_run() may be called with `add` */
    bool tf32;                      /* as op_plan.tf32 */
};

struct conv_pass;

/* Creates the pass. Errors: those of cudnn_conv_open(). */
int conv_pass_open(const struct conv_pass_spec *spec, struct conv_pass **out, struct err *err);
void conv_pass_close(struct conv_pass *p);                 /* NULL is allowed */
size_t conv_pass_scratch_bytes(const struct conv_pass *p); /* NULL: 0 */

/* Enqueues the pass. at: the addresses of the operands; they and scratch are multiples of 16.
 * Errors: ERR_DEVICE. */
int conv_pass_run(struct conv_pass *p, void *const at[CONV_OPERANDS], bool add, void *scratch,
                  cudaStream_t s, struct err *err);

#endif
