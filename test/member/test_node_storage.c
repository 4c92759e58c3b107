/* test_node_storage.c - a thousand scenarios in which the storage fails on the task that writes;
 * sim/sim_storage.c states the expected outcome. SEEDS=n runs n seeds from FIRST on; SEED=n runs
 * one and prints its log. */
#include "member/node_kit.h"

enum { SEEDS = 1000, FINDINGS = 3, LINKS_MS = 60, FAILED_MS = 2000 };

static uint64_t asked(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);

    return text != NULL ? strtoull(text, NULL, 10) : otherwise;
}

static void storage_failing_on_some_tasks_checkpoints_stay_on_time(void **state)
{
    uint64_t first = asked("FIRST", 1), n = asked("SEEDS", SEEDS), found = 0;

    (void)state;
    for (uint64_t seed = first; seed < first + n && found < FINDINGS; seed++) {
        const char *finding = sim_storage_story(seed, false);

        found += finding != NULL;
        if (finding != NULL)
            print_error("%s\n", finding);
    }
    if (found > 0)
        fail_msg("%" PRIu64 " schedules end badly; SEED=n tells one", found);
}

static void storage_of_the_chief_fails_and_the_next_task_writes(void **state)
{
    enum sim_storage how[] = { SIM_STORAGE_FAILS, SIM_STORAGE_HANGS };

    (void)state;
    for (int i = 0; i < 4; i++) {
        struct sim *s = CLUSTER(.save_every = 10, .min_world = i < 2 ? 4 : 1, .no_lease = i < 2);
        uint64_t step;

        sim_storage(s, 0, how[i % 2]);
        step = sim_newest(s);
        sim_advance(s, FAILED_MS + 20 * 20);
        regroup(s, 4, 1, LINKS_MS + MEMBER_EXPIRY_MS);
        sim_advance(s, 1500);
        HOLDS(s, sim_checkpoint(s) > step);
        HOLDS(s, sim_exit_code(s, 0) == SIM_RUNNING && sim_generation(s, 0) > 0);
        sim_free(s);
    }
}

static void lease_of_a_smaller_group_fails_and_a_task_that_can_write_leads(void **state)
{
    struct sim *s = CLUSTER();

    (void)state;
    sim_kill(s, 3);
    regroup(s, 3, 0, LINKS_MS);
    sim_storage(s, 0, SIM_STORAGE_FAILS);
    sim_advance(s, FAILED_MS + MEMBER_HOLD_MS);
    regroup(s, 3, 1, MEMBER_EXPIRY_MS + 1000);
    sim_free(s);
}

static void last_checkpoint_fails_on_the_chief_and_another_task_completes_the_job(void **state)
{
    struct sim *s = CLUSTER(.steps = 40);

    (void)state;
    sim_storage(s, 0, SIM_STORAGE_FAILS);
    HOLDS(s, sim_until_ended(s, 20000));
    for (uint32_t i = 0; i < 4; i++)
        ends_with(s, i, 0, "complete");
    HOLDS(s, sim_checkpoint(s) == 40);
    sim_free(s);
}

static void last_checkpoint_fails_everywhere_and_all_end_with_138_and_the_reason(void **state)
{
    struct sim *s = CLUSTER(.steps = 40, .deadline_ms = 10000);

    (void)state;
    sim_storage(s, SIM_ALL, SIM_STORAGE_FAILS);
    HOLDS(s, sim_until_ended(s, 60000));
    for (uint32_t i = 0; i < 4; i++)
        ends_with(s, i, 138, "input/output error");
    sim_free(s);
}

static void leader_that_cannot_save_for_a_leaver_lets_another_task_save(void **state)
{
    struct sim *s = CLUSTER(.grace_ms = 8000);

    (void)state;
    sim_storage(s, 0, SIM_STORAGE_FAILS);
    for (uint32_t i = 0; i < 4; i++)
        sim_stop(s, i, false);
    HOLDS(s, sim_until_ended(s, 20000));
    for (uint32_t i = 0; i < 4; i++)
        ends_with(s, i, 143, "");
    HOLDS(s, sim_checkpoint(s) > 0);
    sim_free(s);
}

static void failing_lease_is_tried_again_with_growing_pauses(void **state)
{
    struct sim *s = CLUSTER(.world = 1);
    const char *at;
    uint32_t tries = 0;

    (void)state;
    sim_free(s);
    s = CLUSTER(.world = 2);
    sim_kill(s, 1);
    sim_storage(s, 0, SIM_STORAGE_FAILS);
    sim_advance(s, 3000);
    sim_forget(s);
    sim_advance(s, 10000);
    for (at = sim_story(s); (at = strstr(at, "wants lease")) != NULL; at++)
        tries++;
    for (at = sim_story(s); (at = strstr(at, "looks at the lease")) != NULL; at++)
        tries++;
    HOLDS(s, tries > 0 && tries <= 12);
    sim_free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(storage_of_the_chief_fails_and_the_next_task_writes),
        cmocka_unit_test(lease_of_a_smaller_group_fails_and_a_task_that_can_write_leads),
        cmocka_unit_test(last_checkpoint_fails_on_the_chief_and_another_task_completes_the_job),
        cmocka_unit_test(last_checkpoint_fails_everywhere_and_all_end_with_138_and_the_reason),
        cmocka_unit_test(leader_that_cannot_save_for_a_leaver_lets_another_task_save),
        cmocka_unit_test(failing_lease_is_tried_again_with_growing_pauses),
        cmocka_unit_test(storage_failing_on_some_tasks_checkpoints_stay_on_time),
    };

    if (getenv("SEED") != NULL)
        return sim_storage_story(asked("SEED", 0), true) != NULL;
    return cmocka_run_group_tests_name("member/node_storage", tests, NULL, NULL);
}
