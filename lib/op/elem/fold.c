/* fold.c - Max, Min, Sum, Mean of any number of operands, broadcast together (opset 8; 12 and 13
 * add types).
 *
 * y starts as the first operand, broadcast to its shape; each further operand is then folded in.
 * Max and Min: NaN wins, and dy is divided equally among the operands that equal y. Sum: each
 * operand gets dy; Mean: dy / n.
 * Min, Max: float32, int32, int64, uint64; Sum, Mean: float32. */
#include "op/elem/elem.h"

#include <stdlib.h>

#include "base/err.h"

/* ELEM_A is y so far, ELEM_B the operand. */
#define MAX ELEM_MAX(ELEM_A, ELEM_B)
#define MIN ELEM_MIN(ELEM_A, ELEM_B)
#define IS_Y ELEM_EQUAL(ELEM_A, ELEM_B)

ELEM_FWD(copy_f32, float, ELEM_B)
ELEM_FWD(copy_i32, uint32_t, ELEM_B)
ELEM_FWD(copy_i64, uint64_t, ELEM_B)
ELEM_FWD(max_f32, float, MAX)
ELEM_FWD(max_i32, int32_t, MAX)
ELEM_FWD(max_i64, int64_t, MAX)
ELEM_FWD(min_f32, float, MIN)
ELEM_FWD(min_i32, int32_t, MIN)
ELEM_FWD(min_i64, int64_t, MIN)
ELEM_FWD(max_u64, uint64_t, MAX)
ELEM_FWD(min_u64, uint64_t, MIN)
ELEM_FWD(sum_f32, float, ELEM_A + ELEM_B)
ELEM_BWD(count, 1, IS_Y ? 1.0f : 0.0f)
ELEM_BWD(share, 1, IS_Y ? ELEM_D : 0.0f)
ELEM_BWD(pass, 1, ELEM_D)

static const struct elem_kernels copy = { .f32 = copy_f32, .i32 = copy_i32, .i64 = copy_i64,
                                          .u64 = copy_i64 };
static const struct elem_kernels max = { .f32 = max_f32, .i32 = max_i32, .i64 = max_i64,
                                         .u64 = max_u64 };
static const struct elem_kernels min = { .f32 = min_f32, .i32 = min_i32, .i64 = min_i64,
                                         .u64 = min_u64 };
static const struct elem_kernels sum = { .f32 = sum_f32 };

struct fold { /* op_plan.state */
    size_t sums_at; /* in the scratch: doubles, after the gradient to distribute */
    struct elem_loops loops[]; /* over y and operand i */
};

static int fold_infer(struct op_infer *f, const struct elem_kernels *k, struct err *err)
{
    int rc = elem_infer_shape(f, 0, f->n_in - 1, err);
    uint32_t i;

    if (rc < 0)
        return rc;
    for (i = 1; i < f->n_in; i++)
        if (f->in[i]->dtype != f->in[0]->dtype)
            return op_error(f, ERR_INPUT, err, "inputs are %s and %s; expected one type",
                            tensor_dtype_name(f->in[0]->dtype), tensor_dtype_name(f->in[i]->dtype));
    if (elem_fwd_of(k, f->in[0]->dtype) == NULL)
        return op_error(f, ERR_UNSUPPORTED, err, "inputs are %s; supported are float32%s",
                        tensor_dtype_name(f->in[0]->dtype), k->i32 != NULL ? ", int32, int64" : "");
    f->out[0].dtype = f->in[0]->dtype;
    return 0;
}

static int fold_plan(struct op_plan *p, struct err *err)
{
    struct fold *s = calloc(1, sizeof(*s) + p->n_in * sizeof(s->loops[0]));
    size_t sums = 0;
    uint32_t i;

    if (s == NULL)
        return err_set(err, ERR_NOMEM, "%s '%s': out of memory", p->def->name, p->node);
    for (i = 0; i < p->n_in; i++) {
        const struct elem_operand operands[2] = { { &p->out[0], NULL }, { p->in[i], NULL } };

        elem_loops_make(&s->loops[i], &p->out[0], operands, 2);
        if (!s->loops[i].dense[1])
            sums = op_max(sums, s->loops[i].elements[1] * sizeof(double));
    }
    s->sums_at = op_round(tensor_bytes(&p->out[0]));
    if (p->training)
        p->scratch_bytes = s->sums_at + sums;
    p->state = s;
    return 0;
}

