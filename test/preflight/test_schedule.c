#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdbool.h>
#include <string.h>

#include "preflight/schedule.h"
#include "preflight/types.h"

enum { MOST = 33 };

static void every_pair_meets_once_and_a_task_has_one_partner(void **state)
{
    (void)state;
    for (uint32_t world = 1; world <= MOST; world++) {
        uint8_t met[MOST][MOST] = { { 0 } };

        for (uint32_t round = 0; round < schedule_rounds(world); round++)
            for (uint32_t i = 0; i < world; i++) {
                uint32_t k = schedule_partner(world, round, i);

                if (k == PREFLIGHT_NO_TASK)
                    continue;
                assert_true(k < world && k != i);
                assert_int_equal(schedule_partner(world, round, k), i);
                met[i][k]++;
            }
        for (uint32_t i = 0; i < world; i++)
            for (uint32_t k = 0; k < world; k++)
                assert_int_equal(met[i][k], i != k);
    }
}

static void number_of_rounds_is_the_smallest_possible(void **state)
{
    (void)state;
    assert_int_equal(schedule_rounds(1), 0);
    assert_int_equal(schedule_rounds(2), 1);
    assert_int_equal(schedule_rounds(3), 3);
    assert_int_equal(schedule_rounds(4), 3);
    assert_int_equal(schedule_rounds(1024), 1023);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_pair_meets_once_and_a_task_has_one_partner),
        cmocka_unit_test(number_of_rounds_is_the_smallest_possible),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
