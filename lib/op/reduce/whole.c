#include "op/reduce/whole.h"

#include <math.h>

#include "base/err.h"
#include "op/reduce/reduce.h"

int reduce_check_number(struct op_infer *f, struct err *err)
{
    const struct tensor *x = f->in[0];

    if (x == NULL)
        return op_error(f, ERR_INPUT, err, "input 0 is missing");
    if (x->dtype != TENSOR_F32 && x->dtype != TENSOR_I32 && x->dtype != TENSOR_I64)
        return op_error(f, ERR_UNSUPPORTED, err, "input 0 is %s; supported are float32, int32, "
                        "int64", tensor_dtype_name(x->dtype));
    return 0;
}

/* Defines name_(c, y): y = start_ everywhere, then y = step_(v, x) in memory order of x. */
#define COMBINE(name_, type_, start_, step_)                                                       \
    INLINED void name_##_row(size_t n, const type_ *x, type_ *y, ptrdiff_t step)                 \
    {                                                                                              \
        size_t i;                                                                                  \
                                                                                                   \
        for (i = 0; i < n; i++) {                                                                  \
            const type_ a = x[i], v = y[(ptrdiff_t)i * step];                                      \
                                                                                                   \
            y[(ptrdiff_t)i * step] = (step_);                                                      \
        }                                                                                          \
    }                                                                                              \
    CLONES static void name_##_tile(const struct elem_tile *t, const type_ *x, type_ *y)        \
    {                                                                                              \
        size_t r;                                                                                  \
                                                                                                   \
        for (r = 0; r < t->rows; r++, x += t->n, y += t->at[0].row)                                \
            if (t->at[0].step == 1)                                                                \
                name_##_row(t->n, x, y, 1);                                                        \
            else                                                                                   \
                name_##_row(t->n, x, y, t->at[0].step);                                            \
    }                                                                                              \
    static void name_(const struct op_call *c, type_ *y)                                           \
    {                                                                                              \
        const struct reduce_state *s = c->state;                                                   \
        struct elem_walk w = { .s = &s->fwd };                                                     \
        size_t n = (size_t)tensor_elements(c->out[0]), i;                                          \
                                                                                                   \
        for (i = 0; i < n; i++)                                                                    \
            y[i] = (start_);                                                                       \
        if (s->fwd.total == 0)                                                                     \
            return;                                                                                \
        do {                                                                                       \
            name_##_tile(&s->fwd.tile, (const type_ *)c->in[0]->data + w.y, y + w.at[0]);          \
        } while (elem_walk_next(&w));                                                              \
    }

COMBINE(greatest, float, -INFINITY, a > v || a != a ? a : v)
COMBINE(least, float, INFINITY, a < v || a != a ? a : v)
COMBINE(sum_32, uint32_t, 0, v + a)
COMBINE(sum_64, uint64_t, 0, v + a)
COMBINE(prod_32, uint32_t, 1, v *a)
COMBINE(prod_64, uint64_t, 1, v *a)
COMBINE(max_32, int32_t, INT32_MIN, a > v ? a : v)
COMBINE(max_64, int64_t, INT64_MIN, a > v ? a : v)
COMBINE(min_32, int32_t, INT32_MAX, a < v ? a : v)
COMBINE(min_64, int64_t, INT64_MAX, a < v ? a : v)

void reduce_greatest(const struct op_call *c, float *y)
{
    greatest(c, y);
}

void reduce_least(const struct op_call *c, float *y)
{
    least(c, y);
}

static void divide(const struct op_call *c)
{
    const struct reduce *r = c->param;
    size_t n = (size_t)tensor_elements(c->out[0]), i;
    int64_t by = r->n > 0 ? (int64_t)r->n : 1;

    for (i = 0; i < n; i++)
        if (c->out[0]->dtype == TENSOR_I32)
            ((int32_t *)c->out[0]->data)[i] = (int32_t)(((int32_t *)c->out[0]->data)[i] / by);
        else
            ((int64_t *)c->out[0]->data)[i] /= by;
}

int reduce_whole(const struct op_call *c, enum reduce_whole how)
{
    bool wide = c->in[0]->dtype == TENSOR_I64;
    void *y = c->out[0]->data;

    switch (how) {
    case WHOLE_PROD: wide ? prod_64(c, y) : prod_32(c, y); break;
    case WHOLE_MAX: wide ? max_64(c, y) : max_32(c, y); break;
    case WHOLE_MIN: wide ? min_64(c, y) : min_32(c, y); break;
    default: wide ? sum_64(c, y) : sum_32(c, y); break;
    }
    if (how == WHOLE_MEAN)
        divide(c);
    return 0;
}
