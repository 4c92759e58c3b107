/* dnn_make.c - constructors of kernels: translates our matrices, images and windows into oneDNN
 * descriptors. */
#include "op/dnn_priv.h"

#include <string.h>

#include "base/check.h"
#include "op/window.h"

/* ---- memory descriptors ---- */

static dnnl_data_type_t type_of(enum tensor_dtype t)
{
    CHECK(t == TENSOR_NONE || t == TENSOR_F32 || t == TENSOR_BF16);
    return t == TENSOR_BF16 ? dnnl_bf16 : dnnl_f32;
}

static void md_by_strides(dnnl_memory_desc_t *md, int n, const int64_t *dim, const int64_t *stride,
                          dnnl_data_type_t type)
{
    dnnl_dims_t d = { 0 }, step = { 0 };

    memcpy(d, dim, (size_t)n * sizeof(*d));
    memcpy(step, stride, (size_t)n * sizeof(*d));
    /* It fails only for an invalid rank or a negative size, which callers never pass. */
    CHECK(dnnl_memory_desc_init_by_strides(md, n, d, type, step) == dnnl_success);
}

static void md_plain(dnnl_memory_desc_t *md, int n, const int64_t *dim, dnnl_data_type_t type)
{
    dnnl_dims_t stride;
    int i;

    for (i = n - 1; i >= 0; i--)
        stride[i] = i == n - 1 ? 1 : stride[i + 1] * (dim[i + 1] > 0 ? dim[i + 1] : 1);
    md_by_strides(md, n, dim, stride, type);
}

static void md_channels_last(dnnl_memory_desc_t *md, int n, const int64_t *dim,
                             dnnl_data_type_t type)
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
    md_by_strides(md, n, dim, stride, type);
}

static void md_image(dnnl_memory_desc_t *md, enum tensor_layout layout, enum tensor_dtype type,
                     int64_t n, int64_t c, const int64_t *spatial, uint32_t n_spatial)
{
    dnnl_dims_t dim = { n, c };
    uint32_t k;

    for (k = 0; k < n_spatial; k++)
        dim[2 + k] = spatial[k];
    (layout == TENSOR_PLAIN ? md_plain : md_channels_last)(md, (int)n_spatial + 2, dim,
                                                           type_of(type));
}

/* Turns one spatial axis into two, the first of size 1: the fastest kernels of the library are for
 * images. */
static struct op_window as_image(const struct op_window *w)
{
    return w->spatial == 1 ? op_window_lift(w, 2) : *w;
}

/* A window in oneDNN's terms. */
struct slide {
    dnnl_dims_t kernel, stride, pad_lo, pad_hi;
    dnnl_dims_t dilate; /* 0: dense */
};

static void slide_init(struct slide *s, const struct op_window *w)
{
    uint32_t k;

    for (k = 0; k < w->spatial; k++) {
        s->kernel[k] = w->kernel[k];
        s->stride[k] = w->stride[k];
        s->pad_lo[k] = w->pad_lo[k];
        s->pad_hi[k] = w->pad_hi[k];
        s->dilate[k] = w->dilation[k] - 1;
    }
}

/* ---- matrix product ---- */

/* Describes `n` columns of the product, possibly fewer than all, with the strides of the whole
 * matrices. Sets r->md, and r->reordered if the types differ. */
static dnnl_status_t matmul_describe(const struct dnn_matmul *s, int64_t n, struct dnn_recipe *r,
                                     dnnl_matmul_desc_t *op)
{
    int rank = s->batch == 1 ? 2 : 3, skip = 3 - rank; /* drops the batch axis if its size is 1 */
    const int64_t a[] = { s->batch, s->m, s->k }, b[] = { s->batch, s->k, n };
    const int64_t y[] = { s->batch, s->m, n }, bias[] = { 1, 1, n };
    const int64_t y_step[] = { s->m * s->n, s->n, 1 };
    const int64_t a_step[] = { s->m * s->k, s->trans_a ? 1 : s->k, s->trans_a ? s->m : 1 };
    const int64_t b_step[] = { s->k * s->n, s->trans_b ? 1 : s->n, s->trans_b ? s->k : 1 };
    bool is_half = s->a == TENSOR_BF16 || s->b == TENSOR_BF16;
    dnnl_data_type_t type = is_half ? dnnl_bf16 : dnnl_f32; /* the type of both factors */
    dnnl_memory_desc_t factor[2], any;

    CHECK(!is_half || !s->packed);
    md_by_strides(&r->md[0], rank, a + skip, a_step + skip, type_of(s->a));
    md_by_strides(&r->md[1], rank, b + skip, b_step + skip, type_of(s->b));
    md_by_strides(&factor[0], rank, a + skip, a_step + skip, type);
    md_by_strides(&factor[1], rank, b + skip, b_step + skip, type);
    md_by_strides(&r->md[2], rank, y + skip, y_step + skip, type_of(s->y));
    md_plain(&r->md[3], rank, bias + skip, dnnl_f32);
    CHECK(dnnl_memory_desc_init_by_tag(&any, rank, r->md[1].dims, dnnl_f32, dnnl_format_tag_any) ==
          dnnl_success);
    if (is_half && s->a != s->b)
        r->reordered = s->a == TENSOR_BF16 ? 1 : 0;
    return dnnl_matmul_desc_init(op, &factor[0], s->packed ? &any : &factor[1],
                                 s->bias ? &r->md[3] : NULL, &r->md[2]);
}

