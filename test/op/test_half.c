/* Kernels in bfloat16, each against the same op in float32 on the same (rounded) numbers: only the
 * rounding of stored values may differ. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/err.h"
#include "base/check.h"
#include "harness/gradcheck.h"
#include "harness/lacking.h"
#include "harness/op_record.h"
#include "harness/op_rig.h"
#include "op/half.h"

enum { IO = OP_IN(0) | OP_OUT(0), QKVY = IO | OP_IN(1) | OP_IN(2) };

#define T(...) { .shape = GRADCHECK_SHAPE(__VA_ARGS__) }
#define APART(...) { .shape = GRADCHECK_SHAPE(__VA_ARGS__), .apart = true }
#define POSITIVE(...) { .shape = GRADCHECK_SHAPE(__VA_ARGS__), .lo = 0.5, .hi = 2 }
#define INT(name_, i_) { .name = name_, .type = OP_ATTR_INT, .i = i_ }
#define FLOAT(name_, f_) { .name = name_, .type = OP_ATTR_FLOAT, .f = f_ }
#define INTS(name_, ...)                                                                           \
    { .name = name_, .type = OP_ATTR_INTS, .n = sizeof((int64_t[]){ __VA_ARGS__ }) / 8,            \
      .ints = (const int64_t[]){ __VA_ARGS__ } }
#define ATTRS(...)                                                                                 \
    .attrs = (const struct op_attr[]){ __VA_ARGS__ },                                              \
    .n_attrs = sizeof((const struct op_attr[]){ __VA_ARGS__ }) / sizeof(struct op_attr)

static const int64_t starts[] = { 1, 0 }, ends[] = { 5, 7 }, axes[] = { 0, 1 }, steps[] = { 1, 2 };
#define CONSTANT(x_) { .dtype = TENSOR_I64, .shape = GRADCHECK_SHAPE(2), .data = x_, .constant = true }

static const struct gradcheck_case products[] = {
    { .op = "Conv", .opset = 13, .n_in = 3, .in = { T(2, 16, 9, 7), T(32, 16, 3, 3), T(32) },
      .half = IO, ATTRS(INTS("pads", 1, 1, 1, 1)) },
    { .op = "Conv", .opset = 13, .n_in = 2, .in = { T(2, 3, 17, 15), T(8, 3, 7, 7) }, .half = IO,
      ATTRS(INTS("pads", 3, 3, 3, 3), INTS("strides", 2, 2)) },
    { .op = "Conv", .opset = 13, .n_in = 3, .in = { T(2, 12, 6, 5), T(20, 12, 1, 1), T(20) },
      .half = IO },
    { .op = "Conv", .opset = 13, .n_in = 2, .in = { T(3, 33, 7, 6), T(17, 33, 1, 1) }, .half = IO,
      ATTRS(INTS("strides", 2, 2)) },
    { .op = "Conv", .opset = 13, .n_in = 3, .in = { T(2, 8, 11), T(6, 8, 1), T(6) }, .half = IO,
      ATTRS(INTS("strides", 3)) },
    { .op = "Conv", .opset = 13, .n_in = 2, .in = { T(1, 4, 3, 5, 4), T(6, 4, 1, 1, 1) },
      .half = IO, ATTRS(INTS("strides", 2, 1, 3)) },
    { .op = "Conv", .opset = 13, .n_in = 2, .in = { T(2, 16, 6, 6), T(16, 1, 3, 3) }, .half = IO,
      ATTRS(INT("group", 16), INTS("pads", 1, 1, 1, 1)) },
    { .op = "Conv", .opset = 13, .n_in = 3, .in = { T(2, 32, 5, 4), T(32, 16, 1, 1), T(32) },
      .half = IO, ATTRS(INT("group", 2)) },
    { .op = "ConvTranspose", .opset = 13, .n_in = 3, .in = { T(2, 6, 5, 4), T(6, 9, 3, 3), T(9) },
      .half = IO, ATTRS(INTS("strides", 2, 2), INTS("pads", 1, 1, 1, 1)) },
    { .op = "ConvTranspose", .opset = 13, .n_in = 3, .in = { T(1, 16, 6), T(16, 200, 2), T(200) },
      .half = IO, ATTRS(INTS("strides", 2)) },
    { .op = "Gemm", .opset = 13, .n_in = 3, .in = { T(5, 12), T(7, 12), T(7) }, .half = IO,
      ATTRS(INT("transB", 1)) },
    { .op = "Gemm", .opset = 13, .n_in = 3, .in = { T(12, 5), T(12, 7), T(5, 1) }, .half = IO,
      ATTRS(INT("transA", 1), FLOAT("alpha", 0.5f), FLOAT("beta", 2)) },
    { .op = "Gemm", .opset = 13, .n_in = 3, .in = { T(9, 6), T(6, 4), T(9, 4) },
      .half = IO | OP_IN(1), ATTRS(FLOAT("beta", 0.25f)) },
    { .op = "Gemm", .opset = 13, .n_in = 2, .in = { T(6, 40), T(40, 3) }, .half = IO,
      ATTRS(FLOAT("alpha", 3)) },
    { .op = "Gemm", .opset = 13, .n_in = 3, .in = { T(6, 10), T(10, 8), T(1) }, .half = IO },
    { .op = "MatMul", .opset = 13, .n_in = 2, .in = { T(2, 3, 8), T(8, 5) }, .half = IO },
    /* rows of odd length with many products per number: of y, of a factor */
    { .op = "MatMul", .opset = 13, .n_in = 2, .in = { T(3, 263), T(263, 9) }, .half = IO },
    { .op = "MatMul", .opset = 13, .n_in = 2, .in = { T(5, 9), T(9, 259) }, .half = IO | OP_IN(1) },
    { .domain = "trainerd", .op = "MatMul", .opset = 1, .n_in = 3, .in = { T(2, 3, 260), T(260, 9), T(9) },
      .half = IO },
    { .op = "MatMul", .opset = 13, .n_in = 2, .in = { T(2, 3, 260), T(2, 260, 9) }, .half = IO | OP_IN(1) },
    { .domain = "trainerd", .op = "MatMul", .opset = 1, .n_in = 3, .in = { T(2, 131, 9), T(5, 9), T(5) },
      .half = IO, ATTRS(INT("transB", 1)) },
    { .op = "MatMul", .opset = 13, .n_in = 2, .in = { T(6, 4), T(2, 4, 5) },
      .half = OP_IN(1) | OP_OUT(0) },
    { .op = "MatMul", .opset = 13, .n_in = 2, .in = { T(2, 3, 4, 8), T(2, 3, 8, 6) },
      .half = IO | OP_IN(1) },
    { .op = "MatMul", .opset = 13, .n_in = 2, .in = { T(2, 1, 4, 8), T(3, 8, 6) },
      .half = IO | OP_IN(1) },
    { .domain = "trainerd", .op = "Attention", .opset = 1, .n_in = 3, .half = QKVY,
      .in = { T(2, 3, 9, 8), T(2, 3, 8, 11), T(2, 3, 11, 5) } },
    { .domain = "trainerd", .op = "Attention", .opset = 1, .n_in = 3, .half = QKVY,
      .in = { T(1, 150, 2, 16), T(1, 170, 2, 16), T(1, 170, 2, 24) },
      ATTRS(INTS("perm_q", 0, 2, 1, 3), INTS("perm_k", 0, 2, 3, 1), INTS("perm_v", 0, 2, 1, 3),
            INTS("perm_y", 0, 2, 1, 3)) },
    { .domain = "trainerd", .op = "Attention", .opset = 1, .n_in = 3, /* q is a parameter */
      .half = QKVY & ~OP_IN(0), .in = { T(2, 70, 8), T(2, 8, 40), T(2, 40, 5) } },
    { .domain = "trainerd", .op = "MatMul", .opset = 1, .n_in = 3,
      .in = { T(2, 6, 8), T(10, 8), T(10) }, .half = IO, ATTRS(INT("transB", 1)) },
    { .domain = "trainerd", .op = "MatMul", .opset = 1, .n_in = 2, .in = { T(3, 8, 6), T(3, 5, 8) },
      .half = IO | OP_IN(1), ATTRS(INT("transA", 1), INT("transB", 1)) },
};

