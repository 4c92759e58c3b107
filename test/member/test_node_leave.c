/* test_node_leave.c - scenarios in which a task leaves, or may not join, and the ends of a job. */
#include "member/node_kit.h"

/* ---- leaving ---- */

static void worker_leaves_a_checkpoint_is_saved_and_the_others_continue(void **state)
{
    struct sim *s = START_CLUSTER();
    uint64_t held = sim_newest(s);

    (void)state;
    sim_stop(s, 2, false);
    expect_group(s, 3, 0, 300);
    expect_exit(s, 2, 143, "state saved");
    EXPECT(s, sim_checkpoints(s) == 1 && sim_checkpoint(s) >= held);
    sim_free(s);
}

static void chief_leaves_the_others_continue_without_delay(void **state)
{
    struct sim *s = START_CLUSTER(.rejoin_ms = 10000);

    (void)state;
    sim_stop(s, 0, false);
    expect_group(s, 3, 1, MEMBER_GATHER_LEAVE_MS + MEMBER_SETTLE_MS + 300);
    expect_exit(s, 0, 143, "state saved");
    EXPECT(s, sim_checkpoints(s) == 1);
    sim_free(s);
}

static void all_tasks_leave_at_once_one_checkpoint_is_saved(void **state)
{
    static const uint64_t apart_ms[] = { 0, 3, 30, 100 };

    (void)state;
    for (size_t k = 0; k < 4; k++) {
        struct sim *s = START_CLUSTER(.grace_ms = 2000);

        for (uint32_t i = 0; i < 4; i++) {
            sim_stop(s, (i + (uint32_t)k) % 4, false);
            sim_advance(s, apart_ms[k]);
        }
        EXPECT(s, sim_until_ended(s, 2000));
        for (uint32_t i = 0; i < 4; i++)
            expect_exit(s, i, 143, "");
        /* a task that was asked later did more steps */
        EXPECT(s, sim_checkpoints(s) == 1 || apart_ms[k] >= 30);
        sim_free(s);
    }
}

static void stop_everywhere_all_tasks_end(void **state)
{
    (void)state;
    for (uint32_t rank = 0; rank < 4; rank += 3) {
        struct sim *s = START_CLUSTER();

        sim_stop(s, rank, true);
        EXPECT(s, sim_until_ended(s, 1000));
        for (uint32_t i = 0; i < 4; i++)
            expect_exit(s, i, 143, "");
        EXPECT(s, sim_checkpoints(s) == 1);
        sim_free(s);
    }
}

static void step_exceeds_grace_time_it_is_aborted_before_the_leave(void **state)
{
    struct sim *s = START_CLUSTER(.step_ms = 8000, .grace_ms = 700, .deadline_ms = 60000);
    uint64_t held = sim_newest(s);

    (void)state;
    sim_advance(s, 100);
    for (uint32_t i = 0; i < 4; i++)
        sim_stop(s, i, false);
    EXPECT(s, sim_until_ended(s, 700 + MEMBER_GATHER_LEAVE_MS + 300));
    for (uint32_t i = 0; i < 4; i++)
        expect_exit(s, i, 143, "");
    EXPECT(s, sim_checkpoint(s) == held);
    sim_free(s);
}

/* Its device call does not return: the state of the others is saved, and all leave. */
static void training_of_one_task_hangs_the_others_leave(void **state)
{
    (void)state;
    for (uint32_t stuck = 0; stuck < 4; stuck++) {
        struct sim *s = START_CLUSTER(.step_ms = 8000, .grace_ms = 700, .deadline_ms = 60000);
        uint64_t held = sim_newest(s);

        sim_advance(s, 100);
        sim_stuck(s, stuck);
        for (uint32_t i = 0; i < 4; i++)
            sim_stop(s, i, false);
        EXPECT(s, sim_until_ended(s, 700 + MEMBER_LEAVE_REST_MS + MEMBER_GATHER_LEAVE_MS + 1000));
        for (uint32_t i = 0; i < 4; i++)
            /* a leader that hangs cannot know whether the others save its state */
            if (i == stuck && i == 0)
                expect_exit(s, i, 138, "does not stop");
            else
                expect_exit(s, i, 143, "");
        EXPECT(s, sim_checkpoints(s) == 1 && sim_checkpoint(s) == held);
        sim_free(s);
    }
}

