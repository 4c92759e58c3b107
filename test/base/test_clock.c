#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <time.h>

#include "base/clock.h"
#include "harness/wait.h"

static void fake_clock_is_constant_until_released(void **state)
{
    uint64_t before, now;

    (void)state;
    clock_fake(5000000);
    assert_int_equal(clock_ns(), 5000000);
    assert_int_equal(clock_ms(), 5);
    clock_fake(0);
    assert_int_equal(clock_ns(), 0);
    clock_fake(UINT64_MAX);
    before = wait_now_ns();
    now = clock_ns();
    assert_true(now >= before && now <= wait_now_ns());
}

static void real_clock_advances(void **state)
{
    uint64_t start = clock_ns();

    (void)state;
    WAIT_UNTIL(clock_ns() >= start + 2000000);
}

static void wall_clock_agrees_with_the_system_time(void **state)
{
    uint64_t before = (uint64_t)time(NULL), ours = clock_wall_us() / 1000000,
             after = (uint64_t)time(NULL);

    (void)state;
    assert_true(ours >= before && ours <= after + 1); /* time() may be a tick old */
}

static uint64_t ns_of(struct timespec t)
{
    assert_true(t.tv_nsec >= 0 && t.tv_nsec < 1000000000);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void time_of_a_limit_is_valid_and_at_most_eleven_days_ahead(void **state)
{
    (void)state;
    clock_fake(5); /* waits do not use it */
    for (uint64_t ms = 0; ms < 3000; ms += 333) {
        uint64_t before = wait_now_ns(), limit = ns_of(clock_after_ms(ms));

        assert_true(limit >= before + ms * 1000000u && limit <= wait_now_ns() + ms * 1000000u);
    }
    assert_true(ns_of(clock_after_ms(UINT64_MAX)) <=
                ns_of(clock_after_ms(0)) + 1000000000u * UINT64_C(1000000));
    clock_fake(UINT64_MAX);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fake_clock_is_constant_until_released),
        cmocka_unit_test(real_clock_advances),
        cmocka_unit_test(wall_clock_agrees_with_the_system_time),
        cmocka_unit_test(time_of_a_limit_is_valid_and_at_most_eleven_days_ahead),
    };

    return cmocka_run_group_tests_name("base/clock", tests, NULL, NULL);
}
