/* attention_fused.cuh - Attention by cuDNN's fused kernels (sdpa.cuh), where the row is something that they
 * compute: 16-bit floats all over, columns side by side, heads of sizes that they take; steps that are
 * numbers first, then a causal mask and at most one other mask; no dropout, whose random words are ours. */
#ifndef OP_ATTENTION_ATTENTION_FUSED_CUH
#define OP_ATTENTION_ATTENTION_FUSED_CUH

#include "op/op_cuda.cuh"

struct attention_fused;

/* *out NULL: the row is nothing for them. Sets the plan's save and scratch bytes otherwise. */
int attention_fused_open(struct op_plan *op, struct attention_fused **out, struct err *err);
void attention_fused_close(struct attention_fused *f); /* NULL is fine */
int attention_fused_forward(struct attention_fused *f, const struct op_call *c, struct err *err);
int attention_fused_backward(struct attention_fused *f, const struct op_call *c, struct err *err); /* dout there */

#endif
