/* dnn_make.c - constructors of kernels: translates our matrices, images and windows into the terms
 * of oneDNN. */
#include "op/dnn_priv.h"

#include <string.h>

#include "base/check.h"
#include "op/window.h"

/* ---- layouts ---- */

static dnnl_data_type_t type_of(enum tensor_dtype t)
{
    CHECK(t == TENSOR_NONE || t == TENSOR_F32 || t == TENSOR_BF16);
    return t == TENSOR_BF16 ? dnnl_bf16 : dnnl_f32;
}

static struct dnn_layout layout_by_strides(int n, const int64_t *dim, const int64_t *stride,
                                           dnnl_data_type_t type)
{
    struct dnn_layout l = { .n = n, .type = type };

    memcpy(l.dim, dim, (size_t)n * sizeof(*dim));
    memcpy(l.stride, stride, (size_t)n * sizeof(*stride));
    return l;
}

static struct dnn_layout layout_plain(int n, const int64_t *dim, dnnl_data_type_t type)
{
    dnnl_dims_t stride;
    int i;

    for (i = n - 1; i >= 0; i--)
        stride[i] = i == n - 1 ? 1 : stride[i + 1] * (dim[i + 1] > 0 ? dim[i + 1] : 1);
    return layout_by_strides(n, dim, stride, type);
}

static struct dnn_layout layout_channels_last(int n, const int64_t *dim, dnnl_data_type_t type)
{
    dnnl_dims_t stride;
    int64_t step = dim[1];
    int i;

    stride[1] = 1;
    for (i = n - 1; i >= 2; i--) {
        stride[i] = step;
        step *= dim[i];
    }
    stride[0] = step;
    return layout_by_strides(n, dim, stride, type);
}

static struct dnn_layout layout_image(enum tensor_layout layout, enum tensor_dtype type, int64_t n,
                                      int64_t c, const int64_t *spatial, uint32_t n_spatial)
{
    dnnl_dims_t dim = { n, c };
    uint32_t k;

    for (k = 0; k < n_spatial; k++)
        dim[2 + k] = spatial[k];
    return (layout == TENSOR_PLAIN ? layout_plain : layout_channels_last)((int)n_spatial + 2, dim,
                                                                          type_of(type));
}

/* Turns one spatial axis into two, the first of size 1: the fastest kernels of the library are for
 * images. */
static struct op_window as_image(const struct op_window *w)
{
    return w->spatial == 1 ? op_window_lift(w, 2) : *w;
}

static struct dnn_slide slide_of(const struct op_window *w)
{
    struct dnn_slide s;
    uint32_t k;

    for (k = 0; k < w->spatial; k++) {
        s.kernel[k] = w->kernel[k];
        s.stride[k] = w->stride[k];
        s.pad_lo[k] = w->pad_lo[k];
        s.pad_hi[k] = w->pad_hi[k];
        s.dilate[k] = w->dilation[k] - 1;
    }
    return s;
}

/* ---- matrix product ---- */

/* Describes `n` columns of the product, possibly fewer than all, with the strides of the whole
 * matrices. */
static struct dnn_recipe matmul_describe(const struct dnn_matmul *s, int64_t n)
{
    int rank = s->batch == 1 ? 2 : 3, skip = 3 - rank; /* drops the batch axis if its size is 1 */
    const int64_t a[] = { s->batch, s->m, s->k }, b[] = { s->batch, s->k, n };
    const int64_t y[] = { s->batch, s->m, n }, bias[] = { 1, 1, n };
    const int64_t y_step[] = { s->m * s->n, s->n, 1 };
    const int64_t a_step[] = { s->m * s->k, s->trans_a ? 1 : s->k, s->trans_a ? s->m : 1 };
    const int64_t b_step[] = { s->k * s->n, s->trans_b ? 1 : s->n, s->trans_b ? s->k : 1 };
    bool is_half = s->a == TENSOR_BF16 || s->b == TENSOR_BF16;
    struct dnn_recipe r = { .what = "matrix product",
                            .n = s->bias ? 4 : 3,
                            .arg = { DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST, DNNL_ARG_BIAS },
                            .op = { .kind = DNN_MATMUL, .has_bias = s->bias },
                            .outputs = 1u << 2,
                            .reordered = DNN_NO_ARG,
                            .add = s->add,
                            .packed = s->packed };

