/* cum_prod.c - CumProd (opset 26): y_i = product of x_j, j <= i, along an axis (input 1, a
 * constant); exclusive: j < i, and 1 for an empty product; reverse: from the other end. float32,
 * multiplied in double; int32 and int64 wrap.
 *   dx_m = p_m r_m, where p_m is the product of all x_j before m, which is an element of y, and
 *   r_m = sum over i of dy_i (product of the x_j between m and i), which is computed from the end:
 *   r_m = dy_m + x_(m+1) r_(m+1), or exclusive r_m = dy_(m+1) + x_(m+1) r_(m+1)
 * The formula has no division, so zeros need no special case. */
#include "base/err.h"
#include "op/op_priv.h"
#include "op/reduce/params.h"
#include "op/reduce/whole.h"

/* Offset of element i of a sequence, counted from the end at which the product begins. */
static size_t place(const struct cum_sum *p, size_t i)
{
    return (p->reverse != 0 ? p->a.k - 1 - i : i) * p->a.inner;
}

#define RUN(name_, type_, product_)                                                                \
    static void name_(const struct cum_sum *p, const type_ *x, type_ *y)                           \
    {                                                                                              \
        for (size_t o = 0; o < p->a.outer; o++, x += p->a.k * p->a.inner, y += p->a.k * p->a.inner) \
            for (size_t j = 0; j < p->a.inner; j++) {                                              \
                product_ all = 1;                                                                  \
                                                                                                   \
                for (size_t i = 0; i < p->a.k; i++) {                                              \
                    const size_t at = place(p, i) + j;                                             \
                    const product_ with = all * (product_)x[at];                                   \
                                                                                                   \
                    y[at] = (type_)(p->exclusive != 0 ? all : with);                               \
                    all = with;                                                                    \
                }                                                                                  \
            }                                                                                      \
    }
RUN(run_f32, float, double)
RUN(run_i32, uint32_t, uint32_t)
RUN(run_i64, uint64_t, uint64_t)

static int cum_prod_fwd(const struct op_call *c, struct err *err)
{
    const struct cum_sum *p = c->param;

    (void)err; /* cannot fail */
    switch (c->in[0]->dtype) {
    case TENSOR_F32:
        run_f32(p, c->in[0]->data, c->out[0]->data);
        break;
    case TENSOR_I32:
        run_i32(p, c->in[0]->data, c->out[0]->data);
        break;
    default:
        run_i64(p, c->in[0]->data, c->out[0]->data);
    }
    return 0;
}

/* One sequence. */
static void sequence_bwd(const struct cum_sum *p, const float *x, const float *y, const float *dy,
                         float *dx, bool add)
{
    double r = 0;

    for (size_t i = p->a.k; i-- > 0;) {
        const size_t at = place(p, i);
        double before;

        if (p->exclusive == 0)
            r = (double)dy[at] + (i + 1 < p->a.k ? (double)x[place(p, i + 1)] * r : 0);
        else if (i + 1 < p->a.k)
            r = (double)dy[place(p, i + 1)] + (double)x[place(p, i + 1)] * r;
        before = p->exclusive != 0 ? (double)y[at] : i > 0 ? (double)y[place(p, i - 1)] : 1;
        dx[at] = (float)(before * r) + (add ? dx[at] : 0);
    }
}

static int cum_prod_bwd(const struct op_call *c, struct err *err)
{
    const struct cum_sum *p = c->param;
    const size_t each = p->a.k * p->a.inner;

    (void)err; /* cannot fail */
    if (c->dout[0] == NULL || c->din[0] == NULL) {
        op_bwd_zero(c);
        return 0;
    }
    for (size_t o = 0; o < p->a.outer; o++)
        for (size_t j = 0; j < p->a.inner; j++)
            sequence_bwd(p, (const float *)c->in[0]->data + o * each + j,
                         (const float *)c->out[0]->data + o * each + j,
                         (const float *)c->dout[0]->data + o * each + j,
                         (float *)c->din[0]->data + o * each + j, op_adds(c, 0));
    return 0;
}

static const char *const attrs[] = { "exclusive", "reverse", NULL };

const struct op_def op_cum_prod = {
    .name = "CumProd",
    .since = 26,
    .n_in = { 2, 2 },
    .n_out = { 1, 1 },
    .attrs = attrs,
    .param_bytes = sizeof(struct cum_sum),
    .infer = reduce_cumulative,
    .diff = OP_IN(0),
    .bwd_reads = OP_IN(0) | OP_OUT(0),
    .layout = OP_LAYOUT_PLAIN,
    .cpu = { .fwd = cum_prod_fwd, .bwd = cum_prod_bwd },
};
