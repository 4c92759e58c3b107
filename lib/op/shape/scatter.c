/* scatter.c - ScatterElements (Scatter before opset 11), ScatterND: y is the data with updates
 * applied to its rows (rows.h) in sequence; reduction none: v = u, add: v += u, mul: v *= u, max,
 * min. Opset 16 added add and mul, 18 max and min. Data of any type for none; float32, int32, int64
 * for others.
 *
 * Backward undoes the list from its end. g, initially dy, is the gradient of the value after an
 * update:
 *   none: du = g, then g = 0     add: du = g     mul: du = g v, then g = g u
 *   max, min: if u was selected: du = g, then g = 0; else du = 0     (v: the value before the
 *                                                                    update)
 * At the end g is the gradient of the data. An update that a later one overwrote has the gradient
 * 0. */
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "op/op_priv.h"
#include "op/shape/scatter.h"

static int read_reduction(struct op_infer *f, struct err *err)
{
    static const char *const names[SCATTER_REDUCTIONS] = { "none", "add", "mul", "max", "min" };
    int64_t n = f->opset < 16 ? 1 : f->opset < 18 ? 3 : SCATTER_REDUCTIONS, i;
    struct rows *r = f->param;
    const char *name = NULL;
    enum tensor_dtype t;
    int rc = op_attr_s(f, "reduction", "none", &name, err);

    if (rc < 0)
        return rc;
    for (i = 0; i < n && strcmp(name, names[i]) != 0; i++)
        ;
    if (i == n)
        return op_error(f, ERR_INPUT, err, "reduction is '%s'; expected none%s%s", name,
                        n > 1 ? ", add, mul" : "", n > 3 ? ", max, min" : "");
    r->reduction = i;
    t = f->in[0]->dtype;
    if (i != SCATTER_NONE && t != TENSOR_F32 && t != TENSOR_I32 && t != TENSOR_I64)
        return op_error(f, ERR_UNSUPPORTED, err, "reduction %s of %s; supported are float32, "
                        "int32, int64", name, tensor_dtype_name(t));
    return 0;
}

/* Checks that the updates have the shape `want`, and sets the shape of y to that of the data. */
static int check_updates(struct op_infer *f, const struct shape *want, struct err *err)
{
    char a[192], b[192];

    if (f->in[2] == NULL)
        return op_error(f, ERR_INPUT, err, "input 2 is missing");
    if (f->in[2]->dtype != f->in[0]->dtype)
        return op_error(f, ERR_INPUT, err, "data are %s, updates %s; expected one type",
                        tensor_dtype_name(f->in[0]->dtype), tensor_dtype_name(f->in[2]->dtype));
    if (!shape_equal(&f->in[2]->shape, want))
        return op_error(f, ERR_INPUT, err, "updates have shape %s; expected %s",
                        shape_print(&f->in[2]->shape, a, sizeof(a)),
                        shape_print(want, b, sizeof(b)));
    f->out[0].dtype = f->in[0]->dtype;
    f->out[0].shape = f->in[0]->shape;
    return read_reduction(f, err);
}

static int elements_infer(struct op_infer *f, struct err *err)
{
    int64_t axis;
    int rc = op_attr_i(f, "axis", 0, &axis, err);

    if (rc == 0)
        rc = rows_infer_elements(f, axis, err);
    return rc < 0 ? rc : check_updates(f, &f->in[1]->shape, err);
}

static int nd_infer(struct op_infer *f, struct err *err)
{
    const struct rows *r = f->param;
    struct shape want;
    uint32_t k;
    int rc = rows_infer_nd(f, 0, err);

    if (rc < 0)
        return rc;
    if (f->in[1]->shape.rank - 1 + f->in[0]->shape.rank - r->depth > TENSOR_MAX_RANK)
        return op_error(f, ERR_UNSUPPORTED, err, "the updates have more than %d dimensions",
                        TENSOR_MAX_RANK);
    want = f->in[1]->shape;
    want.rank--;
    for (k = r->depth; k < f->in[0]->shape.rank; k++)
        want.dim[want.rank++] = f->in[0]->shape.dim[k];
    return check_updates(f, &want, err);
}

/* save: the list, then, if backward needs them, the values before each update. scratch: g. */
static int plan(struct op_plan *p, struct err *err)
{
    const struct rows *r = p->param;

    (void)err;
    p->save_bytes = op_round(rows_bytes(r)) + r->n * r->width * tensor_dtype_bytes(p->in[0]->dtype);
    if (p->training)
        p->scratch_bytes = tensor_bytes(p->in[0]);
    return 0;
}

static void *before_at(const struct op_call *c)
{
    return c->save != NULL ? (char *)c->save + op_round(rows_bytes(c->param)) : NULL;
}