    CHECK(!is_half || !s->packed);
    r.own[0] = r.op.x = layout_by_strides(rank, a + skip, a_step + skip, type_of(s->a));
    r.own[1] = r.op.w = layout_by_strides(rank, b + skip, b_step + skip, type_of(s->b));
    r.own[2] = r.op.y = layout_by_strides(rank, y + skip, y_step + skip, type_of(s->y));
    r.own[3] = r.op.bias = layout_plain(rank, bias + skip, dnnl_f32);
    if (is_half) /* the type of both factors */
        r.op.x.type = r.op.w.type = dnnl_bf16;
    if (is_half && s->a != s->b)
        r.reordered = s->a == TENSOR_BF16 ? 1 : 0;
    r.op.w.is_open = s->packed;
    return r;
}

static int matmul_columns(const struct dnn_matmul *s, int64_t n, struct dnn **out, struct err *err)
{
    struct dnn_recipe r = matmul_describe(s, n);

    return dnn_new(&r, out, err);
}

/* Returns the number of columns that are multiplied at a time. In float32 the library copies a
 * wide, untransposed b row by row, and rows that are a multiple of 4 KiB apart map to the same few
 * cache sets. Measured for 512 to 1024 rows, in GFLOP/s: 3072 columns, k = 768: 56 at once, 111 in
 * panels; 2304 columns: 106 and 116; 768 columns, k = 3072: 105 and 124. If a is transposed too,
 * only multiples of BAD_WIDTH gain (3072: 51 and 102; 2304: 109 and 101). If b is transposed,
 * panels gain nothing. */
static int64_t panel_of(const struct dnn_matmul *s)
{
    enum { PANEL = 512, BAD_WIDTH = 1024 };
    bool is_half = s->a == TENSOR_BF16 || s->b == TENSOR_BF16;

    if (is_half || s->packed || s->trans_b || s->batch != 1 || s->n <= PANEL || s->m == 0 ||
        s->k == 0 || (s->trans_a && s->n % BAD_WIDTH != 0))
        return s->n;
    return PANEL;
}

int dnn_matmul(const struct dnn_matmul *s, struct dnn **out, struct err *err)
{
    int64_t width = panel_of(s), left = width < s->n ? s->n % width : 0;
    struct dnn *panel, *rest = NULL;
    struct dnn_panels p;
    int rc = matmul_columns(s, width, &panel, err);

    if (rc < 0 || width == s->n) {
        if (rc == 0)
            *out = panel;
        return rc;
    }
    if (left > 0)
        rc = matmul_columns(s, left, &rest, err);
    if (rc < 0) {
        dnn_free(panel);
        return rc;
    }
    p = (struct dnn_panels){ .first = panel,
                             .rest = rest,
                             .n = (uint32_t)(s->n / width),
                             .step = { 0, (size_t)width * sizeof(float),
                                       (size_t)width * sizeof(float),
                                       (size_t)width * sizeof(float) },
                             .bytes = { (size_t)(s->m * s->k) * sizeof(float),
                                        (size_t)(s->k * s->n) * sizeof(float),
                                        (size_t)(s->m * s->n) * sizeof(float),
                                        (size_t)s->n * sizeof(float) } };
    return dnn_new_panels(&p, out, err);
}

int dnn_matmul_pack(const struct dnn_matmul *s, struct dnn **out, struct err *err)
{
    struct dnn_recipe product = matmul_describe(s, s->n);
    struct dnn_recipe r = { .what = "packing of a matrix",
                            .n = 2,
                            .op = product.op,
                            .outputs = 1u << 1,
                            .reordered = DNN_NO_ARG,
                            .add = s->add,
                            .is_pack = s->m > 0 };

    r.own[0] = r.own[1] = product.own[1];
    if (s->m == 0) /* the product reads no b */
        r.op.kind = DNN_REORDER;
    return dnn_new(&r, out, err);
}

/* ---- convolution ---- */

static struct dnn_op conv_describe(const struct dnn_conv *s, enum dnn_kind kind)
{
    const struct op_window win = as_image(s->window);
    int64_t w[OP_SPATIAL_MAX + 3] = { s->group, s->o / s->group, s->c / s->group };
    int skip = s->group == 1; /* drops the group axis if its size is 1 */
    struct dnn_op op = { .kind = kind, .has_bias = s->bias, .slide = slide_of(&win) };
    uint32_t k;

    for (k = 0; k < win.spatial; k++)
        w[3 + k] = win.kernel[k];
    op.x = layout_image(s->layout, s->images, s->n, s->c, win.in, win.spatial);
    op.y = layout_image(s->layout, s->images, s->n, s->o, win.out, win.spatial);
    op.w = op.dw = layout_plain((int)win.spatial + 3 - skip, w + skip, dnnl_f32);
    op.bias = layout_plain(1, &s->o, dnnl_f32);
    return op;
}

/* Lets the library choose the layouts of the weights, and multiplies them in the type of the images. */
static void conv_open(struct dnn_op *op)
{
    op->w.type = op->x.type;
    op->w.is_open = op->dw.is_open = true;
}

