/* speed_cases.c - the cases of `ops speed`. On a GPU the shapes are those of ResNet-50 with 256
 * images and of a GPT-2 with 16 x 1024 tokens; on a CPU the batch is smaller, with --quick tiny. */
#include "ops/speed.h"

#define B SPEED_BATCH
#define IMAGES { 256, 8, 1 }
#define TOKENS { 16384, 512, 16 }
#define ROWS_OF_SOFTMAX { 65536, 2048, 16 }

/* ---- operands ---- */

#define IMAGE(c_, side_) { .dim = { B, c_, side_, side_ }, .rank = 4 }
#define ROWS(n_) { .dim = { B, n_ }, .rank = 2 }
#define ROWS_OF(n_, fill_) { .dim = { B, n_ }, .rank = 2, .fill = (fill_) }
#define TOKENS_OF(n_) { .dim = { B, 1024, n_ }, .rank = 3 }
#define EACH(fill_) { .dim = { B }, .rank = 1, .fill = (fill_) }
#define MATRIX(rows_, n_) { .dim = { rows_, n_ }, .rank = 2 }
#define VECTOR(n_) { .dim = { n_ }, .rank = 1 }
#define POSITIVE(n_) { .dim = { n_ }, .rank = 1, .fill = SPEED_POSITIVE }
#define WEIGHT(...) { .dim = { __VA_ARGS__ }, .rank = sizeof((int64_t[]){ __VA_ARGS__ }) / sizeof(int64_t), \
                      .is_weight = true }
#define CONSTANT(list_) { .dim = { sizeof(list_) / sizeof((list_)[0]) }, .rank = 1, .ints = (list_) }
#define NORM_OF(c_) VECTOR(c_), VECTOR(c_), VECTOR(c_), POSITIVE(c_)

/* ---- attributes ---- */

#define ATTRS(list_) .attrs = (list_), .n_attrs = sizeof(list_) / sizeof((list_)[0])
#define INT(name_, i_) { .name = (name_), .type = OP_ATTR_INT, .i = (i_) }
#define INTS(name_, list_) { .name = (name_), .type = OP_ATTR_INTS, \
                             .n = sizeof(list_) / sizeof((list_)[0]), .ints = (list_) }

static const int64_t twos[] = { 2, 2 }, threes[] = { 3, 3 }, ones_around[] = { 1, 1, 1, 1 },
                     heads_first[] = { 0, 2, 1, 3 }, zero[] = { 0 }, one[] = { 1 },
                     causal[] = { INT64_MIN, 0 }, four_times[] = { 1, 4 },
                     quarter[] = { 768 }, around[] = { 0, 0, 1, 1, 0, 0, 1, 1 };
static const float doubled[] = { 1, 1, 2, 2 };
static const struct op_attr training[] = { INT("training_mode", 1) };
static const struct op_attr pool[] = { INTS("kernel_shape", threes), INTS("strides", twos),
                                       INTS("pads", ones_around) };
static const struct op_attr by_tanh[] = { { .name = "approximate", .type = OP_ATTR_STRING, .s = "tanh" } };
static const struct op_attr swish[] = { { .name = "function", .type = OP_ATTR_STRING, .s = "swish" } };
static const struct op_attr heads[] = { INTS("perm", heads_first) };
static const struct op_attr over_columns[] = { INTS("axes", zero), INT("keepdims", 0) };
static const struct op_attr over_lines[] = { INTS("axes", one), INT("keepdims", 0) };
static const struct op_attr axis_1[] = { INT("axis", 1) };
static const struct op_attr a_tenth[] = { { .name = "ratio", .type = OP_ATTR_FLOAT, .f = 0.1f } };
static const struct op_attr to_bfloat16[] = { INT("to", TENSOR_BF16) };
static const struct op_attr to_int32[] = { INT("to", TENSOR_I32) };
static const struct op_attr groups[] = { INT("num_groups", 32) };
static const struct op_attr blocks_of_2[] = { INT("blocksize", 2) };
static const struct op_attr size_5[] = { INT("size", 5) };
static const struct op_attr upscale[] = { { .name = "scales", .type = OP_ATTR_FLOATS, .n = 4, .floats = doubled } };
static const struct op_attr same[] = { INTS("pads", ones_around) };
static const struct op_attr stride_2[] = { INTS("strides", twos) };
static const struct op_attr past_only[] = { INTS("band", causal) };
static const struct op_attr hidden_512[] = { INT("hidden_size", 512) };
static const struct op_attr linear_12[] = { INT("q_num_heads", 12), INT("kv_num_heads", 12),
                                            { .name = "update_rule", .type = OP_ATTR_STRING, .s = "linear" } };
