/* norm_priv.h - what BatchNormalization settles in infer and its kernels read. */
#ifndef OP_NORM_NORM_PRIV_H
#define OP_NORM_NORM_PRIV_H

#include <stdbool.h>

#include "op/op.h"

struct batch_norm_param {
    float epsilon;
    float momentum;  /* weight of the old running average */
    bool from_batch; /* statistics of this batch; else the running ones */
};

int batch_norm_cpu_plan(struct op_plan *p, struct err *err);
int batch_norm_cpu_fwd(const struct op_call *c, struct err *err);
int batch_norm_cpu_bwd(const struct op_call *c, struct err *err);
void batch_norm_cpu_free(void *state);

#endif
