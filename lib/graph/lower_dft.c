/* lower_dft.c - lowers DFT (opset 17; 20: the axis is an input) to a product with the matrix of
 * roots of unity, so that its gradient and its GPU kernels are those of MatMul.
 *
 *   x [..., n, ..., 1 or 2]   real, or real and imaginary parts; dft_length truncates or pads the
 *                             axis to length L
 *   y [..., m, ..., 2]        m = L, or L / 2 + 1 for onesided
 *   y_j = sum over k of x_k e^(-2 pi i j k / L); inverse: e^(+...), divided by L
 *   inverse and onesided: x is the first half of a spectrum, the result has L (or 2 n - 2) real
 *   numbers. Elements other than k = 0 and k = L / 2 count twice, because the other half is absent
 *
 * In a plan of 16 bits the product has 16 bits, as all products have. The axis is moved before the
 * parts: [rows, n parts] times [n parts, 2 m]. */
#include "graph/plan_lower.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/err.h"

static const int64_t matrix_max = (int64_t)1 << 26; /* maximum number of floats of the matrix */

struct dft {
    struct lowering *l;
    uint32_t x, rank;
    int64_t axis, n, length, m; /* size of the axis: of x, transformed, of y */
    int64_t parts, parts_out;   /* numbers per element of x and of y: 1 or 2 */
    int64_t inverse, onesided;
};

/* Reads the integer of input i; keeps the default if it is absent. */
static void read_int(struct lowering *l, uint32_t i, const char *what, int64_t *out)
{
    uint32_t value = lower_in(l, i);
    const struct plan_value *v;

    if (value == GRAPH_NONE || l->rc < 0)
        return;
    v = &l->p->values.at[value];
    if (!plan_is_known(v) || tensor_elements(&v->tensor) != 1 ||
        (v->tensor.dtype != TENSOR_I64 && v->tensor.dtype != TENSOR_I32)) {
        LOWER_ERROR(l, ERR_UNSUPPORTED, "%s is not an integer that is known once the shapes are",
                    what);
        return;
    }
    *out = v->tensor.dtype == TENSOR_I64 ? *(const int64_t *)v->tensor.data
                                         : *(const int32_t *)v->tensor.data;
}

static void read_node(struct dft *d)
{
    struct lowering *l = d->l;
    const struct tensor *x;
    int64_t rank;
    bool is_input = l->attrs.opset >= 20;

    d->x = lower_in(l, 0);
    d->axis = is_input ? -2 : 1;
    l->rc = d->x == GRAPH_NONE ? op_error(&l->attrs, ERR_INPUT, l->err, "input 0 is missing") : 0;
    if (l->rc == 0)
        l->rc = op_attr_i(&l->attrs, "inverse", 0, &d->inverse, l->err);
    if (l->rc == 0)
        l->rc = op_attr_i(&l->attrs, "onesided", 0, &d->onesided, l->err);
    if (l->rc == 0 && !is_input)
        l->rc = op_attr_i(&l->attrs, "axis", 1, &d->axis, l->err);
    if (l->rc == 0 && is_input)
        read_int(l, 2, "the axis", &d->axis);
    if (l->rc < 0)
        return;
    x = lower_tensor(l, d->x);
    rank = x->shape.rank;
    if (x->dtype != TENSOR_F32 || rank < 2 || x->shape.dim[rank - 1] < 1 ||
        x->shape.dim[rank - 1] > 2) {
        LOWER_ERROR(l, ERR_UNSUPPORTED, "input 0 is %s of %" PRId64 " dimensions; expected float32 "
                    "of at least 2, the last of them 1 or 2", tensor_dtype_name(x->dtype), rank);
        return;
    }
    d->axis += d->axis < 0 ? rank : 0;
    if (d->axis < 0 || d->axis >= rank - 1) {
        LOWER_ERROR(l, ERR_INPUT, "the axis is %" PRId64 " of %" PRId64
                    " dimensions, the last of which holds real and imaginary parts", d->axis, rank);
        return;
    }
    d->rank = (uint32_t)rank;
    d->parts = x->shape.dim[rank - 1];
    d->n = d->length = x->shape.dim[d->axis];
    if (d->inverse != 0 && d->onesided != 0)
        d->length = 2 * (d->n - 1);
    read_int(l, 1, "dft_length", &d->length);
    if (l->rc < 0)
        return;
    d->m = d->onesided != 0 && d->inverse == 0 ? d->length / 2 + 1 : d->length;
    d->parts_out = d->onesided != 0 && d->inverse != 0 ? 1 : 2;
    if (d->n < 1 || d->length < 1 || d->length > matrix_max ||
        d->n * d->parts > matrix_max / (2 * d->m))
        LOWER_ERROR(l, ERR_UNSUPPORTED, "transforms %" PRId64 " elements as %" PRId64
                    "; expected at least 1, and a matrix of at most 2^26 numbers",
                    d->n, d->length);
    else if (d->onesided != 0 && (d->inverse != 0) != (d->parts == 2))
        LOWER_ERROR(l, ERR_INPUT, "onesided with %s input; expected real input, or complex input for "
                    "the inverse", d->parts == 2 ? "complex" : "real");
}

