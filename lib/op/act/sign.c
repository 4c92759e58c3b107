/* sign.c - Neg: y = -x, dx = -dy.   Abs: y = |x|, dx = dy sign(x).   Sign: -1, 0 or 1, no gradient.
 * Not: of bool, no gradient.   float32, int32, int64. */
#include "op/act/act.h"

#include "base/err.h"

ACT_KERNELS(neg, false, none)
ACT_KERNELS(abs, false, in)
ACT_KERNELS(sign, false, none)

static int infer(struct op_infer *f, struct err *err)
{
    const struct tensor *x = f->in[0];

    if (x == NULL || (x->dtype != TENSOR_I32 && x->dtype != TENSOR_I64))
        return infer_same_shape(f, err);
    f->out[0].dtype = x->dtype;
    f->out[0].shape = x->shape;
    return 0;
}

/* id_##_any: forward for all three types. */
#define OF_ANY_TYPE(id_)                                                                           \
    static int id_##_any(const struct op_call *c, struct err *err)                                 \
    {                                                                                              \
        size_t n = (size_t)tensor_elements(c->in[0]), i;                                           \
        const void *x = c->in[0]->data;                                                            \
        void *y = c->out[0]->data;                                                                 \
                                                                                                   \
        if (c->in[0]->dtype != TENSOR_I32 && c->in[0]->dtype != TENSOR_I64)                        \
            return id_##_fwd(c, err);                                                              \
        for (i = 0; i < n; i++) {                                                                  \
            bool wide = c->in[0]->dtype == TENSOR_I64;                                             \
            int64_t a = wide ? ((const int64_t *)x)[i] : ((const int32_t *)x)[i];                  \
            uint64_t v = act_##id_##_whole(a);                                                     \
                                                                                                   \
            if (wide)                                                                              \
                ((uint64_t *)y)[i] = v;                                                            \
            else                                                                                   \
                ((uint32_t *)y)[i] = (uint32_t)v;                                                  \
        }                                                                                          \
        return 0;                                                                                  \
    }

OF_ANY_TYPE(neg)
OF_ANY_TYPE(abs)
OF_ANY_TYPE(sign)

#define FIELDS(name_, since_)                                                                      \
    .name = (name_), .since = (since_), .n_in = { 1, 1 }, .n_out = { 1, 1 }, .infer = infer,       \
    .in_place = true, .layout = OP_LAYOUT_ANY, .half = OP_HALF_SAME, .half_of = OP_IN(0) | OP_OUT(0)

const struct op_def op_neg = { FIELDS("Neg", 6), .diff = OP_IN(0),
                               .cpu = { .fwd = neg_any, .bwd = neg_bwd } };
const struct op_def op_abs = { FIELDS("Abs", 6), .diff = OP_IN(0), .bwd_reads = OP_IN(0),
                               .cpu = { .fwd = abs_any, .bwd = abs_bwd } };
const struct op_def op_sign = { FIELDS("Sign", 9), .diff = OP_IN(0),
                                .cpu = { .fwd = sign_any, .bwd = sign_bwd } };

/* ---- Not ---- */

static int not_infer(struct op_infer *f, struct err *err)
{
    int rc = op_check_input(f, 0, TENSOR_BOOL, -1, err);

    if (rc < 0)
        return rc;
    f->out[0].dtype = TENSOR_BOOL;
    f->out[0].shape = f->in[0]->shape;
    return 0;
}

static int not_fwd(const struct op_call *c, struct err *err)
{
    size_t n = (size_t)tensor_elements(c->in[0]), i;
    const uint8_t *x = c->in[0]->data;
    uint8_t *y = c->out[0]->data;

    (void)err;
    for (i = 0; i < n; i++)
        y[i] = x[i] == 0;
    return 0;
}

const struct op_def op_not = {
    .name = "Not",
    .since = 1,
    .n_in = { 1, 1 },
    .n_out = { 1, 1 },
    .infer = not_infer,
    .in_place = true,
    .layout = OP_LAYOUT_ANY,
    .cpu = { .fwd = not_fwd },
};
