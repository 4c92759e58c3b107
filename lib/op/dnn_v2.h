/* dnn_v2.h - dnn_api.h for oneDNN 2: layouts are structures, and a primitive descriptor is created from a descriptor
 * of its operation. */
#ifndef OP_DNN_V2_H
#define OP_DNN_V2_H

#include <stdlib.h>

typedef const dnnl_memory_desc_t *dnn_md;

static inline void dnn_md_free(dnn_md md)
{
    free((void *)(uintptr_t)md);
}

static inline dnnl_status_t dnn_md_new(const struct dnn_layout *l, dnn_md *out)
{
    dnnl_memory_desc_t *md = malloc(sizeof(*md));
    dnnl_status_t status;

    if (md == NULL)
        return dnnl_out_of_memory;
    status = l->is_open
                 ? dnnl_memory_desc_init_by_tag(md, l->n, l->dim, l->type, dnnl_format_tag_any)
                 : dnnl_memory_desc_init_by_strides(md, l->n, l->dim, l->type, l->stride);
    if (status == dnnl_success)
        *out = md;
    else
        free(md);
    return status;
}

static inline dnnl_status_t dnn_append_sum(dnnl_post_ops_t ops)
{
    return dnnl_post_ops_append_sum(ops, 1.0f);
}

union dnn_desc {
    dnnl_matmul_desc_t matmul;
    dnnl_convolution_desc_t conv;
    dnnl_pooling_v2_desc_t pool;
};

static inline dnnl_status_t dnn_describe(const struct dnn_op *op, dnn_md x, dnn_md w, dnn_md bias,
                                         dnn_md y, union dnn_desc *d)
{
    const struct dnn_slide *s = &op->slide;

    switch (op->kind) {
    case DNN_MATMUL:
        return dnnl_matmul_desc_init(&d->matmul, x, w, bias, y);
    case DNN_CONV:
        return dnnl_dilated_convolution_forward_desc_init(
            &d->conv, dnnl_forward_training, dnnl_convolution_direct, x, w, bias, y, s->stride,
            s->dilate, s->pad_lo, s->pad_hi);
    case DNN_CONV_DX:
        return dnnl_dilated_convolution_backward_data_desc_init(
            &d->conv, dnnl_convolution_direct, x, w, y, s->stride, s->dilate, s->pad_lo, s->pad_hi);
    case DNN_CONV_DW:
        return dnnl_dilated_convolution_backward_weights_desc_init(
            &d->conv, dnnl_convolution_direct, x, w, bias, y, s->stride, s->dilate, s->pad_lo,
            s->pad_hi);
    case DNN_POOL:
    case DNN_POOL_INFERENCE:
        return dnnl_pooling_v2_forward_desc_init(
            &d->pool, op->kind == DNN_POOL ? dnnl_forward_training : dnnl_forward_inference,
            dnnl_pooling_max, x, y, s->stride, s->kernel, s->dilate, s->pad_lo, s->pad_hi);
    case DNN_POOL_DX:
        return dnnl_pooling_v2_backward_desc_init(&d->pool, dnnl_pooling_max, x, y, s->stride,
                                                  s->kernel, s->dilate, s->pad_lo, s->pad_hi);
    case DNN_REORDER:
        break;
    }
    return dnnl_invalid_arguments;
}

static inline dnnl_status_t dnn_pd_new(const struct dnn_op *op, dnn_md x, dnn_md w, dnn_md bias,
                                       dnn_md y, dnnl_engine_t engine,
                                       const_dnnl_primitive_attr_t attr,
                                       const_dnnl_primitive_desc_t fwd, unsigned implementation,
                                       dnnl_primitive_desc_t *out)
{
    union dnn_desc d;
    dnnl_primitive_desc_iterator_t it;
    dnnl_status_t status = dnn_describe(op, x, w, bias, y, &d);

    if (status != dnnl_success)
        return status;
    if (implementation == 0)
        return dnnl_primitive_desc_create(out, &d, attr, engine, fwd);
    status = dnnl_primitive_desc_iterator_create(&it, &d, attr, engine, fwd);
    if (status != dnnl_success)
        return status;
    for (; status == dnnl_success && implementation > 0; implementation--)
        status = dnnl_primitive_desc_iterator_next(it);
    if (status == dnnl_success) {
        *out = dnnl_primitive_desc_iterator_fetch(it);
        status = *out != NULL ? dnnl_success : dnnl_out_of_memory;
    }
    dnnl_primitive_desc_iterator_destroy(it);
    return status;
}

#endif
