/* test_node.c - scenarios in which the group changes: losses, loss of the chief, partitions,
 * storage. The time limits are those of node.h; the judge of the simulator checks every event. */
#include "member/node_kit.h"

/* ---- losses reported by closed links: a few messages, and no timer except the tick ---- */

enum { LINKS_MS = 60 };

static void cluster_all_tasks_start_together_one_group_forms_at_once(void **state)
{
    struct sim *s =
        sim_new(&(struct sim_opts){ .world = 4, .seed = 3, .rejoin_ms = 5000, .tell = true });

    (void)state;
    EXPECT(s, sim_until_together(s, 4, 100));
    EXPECT(s, member_node_leader(sim_node(s, 3)) == 0);
    sim_free(s);
}

static void worker_dies_the_others_continue(void **state)
{
    struct sim *s = START_CLUSTER();

    (void)state;
    sim_kill(s, 2);
    expect_group(s, 3, 0, LINKS_MS);
    EXPECT(s, strstr(member_node_cause(sim_node(s, 3)), "worker 2") != NULL);
    sim_free(s);
}

static void one_loss_exactly_one_new_generation_is_published(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 100; seed++) {
        struct sim *s = START_CLUSTER(.world = 6, .seed = seed, .delay_ms = 1 + seed % 20);
        uint64_t generation = sim_generation(s, 0);

        sim_kill(s, (uint32_t)(1 + seed % 5));
        expect_group(s, 5, 0, 150);
        /* one new generation for all: no task was excluded because its training stopped later */
        EXPECT(s, sim_generation(s, 0) == generation + 1);
        sim_free(s);
    }
}

static void two_workers_die_at_once_the_others_continue(void **state)
{
    struct sim *s = START_CLUSTER();

    (void)state;
    sim_kill(s, 3);
    sim_kill(s, 1);
    expect_group(s, 2, 0, LINKS_MS + MEMBER_MINORITY_MS); /* two of four are no majority */
    sim_free(s);
}

static void chief_dies_the_lowest_survivor_leads(void **state)
{
    struct sim *s = START_CLUSTER();

    (void)state;
    sim_kill(s, 0);
    expect_group(s, 3, 1, LINKS_MS);
    EXPECT(s, strstr(member_node_cause(sim_node(s, 3)), "worker 0") != NULL);
    sim_free(s);
}

static void leaders_die_one_after_another_the_next_rank_leads(void **state)
{
    struct sim *s = START_CLUSTER(.world = 5);

    (void)state;
    for (uint32_t i = 0; i < 3; i++) {
        sim_kill(s, i);
        expect_group(s, 4 - i, i + 1, LINKS_MS);
        sim_advance(s, 700);
    }
    sim_free(s);
}

static void returning_chief_becomes_coordinator_at_a_step_boundary(void **state)
{
    struct sim *s = START_CLUSTER();
    uint64_t held;

    (void)state;
    sim_kill(s, 0);
    expect_group(s, 3, 1, LINKS_MS);
    held = sim_newest(s);
    sim_start(s, 0);
    expect_group(s, 4, 0, 150);
    EXPECT(s, sim_held(s, 0) >= held); /* it received the state from the others */
    sim_free(s);
}

/* The view makes a chief the coordinator that dies before it receives the view. The new process of
 * the chief rejects the members that attach. */
static void chief_dies_during_hand_over_the_others_are_not_delayed(void **state)
{
    (void)state;
    for (uint64_t ms = 0; ms < 60; ms++) {
        struct sim *s = START_CLUSTER(.seed = 1 + ms, .delay_ms = 12);

        sim_kill(s, 0);
        expect_group(s, 3, 1, 200);
        sim_start(s, 0);
        sim_advance(s, ms);
        sim_kill(s, 0);
        sim_start(s, 0);
        expect_group(s, 4, 0, MEMBER_ATTACH_MS + 600);
        sim_free(s);
    }
}

