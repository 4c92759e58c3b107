/* plan_lower.c - lowering of ops: see plan_lower.h. Export writes the node of the file, not the
 * lowered nodes. */
#include "graph/plan_lower.h"

#include <string.h>

#include "base/check.h"
#include "base/err.h"

static const struct {
    const char *op;
    void (*lower)(struct lowering *l);
    bool has_own_types; /* 16-bit floats are not widened for this op */
} lowerings[] = {
    { "AffineGrid", lower_affine_grid, false },
    { "AveragePool", lower_wide_pool, false },
    { "LpPool", lower_wide_pool, false },
    { "MaxPool", lower_wide_pool, false },
    { "Clip", lower_clamp, false },
    { "Max", lower_clamp, false },
    { "Min", lower_clamp, false },
    { "Attention", lower_attention, false },
    { "RotaryEmbedding", lower_rotary, false },
    { "RMSNormalization", lower_rms_norm, false },
    { "Swish", lower_swish, false },
    { "SwiGLU", lower_swiglu, false },
    { "CausalConvWithState", lower_causal_conv, false },
    { "DFT", lower_dft, false },
    { "BlackmanWindow", lower_window, false },
    { "CenterCropPad", lower_center_crop_pad, false },
    { "Col2Im", lower_col2im, false },
    { "Compress", lower_compress, false },
    { "DeformConv", lower_deform_conv, false },
    { "HammingWindow", lower_window, false },
    { "HannWindow", lower_window, false },
    { "Hardmax", lower_hardmax, false },
    { "LpNormalization", lower_lp_normalization, false },
    { "MaxUnpool", lower_max_unpool, false },
    { "MeanVarianceNormalization", lower_mean_variance, false },
    { "ReverseSequence", lower_reverse_sequence, false },
    { "STFT", lower_stft, false },
    { "TensorScatter", lower_scatter, false },
    { "QuantizeLinear", lower_quantize, true },
    { "DequantizeLinear", lower_dequantize, true },
    { "DynamicQuantizeLinear", lower_dynamic_quantize, true },
    { "MatMulInteger", lower_matmul_integer, true },
    { "ConvInteger", lower_conv_integer, true },
    { "QLinearMatMul", lower_qlinear_matmul, true },
    { "QLinearConv", lower_qlinear_conv, true },
};

/* ---- PLAN_RUN with 16-bit floats: lowered in float32 ---- */

static bool is_narrow(const struct plan *p, uint32_t value)
{
    return value != GRAPH_NONE && (p->values.at[value].tensor.dtype == TENSOR_F16 ||
                                   p->values.at[value].tensor.dtype == TENSOR_BF16);
}

/* Replaces the 16-bit inputs in the map by float32 casts; previous [n_in] receives the previous
 * values. Returns the type of the first such input, or TENSOR_NONE. */
static enum tensor_dtype widen_inputs(struct lowering *l, uint32_t *previous)
{
    enum tensor_dtype type = TENSOR_NONE;

    for (uint32_t i = 0; i < l->from->n_in; i++) {
        previous[i] = lower_in(l, i);
        if (l->p->purpose != PLAN_RUN || !is_narrow(l->p, previous[i]))
            continue;
        type = type == TENSOR_NONE ? l->p->values.at[previous[i]].tensor.dtype : type;
        l->b->map[l->from->in[i]] = lower_cast(l, previous[i], TENSOR_F32);
    }
    return type;
}

static void narrow_outputs(struct lowering *l, const uint32_t *previous, enum tensor_dtype type)
{
    for (uint32_t i = l->from->n_in; i-- > 0;) /* in reverse order, because one value may be several
                                                  inputs */
        if (l->from->in[i] != GRAPH_NONE)
            l->b->map[l->from->in[i]] = previous[i];
    for (uint32_t i = 0; i < l->from->n_out && l->rc == 0; i++) {
        uint32_t value = l->from->out[i] != GRAPH_NONE ? l->b->map[l->from->out[i]] : GRAPH_NONE;

        if (value != GRAPH_NONE && l->p->values.at[value].tensor.dtype == TENSOR_F32)
            lower_out(l, i, lower_cast(l, value, type));
    }
}

int plan_lower(struct plan_builder *b, const struct graph_node *from, struct err *err)
{
    struct lowering l = { .b = b, .p = b->p, .from = from, .err = err,
                          .attrs = { .def = from->def, .node = from->name, .opset = b->p->g->opset,
                                     .attrs = from->attrs, .n_attrs = from->n_attrs } };
    enum tensor_dtype type;
    uint32_t *previous;
    size_t i = 0;

    while (i < COUNT_OF(lowerings) && strcmp(lowerings[i].op, from->def->name) != 0)
        i++;
    CHECK(i < COUNT_OF(lowerings));
    previous = arena_array(&b->p->mem, from->n_in, sizeof(*previous));
    if (previous == NULL)
        return plan_no_memory(err);
    type = lowerings[i].has_own_types ? TENSOR_NONE : widen_inputs(&l, previous);
    if (l.rc == 0)
        lowerings[i].lower(&l);
    if (type != TENSOR_NONE)
        narrow_outputs(&l, previous, type);
    return l.rc;
}
