/* lowered.c - rows of ONNX ops without kernels, which the planner replaces by nodes of other rows
 * (plan_lower.c). */
#include "graph/graph_priv.h"

#include <string.h>

#include "base/check.h"

static const char *const attention_attrs[] = { "is_causal",      "kv_num_heads",      "q_num_heads",
                                               "qk_matmul_output_mode", "scale", "softcap",
                                               "softmax_precision", NULL };
static const char *const attention_25_attrs[] = { "is_causal",      "kv_num_heads",      "q_num_heads",
                                                  "qk_matmul_output_mode", "scale", "softcap",
                                                  "softmax_precision", "left_window_size",
                                                  "right_window_size", NULL };
static const char *const rotary_attrs[] = { "interleaved", "num_heads", "rotary_embedding_dim", NULL };
static const char *const rms_attrs[] = { "axis", "epsilon", "stash_type", NULL };
static const char *const gate_attrs[] = { "alpha", NULL };
static const char *const conv_attrs[] = { "activation", NULL };

static const char *const dft_17_attrs[] = { "axis", "inverse", "onesided", NULL };
static const char *const dft_20_attrs[] = { "inverse", "onesided", NULL };
static const char *const scatter_attrs[] = { "axis", "mode", NULL };

static const char *const axes_attrs[] = { "axes", NULL };
static const char *const axis_attrs[] = { "axis", NULL };
static const char *const col2im_attrs[] = { "dilations", "pads", "strides", NULL };
static const char *const corners_attrs[] = { "align_corners", NULL };
static const char *const deform_attrs[] = { "dilations", "group", "kernel_shape", "offset_group", "pads", "strides", NULL };
static const char *const lp_attrs[] = { "axis", "p", NULL };
static const char *const reverse_attrs[] = { "batch_axis", "time_axis", NULL };
static const char *const stft_attrs[] = { "onesided", NULL };
static const char *const unpool_attrs[] = { "kernel_shape", "pads", "strides", NULL };
static const char *const window_attrs[] = { "output_datatype", "periodic", NULL };

static const char *const linear_attrs[] = { "axis", "block_size", "output_dtype", "precision", "saturate", NULL };
static const char *const dequantize_attrs[] = { "axis", "block_size", "output_dtype", NULL };
static const char *const places_attrs[] = { "auto_pad", "dilations", "group", "kernel_shape", "pads", "strides",
                                            NULL };
static const char *const no_attrs[] = { NULL };

enum { Q = OP_IN(0), K = OP_IN(1), V = OP_IN(2), MASK = OP_IN(3), PAST_KEY = OP_IN(4), PAST_VALUE = OP_IN(5) };

