/* op_rig_priv.h - shared by op_rig.c and op_rig_cuda.c. */
#ifndef HARNESS_OP_RIG_PRIV_H
#define HARNESS_OP_RIG_PRIV_H

#include "harness/op_rig.h"

enum { RIG_GUARD = 64 }; /* bytes before and after the data of a block */

const struct cuda_api *rig_gpu(void); /* NULL: CPU kernels are requested */
/* Runs a kernel on the GPU over copies of the rig's blocks. */
int rig_call_gpu(struct rig *r, int (*kernel)(const struct op_call *c, struct err *err),
                 struct err *err);
void rig_free_gpu(struct rig *r); /* frees the GPU memory of the rig; no-op for CPUs */

#endif