static const struct gradcheck_case others[] = {
    { .op = "Relu", .opset = 13, .n_in = 1, .in = { APART(3, 7, 61) }, .half = IO },
    { .op = "Sigmoid", .opset = 13, .n_in = 1, .in = { T(2500) }, .half = IO },
    { .op = "Gelu", .opset = 20, .n_in = 1, .in = { T(5, 700) }, .half = IO },
    { .op = "LeakyRelu", .opset = 13, .n_in = 1, .in = { APART(1100) }, .half = IO },
    { .op = "HardSwish", .opset = 14, .n_in = 1, .in = { T(31) }, .half = IO },
    { .op = "Neg", .opset = 13, .n_in = 1, .in = { T(31) }, .half = IO },
    { .op = "Abs", .opset = 13, .n_in = 1, .in = { APART(31) }, .half = IO },
    { .op = "Clip", .opset = 6, .n_in = 1, .in = { APART(2, 1100) }, .half = IO,
      ATTRS(FLOAT("min", 0), FLOAT("max", 0.6f)) },
    { .op = "Dropout", .opset = 7, .n_in = 1, .in = { T(2, 3, 900) }, .half = IO },
    { .op = "Add", .opset = 13, .n_in = 2, .in = { T(2, 5, 333), T(2, 5, 333) }, .half = IO | OP_IN(1) },
    { .op = "Add", .opset = 13, .n_in = 2, .in = { T(7, 1500), T(1500) }, .half = IO },
    { .op = "Add", .opset = 13, .n_in = 2, .in = { T(2, 6, 4, 3), T(6, 1, 1) }, .half = IO },
    { .op = "Add", .opset = 13, .n_in = 2, .in = { T(3, 40), T(3, 40) }, .half = OP_IN(1) },
    { .op = "Add", .opset = 13, .n_in = 2, .in = { T(1), T(3, 40) }, .half = IO | OP_IN(1) },
    { .op = "Sub", .opset = 13, .n_in = 2, .in = { T(3, 1), T(3, 40) }, .half = IO | OP_IN(1) },
    { .op = "Mul", .opset = 13, .n_in = 2, .in = { T(2, 1200), T(2, 1200) }, .half = IO | OP_IN(1) },
    { .op = "Mul", .opset = 13, .n_in = 2, .in = { T(2, 6, 5), T(2, 6, 1) }, .half = IO | OP_IN(1) },
    { .op = "Mul", .opset = 13, .n_in = 2, .in = { T(4, 30), { .lo = 0.1, .hi = 1 } }, .half = IO },
    { .op = "Div", .opset = 13, .n_in = 2, .in = { T(9, 30), POSITIVE(30) }, .half = IO },
    { .op = "BatchNormalization", .opset = 15, .n_in = 5,
      .in = { T(4, 6, 5, 3), POSITIVE(6), T(6), T(6), POSITIVE(6) }, .half = IO,
      ATTRS(INT("training_mode", 1)) },
    { .op = "BatchNormalization", .opset = 15, .n_in = 5,
      .in = { T(40, 200), POSITIVE(200), T(200), T(200), POSITIVE(200) }, .half = IO },
    { .domain = "trainerd", .op = "BatchNormAdd", .opset = 1, .n_in = 6,
      .in = { T(4, 6, 5), POSITIVE(6), T(6), T(6), POSITIVE(6), T(4, 6, 5) },
      .half = IO | OP_IN(5), ATTRS(INT("training_mode", 1)) },
    { .domain = "trainerd", .op = "BatchNormRelu", .opset = 1, .n_in = 6,
      .in = { T(4, 6, 5), POSITIVE(6), T(6), T(6), POSITIVE(6), T(4, 6, 5) },
      .half = IO | OP_IN(5), ATTRS(INT("training_mode", 1)) },
    { .domain = "trainerd", .op = "BatchNormRelu", .opset = 1, .n_in = 6,
      .in = { T(1100, 16), POSITIVE(16), T(16), T(16), POSITIVE(16), T(1100, 16) },
      .half = IO | OP_IN(5), ATTRS(INT("training_mode", 1)) },
    { .op = "LayerNormalization", .opset = 17, .n_in = 3, .half = IO,
      .in = { T(70, 33), POSITIVE(33), T(33) } },
    { .op = "LayerNormalization", .opset = 17, .n_in = 3, .half = IO,
      .in = { T(70, 96), POSITIVE(96), T(96) } },
    { .op = "LayerNormalization", .opset = 17, .n_in = 3, .half = OP_OUT(0),
      .in = { T(9, 33), POSITIVE(33), T(33) } },
    { .op = "LayerNormalization", .opset = 17, .n_in = 3, .half = OP_OUT(0),
      .in = { T(9, 72), POSITIVE(72), T(72) } },
    { .domain = "trainerd", .op = "LayerNormAdd", .opset = 1, .n_in = 4, .n_out = 2, .half = OP_IN(3) | OP_OUT(0),
      .in = { T(9, 72), POSITIVE(72), T(72), T(9, 72) } },
    { .domain = "trainerd", .op = "LayerNormAdd", .opset = 1, .n_in = 4, .n_out = 2, .half = OP_IN(0),
      .in = { T(9, 33), POSITIVE(33), T(33), T(9, 33) } },
    { .domain = "trainerd", .op = "RMSNormAdd", .opset = 1, .n_in = 4, .n_out = 2,
      .half = IO | OP_IN(3) | OP_OUT(1), .in = { T(9, 72), POSITIVE(72), { .absent = true }, T(9, 72) } },
    { .domain = "trainerd", .op = "LayerNormAdd", .opset = 1, .n_in = 4, .n_out = 2,
      .half = IO | OP_IN(3) | OP_OUT(1), .in = { T(9, 33), POSITIVE(33), T(33), T(9, 33) } },
    { .domain = "trainerd", .op = "RMSNormalization", .opset = 1, .n_in = 2, .half = IO,
      .in = { T(3, 5, 1030), POSITIVE(1030) } },
    { .op = "MaxPool", .opset = 12, .n_in = 1, .n_out = 2, .in = { APART(2, 5, 8, 6) }, .half = IO,
      ATTRS(INTS("kernel_shape", 3, 2), INTS("strides", 2, 2)) },
    { .op = "AveragePool", .opset = 11, .n_in = 1, .in = { T(2, 5, 8, 6) }, .half = IO,
      ATTRS(INTS("kernel_shape", 3, 3), INTS("strides", 2, 1), INTS("pads", 1, 1, 1, 1)) },
    { .op = "AveragePool", .opset = 11, .n_in = 1, .in = { T(3, 40, 9) }, .half = IO,
      ATTRS(INTS("kernel_shape", 2), INTS("strides", 2)) },
    { .op = "GlobalAveragePool", .opset = 13, .n_in = 1, .in = { T(3, 40, 7, 5) }, .half = IO },
    { .op = "Transpose", .opset = 13, .n_in = 1, .in = { T(2, 3, 40, 5) }, .half = IO,
      ATTRS(INTS("perm", 0, 2, 1, 3)) },
    { .op = "Transpose", .opset = 13, .n_in = 1, .in = { T(2, 12, 72) }, .half = IO,
      ATTRS(INTS("perm", 0, 2, 1)) },
    { .op = "Transpose", .opset = 13, .n_in = 1, .in = { T(9, 70) }, .half = IO,
      ATTRS(INTS("perm", 1, 0)) },
    { .op = "Transpose", .opset = 13, .n_in = 1, .in = { T(2, 5, 3, 16) }, .half = IO,
      ATTRS(INTS("perm", 0, 2, 1, 3)) },
    { .op = "Reshape", .opset = 13, .n_in = 2, .half = IO,
      .in = { T(3, 4), { .dtype = TENSOR_I64, .shape = GRADCHECK_SHAPE(2), .constant = true,
                         .data = (const int64_t[]){ 6, 2 } } } },
    { .op = "Concat", .opset = 13, .n_in = 2, .in = { T(2, 3, 4), T(2, 5, 4) },
      .half = IO | OP_IN(1), ATTRS(INT("axis", 1)) },
    { .op = "Split", .opset = 13, .n_in = 1, .n_out = 3, .in = { T(4, 9) },
      .half = IO | OP_OUT(1) | OP_OUT(2), ATTRS(INT("axis", 1)) },
    { .op = "Slice", .opset = 13, .n_in = 5, .half = IO,
      .in = { T(6, 8), CONSTANT(starts), CONSTANT(ends), CONSTANT(axes), CONSTANT(steps) } },
    { .op = "DepthToSpace", .opset = 13, .n_in = 1, .in = { T(2, 8, 3, 4) }, .half = IO,
      ATTRS(INT("blocksize", 2)) },
    { .domain = "trainerd", .op = "SoftmaxCrossEntropy", .opset = 1, .n_in = 3, .half = OP_IN(0),
      .in = { T(6, 1300), { .dtype = TENSOR_I64, .shape = GRADCHECK_SHAPE(6), .lo = 0, .hi = 1300 },
              POSITIVE(6) }, ATTRS(FLOAT("label_smoothing", 0.1f)) },
    { .domain = "trainerd", .op = "SoftmaxCrossEntropy", .opset = 1, .n_in = 3, .half = OP_IN(0),
      .in = { T(3, 9, 4), { .dtype = TENSOR_I64, .shape = GRADCHECK_SHAPE(3, 4), .lo = 0, .hi = 9 },
              POSITIVE(3) } },
    { .domain = "trainerd", .op = "Accuracy", .opset = 1, .n_in = 3, .half = OP_IN(0), .eval = true,
      .in = { T(40, 3), { .dtype = TENSOR_I64, .shape = GRADCHECK_SHAPE(40), .lo = 0, .hi = 3 },
              POSITIVE(40) } },
    { .op = "Identity", .opset = 13, .n_in = 1, .in = { T(77) }, .half = IO },
};