static void task_leaves_while_the_others_wait_for_a_lost_task(void **state)
{
    struct sim *s = START_CLUSTER(.min_world = 4, .deadline_ms = 60000);

    (void)state;
    sim_kill(s, 3);
    sim_advance(s, 500);
    sim_stop(s, 2, false);
    sim_advance(s, 500);
    expect_exit(s, 2, 143, "state saved");
    sim_start(s, 2);
    sim_start(s, 3);
    expect_group(s, 4, 0, 1000);
    sim_free(s);
}

static void task_never_in_a_group_leaves_at_once(void **state)
{
    struct sim *s =
        sim_new(&(struct sim_opts){ .world = 3, .n_absent = 1, .min_world = 3, .tell = true });

    (void)state;
    sim_advance(s, 500);
    sim_stop(s, 1, false);
    sim_stop(s, 0, false);
    EXPECT(s, sim_until_ended(s, 1000 + MEMBER_GATHER_LEAVE_MS) || sim_alive(s) == 0);
    expect_exit(s, 0, 143, "before the first step");
    expect_exit(s, 1, 143, "");
    sim_free(s);
}

static void leaving_task_dies_the_others_are_not_delayed(void **state)
{
    struct sim *s = START_CLUSTER(.rejoin_ms = 10000, .step_ms = 400);

    (void)state;
    sim_stop(s, 2, false);
    sim_advance(s, 50);
    sim_kill(s, 2);
    expect_group(s, 3, 0, 600);
    sim_free(s);
}

/* The leader does not answer and may be alive: the state can be saved only after its lease has
 * expired. */
static void leaving_task_waits_for_the_lease_within_the_grace_time(void **state)
{
    struct sim *s = START_CLUSTER(.world = 2, .grace_ms = 8000);
    uint64_t held = sim_held(s, 1);

    (void)state;
    sim_pause(s, 0);
    sim_advance(s, MEMBER_SILENCE_MS + 5 * MEMBER_TICK_MS);
    sim_stop(s, 1, false);
    sim_advance(s, MEMBER_LOG_MS);
    expect_said(s, 1, "asked to leave; not yet: the lease is not held");
    sim_advance(s, MEMBER_EXPIRY_MS + 1000 - MEMBER_LOG_MS);
    expect_exit(s, 1, 143, "state saved");
    EXPECT(s, sim_checkpoints(s) == 1 && sim_checkpoint(s) >= held);
    sim_free(s);
}

static void leaving_task_waits_for_its_storage_within_the_grace_time(void **state)
{
    struct sim *s = START_CLUSTER(.grace_ms = 3000);

    (void)state;
    sim_storage(s, SIM_ALL, SIM_STORAGE_FAILS);
    sim_stop(s, 3, false);
    sim_advance(s, 1500);
    EXPECT(s, sim_exit_code(s, 3) == SIM_RUNNING);
    sim_storage(s, SIM_ALL, SIM_STORAGE_FINE);
    sim_advance(s, 1000);
    expect_exit(s, 3, 143, "state saved");
    sim_free(s);
}

static void leaving_task_save_fails_the_reason_is_reported(void **state)
{
    struct sim *s = START_CLUSTER(.grace_ms = 1000);

    (void)state;
    sim_storage(s, SIM_ALL, SIM_STORAGE_FAILS);
    sim_stop(s, 3, false);
    sim_advance(s, 2500);
    expect_exit(s, 3, 138, "input/output error");
    sim_free(s);
}

static void storage_hangs_a_leave_delays_the_others_by_the_grace_time_only(void **state)
{
    struct sim *s = START_CLUSTER(.grace_ms = 1500);

    (void)state;
    sim_storage(s, 0, SIM_STORAGE_HANGS);
    sim_stop(s, 3, false);
    sim_advance(s, 1000);
    EXPECT(s, strstr(sim_log(s), "was asked to leave") != NULL);
    sim_advance(s, 900);
    expect_exit(s, 3, 138, "does not answer");
    sim_storage(s, 0, SIM_STORAGE_FINE);
    expect_group(s, 3, 0, 1000);
    sim_free(s);
}

/* ---- waiting ---- */

