/* test_sim.c - whole groups: stories of a few tasks, and hundreds of random ones. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>
#include <time.h>

#include "sim/sim.h"

static struct sim *new_sim(uint32_t world, uint64_t seed)
{
    return sim_new(&(struct sim_opts){ .world = world, .seed = seed, .delay_ms = 1, .job_ms = 5000,
                                       .deadline_ms = 30000 });
}

static void everybody_exits_with(struct sim *s, uint32_t world, int code)
{
    assert_true(sim_run_to_the_end(s, 60000));
    for (uint32_t i = 0; i < world; i++)
        assert_int_equal(sim_exit_code(s, i), code);
}

static void two_tasks_join_train_and_leave_together(void **state)
{
    struct sim *s = new_sim(2, 1);

    (void)state;
    everybody_exits_with(s, 2, 0);
    assert_string_equal(sim_story(s), "[1] coord    > generation 1: 2 tasks\n"
                                      "[2] worker 0 > joining -> waiting on admitted\n"
                                      "[2] worker 1 > joining -> waiting on admitted\n"
                                      "[2] worker 0 > waiting -> active on group_ready\n"
                                      "[2] worker 1 > waiting -> active on group_ready\n"
                                      "[5019] worker 0 > active -> leaving on complete\n"
                                      "[5034] worker 1 > active -> leaving on complete\n"
                                      "[5036] worker 1 > leaving -> gone on left\n"
                                      "[5036] worker 1 > exit 0: the job is complete\n"
                                      "[5036] worker 0 > leaving -> gone on left\n"
                                      "[5036] worker 0 > exit 0: the job is complete\n");
    sim_free(s);
}

#define SILENT "worker 2 (10.0.0.2:1) is lost: silent for 1.6 s; last heard 1.6 s ago"
#define KILLED                                                                                     \
    "worker 1 (10.0.0.1:1) is lost: its connection closed; last heard 0.1 s ago in phase "         \
    "train, step 0 since 0.1 s"
#define FAILED "worker 2 (10.0.0.2:1) failed in step 1: loss is NaN"

static void a_silent_worker_is_lost_and_named_everywhere(void **state)
{
    struct sim *s = new_sim(4, 7);

    (void)state;
    sim_run_until_active(s);
    sim_forget(s);
    sim_cut(s, 2);
    sim_advance_ms(s, SIM_SILENT_MS + 500);
    assert_string_equal(sim_story(s),
                        "[2] worker 2 > cut off\n"
                        "[1650] coord    > over: " SILENT "\n"
                        "[1651] worker 0 > active -> gone on group_over\n"
                        "[1651] worker 0 > exit 138: " SILENT "\n"
                        "[1651] worker 1 > active -> gone on group_over\n"
                        "[1651] worker 1 > exit 138: " SILENT "\n"
                        "[1651] worker 3 > active -> gone on group_over\n"
                        "[1651] worker 3 > exit 138: " SILENT "\n"
                        "[1750] worker 2 > active -> gone on coord_lost\n"
                        "[1750] worker 2 > exit 138: the coordinator is silent\n");
    sim_free(s);
}

static void a_killed_worker_ends_the_generation_at_once(void **state)
{
    struct sim *s = new_sim(3, 3);

    (void)state;
    sim_run_until_active(s);
    sim_advance_ms(s, 300);
    sim_forget(s);
    sim_kill(s, 1);
    sim_advance_ms(s, 3);
    assert_string_equal(sim_story(s), "[302] worker 1 > killed\n"
                                      "[303] coord    > over: " KILLED "\n"
                                      "[304] worker 0 > active -> gone on group_over\n"
                                      "[304] worker 0 > exit 138: " KILLED "\n"
                                      "[304] worker 2 > active -> gone on group_over\n"
                                      "[304] worker 2 > exit 138: " KILLED "\n");
    sim_free(s);
}

static void an_error_on_one_task_is_told_to_all(void **state)
{
    struct sim *s = new_sim(3, 3);

    (void)state;
    sim_run_until_active(s);
    sim_forget(s);
    sim_fail(s, 2, "loss is NaN");
    sim_advance_ms(s, 5);
    assert_string_equal(sim_story(s), "[2] worker 2 > active -> leaving on failed\n"
                                      "[3] coord    > over: " FAILED "\n"
                                      "[4] worker 2 > leaving -> gone on left\n"
                                      "[4] worker 2 > exit 138: loss is NaN\n"
                                      "[4] worker 0 > active -> gone on group_over\n"
                                      "[4] worker 0 > exit 138: " FAILED "\n"
                                      "[4] worker 1 > active -> gone on group_over\n"
                                      "[4] worker 1 > exit 138: " FAILED "\n");
    sim_free(s);
}

static void a_stop_on_one_task_stops_all_and_only_that_one_was_asked(void **state)
{
    struct sim *s = new_sim(3, 5);

    (void)state;
    sim_run_until_active(s);
    sim_stop(s, 2);
    assert_true(sim_run_to_the_end(s, 1000));
    assert_int_equal(sim_exit_code(s, 0), 138);
    assert_int_equal(sim_exit_code(s, 1), 138);
    assert_int_equal(sim_exit_code(s, 2), 143);
    sim_free(s);
}

static void a_task_that_dies_after_it_was_done_harms_nobody(void **state)
{
    struct sim *s = sim_new(&(struct sim_opts){
        .world = 3, .seed = 11, .delay_ms = 1, .job_ms = 1000, .deadline_ms = 30000 });

    (void)state;
    sim_run_until_active(s);
    while (sim_state(s, 1) != MEMBER_LEAVING)
        sim_advance_ms(s, 1);
    sim_advance_ms(s, 2); /* its Leave arrives and is parked */
    assert_int_equal(sim_state(s, 0), MEMBER_ACTIVE);
    sim_kill(s, 1);
    assert_true(sim_run_to_the_end(s, 5000));
    assert_int_equal(sim_exit_code(s, 0), 0);
    assert_int_equal(sim_exit_code(s, 2), 0);
    sim_free(s);
}

