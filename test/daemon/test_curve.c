#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "daemon/curve.h"

static void add(struct curve *c, uint64_t step, double loss)
{
    curve_add(c, &(struct curve_step){ .step = step, .time_us = 1000 * step, .loss = loss,
                                       .learning_rate = 0.5, .gradient_norm = (double)NAN,
                                       .samples = 10, .ns = 500000000 });
}

static void curve_of_a_long_run_keeps_all_steps_in_bounded_points(void **state)
{
    struct curve *c = calloc(1, sizeof(*c));
    uint64_t n = 100000, next = 1;
    double sum = 0;

    (void)state;
    for (uint64_t k = 1; k <= n; k++)
        add(c, k, (double)k);
    assert_true(c->n >= CURVE_POINTS / 2 && c->n <= CURVE_POINTS);
    for (uint32_t i = 0; i < c->n; i++) {
        const struct curve_point *p = &c->points[i];

        assert_int_equal(p->first, next); /* no gap, none twice */
        assert_int_equal(p->last - p->first + 1, p->n);
        assert_true(p->n == c->stride || i == c->n - 1);
        next = p->last + 1;
        sum += p->loss;
    }
    assert_int_equal(next, n + 1);
    assert_true(sum == (double)n * (double)(n + 1) / 2);
    free(c);
}

static void curve_of_a_group_that_returned_to_an_older_state_is_cut(void **state)
{
    struct curve *c = calloc(1, sizeof(*c));

    (void)state;
    for (uint64_t k = 1; k <= 20; k++)
        add(c, k, 1);
    add(c, 11, 2);
    assert_int_equal(c->n, 11);
    assert_int_equal(c->points[9].last, 10);
    assert_int_equal(c->points[10].last, 11);
    assert_true(c->points[10].loss == 2);
    free(c);
}

static void curve_prints_columns_and_the_newest_evaluations(void **state)
{
    static const char *const names[] = { "top \"1\"" };
    struct curve *c = calloc(1, sizeof(*c));
    struct buf out = { 0 };

    (void)state;
    curve_print(c, names, 1, &out);
    assert_string_equal(out.data, "{\"stride\": 0, \"step\": [], \"time_us\": [], \"loss\": [], "
                                  "\"learning_rate\": [], \"gradient_norm\": [], "
                                  "\"samples_per_second\": [], \"evaluations\": []}\n");
    buf_reset(&out);
    add(c, 1, 0.25);
    add(c, 2, (double)INFINITY);
    curve_add_evaluation(c, &(struct curve_evaluation){ .step = 2, .time_us = 9, .loss = 0.5, .metrics = { 0.75 } });
    curve_print(c, names, 1, &out);
    assert_string_equal(out.data, "{\"stride\": 1, \"step\": [1,2], \"time_us\": [1000,2000], "
                                  "\"loss\": [0.25,null], \"learning_rate\": [0.5,0.5], "
                                  "\"gradient_norm\": [null,null], \"samples_per_second\": [20,20], "
                                  "\"evaluations\": [{\"step\": 2, \"time_us\": 9, \"loss\": 0.5, "
                                  "\"metrics\": {\"top \\\"1\\\"\": 0.75}}]}\n");
    for (int i = 0; i < CURVE_EVALUATIONS; i++)
        curve_add_evaluation(c, &(struct curve_evaluation){ .step = 3 });
    buf_reset(&out);
    curve_print(c, names, 1, &out);
    assert_null(strstr(out.data, "\"time_us\": 9"));
    buf_fini(&out);
    free(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(curve_of_a_long_run_keeps_all_steps_in_bounded_points),
        cmocka_unit_test(curve_of_a_group_that_returned_to_an_older_state_is_cut),
        cmocka_unit_test(curve_prints_columns_and_the_newest_evaluations),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
