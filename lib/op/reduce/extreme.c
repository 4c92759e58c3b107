/* extreme.c - ReduceMax, ReduceMin: dx = dy / m for the m elements that equal y, else 0. The result
 * is NaN if an element is.
 *             ReduceProd: dx = dy times the product of all other elements.
 * float32, int32, int64. Axes are an attribute up to opset 17, then input 1. Over no elements the
 * results are -inf, inf (of integers: the smallest, the largest) and 1. */
#include <math.h>
#include <stdlib.h>

#include "base/err.h"
#include "op/reduce/reduce.h"
#include "op/reduce/whole.h"

#define IS_Y (REDUCE_X == REDUCE_Y || (REDUCE_X != REDUCE_X && REDUCE_Y != REDUCE_Y))

ELEM_BWD(to_equals, 0, IS_Y ? REDUCE_DY : 0.0f)
/* ELEM_A, the operand of the forward, is y here. */
ELEM_BWD(count_equals, 0,
         REDUCE_X == REDUCE_SHIFT || (REDUCE_X != REDUCE_X && REDUCE_SHIFT != REDUCE_SHIFT) ? 1.0f
                                                                                            : 0.0f)

static int infer(struct op_infer *f, struct err *err)
{
    int rc = reduce_check_number(f, err);

    return rc < 0 ? rc : reduce_infer(f, err);
}

static int extreme_bwd(const struct op_call *c)
{
    double *equals = reduce_sums(c);
    size_t n = (size_t)tensor_elements(c->out[0]), i;
    float *d = c->scratch;

    if (c->dout[0] == NULL || c->din[0] == NULL) {
        op_bwd_zero(c);
        return 0;
    }
    reduce_sum(c, count_equals, c->out[0]->data, equals);
    for (i = 0; i < n; i++)
        d[i] = (float)((double)((const float *)c->dout[0]->data)[i] / equals[i]);
    reduce_spread(c, to_equals, d, c->out[0]->data);
    return 0;
}

#define EXTREME(id_, of_float_, whole_)                                                            \
    static int id_##_infer(struct op_infer *f, struct err *err)                                    \
    {                                                                                              \
        return infer(f, err);                                                                      \
    }                                                                                              \
    static int id_##_plan(struct op_plan *p, struct err *err)                                      \
    {                                                                                              \
        return reduce_plan(p, err);                                                                \
    }                                                                                              \
    static int id_##_fwd(const struct op_call *c, struct err *err)                                 \
    {                                                                                              \
        (void)err;                                                                                 \
        if (c->in[0]->dtype != TENSOR_F32)                                                         \
            return reduce_whole(c, whole_);                                                        \
        of_float_(c, c->out[0]->data);                                                             \
        return 0;                                                                                  \
    }                                                                                              \
    static int id_##_bwd(const struct op_call *c, struct err *err)                                 \
    {                                                                                              \
        (void)err;                                                                                 \
        return extreme_bwd(c);                                                                     \
    }

EXTREME(reduce_max, reduce_greatest, WHOLE_MAX)
EXTREME(reduce_min, reduce_least, WHOLE_MIN)
REDUCE_ROWS(reduce_max, "ReduceMax", 18, OP_IN(0) | OP_OUT(0))
REDUCE_ROWS(reduce_min, "ReduceMin", 18, OP_IN(0) | OP_OUT(0))

/* ---- ReduceProd ---- In double: the product of the elements that are not 0, and the number of
 * zeros. Each gradient then needs one operation: without zeros, product / x; with one zero, only
 * that element has a gradient. */

struct factors {
    double product;
    double zeros;
};

static void multiply(const struct op_call *c, struct factors *f)
{
    const struct reduce_state *s = c->state;
    const struct elem_tile *t = &s->fwd.tile;
    struct elem_walk w = { .s = &s->fwd };
    const float *x = c->in[0]->data;
    size_t n = (size_t)tensor_elements(c->out[0]), r, i;

    for (i = 0; i < n; i++)
        f[i] = (struct factors){ 1, 0 };
    if (s->fwd.total == 0)
        return;
    do {
        for (r = 0; r < t->rows; r++) {
            const float *row = x + w.y + r * t->n;
            struct factors *to = f + w.at[0] + (ptrdiff_t)r * t->at[0].row;

            for (i = 0; i < t->n; i++, to += t->at[0].step) {
                to->zeros += row[i] == 0.0f;
                to->product *= row[i] == 0.0f ? 1 : (double)row[i];
            }
        }
    } while (elem_walk_next(&w));
}

static int reduce_prod_infer(struct op_infer *f, struct err *err)
{
    return infer(f, err);
}

static int reduce_prod_plan(struct op_plan *p, struct err *err)
{
    int rc = reduce_plan(p, err);

    p->scratch_bytes = (size_t)tensor_elements(&p->out[0]) * sizeof(struct factors);
    return rc;
}

static int reduce_prod_fwd(const struct op_call *c, struct err *err)
{
    size_t n = (size_t)tensor_elements(c->out[0]), i;
    struct factors *f = c->scratch;
    float *y = c->out[0]->data;

    (void)err;
    if (c->in[0]->dtype != TENSOR_F32)
        return reduce_whole(c, WHOLE_PROD);
    multiply(c, f);
    for (i = 0; i < n; i++)
        y[i] = f[i].zeros > 0 ? (float)(f[i].product * 0) : (float)f[i].product;
    return 0;
}

static int reduce_prod_bwd(const struct op_call *c, struct err *err)
{
    const struct reduce_state *s = c->state;
    const struct elem_tile *t = &s->fwd.tile;
    struct elem_walk w = { .s = &s->fwd };
    struct factors *f = c->scratch;
    const float *x = c->in[0]->data, *dy;
    bool add = op_adds(c, 0);
    size_t r, i;

    (void)err;
    if (c->dout[0] == NULL || c->din[0] == NULL) {
        op_bwd_zero(c);
        return 0;
    }
    multiply(c, f);
    dy = c->dout[0]->data;
    if (s->fwd.total == 0)
        return 0;
    do {
        for (r = 0; r < t->rows; r++) {
            float *g = (float *)c->din[0]->data + w.y + r * t->n;
            const float *row = x + w.y + r * t->n;
            ptrdiff_t at = w.at[0] + (ptrdiff_t)r * t->at[0].row;

            for (i = 0; i < t->n; i++, at += t->at[0].step) {
                double zeros_else = f[at].zeros - (row[i] == 0.0f);
                double others = row[i] == 0.0f ? f[at].product : f[at].product / (double)row[i];
                float d = zeros_else > 0 ? 0.0f : (float)((double)dy[at] * others);

                g[i] = add ? g[i] + d : d;
            }
        }
    } while (elem_walk_next(&w));
    return 0;
}

REDUCE_ROWS(reduce_prod, "ReduceProd", 18, OP_IN(0))
