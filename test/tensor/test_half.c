/* Conversion between float32 and 16-bit floats, against values from their definition. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "base/err.h"
#include "tensor/half.h"

static uint16_t narrow(enum tensor_dtype t, float x)
{
    uint16_t h;

    tensor_narrow(t, &x, 1, &h);
    return h;
}

static float widen(enum tensor_dtype t, uint16_t h)
{
    float x;

    tensor_widen(t, &h, 1, &x);
    return x;
}

static void every_code_round_trips_through_float32(void **state)
{
    const enum tensor_dtype types[] = { TENSOR_BF16, TENSOR_F16 };
    uint32_t h;
    int i;

    (void)state;
    for (i = 0; i < 2; i++)
        for (h = 0; h < 65536; h++) {
            float x = widen(types[i], (uint16_t)h);

            if (isnan(x))
                assert_true(isnan(widen(types[i], narrow(types[i], x))));
            else
                assert_int_equal(narrow(types[i], x), h);
        }
}

/* Value of a code, by the definition: sign, exponent, fraction. */
static double value(uint32_t h, int fraction, int bias)
{
    int exponent = (int)((h & 0x7fff) >> fraction), part = (int)(h & ((1u << fraction) - 1));
    double v = exponent == 0 ? ldexp(part, 1 - bias - fraction)
                             : ldexp(part + (1 << fraction), exponent - bias - fraction);

    return (h & 0x8000) != 0 ? -v : v;
}

static void codes_have_defined_values(void **state)
{
    uint32_t h;

    (void)state;
    for (h = 0; h < 65536; h++) {
        if ((h & 0x7c00) != 0x7c00)
            assert_true((double)widen(TENSOR_F16, (uint16_t)h) == value(h, 10, 15));
        if ((h & 0x7f80) != 0x7f80)
            assert_true((double)widen(TENSOR_BF16, (uint16_t)h) == value(h, 7, 127));
    }
    assert_true(isinf(widen(TENSOR_F16, 0x7c00)) && isnan(widen(TENSOR_F16, 0x7c01)));
}

/* Between two adjacent codes: the nearer one, or the even one of two. */
static void numbers_between_codes_round_to_nearest_even(void **state)
{
    uint32_t h;

    (void)state;
    for (h = 0; h < 0x7bff; h++) {
        float low = widen(TENSOR_F16, (uint16_t)h), high = widen(TENSOR_F16, (uint16_t)(h + 1));
        float middle = (low + high) / 2;

        assert_int_equal(narrow(TENSOR_F16, nextafterf(middle, 0)), h);
        assert_int_equal(narrow(TENSOR_F16, nextafterf(middle, 1e30f)), h + 1);
        assert_int_equal(narrow(TENSOR_F16, middle), (h & 1) == 0 ? h : h + 1);
        assert_int_equal(narrow(TENSOR_F16, -middle), ((h & 1) == 0 ? h : h + 1) | 0x8000);
    }
    assert_int_equal(narrow(TENSOR_F16, 65519.0f), 0x7bff);
    assert_int_equal(narrow(TENSOR_F16, 65520.0f), 0x7c00);
    assert_int_equal(narrow(TENSOR_BF16, 1.0f + 0x1p-8f), 0x3f80);
    assert_int_equal(narrow(TENSOR_BF16, 1.0f + 0x3p-8f), 0x3f82);
    assert_int_equal(narrow(TENSOR_BF16, INFINITY), 0x7f80);
}

static void finite_number_that_would_become_infinite_is_refused(void **state)
{
    static const struct {
        enum tensor_dtype type;
        float x;
        bool fits;
    } rows[] = { { TENSOR_F16, 65519, true },        { TENSOR_F16, 65520, false },     { TENSOR_F16, -70000, false },
                 { TENSOR_F16, INFINITY, true },     { TENSOR_F16, NAN, true },        { TENSOR_BF16, 70000, true },
                 { TENSOR_BF16, 3.3895e38f, true }, { TENSOR_BF16, 3.4e38f, false }, { TENSOR_BF16, -INFINITY, true } };

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
        float x[2] = { 1, rows[i].x };
        uint16_t half[2] = { 7, 7 };
        struct err err;
        int rc = tensor_narrow_finite(rows[i].type, x, 2, half, &err);

        assert_int_equal(rc, rows[i].fits ? 0 : ERR_INPUT);
        assert_true(rows[i].fits ? half[0] != 7 && half[1] == narrow(rows[i].type, rows[i].x)
                                 : half[0] == 7);
        assert_true(rc == 0 || strstr(err.text, "element 1 is ") != NULL);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_code_round_trips_through_float32),
        cmocka_unit_test(codes_have_defined_values),
        cmocka_unit_test(numbers_between_codes_round_to_nearest_even),
        cmocka_unit_test(finite_number_that_would_become_infinite_is_refused),
    };

    return cmocka_run_group_tests_name("tensor/half", tests, NULL, NULL);
}