static double mean_size(const struct tensor *t)
{
    const float *x = t->data;
    size_t n = (size_t)tensor_elements(t), i;
    double sum = 0;

    for (i = 0; i < n; i++)
        sum += fabs((double)x[i]);
    return n > 0 ? sum / (double)n : 0;
}

static const char *type_of(const struct gradcheck_case *gc)
{
    return gc->float16 ? "float16" : "bfloat16";
}

/* One rounding to 8 bits changes a value by at most 2^-9 of it, several roundings by the same of
 * intermediate values. Sums in float32 in another order also lose the low digits of large
 * intermediate sums. */
static void expect_near(const struct gradcheck_case *gc, const char *what, uint32_t which,
                        const struct tensor *got, const struct tensor *want, double roundings)
{
    const float *a = got->data, *b = want->data;
    double size, rounding = (gc->float16 ? 0x1p-11 : 0x1p-8) * roundings;
    size_t n, i;

    assert_int_equal(got->data != NULL, want->data != NULL);
    if (got->data == NULL)
        return;
    assert_true(shape_equal(&got->shape, &want->shape) && got->dtype == want->dtype);
    n = (size_t)tensor_elements(want);
    if (want->dtype != TENSOR_F32) {
        assert_memory_equal(got->data, want->data, tensor_bytes(want));
        return;
    }
    size = mean_size(want) * (roundings > 1 ? rounding : 2e-5);
    for (i = 0; i < n; i++)
        if (!(fabs((double)a[i] - (double)b[i]) <= rounding * fabs((double)b[i]) + size))
            fail_msg("%s: %s %u, element %zu of %zu: %.9g in %s, %.9g in float32", gc->op, what,
                     which, i, n, (double)a[i], type_of(gc), (double)b[i]);
}

