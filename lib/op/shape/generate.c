/* generate.c - ops that generate tensors from small inputs:
 *   ConstantOfShape (9)  the attribute `value` (default float32 0), in a constant shape
 *   Range (11)           start, start + delta, ... before limit; three constants
 *   EyeLike (9)          1 on diagonal k, 0 elsewhere, in the shape of a matrix
 *   NonZero (9)          the indices [rank, count] of the elements of a constant that are not 0
 *   OneHot (9, 11)       `values`[1] at each index along a new axis, `values`[0] elsewhere
 * No gradients. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/err.h"
#include "op/op_priv.h"
#include "op/shape/generate.h"

static double number_at(const struct tensor *t, size_t i)
{
    switch ((int)t->dtype) {
    case TENSOR_F32: return (double)((const float *)t->data)[i];
    case TENSOR_F64: return ((const double *)t->data)[i];
    case TENSOR_I32: return ((const int32_t *)t->data)[i];
    case TENSOR_I64: return (double)((const int64_t *)t->data)[i];
    default: return ((const uint8_t *)t->data)[i]; /* bool, uint8 */
    }
}

static bool is_number(enum tensor_dtype t)
{
    return t == TENSOR_F32 || t == TENSOR_I32 || t == TENSOR_I64;
}

static int type_error(struct op_infer *f, uint32_t i, struct err *err)
{
    return op_error(f, ERR_UNSUPPORTED, err, "input %" PRIu32 " is %s; supported are float32, "
                    "int32, int64", i, tensor_dtype_name(f->in[i]->dtype));
}

/* ---- ConstantOfShape ---- */

static int filler_infer(struct op_infer *f, struct err *err)
{
    struct filler *p = f->param;
    const struct tensor *value;
    const int64_t *dims;
    size_t n, k;
    int rc = op_attr_tensor(f, "value", &value, err);

    if (rc == 0)
        rc = op_const_ints(f, 0, &dims, &n, err);
    if (rc < 0)
        return rc;
    if (value != NULL && (tensor_elements(value) != 1 || value->data == NULL))
        return op_error(f, ERR_INPUT, err, "attribute 'value' is not one number");
    if (dims == NULL || n > TENSOR_MAX_RANK)
        return op_error(f, ERR_INPUT, err, "a shape of %zu dimensions; expected one of up to %d", n,
                        TENSOR_MAX_RANK);
    f->out[0].dtype = value != NULL ? value->dtype : TENSOR_F32;
    p->size = tensor_dtype_bytes(f->out[0].dtype);
    if (value != NULL)
        memcpy(p->value, value->data, p->size);
    f->out[0].shape.rank = (uint32_t)n;
    for (k = 0; k < n; k++) {
        if (dims[k] < 0)
            return op_error(f, ERR_INPUT, err, "the shape has %" PRId64 " at %zu", dims[k], k);
        f->out[0].shape.dim[k] = dims[k];
    }
    return op_check_size(f, err);
}

static int filler_fwd(const struct op_call *c, struct err *err)
{
    const struct filler *p = c->param;
    size_t n = (size_t)tensor_elements(c->out[0]), i;
    char *y = c->out[0]->data;

    (void)err;
    for (i = 0; i < n; i++)
        memcpy(y + i * p->size, p->value, p->size);
    return 0;
}

static const char *const value_attr[] = { "value", NULL };

const struct op_def op_constant_of_shape = {
    .name = "ConstantOfShape",
    .since = 9,
    .n_in = { 1, 1 },
    .n_out = { 1, 1 },
    .attrs = value_attr,
    .param_bytes = sizeof(struct filler),
    .infer = filler_infer,
    .layout = OP_LAYOUT_PLAIN,
    .cpu = { .fwd = filler_fwd },
};

/* ---- Range ---- */

static int range_infer(struct op_infer *f, struct err *err)
{
    double x[3], n;
    uint32_t i;

    for (i = 0; i < 3; i++) {
        int rc = f->in[i] == NULL || f->in[0] == NULL
                     ? op_error(f, ERR_INPUT, err, "input %" PRIu32 " is missing", i)
                     : op_check_input(f, i, f->in[0]->dtype, -1, err);

        if (rc < 0)
            return rc;
        if (!is_number(f->in[i]->dtype) && f->in[i]->dtype != TENSOR_F64)
            return type_error(f, i, err);
        if (tensor_elements(f->in[i]) != 1 || f->in[i]->data == NULL)
            return op_error(f, ERR_UNSUPPORTED, err, "input %" PRIu32 " is not one constant "
                            "number of the model", i);
        x[i] = number_at(f->in[i], 0);
    }
    n = ceil((x[1] - x[0]) / x[2]);
    if (x[2] == 0 || isnan(n) || n > 0x1p40)
        return op_error(f, ERR_INPUT, err, "from %g to %g by %g is infinite", x[0], x[1], x[2]);
    f->out[0].dtype = f->in[0]->dtype;
    f->out[0].shape = shape_of(1, n > 0 ? (int64_t)n : (int64_t)0);
    return 0;
}

