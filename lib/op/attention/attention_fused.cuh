/* attention_fused.cuh - Attention by cuDNN's fused kernels (sdpa.cuh), for nodes that these
 * support: 16-bit operands with contiguous columns and supported head sizes; first SCALE steps,
 * then a causal mask and at most one other mask; no dropout, because the random numbers must be
 * ours. */
#ifndef OP_ATTENTION_ATTENTION_FUSED_CUH
#define OP_ATTENTION_ATTENTION_FUSED_CUH

#include "op/op_cuda.cuh"

struct attention_fused;

/* Creates the kernels of a node and sets the save and scratch bytes of the plan. *out NULL: not
 * supported.
 * Errors: ERR_DEVICE, ERR_NOMEM. */
int attention_fused_open(struct op_plan *op, struct attention_fused **out, struct err *err);
void attention_fused_close(struct attention_fused *f); /* NULL is allowed */
int attention_fused_forward(struct attention_fused *f, const struct op_call *c, struct err *err);
/* requires dout */
int attention_fused_backward(struct attention_fused *f, const struct op_call *c, struct err *err);

#endif
