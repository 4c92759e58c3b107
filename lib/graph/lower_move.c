/* lower_move.c - lowers ops that move elements to other rows. All pass gradients.
 *
 *   CenterCropPad (18)      Slice and Pad around the middle
 *   Col2Im (18)             ConvTranspose with one weight of 1 for each position of the block
 *   Compress (9)            Gather of the selected positions, which must be known
 *   MaxUnpool (9)           ScatterElements to zeros; output_shape adds zeros at the end
 *   ReverseSequence (10)    GatherElements
 *   AffineGrid (20)         MatMul of the grid [positions, x y (z) 1] with theta
 *   Hardmax (1, 13)         OneHot of ArgMax
 *   LpNormalization (1)     x / ReduceL1 or ReduceL2; 0 where the norm is 0
 *   MeanVarianceNormalization (9)   (x - mean) / (deviation + 1e-9) */
#include "graph/lower_kit.h"

#include <inttypes.h>
#include <string.h>

#include "base/err.h"

enum {
    BLOCK_MAX = 4096, /* maximum elements of a block of Col2Im; its weights have the square of it */
    PLACES_MAX = 1 << 24, /* maximum positions of AffineGrid */
};

static struct shape list_shape(uint32_t rank, int64_t dim)
{
    struct shape s = { .rank = rank };

    for (uint32_t k = 0; k < rank; k++)
        s.dim[k] = dim;
    return s;
}

/* ---- CenterCropPad ---- */

void lower_center_crop_pad(struct lowering *l)
{
    const struct tensor *x = kit_input(l, 0, TENSOR_NONE);
    int64_t first[TENSOR_MAX_RANK] = { 0 }, last[TENSOR_MAX_RANK], pads[2 * TENSOR_MAX_RANK] = { 0 };
    const int64_t *wanted = NULL, *axes = NULL;
    size_t n = 0, n_axes = 0, i;
    uint32_t rank, y;

    if (x == NULL || !kit_known(l, 1, &wanted, &n))
        return;
    rank = x->shape.rank;
    l->rc = op_attr_ints(&l->attrs, "axes", &axes, &n_axes, l->err);
    if (l->rc == 0 && n != (axes != NULL ? n_axes : rank))
        LOWER_ERROR(l, ERR_INPUT, "shape has %zu numbers; expected %zu", n,
                    axes != NULL ? n_axes : rank);
    memcpy(last, x->shape.dim, sizeof(last));
    for (i = 0; i < n && l->rc == 0; i++) {
        int64_t axis = axes != NULL ? axes[i] : (int64_t)i, have;

        if (!kit_check_axis(l, &axis, rank))
            return;
        have = x->shape.dim[axis];
        if (wanted[i] < 0 || wanted[i] > INT32_MAX)
            LOWER_ERROR(l, ERR_INPUT, "shape has %" PRId64 " at %zu", wanted[i], i);
        else if (wanted[i] < have)
            first[axis] = (have - wanted[i]) / 2, last[axis] = first[axis] + wanted[i];
        else
            pads[axis] = (wanted[i] - have) / 2, pads[rank + axis] = wanted[i] - have - pads[axis];
    }
    y = kit_op(l, "Slice", lower_in(l, 0), kit_ints(l, first, rank), kit_ints(l, last, rank));
    y = kit_op(l, "Pad", y, kit_ints(l, pads, 2 * rank), GRAPH_NONE);
    lower_out(l, 0, y);
}

/* ---- Col2Im ---- */

/* Computes the shapes of a transposed convolution: its input from [n, c prod(block), positions];
 * *out: its output, [n c, 1, image]. */
