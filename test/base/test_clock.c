#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <time.h>

#include "base/clock.h"

static void fake_clock_is_constant_until_released(void **state)
{
    uint64_t before = clock_ns(), after;

    (void)state;
    clock_fake(5000000);
    assert_int_equal(clock_ns(), 5000000);
    assert_int_equal(clock_ms(), 5);
    clock_fake(0);
    assert_int_equal(clock_ns(), 0);
    clock_fake(UINT64_MAX);
    after = clock_ns();
    assert_true(after >= before);
    assert_true(after - before < 60000000000u);
}

static void real_clock_advances(void **state)
{
    const struct timespec two_ms = { 0, 2000000 };
    uint64_t start = clock_ns();

    (void)state;
    nanosleep(&two_ms, NULL);
    assert_true(clock_ns() - start >= 2000000);
}

static void wall_clock_agrees_with_the_system_time(void **state)
{
    uint64_t now = (uint64_t)time(NULL), ours = clock_wall_us() / 1000000;

    (void)state;
    assert_true(ours + 1 >= now && ours <= now + 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fake_clock_is_constant_until_released),
        cmocka_unit_test(real_clock_advances),
        cmocka_unit_test(wall_clock_agrees_with_the_system_time),
    };

    return cmocka_run_group_tests_name("base/clock", tests, NULL, NULL);
}