static void restarted_worker_joins_at_a_step_boundary(void **state)
{
    struct sim *s = START_CLUSTER();

    (void)state;
    sim_kill(s, 3);
    expect_group(s, 3, 0, LINKS_MS);
    sim_start(s, 3);
    expect_group(s, 4, 0, 150);
    EXPECT(s, sim_held(s, 3) >= 5);
    sim_free(s);
}

static void task_opens_data_slowly_the_group_is_not_interrupted(void **state)
{
    struct sim *s = START_CLUSTER(.n_absent = 1, .open_ms = 1500, .rejoin_ms = 50);
    uint64_t generation = sim_generation(s, 0);

    (void)state;
    sim_start(s, 3);
    for (int i = 0; i < 100 && sim_generation(s, 3) == 0; i++) {
        EXPECT(s, sim_generation(s, 0) == generation || sim_generation(s, 0) == 0 || i > 1);
        sim_advance(s, 20);
    }
    expect_group(s, 4, 0, 1000);
    EXPECT(s, sim_generation(s, 0) == generation + 1); /* one pause, no loss */
    sim_free(s);
}

/* ---- silence ---- */

static void worker_host_falls_silent_its_loss_is_detected_in_time(void **state)
{
    struct sim *s = START_CLUSTER();

    (void)state;
    sim_power_off(s, 2);
    expect_group(s, 3, 0, MEMBER_SILENCE_MS + 5 * MEMBER_TICK_MS + LINKS_MS);
    EXPECT(s, strstr(member_node_cause(sim_node(s, 1)), "worker 2") != NULL);
    EXPECT(s, strstr(member_node_cause(sim_node(s, 1)), "silent") != NULL);
    sim_free(s);
}

static void chief_host_falls_silent_its_loss_is_detected_in_time(void **state)
{
    struct sim *s = START_CLUSTER();

    (void)state;
    sim_power_off(s, 0);
    expect_group(s, 3, 1, MEMBER_SILENCE_MS + 2 * MEMBER_CALL_MS + MEMBER_SETTLE_MS + LINKS_MS);
    sim_free(s);
}

static void suspended_worker_resumes_and_rejoins_with_its_state(void **state)
{
    struct sim *s = START_CLUSTER();

    (void)state;
    sim_pause(s, 1);
    sim_advance(s, 2500);
    EXPECT(s, sim_generation(s, 0) > 0 && sim_held(s, 0) > sim_held(s, 1));
    sim_continue(s, 1);
    expect_group(s, 4, 0, 600);
    sim_free(s);
}

static void suspended_chief_resumes_and_becomes_coordinator(void **state)
{
    struct sim *s = START_CLUSTER();

    (void)state;
    sim_pause(s, 0);
    sim_advance(s, 4000);
    EXPECT(s, member_node_leader(sim_node(s, 3)) == 1);
    sim_continue(s, 0);
    expect_group(s, 4, 0, 600);
    sim_free(s);
}

static void all_tasks_suspended_together_no_task_is_blamed(void **state)
{
    struct sim *s = START_CLUSTER();

    (void)state;
    for (uint32_t i = 0; i < 4; i++)
        sim_pause(s, i);
    sim_advance(s, 20000);
    for (uint32_t i = 0; i < 4; i++)
        sim_continue(s, i);
    expect_group(s, 4, 0, 2500);
    EXPECT(s, sim_alive(s) == 4);
    sim_free(s);
}

static void clocks_with_different_speed_no_false_alarm(void **state)
{
    struct sim *s = START_CLUSTER(.drift = 10, .seed = 8);
    uint64_t generation = sim_generation(s, 0);

    (void)state;
    sim_advance(s, 60000);
    EXPECT(s, sim_generation(s, 0) == generation);
    sim_clock_jumps(s, 0, 5000);
    sim_clock_jumps(s, 2, 900);
    sim_advance(s, 5000);
    EXPECT(s, sim_generation(s, 3) == generation);
    sim_free(s);
}