static bool col2im_shapes(struct lowering *l, const int64_t *image, const int64_t *block, size_t n,
                          struct shape *in, struct shape *weight, struct shape *out, int64_t *more,
                          int64_t *channels)
{
    const struct shape *x = &lower_tensor(l, lower_in(l, 0))->shape;
    const int64_t *dilation = NULL, *stride = NULL, *pad = NULL;
    size_t n_dilation = 0, n_stride = 0, n_pad = 0, k;
    int64_t kernel = 1, places = 1;

    l->rc = op_attr_ints(&l->attrs, "dilations", &dilation, &n_dilation, l->err);
    if (l->rc == 0)
        l->rc = op_attr_ints(&l->attrs, "strides", &stride, &n_stride, l->err);
    if (l->rc == 0)
        l->rc = op_attr_ints(&l->attrs, "pads", &pad, &n_pad, l->err);
    if (l->rc < 0)
        return false;
    if (x->rank != 3 || n < 1 || n > 3 || (dilation != NULL && n_dilation != n) ||
        (stride != NULL && n_stride != n) || (pad != NULL && n_pad != 2 * n)) {
        LOWER_ERROR(
            l, ERR_UNSUPPORTED,
            "expected [n, c, places], 1 to 3 axes of images, and as many of each attribute");
        return false;
    }
    in->rank = weight->rank = out->rank = (uint32_t)n + 2;
    for (k = 0; k < n; k++) {
        int64_t step = stride != NULL ? stride[k] : 1, apart = dilation != NULL ? dilation[k] : 1;
        int64_t around = pad != NULL ? pad[k] + pad[n + k] : 0, room;

        if (image[k] < 1 || block[k] < 1 || image[k] > INT32_MAX || block[k] > 65535 || step < 1 ||
            step > 65535 || apart < 1 || apart > 65535 || around < 0 || around > 131070) {
            LOWER_ERROR(l, ERR_INPUT,
                        "an image of %" PRId64 " with blocks of %" PRId64 " along axis %zu",
                        image[k], block[k], k);
            return false;
        }
        room = image[k] + around - apart * (block[k] - 1) - 1;
        in->dim[2 + k] = room < 0 ? 0 : room / step + 1;
        more[k] = room < 0 ? 0 : room % step;
        weight->dim[2 + k] = block[k];
        out->dim[2 + k] = image[k];
        kernel *= block[k];
        places *= in->dim[2 + k];
    }
    if (kernel > BLOCK_MAX) {
        LOWER_ERROR(l, ERR_UNSUPPORTED, "a block of %" PRId64 " elements; expected at most %d",
                    kernel, BLOCK_MAX);
        return false;
    }
    if (x->dim[1] % kernel != 0 || places != x->dim[2]) {
        LOWER_ERROR(l, ERR_INPUT, "%" PRId64 " columns of %" PRId64 " elements; expected %" PRId64
                    " columns of a multiple of %" PRId64, x->dim[2], x->dim[1], places, kernel);
        return false;
    }
    *channels = x->dim[1] / kernel;
    in->dim[0] = out->dim[0] = x->dim[0] * *channels;
    in->dim[1] = weight->dim[0] = kernel;
    weight->dim[1] = out->dim[1] = 1;
    return true;
}

void lower_col2im(struct lowering *l)
{
    const int64_t *image = NULL, *block = NULL;
    size_t n = 0, n_block = 0, k;
    struct shape in = { 0 }, weight = { 0 }, out = { 0 };
    int64_t more[3], kernel, samples, channels = 0;
    struct op_attr attrs[4];
    uint32_t n_attrs = 0, w, y;
    void *data = NULL;

    if (kit_input(l, 0, TENSOR_F32) == NULL || !kit_known(l, 1, &image, &n) ||
        !kit_known(l, 2, &block, &n_block))
        return;
    if (n != n_block)
        LOWER_ERROR(l, ERR_INPUT, "image_shape has %zu numbers, block_shape %zu", n, n_block);
    if (l->rc < 0 || !col2im_shapes(l, image, block, n, &in, &weight, &out, more, &channels))
        return;
    kernel = weight.dim[0];
    samples = lower_tensor(l, lower_in(l, 0))->shape.dim[0];
    w = lower_constant(l, TENSOR_F32, &weight, &data);
    for (int64_t i = 0; l->rc == 0 && i < kernel; i++)
        for (int64_t j = 0; j < kernel; j++)
            ((float *)data)[i * kernel + j] = i == j ? 1.0f : 0.0f;
    for (k = 0; k < l->attrs.n_attrs && n_attrs < 3; k++)
        attrs[n_attrs++] = l->attrs.attrs[k]; /* dilations, pads, strides: the same as in
                                                 ConvTranspose */
    attrs[n_attrs++] = (struct op_attr){ .name = "output_padding", .type = OP_ATTR_INTS, .n = n,
                                         .ints = lower_ints(l, more, n) };
    y = kit_reshape(l, lower_in(l, 0), &in);
    y = kit_node(l, "ConvTranspose", y, w, GRAPH_NONE, attrs, n_attrs);
    out.dim[0] = samples;
    out.dim[1] = channels;
    lower_out(l, 0, kit_reshape(l, y, &out));
}

