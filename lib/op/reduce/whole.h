/* whole.h - reductions that combine values one by one instead of summing doubles: maxima, and all
 * reductions of integers (shape arithmetic). */
#ifndef OP_REDUCE_WHOLE_H
#define OP_REDUCE_WHOLE_H

struct err;
struct op_call;
struct op_infer;

enum reduce_whole { WHOLE_SUM, WHOLE_MEAN, WHOLE_PROD, WHOLE_MAX, WHOLE_MIN };

/* Checks that input 0 is float32, int32 or int64. Errors: ERR_INPUT. */
int reduce_check_number(struct op_infer *f, struct err *err);
/* infer of CumSum and CumProd: reads exclusive, reverse, and the axis, a constant input 1
 * (cum_sum.c). */
int reduce_cumulative(struct op_infer *f, struct err *err);
/* Reduces int32 or int64 of any layout; sums and products wrap. Returns 0. */
int reduce_whole(const struct op_call *c, enum reduce_whole how);
/* y [as output 0] = maximum (minimum) of x; -inf (inf) over no elements. NaN if an element is. */
void reduce_greatest(const struct op_call *c, float *y);
void reduce_least(const struct op_call *c, float *y);

#endif