static void min_world_of_all_tasks_group_waits_until_the_deadline(void **state)
{
    struct sim *s = START_CLUSTER(.min_world = 4, .deadline_ms = 6000);

    (void)state;
    sim_kill(s, 1);
    sim_advance(s, 5500);
    for (uint32_t i = 0; i < 4; i++)
        if (i != 1)
            expect_said(s, i, "worker 1");
    sim_advance(s, 3000);
    for (uint32_t i = 0; i < 4; i++)
        if (i != 1)
            expect_exit(s, i, 138, "worker 1");
    sim_free(s);
}

static void deadline_expires_the_held_step_is_saved_first(void **state)
{
    struct sim *s = START_CLUSTER(.min_world = 4, .deadline_ms = 6000);
    uint64_t held = sim_newest(s);

    (void)state;
    EXPECT(s, sim_checkpoints(s) == 0);
    sim_power_off(s, 0); /* the task that wrote checkpoints */
    EXPECT(s, sim_until_ended(s, 20000));
    EXPECT(s, sim_checkpoint(s) >= held);
    for (uint32_t i = 1; i < 4; i++)
        expect_exit(s, i, 138, "worker 0");
    sim_free(s);
}

static void deadline_expires_storage_hangs_tasks_end_within_the_limit(void **state)
{
    struct sim *s = START_CLUSTER(.min_world = 4, .deadline_ms = 6000, .grace_ms = 1000);
    uint64_t begin = sim_now(s);

    (void)state;
    sim_kill(s, 1);
    sim_storage(s, SIM_ALL, SIM_STORAGE_HANGS);
    EXPECT(s, sim_until_ended(s, 60000));
    EXPECT(s, sim_now(s) - begin < 6000 + 2 * 1000 + MEMBER_STOPPING_MS + 1000);
    for (uint32_t i = 0; i < 4; i++)
        if (i != 1)
            expect_exit(s, i, 138, "was not saved: ");
    sim_free(s);
}

static void deadline_expires_leader_without_state_another_task_saves(void **state)
{
    struct sim *s = START_CLUSTER(.world = 3, .min_world = 3, .deadline_ms = 6000);
    uint64_t held = sim_newest(s);

    (void)state;
    sim_power_off(s, 2);
    sim_kill(s, 0);
    sim_start(s, 0); /* leads, because its rank is the lowest */
    EXPECT(s, sim_until_ended(s, 30000));
    EXPECT(s, sim_checkpoint(s) >= held);
    expect_exit(s, 0, 138, "no step for");
    expect_exit(s, 1, 138, "no step for");
    sim_free(s);
}

static void lost_task_group_waits_for_rejoin_ms_then_continues(void **state)
{
    struct sim *s = START_CLUSTER(.rejoin_ms = 2000);

    (void)state;
    sim_kill(s, 3);
    sim_advance(s, 1900);
    EXPECT(s, sim_generation(s, 0) == 0);
    expect_group(s, 3, 0, 300);
    sim_free(s);

    s = START_CLUSTER(.rejoin_ms = 2000);
    sim_kill(s, 3);
    sim_advance(s, 1000);
    sim_start(s, 3);
    expect_group(s, 4, 0, 100); /* the wait ends as soon as the task returns */
    EXPECT(s, sim_generation(s, 0) == 2);
    sim_free(s);
}

static void fewer_tasks_than_min_world_no_group_forms(void **state)
{
    struct sim *s = START_CLUSTER(.min_world = 3);

    (void)state;
    sim_kill(s, 3);
    expect_group(s, 3, 0, 100);
    sim_kill(s, 2);
    sim_advance(s, 5000);
    EXPECT(s, sim_generation(s, 0) == 0);
    expect_said(s, 1, "worker 2");
    sim_start(s, 2);
    expect_group(s, 3, 0, 1000);
    sim_free(s);
}

/* ---- errors ---- */

static void straggler_is_named_evicted_and_restarted(void **state)
{
    (void)state;
    for (uint32_t rank = 0; rank < 4; rank++) {
        struct sim *s = START_CLUSTER(.restart_ms = 300);
        char name[16];

        snprintf(name, sizeof(name), "worker %u", rank);
        sim_stuck(s, rank);
        sim_advance(s, 500 + MEMBER_STRAGGLER_MS + MEMBER_HEARTBEAT_MS + 700);
        EXPECT(s, strstr(sim_log(s), "makes no progress") != NULL);
        EXPECT(s, strstr(sim_exit_text(s, rank), name) != NULL ||
                      sim_exit_code(s, rank) == SIM_RUNNING);
        expect_group(s, 4, 0, 14000);
        sim_free(s);
    }
}

