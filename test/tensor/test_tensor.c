#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/check.h"
#include "tensor/tensor.h"

static void every_type_has_size_and_parsable_name(void **state)
{
    static const struct {
        enum tensor_dtype dtype;
        size_t bytes;
        const char *name;
    } want[] = {
        { TENSOR_F32, 4, "float32" }, { TENSOR_U8, 1, "uint8" },   { TENSOR_I8, 1, "int8" },
        { TENSOR_U16, 2, "uint16" },  { TENSOR_I16, 2, "int16" },  { TENSOR_I32, 4, "int32" },
        { TENSOR_I64, 8, "int64" },   { TENSOR_BOOL, 1, "bool" },  { TENSOR_F16, 2, "float16" },
        { TENSOR_F64, 8, "float64" }, { TENSOR_U32, 4, "uint32" }, { TENSOR_U64, 8, "uint64" },
        { TENSOR_BF16, 2, "bfloat16" },
    };
    size_t i;

    (void)state;
    for (i = 0; i < COUNT_OF(want); i++) {
        enum tensor_dtype back = TENSOR_NONE;

        assert_int_equal(tensor_dtype_bytes(want[i].dtype), want[i].bytes);
        assert_string_equal(tensor_dtype_name(want[i].dtype), want[i].name);
        assert_true(tensor_dtype_parse(want[i].name, &back));
        assert_int_equal(back, want[i].dtype);
    }
}

static void unknown_type_has_size_zero_and_a_name(void **state)
{
    static const int none[] = { 0, 8, 14, 15, 27, -1, 1000 };
    enum tensor_dtype out = TENSOR_I8;
    size_t i;

    (void)state;
    for (i = 0; i < COUNT_OF(none); i++) {
        assert_int_equal(tensor_dtype_bytes((enum tensor_dtype)none[i]), 0);
        assert_non_null(tensor_dtype_name((enum tensor_dtype)none[i]));
    }
    assert_false(tensor_dtype_parse("float", &out));
    assert_false(tensor_dtype_parse("unknown type", &out));
    assert_int_equal(out, TENSOR_I8);
}

static void elements_are_product_or_report_overflow(void **state)
{
    struct shape s = shape_of(3, (int64_t)2, (int64_t)3, (int64_t)4);
    struct shape scalar = { 0 };

    (void)state;
    assert_int_equal(shape_elements(&s), 24);
    assert_int_equal(shape_elements(&scalar), 1);
    s = shape_of(2, INT64_MAX, (int64_t)1);
    assert_int_equal(shape_elements(&s), INT64_MAX);
    s = shape_of(2, INT64_MAX / 2 + 1, (int64_t)2);
    assert_int_equal(shape_elements(&s), -1);
    s = shape_of(3, INT64_MAX, INT64_MAX, (int64_t)0);
    assert_int_equal(shape_elements(&s), 0);
    s = shape_of(2, (int64_t)-1, (int64_t)4);
    assert_int_equal(shape_elements(&s), -1);
    s = shape_of(2, INT64_MIN, (int64_t)-1);
    assert_int_equal(shape_elements(&s), -1);
}

static void bytes_are_elements_times_size_without_wrapping(void **state)
{
    struct tensor t = { .dtype = TENSOR_F64, .shape = shape_of(2, (int64_t)3, (int64_t)5) };

    (void)state;
    assert_int_equal(tensor_elements(&t), 15);
    assert_int_equal(tensor_bytes(&t), 120);
    t.shape = shape_of(1, INT64_MAX);
    assert_true(tensor_bytes(&t) == SIZE_MAX);
    t.dtype = TENSOR_U8;
    assert_true(tensor_bytes(&t) == INT64_MAX);
    t.shape = shape_of(2, INT64_MAX, (int64_t)2);
    assert_true(tensor_bytes(&t) == SIZE_MAX);
    t.shape = shape_of(2, (int64_t)0, INT64_MAX);
    assert_int_equal(tensor_bytes(&t), 0);
}