/* The matrix [n parts, m parts_out]; elements beyond the length, or beyond the half of a spectrum,
 * are ignored. */
static uint32_t roots(struct dft *d)
{
    struct shape shape = shape_of(2, d->n * d->parts, d->m * d->parts_out);
    const double turn = 2 * acos(-1) / (double)d->length;
    double scale = d->inverse != 0 ? 1 / (double)d->length : 1, sign = d->inverse != 0 ? 1 : -1;
    bool is_half = d->parts_out == 1;
    int64_t used = is_half ? d->length / 2 + 1 : d->length, row = d->m * d->parts_out, j, k;
    void *data;
    uint32_t value = lower_constant(d->l, TENSOR_F32, &shape, &data);
    float *w = value != GRAPH_NONE ? data : NULL;

    if (w == NULL)
        return GRAPH_NONE;
    memset(w, 0, (size_t)shape_elements(&shape) * sizeof(*w));
    for (k = 0; k < d->n && k < used; k++)
        for (j = 0; j < d->m; j++) {
            double angle = turn * (double)(j * k % d->length);
            double times = is_half && k != 0 && 2 * k != d->length ? 2 * scale : scale;
            float c = (float)(times * cos(angle)), s = (float)(sign * times * sin(angle));
            float *real = w + k * d->parts * row + j * d->parts_out, *imaginary = real + row;

            real[0] = c;
            if (!is_half)
                real[1] = s;
            if (d->parts == 2)
                imaginary[0] = -s;
            if (d->parts == 2 && !is_half)
                imaginary[1] = c;
        }
    return value;
}

void lower_dft(struct lowering *l)
{
    struct dft d = { .l = l };
    int64_t perm[TENSOR_MAX_RANK], back[TENSOR_MAX_RANK], dim[TENSOR_MAX_RANK], flat[2];
    struct shape shape;
    uint32_t y, w, k, at = 0;

    read_node(&d);
    if (l->rc < 0)
        return;
    shape = lower_tensor(l, d.x)->shape;
    for (k = 0; k < d.rank - 1; k++)
        if (k != (uint64_t)d.axis)
            perm[at++] = k;
    perm[d.rank - 2] = d.axis;
    perm[d.rank - 1] = d.rank - 1;
    for (k = 0, flat[0] = 1; k < d.rank; k++) {
        back[perm[k]] = k;
        dim[k] = shape.dim[perm[k]];
        flat[0] *= k < d.rank - 2 ? dim[k] : 1;
    }
    flat[1] = d.n * d.parts;
    dim[d.rank - 2] = d.m;
    dim[d.rank - 1] = d.parts_out;
    w = roots(&d);
    y = d.axis == (int64_t)d.rank - 2 ? d.x : lower_transpose(l, d.x, perm, d.rank);
    y = l->rc == 0 ? lower_reshape(l, y, flat, 2) : y;
    y = lower_op(l, "MatMul", y, w, GRAPH_NONE);
    y = l->rc == 0 ? lower_reshape(l, y, dim, d.rank) : y;
    if (d.axis != (int64_t)d.rank - 2)
        y = lower_transpose(l, y, back, d.rank);
    lower_out(l, 0, y);
}
