/* whole.h - reductions that combine values one by one rather than sum doubles: maxima, and all of
 * integers (shape arithmetic). */
#ifndef OP_REDUCE_WHOLE_H
#define OP_REDUCE_WHOLE_H

struct err;
struct op_call;
struct op_infer;

enum reduce_whole { WHOLE_SUM, WHOLE_MEAN, WHOLE_PROD, WHOLE_MAX, WHOLE_MIN };

/* Input 0 must be float32, int32 or int64. */
int reduce_check_number(struct op_infer *f, struct err *err);
/* infer of CumSum and CumProd: exclusive, reverse, and the axis, a constant input 1 (cum_sum.c). */
int reduce_cumulative(struct op_infer *f, struct err *err);
/* int32 or int64 of any layout; sums and products wrap. Returns 0. */
int reduce_whole(const struct op_call *c, enum reduce_whole how);
/* y [as out 0] = the greatest x; -inf of none. NaN wins. */
void reduce_greatest(const struct op_call *c, float *y);
void reduce_least(const struct op_call *c, float *y);

#endif