static void straggler_in_the_first_step_is_evicted_at_the_deadline(void **state)
{
    struct sim *s = sim_new(&(struct sim_opts){
        .world = 3, .seed = 1, .deadline_ms = 4000, .restart_ms = 200, .tell = true });

    (void)state;
    sim_advance(s, 1);
    sim_stuck(s, 1);
    sim_advance(s, 4000 + 3000);
    EXPECT(s, strstr(sim_log(s), "worker 1 (10.0.0.1:1), step 1, in compute") != NULL);
    EXPECT(s, sim_until_together(s, 3, 16000));
    sim_free(s);
}

static void device_fails_only_that_task_leaves(void **state)
{
    (void)state;
    for (uint32_t rank = 0; rank < 4; rank += 3) {
        struct sim *s = START_CLUSTER();

        sim_fail(s, rank, MEMBER_FAIL_LOCAL, "cuda: out of memory");
        expect_group(s, 3, rank == 0 ? 1 : 0, 200);
        expect_exit(s, rank, 138, "out of memory");
        EXPECT(s, strstr(member_node_cause(sim_node(s, 2)), rank == 0 ? "worker 0" : "worker 3") !=
                      NULL);
        sim_free(s);
    }
}

static void invalid_input_ends_the_job_on_every_task(void **state)
{
    (void)state;
    for (uint32_t rank = 0; rank < 4; rank += 3) {
        struct sim *s = START_CLUSTER();

        sim_fail(s, rank, MEMBER_FAIL_INPUT, "data: record 7 is torn");
        EXPECT(s, sim_until_ended(s, 500));
        for (uint32_t i = 0; i < 4; i++)
            expect_exit(s, i, 2, "record 7 is torn");
        sim_free(s);
    }
}

static void task_of_another_job_is_refused_and_the_group_continues(void **state)
{
    struct sim *s = START_CLUSTER(.n_absent = 1);
    uint64_t generation = sim_generation(s, 0);

    (void)state;
    sim_other_job(s, 3);
    sim_start(s, 3);
    sim_advance(s, 500);
    expect_exit(s, 3, 2, "worker 3");
    EXPECT(s, sim_generation(s, 0) == generation);
    sim_free(s);
}

/* The task with another job ends, whether it called the others or was called; the tasks that agree
 * train. */
static void first_task_of_another_job_ends_and_the_majority_trains(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed < 40; seed++) {
        struct sim *s = sim_new(&(struct sim_opts){ .world = 4, .seed = seed, .rejoin_ms = 1, .n_absent = 4,
                                                    .tell = true });

        sim_other_job(s, 0);
        for (uint32_t i = 0; i < 4; i++)
            sim_start(s, (i + (uint32_t)seed) % 4);
        if (!sim_until_together(s, 3, 5000))
            log_and_fail(s, "the majority does not form a group");
        EXPECT(s, sim_until_step(s, 5, 5000));
        sim_advance(s, 2000);
        expect_exit(s, 0, 2, "differs");
        EXPECT(s, sim_alive(s) == 3);
        sim_free(s);
    }
}

static void refusal_by_a_task_of_another_job_does_not_end_a_trained_group(void **state)
{
    (void)state;
    for (uint64_t ms = 0; ms < 20; ms++) {
        struct sim *s = START_CLUSTER(.seed = ms + 1);

        sim_kill(s, 0);
        sim_other_job(s, 0);
        sim_start(s, 0);
        sim_advance(s, ms);
        expect_group(s, 3, 1, 3000);
        sim_advance(s, 2000);
        expect_exit(s, 0, 2, "differs");
        EXPECT(s, sim_alive(s) == 3);
        sim_free(s);
    }
}

/* ---- the end ---- */

static void complete_job_all_tasks_end_with_0_also_after_a_restart(void **state)
{
    struct sim *s = START_CLUSTER(.steps = 30);

    (void)state;
    EXPECT(s, sim_until_ended(s, 3000));
    for (uint32_t i = 0; i < 4; i++)
        expect_exit(s, i, 0, "complete");
    EXPECT(s, sim_is_complete(s) && sim_checkpoint(s) == 30);
    sim_start(s, 2);
    expect_exit(s, 2, 0, "complete");
    sim_free(s);
}

