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
        const char *finding = sim_storage_scenario(seed, false);

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
        struct sim *s =
            START_CLUSTER(.save_every = 10, .min_world = i < 2 ? 4 : 1, .no_lease = i < 2);
        uint64_t step;

        sim_storage(s, 0, how[i % 2]);
        step = sim_newest(s);
        sim_advance(s, FAILED_MS + 20 * 20);
        expect_group(s, 4, 1, LINKS_MS + MEMBER_EXPIRY_MS);
        sim_advance(s, 1500);
        EXPECT(s, sim_checkpoint(s) > step);
        EXPECT(s, sim_exit_code(s, 0) == SIM_RUNNING && sim_generation(s, 0) > 0);
        sim_free(s);
    }
}

static void lease_of_a_smaller_group_fails_and_a_task_that_can_write_leads(void **state)
{
    struct sim *s = START_CLUSTER();

    (void)state;
    sim_kill(s, 3);
    expect_group(s, 3, 0, LINKS_MS);
    sim_storage(s, 0, SIM_STORAGE_FAILS);
    sim_advance(s, FAILED_MS + MEMBER_HOLD_MS);
    expect_group(s, 3, 1, MEMBER_EXPIRY_MS + 1000);
    sim_free(s);
}

static void last_checkpoint_fails_on_the_chief_and_another_task_completes_the_job(void **state)
{
    struct sim *s = START_CLUSTER(.steps = 40);

    (void)state;
    sim_storage(s, 0, SIM_STORAGE_FAILS);
    EXPECT(s, sim_until_ended(s, 20000));
    for (uint32_t i = 0; i < 4; i++)
        expect_exit(s, i, 0, "complete");
    EXPECT(s, sim_checkpoint(s) == 40);
    sim_free(s);
}

static void tasks_that_cannot_write_at_all_never_coordinate(void **state)
{
    struct sim *s;

    (void)state;
    for (int i = 0; i < 2; i++) { /* the whole cluster, and a group that needs the lease */
        s = START_CLUSTER(.steps = 400, .save_every = 20, .n_refused = 2,
                          .min_world = i == 0 ? 4 : 1, .no_lease = i == 0);
        EXPECT(s, sim_checkpoint(s) > 0 || sim_until_step(s, 50, 5000));
        expect_group(s, 4, 2, LINKS_MS);
        EXPECT(s, sim_checkpoint(s) > 0);
        sim_free(s);
    }
}

static void no_task_can_write_at_all_and_all_end_with_2_before_the_first_step(void **state)
{
    struct sim_opts o = { .world = 4, .seed = 1, .n_refused = 4, .steps = 40, .tell = true };

    (void)state;
    for (int i = 0; i < 2; i++) {
        struct sim *s;

        o.min_world = i == 0 ? 4 : 1;
        s = sim_new(&o);
        EXPECT(s, sim_until_ended(s, 5000));
        for (uint32_t k = 0; k < 4; k++)
            expect_exit(
                s, k, 2,
                "no task can write the results of the job: worker 0 (10.0.0.0:1): permission denied");
        EXPECT(s, sim_newest(s) == 0);
        sim_free(s);
    }
}

static void last_checkpoint_fails_everywhere_and_all_end_with_138_and_the_reason(void **state)
{
    struct sim *s = START_CLUSTER(.steps = 40, .deadline_ms = 10000);

    (void)state;
    sim_storage(s, SIM_ALL, SIM_STORAGE_FAILS);
    EXPECT(s, sim_until_ended(s, 60000));
    for (uint32_t i = 0; i < 4; i++)
        expect_exit(s, i, 138, "input/output error");
    sim_free(s);
}

static void leader_cannot_save_for_a_leaving_task_another_task_saves(void **state)
{
    struct sim *s = START_CLUSTER(.grace_ms = 8000);

    (void)state;
    sim_storage(s, 0, SIM_STORAGE_FAILS);
    for (uint32_t i = 0; i < 4; i++)
        sim_stop(s, i, false);
    EXPECT(s, sim_until_ended(s, 20000));
    for (uint32_t i = 0; i < 4; i++)
        expect_exit(s, i, 143, "");
    EXPECT(s, sim_checkpoint(s) > 0);
    sim_free(s);
}

/* Task 0 trains alone and cannot read the lease while task 1, of which it hears nothing, takes the lease, trains
 * and dies. When it reads the lease again, task 1 has joined it and no other group trains any more. */
static void lease_that_another_task_took_meanwhile_ends_the_view(void **state)
{
    struct sim *s = START_CLUSTER(.world = 2);

    (void)state;
    sim_kill(s, 1);
    expect_group(s, 1, 0, LINKS_MS);
    sim_storage(s, 0, SIM_STORAGE_HANGS);
    sim_partition(s, 1);
    sim_start(s, 1);
    sim_advance(s, MEMBER_EXPIRY_MS + 3000);
    EXPECT(s, sim_generation(s, 0) != 0 && sim_generation(s, 1) != 0); /* task 0 permits no step, but its view lives */
    sim_kill(s, 1);
    sim_heal(s);
    sim_start(s, 1);
    sim_storage(s, 0, SIM_STORAGE_FINE);
    EXPECT(s, sim_until_together(s, 2, 10000));
    EXPECT(s, strstr(sim_log(s), "took the lease: another group may have trained") != NULL);
    sim_free(s);
}

static void failing_lease_is_retried_with_growing_delay(void **state)
{
    struct sim *s = START_CLUSTER(.world = 1);
    const char *at;
    uint32_t tries = 0;

    (void)state;
    sim_free(s);
    s = START_CLUSTER(.world = 2);
    sim_kill(s, 1);
    sim_storage(s, 0, SIM_STORAGE_FAILS);
    sim_advance(s, 3000);
    sim_reset_log(s);
    sim_advance(s, 10000);
    for (at = sim_log(s); (at = strstr(at, "requests lease")) != NULL; at++)
        tries++;
    for (at = sim_log(s); (at = strstr(at, "reads the lease")) != NULL; at++)
        tries++;
    EXPECT(s, tries > 0 && tries <= 12);
    sim_free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(storage_of_the_chief_fails_and_the_next_task_writes),
        cmocka_unit_test(lease_of_a_smaller_group_fails_and_a_task_that_can_write_leads),
        cmocka_unit_test(last_checkpoint_fails_on_the_chief_and_another_task_completes_the_job),
        cmocka_unit_test(tasks_that_cannot_write_at_all_never_coordinate),
        cmocka_unit_test(no_task_can_write_at_all_and_all_end_with_2_before_the_first_step),
        cmocka_unit_test(last_checkpoint_fails_everywhere_and_all_end_with_138_and_the_reason),
        cmocka_unit_test(leader_cannot_save_for_a_leaving_task_another_task_saves),
        cmocka_unit_test(lease_that_another_task_took_meanwhile_ends_the_view),
        cmocka_unit_test(failing_lease_is_retried_with_growing_delay),
        cmocka_unit_test(storage_failing_on_some_tasks_checkpoints_stay_on_time),
    };

    if (getenv("SEED") != NULL)
        return sim_storage_scenario(asked("SEED", 0), true) != NULL;
    return cmocka_run_group_tests_name("member/node_storage", tests, NULL, NULL);
}