/* ---- partitions ---- */

static void partition_majority_continues_and_minority_logs_the_reason(void **state)
{
    struct sim *s = START_CLUSTER();

    (void)state;
    sim_partition(s, 1u << 0); /* only the chief */
    sim_advance(s, 6000);
    EXPECT(s, sim_generation(s, 1) > 1 && sim_generation(s, 1) == sim_generation(s, 3));
    EXPECT(s, sim_generation(s, 0) == 0);
    expect_said(s, 0, "worker 1");
    sim_heal(s);
    expect_group(s, 4, 0, 1500);
    sim_free(s);
}

static void partition_into_halves_holder_of_the_lease_continues(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 20; seed++) {
        struct sim *s = START_CLUSTER(.seed = seed);
        uint32_t running;

        sim_partition(s, 1u << 0 | 1u << 1);
        sim_advance(s, MEMBER_EXPIRY_MS + 4000);
        running = (sim_generation(s, 0) != 0) + (sim_generation(s, 2) != 0);
        /* the judge excludes that both halves train; here, that neither trains */
        EXPECT(s, running == 1);
        expect_said(s, sim_generation(s, 0) != 0 ? 2 : 0,
                    sim_generation(s, 0) != 0 ? "worker 1" : "worker 3");
        sim_heal(s);
        expect_group(s, 4, 0, 1500);
        sim_free(s);
    }
}

static void partition_into_halves_without_storage_neither_continues(void **state)
{
    struct sim *s = START_CLUSTER(.no_lease = true);

    (void)state;
    sim_partition(s, 1u << 0 | 1u << 1);
    sim_advance(s, 8000);
    for (uint32_t i = 0; i < 4; i++) {
        EXPECT(s, sim_generation(s, i) == 0);
        expect_said(s, i, i < 2 ? "worker 2" : "worker 0");
    }
    sim_heal(s);
    expect_group(s, 4, 0, 1500);
    sim_free(s);
}

static void task_receives_but_cannot_send_the_others_continue(void **state)
{
    struct sim *s = START_CLUSTER();

    (void)state;
    sim_cut(s, 2, SIM_ALL, SIM_BOTH);
    sim_advance(s, 4000);
    EXPECT(s, sim_generation(s, 0) > 1 && sim_generation(s, 3) == sim_generation(s, 0));
    sim_heal(s);
    expect_group(s, 4, 0, 1500);
    sim_free(s);
}

static void worker_cannot_reach_the_chief_it_rejoins_after_repair(void **state)
{
    struct sim *s = START_CLUSTER();

    (void)state;
    sim_cut(s, 0, 3, SIM_CONTROL);
    sim_cut(s, 3, 0, SIM_CONTROL);
    sim_advance(s, 6000);
    EXPECT(s, sim_generation(s, 0) > 1 && sim_generation(s, 1) == sim_generation(s, 0));
    sim_heal(s);
    expect_group(s, 4, 0, 1500);
    sim_free(s);
}

static void data_path_breaks_all_tasks_train_after_repair(void **state)
{
    struct sim *s = START_CLUSTER();

    (void)state;
    sim_cut(s, 1, 2, SIM_DATA);
    sim_cut(s, 2, 1, SIM_DATA);
    sim_advance(s, 5000);
    EXPECT(s, sim_alive(s) == 4);
    sim_heal(s);
    expect_group(s, 4, 0, 8000);
    sim_free(s);
}

static void link_breaks_a_new_generation_begins_and_no_process_ends(void **state)
{
    (void)state;
    for (uint32_t i = 1; i < 4; i++) {
        struct sim *s = START_CLUSTER(.rejoin_ms = 400);

        sim_reset(s, i, 0);
        expect_group(s, 4, 0, 200);
        EXPECT(s, sim_alive(s) == 4);
        sim_free(s);
    }
}

