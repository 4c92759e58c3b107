/* test_node_random.c - thousands of small clusters with random faults; sim/sim_scenario.c states
 * the expected outcome. SEEDS=n runs n seeds from FIRST on, until FINDINGS of them fail; SEED=n
 * runs one and prints its log, PS_SEED=n one with parameter servers, DIVISION_SEED=n one of a
 * divided cluster with parameter servers. test/sim/mutate shows that the scenarios find injected errors. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "harness/ring.h"
#include "sim/sim.h"

#ifdef __SANITIZE_ADDRESS__
enum { SEEDS = 2000, FINDINGS = 3 };
#else
enum { SEEDS = 10000, FINDINGS = 3 };
#endif

static uint64_t asked(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);

    return text != NULL ? strtoull(text, NULL, 10) : otherwise;
}

typedef const char *scenario_fn(uint64_t seed, bool tell);

static void run_seeds(scenario_fn *scenario, uint64_t n)
{
    uint64_t first = asked("FIRST", 1), found = 0, seed;
    clock_t begin = clock();
    double seconds;

    for (seed = first; seed < first + n && found < asked("FINDINGS", FINDINGS); seed++) {
        const char *finding = scenario(seed, false);

        found += finding != NULL;
        if (finding != NULL)
            print_error("%s\n", finding);
    }
    n = seed - first;
    seconds = (double)(clock() - begin) / CLOCKS_PER_SEC;
    print_message("%" PRIu64 " scenarios, %.0f per second\n", n, (double)n / seconds);
    if (found > 0)
        fail_msg("%" PRIu64 " of %" PRIu64 " scenarios fail; SEED=n prints the log of one", found,
                 n);
}

static void random_faults_tasks_regroup_or_log_the_reason(void **state)
{
    (void)state;
    run_seeds(sim_random_scenario, asked("SEEDS", ring_count(SEEDS / 3, SEEDS)));
}

static void random_faults_with_parameter_servers_tasks_regroup_or_log_the_reason(void **state)
{
    (void)state;
    run_seeds(sim_ps_scenario, asked("SEEDS", ring_count(SEEDS / 3, SEEDS)) / 2);
}

static void divided_cluster_with_parameter_servers_the_side_with_every_row_trains(void **state)
{
    (void)state;
    run_seeds(sim_division_scenario, asked("SEEDS", SEEDS) / 50);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(divided_cluster_with_parameter_servers_the_side_with_every_row_trains),
        cmocka_unit_test(random_faults_tasks_regroup_or_log_the_reason),
        cmocka_unit_test(random_faults_with_parameter_servers_tasks_regroup_or_log_the_reason),
    };

    if (getenv("PS_SEED") != NULL)
        return sim_ps_scenario(asked("PS_SEED", 0), true) != NULL;
    if (getenv("DIVISION_SEED") != NULL)
        return sim_division_scenario(asked("DIVISION_SEED", 0), true) != NULL;
    if (getenv("SEED") != NULL)
        return sim_random_scenario(asked("SEED", 0), true) != NULL;
    return cmocka_run_group_tests_name("member/node_random", tests, NULL, NULL);
}
