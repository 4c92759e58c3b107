/* test_fill.c - generated rows of tables: fixed numbers, independent of the other rows, with the intended
 * distribution. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "base/crc32c.h"
#include "tensor/fill.h"

enum { ROWS = 4096, WIDTH = 13 };

static float rows[ROWS * WIDTH];

/* Checkpoints continue from these numbers. */
static void fixed_numbers_never_change(void **state)
{
    struct table_fill uniform = table_fill_of(TABLE_UNIFORM, 0.05, 7, "table");
    struct table_fill normal = table_fill_of(TABLE_NORMAL, 0.01, 7, "table");

    (void)state;
    table_fill_rows(&uniform, WIDTH, 5, ROWS, rows);
    assert_int_equal(crc32c(0, rows, sizeof(rows)), 0x0d160f6f);
    table_fill_rows(&normal, WIDTH, 5, ROWS, rows);
    assert_int_equal(crc32c(0, rows, sizeof(rows)), 0x80b95020);
}

static void row_depends_on_seed_name_and_number_alone(void **state)
{
    struct table_fill a = table_fill_of(TABLE_UNIFORM, 1, 7, "a"),
                      b = table_fill_of(TABLE_UNIFORM, 1, 7, "b"),
                      other = table_fill_of(TABLE_UNIFORM, 1, 8, "a");
    float one[WIDTH], narrow[3];

    (void)state;
    table_fill_rows(&a, WIDTH, 0, ROWS, rows);
    for (uint64_t r = 0; r < ROWS; r += 111) {
        table_fill_rows(&a, WIDTH, r, 1, one);
        assert_memory_equal(one, rows + r * WIDTH, sizeof(one));
        table_fill_rows(&a, 3, r, 1, narrow);
        assert_memory_equal(narrow, one, sizeof(narrow));
        table_fill_rows(&b, WIDTH, r, 1, one);
        assert_memory_not_equal(one, rows + r * WIDTH, sizeof(one));
        table_fill_rows(&other, WIDTH, r, 1, one);
        assert_memory_not_equal(one, rows + r * WIDTH, sizeof(one));
        table_fill_rows(&a, WIDTH, r + (UINT64_C(1) << 32), 1, one);
        assert_memory_not_equal(one, rows + r * WIDTH, sizeof(one));
    }
}

/* The row before row 0 is the last one: an id of -1. */
static void rows_at_the_end_of_the_range_are_generated(void **state)
{
    struct table_fill uniform = table_fill_of(TABLE_UNIFORM, 1, 7, "a");
    float two[2 * WIDTH], one[WIDTH];

    (void)state;
    table_fill_rows(&uniform, WIDTH, UINT64_MAX, 2, two);
    table_fill_rows(&uniform, WIDTH, 0, 1, one);
    assert_memory_equal(two + WIDTH, one, sizeof(one));
    table_fill_rows(&uniform, WIDTH, UINT64_MAX, 1, one);
    assert_memory_equal(two, one, sizeof(one));
    assert_memory_not_equal(two, two + WIDTH, sizeof(one));
}

/* The share of numbers below x, which is within 0.01 of the distribution's: 3.6 standard deviations are 0.008. */
static double share_below(double x)
{
    size_t n = 0;

    for (size_t i = 0; i < ROWS * WIDTH; i++)
        n += (double)rows[i] < x;
    return (double)n / (ROWS * WIDTH);
}

static void numbers_have_the_intended_distribution(void **state)
{
    static const double points[] = { -3, -2, -1, -0.5, -0.1, 0, 0.3, 0.9, 1.5, 2.5 };
    struct table_fill uniform = table_fill_of(TABLE_UNIFORM, 4, 1, "t"),
                      normal = table_fill_of(TABLE_NORMAL, 2, 1, "t"),
                      zeros = table_fill_of(TABLE_ZEROS, 0, 1, "t");

    (void)state;
    table_fill_rows(&uniform, WIDTH, 0, ROWS, rows);
    for (size_t i = 0; i < sizeof(points) / sizeof(*points); i++)
        assert_true(fabs(share_below(points[i]) - (points[i] + 4) / 8) < 0.01);
    assert_true(share_below(-4) == 0 && share_below(4.0001) == 1);
    table_fill_rows(&normal, WIDTH, 0, ROWS, rows);
    for (size_t i = 0; i < sizeof(points) / sizeof(*points); i++)
        assert_true(fabs(share_below(2 * points[i]) - 0.5 * erfc(-points[i] / sqrt(2))) < 0.01);
    table_fill_rows(&zeros, WIDTH, 0, ROWS, rows);
    for (size_t i = 0; i < ROWS * WIDTH; i++)
        assert_true(rows[i] == 0 && !signbit(rows[i]));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fixed_numbers_never_change),
        cmocka_unit_test(row_depends_on_seed_name_and_number_alone),
        cmocka_unit_test(rows_at_the_end_of_the_range_are_generated),
        cmocka_unit_test(numbers_have_the_intended_distribution),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
