/* test_dynamic.c - the rows of a dynamic table in one shard, against lists that are searched one by one. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "ps/dynamic.h"
#include "ps/map.h"

enum { STRIDE = 3 };

static const int64_t extremes[] = { INT64_MIN, INT64_MIN + 1, -1, 0, 1, INT64_MAX - 1, INT64_MAX };

/* Counts a gradient, and admits the row if its count allows it: its floats are its id. */
static void count(struct ps_dynamic *d, uint64_t row, uint64_t step)
{
    struct ps_id *id;

    assert_int_equal(ps_dynamic_make_room(d, 1, 1, NULL), 0);
    id = ps_dynamic_count(d, row, step);
    if (id->at == PS_NO_FLOATS && ps_dynamic_is_admitted(d, id->count)) {
        float *at = ps_dynamic_admit(d, id);

        for (int i = 0; i < STRIDE; i++)
            at[i] = (float)(row % 1000003) + (float)i;
    }
}

static void check_floats(const struct ps_dynamic *d)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < d->n_ids; i++) {
        const struct ps_id *id = &d->ids[i];

        assert_ptr_equal(ps_dynamic_find(d, id->row), id);
        assert_int_equal(id->at != PS_NO_FLOATS, id->count >= d->admit_after);
        if (id->at == PS_NO_FLOATS)
            continue;
        n++;
        for (int k = 0; k < STRIDE; k++)
            assert_true(ps_dynamic_floats(d, id)[k] == (float)(id->row % 1000003) + (float)k);
    }
    assert_int_equal(n, d->n_rows);
}

/* Lists all rows in steps of `most`. Returns their number. */
static uint32_t list(const struct ps_dynamic *d, uint32_t most, uint64_t *rows)
{
    uint32_t *order = malloc((d->n_ids + 1) * sizeof(*order)), n = 0;
    uint64_t first = 0;
    bool is_last = false;

    assert_non_null(order);
    while (!is_last) {
        uint32_t k = ps_dynamic_list(d, first, most, order, &is_last);

        assert_true(k == most || is_last);
        for (uint32_t i = 0; i < k; i++)
            rows[n++] = d->ids[order[i]].row;
        if (k > 0)
            first = rows[n - 1] + 1;
    }
    free(order);
    return n;
}

static void ids_at_the_ends_of_the_range_are_rows_like_others(void **state)
{
    enum { N = sizeof(extremes) / sizeof(*extremes) };
    struct ps_dynamic d;
    uint64_t rows[N];

    (void)state;
    ps_dynamic_init(&d, STRIDE, 1);
    assert_int_equal(ps_dynamic_bytes(&d), 0);
    for (size_t i = 0; i < N; i++)
        assert_null(ps_dynamic_find(&d, ps_row_of_id(extremes[i])));
    for (size_t i = N; i-- > 0;)
        count(&d, ps_row_of_id(extremes[i]), 5);
    check_floats(&d);
    assert_int_equal(d.n_rows, N);
    for (uint32_t most = 1; most <= N; most++) {
        assert_int_equal(list(&d, most, rows), N);
        for (size_t i = 0; i < N; i++)
            assert_int_equal(ps_id_of_row(rows[i]), extremes[i]);
    }
    ps_dynamic_fini(&d);
}

