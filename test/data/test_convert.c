/* Conversions of the stored type to the type of a model input: bool masks and uint8. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "base/err.h"
#include "data/data_priv.h"

static int convert(enum tensor_dtype from, enum tensor_dtype to, size_t n, const void *src,
                   void *dst, struct err *err)
{
    const struct data_feature feature = { .name = "mask", .stored = from, .fed = to };
    const struct data_convert *c = data_convert_find(from, to);

    assert_non_null(c);
    return c->run(&feature, n, src, dst, err);
}

/* The source is at an odd address, as in a record. */
static void convert_of_nonzero_to_bool_is_true(void **state)
{
    static const int64_t wide[] = { 0, 1, -1, (int64_t)1 << 32, 0 };
    static const int32_t narrow[] = { 0, 7, -2, 256, 0 };
    static const uint8_t bytes[] = { 0, 1, 255, 2, 0 }, want[] = { 0, 1, 1, 1, 0 };
    uint8_t raw[1 + sizeof(wide)], out[5];

    (void)state;
    memcpy(raw + 1, wide, sizeof(wide));
    assert_int_equal(convert(TENSOR_I64, TENSOR_BOOL, 5, raw + 1, out, NULL), 0);
    assert_memory_equal(out, want, 5);
    memcpy(raw + 1, narrow, sizeof(narrow));
    assert_int_equal(convert(TENSOR_I32, TENSOR_BOOL, 5, raw + 1, out, NULL), 0);
    assert_memory_equal(out, want, 5);
    assert_int_equal(convert(TENSOR_U8, TENSOR_BOOL, 5, bytes, out, NULL), 0);
    assert_memory_equal(out, want, 5);
}

static void convert_to_uint8_out_of_range_names_the_value(void **state)
{
    static const int64_t wide[] = { 0, 255, 256 };
    static const int32_t narrow[] = { 9, -1 };
    static const uint8_t bytes[] = { 3, 255 };
    uint8_t out[3];
    struct err err = { 0 };

    (void)state;
    assert_int_equal(convert(TENSOR_U8, TENSOR_U8, 2, bytes, out, NULL), 0);
    assert_memory_equal(out, bytes, 2);
    assert_int_equal(convert(TENSOR_I64, TENSOR_U8, 2, wide, out, &err), 0);
    assert_true(out[0] == 0 && out[1] == 255);
    assert_int_equal(convert(TENSOR_I64, TENSOR_U8, 3, wide, out, &err), ERR_INPUT);
    assert_non_null(strstr(err.text, "feature 'mask': value 2 is 256, expected 0 to 255"));
    assert_int_equal(convert(TENSOR_I32, TENSOR_U8, 2, narrow, out, &err), ERR_INPUT);
    assert_non_null(strstr(err.text, "value 1 is -1"));
}

static void convert_of_floats_to_bool_is_not_supported(void **state)
{
    (void)state;
    assert_null(data_convert_find(TENSOR_F32, TENSOR_BOOL));
    assert_null(data_convert_find(TENSOR_F32, TENSOR_U8));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(convert_of_nonzero_to_bool_is_true),
        cmocka_unit_test(convert_to_uint8_out_of_range_names_the_value),
        cmocka_unit_test(convert_of_floats_to_bool_is_not_supported),
    };

    return cmocka_run_group_tests_name("data/convert", tests, NULL, NULL);
}