/* Number of successive roundings in a gradient: some backward functions read an output that was
 * rounded; a factor alpha, or the parts of a sum, are applied after a product. */
static double roundings(const struct gradcheck_case *gc)
{
    const struct op_def *def = op_find(gc->domain, gc->op, gc->opset);

    return (def->bwd_reads >> 16) != 0 || def->half == OP_HALF_WANT ? 4 : 1;
}

/* Attention weights, and the normalised sum, are rounded as intermediate values. */
static bool rounds_inside(const struct gradcheck_case *gc)
{
    return strcmp(gc->op, "Attention") == 0 ||
           (strstr(gc->op, "NormAdd") != NULL && (gc->half & OP_OUT(1)) != 0);
}

static void compare(const struct gradcheck_case *gc)
{
    struct gradcheck_case half = *gc, wide = *gc;
    struct gradcheck_result a, b;
    bool inside = rounds_inside(gc);
    /* The product is rounded before the bias is added: by cuDNN, and by cuBLASLt if rows are not
     * aligned. */
    bool biased = strcmp(gc->op, "ConvTranspose") == 0 || (gc->n_in > 2 && rig_on_gpu());
    bool twice = biased || inside;
    /* cuDNN computes gradients of weights in the type of the images. */
    bool rounds_weights = rig_on_gpu() && strncmp(gc->op, "Conv", 4) == 0;
    double more = roundings(gc);
    struct err err = { 0 };
    uint32_t i;

    half.seed = wide.seed = 5;
    if (rig_on_gpu() && (strcmp(gc->op, "Gemm") == 0 || strcmp(gc->op, "MatMul") == 0))
        half.rounded |= OP_IN(2) & ~gc->half; /* the bias of cuBLASLt has the type of the output */
    wide.rounded |= half.rounded | gc->half;
    wide.half = 0;
    if (gradcheck_backward(&half, &a, &err) < 0 || gradcheck_backward(&wide, &b, &err) < 0)
        fail_msg("%s: %s", gc->op, err.text);
    for (i = 0; i < GRADCHECK_MAX; i++) {
        bool in = (gc->half & OP_IN(i)) != 0, out = (gc->half & OP_OUT(i)) != 0;

        expect_near(gc, "input", i, &a.in[i], &b.in[i], 0);
        expect_near(gc, "output", i, &a.out[i], &b.out[i], out ? (twice ? 4 : 1) : 0);
        if (i == 1)
            in = in || rounds_weights;
        expect_near(gc, "gradient", i, &a.din[i], &b.din[i], in || inside ? more : 0);
    }
    gradcheck_free(&a);
    gradcheck_free(&b);
}

