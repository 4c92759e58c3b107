/* dnn_v3.h - dnn_api.h for oneDNN 3: layouts are objects, and a primitive descriptor is created from its operands. */
#ifndef OP_DNN_V3_H
#define OP_DNN_V3_H

typedef const_dnnl_memory_desc_t dnn_md;

static inline void dnn_md_free(dnn_md md)
{
    if (md != NULL)
        dnnl_memory_desc_destroy((dnnl_memory_desc_t)(uintptr_t)md);
}

static inline dnnl_status_t dnn_md_new(const struct dnn_layout *l, dnn_md *out)
{
    dnnl_memory_desc_t md;
    dnnl_status_t status =
        l->is_open
            ? dnnl_memory_desc_create_with_tag(&md, l->n, l->dim, l->type, dnnl_format_tag_any)
            : dnnl_memory_desc_create_with_strides(&md, l->n, l->dim, l->type, l->stride);

    if (status == dnnl_success)
        *out = md;
    return status;
}

static inline dnnl_status_t dnn_append_sum(dnnl_post_ops_t ops)
{
    return dnnl_post_ops_append_sum(ops, 1.0f, 0, dnnl_data_type_undef);
}

static inline dnnl_status_t dnn_pd_new(const struct dnn_op *op, dnn_md x, dnn_md w, dnn_md bias,
                                       dnn_md y, dnnl_engine_t engine,
                                       const_dnnl_primitive_attr_t attr,
                                       const_dnnl_primitive_desc_t fwd, unsigned implementation,
                                       dnnl_primitive_desc_t *out)
{
    const struct dnn_slide *s = &op->slide;
    dnnl_primitive_desc_t pd = NULL;
    dnnl_status_t status = dnnl_invalid_arguments;

    switch (op->kind) {
    case DNN_MATMUL:
        status = dnnl_matmul_primitive_desc_create(&pd, engine, x, w, bias, y, attr);
        break;
    case DNN_CONV:
        status = dnnl_convolution_forward_primitive_desc_create(
            &pd, engine, dnnl_forward_training, dnnl_convolution_direct, x, w, bias, y, s->stride,
            s->dilate, s->pad_lo, s->pad_hi, attr);
        break;
    case DNN_CONV_DX:
        status = dnnl_convolution_backward_data_primitive_desc_create(
            &pd, engine, dnnl_convolution_direct, x, w, y, s->stride, s->dilate, s->pad_lo,
            s->pad_hi, fwd, attr);
        break;
    case DNN_CONV_DW:
        status = dnnl_convolution_backward_weights_primitive_desc_create(
            &pd, engine, dnnl_convolution_direct, x, w, bias, y, s->stride, s->dilate, s->pad_lo,
            s->pad_hi, fwd, attr);
        break;
    case DNN_POOL:
    case DNN_POOL_INFERENCE:
        status = dnnl_pooling_forward_primitive_desc_create(
            &pd, engine, op->kind == DNN_POOL ? dnnl_forward_training : dnnl_forward_inference,
            dnnl_pooling_max, x, y, s->stride, s->kernel, s->dilate, s->pad_lo, s->pad_hi, attr);
        break;
    case DNN_POOL_DX:
        status = dnnl_pooling_backward_primitive_desc_create(&pd, engine, dnnl_pooling_max, x, y,
                                                             s->stride, s->kernel, s->dilate,
                                                             s->pad_lo, s->pad_hi, fwd, attr);
        break;
    case DNN_REORDER:
        break;
    }
    for (; status == dnnl_success && implementation > 0; implementation--)
        status = dnnl_primitive_desc_next_impl(pd);
    if (status == dnnl_success)
        *out = pd;
    else if (pd != NULL)
        dnnl_primitive_desc_destroy(pd);
    return status;
}

#endif
