/* pool_priv.h - what the pools settle in infer and their kernels read. */
#ifndef OP_POOL_POOL_PRIV_H
#define OP_POOL_POOL_PRIV_H

#include "op/op.h"
#include "op/window.h"

struct max_pool_param {
    struct op_window window;
};

int max_pool_cpu_plan(struct op_plan *p, struct err *err);
int max_pool_cpu_fwd(const struct op_call *c, struct err *err);
int max_pool_cpu_bwd(const struct op_call *c, struct err *err);
void max_pool_cpu_free(void *state);

int global_average_pool_cpu_fwd(const struct op_call *c, struct err *err);
int global_average_pool_cpu_bwd(const struct op_call *c, struct err *err);

#endif