/* Accumulates gradients into 3: in bfloat16 the sum is rounded once more. */
static void compare_adding(const struct gradcheck_case *gc)
{
    struct gradcheck_case half = *gc, wide = *gc;
    struct tensor got, want;
    struct err err = { 0 };
    struct rig r[2];
    uint32_t i, k;
    size_t n, e;

    half.seed = wide.seed = 6;
    wide.rounded |= gc->half;
    wide.half = 0;
    for (k = 0; k < 2; k++) {
        if (rig_open(&r[k], k == 0 ? &half : &wide, UINT32_MAX, &err) < 0)
            fail_msg("%s: %s", gc->op, err.text);
        assert_int_equal(rig_fwd(&r[k], RIG_POISON_BIG, &err), 0);
        for (i = 0; i < r[k].n_in; i++) {
            n = r[k].din_at[i] != NULL ? (size_t)tensor_elements(&r[k].din[i]) : 0;
            for (e = 0; e < n; e++)
                if (r[k].din[i].dtype == TENSOR_BF16)
                    ((uint16_t *)r[k].din[i].data)[e] = 0x4040;
                else if (r[k].din[i].dtype == TENSOR_F16)
                    ((uint16_t *)r[k].din[i].data)[e] = 0x4200;
                else
                    ((float *)r[k].din[i].data)[e] = 3.0f;
        }
        if (r[k].wanted != 0)
            rig_bwd(&r[k], RIG_POISON_BIG, r[k].wanted & ~r[k].def->stat);
    }
    for (i = 0; i < r[0].n_in; i++) {
        if (r[0].din_at[i] == NULL)
            continue;
        rig_take(&r[0].din[i], &got, true);
        rig_take(&r[1].din[i], &want, true);
        for (e = 0; e < (size_t)tensor_elements(&want); e++) {
            double a = (double)((float *)got.data)[e], b = (double)((float *)want.data)[e];
            bool is_half = (gc->half & OP_IN(i)) != 0 || rounds_inside(gc) ||
                           (i == 1 && rig_on_gpu() && strncmp(gc->op, "Conv", 4) == 0);
            double unit = gc->float16 ? 0x1p-11 : 0x1p-8;
            double rounding = is_half ? unit * (2 * fabs(b) + 6) : 1e-4;

            if (!(fabs(a - b) <= rounding))
                fail_msg("%s: gradient %u added, element %zu: %.9g in %s, %.9g in float32", gc->op,
                         i, e, a, type_of(gc), b);
        }
        free(got.data);
        free(want.data);
    }
    rig_close(&r[0]);
    rig_close(&r[1]);
}