/* Two of three tasks; the third comes when the test says so. */
static struct sim *two_of_three(void)
{
    return sim_new(&(struct sim_opts){ .world = 3, .seed = 2, .n_absent = 1, .job_ms = 1000,
                                       .deadline_ms = 30000 });
}

static void a_coordinator_that_restarts_while_others_wait_is_found_again(void **state)
{
    struct sim *s = two_of_three();

    (void)state;
    sim_advance_ms(s, 1000);
    assert_int_equal(sim_state(s, 1), MEMBER_WAITING);
    sim_kill(s, 0);
    sim_advance_ms(s, 100);
    assert_int_equal(sim_state(s, 1), MEMBER_JOINING);
    sim_start(s, 0);
    sim_advance_ms(s, 100);
    assert_int_equal(sim_state(s, 1), MEMBER_WAITING);
    sim_start(s, 2);
    everybody_exits_with(s, 3, 0);
    sim_free(s);
}

static void who_waits_in_vain_gives_up_at_the_deadline(void **state)
{
    struct sim *s = two_of_three();

    (void)state;
    sim_advance_ms(s, 29900);
    assert_int_equal(sim_exit_code(s, 0), SIM_RUNNING);
    assert_int_equal(sim_exit_code(s, 1), SIM_RUNNING);
    sim_advance_ms(s, 200);
    assert_int_equal(sim_exit_code(s, 0), 138);
    assert_int_equal(sim_exit_code(s, 1), 138);
    sim_free(s);
}

static void a_task_that_is_stopped_while_its_view_is_under_way_ends_the_generation(void **state)
{
    struct sim *s = two_of_three();

    (void)state;
    sim_advance_ms(s, 100);
    sim_start(s, 2);
    sim_advance_ms(s, 1); /* the Join of the last arrives, the view leaves */
    assert_int_equal(sim_state(s, 1), MEMBER_WAITING);
    sim_stop(s, 1);
    sim_advance_ms(s, 10);
    assert_int_equal(sim_exit_code(s, 1), 143);
    assert_int_equal(sim_exit_code(s, 0), 138);
    assert_string_equal(sim_exit_text(s, 2),
                        "worker 1 (10.0.0.1:1) left just before generation 1 began: "
                        "stopped before training began");
    sim_free(s);
}

static void the_same_seed_tells_the_same_story(void **state)
{
    static char first[1 << 17];

    (void)state;
    for (int round = 0; round < 2; round++) {
        struct sim *s = sim_new(&(struct sim_opts){ .world = 7,
                                                    .seed = 99,
                                                    .start_ms = 500,
                                                    .delay_ms = 80,
                                                    .job_ms = 2000,
                                                    .deadline_ms = 30000,
                                                    .supervised = true,
                                                    .break_one_in = 400 });

        (void)sim_run_to_the_end(s, 20000);
        if (round == 0)
            strcpy(first, sim_story(s));
        else
            assert_string_equal(sim_story(s), first);
        sim_free(s);
    }
}

static void groups_of_every_size_come_together_and_finish(void **state)
{
    static const uint32_t worlds[] = { 1, 2, 3, 5, 8, 13, 64, 257, 1024 };
    clock_t start = clock();

    (void)state;
    for (size_t i = 0; i < sizeof(worlds) / sizeof(worlds[0]); i++) {
        struct sim *s = sim_new(&(struct sim_opts){ .world = worlds[i], .seed = i, .start_ms = 1000,
                                                    .delay_ms = 20, .job_ms = 1000,
                                                    .deadline_ms = 30000 });

        sim_run_until_active(s);
        assert_true(sim_now_ms(s) < 1200); /* nothing waits for longer than the last to start */
        everybody_exits_with(s, worlds[i], 0);
        assert_true(sim_is_complete(s));
        sim_free(s);
    }
    assert_true(clock() - start < 20 * CLOCKS_PER_SEC); /* a fraction of it without sanitizers */
}

