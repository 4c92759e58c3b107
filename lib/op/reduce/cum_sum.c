/* cum_sum.c - CumSum (opset 11): y_i = sum of x_j, j <= i, along an axis (input 1, a constant);
 * exclusive: j < i; reverse: from the other end. dx is the same sum of dy from the other end.
 * float32, summed in double; int32 and int64 wrap. */
#include <inttypes.h>

#include "base/err.h"
#include "op/op_priv.h"
#include "op/reduce/params.h"
#include "op/reduce/whole.h"

int reduce_cumulative(struct op_infer *f, struct err *err)
{
    struct cum_sum *p = f->param;
    const int64_t *axis;
    size_t n;
    int rc = reduce_check_number(f, err);

    if (rc == 0)
        rc = op_attr_i(f, "exclusive", 0, &p->exclusive, err);
    if (rc == 0)
        rc = op_attr_i(f, "reverse", 0, &p->reverse, err);
    if (rc == 0)
        rc = op_const_ints(f, 1, &axis, &n, err);
    if (rc == 0 && n != 1)
        rc = op_error(f, ERR_INPUT, err, "the axis is %zu numbers; expected one", n);
    if (rc == 0)
        rc = along_infer(f, axis[0], &p->a, err);
    if (rc < 0)
        return rc;
    f->out[0].dtype = f->in[0]->dtype;
    f->out[0].shape = f->in[0]->shape;
    return 0;
}

/* store_ is = or +=. */
#define RUN(name_, type_, sum_, store_)                                                            \
    static void name_(const struct cum_sum *p, bool reverse, const void *vx, void *vy)             \
    {                                                                                              \
        const type_ *x = vx;                                                                       \
        type_ *y = vy;                                                                             \
        size_t o, i, j;                                                                            \
                                                                                                   \
        for (o = 0; o < p->a.outer; o++, x += p->a.k * p->a.inner, y += p->a.k * p->a.inner)       \
            for (j = 0; j < p->a.inner; j++) {                                                     \
                sum_ sum = 0;                                                                      \
                                                                                                   \
                for (i = 0; i < p->a.k; i++) {                                                     \
                    size_t at = (reverse ? p->a.k - 1 - i : i) * p->a.inner + j;                   \
                    sum_ with = sum + (sum_)x[at];                                                 \
                                                                                                   \
                    y[at] store_(type_)(p->exclusive != 0 ? sum : with);                           \
                    sum = with;                                                                    \
                }                                                                                  \
            }                                                                                      \
    }
RUN(run_f32, float, double, =)
RUN(add_f32, float, double, +=)
RUN(run_i32, uint32_t, uint32_t, =)
RUN(run_i64, uint64_t, uint64_t, =)

static int cum_sum_fwd(const struct op_call *c, struct err *err)
{
    const struct cum_sum *p = c->param;
    enum tensor_dtype t = c->in[0]->dtype;

    (void)err;
    (t == TENSOR_F32   ? run_f32
     : t == TENSOR_I32 ? run_i32
                       : run_i64)(p, p->reverse != 0, c->in[0]->data, c->out[0]->data);
    return 0;
}

static int cum_sum_bwd(const struct op_call *c, struct err *err)
{
    const struct cum_sum *p = c->param;

    (void)err;
    if (c->dout[0] == NULL || c->din[0] == NULL)
        op_bwd_zero(c);
    else
        (op_adds(c, 0) ? add_f32 : run_f32)(p, p->reverse == 0, c->dout[0]->data, c->din[0]->data);
    return 0;
}

static const char *const attrs[] = { "exclusive", "reverse", NULL };

const struct op_def op_cum_sum = {
    .name = "CumSum",
    .since = 11,
    .n_in = { 2, 2 },
    .n_out = { 1, 1 },
    .attrs = attrs,
    .param_bytes = sizeof(struct cum_sum),
    .infer = reduce_cumulative,
    .diff = OP_IN(0),
    .layout = OP_LAYOUT_PLAIN,
    .cpu = { .fwd = cum_sum_fwd, .bwd = cum_sum_bwd },
};
