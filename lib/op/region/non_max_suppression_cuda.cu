/* non_max_suppression_cuda.cu - see non_max_suppression.c: the inputs are constants, so the planner
 * computes the result on the CPU. Inputs too large for that are rejected. */
#include "op/op_cuda.cuh"

extern "C" {
#include "base/err.h"
}

static int plan(struct op_plan *p, struct err *err)
{
    return err_set(err, ERR_UNSUPPORTED,
                   "NonMaxSuppression '%s': its result is too large to be computed while planning, and GPUs have no kernel "
                   "for it: compute it before the model, as an input", p->node);
}

static int forward(const struct op_call *, struct err *err)
{
    return err_set(err, ERR_UNSUPPORTED, "NonMaxSuppression has no kernel for GPUs");
}

OP_CUDA(op_non_max_suppression, .plan = plan, .fwd = forward);