/* The chief is suspended, and then cut off. The messages that the others sent before they continued
 * without it arrive long after, all at once: for a moment a majority seems to be present. The chief
 * takes the lease from the others, and must not train before they have stopped. */
static void majority_of_stale_messages_does_not_train(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 20; seed++) {
        struct sim *s = START_CLUSTER(.world = 6, .seed = seed, .delay_ms = 1 + seed % 9);

        sim_kill(s, 5); /* the whole cluster would need no lease */
        expect_group(s, 5, 0, 200);
        sim_pause(s, 0);
        sim_advance(s, 3500);
        EXPECT(s, sim_generation(s, 1) > 2);
        sim_partition(s, 1u << 0);
        sim_continue(s, 0);
        sim_advance(s, MEMBER_MINORITY_MS + 200 + 10 * seed);
        sim_heal(s);
        expect_group(s, 5, 0, MEMBER_EXPIRY_MS + 2000);
        sim_free(s);
    }
}

/* Worker 2 trains alone and holds the lease with itself as the record. The other tasks return, and
 * the chief coordinates and takes the next number. The storage of worker 2 fails, so worker 2 does not
 * see that number: when worker 2 is cut off, its own lease is still valid for a part of
 * MEMBER_HOLD_MS. */
static void former_holder_with_failing_storage_does_not_train_alone(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 20; seed++) {
        struct sim *s = START_CLUSTER(.world = 3, .seed = seed);

        sim_kill(s, 0);
        sim_kill(s, 1);
        expect_group(s, 1, 2, 2000);
        sim_storage(s, 2, seed % 2 == 0 ? SIM_STORAGE_HANGS : SIM_STORAGE_FAILS);
        sim_start(s, 0);
        sim_start(s, 1);
        expect_group(s, 3, 0, 500);
        sim_partition(s, 1u << 2);
        sim_advance(s, MEMBER_SILENCE_MS + 300);
        EXPECT(s, sim_generation(s, 0) != 0 && sim_generation(s, 0) == sim_generation(s, 1));
        /* the judge excludes that both groups train; here, worker 2 must not even publish a view */
        for (uint64_t end = sim_now(s) + MEMBER_HOLD_MS; sim_now(s) < end; sim_advance(s, 20))
            EXPECT(s, member_node_view(sim_node(s, 2))->n_members != 1);
        sim_storage(s, 2, SIM_STORAGE_FINE);
        sim_heal(s);
        expect_group(s, 3, 0, 1500);
        sim_free(s);
    }
}

/* The chief is dead, and the next two tasks cannot reach each other: each leads, and the last task
 * reaches both. */
static void two_new_leaders_merge_into_one_group(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 10; seed++) {
        struct sim *s = START_CLUSTER(.seed = seed);

        sim_cut(s, 1, 2, SIM_BOTH);
        sim_cut(s, 2, 1, SIM_BOTH);
        sim_kill(s, 0);
        sim_advance(s, seed * 300);
        sim_heal(s);
        expect_group(s, 3, 1, 6000);
        sim_free(s);
    }
}

/* ---- two tasks, one is lost ---- */

static void two_tasks_worker_dies_the_chief_continues(void **state)
{
    struct sim *s = START_CLUSTER(.world = 2);

    (void)state;
    sim_kill(s, 1);
    expect_group(s, 1, 0, 2 * LINKS_MS);
    sim_start(s, 1);
    expect_group(s, 2, 0, 200);
    sim_free(s);
}

static void two_tasks_chief_dies_the_worker_continues(void **state)
{
    struct sim *s = START_CLUSTER(.world = 2);

    (void)state;
    sim_kill(s, 0);
    expect_group(s, 1, 1, 2 * LINKS_MS + MEMBER_PROBE_MS);
    sim_start(s, 0);
    expect_group(s, 2, 0, 300);
    sim_free(s);
}

