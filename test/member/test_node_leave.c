/* test_node_leave.c - scenarios in which a task leaves, or may not join, and the ends of a job. */
#include "member/node_kit.h"

/* ---- leaving ---- */

static void one_leaves_with_a_checkpoint_and_the_others_go_on(void **state)
{
    struct sim *s = CLUSTER();
    uint64_t held = sim_newest(s);

    (void)state;
    sim_stop(s, 2, false);
    regroup(s, 3, 0, 300);
    ends_with(s, 2, 143, "state saved");
    HOLDS(s, sim_checkpoints(s) == 1 && sim_checkpoint(s) >= held);
    sim_free(s);
}

static void the_chief_leaves_and_the_others_go_on_without_waiting(void **state)
{
    struct sim *s = CLUSTER(.rejoin_ms = 10000);

    (void)state;
    sim_stop(s, 0, false);
    regroup(s, 3, 1, MEMBER_GATHER_LEAVE_MS + MEMBER_SETTLE_MS + 300);
    ends_with(s, 0, 143, "state saved");
    HOLDS(s, sim_checkpoints(s) == 1);
    sim_free(s);
}

static void all_leave_at_once_with_one_checkpoint(void **state)
{
    static const uint64_t apart_ms[] = { 0, 3, 30, 100 };

    (void)state;
    for (size_t k = 0; k < 4; k++) {
        struct sim *s = CLUSTER(.grace_ms = 2000);

        for (uint32_t i = 0; i < 4; i++) {
            sim_stop(s, (i + (uint32_t)k) % 4, false);
            sim_advance(s, apart_ms[k]);
        }
        HOLDS(s, sim_until_ended(s, 2000));
        for (uint32_t i = 0; i < 4; i++)
            ends_with(s, i, 143, "");
        /* a task that was asked later did more steps */
        HOLDS(s, sim_checkpoints(s) == 1 || apart_ms[k] >= 30);
        sim_free(s);
    }
}

static void who_ends_the_job_ends_it_everywhere(void **state)
{
    (void)state;
    for (uint32_t rank = 0; rank < 4; rank += 3) {
        struct sim *s = CLUSTER();

        sim_stop(s, rank, true);
        HOLDS(s, sim_until_ended(s, 1000));
        for (uint32_t i = 0; i < 4; i++)
            ends_with(s, i, 143, "");
        HOLDS(s, sim_checkpoints(s) == 1);
        sim_free(s);
    }
}

static void a_step_that_takes_too_long_is_given_up_after_the_grace_time(void **state)
{
    struct sim *s = CLUSTER(.step_ms = 8000, .grace_ms = 700, .deadline_ms = 60000);
    uint64_t held = sim_newest(s);

    (void)state;
    sim_advance(s, 100);
    for (uint32_t i = 0; i < 4; i++)
        sim_stop(s, i, false);
    HOLDS(s, sim_until_ended(s, 700 + MEMBER_GATHER_LEAVE_MS + 300));
    for (uint32_t i = 0; i < 4; i++)
        ends_with(s, i, 143, "");
    HOLDS(s, sim_checkpoint(s) == held);
    sim_free(s);
}

/* Its device call does not return: the state of the others is saved, and all leave. */
static void one_whose_training_is_stuck_does_not_keep_the_others_from_leaving(void **state)
{
    (void)state;
    for (uint32_t stuck = 0; stuck < 4; stuck++) {
        struct sim *s = CLUSTER(.step_ms = 8000, .grace_ms = 700, .deadline_ms = 60000);
        uint64_t held = sim_newest(s);

        sim_advance(s, 100);
        sim_stuck(s, stuck);
        for (uint32_t i = 0; i < 4; i++)
            sim_stop(s, i, false);
        HOLDS(s, sim_until_ended(s, 700 + MEMBER_LEAVE_REST_MS + MEMBER_GATHER_LEAVE_MS + 1000));
        for (uint32_t i = 0; i < 4; i++)
            /* a leader that hangs cannot know whether the others save its state */
            if (i == stuck && i == 0)
                ends_with(s, i, 138, "does not stop");
            else
                ends_with(s, i, 143, "");
        HOLDS(s, sim_checkpoints(s) == 1 && sim_checkpoint(s) == held);
        sim_free(s);
    }
}

static void one_leaves_while_the_others_wait_for_a_lost_task(void **state)
{
    struct sim *s = CLUSTER(.min_world = 4, .deadline_ms = 60000);

    (void)state;
    sim_kill(s, 3);
    sim_advance(s, 500);
    sim_stop(s, 2, false);
    sim_advance(s, 500);
    ends_with(s, 2, 143, "state saved");
    sim_start(s, 2);
    sim_start(s, 3);
    regroup(s, 4, 0, 1000);
    sim_free(s);
}

