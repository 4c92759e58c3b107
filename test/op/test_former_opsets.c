/* Gradients and results of the rows that only models of former opsets or graph passes use. The rows share
 * their kernels with rows that other programs test; here the attributes and inputs differ. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/check.h"
#include "base/err.h"
#include "harness/gradcheck.h"
#include "harness/op_oracle.h"
#include "harness/op_rig.h"

#define LIST(...) .n = sizeof((int64_t[]){ __VA_ARGS__ }) / sizeof(int64_t), .ints = (const int64_t[]){ __VA_ARGS__ }
#define FLOATS(...) .n = sizeof((float[]){ __VA_ARGS__ }) / sizeof(float), .floats = (const float[]){ __VA_ARGS__ }
#define ATTRS(...) .attrs = (const struct op_attr[]){ __VA_ARGS__ }, \
                   .n_attrs = sizeof((const struct op_attr[]){ __VA_ARGS__ }) / sizeof(struct op_attr)
#define INT(name_, i_) { .name = name_, .type = OP_ATTR_INT, .i = i_ }
#define INTS(name_, ...) { .name = name_, .type = OP_ATTR_INTS, LIST(__VA_ARGS__) }
#define STRING(name_, s_) { .name = name_, .type = OP_ATTR_STRING, .s = s_ }

static const float twice[] = { 1, 1, 2, 2 }, boxes[] = { 0, 0, 3, 2, 1, 0.5f, 4, 3 };
static const int64_t two[] = { 2 }, places[] = { 1, 0, 2, 0, 2, 1 }, image_of_box[] = { 0, 1 };

static const struct gradcheck_case differentiable[] = {
    { .domain = "trainerd", .op = "Swish", .opset = 1, .n_in = 1, .in = { { .shape = GRADCHECK_SHAPE(3, 17), .lo = -3, .hi = 3 } } },
    { .op = "ConvTranspose", .opset = 1, .n_in = 3,
      .in = { { .shape = GRADCHECK_SHAPE(2, 3, 4, 5) }, { .shape = GRADCHECK_SHAPE(3, 2, 3, 2) }, { .shape = GRADCHECK_SHAPE(2) } } },
    { .op = "BatchNormalization", .opset = 7, .n_in = 5,
      .in = { { .shape = GRADCHECK_SHAPE(3, 4, 5) }, { .shape = GRADCHECK_SHAPE(4) }, { .shape = GRADCHECK_SHAPE(4) },
              { .shape = GRADCHECK_SHAPE(4) }, { .shape = GRADCHECK_SHAPE(4), .lo = 0.5, .hi = 1.5 } } },
    { .op = "RMSNormalization", .opset = 23, .n_in = 2, .in = { { .shape = GRADCHECK_SHAPE(5, 9) }, { .shape = GRADCHECK_SHAPE(9) } } },
    { .op = "Slice", .opset = 1, ATTRS(INTS("starts", 1, -3), INTS("ends", 3, 9), INTS("axes", 0, 1)), .n_in = 1,
      .in = { { .shape = GRADCHECK_SHAPE(4, 5, 2) } } },
    { .op = "GridSample", .opset = 16, ATTRS(STRING("mode", "bilinear")), .n_in = 2, .not_wanted = OP_IN(1),
      .in = { { .shape = GRADCHECK_SHAPE(2, 3, 4, 5) },
              { .shape = GRADCHECK_SHAPE(2, 3, 2, 2), .lo = -1.4, .hi = 1.4, .constant = true } } },
    { .op = "RoiAlign", .opset = 10, ATTRS(INT("output_height", 2), INT("output_width", 3), INT("sampling_ratio", 2)), .n_in = 3,
      .in = { { .shape = GRADCHECK_SHAPE(2, 2, 4, 5) }, { .shape = GRADCHECK_SHAPE(2, 4), .data = boxes },
              { .dtype = TENSOR_I64, .shape = GRADCHECK_SHAPE(2), .data = image_of_box } } },
    { .op = "Resize", .opset = 10, ATTRS(STRING("mode", "linear")), .n_in = 2,
      .in = { { .shape = GRADCHECK_SHAPE(1, 2, 3, 4) }, { .shape = GRADCHECK_SHAPE(4), .data = twice, .constant = true } } },
    { .op = "Upsample", .opset = 9, ATTRS(STRING("mode", "nearest")), .n_in = 2,
      .in = { { .shape = GRADCHECK_SHAPE(1, 2, 3, 4) }, { .shape = GRADCHECK_SHAPE(4), .data = twice, .constant = true } } },
    { .op = "Upsample", .opset = 7, ATTRS(STRING("mode", "nearest"), { .name = "scales", .type = OP_ATTR_FLOATS, FLOATS(1, 1, 2, 2) }),
      .n_in = 1, .in = { { .shape = GRADCHECK_SHAPE(1, 2, 3, 4) } } },
    { .op = "Scatter", .opset = 9, ATTRS(INT("axis", 1)), .n_in = 3,
      .in = { { .shape = GRADCHECK_SHAPE(3, 4) }, { .dtype = TENSOR_I64, .shape = GRADCHECK_SHAPE(3, 2), .data = places },
              { .shape = GRADCHECK_SHAPE(3, 2) } } },
    { .op = "CastLike", .opset = 15, .n_in = 2, .in = { { .shape = GRADCHECK_SHAPE(3, 5) }, { .shape = GRADCHECK_SHAPE(2) } } },
    { .op = "Dropout", .opset = 7, ATTRS({ .name = "ratio", .type = OP_ATTR_FLOAT, .f = 0.25f }), .n_in = 1,
      .in = { { .shape = GRADCHECK_SHAPE(7, 11) } } },
    { .op = "TopK", .opset = 10, .n_in = 2, .n_out = 2,
      .in = { { .shape = GRADCHECK_SHAPE(3, 7), .apart = true }, { .dtype = TENSOR_I64, .shape = GRADCHECK_SHAPE(1), .data = two, .constant = true } } },
    { .op = "TopK", .opset = 1, ATTRS(INT("k", 2)), .n_in = 1, .n_out = 2, .in = { { .shape = GRADCHECK_SHAPE(3, 7), .apart = true } } },
};

static void former_rows_have_the_gradients_of_their_forward(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT_OF(differentiable); i++)
        gradcheck_run(&differentiable[i]);
}

static void arg_min_of_opset_1_finds_the_first_minimum(void **state)
{
    static const float x[] = { 3, -1, -1, 2, 2, 5 };
    static const struct shape shape = GRADCHECK_SHAPE(2, 1);
    static const int64_t want[] = { 1, 0 };

    (void)state;
    oracle_ints(&(struct gradcheck_case){ .op = "ArgMin", .opset = 1, ATTRS(INT("axis", 1)), .n_in = 1,
                                          .in = { { .shape = GRADCHECK_SHAPE(2, 3), .data = x } } },
                &shape, want);
}

static void bit_cast_keeps_the_bits(void **state)
{
    static const float x[] = { 1, -2, 0 };
    static const struct shape shape = GRADCHECK_SHAPE(3);
    static const int64_t want[] = { 0x3F800000, -0x40000000, 0 };

    (void)state;
    oracle_ints(&(struct gradcheck_case){ .op = "BitCast", .opset = 26, ATTRS(INT("to", 6)), .n_in = 1,
                                          .in = { { .shape = GRADCHECK_SHAPE(3), .data = x } } },
                &shape, want);
}

static void unique_sorts_a_constant(void **state)
{
    static const float x[] = { 2, -1, 2, 0, -1 }, want[] = { -1, 0, 2 };
    static const struct shape shape = GRADCHECK_SHAPE(3);
    static const struct gradcheck_case gc = { .op = "Unique", .opset = 11, .n_in = 1,
                                              .in = { { .shape = GRADCHECK_SHAPE(5), .data = x, .constant = true } } };

    (void)state;
    if (rig_on_gpu())
        oracle_refused(&gc, ERR_UNSUPPORTED, "GPUs have no kernel for it");
    else
        oracle_floats(&gc, &shape, want);
}

static void one_hot_of_opset_9_writes_both_values(void **state)
{
    static const int64_t rows[] = { 2, 0 }, depth[] = { 3 };
    static const float values[] = { -1, 5 }, want[] = { -1, -1, 5, 5, -1, -1 };
    static const struct shape shape = GRADCHECK_SHAPE(2, 3);

    (void)state;
    oracle_floats(&(struct gradcheck_case){ .op = "OneHot", .opset = 9, .n_in = 3,
                                            .in = { { .dtype = TENSOR_I64, .shape = GRADCHECK_SHAPE(2), .data = rows },
                                                    { .dtype = TENSOR_I64, .shape = GRADCHECK_SHAPE(1), .data = depth, .constant = true },
                                                    { .shape = GRADCHECK_SHAPE(2), .data = values } } },
                  &shape, want);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(former_rows_have_the_gradients_of_their_forward),
        cmocka_unit_test(arg_min_of_opset_1_finds_the_first_minimum),
        cmocka_unit_test(bit_cast_keeps_the_bits),
        cmocka_unit_test(unique_sorts_a_constant),
        cmocka_unit_test(one_hot_of_opset_9_writes_both_values),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