static int range_fwd(const struct op_call *c, struct err *err)
{
    size_t n = (size_t)tensor_elements(c->out[0]), i;
    const void *start = c->in[0]->data, *delta = c->in[2]->data;
    void *y = c->out[0]->data;

    (void)err;
    for (i = 0; i < n; i++) {
        if (c->out[0]->dtype == TENSOR_F32)
            ((float *)y)[i] = *(const float *)start + (float)i * *(const float *)delta;
        else if (c->out[0]->dtype == TENSOR_F64)
            ((double *)y)[i] = *(const double *)start + (double)i * *(const double *)delta;
        else if (c->out[0]->dtype == TENSOR_I32)
            ((uint32_t *)y)[i] = *(const uint32_t *)start + (uint32_t)i * *(const uint32_t *)delta;
        else
            ((uint64_t *)y)[i] = *(const uint64_t *)start + (uint64_t)i * *(const uint64_t *)delta;
    }
    return 0;
}

const struct op_def op_range = {
    .name = "Range",
    .since = 11,
    .n_in = { 3, 3 },
    .n_out = { 1, 1 },
    .infer = range_infer,
    .layout = OP_LAYOUT_PLAIN,
    .cpu = { .fwd = range_fwd },
};

/* ---- EyeLike ---- */

static int eye_infer(struct op_infer *f, struct err *err)
{
    struct eye *e = f->param;
    int64_t dtype;
    int rc = op_attr_i(f, "k", 0, &e->k, err);

    if (rc < 0)
        return rc;
    if (f->in[0] == NULL || f->in[0]->shape.rank != 2)
        return op_error(f, ERR_INPUT, err, "input 0 is not a matrix");
    rc = op_attr_i(f, "dtype", f->in[0]->dtype, &dtype, err);
    if (rc < 0)
        return rc;
    if (dtype != TENSOR_F32 && dtype != TENSOR_I32 && dtype != TENSOR_I64 && dtype != TENSOR_BOOL &&
        dtype != TENSOR_F64)
        return op_error(f, ERR_UNSUPPORTED, err, "type %" PRId64 "; supported are float32, int32, "
                        "int64, bool, float64", dtype);
    f->out[0].dtype = (enum tensor_dtype)dtype;
    f->out[0].shape = f->in[0]->shape;
    return 0;
}

static int eye_fwd(const struct op_call *c, struct err *err)
{
    static const float one = 1;
    static const double wide = 1;
    static const int64_t whole = 1; /* its first bytes are a 1 of smaller width: little endian, as
                                       in ONNX */
    const struct eye *e = c->param;
    size_t size = tensor_dtype_bytes(c->out[0]->dtype);
    int64_t rows = c->out[0]->shape.dim[0], cols = c->out[0]->shape.dim[1], i, at;
    char *y = c->out[0]->data;

    (void)err;
    memset(y, 0, tensor_bytes(c->out[0]));
    for (i = 0; i < rows && e->k < cols && e->k > -rows; i++) {
        at = i + e->k;
        if (at >= 0 && at < cols)
            memcpy(y + (size_t)(i * cols + at) * size,
                   c->out[0]->dtype == TENSOR_F32   ? (const void *)&one
                   : c->out[0]->dtype == TENSOR_F64 ? (const void *)&wide
                                                    : &whole,
                   size);
    }
    return 0;
}

static const char *const eye_attrs[] = { "dtype", "k", NULL };

const struct op_def op_eye_like = {
    .name = "EyeLike",
    .since = 9,
    .n_in = { 1, 1 },
    .n_out = { 1, 1 },
    .attrs = eye_attrs,
    .param_bytes = sizeof(struct eye),
    .infer = eye_infer,
    .of_shape = true,
    .layout = OP_LAYOUT_PLAIN,
    .cpu = { .fwd = eye_fwd },
};

/* ---- NonZero ---- */

static int non_zero_infer(struct op_infer *f, struct err *err)
{
    const struct tensor *x = f->in[0];
    int64_t n = 0, k;

    if (x == NULL)
        return op_error(f, ERR_INPUT, err, "input 0 is missing");
    if (!is_number(x->dtype) && x->dtype != TENSOR_BOOL)
        return type_error(f, 0, err);
    if (x->data == NULL)
        return op_error(f, ERR_UNSUPPORTED, err, "the input is computed by the graph; it must be a "
                        "constant of the model, as it determines the shape");
    for (k = 0; k < tensor_elements(x); k++)
        n += number_at(x, (size_t)k) != 0;
    f->out[0].dtype = TENSOR_I64;
    f->out[0].shape = shape_of(2, (int64_t)x->shape.rank, n);
    return 0;
}

