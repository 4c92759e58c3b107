/* test_host_load.c - parts of the processor time from two readings of /proc/stat. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/check.h"
#include "daemon/host_load.h"

static void parts_of_two_readings_are_those_of_the_columns(void **state)
{
    struct host_load a, b;
    struct host_load_parts p;

    (void)state;
    assert_true(host_load_parse("cpu  100 0 50 1000 10 0 0 5 7 0\ncpu0 1 2", &a));
    /* of 200 ticks: 60 user, 20 system, 90 idle, 10 waiting, 20 stolen */
    assert_true(host_load_parse("cpu  160 0 70 1090 20 0 0 25 9 0\n", &b));
    a.own = 30;
    b.own = 40;
    p = host_load_between(&a, &b);
    assert_true(p.others == 70.0 / 200 && p.steal == 20.0 / 200 && p.storage == 10.0 / 200);
    p = host_load_between(&b, &b);
    assert_true(p.others == 0 && p.steal == 0 && p.storage == 0);
    p = host_load_between(&b, &a); /* counters that go backwards */
    assert_true(p.others == 0 && p.steal == 0 && p.storage == 0);
}

static void text_of_another_form_is_refused(void **state)
{
    static const char *const texts[] = { "", "cpu", "cpu0 1 2 3 4 5 6 7 8", "cpu  1 2 3 4 5 6 7",
                                         "cpu  1 2 3 x 5 6 7 8", "cpu  -1 2 3 4 5 6 7 8",
                                         "cpu  18446744073709551615 2 3 4 5 6 7 8" };
    struct host_load l;

    (void)state;
    for (size_t i = 0; i < COUNT_OF(texts); i++)
        assert_false(host_load_parse(texts[i], &l));
}

static void wait_for_a_processor_is_the_second_number(void **state)
{
    (void)state;
    assert_int_equal(host_load_parse_delay("1018345 2561209 3\n"), 2561209);
    assert_int_equal(host_load_parse_delay(""), 0);
    assert_int_equal(host_load_parse_delay("12"), 0);
    assert_int_equal(host_load_parse_delay("x 1 2"), 0);
}

static void this_host_has_a_reading(void **state)
{
    struct host_load l;

    (void)state;
    assert_true(host_load_read(&l));
    assert_true(l.all > 0 && l.busy <= l.all && l.stolen <= l.all);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_of_two_readings_are_those_of_the_columns),
        cmocka_unit_test(text_of_another_form_is_refused),
        cmocka_unit_test(wait_for_a_processor_is_the_second_number),
        cmocka_unit_test(this_host_has_a_reading),
    };

    return cmocka_run_group_tests_name("daemon/host_load", tests, NULL, NULL);
}
