/* op_rig_priv.h - what op_rig.c and its GPU's half share. */
#ifndef HARNESS_OP_RIG_PRIV_H
#define HARNESS_OP_RIG_PRIV_H

#include "harness/op_rig.h"

enum { RIG_GUARD = 64 }; /* bytes before and behind the data of a block */

const struct cuda_api *rig_gpu(void); /* NULL: kernels for CPUs are asked for */
/* The call of the rig by this kernel, over copies of its blocks. */
int rig_call_there(struct rig *r, int (*kernel)(const struct op_call *c, struct err *err), struct err *err);
void rig_leave_there(struct rig *r); /* what lies there is freed; nothing for CPUs */

#endif