#define PUT(name_, type_, sum_)                                                                    \
    static void name_(const struct rows *r, const int64_t *row, const void *vu, void *vy,          \
                      void *vb)                                                                    \
    {                                                                                              \
        const type_ *u = vu;                                                                       \
        type_ *y = vy, *before = vb;                                                               \
        size_t i, k;                                                                               \
                                                                                                   \
        for (i = 0; i < r->n; i++) {                                                               \
            for (k = 0; k < r->width; k++, u++, before++) {                                        \
                type_ *v = &y[(size_t)row[i] * r->width + k];                                      \
                                                                                                   \
                *before = *v;                                                                      \
                if (r->reduction == SCATTER_MAX)                                                   \
                    *v = *u > *v ? *u : *v;                                                        \
                else if (r->reduction == SCATTER_MIN)                                              \
                    *v = *u < *v ? *u : *v;                                                        \
                else                                                                               \
                    *v = (type_)(r->reduction == SCATTER_ADD ? (sum_)*v + (sum_)*u                 \
                                                             : (sum_)*v * (sum_)*u);               \
            }                                                                                      \
        }                                                                                          \
    }
PUT(put_f32, float, float)
PUT(put_i32, int32_t, uint32_t)
PUT(put_i64, int64_t, uint64_t)

static int fwd(const struct op_call *c, const char *op, struct err *err)
{
    const struct rows *r = c->param;
    enum tensor_dtype t = c->in[0]->dtype;
    size_t bytes = r->width * tensor_dtype_bytes(t), i;
    const char *u = c->in[2]->data;
    const int64_t *row = c->save;
    char *y = c->out[0]->data;
    int rc = rows_list(c, op, c->save, err);

    if (rc < 0)
        return rc;
    if (y != c->in[0]->data)
        memcpy(y, c->in[0]->data, tensor_bytes(c->in[0]));
    if (r->reduction == SCATTER_NONE)
        for (i = 0; i < r->n; i++)
            memcpy(y + (size_t)row[i] * bytes, u + i * bytes, bytes);
    else
        (t == TENSOR_F32   ? put_f32
         : t == TENSOR_I32 ? put_i32
                           : put_i64)(r, row, u, y, before_at(c));
    return 0;
}

/* Returns the gradient of one update, and replaces *g by the gradient of the value before it. */
static float undo(enum scatter_reduction how, float *g, float u, float v)
{
    float d = *g;

    switch (how) {
    case SCATTER_ADD: return d;
    case SCATTER_MUL: *g = d * u; return d * v;
    case SCATTER_MAX:
    case SCATTER_MIN:
        if (how == SCATTER_MAX ? !(u > v) : !(u < v))
            return 0;
        *g = 0;
        return d;
    default: *g = 0; return d;
    }
}

static int bwd(const struct op_call *c, struct err *err)
{
    const struct rows *r = c->param;
    const int64_t *row = c->save;
    const float *u, *before = before_at(c);
    float *g, *du = c->din[2] != NULL ? c->din[2]->data : NULL;
    bool add = op_adds(c, 2);
    size_t i, k;

    (void)err;
    if (c->dout[0] == NULL) {
        op_bwd_zero(c);
        return 0;
    }
    u = c->in[2]->data;
    g = op_din_at(c, 0, c->scratch);
    memcpy(g, c->dout[0]->data, tensor_bytes(c->dout[0]));
    for (i = r->n; i-- > 0;) {
        for (k = 0; k < r->width; k++) {
            size_t at = i * r->width + k;
            bool reads = r->reduction >= SCATTER_MUL;
            float d = undo((enum scatter_reduction)r->reduction, &g[(size_t)row[i] * r->width + k],
                           reads ? u[at] : 0, reads ? before[at] : 0);

            if (du != NULL)
                du[at] = add ? du[at] + d : d;
        }
    }
    op_din_done(c, 0, g, 1.0f);
    return 0;
}

static int elements_fwd(const struct op_call *c, struct err *err)
{
    return fwd(c, "ScatterElements", err);
}

static int elements_refuse(const struct op_call *c, size_t at, int64_t value, struct err *err)
{
    return rows_refuse(c, "ScatterElements", at, value, err);
}

static int nd_fwd(const struct op_call *c, struct err *err)
{
    return fwd(c, "ScatterND", err);
}

static int nd_refuse(const struct op_call *c, size_t at, int64_t value, struct err *err)
{
    return rows_refuse(c, "ScatterND", at, value, err);
}

static const char *const scatter_attrs[] = { "axis", NULL };
static const char *const elements_attrs[] = { "axis", "reduction", NULL };
static const char *const nd_attrs[] = { "reduction", NULL };

#define FIELDS                                                                                     \
    .n_in = { 3, 3 }, .n_out = { 1, 1 }, .param_bytes = sizeof(struct rows),                       \
    .diff = OP_IN(0) | OP_IN(2), .bwd_reads = OP_IN(2), .in_place = true,                          \
    .layout = OP_LAYOUT_PLAIN

const struct op_def op_scatter_elements = { FIELDS, .name = "ScatterElements", .since = 11,
                                            .attrs = elements_attrs, .infer = elements_infer,
                                            .refuse = elements_refuse,
                                            .cpu = { plan, elements_fwd, bwd, NULL } };
const struct op_def op_scatter = { FIELDS, .name = "Scatter", .since = 9, .until = 10,
                                   .attrs = scatter_attrs, .infer = elements_infer,
                                   .refuse = elements_refuse,
                                   .cpu = { plan, elements_fwd, bwd, NULL } };
const struct op_def op_scatter_nd = { FIELDS, .name = "ScatterND", .since = 11, .attrs = nd_attrs,
                                      .infer = nd_infer, .refuse = nd_refuse,
                                      .cpu = { plan, nd_fwd, bwd, NULL } };
