/* The code power_sgd, against the definitions in code/power_sgd.h in double precision. The e2e test compares the steps of a
 * job with numpy. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/check.h"
#include "code/power_sgd.h"
#include "code/residual.h"

enum { ROWS_MAX = 70, COLS_MAX = 90, RANK_MAX = 5 };

static float m[ROWS_MAX * COLS_MAX], y[ROWS_MAX * COLS_MAX], p[RANK_MAX * ROWS_MAX],
    q[RANK_MAX * COLS_MAX];

static const struct power_sgd shapes[] = { { 1, 3, 1, 7, 0 },   { 3, 1, 1, 7, 1 },   { 17, 15, 2, 7, 2 },
                                           { 64, 48, 4, 7, 3 }, { 70, 90, 5, 7, 4 }, { 33, 16, 3, 7, 5 } };

static void fill(float *x, size_t n, uint32_t s)
{
    for (size_t i = 0; i < n; i++) {
        s = 1664525 * s + 1013904223;
        x[i] = (float)((double)(s >> 8) / 0x1p23 - 1);
    }
}

static double dot(const float *a, size_t step_a, const float *b, size_t step_b, size_t n)
{
    double sum = 0;

    for (size_t i = 0; i < n; i++)
        sum += (double)a[i * step_a] * (double)b[i * step_b];
    return sum;
}

static void near(double got, double want, double scale)
{
    if (!(fabs(got - want) <= 2e-5 * scale))
        fail_msg("%.9g, expected %.9g", got, want);
}

static void products_are_those_of_the_definition(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT_OF(shapes); i++) {
        const struct power_sgd s = shapes[i];

        fill(m, s.rows * s.cols, 1);
        fill(q, s.rank * s.cols, 2);
        power_sgd_left(&s, m, q, p);
        for (size_t k = 0; k < s.rank; k++)
            for (size_t r = 0; r < s.rows; r++)
                near((double)p[k * s.rows + r], dot(m + r * s.cols, 1, q + k * s.cols, 1, s.cols),
                     10);
        power_sgd_right(&s, m, p, q);
        for (size_t k = 0; k < s.rank; k++)
            for (size_t c = 0; c < s.cols; c++)
                near((double)q[k * s.cols + c], dot(m + c, s.cols, p + k * s.rows, 1, s.rows), 500);
        power_sgd_decode(&s, p, q, y);
        for (size_t r = 0; r < s.rows; r++)
            for (size_t c = 0; c < s.cols; c++)
                near((double)y[r * s.cols + c], dot(p + r, s.rows, q + c, s.cols, s.rank), 5000);
        power_sgd_subtract(&s, p, q, m);
        fill(y, s.rows * s.cols, 1);
        for (size_t r = 0; r < s.rows; r++)
            for (size_t c = 0; c < s.cols; c++)
                near((double)m[r * s.cols + c],
                     (double)y[r * s.cols + c] - dot(p + r, s.rows, q + c, s.cols, s.rank), 5000);
    }
}

static void rows_are_orthonormal_and_span_those_before(void **state)
{
    static float before[RANK_MAX * ROWS_MAX];

    (void)state;
    for (size_t i = 2; i < COUNT_OF(shapes); i++) {
        const struct power_sgd s = shapes[i];

        fill(p, s.rank * s.rows, 3);
        memcpy(before, p, sizeof(p));
        power_sgd_orthogonalize(&s, p);
        for (size_t j = 0; j < s.rank; j++)
            for (size_t k = 0; k < s.rank; k++) {
                near(dot(p + j * s.rows, 1, p + k * s.rows, 1, s.rows), j == k, 1);
                if (k > j) /* row k is no part of an earlier one */
                    near(dot(p + k * s.rows, 1, before + j * s.rows, 1, s.rows), 0, 10);
            }
        assert_true(dot(p, 1, before, 1, s.rows) > 0);
    }
}

static void dependent_rows_become_zero(void **state)
{
    const struct power_sgd s = { 40, 50, 4, 7, 0 };

    (void)state;
    fill(p, 4 * s.rows, 4);
    for (size_t r = 0; r < s.rows; r++) {
        p[s.rows + r] = -2.5f * p[r];
        p[2 * s.rows + r] = 0;
    }
    power_sgd_orthogonalize(&s, p);
    for (size_t r = 0; r < 2 * s.rows; r++)
        assert_true(p[s.rows + r] == 0);
    near(dot(p, 1, p, 1, s.rows), 1, 1);
    near(dot(p + 3 * s.rows, 1, p + 3 * s.rows, 1, s.rows), 1, 1);
    near(dot(p, 1, p + 3 * s.rows, 1, s.rows), 0, 1);
}