static void fold_fwd(const struct op_call *c, const struct elem_kernels *k)
{
    const struct fold *s = c->state;
    const struct tensor *y = c->out[0];
    uint32_t i;

    for (i = 0; i < c->n_in; i++) {
        const struct tensor *const in[2] = { y, c->in[i] };

        if (i > 0 || y->data != c->in[0]->data)
            elem_run(&s->loops[i], elem_fwd_of(i == 0 ? &copy : k, y->dtype), in, 2, y);
    }
}

/* Computes the gradient to distribute, at the head of the scratch. */
static void divide_among_equals(const struct op_call *c, float *d)
{
    const struct fold *s = c->state;
    size_t n = (size_t)tensor_elements(c->dout[0]), i;
    const float *dy = c->dout[0]->data;
    uint32_t k;

    if (n == 0)
        return;
    for (i = 0; i < n; i++)
        d[i] = 0;
    for (k = 0; k < c->n_in; k++) {
        const struct tensor *const in[2] = { c->out[0], c->in[k] };

        /* The gradient of operand 0, which is y and therefore dense. */
        elem_run_bwd(&s->loops[k], count, 0, dy, in, 2, d, NULL, true);
    }
    for (i = 0; i < n; i++)
        d[i] = dy[i] / d[i];
}

static int fold_bwd(const struct op_call *c, elem_bwd_fn *bwd)
{
    const struct fold *s = c->state;
    void *sums = c->scratch != NULL ? (char *)c->scratch + s->sums_at : NULL;
    const float *d = c->scratch;
    uint32_t i;

    if (c->dout[0] == NULL) {
        op_bwd_zero(c);
        return 0;
    }
    if (bwd == share)
        divide_among_equals(c, c->scratch);
    else if (bwd == NULL)
        op_store(c->scratch, c->dout[0]->data, (size_t)tensor_elements(c->dout[0]),
                 1.0f / (float)c->n_in, false);
    else
        d = c->dout[0]->data;
    for (i = 0; i < c->n_in; i++) {
        const struct tensor *const in[2] = { c->out[0], c->in[i] };

        if (c->din[i] != NULL)
            elem_run_bwd(&s->loops[i], bwd == NULL ? pass : bwd, 1, d, in, 2, c->din[i]->data, sums,
                         op_adds(c, i));
    }
    return 0;
}

/* after_: a statement about y after the last operand. bwd_: share, pass, or NULL to pass dy /
 * n_in. */
#define FOLD(id_, name_, kernels_, bwd_, reads_, after_)                                           \
    static int id_##_infer(struct op_infer *f, struct err *err)                                    \
    {                                                                                              \
        return fold_infer(f, &(kernels_), err);                                                    \
    }                                                                                              \
    static int id_##_fwd(const struct op_call *c, struct err *err)                                 \
    {                                                                                              \
        (void)err;                                                                                 \
        fold_fwd(c, &(kernels_));                                                                  \
        after_;                                                                                    \
        return 0;                                                                                  \
    }                                                                                              \
    static int id_##_bwd(const struct op_call *c, struct err *err)                                 \
    {                                                                                              \
        (void)err;                                                                                 \
        return fold_bwd(c, bwd_);                                                                  \
    }                                                                                              \
    const struct op_def op_##id_ = {                                                               \
        .name = (name_),                                                                           \
        .since = 6,                                                                                \
        .n_in = { 1, OP_MANY },                                                                    \
        .n_out = { 1, 1 },                                                                         \
        .infer = id_##_infer,                                                                      \
        .diff = 0xFFFF,                                                                            \
        .bwd_reads = (reads_),                                                                     \
        .in_place = true,                                                                          \
        .layout = OP_LAYOUT_ANY,                                                                   \
        .cpu = { fold_plan, id_##_fwd, id_##_bwd, free },                                          \
    };

FOLD(max_8, "Max", max, share, 0xFFFF | OP_OUT(0), (void)0)
FOLD(min_8, "Min", min, share, 0xFFFF | OP_OUT(0), (void)0)
FOLD(sum_8, "Sum", sum, pass, 0, (void)0)
FOLD(mean_8, "Mean", sum, NULL, 0,
     op_store(c->out[0]->data, c->out[0]->data, (size_t)tensor_elements(c->out[0]),
            1.0f / (float)c->n_in, false))