/* ---- Compress ---- */

void lower_compress(struct lowering *l)
{
    const struct tensor *x = kit_input(l, 0, TENSOR_NONE),
                        *condition = kit_input(l, 1, TENSOR_BOOL);
    const struct shape flat = { .rank = 1, .dim = { -1 } };
    int64_t axis = 0, *places, dim, n, i;
    uint32_t from = lower_in(l, 0), kept = 0;
    bool has_axis = false;

    for (uint32_t k = 0; k < l->attrs.n_attrs; k++)
        has_axis = has_axis || strcmp(l->attrs.attrs[k].name, "axis") == 0;
    if (x == NULL || condition == NULL)
        return;
    if (!plan_is_known(&l->p->values.at[lower_in(l, 1)]))
        LOWER_ERROR(l, ERR_UNSUPPORTED, "the condition depends on the data; expected a constant of the model, "
                    "because the shape depends on it");
    if (has_axis)
        axis = kit_axis(l, "axis", 0, x->shape.rank);
    if (l->rc < 0)
        return;
    dim = has_axis ? x->shape.dim[axis] : tensor_elements(x);
    n = tensor_elements(condition);
    places = arena_array(&l->p->mem, (size_t)n, sizeof(*places));
    if (places == NULL) {
        l->rc = plan_no_memory(l->err);
        return;
    }
    for (i = 0; i < n && i < dim; i++)
        if (((const uint8_t *)condition->data)[i] != 0)
            places[kept++] = i;
    if (kept == 0)
        LOWER_ERROR(l, ERR_UNSUPPORTED, "the condition selects no element");
    if (!has_axis)
        from = kit_reshape(l, from, &flat);
    lower_out(l, 0,
              kit_op_int(l, "Gather", from, kit_ints(l, places, kept), GRAPH_NONE, "axis", axis));
}

/* ---- MaxUnpool ---- */