static void two_tasks_worker_host_silent_the_chief_continues(void **state)
{
    struct sim *s = START_CLUSTER(.world = 2);

    (void)state;
    sim_power_off(s, 1);
    expect_group(s, 1, 0, MEMBER_SILENCE_MS + MEMBER_MINORITY_MS + 300);
    sim_free(s);
}

/* No task can know whether the chief trains; only the expiry of its lease shows that it does
 * not. */
static void two_tasks_chief_host_silent_the_worker_continues_after_lease_expiry(void **state)
{
    struct sim *s = START_CLUSTER(.world = 2);

    (void)state;
    sim_power_off(s, 0);
    sim_advance(s, MEMBER_HOLD_MS - MEMBER_HOLD_MS / 6 - 100);
    EXPECT(s, sim_generation(s, 1) == 0);
    expect_group(s, 1, 1, MEMBER_SILENCE_MS + MEMBER_EXPIRY_MS + 1000);
    sim_free(s);
}

static void two_tasks_without_storage_survivor_ends_at_the_deadline(void **state)
{
    struct sim *s = START_CLUSTER(.world = 2, .no_lease = true, .deadline_ms = 5000);

    (void)state;
    sim_kill(s, 0);
    sim_advance(s, 4000);
    expect_said(s, 1, "worker 0");
    expect_said(s, 1, "checkpoint.directory");
    sim_advance(s, 2500);
    expect_exit(s, 1, 138, "worker 0");
    sim_free(s);
}

/* ---- the storage ---- */

static void slow_storage_whole_cluster_is_not_delayed(void **state)
{
    struct sim *s = START_CLUSTER();
    uint64_t held = sim_newest(s), generation = sim_generation(s, 0);

    (void)state;
    sim_storage(s, SIM_ALL, SIM_STORAGE_HANGS);
    sim_advance(s, 20000);
    EXPECT(s, sim_newest(s) > held + 600);
    EXPECT(s, sim_generation(s, 0) == generation);
    sim_free(s);
}

static void smaller_group_storage_hangs_it_continues_after_an_answer(void **state)
{
    struct sim *s = START_CLUSTER(.deadline_ms = 60000);
    uint64_t held;

    (void)state;
    sim_kill(s, 3);
    expect_group(s, 3, 0, LINKS_MS);
    sim_storage(s, SIM_ALL, SIM_STORAGE_HANGS);
    sim_advance(s, MEMBER_HOLD_MS + 100);
    held = sim_newest(s);
    sim_advance(s, 3000);
    EXPECT(s, sim_newest(s) == held);
    sim_storage(s, SIM_ALL, SIM_STORAGE_FINE);
    expect_group(s, 3, 0, 2000);
    sim_free(s);
}

static void majority_without_storage_answer_continues(void **state)
{
    struct sim *s = START_CLUSTER();

    (void)state;
    sim_storage(s, SIM_ALL, SIM_STORAGE_FAILS);
    sim_advance(s, 500);
    sim_kill(s, 0);
    sim_advance(s, 3000);
    EXPECT(s, sim_generation(s, 1) == 0); /* no lease can be written */
    expect_said(s, 1, "input/output error");
    sim_storage(s, SIM_ALL, SIM_STORAGE_FINE);
    expect_group(s, 3, 1, 1000);
    sim_free(s);
}

static void cluster_all_tasks_died_it_restarts_from_the_checkpoint(void **state)
{
    struct sim *s = START_CLUSTER(.save_every = 10);

    (void)state;
    EXPECT(s, sim_until_step(s, 25, 5000));
    for (uint32_t i = 0; i < 4; i++)
        sim_kill(s, i);
    for (uint32_t i = 0; i < 4; i++)
        sim_start(s, i);
    EXPECT(s, sim_until_together(s, 4, 1000));
    EXPECT(s, sim_newest(s) >= 20 && sim_newest(s) <= 23);
    sim_free(s);
}

