/* conv_priv.h - what Conv settles in infer and its kernels read. */
#ifndef OP_CONV_CONV_PRIV_H
#define OP_CONV_CONV_PRIV_H

#include "op/op.h"
#include "op/window.h"

struct conv_param {
    struct op_window window;
    int64_t group;
};

int conv_cpu_plan(struct op_plan *p, struct err *err);
int conv_cpu_fwd(const struct op_call *c, struct err *err);
int conv_cpu_bwd(const struct op_call *c, struct err *err);
void conv_cpu_free(void *state);

#endif