static void who_was_never_in_a_group_leaves_at_once(void **state)
{
    struct sim *s =
        sim_new(&(struct sim_opts){ .world = 3, .n_absent = 1, .min_world = 3, .tell = true });

    (void)state;
    sim_advance(s, 500);
    sim_stop(s, 1, false);
    sim_stop(s, 0, false);
    HOLDS(s, sim_until_ended(s, 1000 + MEMBER_GATHER_LEAVE_MS) || sim_alive(s) == 0);
    ends_with(s, 0, 143, "before the first step");
    ends_with(s, 1, 143, "");
    sim_free(s);
}

static void a_leaver_that_dies_meanwhile_holds_nobody_up(void **state)
{
    struct sim *s = CLUSTER(.rejoin_ms = 10000, .step_ms = 400);

    (void)state;
    sim_stop(s, 2, false);
    sim_advance(s, 50);
    sim_kill(s, 2);
    regroup(s, 3, 0, 600);
    sim_free(s);
}

/* The leader does not answer and may be alive: the state can be saved only after its lease has
 * expired. */
static void a_leaver_waits_for_the_lease_within_the_grace_time(void **state)
{
    struct sim *s = CLUSTER(.world = 2, .grace_ms = 8000);
    uint64_t held = sim_held(s, 1);

    (void)state;
    sim_pause(s, 0);
    sim_advance(s, MEMBER_SILENCE_MS + 5 * MEMBER_TICK_MS);
    sim_stop(s, 1, false);
    sim_advance(s, MEMBER_LOG_MS);
    says(s, 1, "asked to leave; not yet: the lease is not held");
    sim_advance(s, MEMBER_EXPIRY_MS + 1000 - MEMBER_LOG_MS);
    ends_with(s, 1, 143, "state saved");
    HOLDS(s, sim_checkpoints(s) == 1 && sim_checkpoint(s) >= held);
    sim_free(s);
}

static void a_leaver_waits_for_its_storage_within_the_grace_time(void **state)
{
    struct sim *s = CLUSTER(.grace_ms = 3000);

    (void)state;
    sim_storage(s, SIM_ALL, SIM_STORAGE_FAILS);
    sim_stop(s, 3, false);
    sim_advance(s, 1500);
    HOLDS(s, sim_exit_code(s, 3) == SIM_RUNNING);
    sim_storage(s, SIM_ALL, SIM_STORAGE_FINE);
    sim_advance(s, 1000);
    ends_with(s, 3, 143, "state saved");
    sim_free(s);
}

static void a_leaver_whose_state_cannot_be_saved_says_so(void **state)
{
    struct sim *s = CLUSTER(.grace_ms = 1000);

    (void)state;
    sim_storage(s, SIM_ALL, SIM_STORAGE_FAILS);
    sim_stop(s, 3, false);
    sim_advance(s, 2500);
    ends_with(s, 3, 138, "input/output error");
    sim_free(s);
}

static void a_storage_that_hangs_holds_the_others_up_for_the_grace_time_only(void **state)
{
    struct sim *s = CLUSTER(.grace_ms = 1500);

    (void)state;
    sim_storage(s, 0, SIM_STORAGE_HANGS);
    sim_stop(s, 3, false);
    sim_advance(s, 1000);
    HOLDS(s, strstr(sim_story(s), "was asked to leave") != NULL);
    sim_advance(s, 900);
    ends_with(s, 3, 138, "does not answer");
    sim_storage(s, 0, SIM_STORAGE_FINE);
    regroup(s, 3, 0, 1000);
    sim_free(s);
}

/* ---- waiting ---- */

static void min_world_of_all_waits_until_the_deadline(void **state)
{
    struct sim *s = CLUSTER(.min_world = 4, .deadline_ms = 6000);

    (void)state;
    sim_kill(s, 1);
    sim_advance(s, 5500);
    for (uint32_t i = 0; i < 4; i++)
        if (i != 1)
            says(s, i, "worker 1");
    sim_advance(s, 3000);
    for (uint32_t i = 0; i < 4; i++)
        if (i != 1)
            ends_with(s, i, 138, "worker 1");
    sim_free(s);
}