static void simulation_same_seed_produces_the_same_log(void **state)
{
    char *first;
    struct sim *s = NULL;

    (void)state;
    for (int round = 0; round < 2; round++) {
        s = START_CLUSTER(.seed = 77, .probe_trouble = 3, .delay_ms = 9, .drift = 5);
        sim_kill(s, 1);
        sim_partition(s, 1u << 3);
        sim_advance(s, 3000);
        sim_heal(s);
        sim_start(s, 1);
        sim_advance(s, 2000);
        if (round == 0) {
            first = strdup(sim_log(s));
            sim_free(s);
        }
    }
    assert_string_equal(sim_log(s), first);
    free(first);
    sim_free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cluster_all_tasks_start_together_one_group_forms_at_once),
        cmocka_unit_test(worker_dies_the_others_continue),
        cmocka_unit_test(one_loss_exactly_one_new_generation_is_published),
        cmocka_unit_test(two_workers_die_at_once_the_others_continue),
        cmocka_unit_test(chief_dies_the_lowest_survivor_leads),
        cmocka_unit_test(leaders_die_one_after_another_the_next_rank_leads),
        cmocka_unit_test(returning_chief_becomes_coordinator_at_a_step_boundary),
        cmocka_unit_test(chief_dies_during_hand_over_the_others_are_not_delayed),
        cmocka_unit_test(restarted_worker_joins_at_a_step_boundary),
        cmocka_unit_test(task_opens_data_slowly_the_group_is_not_interrupted),
        cmocka_unit_test(worker_host_falls_silent_its_loss_is_detected_in_time),
        cmocka_unit_test(chief_host_falls_silent_its_loss_is_detected_in_time),
        cmocka_unit_test(suspended_worker_resumes_and_rejoins_with_its_state),
        cmocka_unit_test(suspended_chief_resumes_and_becomes_coordinator),
        cmocka_unit_test(all_tasks_suspended_together_no_task_is_blamed),
        cmocka_unit_test(clocks_with_different_speed_no_false_alarm),
        cmocka_unit_test(partition_majority_continues_and_minority_logs_the_reason),
        cmocka_unit_test(partition_into_halves_holder_of_the_lease_continues),
        cmocka_unit_test(partition_into_halves_without_storage_neither_continues),
        cmocka_unit_test(task_receives_but_cannot_send_the_others_continue),
        cmocka_unit_test(worker_cannot_reach_the_chief_it_rejoins_after_repair),
        cmocka_unit_test(data_path_breaks_all_tasks_train_after_repair),
        cmocka_unit_test(link_breaks_a_new_generation_begins_and_no_process_ends),
        cmocka_unit_test(majority_of_stale_messages_does_not_train),
        cmocka_unit_test(former_holder_with_failing_storage_does_not_train_alone),
        cmocka_unit_test(two_new_leaders_merge_into_one_group),
        cmocka_unit_test(two_tasks_worker_dies_the_chief_continues),
        cmocka_unit_test(two_tasks_chief_dies_the_worker_continues),
        cmocka_unit_test(two_tasks_worker_host_silent_the_chief_continues),
        cmocka_unit_test(two_tasks_chief_host_silent_the_worker_continues_after_lease_expiry),
        cmocka_unit_test(two_tasks_without_storage_survivor_ends_at_the_deadline),
        cmocka_unit_test(slow_storage_whole_cluster_is_not_delayed),
        cmocka_unit_test(smaller_group_storage_hangs_it_continues_after_an_answer),
        cmocka_unit_test(majority_without_storage_answer_continues),
        cmocka_unit_test(cluster_all_tasks_died_it_restarts_from_the_checkpoint),
        cmocka_unit_test(simulation_same_seed_produces_the_same_log),
    };

    return cmocka_run_group_tests_name("member/node", tests, NULL, NULL);
}