/* Compares in each 16-bit type that the device supports. */
static void compare_all(const struct gradcheck_case *wanted, bool both_layouts)
{
    struct gradcheck_case gc = *wanted;
    int float16;

    if (!rig_has_kernels(op_find(gc.domain, gc.op, gc.opset))) {
        print_message("%s: no kernels\n", gc.op);
        return;
    }
    for (float16 = 0; float16 <= rig_on_gpu(); float16++) {
        gc.float16 = float16 != 0;
        gc.layout = TENSOR_PLAIN;
        compare(&gc);
        compare_adding(&gc);
        if (!both_layouts)
            continue;
        gc.layout = TENSOR_CHANNELS_LAST;
        compare(&gc);
    }
}

static void products_round_only_operands_and_results(void **state)
{
    size_t i;

    (void)state;
    if (!op_has_bfloat16() && !rig_on_gpu())
        skip_lacking("the processor has no avx512_bf16");
    for (i = 0; i < COUNT_OF(products); i++) {
        struct gradcheck_case gc = products[i];

        /* a factor that is converted inside the call */
        gc.rounded = (OP_IN(0) | OP_IN(1)) & ~gc.half;
        compare_all(&gc, false);
    }
}

static void other_ops_compute_in_float32_and_round_stored_values(void **state)
{
    size_t i;

    (void)state;
    for (i = 0; i < COUNT_OF(others); i++)
        /* oneDNN's */
        if (strcmp(others[i].op, "MaxPool") != 0 || op_has_bfloat16() || rig_on_gpu())
            compare_all(&others[i], true);
}