static const struct op_attr outer[] = { { .name = "equation", .type = OP_ATTR_STRING, .s = "bi,bj->ij" } };

/* ---- the table ---- */

#define UNARY(op_, opset_) { NULL, op_, opset_, TOKENS, .in = { ROWS(3072) } }
#define OF_POSITIVE(op_, opset_) { NULL, op_, opset_, TOKENS, .in = { ROWS_OF(3072, SPEED_POSITIVE) } }
#define BINARY(op_, opset_) { NULL, op_, opset_, TOKENS, .in = { ROWS(3072), ROWS_OF(3072, SPEED_POSITIVE) } }
#define LOGIC(op_) { NULL, op_, 7, TOKENS, .in = { ROWS_OF(3072, SPEED_MASK), ROWS_OF(3072, SPEED_MASK) } }
#define REDUCE_18(op_) { NULL, op_, 18, TOKENS, .in = { ROWS(3072), CONSTANT(one) } }
#define REDUCE(op_, opset_, axes_) { NULL, op_, opset_, TOKENS, .in = { ROWS(3072) }, ATTRS(axes_) }
#define LOSS(op_) { "trainerd", op_, 1, TOKENS, .in = { ROWS(3072), ROWS(3072), EACH(SPEED_POSITIVE) } }

const struct speed_case speed_cases[] = {
    /* element-wise */
    { NULL, "Relu", 14, IMAGES, .in = { IMAGE(256, 56) } },
    { NULL, "Add", 14, IMAGES, .in = { IMAGE(256, 56), IMAGE(256, 56) } },
    { NULL, "Add", 14, TOKENS, .in = { ROWS(768), VECTOR(768) } },
    { NULL, "Mul", 14, TOKENS, .in = { ROWS(3072), ROWS(3072) } },
    BINARY("Sub", 14), BINARY("Div", 14), BINARY("Equal", 13), BINARY("Greater", 13), BINARY("Less", 13),
    BINARY("GreaterOrEqual", 16), BINARY("LessOrEqual", 16),
    BINARY("Max", 13), BINARY("Min", 13), BINARY("Sum", 13), BINARY("Mean", 13),
    { NULL, "Pow", 13, TOKENS, .in = { ROWS_OF(3072, SPEED_POSITIVE), ROWS(3072) } },
    { NULL, "PRelu", 16, TOKENS, .in = { ROWS(3072), VECTOR(3072) } },
    LOGIC("And"), LOGIC("Or"), LOGIC("Xor"),
    { NULL, "Not", 1, TOKENS, .in = { ROWS_OF(3072, SPEED_MASK) } },
    { NULL, "Where", 16, TOKENS, .in = { ROWS_OF(3072, SPEED_MASK), ROWS(3072), ROWS(3072) } },
    UNARY("Sigmoid", 13), UNARY("Tanh", 13), UNARY("Erf", 13), UNARY("Exp", 13), UNARY("Neg", 13), UNARY("Abs", 13),
    UNARY("Sign", 13), UNARY("Floor", 13), UNARY("Ceil", 13), UNARY("Round", 11), UNARY("Sin", 7), UNARY("Cos", 7),
    UNARY("Tan", 7), UNARY("Asin", 7), UNARY("Acos", 7), UNARY("Atan", 7), UNARY("Sinh", 9), UNARY("Cosh", 9),
    UNARY("Asinh", 9), UNARY("Atanh", 9), UNARY("IsNaN", 13), UNARY("IsInf", 10), UNARY("LeakyRelu", 16),
    UNARY("ThresholdedRelu", 10), UNARY("Elu", 6), UNARY("Selu", 6), UNARY("Celu", 12), UNARY("HardSigmoid", 6),
    UNARY("HardSwish", 14), UNARY("Shrink", 9), UNARY("Softplus", 1), UNARY("Softsign", 1), UNARY("Mish", 18),
    UNARY("Clip", 13), UNARY("Identity", 14),
    OF_POSITIVE("Log", 13), OF_POSITIVE("Sqrt", 13), OF_POSITIVE("Reciprocal", 13),
    { NULL, "Acosh", 9, TOKENS, .in = { ROWS_OF(3072, SPEED_POSITIVE) } },
    { NULL, "Gelu", 20, TOKENS, .in = { ROWS(3072) }, ATTRS(by_tanh) },
    { "trainerd", "Swish", 1, TOKENS, .in = { ROWS(3072) } },
    { "trainerd", "Gated", 1, TOKENS, .in = { ROWS(3072), ROWS(3072) }, ATTRS(swish) },
    { NULL, "Dropout", 10, TOKENS, .in = { ROWS(3072) }, ATTRS(a_tenth) },
    { NULL, "Cast", 13, TOKENS, .in = { ROWS(3072) }, ATTRS(to_int32) },
    { "trainerd", "Convert", 1, TOKENS, .in = { ROWS(3072) }, ATTRS(to_bfloat16) },
    /* moves */
    { "trainerd", "Reorder", 1, IMAGES, .in = { IMAGE(3, 224) }, .plain_in = true },
    { NULL, "Transpose", 13, { 16, 1, 1 }, .in = { { .dim = { B, 1024, 12, 64 }, .rank = 4 } }, ATTRS(heads) },
    { NULL, "Concat", 13, TOKENS, .in = { ROWS(768), ROWS(2304) }, ATTRS(axis_1) },
    { NULL, "DepthToSpace", 13, IMAGES, .in = { IMAGE(64, 56) }, ATTRS(blocks_of_2) },
    { NULL, "SpaceToDepth", 13, IMAGES, .in = { IMAGE(16, 112) }, ATTRS(blocks_of_2) },
    { NULL, "Upsample", 7, IMAGES, .in = { IMAGE(64, 28) }, ATTRS(upscale) },
    { NULL, "Tile", 13, TOKENS, .in = { ROWS(768), CONSTANT(four_times) } },
    { NULL, "Gather", 13, TOKENS, .in = { { .dim = { 50304, 768 }, .rank = 2, .is_partial = true }, EACH(SPEED_LABELS) } },
    { NULL, "Slice", 13, TOKENS,
      .in = { { .dim = { B, 3072 }, .rank = 2, .is_partial = true }, CONSTANT(zero), CONSTANT(quarter), CONSTANT(one) } },
    { NULL, "Pad", 13, IMAGES, .in = { IMAGE(64, 56), CONSTANT(around) } },
    { NULL, "RandomNormalLike", 1, TOKENS, .in = { ROWS(3072) } },
    { "trainerd", "Rotary", 1, { 192, 12, 1 }, .in = { TOKENS_OF(64), MATRIX(1024, 64), MATRIX(1024, 64) } },
    { NULL, "Trilu", 14, { 384, 12, 1 }, .in = { TOKENS_OF(1024) } },
    /* normalisation */
    { NULL, "BatchNormalization", 15, IMAGES, .in = { IMAGE(64, 112), NORM_OF(64) }, ATTRS(training),
      .reads = 2, .reads_back = 2 },
    { "trainerd", "BatchNormRelu", 1, IMAGES, .in = { IMAGE(64, 112), NORM_OF(64) }, ATTRS(training),
      .reads = 2, .reads_back = 2 },
    { "trainerd", "BatchNormRelu", 1, IMAGES, .in = { IMAGE(256, 56), NORM_OF(256), IMAGE(256, 56) },
      ATTRS(training), .reads = 2, .reads_back = 2 },
    { "trainerd", "BatchNormAdd", 1, IMAGES, .in = { IMAGE(256, 56), NORM_OF(256), IMAGE(256, 56) },
      ATTRS(training), .reads = 2, .reads_back = 2 },
    { NULL, "InstanceNormalization", 6, IMAGES, .in = { IMAGE(64, 56), VECTOR(64), VECTOR(64) } },
    { NULL, "GroupNormalization", 21, IMAGES, .in = { IMAGE(256, 56), VECTOR(256), VECTOR(256) }, ATTRS(groups) },
    { NULL, "LayerNormalization", 17, TOKENS, .in = { ROWS(768), VECTOR(768), VECTOR(768) } },
    { NULL, "LayerNormalization", 17, TOKENS, .in = { ROWS(4096), VECTOR(4096), VECTOR(4096) } },
    { NULL, "RMSNormalization", 23, TOKENS, .in = { ROWS(4096), VECTOR(4096) } },
    { "trainerd", "RMSNormalization", 1, TOKENS, .in = { ROWS(4096), VECTOR(4096) } },
    { NULL, "LRN", 13, IMAGES, .in = { IMAGE(64, 28) }, ATTRS(size_5) },
    /* softmax and losses */
    { NULL, "Softmax", 13, ROWS_OF_SOFTMAX, .in = { ROWS(1024) } },
    { NULL, "Softmax", 11, ROWS_OF_SOFTMAX, .in = { ROWS(1024) } },
    { NULL, "LogSoftmax", 13, ROWS_OF_SOFTMAX, .in = { ROWS(1024) } },
    { "trainerd", "SoftmaxCrossEntropy", 1, { 16384, 64, 2 },
      .in = { ROWS(50304), EACH(SPEED_LABELS), EACH(SPEED_POSITIVE) } },
    { "trainerd", "SoftmaxCrossEntropy", 1, { 131072, 2048, 16 },
      .in = { ROWS(1000), EACH(SPEED_LABELS), EACH(SPEED_POSITIVE) } },
    { NULL, "SoftmaxCrossEntropyLoss", 13, { 131072, 2048, 16 }, .in = { ROWS(1000), EACH(SPEED_LABELS) } },
    { NULL, "NegativeLogLikelihoodLoss", 13, { 131072, 2048, 16 }, .in = { ROWS(1000), EACH(SPEED_LABELS) } },
    { "trainerd", "NegativeLogLikelihood", 1, { 131072, 2048, 16 },
      .in = { ROWS(1000), EACH(SPEED_LABELS), EACH(SPEED_POSITIVE) } },
    { "trainerd", "Accuracy", 1, { 131072, 2048, 16 },
      .in = { ROWS(1000), EACH(SPEED_LABELS), EACH(SPEED_POSITIVE) } },
    LOSS("BinaryCrossEntropy"), LOSS("MeanSquaredError"), LOSS("MeanAbsoluteError"), LOSS("Huber"),
    /* pools and reductions */
    { NULL, "MaxPool", 12, IMAGES, .in = { IMAGE(64, 112) }, ATTRS(pool) },
    { NULL, "AveragePool", 11, IMAGES, .in = { IMAGE(64, 112) }, ATTRS(pool) },
    { NULL, "LpPool", 11, IMAGES, .in = { IMAGE(64, 112) }, ATTRS(pool) },
    { NULL, "GlobalAveragePool", 1, IMAGES, .in = { IMAGE(2048, 7) } },
    { NULL, "GlobalMaxPool", 1, IMAGES, .in = { IMAGE(2048, 7) } },
    { NULL, "GlobalLpPool", 2, IMAGES, .in = { IMAGE(2048, 7) } },
    REDUCE("ReduceSum", 11, over_columns), REDUCE("ReduceMean", 13, over_lines), REDUCE("ReduceMax", 13, over_lines),
    REDUCE("ReduceMin", 13, over_lines), REDUCE("ReduceProd", 13, over_lines), REDUCE("ReduceL1", 13, over_lines),
    REDUCE("ReduceL2", 13, over_lines), REDUCE("ReduceSumSquare", 13, over_lines),
    REDUCE("ReduceLogSumExp", 13, over_lines),
    { NULL, "ReduceSum", 13, TOKENS, .in = { ROWS(3072), CONSTANT(one) } },
    REDUCE_18("ReduceMean"), REDUCE_18("ReduceMax"), REDUCE_18("ReduceMin"), REDUCE_18("ReduceProd"),
    REDUCE_18("ReduceL1"), REDUCE_18("ReduceL2"), REDUCE_18("ReduceSumSquare"), REDUCE_18("ReduceLogSumExp"),
    { NULL, "ReduceLogSum", 18, TOKENS, .in = { ROWS_OF(3072, SPEED_POSITIVE), CONSTANT(one) } },
    { NULL, "ArgMax", 13, TOKENS, .in = { ROWS(3072) }, ATTRS(axis_1) },
    { NULL, "ArgMin", 13, TOKENS, .in = { ROWS(3072) }, ATTRS(axis_1) },
    { NULL, "CumSum", 14, TOKENS, .in = { ROWS(3072), CONSTANT(one) } },
    { NULL, "CumProd", 26, TOKENS, .in = { ROWS(3072), CONSTANT(one) } },
    /* products */
    { NULL, "MatMul", 13, TOKENS, .in = { ROWS(768), WEIGHT(768, 3072) } },
    { "trainerd", "MatMul", 1, TOKENS, .in = { ROWS(768), WEIGHT(768, 2304), WEIGHT(2304) } },
    { NULL, "Gemm", 13, TOKENS, .in = { ROWS(2048), WEIGHT(2048, 1000), WEIGHT(1000) } },
    { "trainerd", "Mlp", 1, TOKENS, .in = { ROWS(768), WEIGHT(768, 3072), WEIGHT(3072), WEIGHT(3072, 768), WEIGHT(768) } },
    { NULL, "Einsum", 12, TOKENS, .in = { ROWS(768), ROWS(768) }, ATTRS(outer) },
    { NULL, "Conv", 11, IMAGES, .in = { IMAGE(256, 14), WEIGHT(256, 256, 3, 3) }, ATTRS(same) },
    { NULL, "Conv", 11, IMAGES, .in = { IMAGE(256, 56), WEIGHT(64, 256, 1, 1) } },
    { NULL, "ConvTranspose", 11, IMAGES, .in = { IMAGE(128, 14), WEIGHT(128, 64, 2, 2) }, ATTRS(stride_2) },
    { "trainerd", "Attention", 1, { 192, 12, 1 },
      .in = { TOKENS_OF(64), { .dim = { B, 64, 1024 }, .rank = 3 }, TOKENS_OF(64) },
      ATTRS(past_only) },
    { NULL, "LinearAttention", 27, { 16, 1, 1 }, .in = { TOKENS_OF(768), TOKENS_OF(768), TOKENS_OF(768) },
      ATTRS(linear_12) },
    { NULL, "LSTM", 14, { 256, 32, 2 },
      .in = { { .dim = { 16, B, 512 }, .rank = 3 }, WEIGHT(1, 2048, 512), WEIGHT(1, 2048, 512) }, ATTRS(hidden_512) },
    { NULL, "GRU", 14, { 256, 32, 2 },
      .in = { { .dim = { 16, B, 512 }, .rank = 3 }, WEIGHT(1, 1536, 512), WEIGHT(1, 1536, 512) }, ATTRS(hidden_512) },
    { NULL, "RNN", 14, { 256, 32, 2 },
      .in = { { .dim = { 16, B, 512 }, .rank = 3 }, WEIGHT(1, 512, 512), WEIGHT(1, 512, 512) }, ATTRS(hidden_512) },
};
const size_t n_speed_cases = sizeof(speed_cases) / sizeof(speed_cases[0]);

const struct speed_case speed_square_product = { NULL, "MatMul", 13, { 4096, 1024, 64 },
                                                 .in = { MATRIX(B, B), MATRIX(B, B) } };
