/* unique_cuda.cu - see unique.c: the input is a constant, so the planner computes the result on the
 * CPU. An input too large for that is rejected. */
#include "op/op_cuda.cuh"

extern "C" {
#include "base/err.h"
}

static int plan(struct op_plan *p, struct err *err)
{
    return err_set(err, ERR_UNSUPPORTED,
                   "Unique '%s': its input is too large to be computed while planning, and GPUs have no kernel for it: "
                   "compute it before the model, as an input", p->node);
}

OP_CUDA(op_unique, .plan = plan);