static void matrix_of_that_rank_leaves_nothing(void **state)
{
    const struct power_sgd s = { 40, 50, 3, 7, 0 };

    (void)state;
    fill(p, 3 * s.rows, 5);
    fill(q, 3 * s.cols, 6);
    power_sgd_decode(&s, p, q, m);
    memset(q, 0, sizeof(q));
    power_sgd_begin(&s, q);
    power_sgd_left(&s, m, q, p);
    power_sgd_orthogonalize(&s, p);
    power_sgd_right(&s, m, p, q);
    power_sgd_decode(&s, p, q, y);
    for (size_t i = 0; i < s.rows * s.cols; i++)
        near((double)y[i], (double)m[i], 10);
}

static void zero_rows_of_q_are_random_and_the_others_keep_their_direction(void **state)
{
    const struct power_sgd s = { 40, 50, 3, 7, 0 };
    struct power_sgd other = s;
    float again[RANK_MAX * COLS_MAX];

    (void)state;
    memset(q, 0, sizeof(q));
    for (size_t c = 0; c < s.cols; c++)
        q[s.cols + c] = 1e-25f * (float)(c + 1);
    power_sgd_begin(&s, q);
    for (size_t k = 0; k < s.rank; k++)
        near(dot(q + k * s.cols, 1, q + k * s.cols, 1, s.cols), 1, 1);
    for (size_t c = 0; c < s.cols; c++)
        near((double)q[s.cols + c], (double)(c + 1) * (double)q[s.cols], 1);
    assert_true(fabs(dot(q, 1, q + 2 * s.cols, 1, s.cols)) < 0.5); /* rows differ */
    memset(again, 0, sizeof(again));
    power_sgd_begin(&s, again);
    assert_memory_equal(again, q, s.cols * sizeof(*q));
    other.number = 1;
    memset(again, 0, sizeof(again));
    power_sgd_begin(&other, again);
    assert_memory_not_equal(again, q, s.cols * sizeof(*q));
    other = s;
    other.seed = 8;
    memset(again, 0, sizeof(again));
    power_sgd_begin(&other, again);
    assert_memory_not_equal(again, q, s.cols * sizeof(*q));
}

static void infinity_and_nan_make_the_gradient_nan(void **state)
{
    static const float bad[] = { INFINITY, -INFINITY, NAN };
    const struct power_sgd s = { 40, 50, 2, 7, 0 };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        fill(m, s.rows * s.cols, 8);
        m[77] = bad[i];
        memset(q, 0, sizeof(q));
        power_sgd_begin(&s, q);
        power_sgd_left(&s, m, q, p);
        power_sgd_orthogonalize(&s, p);
        power_sgd_right(&s, m, p, q);
        power_sgd_decode(&s, p, q, y);
        for (size_t k = 0; k < s.rows * s.cols; k++)
            assert_true(isnan(y[k]));
    }
}

static void small_numbers_of_the_residual_become_zero(void **state)
{
    const struct power_sgd s = { 3, 4, 1, 7, 0 };

    (void)state;
    memset(p, 0, sizeof(p));
    memset(q, 0, sizeof(q));
    for (size_t i = 0; i < 12; i++)
        m[i] = i < 6 ? -9e-31f : 1.5e-30f;
    power_sgd_subtract(&s, p, q, m);
    for (size_t i = 0; i < 12; i++)
        assert_true(i < 6 ? m[i] == 0 && !signbit(m[i]) : m[i] == 1.5e-30f);
}

static void code_is_used_where_it_has_fewer_numbers(void **state)
{
    (void)state;
    assert_true(power_sgd_is_shorter(64, 64, 31));
    assert_false(power_sgd_is_shorter(64, 64, 32));
    assert_false(power_sgd_is_shorter(1, 4096, 1));
    assert_true(power_sgd_is_shorter(10, 128, 4));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_are_those_of_the_definition),
        cmocka_unit_test(rows_are_orthonormal_and_span_those_before),
        cmocka_unit_test(dependent_rows_become_zero),
        cmocka_unit_test(matrix_of_that_rank_leaves_nothing),
        cmocka_unit_test(zero_rows_of_q_are_random_and_the_others_keep_their_direction),
        cmocka_unit_test(infinity_and_nan_make_the_gradient_nan),
        cmocka_unit_test(small_numbers_of_the_residual_become_zero),
        cmocka_unit_test(code_is_used_where_it_has_fewer_numbers),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
