/* clip.c - Clip: y = min(max(x, lo), hi). NaN stays. If lo > hi, y is hi everywhere.
 * Gradients as of PyTorch's clamp with numbers: dx = dy where lo < x < hi, else 0; dlo = the sum of
 * dy where x < lo < hi; dhi = the sum of dy where x > hi or lo > hi.
 * Opset 6: the limits are attributes. 11: inputs 1 and 2, scalars, each may be absent; integers. */
#include <float.h>
#include <math.h>

#include "base/err.h"
#include "op/act/act_formula.h"
#include "op/act/params.h"
#include "op/half.h"
#include "op/op.h"
#include "op/op_priv.h"

#define CLIP_TYPE(name_, type_)                                                                    \
    CLONES static void name_(size_t n, const type_ *x, const type_ *lo, const type_ *hi,        \
                                type_ *y)                                                          \
    {                                                                                              \
        size_t i;                                                                                  \
                                                                                                   \
        OP_EACH                                                                                    \
        for (i = 0; i < n; i++) {                                                                  \
            type_ v = lo != NULL && x[i] < *lo ? *lo : x[i];                                       \
                                                                                                   \
            y[i] = hi != NULL && v > *hi ? *hi : v;                                                \
        }                                                                                          \
    }
CLIP_TYPE(clip_i32, int32_t)
CLIP_TYPE(clip_i64, int64_t)

CLONES static void clip_f32(size_t n, const float *x, struct clip m, float *y)
{
    size_t i;

    OP_EACH
    for (i = 0; i < n; i++)
        y[i] = act_clip_y(x[i], m.lo, m.hi);
}

CLONES static void clip_dx(size_t n, const float *x, const float *d, struct clip m, float *g,
                           bool add)
{
    size_t i;

    if (add) {
        OP_EACH
        for (i = 0; i < n; i++)
            g[i] += act_clip_dx(d[i], x[i], m.lo, m.hi);
    } else {
        OP_EACH
        for (i = 0; i < n; i++)
            g[i] = act_clip_dx(d[i], x[i], m.lo, m.hi);
    }
}

/* Adds the gradients of lo and hi to sums[0] and sums[1]. */
static void add_limits(size_t n, const float *x, const float *d, struct clip m, double sums[2])
{
    size_t i;

    for (i = 0; i < n; i++)
        if (x[i] > m.hi || m.lo > m.hi)
            sums[1] += (double)d[i];
        else if (x[i] < m.lo && m.lo < m.hi)
            sums[0] += (double)d[i];
}

static int infer_11(struct op_infer *f, struct err *err)
{
    const struct tensor *x = f->in[0];
    uint32_t i;

    *(struct clip *)f->param = (struct clip){ -INFINITY, INFINITY };
    if (x == NULL)
        return op_error(f, ERR_INPUT, err, "input 0 is missing");
    if (x->dtype != TENSOR_F32 && x->dtype != TENSOR_I32 && x->dtype != TENSOR_I64)
        return op_error(f, ERR_UNSUPPORTED, err, "input 0 is %s; supported are float32, int32, "
                        "int64", tensor_dtype_name(x->dtype));
    for (i = 1; i < f->n_in; i++) {
        int rc = f->in[i] != NULL ? op_check_input(f, i, x->dtype, -1, err) : 0;

        if (rc < 0)
            return rc;
        if (f->in[i] != NULL && tensor_elements(f->in[i]) != 1)
            return op_error(f, ERR_INPUT, err, "limit %u is not one number", i);
    }
    f->out[0].dtype = x->dtype;
    f->out[0].shape = x->shape;
    return 0;
}

static int infer_6(struct op_infer *f, struct err *err)
{
    struct clip *m = f->param;
    int rc = infer_same_shape(f, err);

    if (rc == 0)
        rc = op_attr_f(f, "min", -FLT_MAX, &m->lo, err);
    if (rc == 0)
        rc = op_attr_f(f, "max", FLT_MAX, &m->hi, err);
    return rc;
}

static const void *limit(const struct op_call *c, uint32_t i)
{
    return i < c->n_in && c->in[i] != NULL ? c->in[i]->data : NULL;
}

static struct clip limits_of(const struct op_call *c)
{
    const float *lo = limit(c, 1), *hi = limit(c, 2);
    struct clip m = *(const struct clip *)c->param;

    return (struct clip){ lo != NULL ? *lo : m.lo, hi != NULL ? *hi : m.hi };
}

