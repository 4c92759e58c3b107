/* test_node_many.c - a cluster of 1024 tasks forms a new group: processor time of all tasks
 * together, and simulated time. MANY=n: another number of tasks. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <inttypes.h>
#include <stdlib.h>
#include <time.h>

#include "sim/sim.h"

static uint32_t many(void)
{
    const char *text = getenv("MANY");

    return text != NULL ? (uint32_t)strtoul(text, NULL, 10) : 1024;
}

static struct sim *together(uint32_t world)
{
    struct sim *s = sim_new(&(struct sim_opts){ .world = world,
                                                .seed = 1,
                                                .rejoin_ms = 1,
                                                .step_ms = 200,
                                                .start_ms = 100,
                                                .delay_ms = 3,
                                                .transfer_ms = 30 });
    clock_t begin = clock();

    assert_true(sim_until_together(s, world, 20000));
    print_message("%u tasks form a group in %" PRIu64 " ms: %.2f s of processor time\n", world,
                  sim_now(s), (double)(clock() - begin) / CLOCKS_PER_SEC);
    sim_advance(s, 1000);
    return s;
}

/* The first `n` tasks from `first` on die at once; the others must form a group within limit_ms. */
static void expect_regroup_after_deaths(uint32_t first, uint32_t n, uint64_t limit_ms,
                                        const char *what)
{
    uint32_t world = many();
    struct sim *s = together(world);
    uint64_t before = sim_now(s);
    clock_t begin = clock();
    double seconds;

    for (uint32_t i = 0; i < n; i++)
        sim_kill(s, first + i);
    if (!sim_until_together(s, world - n, limit_ms))
        fail_msg("%s: not together again within %" PRIu64 " ms of theirs; %s", what, limit_ms,
                 sim_finding(s) != NULL ? sim_finding(s) : "nothing found by the judge");
    seconds = (double)(clock() - begin) / CLOCKS_PER_SEC;
    print_message("%u tasks: %.2f s (%s, regrouped after %" PRIu64 " ms)\n", world, seconds, what,
                  sim_now(s) - before);
    assert_true(seconds < 10); /* 1 s without sanitizers on an idle machine */
    assert_null(sim_finding(s));
    sim_free(s);
}

static void one_task_of_a_thousand_dies_the_group_continues(void **state)
{
    (void)state;
    expect_regroup_after_deaths(many() / 2, 1, 200, "one died");
}

static void hundred_tasks_of_a_thousand_die_the_group_continues(void **state)
{
    (void)state;
    expect_regroup_after_deaths(many() / 3, many() / 10, 400, "a tenth died");
}

static void chief_of_a_thousand_dies_the_group_continues(void **state)
{
    (void)state;
    expect_regroup_after_deaths(0, 1, 1000, "the chief died");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_task_of_a_thousand_dies_the_group_continues),
        cmocka_unit_test(hundred_tasks_of_a_thousand_die_the_group_continues),
        cmocka_unit_test(chief_of_a_thousand_dies_the_group_continues),
    };

    return cmocka_run_group_tests_name("member/node_many", tests, NULL, NULL);
}
