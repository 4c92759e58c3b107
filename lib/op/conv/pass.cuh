/* pass.cuh - a convolution or one of its gradients, from our tensors to ours: images channels-last of any
 * type of numbers, weights plain float32, any pads.
 *
 * What cuDNN takes is something else: weights of the images' type that lie as the images do, the same pad
 * on both sides. So operands are staged, that is copied to scratch in another form and results back, as
 * far as they have to be. Of the forms that it may be offered (pass.cu) the first that it has an engine
 * for is taken. */
#ifndef OP_CONV_PASS_CUH
#define OP_CONV_PASS_CUH

#include "op/conv/cudnn.cuh"

struct conv_pass_spec {
    enum conv_operand computed;
    enum tensor_dtype images;
    int64_t n, c, o, group;         /* n may be 0 */
    const struct op_window *window; /* borrowed during the call */
    bool may_add;                   /* to what is there: conv_pass_run() may be asked to */
    bool tf32;                      /* as op_plan.tf32 */
};

struct conv_pass;

/* Errors: those of cudnn_conv_open(). */
int conv_pass_open(const struct conv_pass_spec *spec, struct conv_pass **out, struct err *err);
void conv_pass_close(struct conv_pass *p); /* NULL is fine */
size_t conv_pass_scratch_bytes(const struct conv_pass *p); /* NULL: 0 */

/* at: the addresses of the operands, scratch: multiples of 16. */
int conv_pass_run(struct conv_pass *p, void *const at[CONV_OPERANDS], bool add, void *scratch, cudaStream_t s,
                  struct err *err);

#endif
