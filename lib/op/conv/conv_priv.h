/* conv_priv.h - the parameters of Conv and ConvTranspose, set by infer and read by their
 * kernels. */
#ifndef OP_CONV_CONV_PRIV_H
#define OP_CONV_CONV_PRIV_H

#include "op/op.h"
#include "op/window.h"

struct conv_param {
    struct op_window window; /* ConvTranspose: the window of the convolution from y to x */
    int64_t group;
};

/* Checks inputs 0 and 1: images, and weights of equal rank. Errors: ERR_INPUT. */
int conv_check_images(const struct op_infer *f, struct err *err);
/* Checks input 2, if present: a bias [o]. Errors: ERR_INPUT. */
int conv_check_bias(const struct op_infer *f, int64_t o, struct err *err);

int conv_cpu_plan(struct op_plan *p, struct err *err);
int conv_cpu_fwd(const struct op_call *c, struct err *err);
int conv_cpu_bwd(const struct op_call *c, struct err *err);
void conv_cpu_free(void *state);

int conv_transpose_cpu_plan(struct op_plan *p, struct err *err);
int conv_transpose_cpu_fwd(const struct op_call *c, struct err *err);
int conv_transpose_cpu_bwd(const struct op_call *c, struct err *err);
void conv_transpose_cpu_free(void *state);

#endif