static void a_lost_task_is_waited_for_and_then_not(void **state)
{
    struct sim *s = CLUSTER(.rejoin_ms = 2000);

    (void)state;
    sim_kill(s, 3);
    sim_advance(s, 1900);
    HOLDS(s, sim_generation(s, 0) == 0);
    regroup(s, 3, 0, 300);
    sim_free(s);

    s = CLUSTER(.rejoin_ms = 2000);
    sim_kill(s, 3);
    sim_advance(s, 1000);
    sim_start(s, 3);
    regroup(s, 4, 0, 100); /* the wait ends as soon as the task returns */
    HOLDS(s, sim_generation(s, 0) == 2);
    sim_free(s);
}

static void too_few_are_no_group(void **state)
{
    struct sim *s = CLUSTER(.min_world = 3);

    (void)state;
    sim_kill(s, 3);
    regroup(s, 3, 0, 100);
    sim_kill(s, 2);
    sim_advance(s, 5000);
    HOLDS(s, sim_generation(s, 0) == 0);
    says(s, 1, "worker 2");
    sim_start(s, 2);
    regroup(s, 3, 0, 1000);
    sim_free(s);
}

/* ---- errors ---- */

static void a_task_that_stands_still_is_named_and_replaced(void **state)
{
    (void)state;
    for (uint32_t rank = 0; rank < 4; rank++) {
        struct sim *s = CLUSTER(.restart_ms = 300);
        char name[16];

        snprintf(name, sizeof(name), "worker %u", rank);
        sim_stuck(s, rank);
        sim_advance(s, 500 + MEMBER_STRAGGLER_MS + MEMBER_HEARTBEAT_MS + 700);
        HOLDS(s, strstr(sim_story(s), "makes no progress") != NULL);
        HOLDS(s, strstr(sim_exit_text(s, rank), name) != NULL ||
                     sim_exit_code(s, rank) == SIM_RUNNING);
        regroup(s, 4, 0, 14000);
        sim_free(s);
    }
}

static void a_task_that_stands_still_in_the_first_step_is_found_at_the_deadline(void **state)
{
    struct sim *s = sim_new(&(struct sim_opts){
        .world = 3, .seed = 1, .deadline_ms = 4000, .restart_ms = 200, .tell = true });

    (void)state;
    sim_advance(s, 1);
    sim_stuck(s, 1);
    sim_advance(s, 4000 + 3000);
    HOLDS(s, strstr(sim_story(s), "worker 1 (10.0.0.1:1), step 1, in compute") != NULL);
    HOLDS(s, sim_until_together(s, 3, 16000));
    sim_free(s);
}

static void a_broken_device_takes_one_task_out(void **state)
{
    (void)state;
    for (uint32_t rank = 0; rank < 4; rank += 3) {
        struct sim *s = CLUSTER();

        sim_fail(s, rank, MEMBER_FAIL_LOCAL, "cuda: out of memory");
        regroup(s, 3, rank == 0 ? 1 : 0, 200);
        ends_with(s, rank, 138, "out of memory");
        HOLDS(s, strstr(member_node_cause(sim_node(s, 2)), rank == 0 ? "worker 0" : "worker 3") !=
                     NULL);
        sim_free(s);
    }
}

static void wrong_input_ends_the_job_on_every_task(void **state)
{
    (void)state;
    for (uint32_t rank = 0; rank < 4; rank += 3) {
        struct sim *s = CLUSTER();

        sim_fail(s, rank, MEMBER_FAIL_INPUT, "data: record 7 is torn");
        HOLDS(s, sim_until_ended(s, 500));
        for (uint32_t i = 0; i < 4; i++)
            ends_with(s, i, 2, "record 7 is torn");
        sim_free(s);
    }
}

static void a_task_of_another_job_is_refused_and_disturbs_nobody(void **state)
{
    struct sim *s = CLUSTER(.n_absent = 1);
    uint64_t generation = sim_generation(s, 0);

    (void)state;
    sim_other_job(s, 3);
    sim_start(s, 3);
    sim_advance(s, 500);
    ends_with(s, 3, 2, "worker 3");
    HOLDS(s, sim_generation(s, 0) == generation);
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
            tell_and_fail(s, "the majority does not come together");
        HOLDS(s, sim_until_step(s, 5, 5000));
        sim_advance(s, 2000);
        ends_with(s, 0, 2, "differs");
        HOLDS(s, sim_alive(s) == 3);
        sim_free(s);
    }
}

static void refusal_by_a_stranger_does_not_end_tasks_that_trained_together(void **state)
{
    (void)state;
    for (uint64_t ms = 0; ms < 20; ms++) {
        struct sim *s = CLUSTER(.seed = ms + 1);

        sim_kill(s, 0);
        sim_other_job(s, 0);
        sim_start(s, 0);
        sim_advance(s, ms);
        regroup(s, 3, 1, 3000);
        sim_advance(s, 2000);
        ends_with(s, 0, 2, "differs");
        HOLDS(s, sim_alive(s) == 3);
        sim_free(s);
    }
}