/* In each millisecond of the end, one task dies, its supervisor starts it again, and the job
 * completes. */
static void task_dies_at_the_end_the_job_completes(void **state)
{
    (void)state;
    for (uint64_t ms = 0; ms < 60; ms++)
        for (uint32_t rank = 0; rank < 3; rank++) {
            struct sim *s = START_CLUSTER(.world = 3, .steps = 8, .restart_ms = 50, .store_ms = 8);

            EXPECT(s, sim_until_step(s, 7, 1000));
            sim_advance(s, ms);
            sim_kill(s, rank);
            EXPECT(s, sim_until_ended(s, 6000));
            for (uint32_t i = 0; i < 3; i++)
                expect_exit(s, i, 0, "complete");
            sim_free(s);
        }
}

static void storage_hangs_at_the_end_the_job_waits_for_it(void **state)
{
    struct sim *s = START_CLUSTER(.steps = 20);

    (void)state;
    sim_storage(s, SIM_ALL, SIM_STORAGE_HANGS);
    sim_advance(s, 5000);
    EXPECT(s, sim_alive(s) == 4 && !sim_is_complete(s));
    sim_storage(s, SIM_ALL, SIM_STORAGE_FINE);
    EXPECT(s, sim_until_ended(s, 5000));
    for (uint32_t i = 0; i < 4; i++)
        expect_exit(s, i, 0, "complete");
    sim_free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(worker_leaves_a_checkpoint_is_saved_and_the_others_continue),
        cmocka_unit_test(chief_leaves_the_others_continue_without_delay),
        cmocka_unit_test(all_tasks_leave_at_once_one_checkpoint_is_saved),
        cmocka_unit_test(stop_everywhere_all_tasks_end),
        cmocka_unit_test(step_exceeds_grace_time_it_is_aborted_before_the_leave),
        cmocka_unit_test(training_of_one_task_hangs_the_others_leave),
        cmocka_unit_test(task_leaves_while_the_others_wait_for_a_lost_task),
        cmocka_unit_test(task_never_in_a_group_leaves_at_once),
        cmocka_unit_test(leaving_task_dies_the_others_are_not_delayed),
        cmocka_unit_test(leaving_task_waits_for_the_lease_within_the_grace_time),
        cmocka_unit_test(leaving_task_waits_for_its_storage_within_the_grace_time),
        cmocka_unit_test(leaving_task_save_fails_the_reason_is_reported),
        cmocka_unit_test(storage_hangs_a_leave_delays_the_others_by_the_grace_time_only),
        cmocka_unit_test(min_world_of_all_tasks_group_waits_until_the_deadline),
        cmocka_unit_test(deadline_expires_the_held_step_is_saved_first),
        cmocka_unit_test(deadline_expires_storage_hangs_tasks_end_within_the_limit),
        cmocka_unit_test(deadline_expires_leader_without_state_another_task_saves),
        cmocka_unit_test(lost_task_group_waits_for_rejoin_ms_then_continues),
        cmocka_unit_test(fewer_tasks_than_min_world_no_group_forms),
        cmocka_unit_test(straggler_is_named_evicted_and_restarted),
        cmocka_unit_test(straggler_in_the_first_step_is_evicted_at_the_deadline),
        cmocka_unit_test(device_fails_only_that_task_leaves),
        cmocka_unit_test(invalid_input_ends_the_job_on_every_task),
        cmocka_unit_test(task_of_another_job_is_refused_and_the_group_continues),
        cmocka_unit_test(first_task_of_another_job_ends_and_the_majority_trains),
        cmocka_unit_test(refusal_by_a_task_of_another_job_does_not_end_a_trained_group),
        cmocka_unit_test(complete_job_all_tasks_end_with_0_also_after_a_restart),
        cmocka_unit_test(task_dies_at_the_end_the_job_completes),
        cmocka_unit_test(storage_hangs_at_the_end_the_job_waits_for_it),
    };

    return cmocka_run_group_tests_name("member/node_leave", tests, NULL, NULL);
}
