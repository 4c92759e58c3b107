/* Types of 8, 4 and 2 bits, against values from their definition. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/check.h"
#include "tensor/narrow.h"

static const enum tensor_dtype floats[] = { TENSOR_F8E4M3FN, TENSOR_F8E4M3FNUZ, TENSOR_F8E5M2,
                                            TENSOR_F8E5M2FNUZ, TENSOR_F4E2M1, TENSOR_F8E8M0 };

static void every_code_round_trips_through_number(void **state)
{
    (void)state;
    for (size_t k = 0; k < COUNT_OF(floats); k++)
        for (int code = 0; code < 1 << tensor_file_bits(floats[k]); code++) {
            double v = tensor_narrow_number(floats[k], (uint8_t)code);

            if (!isnan(v))
                assert_int_equal(tensor_narrow_code(floats[k], v, false, NARROW_NEAREST), code);
        }
}

static void codes_have_defined_numbers(void **state)
{
    static const struct {
        enum tensor_dtype type;
        uint8_t code;
        double number;
    } known[] = {
        { TENSOR_F8E4M3FN, 0x7E, 448 },     { TENSOR_F8E4M3FN, 0x01, 0x1p-9 },
        { TENSOR_F8E4M3FNUZ, 0x7F, 240 },   { TENSOR_F8E4M3FNUZ, 0x01, 0x1p-10 },
        { TENSOR_F8E5M2, 0x7B, 57344 },     { TENSOR_F8E5M2, 0x81, -0x1p-16 },
        { TENSOR_F8E5M2FNUZ, 0x7F, 57344 }, { TENSOR_F8E5M2FNUZ, 0x01, 0x1p-17 },
        { TENSOR_F4E2M1, 0x7, 6 },          { TENSOR_F4E2M1, 0x9, -0.5 },
        { TENSOR_F8E8M0, 0, 0x1p-127 },     { TENSOR_F8E8M0, 0xFE, 0x1p127 },
        { TENSOR_F8E5M2, 0x7C, INFINITY },  { TENSOR_F8E5M2, 0xFC, -INFINITY },
    };

    (void)state;
    for (size_t k = 0; k < COUNT_OF(known); k++)
        assert_true(tensor_narrow_number(known[k].type, known[k].code) == known[k].number);
    assert_true(isnan(tensor_narrow_number(TENSOR_F8E4M3FN, 0x7F)));
    assert_true(isnan(tensor_narrow_number(TENSOR_F8E4M3FNUZ, 0x80)));
    assert_true(isnan(tensor_narrow_number(TENSOR_F8E5M2, 0x7D)));
    assert_true(isnan(tensor_narrow_number(TENSOR_F8E8M0, 0xFF)));
}

static void ties_round_to_even_and_overflow_follows_saturate(void **state)
{
    (void)state;
    assert_int_equal(tensor_narrow_code(TENSOR_F8E4M3FN, 464, false, NARROW_UP), 0x7E);
    assert_int_equal(tensor_narrow_code(TENSOR_F8E4M3FN, 464.001, false, NARROW_UP), 0x7F);
    assert_int_equal(tensor_narrow_code(TENSOR_F8E4M3FN, -1e30, true, NARROW_UP), 0xFE);
    assert_int_equal(tensor_narrow_code(TENSOR_F8E5M2, 61440, false, NARROW_UP), 0x7C);
    assert_int_equal(tensor_narrow_code(TENSOR_F8E5M2, -INFINITY, true, NARROW_UP), 0xFB);
    assert_int_equal(tensor_narrow_code(TENSOR_F8E4M3FNUZ, -1e-9, true, NARROW_UP), 0);
    assert_int_equal(tensor_narrow_code(TENSOR_F8E4M3FNUZ, INFINITY, false, NARROW_UP), 0x80);
    assert_int_equal(tensor_narrow_code(TENSOR_F4E2M1, 2.5, true, NARROW_UP), 0x4);
    assert_int_equal(tensor_narrow_code(TENSOR_F4E2M1, 3.5, true, NARROW_UP), 0x6);
    assert_int_equal(tensor_narrow_code(TENSOR_F8E8M0, 5, true, NARROW_UP), 130);
    assert_int_equal(tensor_narrow_code(TENSOR_F8E8M0, 5, true, NARROW_DOWN), 129);
    assert_int_equal(tensor_narrow_code(TENSOR_F8E8M0, 6, true, NARROW_NEAREST), 130);
    assert_int_equal(tensor_narrow_code(TENSOR_F8E8M0, 0, false, NARROW_NEAREST), 0xFF);
}

static void odd_count_packs_and_unpacks_with_sign_extension(void **state)
{
    static const int8_t x4[] = { -8, 7, -1 }, x2[] = { -2, 1, -1, 0, -2 };
    struct tensor t = { .dtype = TENSOR_I2, .shape = { .rank = 1, .dim = { 5 } } };
    uint8_t packed[2];
    int8_t back[5];

    (void)state;
    assert_int_equal(tensor_file_bytes(&t), 2);
    tensor_pack(TENSOR_I4, x4, 3, packed);
    assert_int_equal(packed[0], 0x78);
    assert_int_equal(packed[1], 0x0F);
    tensor_unpack(TENSOR_I4, packed, 3, back);
    assert_memory_equal(back, x4, 3);
    tensor_pack(TENSOR_I2, x2, 5, packed);
    assert_int_equal(packed[0], 0x36);
    assert_int_equal(packed[1], 0x02);
    tensor_unpack(TENSOR_I2, packed, 5, back);
    assert_memory_equal(back, x2, 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_code_round_trips_through_number),
        cmocka_unit_test(codes_have_defined_numbers),
        cmocka_unit_test(ties_round_to_even_and_overflow_follows_saturate),
        cmocka_unit_test(odd_count_packs_and_unpacks_with_sign_extension),
    };

    return cmocka_run_group_tests_name("tensor/narrow", tests, NULL, NULL);
}