static void float_to_bfloat16_rounds_to_nearest_even(void **state)
{
    /* a tie: rounds down to even */
    static const float special[] = { 0.0f, -0.0f, 1.0f, 1.00390625f,
                                     1.01171875f /* a tie: rounds up to even */, 3.3895314e38f,
                                     3.4028235e38f /* to infinity */, INFINITY, -INFINITY, NAN,
                                     1e-40f, 0x1p-133f, -7.5f };
    float wide[2] = { 1.0f, 0 };
    uint16_t half;
    uint32_t bits;
    size_t i;

    (void)state;
    for (i = 0; i < COUNT_OF(special); i++) {
        double want = rig_round_half((double)special[i]);

        op_narrow(&special[i], 1, &half);
        op_widen(&half, 1, wide);
        if (isnan(special[i]))
            assert_true(isnan(wide[0]));
        else if (fabsf(special[i]) >= 0x1p-126f || special[i] == 0)
            assert_true((double)wide[0] == (fabs(want) > 3.4e38 ? copysign(INFINITY, want) : want));
        else /* a denormal keeps its remaining bits */
            assert_true(fabs((double)wide[0] - (double)special[i]) <= 0x1p-134);
    }
    for (i = 0; i < 200000; i++) { /* floats of all sizes */
        float x;

        bits = (uint32_t)(i * 2654435761u);
        memcpy(&x, &bits, sizeof(x));
        if (!isfinite(x) || fabsf(x) < 0x1p-126f || fabsf(x) > 3e38f)
            continue;
        op_narrow(&x, 1, &half);
        op_widen(&half, 1, wide);
        if ((double)wide[0] != rig_round_half((double)x))
            fail_msg("%a became %a", (double)x, (double)wide[0]);
    }
}

static void convert_round_trip_keeps_rounded_values_and_gradient(void **state)
{
    static const enum tensor_dtype types[] = { TENSOR_BF16, TENSOR_F16 };
    size_t i, k;

    (void)state;
    for (k = 0; k < (rig_on_gpu() ? 2 : 1); k++) {
        const struct gradcheck_case gc = { .domain = "trainerd", .op = "Convert", .opset = 1, .n_in = 1,
                                           .in = { T(3, 5, 300) }, .seed = 8, ATTRS(INT("to", types[k])) };
        struct gradcheck_result r;
        struct err err = { 0 };
        struct tensor wide;

        assert_int_equal(gradcheck_backward(&gc, &r, &err), 0);
        assert_int_equal(r.out[0].dtype, types[k]);
        rig_take(&r.out[0], &wide, true);
        for (i = 0; i < 4500; i++) {
            double x = (double)((float *)r.in[0].data)[i], y = (double)((float *)wide.data)[i];

            assert_true(k == 0 ? y == rig_round_half(x)
                               : fabs(y - x) <= 0x1p-11 * fabs(x) + 0x1p-25);
            assert_true(((float *)r.din[0].data)[i] == ((float *)r.dout[0].data)[i]);
        }
        op_record(op_find(gc.domain, gc.op, gc.opset), OP_RECORD_GRADIENT); /* all its elements, exactly */
        free(wide.data);
        gradcheck_free(&r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(float_to_bfloat16_rounds_to_nearest_even),
        cmocka_unit_test(convert_round_trip_keeps_rounded_values_and_gradient),
        cmocka_unit_test(other_ops_compute_in_float32_and_round_stored_values),
        cmocka_unit_test(products_round_only_operands_and_results),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