static int non_zero_fwd(const struct op_call *c, struct err *err)
{
    const struct tensor *x = c->in[0];
    size_t n = (size_t)tensor_elements(x), m = (size_t)c->out[0]->shape.dim[1], at = 0, i;
    int64_t *y = c->out[0]->data;
    uint32_t k;

    (void)err;
    for (i = 0; i < n; i++) {
        size_t rest = i;

        if (number_at(x, i) == 0)
            continue;
        for (k = x->shape.rank; k-- > 0; rest /= (size_t)x->shape.dim[k])
            y[k * m + at] = (int64_t)(rest % (size_t)x->shape.dim[k]);
        at++;
    }
    return 0;
}

const struct op_def op_non_zero = {
    .name = "NonZero",
    .since = 9,
    .n_in = { 1, 1 },
    .n_out = { 1, 1 },
    .infer = non_zero_infer,
    .layout = OP_LAYOUT_PLAIN,
    .cpu = { .fwd = non_zero_fwd },
};

/* ---- OneHot ---- */

static int one_hot_infer(struct op_infer *f, struct err *err)
{
    struct one_hot *p = f->param;
    const struct shape *at;
    struct shape *y = &f->out[0].shape;
    int64_t axis, depth;
    uint32_t k;
    int rc = op_attr_i(f, "axis", -1, &axis, err);

    if (rc < 0)
        return rc;
    for (k = 0; k < 3; k++)
        if (f->in[k] == NULL)
            return op_error(f, ERR_INPUT, err, "input %" PRIu32 " is missing", k);
    for (k = 0; k < 2; k++)
        if (!is_number(f->in[k]->dtype))
            return type_error(f, k, err);
    if (tensor_elements(f->in[1]) != 1 || f->in[1]->data == NULL)
        return op_error(f, ERR_UNSUPPORTED, err, "the depth is not one constant number");
    if (tensor_elements(f->in[2]) != 2)
        return op_error(f, ERR_INPUT, err, "values has %" PRId64 " elements; expected 2",
                        tensor_elements(f->in[2]));
    at = &f->in[0]->shape;
    if (at->rank == TENSOR_MAX_RANK)
        return op_error(f, ERR_UNSUPPORTED, err,
                        "the indices have %d dimensions; at most %d are supported", TENSOR_MAX_RANK,
                        TENSOR_MAX_RANK - 1);
    rc = op_axis(f, &axis, at->rank + 1, err);
    if (rc < 0)
        return rc;
    if (!(number_at(f->in[1], 0) >= 1 && number_at(f->in[1], 0) <= 0x1p40))
        return op_error(f, ERR_INPUT, err, "the depth is %g; expected 1 or more",
                        number_at(f->in[1], 0));
    depth = (int64_t)number_at(f->in[1], 0);
    f->out[0].dtype = f->in[2]->dtype;
    y->rank = at->rank + 1;
    *p = (struct one_hot){ 1, (size_t)depth, 1, f->def->until == 0 };
    for (k = 0; k < y->rank; k++) {
        y->dim[k] = k < axis ? at->dim[k] : k == axis ? depth : at->dim[k - 1];
        *(k < axis ? &p->outer : k == axis ? &(size_t){ 1 } : &p->inner) *= (size_t)y->dim[k];
    }
    return op_check_size(f, err);
}

static int one_hot_fwd(const struct op_call *c, struct err *err)
{
    const struct one_hot *p = c->param;
    size_t size = tensor_dtype_bytes(c->out[0]->dtype), n = (size_t)tensor_elements(c->out[0]);
    size_t each = (size_t)tensor_elements(c->in[0]), i;
    const char *values = c->in[2]->data;
    char *y = c->out[0]->data;

    (void)err;
    for (i = 0; i < n; i++)
        memcpy(y + i * size, values, size);
    for (i = 0; i < each; i++) { /* an index out of range sets no element */
        double v = number_at(c->in[0], i), depth = (double)p->depth;
        size_t o = i / p->inner, j = i % p->inner;

        if (v >= (p->counts_back ? -depth : 0) && v < depth)
            memcpy(y + ((o * p->depth + (size_t)(v < 0 ? v + depth : v)) * p->inner + j) * size,
                   values + size, size);
    }
    return 0;
}

static const char *const axis_attr[] = { "axis", NULL };

#define ONE_HOT                                                                                    \
    .name = "OneHot", .n_in = { 3, 3 }, .n_out = { 1, 1 }, .attrs = axis_attr,                     \
    .param_bytes = sizeof(struct one_hot), .infer = one_hot_infer, .layout = OP_LAYOUT_PLAIN,      \
    .cpu = { .fwd = one_hot_fwd }

const struct op_def op_one_hot = { ONE_HOT, .since = 11 };
const struct op_def op_one_hot_9 = { ONE_HOT, .since = 9, .until = 10 };