int dnn_conv_fwd(const struct dnn_conv *s, struct dnn **out, struct err *err)
{
    struct dnn_op op = conv_describe(s, DNN_CONV);
    struct dnn_recipe r = { .what = "convolution",
                            .n = s->bias ? 4 : 3,
                            .arg = { DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST, DNNL_ARG_BIAS },
                            .own = { op.x, op.w, op.y, op.bias },
                            .outputs = 1u << 2,
                            .reordered = 1,
                            .few_channels = s->images != TENSOR_BF16 && s->c / s->group <= 16 };

    conv_open(&op);
    r.op = op;
    return dnn_new(&r, out, err);
}

int dnn_conv_bwd_x(const struct dnn_conv *s, struct dnn **out, struct err *err)
{
    struct dnn_op op = conv_describe(s, DNN_CONV_DX);
    struct dnn_recipe r = { .what = "convolution, gradient of the input",
                            .n = 3,
                            .arg = { DNNL_ARG_DIFF_DST, DNNL_ARG_WEIGHTS, DNNL_ARG_DIFF_SRC },
                            .own = { op.y, op.w, op.x },
                            .outputs = 1u << 2,
                            .reordered = 1 };

    conv_open(&op);
    r.op = op;
    return dnn_new(&r, out, err);
}

int dnn_conv_bwd_w(const struct dnn_conv *s, struct dnn **out, struct err *err)
{
    struct dnn_op op = conv_describe(s, DNN_CONV_DW);
    struct dnn_recipe r = { .what = "convolution, gradient of the weights",
                            .n = s->bias ? 4 : 3,
                            .arg = { DNNL_ARG_SRC, DNNL_ARG_DIFF_DST, DNNL_ARG_DIFF_WEIGHTS,
                                     DNNL_ARG_DIFF_BIAS },
                            .own = { op.x, op.y, op.dw, op.bias },
                            .outputs = 1u << 2 | (s->bias ? 1u << 3 : 0),
                            .reordered = 2 };

    conv_open(&op);
    r.op = op;
    return dnn_new(&r, out, err);
}

/* ---- max pooling ---- */

static struct dnn_op pool_describe(const struct dnn_pool *s, enum dnn_kind kind)
{
    const struct op_window w = as_image(s->window);
    struct dnn_op op = { .kind = kind, .slide = slide_of(&w) };

    op.x = layout_image(s->layout, s->images, s->n, s->c, w.in, w.spatial);
    op.y = layout_image(s->layout, s->images, s->n, s->c, w.out, w.spatial);
    return op;
}

int dnn_max_pool_fwd(const struct dnn_pool *s, struct dnn **out, struct err *err)
{
    struct dnn_op op = pool_describe(s, s->training ? DNN_POOL : DNN_POOL_INFERENCE);
    struct dnn_recipe r = { .what = "max pooling",
                            .n = s->training ? 3 : 2,
                            .arg = { DNNL_ARG_SRC, DNNL_ARG_DST, DNNL_ARG_WORKSPACE },
                            .own = { op.x, op.y },
                            .op = op,
                            .outputs = 1u << 1,
                            .reordered = DNN_NO_ARG };

    return dnn_new(&r, out, err);
}

int dnn_max_pool_bwd(const struct dnn_pool *s, struct dnn **out, struct err *err)
{
    struct dnn_op op = pool_describe(s, DNN_POOL_DX);
    struct dnn_recipe r = { .what = "max pooling, gradient",
                            .n = 3,
                            .arg = { DNNL_ARG_DIFF_DST, DNNL_ARG_DIFF_SRC, DNNL_ARG_WORKSPACE },
                            .own = { op.y, op.x },
                            .op = op,
                            .outputs = 1u << 1,
                            .reordered = DNN_NO_ARG };

    CHECK(s->training);
    return dnn_new(&r, out, err);
}

/* ---- reorder ---- */

int dnn_reorder(const struct tensor *from, const struct tensor *to, struct dnn **out,
                struct err *err)
{
    struct dnn_recipe r = { .what = "reorder", .n = 2, .outputs = 1u << 1,
                            .reordered = DNN_NO_ARG };
    const struct shape *s = &from->shape;

    CHECK(s->rank >= 3 && shape_equal(s, &to->shape) && from->dtype == to->dtype);
    r.own[0] =
        layout_image(from->layout, from->dtype, s->dim[0], s->dim[1], s->dim + 2, s->rank - 2);
    r.own[1] = layout_image(to->layout, to->dtype, s->dim[0], s->dim[1], s->dim + 2, s->rank - 2);
    return dnn_new(&r, out, err);
}