static void shapes_with_equal_rank_and_dimensions_are_equal(void **state)
{
    struct shape a = shape_of(2, (int64_t)2, (int64_t)3), b = a;

    (void)state;
    assert_true(shape_equal(&a, &b));
    b.dim[2] = 99; /* an axis beyond the rank is ignored */
    assert_true(shape_equal(&a, &b));
    b.dim[1] = 4;
    assert_false(shape_equal(&a, &b));
    b = shape_of(3, (int64_t)2, (int64_t)3, (int64_t)1);
    assert_false(shape_equal(&a, &b));
}

static void shape_prints_as_list_truncated_to_buffer(void **state)
{
    char text[64], wide[256];
    struct shape s = shape_of(3, (int64_t)2, (int64_t)30, (int64_t)4), scalar = { 0 }, big;
    uint32_t i;

    (void)state;
    assert_string_equal(shape_print(&s, text, sizeof(text)), "[2, 30, 4]");
    assert_string_equal(shape_print(&scalar, text, sizeof(text)), "[]");
    assert_string_equal(shape_print(&s, text, 5), "[2, ");
    assert_string_equal(shape_print(&s, text, 1), "");
    big.rank = TENSOR_MAX_RANK;
    for (i = 0; i < big.rank; i++)
        big.dim[i] = INT64_MIN;
    assert_string_equal(shape_print(&big, wide, sizeof(wide)) + strlen(wide) - 21,
                        "-9223372036854775808]");
}

static void broadcasting_matches_numpy(void **state)
{
    static const struct {
        struct shape a, b, want;
        bool fits;
    } rows[] = {
        { { 2, { 2, 3 } }, { 2, { 2, 3 } }, { 2, { 2, 3 } }, true },
        { { 2, { 2, 3 } }, { 1, { 3 } }, { 2, { 2, 3 } }, true },
        { { 1, { 3 } }, { 2, { 2, 1 } }, { 2, { 2, 3 } }, true },
        { { 0, { 0 } }, { 2, { 2, 3 } }, { 2, { 2, 3 } }, true },
        { { 4, { 8, 1, 6, 1 } }, { 3, { 7, 1, 5 } }, { 4, { 8, 7, 6, 5 } }, true },
        { { 2, { 0, 3 } }, { 2, { 1, 3 } }, { 2, { 0, 3 } }, true },
        { { 1, { 0 } }, { 1, { 1 } }, { 1, { 0 } }, true },
        { { 2, { 2, 3 } }, { 1, { 2 } }, { 0, { 0 } }, false },
        { { 2, { 2, 3 } }, { 2, { 3, 3 } }, { 0, { 0 } }, false },
        { { 1, { 0 } }, { 1, { 2 } }, { 0, { 0 } }, false },
    };
    size_t i;

    (void)state;
    for (i = 0; i < COUNT_OF(rows); i++) {
        struct shape out = { 0 };

        assert_int_equal(shape_broadcast(&rows[i].a, &rows[i].b, &out), rows[i].fits);
        /* unchanged if the shapes are incompatible */
        assert_true(shape_equal(&out, &rows[i].want));
        assert_int_equal(shape_broadcast(&rows[i].b, &rows[i].a, &out), rows[i].fits);
        assert_true(shape_equal(&out, &rows[i].want));
    }
}

static void broadcast_result_may_replace_operand(void **state)
{
    struct shape a = shape_of(2, (int64_t)4, (int64_t)1), b = shape_of(1, (int64_t)3);
    struct shape want = shape_of(2, (int64_t)4, (int64_t)3);

    (void)state;
    assert_true(shape_broadcast(&a, &b, &a));
    assert_true(shape_equal(&a, &want));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_type_has_size_and_parsable_name),
        cmocka_unit_test(unknown_type_has_size_zero_and_a_name),
        cmocka_unit_test(elements_are_product_or_report_overflow),
        cmocka_unit_test(bytes_are_elements_times_size_without_wrapping),
        cmocka_unit_test(shapes_with_equal_rank_and_dimensions_are_equal),
        cmocka_unit_test(shape_prints_as_list_truncated_to_buffer),
        cmocka_unit_test(broadcasting_matches_numpy),
        cmocka_unit_test(broadcast_result_may_replace_operand),
    };

    return cmocka_run_group_tests_name("tensor/tensor", tests, NULL, NULL);
}
