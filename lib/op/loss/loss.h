/* loss.h - what losses and metrics over (scores, labels, weights) share.
 *
 * Inputs: logits [n, c] float32, labels [n] int64 in 0 .. c-1, weights [n] float32. A sample of
 * weight 0 counts for nothing, whatever its logits (padding of the last batch); its label must be
 * valid all the same. Output 0: one float32, a sum over the batch. */
#ifndef OP_LOSS_LOSS_H
#define OP_LOSS_LOSS_H

struct err;
struct op_call;
struct op_infer;

int loss_infer(struct op_infer *f, struct err *err);
/* ERR_INPUT, naming sample and label, if one is out of range. */
int loss_check_labels(const struct op_call *c, const char *op, struct err *err);

#endif