void lower_max_unpool(struct lowering *l)
{
    const struct tensor *x = kit_input(l, 0, TENSOR_F32), *places = kit_input(l, 1, TENSOR_I64);
    const int64_t *kernel = NULL, *stride = NULL, *pad = NULL, *wanted = NULL;
    int64_t pads[2 * TENSOR_MAX_RANK] = { 0 };
    size_t n = 0, n_stride = 0, n_pad = 0, n_wanted = 0;
    struct shape out, flat = list_shape(1, -1);
    uint32_t zeros, y, k;
    void *data;

    if (x == NULL || places == NULL)
        return;
    l->rc = op_attr_ints(&l->attrs, "kernel_shape", &kernel, &n, l->err);
    if (l->rc == 0)
        l->rc = op_attr_ints(&l->attrs, "strides", &stride, &n_stride, l->err);
    if (l->rc == 0)
        l->rc = op_attr_ints(&l->attrs, "pads", &pad, &n_pad, l->err);
    if (!kit_known(l, 2, &wanted, &n_wanted))
        return;
    out = x->shape;
    if (out.rank < 3 || n != out.rank - 2 || (stride != NULL && n_stride != n) ||
        (pad != NULL && n_pad != 2 * n) || (wanted != NULL && n_wanted != out.rank) ||
        !shape_equal(&places->shape, &x->shape)) {
        LOWER_ERROR(l, ERR_INPUT, "expected [n, c, places], indices of the same shape, and kernel_shape, strides, pads "
                    "and output_shape to fit them");
        return;
    }
    for (k = 0; k < n; k++) {
        int64_t step = stride != NULL ? stride[k] : 1;

        if (kernel[k] < 1 || kernel[k] > 65535 || step < 1 || step > 65535 ||
            x->shape.dim[k + 2] > 1 << 24)
            LOWER_ERROR(l, ERR_INPUT, "kernel %" PRId64 " with stride %" PRId64, kernel[k], step);
        out.dim[k + 2] =
            (x->shape.dim[k + 2] - 1) * step + kernel[k] - (pad != NULL ? pad[k] + pad[n + k] : 0);
    }
    for (k = 0; k < out.rank && wanted != NULL; k++) /* the indices refer to the shape without
                                                        output_shape */
        pads[out.rank + k] = wanted[k] - out.dim[k];
    for (k = 0; k < out.rank && l->rc == 0; k++)
        if (out.dim[k] < 1 || pads[out.rank + k] < 0)
            LOWER_ERROR(l, ERR_UNSUPPORTED,
                        "axis %" PRIu32 " of the output would have %" PRId64 " elements", k,
                        out.dim[k] + pads[out.rank + k]);
    if (l->rc < 0)
        return;
    flat.dim[0] = shape_elements(&out);
    if (flat.dim[0] < 0 || flat.dim[0] > (int64_t)1 << 30) {
        LOWER_ERROR(l, ERR_INPUT, "the output is too large");
        return;
    }
    zeros = lower_constant(l, TENSOR_F32, &flat, &data);
    if (l->rc == 0)
        memset(data, 0, (size_t)flat.dim[0] * sizeof(float));
    flat.dim[0] = -1;
    y = kit_op_int(l, "ScatterElements", zeros, kit_reshape(l, lower_in(l, 1), &flat),
                   kit_reshape(l, lower_in(l, 0), &flat), "axis", 0);
    y = kit_reshape(l, y, &out);
    if (wanted != NULL)
        y = kit_op(l, "Pad", y, kit_ints(l, pads, 2 * out.rank), GRAPH_NONE);
    lower_out(l, 0, y);
}

/* ---- ReverseSequence ---- */

void lower_reverse_sequence(struct lowering *l)
{
    const struct tensor *x = kit_input(l, 0, TENSOR_NONE), *lengths = kit_input(l, 1, TENSOR_I64);
    int64_t batch_axis, time_axis, *steps, i;
    struct shape along, across;
    uint32_t t, t1, n, at, shape;

    if (x == NULL || lengths == NULL)
        return;
    batch_axis = kit_axis(l, "batch_axis", 1, x->shape.rank);
    time_axis = kit_axis(l, "time_axis", 0, x->shape.rank);
    if (l->rc < 0)
        return;
    if (batch_axis == time_axis || lengths->shape.rank != 1 ||
        lengths->shape.dim[0] != x->shape.dim[batch_axis] || x->shape.dim[time_axis] > 1 << 24) {
        LOWER_ERROR(l, ERR_INPUT, "batch_axis %" PRId64 ", time_axis %" PRId64 "; expected two axes and a length for each "
                    "sample", batch_axis, time_axis);
        return;
    }
    along = across = list_shape(x->shape.rank, 1);
    along.dim[time_axis] = x->shape.dim[time_axis];
    across.dim[batch_axis] = x->shape.dim[batch_axis];
    steps = arena_array(&l->p->mem, (size_t)along.dim[time_axis] + 1, sizeof(*steps));
    if (steps == NULL) {
        l->rc = plan_no_memory(l->err);
        return;
    }
    for (i = 0; i <= along.dim[time_axis]; i++)
        steps[i] = i;
    shape = kit_ints(l, x->shape.dim, x->shape.rank);
    t = kit_reshape(l, kit_ints(l, steps, (uint32_t)along.dim[time_axis]), &along);
    t1 = kit_reshape(l, kit_ints(l, steps + 1, (uint32_t)along.dim[time_axis]), &along);
    n = kit_reshape(l, lower_in(l, 1), &across);
    at = kit_op(l, "Where", kit_op(l, "Less", t, n, GRAPH_NONE),
                kit_op(l, "Sub", n, t1, GRAPH_NONE), t);
    at = kit_op(l, "Expand", at, shape, GRAPH_NONE);
    lower_out(l, 0,
              kit_op_int(l, "GatherElements", lower_in(l, 0), at, GRAPH_NONE, "axis", time_axis));
}

