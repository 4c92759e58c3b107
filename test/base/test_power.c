#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>

#include "base/power.h"

/* Compares with pow() of the C library. */
static void power_real_matches_the_c_library(void **state)
{
    (void)state;
    for (int i = 0; i <= 200; i++)
        for (int k = 0; k <= 70; k++) {
            double x = i / 200.0, y = k * 0.0713, expected = pow(x, y);
            double got = power_real(x, y);

            if (fabs(got - expected) > 4e-15 * expected)
                fail_msg("%g^%g: %.17g, expected %.17g", x, y, got, expected);
        }
    assert_true(power_real(0.3, 1) == 0.3);
    assert_true(power_real(0.3, 2) == 0.3 * 0.3);
    assert_true(power_real(0, 0.5) == 0 && power_real(0.5, 0) == 1);
    assert_true(fabs(power_real(1e-300, 0.5) / 1e-150 - 1) < 1e-13);
    assert_true(power_real(0.5, 1e300) == 0);
}

static void power_int_equals_the_product(void **state)
{
    double x = 1;

    (void)state;
    for (uint64_t n = 0; n < 60; n++, x *= 0.75)
        assert_true(fabs(power_int(0.75, n) - x) <= 1e-15 * x);
    assert_true(power_int(0.9, UINT64_MAX) == 0);
    assert_true(power_int(3, 5) == 243);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(power_real_matches_the_c_library),
        cmocka_unit_test(power_int_equals_the_product),
    };

    return cmocka_run_group_tests_name("base/power", tests, NULL, NULL);
}