/* float32, or bfloat16, which is converted in chunks. */
static void clip_floats(const struct op_call *c, size_t n)
{
    const struct tensor *x = c->in[0], *y = c->out[0];
    float room[OP_CHUNK], *to;
    size_t at, m;

    for (at = 0; at < n; at += m) {
        m = op_chunk(n - at, op_is_half(x));
        to = op_floats_to(y, at, room);
        clip_f32(m, op_floats(x, at, m, room), limits_of(c), to);
        op_floats_done(y, at, m, to);
    }
}

static int clip_fwd(const struct op_call *c, struct err *err)
{
    size_t n = (size_t)tensor_elements(c->in[0]);

    (void)err;
    if (c->in[0]->dtype == TENSOR_I32)
        clip_i32(n, c->in[0]->data, limit(c, 1), limit(c, 2), c->out[0]->data);
    else if (c->in[0]->dtype == TENSOR_I64)
        clip_i64(n, c->in[0]->data, limit(c, 1), limit(c, 2), c->out[0]->data);
    else
        clip_floats(c, n);
    return 0;
}

static const struct tensor *gradient(const struct op_call *c, uint32_t i)
{
    return i < c->n_in ? c->din[i] : NULL;
}

static void limits_bwd(const struct op_call *c)
{
    const struct tensor *x = c->in[0], *dy = c->dout[0];
    size_t n = (size_t)tensor_elements(x), at, m;
    float room[2][OP_CHUNK];
    double sums[2] = { 0 };
    uint32_t i;

    for (at = 0; at < n; at += m) {
        m = op_chunk(n - at, op_is_half(x) || op_is_half(dy));
        add_limits(m, op_floats(x, at, m, room[0]), op_floats(dy, at, m, room[1]), limits_of(c),
                   sums);
    }
    for (i = 0; i < 2; i++)
        if (gradient(c, i + 1) != NULL) {
            float *to = c->din[i + 1]->data;

            *to = (op_adds(c, i + 1) ? *to : 0.0f) + (float)sums[i];
        }
}

static int clip_bwd(const struct op_call *c, struct err *err)
{
    const struct tensor *x = c->in[0], *dy = c->dout[0], *dx = c->din[0];
    float room[3][OP_CHUNK], *to;
    size_t n, at, m;

    (void)err;
    if (dy == NULL) {
        op_bwd_zero(c);
        return 0;
    }
    if (gradient(c, 1) != NULL || gradient(c, 2) != NULL)
        limits_bwd(c);
    n = dx != NULL ? (size_t)tensor_elements(dx) : 0;
    for (at = 0; at < n; at += m) {
        m = op_chunk(n - at, op_is_half(dx));
        to = op_floats_on(dx, at, op_adds(c, 0) ? m : 0, room[2]);
        clip_dx(m, op_floats(x, at, m, room[0]), op_floats(dy, at, m, room[1]), limits_of(c), to,
                op_adds(c, 0));
        op_floats_done(dx, at, m, to);
    }
    return 0;
}

static const char *const attrs[] = { "min", "max", NULL };

const struct op_def op_clip_11 = {
    .name = "Clip",
    .since = 11,
    .n_in = { 1, 3 },
    .n_out = { 1, 1 },
    .param_bytes = sizeof(struct clip),
    .infer = infer_11,
    .diff = OP_IN(0) | OP_IN(1) | OP_IN(2),
    .bwd_reads = OP_IN(0) | OP_IN(1) | OP_IN(2),
    .in_place = true,
    .layout = OP_LAYOUT_ANY,
    .half = OP_HALF_SAME,
    .half_of = OP_IN(0) | OP_OUT(0),
    .cpu = { .fwd = clip_fwd, .bwd = clip_bwd },
};

const struct op_def op_clip_6 = {
    .name = "Clip",
    .since = 6,
    .until = 10,
    .n_in = { 1, 1 },
    .n_out = { 1, 1 },
    .attrs = attrs,
    .param_bytes = sizeof(struct clip),
    .infer = infer_6,
    .diff = OP_IN(0),
    .bwd_reads = OP_IN(0),
    .in_place = true,
    .layout = OP_LAYOUT_ANY,
    .half = OP_HALF_SAME,
    .half_of = OP_IN(0) | OP_OUT(0),
    .cpu = { .fwd = clip_fwd, .bwd = clip_bwd },
};
