/* conv_priv.h - what Conv and ConvTranspose settle in infer and their kernels read. */
#ifndef OP_CONV_CONV_PRIV_H
#define OP_CONV_CONV_PRIV_H

#include "op/op.h"
#include "op/window.h"

struct conv_param {
    struct op_window window; /* ConvTranspose: of the convolution from y to x */
    int64_t group;
};

/* Inputs 0 and 1: images, and weights of as many dimensions. */
int conv_check_images(const struct op_infer *f, struct err *err);
/* Input 2, if there: a bias [o]. */
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
