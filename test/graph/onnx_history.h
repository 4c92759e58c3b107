/* onnx_history.h - made by make_history.py with onnx 1.23.2. Do not edit. */
enum { HISTORY_NEWEST = 28 };

static const struct history history[] = {
    { "Abs", {
        { 1, "consumed_inputs " },
        { 6, "" },
        { 13, "" },
    } },
    { "Acos", {
        { 7, "" },
        { 22, "" },
    } },
    { "Acosh", {
        { 9, "" },
        { 22, "" },
    } },
    { "Add", {
        { 1, "axis broadcast=0 consumed_inputs " },
        { 6, "axis broadcast=0 " },
        { 7, "" },
        { 13, "" },
        { 14, "" },
    } },
    { "AffineGrid", {
        { 20, "align_corners=0 " },
    } },
    { "And", {
        { 1, "axis broadcast=0 " },
        { 7, "" },
    } },
    { "ArgMax", {
        { 1, "axis=0 keepdims=1 " },
        { 11, "axis=0 keepdims=1 " },
        { 12, "axis=0 keepdims=1 select_last_index=0 " },
        { 13, "axis=0 keepdims=1 select_last_index=0 " },
    } },
    { "ArgMin", {
        { 1, "axis=0 keepdims=1 " },
        { 11, "axis=0 keepdims=1 " },
        { 12, "axis=0 keepdims=1 select_last_index=0 " },
        { 13, "axis=0 keepdims=1 select_last_index=0 " },
    } },
    { "Asin", {
        { 7, "" },
        { 22, "" },
    } },
    { "Asinh", {
        { 9, "" },
        { 22, "" },
    } },
    { "Atan", {
        { 7, "" },
        { 22, "" },
    } },
    { "Atanh", {
        { 9, "" },
        { 22, "" },
    } },
    { "Attention", {
        { 23, "is_causal=0 kv_num_heads q_num_heads qk_matmul_output_mode=0 scale softcap=0 softmax_precision " },
        { 24, "is_causal=0 kv_num_heads q_num_heads qk_matmul_output_mode=0 scale softcap=0 softmax_precision " },
        { 25, "is_causal=0 kv_num_heads left_window_size=-1 q_num_heads qk_matmul_output_mode=0 right_window_size=-1 scale softcap=0 softmax_precision " },
    } },
    { "AveragePool", {
        { 1, "auto_pad=NOTSET kernel_shape pads strides " },
        { 7, "auto_pad=NOTSET count_include_pad=0 kernel_shape pads strides " },
        { 10, "auto_pad=NOTSET ceil_mode=0 count_include_pad=0 kernel_shape pads strides " },
        { 11, "auto_pad=NOTSET ceil_mode=0 count_include_pad=0 kernel_shape pads strides " },
        { 19, "auto_pad=NOTSET ceil_mode=0 count_include_pad=0 dilations kernel_shape pads strides " },
        { 22, "auto_pad=NOTSET ceil_mode=0 count_include_pad=0 dilations kernel_shape pads strides " },
    } },
    { "BatchNormalization", {
        { 1, "consumed_inputs epsilon=9.99999975e-06 is_test=0 momentum=0.899999976 spatial=1 " },
        { 6, "epsilon=9.99999975e-06 is_test=0 momentum=0.899999976 spatial=1 " },
        { 7, "epsilon=9.99999975e-06 momentum=0.899999976 spatial=1 " },
        { 9, "epsilon=9.99999975e-06 momentum=0.899999976 " },
        { 14, "epsilon=9.99999975e-06 momentum=0.899999976 training_mode=0 " },
        { 15, "epsilon=9.99999975e-06 momentum=0.899999976 training_mode=0 " },
    } },
    { "Bernoulli", {
        { 15, "dtype seed " },
        { 22, "dtype seed " },
    } },
    { "BitCast", {
        { 26, "to " },
    } },
    { "BitShift", {
        { 11, "direction " },
        { 28, "direction " },
    } },
    { "BitwiseAnd", {
        { 18, "" },
    } },
    { "BitwiseNot", {
        { 18, "" },
    } },
    { "BitwiseOr", {
        { 18, "" },
    } },
    { "BitwiseXor", {
        { 18, "" },
    } },
    { "BlackmanWindow", {
        { 17, "output_datatype=1 periodic=1 " },
    } },
    { "Cast", {
        { 1, "to " },
        { 6, "to " },
        { 9, "to " },
        { 13, "to " },
        { 19, "saturate=1 to " },
        { 21, "saturate=1 to " },
        { 23, "saturate=1 to " },
        { 24, "round_mode=up saturate=1 to " },
        { 25, "round_mode=up saturate=1 to " },
        { 28, "round_mode=up saturate=1 to " },
    } },
    { "CastLike", {
        { 15, "" },
        { 19, "saturate=1 " },
        { 21, "saturate=1 " },
        { 23, "saturate=1 " },
        { 24, "round_mode=up saturate=1 " },
        { 25, "round_mode=up saturate=1 " },
    } },
    { "CausalConvWithState", {
        { 27, "activation=none " },
    } },
    { "Ceil", {
        { 1, "consumed_inputs " },
        { 6, "" },
        { 13, "" },
    } },
    { "Celu", {
        { 12, "alpha=1 " },
        { 28, "alpha=1 " },
    } },
    { "CenterCropPad", {
        { 18, "axes " },
    } },
    { "Clip", {
        { 1, "consumed_inputs max min " },
        { 6, "max=3.40282347e+38 min=-3.40282347e+38 " },
        { 11, "" },
        { 12, "" },
        { 13, "" },
    } },
    { "Col2Im", {
        { 18, "dilations pads strides " },
    } },
    { "Compress", {
        { 9, "axis " },
        { 11, "axis " },
        { 28, "axis " },
    } },
    { "Concat", {
        { 1, "axis " },
        { 4, "axis " },
        { 11, "axis " },
        { 13, "axis " },
    } },
    { "ConcatFromSequence", {
        { 11, "axis new_axis=0 " },
    } },
    { "Constant", {
        { 1, "value " },
        { 9, "value " },
        { 11, "sparse_value value " },
        { 12, "sparse_value value value_float value_floats value_int value_ints value_string value_strings " },
        { 13, "sparse_value value value_float value_floats value_int value_ints value_string value_strings " },
        { 19, "sparse_value value value_float value_floats value_int value_ints value_string value_strings " },
        { 21, "sparse_value value value_float value_floats value_int value_ints value_string value_strings " },
        { 23, "sparse_value value value_float value_floats value_int value_ints value_string value_strings " },
        { 24, "sparse_value value value_float value_floats value_int value_ints value_string value_strings " },
        { 25, "sparse_value value value_float value_floats value_int value_ints value_string value_strings " },
    } },
    { "ConstantOfShape", {
        { 9, "value " },
        { 20, "value " },
        { 21, "value " },
        { 23, "value " },
        { 24, "value " },
        { 25, "value " },
    } },
    { "Conv", {
        { 1, "auto_pad=NOTSET dilations group=1 kernel_shape pads strides " },
        { 11, "auto_pad=NOTSET dilations group=1 kernel_shape pads strides " },
        { 22, "auto_pad=NOTSET dilations group=1 kernel_shape pads strides " },
    } },
    { "ConvInteger", {
        { 10, "auto_pad=NOTSET dilations group=1 kernel_shape pads strides " },
    } },
    { "ConvTranspose", {
        { 1, "auto_pad=NOTSET dilations group=1 kernel_shape output_padding output_shape pads strides " },
        { 11, "auto_pad=NOTSET dilations group=1 kernel_shape output_padding output_shape pads strides " },
        { 22, "auto_pad=NOTSET dilations group=1 kernel_shape output_padding output_shape pads strides " },
    } },
    { "Cos", {
        { 7, "" },
        { 22, "" },
    } },
    { "Cosh", {
        { 9, "" },
        { 22, "" },
    } },
    { "CumProd", {
        { 26, "exclusive=0 reverse=0 " },
    } },
    { "CumSum", {
        { 11, "exclusive=0 reverse=0 " },
        { 14, "exclusive=0 reverse=0 " },
    } },
    { "DFT", {
        { 17, "axis=1 inverse=0 onesided=0 " },
        { 20, "inverse=0 onesided=0 " },
    } },
    { "DeformConv", {
        { 19, "dilations group=1 kernel_shape offset_group=1 pads strides " },
        { 22, "dilations group=1 kernel_shape offset_group=1 pads strides " },
    } },
    { "DepthToSpace", {
        { 1, "blocksize " },
        { 11, "blocksize mode=DCR " },
        { 13, "blocksize mode=DCR " },
        { 28, "blocksize mode=DCR " },
    } },
    { "DequantizeLinear", {
        { 10, "" },
        { 13, "axis=1 " },
        { 19, "axis=1 " },
        { 21, "axis=1 block_size=0 " },
        { 23, "axis=1 block_size=0 output_dtype=0 " },
        { 24, "axis=1 block_size=0 output_dtype=0 " },
        { 25, "axis=1 block_size=0 output_dtype=0 " },
        { 28, "axis=1 block_size=0 output_dtype=0 " },
    } },
    { "Det", {
        { 11, "" },
        { 22, "" },
    } },
    { "Div", {
        { 1, "axis broadcast=0 consumed_inputs " },
        { 6, "axis broadcast=0 " },
        { 7, "" },
        { 13, "" },
        { 14, "" },
    } },
    { "Dropout", {
        { 1, "consumed_inputs is_test=0 ratio=0.5 " },
        { 6, "is_test=0 ratio=0.5 " },
        { 7, "ratio=0.5 " },
        { 10, "ratio=0.5 " },
        { 12, "seed " },
        { 13, "seed " },
        { 22, "seed " },
    } },
    { "DynamicQuantizeLinear", {
        { 11, "" },
    } },
    { "Einsum", {
        { 12, "equation " },
        { 28, "equation " },
    } },
    { "Elu", {
        { 1, "alpha=1 consumed_inputs " },
        { 6, "alpha=1 " },
        { 22, "alpha=1 " },
    } },
    { "Equal", {
        { 1, "axis broadcast=0 " },
        { 7, "" },
        { 11, "" },
        { 13, "" },
        { 19, "" },
    } },
    { "Erf", {
        { 9, "" },
        { 13, "" },
    } },
    { "Exp", {
        { 1, "consumed_inputs " },
        { 6, "" },
        { 13, "" },
    } },
    { "Expand", {
        { 8, "" },
        { 13, "" },
    } },
    { "EyeLike", {
        { 9, "dtype k=0 " },
        { 22, "dtype k=0 " },
    } },
    { "Flatten", {
        { 1, "axis=1 " },
        { 9, "axis=1 " },
        { 11, "axis=1 " },
        { 13, "axis=1 " },
        { 21, "axis=1 " },
        { 23, "axis=1 " },
        { 24, "axis=1 " },
        { 25, "axis=1 " },
    } },
    { "Floor", {
        { 1, "consumed_inputs " },
        { 6, "" },
        { 13, "" },
    } },
    { "GRU", {
        { 1, "activation_alpha activation_beta activations clip direction=foward hidden_size output_sequence=0 " },
        { 3, "activation_alpha activation_beta activations clip direction=forward hidden_size linear_before_reset=0 output_sequence=0 " },
        { 7, "activation_alpha activation_beta activations clip direction=forward hidden_size linear_before_reset=0 " },
        { 14, "activation_alpha activation_beta activations clip direction=forward hidden_size layout=0 linear_before_reset=0 " },
        { 22, "activation_alpha activation_beta activations clip direction=forward hidden_size layout=0 linear_before_reset=0 " },
    } },
    { "Gather", {
        { 1, "axis=0 " },
        { 11, "axis=0 " },
        { 13, "axis=0 " },
    } },
    { "GatherElements", {
        { 11, "axis=0 " },
        { 13, "axis=0 " },
    } },
    { "GatherND", {
        { 11, "" },
        { 12, "batch_dims=0 " },
        { 13, "batch_dims=0 " },
    } },
    { "Gelu", {
        { 20, "approximate=none " },
    } },
    { "Gemm", {
        { 1, "alpha=1 beta=1 broadcast=0 transA=0 transB=0 " },
        { 6, "alpha=1 beta=1 broadcast=0 transA=0 transB=0 " },
        { 7, "alpha=1 beta=1 transA=0 transB=0 " },
        { 9, "alpha=1 beta=1 transA=0 transB=0 " },
        { 11, "alpha=1 beta=1 transA=0 transB=0 " },
        { 13, "alpha=1 beta=1 transA=0 transB=0 " },
    } },
    { "GlobalAveragePool", {
        { 1, "" },
        { 22, "" },
    } },
    { "GlobalLpPool", {
        { 1, "p=2 " },
        { 2, "p=2 " },
        { 22, "p=2 " },
    } },
    { "GlobalMaxPool", {
        { 1, "" },
        { 22, "" },
    } },
    { "Greater", {
        { 1, "axis broadcast=0 " },
        { 7, "" },
        { 9, "" },
        { 13, "" },
    } },
    { "GreaterOrEqual", {
        { 12, "" },
        { 16, "" },
    } },
    { "GridSample", {
        { 16, "align_corners=0 mode=bilinear padding_mode=zeros " },
        { 20, "align_corners=0 mode=linear padding_mode=zeros " },
        { 22, "align_corners=0 mode=linear padding_mode=zeros " },
    } },
    { "GroupNormalization", {
        { 18, "epsilon=9.99999975e-06 num_groups " },
        { 21, "epsilon=9.99999975e-06 num_groups stash_type=1 " },
    } },
    { "HammingWindow", {
        { 17, "output_datatype=1 periodic=1 " },
    } },
    { "HannWindow", {
        { 17, "output_datatype=1 periodic=1 " },
    } },
    { "HardSigmoid", {
        { 1, "alpha=0.200000003 beta=0.5 consumed_inputs " },
        { 6, "alpha=0.200000003 beta=0.5 " },
        { 22, "alpha=0.200000003 beta=0.5 " },
    } },
    { "HardSwish", {
        { 14, "" },
        { 22, "" },
    } },
    { "Hardmax", {
        { 1, "axis=1 " },
        { 11, "axis=1 " },
        { 13, "axis=-1 " },
    } },
    { "Identity", {
        { 1, "" },
        { 13, "" },
        { 14, "" },
        { 16, "" },
        { 19, "" },
        { 21, "" },
        { 23, "" },
        { 24, "" },
        { 25, "" },
    } },
    { "If", {
        { 1, "else_branch then_branch " },
        { 11, "else_branch then_branch " },
        { 13, "else_branch then_branch " },
        { 16, "else_branch then_branch " },
        { 19, "else_branch then_branch " },
        { 21, "else_branch then_branch " },
        { 23, "else_branch then_branch " },
        { 24, "else_branch then_branch " },
        { 25, "else_branch then_branch " },
    } },
    { "ImageDecoder", {
        { 20, "pixel_format=RGB " },
    } },
    { "InstanceNormalization", {
        { 1, "consumed_inputs epsilon=9.99999975e-06 " },
        { 6, "epsilon=9.99999975e-06 " },
        { 22, "epsilon=9.99999975e-06 " },
    } },
    { "IsInf", {
        { 10, "detect_negative=1 detect_positive=1 " },
        { 20, "detect_negative=1 detect_positive=1 " },
    } },
    { "IsNaN", {
        { 9, "" },
        { 13, "" },
        { 20, "" },
    } },
    { "LRN", {
        { 1, "alpha=9.99999975e-05 beta=0.75 bias=1 size " },
        { 13, "alpha=9.99999975e-05 beta=0.75 bias=1 size " },
    } },
    { "LSTM", {
        { 1, "activation_alpha activation_beta activations clip direction=forward hidden_size input_forget=0 output_sequence=0 " },
        { 7, "activation_alpha activation_beta activations clip direction=forward hidden_size input_forget=0 " },
        { 14, "activation_alpha activation_beta activations clip direction=forward hidden_size input_forget=0 layout=0 " },
        { 22, "activation_alpha activation_beta activations clip direction=forward hidden_size input_forget=0 layout=0 " },
    } },
    { "LayerNormalization", {
        { 17, "axis=-1 epsilon=9.99999975e-06 stash_type=1 " },
    } },
    { "LeakyRelu", {
        { 1, "alpha=0.00999999978 consumed_inputs " },
        { 6, "alpha=0.00999999978 " },
        { 16, "alpha=0.00999999978 " },
    } },
    { "Less", {
        { 1, "axis broadcast=0 " },
        { 7, "" },
        { 9, "" },
        { 13, "" },
    } },
    { "LessOrEqual", {
        { 12, "" },
        { 16, "" },
    } },
    { "LinearAttention", {
        { 27, "chunk_size=64 kv_num_heads q_num_heads scale=0 update_rule=gated_delta " },
    } },
    { "Log", {
        { 1, "consumed_inputs " },
        { 6, "" },
        { 13, "" },
    } },
    { "LogSoftmax", {
        { 1, "axis=1 " },
        { 11, "axis=1 " },
        { 13, "axis=-1 " },
    } },
    { "Loop", {
        { 1, "body " },
        { 11, "body " },
        { 13, "body " },
        { 16, "body " },
        { 19, "body " },
        { 21, "body " },
        { 23, "body " },
        { 24, "body " },
        { 25, "body " },
    } },
    { "LpNormalization", {
        { 1, "axis=-1 p=2 " },
        { 22, "axis=-1 p=2 " },
    } },
    { "LpPool", {
        { 1, "auto_pad=NOTSET kernel_shape p=2 pads strides " },
        { 2, "auto_pad=NOTSET kernel_shape p=2 pads strides " },
        { 11, "auto_pad=NOTSET kernel_shape p=2 pads strides " },
        { 18, "auto_pad=NOTSET ceil_mode=0 dilations kernel_shape p=2 pads strides " },
        { 22, "auto_pad=NOTSET ceil_mode=0 dilations kernel_shape p=2 pads strides " },
    } },
    { "MatMul", {
        { 1, "" },
        { 9, "" },
        { 13, "" },
    } },
    { "MatMulInteger", {
        { 10, "" },
    } },
    { "Max", {
        { 1, "consumed_inputs " },
        { 6, "" },
        { 8, "" },
        { 12, "" },
        { 13, "" },
    } },
    { "MaxPool", {
        { 1, "auto_pad=NOTSET kernel_shape pads strides " },
        { 8, "auto_pad=NOTSET kernel_shape pads storage_order=0 strides " },
        { 10, "auto_pad=NOTSET ceil_mode=0 dilations kernel_shape pads storage_order=0 strides " },
        { 11, "auto_pad=NOTSET ceil_mode=0 dilations kernel_shape pads storage_order=0 strides " },
        { 12, "auto_pad=NOTSET ceil_mode=0 dilations kernel_shape pads storage_order=0 strides " },
        { 22, "auto_pad=NOTSET ceil_mode=0 dilations kernel_shape pads storage_order=0 strides " },
    } },
    { "MaxRoiPool", {
        { 1, "pooled_shape spatial_scale=1 " },
        { 22, "pooled_shape spatial_scale=1 " },
    } },
    { "MaxUnpool", {
        { 9, "kernel_shape pads strides " },
        { 11, "kernel_shape pads strides " },
        { 22, "kernel_shape pads strides " },
    } },
    { "Mean", {
        { 1, "consumed_inputs " },
        { 6, "" },
        { 8, "" },
        { 13, "" },
    } },
    { "MeanVarianceNormalization", {
        { 9, "axes=[0, 2, 3] " },
        { 13, "axes=[0, 2, 3] " },
    } },
    { "MelWeightMatrix", {
        { 17, "output_datatype=1 " },
    } },
    { "Min", {
        { 1, "consumed_inputs " },
        { 6, "" },
        { 8, "" },
        { 12, "" },
        { 13, "" },
    } },
    { "Mish", {
        { 18, "" },
        { 22, "" },
    } },
    { "Mod", {
        { 10, "fmod=0 " },
        { 13, "fmod=0 " },
        { 28, "fmod=0 " },
    } },
    { "Mul", {
        { 1, "axis broadcast=0 consumed_inputs " },
        { 6, "axis broadcast=0 " },
        { 7, "" },
        { 13, "" },
        { 14, "" },
    } },
    { "Multinomial", {
        { 7, "dtype=6 sample_size=1 seed " },
        { 22, "dtype=6 sample_size=1 seed " },
    } },
    { "Neg", {
        { 1, "consumed_inputs " },
        { 6, "" },
        { 13, "" },
    } },
    { "NegativeLogLikelihoodLoss", {
        { 12, "ignore_index reduction=mean " },
        { 13, "ignore_index reduction=mean " },
        { 22, "ignore_index reduction=mean " },
    } },
    { "NonMaxSuppression", {
        { 10, "center_point_box=0 " },
        { 11, "center_point_box=0 " },
    } },
    { "NonZero", {
        { 9, "" },
        { 13, "" },
    } },
    { "Not", {
        { 1, "" },
    } },
    { "OneHot", {
        { 9, "axis=-1 " },
        { 11, "axis=-1 " },
        { 28, "axis=-1 " },
    } },
    { "Optional", {
        { 15, "type " },
        { 28, "type " },
    } },
    { "OptionalGetElement", {
        { 15, "" },
        { 18, "" },
        { 28, "" },
    } },
    { "OptionalHasElement", {
        { 15, "" },
        { 18, "" },
        { 28, "" },
    } },
    { "Or", {
        { 1, "axis broadcast=0 " },
        { 7, "" },
    } },
    { "PRelu", {
        { 1, "consumed_inputs " },
        { 6, "" },
        { 7, "" },
        { 9, "" },
        { 16, "" },
    } },
    { "Pad", {
        { 1, "mode=constant paddings value=0 " },
        { 2, "mode=constant pads value=0 " },
        { 11, "mode=constant " },
        { 13, "mode=constant " },
        { 18, "mode=constant " },
        { 19, "mode=constant " },
        { 21, "mode=constant " },
        { 23, "mode=constant " },
        { 24, "mode=constant " },
        { 25, "mode=constant " },
    } },
    { "Pow", {
        { 1, "axis broadcast=0 " },
        { 7, "" },
        { 12, "" },
        { 13, "" },
        { 15, "" },
    } },
    { "QLinearConv", {
        { 10, "auto_pad=NOTSET dilations group=1 kernel_shape pads strides " },
    } },
    { "QLinearMatMul", {
        { 10, "" },
        { 21, "" },
    } },
    { "QuantizeLinear", {
        { 10, "" },
        { 13, "axis=1 " },
        { 19, "axis=1 saturate=1 " },
        { 21, "axis=1 block_size=0 output_dtype=0 saturate=1 " },
        { 23, "axis=1 block_size=0 output_dtype=0 precision=0 saturate=1 " },
        { 24, "axis=1 block_size=0 output_dtype=0 precision=0 saturate=1 " },
        { 25, "axis=1 block_size=0 output_dtype=0 precision=0 saturate=1 " },
        { 28, "axis=1 block_size=0 output_dtype=0 precision=0 saturate=1 " },
    } },
    { "RMSNormalization", {
        { 23, "axis=-1 epsilon=9.99999975e-06 stash_type=1 " },
    } },
    { "RNN", {
        { 1, "activation_alpha activation_beta activations=[b'Tanh', b'Tanh'] clip direction=forward hidden_size output_sequence=0 " },
        { 7, "activation_alpha activation_beta activations=[b'Tanh', b'Tanh'] clip direction=forward hidden_size " },
        { 14, "activation_alpha activation_beta activations=[b'Tanh', b'Tanh'] clip direction=forward hidden_size layout=0 " },
        { 22, "activation_alpha activation_beta activations=[b'Tanh', b'Tanh'] clip direction=forward hidden_size layout=0 " },
    } },
    { "RandomNormal", {
        { 1, "dtype=1 mean=0 scale=1 seed shape " },
        { 22, "dtype=1 mean=0 scale=1 seed shape " },
    } },
    { "RandomNormalLike", {
        { 1, "dtype mean=0 scale=1 seed " },
        { 22, "dtype mean=0 scale=1 seed " },
    } },
    { "RandomUniform", {
        { 1, "dtype=1 high=1 low=0 seed shape " },
        { 22, "dtype=1 high=1 low=0 seed shape " },
    } },
    { "RandomUniformLike", {
        { 1, "dtype high=1 low=0 seed " },
        { 22, "dtype high=1 low=0 seed " },
    } },
    { "Range", {
        { 11, "" },
        { 27, "stash_type=1 " },
    } },
    { "Reciprocal", {
        { 1, "consumed_inputs " },
        { 6, "" },
        { 13, "" },
    } },
    { "ReduceL1", {
        { 1, "axes keepdims=1 " },
        { 11, "axes keepdims=1 " },
        { 13, "axes keepdims=1 " },
        { 18, "keepdims=1 noop_with_empty_axes=0 " },
    } },
    { "ReduceL2", {
        { 1, "axes keepdims=1 " },
        { 11, "axes keepdims=1 " },
        { 13, "axes keepdims=1 " },
        { 18, "keepdims=1 noop_with_empty_axes=0 " },
    } },
    { "ReduceLogSum", {
        { 1, "axes keepdims=1 " },
        { 11, "axes keepdims=1 " },
        { 13, "axes keepdims=1 " },
        { 18, "keepdims=1 noop_with_empty_axes=0 " },
        { 28, "keepdims=1 noop_with_empty_axes=0 " },
    } },
    { "ReduceLogSumExp", {
        { 1, "axes keepdims=1 " },
        { 11, "axes keepdims=1 " },
        { 13, "axes keepdims=1 " },
        { 18, "keepdims=1 noop_with_empty_axes=0 " },
        { 28, "keepdims=1 noop_with_empty_axes=0 " },
    } },
    { "ReduceMax", {
        { 1, "axes keepdims=1 " },
        { 11, "axes keepdims=1 " },
        { 12, "axes keepdims=1 " },
        { 13, "axes keepdims=1 " },
        { 18, "keepdims=1 noop_with_empty_axes=0 " },
        { 20, "keepdims=1 noop_with_empty_axes=0 " },
    } },
    { "ReduceMean", {
        { 1, "axes keepdims=1 " },
        { 11, "axes keepdims=1 " },
        { 13, "axes keepdims=1 " },
        { 18, "keepdims=1 noop_with_empty_axes=0 " },
    } },
    { "ReduceMin", {
        { 1, "axes keepdims=1 " },
        { 11, "axes keepdims=1 " },
        { 12, "axes keepdims=1 " },
        { 13, "axes keepdims=1 " },
        { 18, "keepdims=1 noop_with_empty_axes=0 " },
        { 20, "keepdims=1 noop_with_empty_axes=0 " },
    } },
    { "ReduceProd", {
        { 1, "axes keepdims=1 " },
        { 11, "axes keepdims=1 " },
        { 13, "axes keepdims=1 " },
        { 18, "keepdims=1 noop_with_empty_axes=0 " },
    } },
    { "ReduceSum", {
        { 1, "axes keepdims=1 " },
        { 11, "axes keepdims=1 " },
        { 13, "keepdims=1 noop_with_empty_axes=0 " },
    } },
    { "ReduceSumSquare", {
        { 1, "axes keepdims=1 " },
        { 11, "axes keepdims=1 " },
        { 13, "axes keepdims=1 " },
        { 18, "keepdims=1 noop_with_empty_axes=0 " },
    } },
    { "RegexFullMatch", {
        { 20, "pattern " },
    } },
    { "Relu", {
        { 1, "consumed_inputs " },
        { 6, "" },
        { 13, "" },
        { 14, "" },
    } },
    { "Reshape", {
        { 1, "consumed_inputs shape " },
        { 5, "" },
        { 13, "" },
        { 14, "allowzero=0 " },
        { 19, "allowzero=0 " },
        { 21, "allowzero=0 " },
        { 23, "allowzero=0 " },
        { 24, "allowzero=0 " },
        { 25, "allowzero=0 " },
    } },
    { "Resize", {
        { 10, "mode=nearest " },
        { 11, "coordinate_transformation_mode=half_pixel cubic_coeff_a=-0.75 exclude_outside=0 extrapolation_value=0 mode=nearest nearest_mode=round_prefer_floor " },
        { 13, "coordinate_transformation_mode=half_pixel cubic_coeff_a=-0.75 exclude_outside=0 extrapolation_value=0 mode=nearest nearest_mode=round_prefer_floor " },
        { 18, "antialias=0 axes coordinate_transformation_mode=half_pixel cubic_coeff_a=-0.75 exclude_outside=0 extrapolation_value=0 keep_aspect_ratio_policy=stretch mode=nearest nearest_mode=round_prefer_floor " },
        { 19, "antialias=0 axes coordinate_transformation_mode=half_pixel cubic_coeff_a=-0.75 exclude_outside=0 extrapolation_value=0 keep_aspect_ratio_policy=stretch mode=nearest nearest_mode=round_prefer_floor " },
    } },
    { "ReverseSequence", {
        { 10, "batch_axis=1 time_axis=0 " },
        { 28, "batch_axis=1 time_axis=0 " },
    } },
    { "RoiAlign", {
        { 10, "mode=avg output_height=1 output_width=1 sampling_ratio=0 spatial_scale=1 " },
        { 16, "coordinate_transformation_mode=half_pixel mode=avg output_height=1 output_width=1 sampling_ratio=0 spatial_scale=1 " },
        { 22, "coordinate_transformation_mode=half_pixel mode=avg output_height=1 output_width=1 sampling_ratio=0 spatial_scale=1 " },
    } },
    { "RotaryEmbedding", {
        { 23, "interleaved=0 num_heads rotary_embedding_dim=0 " },
    } },
    { "Round", {
        { 11, "" },
        { 22, "" },
    } },
    { "STFT", {
        { 17, "onesided=1 " },
    } },
    { "Scan", {
        { 8, "body directions num_scan_inputs " },
        { 9, "body num_scan_inputs scan_input_axes scan_input_directions scan_output_axes scan_output_directions " },
        { 11, "body num_scan_inputs scan_input_axes scan_input_directions scan_output_axes scan_output_directions " },
        { 16, "body num_scan_inputs scan_input_axes scan_input_directions scan_output_axes scan_output_directions " },
        { 19, "body num_scan_inputs scan_input_axes scan_input_directions scan_output_axes scan_output_directions " },
        { 21, "body num_scan_inputs scan_input_axes scan_input_directions scan_output_axes scan_output_directions " },
        { 23, "body num_scan_inputs scan_input_axes scan_input_directions scan_output_axes scan_output_directions " },
        { 24, "body num_scan_inputs scan_input_axes scan_input_directions scan_output_axes scan_output_directions " },
        { 25, "body num_scan_inputs scan_input_axes scan_input_directions scan_output_axes scan_output_directions " },
    } },
    { "Scatter", {
        { 9, "axis=0 " },
        { 11, "axis=0 " },
    } },
    { "ScatterElements", {
        { 11, "axis=0 " },
        { 13, "axis=0 " },
        { 16, "axis=0 reduction=none " },
        { 18, "axis=0 reduction=none " },
    } },
    { "ScatterND", {
        { 11, "" },
        { 13, "" },
        { 16, "reduction=none " },
        { 18, "reduction=none " },
    } },
    { "Selu", {
        { 1, "alpha=1.67320001 consumed_inputs gamma=1.05069995 " },
        { 6, "alpha=1.67326319 gamma=1.05070102 " },
        { 22, "alpha=1.67326319 gamma=1.05070102 " },
    } },
    { "SequenceAt", {
        { 11, "" },
    } },
    { "SequenceConstruct", {
        { 11, "" },
    } },
    { "SequenceEmpty", {
        { 11, "dtype " },
    } },
    { "SequenceErase", {
        { 11, "" },
    } },
    { "SequenceInsert", {
        { 11, "" },
    } },
    { "SequenceLength", {
        { 11, "" },
    } },
    { "SequenceMap", {
        { 17, "body " },
    } },
    { "Shape", {
        { 1, "" },
        { 13, "" },
        { 15, "end start=0 " },
        { 19, "end start=0 " },
        { 21, "end start=0 " },
        { 23, "end start=0 " },
        { 24, "end start=0 " },
        { 25, "end start=0 " },
    } },
    { "Shrink", {
        { 9, "bias=0 lambd=0.5 " },
    } },
    { "Sigmoid", {
        { 1, "consumed_inputs " },
        { 6, "" },
        { 13, "" },
    } },
    { "Sign", {
        { 9, "" },
        { 13, "" },
    } },
    { "Sin", {
        { 7, "" },
        { 22, "" },
    } },
    { "Sinh", {
        { 9, "" },
        { 22, "" },
    } },
    { "Size", {
        { 1, "" },
        { 13, "" },
        { 19, "" },
        { 21, "" },
        { 23, "" },
        { 24, "" },
        { 25, "" },
    } },
    { "Slice", {
        { 1, "axes ends starts " },
        { 10, "" },
        { 11, "" },
        { 13, "" },
    } },
    { "Softmax", {
        { 1, "axis=1 " },
        { 11, "axis=1 " },
        { 13, "axis=-1 " },
    } },
    { "SoftmaxCrossEntropyLoss", {
        { 12, "ignore_index reduction=mean " },
        { 13, "ignore_index reduction=mean " },
    } },
    { "Softplus", {
        { 1, "" },
        { 22, "" },
    } },
    { "Softsign", {
        { 1, "" },
        { 22, "" },
    } },
    { "SpaceToDepth", {
        { 1, "blocksize " },
        { 13, "blocksize " },
        { 28, "blocksize mode=DCR " },
    } },
    { "Split", {
        { 1, "axis split " },
        { 2, "axis=0 split " },
        { 11, "axis=0 split " },
        { 13, "axis=0 " },
        { 18, "axis=0 num_outputs " },
    } },
    { "SplitToSequence", {
        { 11, "axis=0 keepdims=1 " },
        { 24, "axis=0 keepdims=1 " },
    } },
    { "Sqrt", {
        { 1, "consumed_inputs " },
        { 6, "" },
        { 13, "" },
    } },
    { "Squeeze", {
        { 1, "axes " },
        { 11, "axes " },
        { 13, "" },
        { 21, "" },
        { 23, "" },
        { 24, "" },
        { 25, "" },
    } },
    { "StringConcat", {
        { 20, "" },
    } },
    { "StringNormalizer", {
        { 10, "case_change_action=NONE is_case_sensitive=0 locale stopwords " },
    } },
    { "StringSplit", {
        { 20, "delimiter maxsplit " },
    } },
    { "Sub", {
        { 1, "axis broadcast=0 consumed_inputs " },
        { 6, "axis broadcast=0 " },
        { 7, "" },
        { 13, "" },
        { 14, "" },
    } },
    { "Sum", {
        { 1, "consumed_inputs " },
        { 6, "" },
        { 8, "" },
        { 13, "" },
    } },
    { "SwiGLU", {
        { 28, "alpha=1 " },
    } },
    { "Swish", {
        { 24, "alpha=1 " },
    } },
    { "Tan", {
        { 7, "" },
        { 22, "" },
    } },
    { "Tanh", {
        { 1, "consumed_inputs " },
        { 6, "" },
        { 13, "" },
    } },
    { "TensorScatter", {
        { 24, "axis=-2 mode=linear " },
    } },
    { "TfIdfVectorizer", {
        { 9, "max_gram_length max_skip_count min_gram_length mode ngram_counts ngram_indexes pool_int64s pool_strings weights " },
    } },
    { "ThresholdedRelu", {
        { 10, "alpha=1 " },
        { 22, "alpha=1 " },
    } },
    { "Tile", {
        { 1, "" },
        { 6, "" },
        { 13, "" },
    } },
    { "TopK", {
        { 1, "axis=-1 k " },
        { 10, "axis=-1 " },
        { 11, "axis=-1 largest=1 sorted=1 " },
        { 24, "axis=-1 largest=1 sorted=1 " },
    } },
    { "Transpose", {
        { 1, "perm " },
        { 13, "perm " },
        { 21, "perm " },
        { 23, "perm " },
        { 24, "perm " },
        { 25, "perm " },
    } },
    { "Trilu", {
        { 14, "upper=1 " },
    } },
    { "Unique", {
        { 11, "axis sorted=1 " },
        { 28, "axis sorted=1 " },
    } },
    { "Unsqueeze", {
        { 1, "axes " },
        { 11, "axes " },
        { 13, "" },
        { 21, "" },
        { 23, "" },
        { 24, "" },
        { 25, "" },
    } },
    { "Upsample", {
        { 1, "height_scale mode=nearest width_scale " },
        { 7, "mode=nearest scales " },
        { 9, "mode=nearest " },
        { 10, "mode=nearest " },
    } },
    { "Where", {
        { 9, "" },
        { 16, "" },
    } },
    { "Xor", {
        { 1, "axis broadcast=0 " },
        { 7, "" },
    } },
};