/* ---- AffineGrid ---- */

/* Fills base [positions, d + 1] with x, y (, z), 1 of each position; size [d] is that of the image,
 * whose last axis is x. */
static void fill_grid(float *base, const int64_t *size, uint32_t d, bool corners)
{
    int64_t places = 1, i, rest;
    uint32_t k;

    for (k = 0; k < d; k++)
        places *= size[k];
    for (i = 0; i < places; i++, base += d + 1) {
        for (k = 0, rest = i; k < d; k++) {
            int64_t n = size[d - 1 - k], at = rest % n;

            rest /= n;
            base[k] = (float)(!corners ? (double)(2 * at + 1) / (double)n - 1
                              : n > 1  ? 2 * (double)at / (double)(n - 1) - 1
                                       : -1);
        }
        base[d] = 1;
    }
}

void lower_affine_grid(struct lowering *l)
{
    static const int64_t transposed[] = { 0, 2, 1 };
    const struct tensor *theta = kit_input(l, 0, TENSOR_F32);
    const int64_t *size = NULL;
    struct shape grid, base;
    int64_t corners = 0, places = 1;
    uint32_t d, k, y;
    void *data;
    size_t n;

    if (theta == NULL || !kit_known(l, 1, &size, &n))
        return;
    l->rc = op_attr_i(&l->attrs, "align_corners", 0, &corners, l->err);
    d = n >= 4 ? (uint32_t)n - 2 : 0;
    if (l->rc < 0)
        return;
    if ((d != 2 && d != 3) || theta->shape.rank != 3 || theta->shape.dim[0] != size[0] ||
        theta->shape.dim[1] != d || theta->shape.dim[2] != d + 1) {
        LOWER_ERROR(
            l, ERR_INPUT,
            "expected theta [n, 2, 3] and a size [n, c, h, w], or [n, 3, 4] and [n, c, d, h, w]");
        return;
    }
    grid = (struct shape){ .rank = d + 2, .dim = { size[0] } };
    for (k = 0; k < d; k++) {
        grid.dim[1 + k] = size[2 + k];
        if (size[2 + k] < 1 || size[2 + k] > 1 << 16 || (places *= size[2 + k]) > PLACES_MAX) {
            LOWER_ERROR(l, ERR_INPUT, "size has %" PRId64 " at %" PRIu32, size[2 + k], 2 + k);
            return;
        }
    }
    grid.dim[1 + d] = d;
    base = shape_of(2, places, (int64_t)d + 1);
    y = lower_constant(l, TENSOR_F32, &base, &data);
    if (l->rc == 0)
        fill_grid(data, size + 2, d, corners != 0);
    y = kit_op(l, "MatMul", y, kit_transpose(l, lower_in(l, 0), transposed, 3), GRAPH_NONE);
    lower_out(l, 0, kit_reshape(l, y, &grid));
}

/* ---- Hardmax, LpNormalization, MeanVarianceNormalization ---- */