/* ---- the end ---- */

static void a_complete_job_ends_with_0_everywhere_and_again_when_started_again(void **state)
{
    struct sim *s = CLUSTER(.steps = 30);

    (void)state;
    HOLDS(s, sim_until_ended(s, 3000));
    for (uint32_t i = 0; i < 4; i++)
        ends_with(s, i, 0, "complete");
    HOLDS(s, sim_is_complete(s) && sim_checkpoint(s) == 30);
    sim_start(s, 2);
    ends_with(s, 2, 0, "complete");
    sim_free(s);
}

/* In each millisecond of the end, one task dies, its supervisor starts it again, and the job
 * completes. */
static void who_dies_at_the_end_does_not_keep_the_job_from_being_completed(void **state)
{
    (void)state;
    for (uint64_t ms = 0; ms < 60; ms++)
        for (uint32_t rank = 0; rank < 3; rank++) {
            struct sim *s = CLUSTER(.world = 3, .steps = 8, .restart_ms = 50, .store_ms = 8);

            HOLDS(s, sim_until_step(s, 7, 1000));
            sim_advance(s, ms);
            sim_kill(s, rank);
            HOLDS(s, sim_until_ended(s, 6000));
            for (uint32_t i = 0; i < 3; i++)
                ends_with(s, i, 0, "complete");
            sim_free(s);
        }
}

static void a_storage_that_hangs_at_the_end_is_waited_for(void **state)
{
    struct sim *s = CLUSTER(.steps = 20);

    (void)state;
    sim_storage(s, SIM_ALL, SIM_STORAGE_HANGS);
    sim_advance(s, 5000);
    HOLDS(s, sim_alive(s) == 4 && !sim_is_complete(s));
    sim_storage(s, SIM_ALL, SIM_STORAGE_FINE);
    HOLDS(s, sim_until_ended(s, 5000));
    for (uint32_t i = 0; i < 4; i++)
        ends_with(s, i, 0, "complete");
    sim_free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_leaves_with_a_checkpoint_and_the_others_go_on),
        cmocka_unit_test(the_chief_leaves_and_the_others_go_on_without_waiting),
        cmocka_unit_test(all_leave_at_once_with_one_checkpoint),
        cmocka_unit_test(who_ends_the_job_ends_it_everywhere),
        cmocka_unit_test(a_step_that_takes_too_long_is_given_up_after_the_grace_time),
        cmocka_unit_test(one_whose_training_is_stuck_does_not_keep_the_others_from_leaving),
        cmocka_unit_test(one_leaves_while_the_others_wait_for_a_lost_task),
        cmocka_unit_test(who_was_never_in_a_group_leaves_at_once),
        cmocka_unit_test(a_leaver_that_dies_meanwhile_holds_nobody_up),
        cmocka_unit_test(a_leaver_waits_for_the_lease_within_the_grace_time),
        cmocka_unit_test(a_leaver_waits_for_its_storage_within_the_grace_time),
        cmocka_unit_test(a_leaver_whose_state_cannot_be_saved_says_so),
        cmocka_unit_test(a_storage_that_hangs_holds_the_others_up_for_the_grace_time_only),
        cmocka_unit_test(min_world_of_all_waits_until_the_deadline),
        cmocka_unit_test(a_lost_task_is_waited_for_and_then_not),
        cmocka_unit_test(too_few_are_no_group),
        cmocka_unit_test(a_task_that_stands_still_is_named_and_replaced),
        cmocka_unit_test(a_task_that_stands_still_in_the_first_step_is_found_at_the_deadline),
        cmocka_unit_test(a_broken_device_takes_one_task_out),
        cmocka_unit_test(wrong_input_ends_the_job_on_every_task),
        cmocka_unit_test(a_task_of_another_job_is_refused_and_disturbs_nobody),
        cmocka_unit_test(first_task_of_another_job_ends_and_the_majority_trains),
        cmocka_unit_test(refusal_by_a_stranger_does_not_end_tasks_that_trained_together),
        cmocka_unit_test(a_complete_job_ends_with_0_everywhere_and_again_when_started_again),
        cmocka_unit_test(who_dies_at_the_end_does_not_keep_the_job_from_being_completed),
        cmocka_unit_test(a_storage_that_hangs_at_the_end_is_waited_for),
    };

    return cmocka_run_group_tests_name("member/node_leave", tests, NULL, NULL);
}
