/* Tests that the servers of a ps report to one sum, and what the decision receives. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/err.h"
#include "ps/budget.h"

static struct ps_memory seen;

static int decide(void *arg, const struct ps_memory *m, struct err *err)
{
    const uint64_t *limit = arg;

    seen = *m;
    return m->planned > *limit ? err_set(err, ERR_NOMEM, "too many bytes") : 0;
}

static void servers_report_the_decision_receives_their_sum(void **state)
{
    uint64_t limit = 100;
    struct ps_budget b;
    struct err err;

    (void)state;
    ps_budget_init(&b, decide, &limit);
    ps_budget_begin(&b, 40, 3);
    assert_int_equal(ps_budget_report(&b, 60, 70, &err), 0);
    assert_true(seen.held == 40 && seen.planned == 60 && seen.n_reported == 1 &&
                seen.n_servers == 3);
    assert_int_equal(ps_budget_report(&b, 40, 40, &err), 0);
    assert_true(seen.planned == 100 && seen.planned_memory == 110 && seen.n_reported == 2);
    assert_int_equal(ps_budget_report(&b, 1, 1, &err), ERR_NOMEM);
    assert_string_equal(err.text, "too many bytes");
    assert_true(seen.planned == 101 && seen.n_reported == 3);
    ps_budget_begin(&b, 101, 2); /* the next generation */
    assert_int_equal(ps_budget_report(&b, 10, 10, &err), 0);
    assert_true(seen.held == 101 && seen.planned == 10 && seen.n_reported == 1 &&
                seen.n_servers == 2);
    ps_budget_fini(&b);
}

static void budget_without_a_decision_allows_everything(void **state)
{
    struct ps_budget b;

    (void)state;
    ps_budget_init(&b, NULL, NULL);
    ps_budget_begin(&b, 0, 1);
    assert_int_equal(ps_budget_report(&b, UINT64_MAX, UINT64_MAX, NULL), 0);
    ps_budget_fini(&b);
}

static int wants_after_growth(void *arg, const struct ps_memory *m, struct err *err)
{
    (void)arg;
    (void)err;
    return m->growing != NULL;
}

static void growth_that_leaves_little_memory_asks_for_one_checkpoint(void **state)
{
    struct ps_budget b;

    (void)state;
    ps_budget_init(&b, wants_after_growth, NULL);
    ps_budget_begin(&b, 0, 1);
    assert_int_equal(ps_budget_report(&b, 10, 10, NULL), 0);
    assert_false(ps_budget_takes_save(&b));
    assert_int_equal(ps_budget_grow(&b, "items", 10, NULL), 0);
    assert_int_equal(ps_budget_grow(&b, "items", 10, NULL), 0); /* before the next vote */
    assert_true(ps_budget_takes_save(&b));
    assert_false(ps_budget_takes_save(&b));
    ps_budget_fini(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(servers_report_the_decision_receives_their_sum),
        cmocka_unit_test(budget_without_a_decision_allows_everything),
        cmocka_unit_test(growth_that_leaves_little_memory_asks_for_one_checkpoint),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