void lower_hardmax(struct lowering *l)
{
    const struct tensor *x = kit_input(l, 0, TENSOR_F32);
    const struct shape two = { .rank = 1, .dim = { 2 } };
    const struct op_attr attrs[] = { { .name = "axis", .type = OP_ATTR_INT, .i = -1 },
                                     { .name = "keepdims", .type = OP_ATTR_INT, .i = 0 } };
    struct op_attr last[2] = { attrs[0], attrs[1] };
    struct shape rows, whole;
    bool is_flat = l->from->def->until != 0; /* before opset 13: all axes from `axis` on are
                                                combined */
    uint32_t from = lower_in(l, 0), values, y;
    int64_t axis, depth, k;
    void *data;

    if (x == NULL)
        return;
    whole = x->shape;
    axis = kit_axis(l, "axis", is_flat ? 1 : -1, whole.rank);
    if (l->rc < 0)
        return;
    depth = whole.dim[axis];
    if (is_flat) {
        rows = shape_of(2, (int64_t)1, (int64_t)1);
        for (k = 0; k < whole.rank; k++)
            rows.dim[k >= axis] *= whole.dim[k];
        depth = rows.dim[1];
        axis = 1;
        from = kit_reshape(l, from, &rows);
    }
    last[0].i = axis;
    values = lower_constant(l, TENSOR_F32, &two, &data);
    if (l->rc == 0)
        ((float *)data)[0] = 0, ((float *)data)[1] = 1;
    y = kit_node(l, "ArgMax", from, GRAPH_NONE, GRAPH_NONE, last, 2);
    y = kit_op_int(l, "OneHot", y, kit_ints(l, &depth, 0), values, "axis", axis);
    lower_out(l, 0, is_flat ? kit_reshape(l, y, &whole) : y);
}

void lower_lp_normalization(struct lowering *l)
{
    const struct tensor *x = kit_input(l, 0, TENSOR_F32);
    uint32_t norm, zero, safe;
    int64_t axis, p = 2;

    if (x == NULL)
        return;
    axis = kit_axis(l, "axis", -1, x->shape.rank);
    if (l->rc == 0)
        l->rc = op_attr_i(&l->attrs, "p", 2, &p, l->err);
    if (l->rc == 0 && p != 1 && p != 2)
        LOWER_ERROR(l, ERR_INPUT, "p is %" PRId64 "; expected 1 or 2", p);
    norm = kit_op(l, p == 1 ? "ReduceL1" : "ReduceL2", lower_in(l, 0), kit_ints(l, &axis, 1),
                  GRAPH_NONE);
    zero = kit_op(l, "Equal", norm, lower_number(l, 0), GRAPH_NONE);
    safe = kit_op(l, "Where", zero, lower_number(l, 1), norm);
    lower_out(l, 0, kit_op(l, "Div", lower_in(l, 0), safe, GRAPH_NONE));
}

void lower_mean_variance(struct lowering *l)
{
    static const int64_t images[] = { 0, 2, 3 };
    const struct tensor *x = kit_input(l, 0, TENSOR_F32);
    const int64_t *axes = NULL;
    uint32_t list, centered, deviation;
    size_t n = 0;

    if (x == NULL)
        return;
    l->rc = op_attr_ints(&l->attrs, "axes", &axes, &n, l->err);
    if (l->rc == 0 && n > TENSOR_MAX_RANK)
        LOWER_ERROR(l, ERR_INPUT, "axes has %zu numbers", n);
    list = axes != NULL ? kit_ints(l, axes, (uint32_t)n) : kit_ints(l, images, 3);
    centered = kit_op(l, "Sub", lower_in(l, 0),
                      kit_op(l, "ReduceMean", lower_in(l, 0), list, GRAPH_NONE), GRAPH_NONE);
    deviation = kit_op(
        l, "Sqrt",
        kit_op(l, "ReduceMean", kit_op(l, "Mul", centered, centered, GRAPH_NONE), list, GRAPH_NONE),
        GRAPH_NONE, GRAPH_NONE);
    deviation = kit_op(l, "Add", deviation, lower_number(l, 1e-9f), GRAPH_NONE);
    lower_out(l, 0, kit_op(l, "Div", centered, deviation, GRAPH_NONE));
}