static void a_loss_among_a_thousand_ends_all_with_one_culprit(void **state)
{
    struct sim *s = sim_new(&(struct sim_opts){ .world = 1024,
                                                .seed = 4,
                                                .start_ms = 100,
                                                .delay_ms = 5,
                                                .job_ms = 60000,
                                                .deadline_ms = 30000 });

    (void)state;
    sim_run_until_active(s);
    sim_kill(s, 777);
    assert_true(sim_run_to_the_end(s, 50));
    for (uint32_t i = 0; i < 1024; i++) {
        if (i == 777)
            continue;
        assert_int_equal(sim_exit_code(s, i), 138);
        if (strstr(sim_exit_text(s, i), "worker 777 ") == NULL)
            assert_non_null(strstr(sim_exit_text(s, i), "lost the coordinator"));
    }
    sim_free(s);
}

/* Anything may happen to anybody, but not for ever: under a supervisor the job is completed, and by
 * everybody. The invariants of sim.c hold all the way. */
static void whatever_happens_the_job_is_completed_by_all(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 400; seed++) {
        uint32_t world = 1 + (uint32_t)(seed * 7 % 9);
        uint64_t random = seed * 0x9e3779b97f4a7c15u;
        struct sim *s = sim_new(&(struct sim_opts){ .world = world,
                                                    .seed = seed,
                                                    .start_ms = seed * 37 % 3000,
                                                    .delay_ms = 1 + seed * 13 % 100,
                                                    .job_ms = 1500,
                                                    .deadline_ms = 5000,
                                                    .supervised = true });

        for (int i = 0; i < 12; i++) {
            uint32_t rank;

            random = random * 6364136223846793005u + 1442695040888963407u;
            rank = (uint32_t)(random >> 40) % world;
            sim_advance_ms(s, (random >> 20) % 700);
            switch (random >> 61) {
            case 0:
            case 1:
                sim_kill(s, rank);
                break;
            case 2:
                sim_cut(s, rank);
                break;
            case 3:
                sim_fail(s, rank, "out of memory");
                break;
            case 4:
                sim_disconnect(s, rank);
                break;
            default:
                break;
            }
        }
        if (!sim_run_to_the_end(s, 60000))
            fail_msg("seed %u: the job is not completed\n%s", (unsigned)seed, sim_story(s));
        assert_true(sim_is_complete(s));
        for (uint32_t i = 0; i < world; i++)
            assert_int_equal(sim_exit_code(s, i), 0);
        sim_free(s);
    }
}

static void connections_that_break_all_the_time_hurt_no_invariant(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 200; seed++) {
        struct sim *s = sim_new(&(struct sim_opts){ .world = 2 + (uint32_t)(seed % 7),
                                                    .seed = seed,
                                                    .start_ms = 200,
                                                    .delay_ms = 1 + seed % 50,
                                                    .job_ms = 300,
                                                    .deadline_ms = 3000,
                                                    .supervised = true,
                                                    .break_one_in = 10 + (uint32_t)(seed % 90) });

        (void)sim_run_to_the_end(s,
                                 10000); /* it may never get through: only the invariants judge */
        sim_free(s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_tasks_join_train_and_leave_together),
        cmocka_unit_test(a_silent_worker_is_lost_and_named_everywhere),
        cmocka_unit_test(a_killed_worker_ends_the_generation_at_once),
        cmocka_unit_test(an_error_on_one_task_is_told_to_all),
        cmocka_unit_test(a_stop_on_one_task_stops_all_and_only_that_one_was_asked),
        cmocka_unit_test(a_task_that_dies_after_it_was_done_harms_nobody),
        cmocka_unit_test(a_coordinator_that_restarts_while_others_wait_is_found_again),
        cmocka_unit_test(who_waits_in_vain_gives_up_at_the_deadline),
        cmocka_unit_test(a_task_that_is_stopped_while_its_view_is_under_way_ends_the_generation),
        cmocka_unit_test(the_same_seed_tells_the_same_story),
        cmocka_unit_test(groups_of_every_size_come_together_and_finish),
        cmocka_unit_test(a_loss_among_a_thousand_ends_all_with_one_culprit),
        cmocka_unit_test(whatever_happens_the_job_is_completed_by_all),
        cmocka_unit_test(connections_that_break_all_the_time_hurt_no_invariant),
    };

    return cmocka_run_group_tests_name("member/sim", tests, NULL, NULL);
}
