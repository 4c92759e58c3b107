/* sum.c - reductions that are a sum s:
 *   ReduceSum        s of x             dx = dy
 *   ReduceMean       s / n              dx = dy / n
 *   ReduceL1         s of |x|           dx = dy sign(x)
 *   ReduceSumSquare  s of x^2           dx = dy 2 x
 *   ReduceL2         sqrt(s of x^2)     dx = dy x / y, 0 where y is 0
 *   ReduceLogSum     ln s               dx = dy e^-y
 *   ReduceLogSumExp  m + ln(s of e^(x - m)), m the maximum     dx = dy e^(x - y)
 * Axes are an attribute up to opset 17 (ReduceSum: 12), then input 1. ReduceSum and ReduceMean also
 * support int32 and int64; their mean is truncated. */
#include <math.h>
#include <stdlib.h>

#include "base/err.h"
#include "op/reduce/reduce.h"
#include "op/reduce/whole.h"
#include "op/vmath.h"

ELEM_BWD(add_x, 0, REDUCE_X)
ELEM_BWD(add_abs, 0, fabsf(REDUCE_X))
ELEM_BWD(add_square, 0, REDUCE_X *REDUCE_X)
ELEM_BWD(add_exp, 0, vm_exp(REDUCE_X - REDUCE_SHIFT))

ELEM_BWD(pass, 0, REDUCE_DY)
ELEM_BWD(by_sign, 0, REDUCE_X > 0.0f ? REDUCE_DY : REDUCE_X < 0.0f ? -REDUCE_DY : 0.0f * REDUCE_X)
ELEM_BWD(by_two_x, 0, REDUCE_DY *(2.0f * REDUCE_X))
ELEM_BWD(by_share, 0, REDUCE_Y == 0.0f ? 0.0f : REDUCE_DY * (REDUCE_X / REDUCE_Y))
ELEM_BWD(by_exp, 0, REDUCE_DY *vm_exp(REDUCE_X - REDUCE_Y))
ELEM_BWD(by_inverse, 0, REDUCE_DY *vm_exp(-REDUCE_Y))

enum finish { AS_IS, MEAN, ROOT, LOG, LOG_SHIFTED };

static double finished(enum finish how, double sum, double n, double shift)
{
    switch (how) {
    case MEAN: return sum / n;
    case ROOT: return sqrt(sum);
    case LOG: return log(sum);
    case LOG_SHIFTED: return shift + log(sum);
    default: return sum;
    }
}

static int of_float(struct op_infer *f, struct err *err)
{
    int rc = op_check_input(f, 0, TENSOR_F32, -1, err);

    return rc < 0 ? rc : reduce_infer(f, err);
}

static int of_number(struct op_infer *f, struct err *err)
{
    int rc = reduce_check_number(f, err);

    return rc < 0 ? rc : reduce_infer(f, err);
}

static int fwd(const struct op_call *c, elem_bwd_fn *add, enum finish how)
{
    const struct reduce *r = c->param;
    size_t n = (size_t)tensor_elements(c->out[0]), i;
    float *y = c->out[0]->data, *shift = how == LOG_SHIFTED ? c->scratch : NULL;
    double *acc = reduce_sums(c);

    if (shift != NULL)
        reduce_greatest(c, shift);
    for (i = 0; i < n && shift != NULL; i++)
        shift[i] = isinf(shift[i]) ? 0.0f : shift[i]; /* inf - inf would be NaN */
    reduce_sum(c, add, shift, acc);
    for (i = 0; i < n; i++)
        y[i] = (float)finished(how, acc[i], (double)r->n, shift != NULL ? (double)shift[i] : 0);
    return 0;
}

static int bwd(const struct op_call *c, elem_bwd_fn *spread, double scale)
{
    const float *dy;

    if (c->dout[0] == NULL || c->din[0] == NULL) {
        op_bwd_zero(c);
        return 0;
    }
    dy = c->dout[0]->data;
    if (scale != 1) {
        op_store(c->scratch, dy, (size_t)tensor_elements(c->dout[0]), (float)scale, false);
        dy = c->scratch;
    }
    reduce_spread(c, spread, dy, c->out[0]->data);
    return 0;
}

static double one_of_n(const struct op_call *c)
{
    const struct reduce *r = c->param;

    return 1.0 / (double)r->n;
}

#define SUM_LIKE(id_, infer_, whole_, add_, how_, spread_, scale_)                                 \
    static int id_##_infer(struct op_infer *f, struct err *err)                                    \
    {                                                                                              \
        return infer_(f, err);                                                                     \
    }                                                                                              \
    static int id_##_plan(struct op_plan *p, struct err *err)                                      \
    {                                                                                              \
        return reduce_plan(p, err);                                                                \
    }                                                                                              \
    static int id_##_fwd(const struct op_call *c, struct err *err)                                 \
    {                                                                                              \
        (void)err;                                                                                 \
        return c->in[0]->dtype == TENSOR_F32 ? fwd(c, add_, how_) : reduce_whole(c, whole_);       \
    }                                                                                              \
    static int id_##_bwd(const struct op_call *c, struct err *err)                                 \
    {                                                                                              \
        (void)err;                                                                                 \
        return bwd(c, spread_, scale_);                                                            \
    }

SUM_LIKE(reduce_sum, of_number, WHOLE_SUM, add_x, AS_IS, pass, 1)
SUM_LIKE(reduce_mean, of_number, WHOLE_MEAN, add_x, MEAN, pass, one_of_n(c))
SUM_LIKE(reduce_l1, of_float, WHOLE_SUM, add_abs, AS_IS, by_sign, 1)
SUM_LIKE(reduce_sum_square, of_float, WHOLE_SUM, add_square, AS_IS, by_two_x, 1)
SUM_LIKE(reduce_l2, of_float, WHOLE_SUM, add_square, ROOT, by_share, 1)
SUM_LIKE(reduce_log_sum, of_float, WHOLE_SUM, add_x, LOG, by_inverse, 1)
SUM_LIKE(reduce_log_sum_exp, of_float, WHOLE_SUM, add_exp, LOG_SHIFTED, by_exp, 1)

REDUCE_ROWS(reduce_sum, "ReduceSum", 13, 0)
REDUCE_ROWS(reduce_mean, "ReduceMean", 18, 0)
REDUCE_ROWS(reduce_l1, "ReduceL1", 18, OP_IN(0))
REDUCE_ROWS(reduce_sum_square, "ReduceSumSquare", 18, OP_IN(0))
REDUCE_ROWS(reduce_l2, "ReduceL2", 18, OP_IN(0) | OP_OUT(0))
REDUCE_ROWS(reduce_log_sum, "ReduceLogSum", 18, OP_OUT(0))
REDUCE_ROWS(reduce_log_sum_exp, "ReduceLogSumExp", 18, OP_IN(0) | OP_OUT(0))