static const struct op_def rows[] = {
    { .name = "Attention", .since = 23, .until = 23, .n_in = { 3, 6 }, .n_out = { 1, 4 },
      .attrs = attention_attrs, .diff = Q | K | V | MASK | PAST_KEY | PAST_VALUE },
    { .name = "Attention", .since = 24, .until = 24, .n_in = { 3, 7 }, .n_out = { 1, 4 },
      .attrs = attention_attrs, .diff = Q | K | V | MASK | PAST_KEY | PAST_VALUE },
    { .name = "Attention", .since = 25, .n_in = { 3, 7 }, .n_out = { 1, 4 }, .attrs = attention_25_attrs,
      .diff = Q | K | V | MASK | PAST_KEY | PAST_VALUE },
    { .name = "RotaryEmbedding", .since = 23, .n_in = { 3, 4 }, .n_out = { 1, 1 }, .attrs = rotary_attrs,
      .diff = OP_IN(0) },
    { .name = "RMSNormalization", .since = 23, .n_in = { 2, 2 }, .n_out = { 1, 1 }, .attrs = rms_attrs,
      .diff = OP_IN(0) | OP_IN(1) },
    { .name = "Swish", .since = 24, .n_in = { 1, 1 }, .n_out = { 1, 1 }, .attrs = gate_attrs, .diff = OP_IN(0) },
    { .name = "SwiGLU", .since = 28, .n_in = { 2, 2 }, .n_out = { 1, 1 }, .attrs = gate_attrs,
      .diff = OP_IN(0) | OP_IN(1) },
    { .name = "CausalConvWithState", .since = 27, .n_in = { 2, 4 }, .n_out = { 1, 2 }, .attrs = conv_attrs,
      .diff = OP_IN(0) | OP_IN(1) | OP_IN(2) | OP_IN(3) },
    { .name = "DFT", .since = 20, .n_in = { 1, 3 }, .n_out = { 1, 1 }, .attrs = dft_20_attrs, .diff = OP_IN(0) },
    { .name = "DFT", .since = 17, .until = 19, .n_in = { 1, 2 }, .n_out = { 1, 1 }, .attrs = dft_17_attrs,
      .diff = OP_IN(0) },
    { .name = "AffineGrid", .since = 20, .n_in = { 2, 2 }, .n_out = { 1, 1 }, .attrs = corners_attrs, .diff = OP_IN(0) },
    { .name = "BlackmanWindow", .since = 17, .n_in = { 1, 1 }, .n_out = { 1, 1 }, .attrs = window_attrs },
    { .name = "CenterCropPad", .since = 18, .n_in = { 2, 2 }, .n_out = { 1, 1 }, .attrs = axes_attrs, .diff = OP_IN(0) },
    { .name = "Col2Im", .since = 18, .n_in = { 3, 3 }, .n_out = { 1, 1 }, .attrs = col2im_attrs, .diff = OP_IN(0) },
    { .name = "Compress", .since = 9, .n_in = { 2, 2 }, .n_out = { 1, 1 }, .attrs = axis_attrs, .diff = OP_IN(0) },
    { .name = "DeformConv", .since = 19, .n_in = { 3, 5 }, .n_out = { 1, 1 }, .attrs = deform_attrs,
      .diff = OP_IN(0) | OP_IN(1) | OP_IN(2) | OP_IN(3) | OP_IN(4) },
    { .name = "HammingWindow", .since = 17, .n_in = { 1, 1 }, .n_out = { 1, 1 }, .attrs = window_attrs },
    { .name = "HannWindow", .since = 17, .n_in = { 1, 1 }, .n_out = { 1, 1 }, .attrs = window_attrs },
    { .name = "Hardmax", .since = 13, .n_in = { 1, 1 }, .n_out = { 1, 1 }, .attrs = axis_attrs },
    { .name = "Hardmax", .since = 1, .until = 12, .n_in = { 1, 1 }, .n_out = { 1, 1 }, .attrs = axis_attrs },
    { .name = "LpNormalization", .since = 1, .n_in = { 1, 1 }, .n_out = { 1, 1 }, .attrs = lp_attrs, .diff = OP_IN(0) },
    { .name = "MaxUnpool", .since = 9, .n_in = { 2, 3 }, .n_out = { 1, 1 }, .attrs = unpool_attrs, .diff = OP_IN(0) },
    { .name = "MeanVarianceNormalization", .since = 9, .n_in = { 1, 1 }, .n_out = { 1, 1 }, .attrs = axes_attrs,
      .diff = OP_IN(0) },
    { .name = "ReverseSequence", .since = 10, .n_in = { 2, 2 }, .n_out = { 1, 1 }, .attrs = reverse_attrs,
      .diff = OP_IN(0) },
    { .name = "STFT", .since = 17, .n_in = { 2, 4 }, .n_out = { 1, 1 }, .attrs = stft_attrs,
      .diff = OP_IN(0) | OP_IN(2) },
    { .name = "TensorScatter", .since = 24, .n_in = { 2, 3 }, .n_out = { 1, 1 }, .attrs = scatter_attrs,
      .diff = OP_IN(0) | OP_IN(1) },
    { .name = "QuantizeLinear", .since = 10, .n_in = { 2, 3 }, .n_out = { 1, 1 }, .attrs = linear_attrs },
    { .name = "DequantizeLinear", .since = 10, .n_in = { 2, 3 }, .n_out = { 1, 1 }, .attrs = dequantize_attrs },
    { .name = "DynamicQuantizeLinear", .since = 11, .n_in = { 1, 1 }, .n_out = { 3, 3 }, .attrs = no_attrs },
    { .name = "MatMulInteger", .since = 10, .n_in = { 2, 4 }, .n_out = { 1, 1 }, .attrs = no_attrs },
    { .name = "ConvInteger", .since = 10, .n_in = { 2, 4 }, .n_out = { 1, 1 }, .attrs = places_attrs },
    { .name = "QLinearMatMul", .since = 10, .n_in = { 8, 8 }, .n_out = { 1, 1 }, .attrs = no_attrs },
    { .name = "QLinearConv", .since = 10, .n_in = { 8, 9 }, .n_out = { 1, 1 }, .attrs = places_attrs },
};

const struct op_def *graph_lowered_row(const char *name, uint32_t opset)
{
    size_t i;

    for (i = 0; i < COUNT_OF(rows); i++)
        if (strcmp(rows[i].name, name) == 0 && rows[i].since <= opset &&
            (rows[i].until == 0 || rows[i].until >= opset))
            return &rows[i];
    return NULL;
}

const struct op_def *graph_lowered_at(size_t i)
{
    return i < COUNT_OF(rows) ? &rows[i] : NULL;
}

bool graph_is_lowered(const struct op_def *def)
{
    return def >= rows && def < rows + COUNT_OF(rows);
}

bool graph_passes_gradient(const struct op_def *def)
{
    return def->cpu.bwd != NULL || (graph_is_lowered(def) && def->diff != 0);
}