static int matmul_columns(const struct dnn_matmul *s, int64_t n, struct dnn **out, struct err *err)
{
    struct dnn_recipe r = { .what = "matrix product",
                        .n = s->bias ? 4 : 3,
                        .arg = { DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST, DNNL_ARG_BIAS },
                        .outputs = 1u << 2,
                        .reordered = DNN_NO_ARG,
                        .add = s->add,
                        .packed = s->packed };
    dnnl_matmul_desc_t op;
    dnnl_status_t status = matmul_describe(s, n, &r, &op);

    return dnn_new(&r, status, &op, NULL, out, err);
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
    struct dnn_recipe product = { .what = "matrix product", .add = s->add };
    struct dnn_recipe r = { .what = "packing of a matrix", .n = 2, .outputs = 1u << 1,
                            .reordered = DNN_NO_ARG };
    dnnl_matmul_desc_t op;
    dnnl_status_t status = matmul_describe(s, s->n, &product, &op);

    r.md[0] = r.md[1] = product.md[1];
    if (status == dnnl_success && s->m > 0 && s->n > 0 && s->k > 0)
        status = dnn_chosen(&product, &op, DNNL_ARG_WEIGHTS, &r.md[1]);
    return dnn_new(&r, status, NULL, NULL, out, err);
}

/* ---- convolution ---- */

struct conv_md {
    dnnl_memory_desc_t x, w, bias, y;
    dnnl_memory_desc_t any_w;  /* w in the type in which it is multiplied, layout left to the
                                  library */
    dnnl_memory_desc_t any_dw; /* gradient of w, layout left to the library */
    struct slide slide;
    dnnl_convolution_desc_t fwd;
    dnnl_status_t status; /* result of describing fwd */
};

static void conv_describe(const struct dnn_conv *s, struct conv_md *m)
{
    const struct op_window image = as_image(s->window), *win = &image;
    int64_t w[OP_SPATIAL_MAX + 3] = { s->group, s->o / s->group, s->c / s->group };
    int skip = s->group == 1; /* drops the group axis if its size is 1 */
    uint32_t k;

    for (k = 0; k < win->spatial; k++)
        w[3 + k] = win->kernel[k];
    slide_init(&m->slide, win);
    md_image(&m->x, s->layout, s->images, s->n, s->c, win->in, win->spatial);
    md_image(&m->y, s->layout, s->images, s->n, s->o, win->out, win->spatial);
    md_plain(&m->w, (int)win->spatial + 3 - skip, w + skip, dnnl_f32);
    md_plain(&m->bias, 1, &s->o, dnnl_f32);
    CHECK(dnnl_memory_desc_init_by_tag(&m->any_w, m->w.ndims, m->w.dims, type_of(s->images),
                                       dnnl_format_tag_any) == dnnl_success &&
          dnnl_memory_desc_init_by_tag(&m->any_dw, m->w.ndims, m->w.dims, dnnl_f32,
                                       dnnl_format_tag_any) == dnnl_success);
    m->status = dnnl_dilated_convolution_forward_desc_init(
        &m->fwd, dnnl_forward_training, dnnl_convolution_direct, &m->x, &m->any_w,
        s->bias ? &m->bias : NULL, &m->y, m->slide.stride, m->slide.dilate, m->slide.pad_lo,
        m->slide.pad_hi);
}

int dnn_conv_fwd(const struct dnn_conv *s, struct dnn **out, struct err *err)
{
    struct dnn_recipe r = { .what = "convolution",
                        .n = s->bias ? 4 : 3,
                        .arg = { DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST, DNNL_ARG_BIAS },
                        .outputs = 1u << 2,
                        .reordered = 1,
                        .few_channels = s->images != TENSOR_BF16 && s->c / s->group <= 16 };
    struct conv_md m;

    conv_describe(s, &m);
    r.md[0] = m.x, r.md[1] = m.w, r.md[2] = m.y, r.md[3] = m.bias;
    return dnn_new(&r, m.status, &m.fwd, NULL, out, err);
}

