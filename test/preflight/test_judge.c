#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "preflight/group.h"
#include "preflight/judge.h"

static struct preflight_findings found;

static void judge_group(const struct group *g)
{
    free(found.at);
    assert_int_equal(judge(&g->table, &found, NULL), 0);
}

static void expect_only(const char *what, uint32_t task, uint32_t other)
{
    assert_int_equal(found.n, 1);
    assert_string_equal(found.at[0].what, what);
    assert_int_equal(found.at[0].task, task);
    assert_int_equal(found.at[0].other, other);
    assert_true(found.at[0].remedy[0] != '\0');
}

static void spoil_task(struct group *g, uint32_t task, void (*spoil)(struct preflight_entry *e))
{
    for (uint32_t i = 0; i < g->table.world; i++)
        if (i != task) {
            spoil(&g->entries[i][task]);
            spoil(&g->entries[task][i]);
        }
}

static void healthy_group_has_no_finding(void **state)
{
    struct group g;

    (void)state;
    for (uint32_t world = 2; world <= GROUP; world++) {
        group_init(&g, world);
        judge_group(&g);
        assert_int_equal(found.n, 0);
    }
}

static void make_slow(struct preflight_entry *e)
{
    e->rtt_us = 20000;
}

static void make_narrow(struct preflight_entry *e)
{
    e->rate = 10000000;
}

static void make_large_lost(struct preflight_entry *e)
{
    e->large = PREFLIGHT_BAD;
    e->rate = 0;
}

static void make_data_silent(struct preflight_entry *e)
{
    e->data = PREFLIGHT_SILENT;
    e->large = PREFLIGHT_UNCHECKED;
    e->rate = 0;
}

static void make_unseen(struct preflight_entry *e)
{
    e->storage = PREFLIGHT_BAD;
    e->lock = PREFLIGHT_UNCHECKED;
}

static void make_unlocked(struct preflight_entry *e)
{
    e->lock = PREFLIGHT_BAD;
}

static void make_unmeasured(struct preflight_entry *e)
{
    e->rtt_us = 0;
    e->data = PREFLIGHT_UNTESTED;
    e->rate = 0;
}

static void task_that_differs_on_all_its_paths_is_named(void **state)
{
    static const struct {
        const char *what;
        void (*spoil)(struct preflight_entry *e);
    } cases[] = {
        { "latency", make_slow },          { "bandwidth", make_narrow },  { "large packets", make_large_lost },
        { "data port", make_data_silent }, { "storage", make_unseen },    { "lock", make_unlocked },
        { "time", make_unmeasured },
    };
    struct group g;

    (void)state;
    for (uint32_t world = 3; world <= GROUP; world++)
        for (uint32_t task = 0; task < world; task++)
            for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
                group_init(&g, world);
                spoil_task(&g, task, cases[i].spoil);
                judge_group(&g);
                expect_only(cases[i].what, task, PREFLIGHT_NO_TASK);
            }
}

/* The ports of a task whose results have arrived are open: another host, or its own firewall, refuses. */
static void refused_by_a_task_that_runs_the_remedy_names_the_firewall(void **state)
{
    struct group g;

    (void)state;
    for (uint32_t world = 2; world <= GROUP; world++) {
        group_init(&g, world);
        g.entries[0][1].control = PREFLIGHT_REFUSED; /* one direction of a pair */
        judge_group(&g);
        expect_only("control port", 0, 1);
        assert_non_null(strstr(found.at[0].text, "from worker 0 to worker 1"));
        assert_non_null(strstr(found.at[0].remedy, "REJECT"));
        assert_null(strstr(found.at[0].remedy, "start the preflight"));
    }
    group_init(&g, 4);
    for (uint32_t i = 1; i < 4; i++) { /* the data port of a whole host */
        make_data_silent(&g.entries[i][0]);
        g.entries[i][0].data = PREFLIGHT_REFUSED;
    }
    judge_group(&g);
    expect_only("data port", 0, PREFLIGHT_NO_TASK);
    assert_non_null(strstr(found.at[0].remedy, "REJECT"));
}

static void one_bad_path_names_the_pair(void **state)
{
    struct group g;

    (void)state;
    group_init(&g, 4);
    make_slow(&g.entries[1][3]);
    make_slow(&g.entries[3][1]);
    judge_group(&g);
    expect_only("latency", 1, 3);
    group_init(&g, 3);
    make_large_lost(&g.entries[2][0]);
    judge_group(&g);
    expect_only("large packets", 0, 2);
    assert_non_null(strstr(found.at[0].text, "from worker 2 to worker 0"));
}

/* A direction that shared its host with other work may be a few times as slow. */
static void rate_of_one_direction_is_a_fault_below_an_eighth(void **state)
{
    struct group g;

    (void)state;
    group_init(&g, 4);
    g.entries[1][3].rate = 200000000;
    judge_group(&g);
    assert_int_equal(found.n, 0);
    g.entries[1][3].rate = 100000000;
    judge_group(&g);
    expect_only("bandwidth", 1, 3);
}

