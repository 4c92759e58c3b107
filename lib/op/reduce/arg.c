/* arg.c - ArgMax, ArgMin: int64 index along an axis of the largest or smallest element; of equal
 * elements the first, or the last (select_last_index, opset 12). A NaN counts as both. No gradient.
 * float32, int32, int64. */
#include "base/err.h"
#include "op/op_priv.h"
#include "op/reduce/params.h"
#include "op/reduce/whole.h"

static int arg_infer(struct op_infer *f, struct err *err)
{
    struct arg *p = f->param;
    struct shape *y = &f->out[0].shape;
    int64_t axis, keep;
    uint32_t k;
    int rc = reduce_check_number(f, err);

    if (rc == 0)
        rc = op_attr_i(f, "axis", 0, &axis, err);
    if (rc == 0)
        rc = op_attr_i(f, "keepdims", 1, &keep, err);
    if (rc == 0)
        rc = op_attr_i(f, "select_last_index", 0, &p->last, err);
    if (rc == 0)
        rc = along_infer(f, axis, &p->a, err);
    if (rc < 0)
        return rc;
    if (p->a.k == 0)
        return op_error(f, ERR_INPUT, err, "axis %u has no elements to choose from", p->a.axis);
    for (k = 0; k < f->in[0]->shape.rank; k++)
        if (k != p->a.axis || keep != 0)
            y->dim[y->rank++] = k == p->a.axis ? 1 : f->in[0]->shape.dim[k];
    f->out[0].dtype = TENSOR_I64;
    return 0;
}

/* beats_: condition under which v replaces the best element so far */
#define ARG(name_, type_, beats_)                                                                  \
    static void name_(const struct arg *p, const void *vx, int64_t *y)                             \
    {                                                                                              \
        const type_ *x = vx;                                                                       \
        size_t o, i, j;                                                                            \
                                                                                                   \
        for (o = 0; o < p->a.outer; o++, x += p->a.k * p->a.inner)                                 \
            for (j = 0; j < p->a.inner; j++) {                                                     \
                type_ best = x[j];                                                                 \
                size_t at = 0;                                                                     \
                                                                                                   \
                for (i = 1; i < p->a.k; i++) {                                                     \
                    const type_ v = x[i * p->a.inner + j];                                         \
                                                                                                   \
                    if ((beats_) || (p->last != 0 && (v == best || (v != v && best != best)))) {   \
                        best = v;                                                                  \
                        at = i;                                                                    \
                    }                                                                              \
                }                                                                                  \
                *y++ = (int64_t)at;                                                                \
            }                                                                                      \
    }
ARG(max_f32, float, v > best || (v != v && best == best))
ARG(max_i32, int32_t, v > best)
ARG(max_i64, int64_t, v > best)
ARG(min_f32, float, v < best || (v != v && best == best))
ARG(min_i32, int32_t, v < best)
ARG(min_i64, int64_t, v < best)

#define ARG_FWD(id_)                                                                               \
    static int id_##_fwd(const struct op_call *c, struct err *err)                                 \
    {                                                                                              \
        enum tensor_dtype t = c->in[0]->dtype;                                                     \
                                                                                                   \
        (void)err;                                                                                 \
        (t == TENSOR_F32 ? id_##_f32 : t == TENSOR_I32 ? id_##_i32 : id_##_i64)(                   \
            c->param, c->in[0]->data, c->out[0]->data);                                            \
        return 0;                                                                                  \
    }
ARG_FWD(max)
ARG_FWD(min)

static const char *const attrs_1[] = { "axis", "keepdims", NULL };
static const char *const attrs_12[] = { "axis", "keepdims", "select_last_index", NULL };

#define FIELDS                                                                                     \
    .n_in = { 1, 1 }, .n_out = { 1, 1 }, .param_bytes = sizeof(struct arg), .infer = arg_infer,    \
    .layout = OP_LAYOUT_PLAIN

const struct op_def op_arg_max_12 = { FIELDS, .name = "ArgMax", .since = 12, .attrs = attrs_12,
                                      .cpu = { .fwd = max_fwd } };
const struct op_def op_arg_max_1 = { FIELDS, .name = "ArgMax", .since = 1, .until = 11,
                                     .attrs = attrs_1, .cpu = { .fwd = max_fwd } };
const struct op_def op_arg_min_12 = { FIELDS, .name = "ArgMin", .since = 12, .attrs = attrs_12,
                                      .cpu = { .fwd = min_fwd } };
const struct op_def op_arg_min_1 = { FIELDS, .name = "ArgMin", .since = 1, .until = 11,
                                     .attrs = attrs_1, .cpu = { .fwd = min_fwd } };