int dnn_conv_bwd_x(const struct dnn_conv *s, struct dnn **out, struct err *err)
{
    struct dnn_recipe r = { .what = "convolution, gradient of the input",
                        .n = 3,
                        .arg = { DNNL_ARG_DIFF_DST, DNNL_ARG_WEIGHTS, DNNL_ARG_DIFF_SRC },
                        .outputs = 1u << 2,
                        .reordered = 1 };
    dnnl_convolution_desc_t op;
    struct conv_md m;

    conv_describe(s, &m);
    r.md[0] = m.y, r.md[1] = m.w, r.md[2] = m.x;
    if (m.status == dnnl_success)
        m.status = dnnl_dilated_convolution_backward_data_desc_init(
            &op, dnnl_convolution_direct, &m.x, &m.any_w, &m.y, m.slide.stride, m.slide.dilate,
            m.slide.pad_lo, m.slide.pad_hi);
    return dnn_new(&r, m.status, &op, &m.fwd, out, err);
}

int dnn_conv_bwd_w(const struct dnn_conv *s, struct dnn **out, struct err *err)
{
    struct dnn_recipe r = { .what = "convolution, gradient of the weights",
                        .n = s->bias ? 4 : 3,
                        .arg = { DNNL_ARG_SRC, DNNL_ARG_DIFF_DST, DNNL_ARG_DIFF_WEIGHTS,
                                 DNNL_ARG_DIFF_BIAS },
                        .outputs = 1u << 2 | (s->bias ? 1u << 3 : 0),
                        .reordered = 2 };
    dnnl_convolution_desc_t op;
    struct conv_md m;

    conv_describe(s, &m);
    r.md[0] = m.x, r.md[1] = m.y, r.md[2] = m.w, r.md[3] = m.bias;
    if (m.status == dnnl_success)
        m.status = dnnl_dilated_convolution_backward_weights_desc_init(
            &op, dnnl_convolution_direct, &m.x, &m.any_dw, s->bias ? &m.bias : NULL, &m.y,
            m.slide.stride, m.slide.dilate, m.slide.pad_lo, m.slide.pad_hi);
    return dnn_new(&r, m.status, &op, &m.fwd, out, err);
}

/* ---- max pooling ---- */

static int max_pool(const struct dnn_pool *s, struct dnn_recipe *r, uint32_t x, uint32_t y,
                    bool bwd, struct dnn **out, struct err *err)
{
    const struct op_window image = as_image(s->window), *w = &image;
    dnnl_pooling_v2_desc_t fwd, op;
    dnnl_status_t status;
    struct slide sl;

    slide_init(&sl, w);
    md_image(&r->md[x], s->layout, s->images, s->n, s->c, w->in, w->spatial);
    md_image(&r->md[y], s->layout, s->images, s->n, s->c, w->out, w->spatial);
    status = dnnl_pooling_v2_forward_desc_init(
        &fwd, s->training ? dnnl_forward_training : dnnl_forward_inference, dnnl_pooling_max,
        &r->md[x], &r->md[y], sl.stride, sl.kernel, sl.dilate, sl.pad_lo, sl.pad_hi);
    if (status == dnnl_success && bwd)
        status = dnnl_pooling_v2_backward_desc_init(&op, dnnl_pooling_max, &r->md[x], &r->md[y],
                                                    sl.stride, sl.kernel, sl.dilate, sl.pad_lo,
                                                    sl.pad_hi);
    return bwd ? dnn_new(r, status, &op, &fwd, out, err) : dnn_new(r, status, &fwd, NULL, out, err);
}

int dnn_max_pool_fwd(const struct dnn_pool *s, struct dnn **out, struct err *err)
{
    struct dnn_recipe r = { .what = "max pooling",
                        .n = s->training ? 3 : 2,
                        .arg = { DNNL_ARG_SRC, DNNL_ARG_DST, DNNL_ARG_WORKSPACE },
                        .outputs = 1u << 1,
                        .reordered = DNN_NO_ARG };

    return max_pool(s, &r, 0, 1, false, out, err);
}

int dnn_max_pool_bwd(const struct dnn_pool *s, struct dnn **out, struct err *err)
{
    struct dnn_recipe r = { .what = "max pooling, gradient",
                        .n = 3,
                        .arg = { DNNL_ARG_DIFF_DST, DNNL_ARG_DIFF_SRC, DNNL_ARG_WORKSPACE },
                        .outputs = 1u << 1,
                        .reordered = DNN_NO_ARG };

    CHECK(s->training);
    return max_pool(s, &r, 1, 0, true, out, err);
}

/* ---- reorder ---- */

int dnn_reorder(const struct tensor *from, const struct tensor *to, struct dnn **out,
                struct err *err)
{
    struct dnn_recipe r = { .what = "reorder", .n = 2, .outputs = 1u << 1,
                            .reordered = DNN_NO_ARG };
    const struct shape *s = &from->shape;

    CHECK(s->rank >= 3 && shape_equal(s, &to->shape) && from->dtype == to->dtype);
    md_image(&r.md[0], from->layout, from->dtype, s->dim[0], s->dim[1], s->dim + 2, s->rank - 2);
    md_image(&r.md[1], to->layout, to->dtype, s->dim[0], s->dim[1], s->dim + 2, s->rank - 2);
    return dnn_new(&r, dnnl_success, NULL, NULL, out, err);
}