/* Many rows, in two orders: the same ids, counts and steps, and growing memory. */
static void order_of_insertion_has_no_effect(void **state)
{
    enum { N = 5000 };
    struct ps_dynamic a, b;
    uint64_t *rows = malloc(N * sizeof(*rows)), *rows_b = malloc(N * sizeof(*rows));

    (void)state;
    assert_true(rows != NULL && rows_b != NULL);
    ps_dynamic_init(&a, STRIDE, 2);
    ps_dynamic_init(&b, STRIDE, 2);
    for (uint64_t step = 1; step <= 3; step++)
        for (uint64_t i = 0; i < N; i++) { /* a row in step 1, every second in 2, every third in 3 */
            uint64_t k = N - 1 - i;

            if (i % step == 0)
                count(&a, ps_mix64(i), step);
            if (k % step == 0)
                count(&b, ps_mix64(k), step);
        }
    check_floats(&a);
    check_floats(&b);
    assert_int_equal(list(&a, 700, rows), N);
    assert_int_equal(list(&b, 1, rows_b), N);
    assert_memory_equal(rows, rows_b, N * sizeof(*rows));
    for (uint64_t i = 0; i < N; i++) {
        const struct ps_id *x = ps_dynamic_find(&a, ps_mix64(i)),
                           *y = ps_dynamic_find(&b, ps_mix64(i));

        assert_int_equal(x->count, 1 + (i % 2 == 0) + (i % 3 == 0));
        assert_int_equal(x->last_step, i % 3 == 0 ? 3 : i % 2 == 0 ? 2 : 1);
        assert_int_equal(y->count, x->count);
        assert_int_equal(y->last_step, x->last_step);
    }
    assert_true(ps_dynamic_bytes(&a) < 2 * N * (sizeof(struct ps_id) + 16 + 4 * STRIDE + 4));
    assert_int_equal(ps_dynamic_growth(&a, a.room_ids - a.n_ids, 0), 0);
    assert_true(ps_dynamic_growth(&a, a.room_ids, 0) > 0);
    ps_dynamic_fini(&a);
    ps_dynamic_fini(&b);
    free(rows);
    free(rows_b);
}

static void row_without_a_recent_gradient_expires(void **state)
{
    enum { N = 1000 };
    struct ps_dynamic d;

    (void)state;
    ps_dynamic_init(&d, STRIDE, 2);
    for (uint64_t i = 0; i < N; i++)
        for (uint64_t step = i % 50 + 1; step < i % 50 + 1 + i % 3; step++)
            count(&d, i * 77, step);
    ps_dynamic_sweep(&d, 20, 0);
    check_floats(&d);
    for (uint64_t i = 0; i < N; i++) {
        uint64_t last = i % 50 + i % 3;

        assert_int_equal(ps_dynamic_find(&d, i * 77) != NULL, i % 3 > 0 && last >= 20);
    }
    ps_dynamic_sweep(&d, 1000, 0);
    assert_int_equal(d.n_ids, 0);
    assert_int_equal(d.n_rows, 0);
    count(&d, 77, 1001); /* as a row that never existed */
    assert_int_equal(ps_dynamic_find(&d, 77)->count, 1);
    ps_dynamic_fini(&d);
}

/* Of rows whose newest steps are equal the lowest go first; rows that are not admitted have a limit of
 * their own. */
static void rows_above_the_limit_are_removed_oldest_first(void **state)
{
    struct ps_dynamic d;

    (void)state;
    for (int reverse = 0; reverse < 2; reverse++) {
        ps_dynamic_init(&d, STRIDE, 2);
        for (uint64_t k = 0; k < 300; k++) {
            uint64_t i = reverse ? 299 - k : k;

            count(&d, i, 10 - i % 3); /* steps 8, 9, 10 */
            if (i < 150)
                count(&d, i, 10 - i % 3);
        }
        ps_dynamic_sweep(&d, 0, 150);
        assert_int_equal(d.n_ids, 300);
        ps_dynamic_sweep(&d, 0, 120);
        check_floats(&d);
        assert_int_equal(d.n_rows, 120);
        assert_int_equal(d.n_ids, 240);
        for (uint64_t i = 0; i < 300; i++) {
            bool is_removed = i % 3 == 2 && i % 150 / 3 < 30; /* the 30 lowest of step 8 */

            assert_int_equal(ps_dynamic_find(&d, i) == NULL, is_removed);
        }
        ps_dynamic_sweep(&d, 0, 1);
        assert_int_equal(d.n_rows, 1);
        assert_non_null(ps_dynamic_find(&d, 147)); /* the highest of step 10 */
        assert_non_null(ps_dynamic_find(&d, 297));
        ps_dynamic_clear(&d);
        assert_null(ps_dynamic_find(&d, 147));
        ps_dynamic_fini(&d);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ids_at_the_ends_of_the_range_are_rows_like_others),
        cmocka_unit_test(order_of_insertion_has_no_effect),
        cmocka_unit_test(row_without_a_recent_gradient_expires),
        cmocka_unit_test(rows_above_the_limit_are_removed_oldest_first),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