static void blocked_port_of_a_task_names_its_direction(void **state)
{
    struct group g;

    (void)state;
    group_init(&g, 3);
    for (uint32_t i = 0; i < 2; i++) {
        g.entries[i][2] = (struct preflight_entry){ .control = PREFLIGHT_SILENT, .in = 1 };
        g.entries[2][i].in = 0;
    }
    judge_group(&g);
    expect_only("control port", 2, PREFLIGHT_NO_TASK);
    assert_non_null(
        strstr(found.at[0].text, "connections to worker 2 (10.0.0.1:2222) get no answer"));
}

static void absent_task_is_named_once(void **state)
{
    struct group g;

    (void)state;
    for (uint32_t world = 2; world <= GROUP; world++) {
        group_init(&g, world);
        g.rows[1].present = false;
        for (uint32_t i = 0; i < world; i++)
            g.entries[i][1] = (struct preflight_entry){ .control = PREFLIGHT_REFUSED };
        judge_group(&g);
        expect_only("control port", 1, PREFLIGHT_NO_TASK);
        assert_non_null(strstr(found.at[0].text, "refused"));
    }
}

static void token_that_one_task_sees_refused_is_the_cause(void **state)
{
    struct group g;

    (void)state;
    for (uint32_t denied = 0; denied < 2; denied++) {
        group_init(&g, 3);
        for (uint32_t i = 0; i < 2; i++)
            g.entries[i][2] = (struct preflight_entry){
                .control = i == denied ? PREFLIGHT_DENIED : PREFLIGHT_FOREIGN
            };
        g.rows[2].present = false;
        judge_group(&g);
        expect_only("control port", 2, PREFLIGHT_NO_TASK);
        assert_non_null(strstr(found.at[0].text, "token"));
    }
}

static void fault_of_every_pair_names_no_task(void **state)
{
    struct group g;

    (void)state;
    group_init(&g, 3);
    for (uint32_t i = 0; i < 3; i++)
        spoil_task(&g, i, make_unlocked);
    judge_group(&g);
    expect_only("lock", PREFLIGHT_NO_TASK, PREFLIGHT_NO_TASK);
}

static void clock_that_differs_from_the_median_is_named(void **state)
{
    struct group g;

    (void)state;
    for (uint32_t task = 0; task < 3; task++) {
        group_init(&g, 3);
        for (uint32_t i = 0; i < 3; i++)
            if (i != task) {
                g.entries[i][task].skew_us = 90000000;
                g.entries[task][i].skew_us = -90000000;
            }
        judge_group(&g);
        expect_only("clock", task, PREFLIGHT_NO_TASK);
        assert_non_null(strstr(found.at[0].text, "90.000 s ahead"));
    }
    group_init(&g, 2);
    g.entries[0][1].skew_us = 2000000;
    g.entries[1][0].skew_us = -2000000;
    judge_group(&g);
    expect_only("clock", 1, 0);
}

static void text_that_differs_from_the_majority_is_named(void **state)
{
    struct group g;

    (void)state;
    group_init(&g, 3);
    snprintf(g.rows[0].facts.devices, sizeof(g.rows[0].facts.devices), "2 cpu");
    judge_group(&g);
    expect_only("devices", 0, PREFLIGHT_NO_TASK);
    group_init(&g, 2);
    snprintf(g.rows[1].facts.version, sizeof(g.rows[1].facts.version), "2");
    judge_group(&g);
    expect_only("version", 1, 0);
    group_init(&g, 3);
    g.rows[2].facts.devices[0] = '\0'; /* as a ps, which states none */
    judge_group(&g);
    assert_int_equal(found.n, 0);
}

static void fault_that_a_task_reports_is_named(void **state)
{
    struct group g;

    (void)state;
    group_init(&g, 3);
    snprintf(g.rows[2].facts.storage_fault, PREFLIGHT_TEXT_BYTES, "disk full");
    judge_group(&g);
    expect_only("storage", 2, PREFLIGHT_NO_TASK);
    assert_non_null(strstr(found.at[0].text, "disk full"));
}

static void differing_mtu_is_a_note(void **state)
{
    struct group g;

    (void)state;
    group_init(&g, 3);
    g.entries[1][0].mtu = g.entries[1][2].mtu = 9000;
    judge_group(&g);
    expect_only("MTU", 1, PREFLIGHT_NO_TASK);
    assert_int_equal(found.at[0].severity, PREFLIGHT_NOTE);
}

static int free_found(void **state)
{
    (void)state;
    free(found.at);
    found.at = NULL;
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(healthy_group_has_no_finding),
        cmocka_unit_test(task_that_differs_on_all_its_paths_is_named),
        cmocka_unit_test(refused_by_a_task_that_runs_the_remedy_names_the_firewall),
        cmocka_unit_test(one_bad_path_names_the_pair),
        cmocka_unit_test(rate_of_one_direction_is_a_fault_below_an_eighth),
        cmocka_unit_test(blocked_port_of_a_task_names_its_direction),
        cmocka_unit_test(absent_task_is_named_once),
        cmocka_unit_test(token_that_one_task_sees_refused_is_the_cause),
        cmocka_unit_test(fault_of_every_pair_names_no_task),
        cmocka_unit_test(clock_that_differs_from_the_median_is_named),
        cmocka_unit_test(text_that_differs_from_the_majority_is_named),
        cmocka_unit_test(fault_that_a_task_reports_is_named),
        cmocka_unit_test(differing_mtu_is_a_note),
    };

    return cmocka_run_group_tests(tests, NULL, free_found);
}
