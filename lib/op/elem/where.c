/* where.c - Where: y = c ? a : b, the three broadcast together (opset 9).   da = c ? dy : 0,
 * db = c ? 0 : dy, summed where broadcast. c is bool; a and b have one type, any. */
#include "op/elem/elem.h"

#include <stdlib.h>

#include "base/err.h"

/* Writes steps 0 and 1 as constants for a mask over two tensors, or over a tensor and a scalar. */
#define WHERE_STEPS(row_, ...)                                                                     \
    do {                                                                                           \
        const ptrdiff_t sc = t->at[0].step, sa = t->at[1].step, sb = t->at[2].step;                \
                                                                                                   \
        if (sc == 1 && sa == 1 && sb == 1)                                                         \
            row_(__VA_ARGS__, 1, 1, 1);                                                            \
        else if (sc == 1 && sa == 1 && sb == 0)                                                    \
            row_(__VA_ARGS__, 1, 1, 0);                                                            \
        else if (sc == 1 && sa == 0 && sb == 1)                                                    \
            row_(__VA_ARGS__, 1, 0, 1);                                                            \
        else                                                                                       \
            row_(__VA_ARGS__, sc, sa, sb);                                                         \
    } while (0)

#define WHERE_FWD(name_, type_)                                                                    \
    INLINED void name_##_row(size_t n, const uint8_t *c, const type_ *a, const type_ *b,         \
                               type_ *y, ptrdiff_t sc, ptrdiff_t sa, ptrdiff_t sb)                 \
    {                                                                                              \
        size_t i;                                                                                  \
                                                                                                   \
        OP_EACH                                                                                    \
        for (i = 0; i < n; i++)                                                                    \
            y[i] = c[(ptrdiff_t)i * sc] != 0 ? a[(ptrdiff_t)i * sa] : b[(ptrdiff_t)i * sb];        \
    }                                                                                              \
    CLONES static void name_(const struct elem_tile *t, const void *const *in, void *vy)        \
    {                                                                                              \
        const uint8_t *c = in[0];                                                                  \
        const type_ *a = in[1], *b = in[2];                                                        \
        type_ *y = vy;                                                                             \
        size_t r;                                                                                  \
                                                                                                   \
        for (r = 0; r < t->rows; r++) {                                                            \
            WHERE_STEPS(name_##_row, t->n, c, a, b, y);                                            \
            c += t->at[0].row, a += t->at[1].row, b += t->at[2].row, y += t->n;                    \
        }                                                                                          \
    }

WHERE_FWD(where_8, uint8_t)
WHERE_FWD(where_16, uint16_t)
WHERE_FWD(where_32, uint32_t)
WHERE_FWD(where_64, uint64_t)

/* The gradient of a (wanted = true) or b, into g, which has step 1, or into sums. */
static void bwd_row(bool wanted, enum elem_into into, size_t n, const float *d, const uint8_t *c,
                    ptrdiff_t sc, float *g, double *sum, ptrdiff_t sg)
{
    size_t i;

    if (into == ELEM_SET)
        for (i = 0; i < n; i++)
            g[i] = (c[(ptrdiff_t)i * sc] != 0) == wanted ? d[i] : 0.0f;
    else if (into == ELEM_ADD)
        for (i = 0; i < n; i++)
            g[i] += (c[(ptrdiff_t)i * sc] != 0) == wanted ? d[i] : 0.0f;
    else
        for (i = 0; i < n; i++)
            sum[(ptrdiff_t)i * sg] += (c[(ptrdiff_t)i * sc] != 0) == wanted ? (double)d[i] : 0.0;
}

static void bwd_side(const struct elem_tile *t, enum elem_into into, const float *d,
                     const uint8_t *c, float *g, double *sum, uint32_t side)
{
    size_t r;

    for (r = 0; r < t->rows; r++, c += t->at[0].row, d += t->n) {
        bwd_row(side == 1, into, t->n, d, c, t->at[0].step, g, sum, t->at[side].step);
        if (into == ELEM_SUM)
            sum += t->at[side].row;
        else
            g += t->n;
    }
}

static void where_da(const struct elem_tile *t, enum elem_into into, const float *d,
                     const void *const *in, float *g, double *sum)
{
    bwd_side(t, into, d, in[0], g, sum, 1);
}

static void where_db(const struct elem_tile *t, enum elem_into into, const float *d,
                     const void *const *in, float *g, double *sum)
{
    bwd_side(t, into, d, in[0], g, sum, 2);
}

static int where_infer(struct op_infer *f, struct err *err)
{
    int rc = op_check_input(f, 0, TENSOR_BOOL, -1, err);

    if (rc == 0)
        rc = elem_infer_shape(f, 0, 2, err);
    if (rc < 0)
        return rc;
    if (f->in[1]->dtype != f->in[2]->dtype)
        return op_error(f, ERR_INPUT, err, "the choices are %s and %s; expected one type",
                        tensor_dtype_name(f->in[1]->dtype), tensor_dtype_name(f->in[2]->dtype));
    f->out[0].dtype = f->in[1]->dtype;
    return 0;
}

static int where_fwd(const struct op_call *c, struct err *err)
{
    size_t size = tensor_dtype_bytes(c->out[0]->dtype);

    (void)err;
    elem_run(c->state,
             size == 1   ? where_8
             : size == 2 ? where_16
             : size == 4 ? where_32
                         : where_64,
             c->in, c->n_in, c->out[0]);
    return 0;
}

static int where_bwd(const struct op_call *c, struct err *err)
{
    static const struct elem_kernels kernels = { .bwd = { NULL, where_da, where_db } };

    (void)err;
    return elem_bwd(c, &kernels);
}

const struct op_def op_where = {
    .name = "Where",
    .since = 9,
    .n_in = { 3, 3 },
    .n_out = { 1, 1 },
    .infer = where_infer,
    .diff = OP_IN(1) | OP_IN(2),
    .bwd_reads = OP_IN(0),
    .layout = OP_LAYOUT_ANY,
    .cpu = { elem_plan, where_fwd, where_bwd, free },
};
