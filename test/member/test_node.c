/* test_node.c - scenarios in which the group changes: losses, loss of the chief, partitions,
 * storage. The time limits are those of node.h; the judge of the simulator checks every event. */
#include "member/node_kit.h"

/* ---- losses that closed links show: a few messages, and no timer but the tick ---- */

enum { LINKS_MS = 60 };

static void a_cluster_that_starts_at_once_is_one_group_at_once(void **state)
{
    struct sim *s =
        sim_new(&(struct sim_opts){ .world = 4, .seed = 3, .rejoin_ms = 5000, .tell = true });

    (void)state;
    HOLDS(s, sim_until_together(s, 4, 100));
    HOLDS(s, member_node_leader(sim_node(s, 3)) == 0);
    sim_free(s);
}

static void a_worker_dies_and_the_others_go_on(void **state)
{
    struct sim *s = CLUSTER();

    (void)state;
    sim_kill(s, 2);
    regroup(s, 3, 0, LINKS_MS);
    HOLDS(s, strstr(member_node_cause(sim_node(s, 3)), "worker 2") != NULL);
    sim_free(s);
}

static void one_loss_is_one_new_generation(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 100; seed++) {
        struct sim *s = CLUSTER(.world = 6, .seed = seed, .delay_ms = 1 + seed % 20);
        uint64_t generation = sim_generation(s, 0);

        sim_kill(s, (uint32_t)(1 + seed % 5));
        regroup(s, 5, 0, 150);
        /* one new generation for all: no task was excluded because its training stopped later */
        HOLDS(s, sim_generation(s, 0) == generation + 1);
        sim_free(s);
    }
}

static void two_die_at_once_and_the_others_go_on(void **state)
{
    struct sim *s = CLUSTER();

    (void)state;
    sim_kill(s, 3);
    sim_kill(s, 1);
    regroup(s, 2, 0, LINKS_MS + MEMBER_MINORITY_MS); /* two of four are no majority */
    sim_free(s);
}

static void the_chief_dies_and_the_lowest_survivor_leads(void **state)
{
    struct sim *s = CLUSTER();

    (void)state;
    sim_kill(s, 0);
    regroup(s, 3, 1, LINKS_MS);
    HOLDS(s, strstr(member_node_cause(sim_node(s, 3)), "worker 0") != NULL);
    sim_free(s);
}

static void chief_after_chief_dies(void **state)
{
    struct sim *s = CLUSTER(.world = 5);

    (void)state;
    for (uint32_t i = 0; i < 3; i++) {
        sim_kill(s, i);
        regroup(s, 4 - i, i + 1, LINKS_MS);
        sim_advance(s, 700);
    }
    sim_free(s);
}

static void the_chief_that_returns_takes_its_rank_back_at_a_step_boundary(void **state)
{
    struct sim *s = CLUSTER();
    uint64_t held;

    (void)state;
    sim_kill(s, 0);
    regroup(s, 3, 1, LINKS_MS);
    held = sim_newest(s);
    sim_start(s, 0);
    regroup(s, 4, 0, 150);
    HOLDS(s, sim_held(s, 0) >= held); /* it received the state from the others */
    sim_free(s);
}

/* The view makes a chief the coordinator that dies before it receives the view. The new process of
 * the chief rejects the members that attach. */
static void a_chief_that_dies_while_the_group_is_handed_to_it_holds_nobody_up(void **state)
{
    (void)state;
    for (uint64_t ms = 0; ms < 60; ms++) {
        struct sim *s = CLUSTER(.seed = 1 + ms, .delay_ms = 12);

        sim_kill(s, 0);
        regroup(s, 3, 1, 200);
        sim_start(s, 0);
        sim_advance(s, ms);
        sim_kill(s, 0);
        sim_start(s, 0);
        regroup(s, 4, 0, MEMBER_ATTACH_MS + 600);
        sim_free(s);
    }
}

static void a_worker_that_is_started_again_is_taken_in_at_a_step_boundary(void **state)
{
    struct sim *s = CLUSTER();

    (void)state;
    sim_kill(s, 3);
    regroup(s, 3, 0, LINKS_MS);
    sim_start(s, 3);
    regroup(s, 4, 0, 150);
    HOLDS(s, sim_held(s, 3) >= 5);
    sim_free(s);
}

static void a_task_that_opens_its_data_for_long_disturbs_nobody(void **state)
{
    struct sim *s = CLUSTER(.n_absent = 1, .open_ms = 1500, .rejoin_ms = 50);
    uint64_t generation = sim_generation(s, 0);

    (void)state;
    sim_start(s, 3);
    for (int i = 0; i < 100 && sim_generation(s, 3) == 0; i++) {
        HOLDS(s, sim_generation(s, 0) == generation || sim_generation(s, 0) == 0 || i > 1);
        sim_advance(s, 20);
    }
    regroup(s, 4, 0, 1000);
    HOLDS(s, sim_generation(s, 0) == generation + 1); /* one pause, no loss */
    sim_free(s);
}

/* ---- silence ---- */

static void a_worker_whose_host_falls_silent_is_lost_in_time(void **state)
{
    struct sim *s = CLUSTER();

    (void)state;
    sim_power_off(s, 2);
    regroup(s, 3, 0, MEMBER_SILENCE_MS + 5 * MEMBER_TICK_MS + LINKS_MS);
    HOLDS(s, strstr(member_node_cause(sim_node(s, 1)), "worker 2") != NULL);
    HOLDS(s, strstr(member_node_cause(sim_node(s, 1)), "silent") != NULL);
    sim_free(s);
}

static void a_chief_whose_host_falls_silent_is_lost_in_time(void **state)
{
    struct sim *s = CLUSTER();

    (void)state;
    sim_power_off(s, 0);
    regroup(s, 3, 1, MEMBER_SILENCE_MS + 2 * MEMBER_CALL_MS + MEMBER_SETTLE_MS + LINKS_MS);
    sim_free(s);
}

static void a_worker_that_was_stopped_comes_back_with_its_state(void **state)
{
    struct sim *s = CLUSTER();

    (void)state;
    sim_pause(s, 1);
    sim_advance(s, 2500);
    HOLDS(s, sim_generation(s, 0) > 0 && sim_held(s, 0) > sim_held(s, 1));
    sim_continue(s, 1);
    regroup(s, 4, 0, 600);
    sim_free(s);
}

static void a_chief_that_was_stopped_comes_back_as_chief(void **state)
{
    struct sim *s = CLUSTER();

    (void)state;
    sim_pause(s, 0);
    sim_advance(s, 4000);
    HOLDS(s, member_node_leader(sim_node(s, 3)) == 1);
    sim_continue(s, 0);
    regroup(s, 4, 0, 600);
    sim_free(s);
}

static void all_that_were_stopped_together_blame_nobody(void **state)
{
    struct sim *s = CLUSTER();

    (void)state;
    for (uint32_t i = 0; i < 4; i++)
        sim_pause(s, i);
    sim_advance(s, 20000);
    for (uint32_t i = 0; i < 4; i++)
        sim_continue(s, i);
    regroup(s, 4, 0, 2500);
    HOLDS(s, sim_alive(s) == 4);
    sim_free(s);
}

static void clocks_of_different_speed_raise_no_alarm(void **state)
{
    struct sim *s = CLUSTER(.drift = 10, .seed = 8);
    uint64_t generation = sim_generation(s, 0);

    (void)state;
    sim_advance(s, 60000);
    HOLDS(s, sim_generation(s, 0) == generation);
    sim_clock_jumps(s, 0, 5000);
    sim_clock_jumps(s, 2, 900);
    sim_advance(s, 5000);
    HOLDS(s, sim_generation(s, 3) == generation);
    sim_free(s);
}

/* ---- partitions ---- */

static void the_majority_of_a_partition_goes_on_and_the_rest_says_so(void **state)
{
    struct sim *s = CLUSTER();

    (void)state;
    sim_partition(s, 1u << 0); /* only the chief */
    sim_advance(s, 6000);
    HOLDS(s, sim_generation(s, 1) > 1 && sim_generation(s, 1) == sim_generation(s, 3));
    HOLDS(s, sim_generation(s, 0) == 0);
    says(s, 0, "worker 1");
    sim_heal(s);
    regroup(s, 4, 0, 1500);
    sim_free(s);
}

static void of_two_halves_the_lease_decides(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 20; seed++) {
        struct sim *s = CLUSTER(.seed = seed);
        uint32_t running;

        sim_partition(s, 1u << 0 | 1u << 1);
        sim_advance(s, MEMBER_EXPIRY_MS + 4000);
        running = (sim_generation(s, 0) != 0) + (sim_generation(s, 2) != 0);
        /* the judge excludes that both halves train; here, that neither trains */
        HOLDS(s, running == 1);
        says(s, sim_generation(s, 0) != 0 ? 2 : 0,
             sim_generation(s, 0) != 0 ? "worker 1" : "worker 3");
        sim_heal(s);
        regroup(s, 4, 0, 1500);
        sim_free(s);
    }
}

static void without_shared_storage_neither_half_goes_on(void **state)
{
    struct sim *s = CLUSTER(.no_lease = true);

    (void)state;
    sim_partition(s, 1u << 0 | 1u << 1);
    sim_advance(s, 8000);
    for (uint32_t i = 0; i < 4; i++) {
        HOLDS(s, sim_generation(s, i) == 0);
        says(s, i, i < 2 ? "worker 2" : "worker 0");
    }
    sim_heal(s);
    regroup(s, 4, 0, 1500);
    sim_free(s);
}

static void who_hears_and_is_not_heard_does_not_stop_the_others(void **state)
{
    struct sim *s = CLUSTER();

    (void)state;
    sim_cut(s, 2, SIM_ALL, SIM_BOTH);
    sim_advance(s, 4000);
    HOLDS(s, sim_generation(s, 0) > 1 && sim_generation(s, 3) == sim_generation(s, 0));
    sim_heal(s);
    regroup(s, 4, 0, 1500);
    sim_free(s);
}

static void a_worker_that_cannot_reach_the_chief_only_is_out_until_it_can(void **state)
{
    struct sim *s = CLUSTER();

    (void)state;
    sim_cut(s, 0, 3, SIM_CONTROL);
    sim_cut(s, 3, 0, SIM_CONTROL);
    sim_advance(s, 6000);
    HOLDS(s, sim_generation(s, 0) > 1 && sim_generation(s, 1) == sim_generation(s, 0));
    sim_heal(s);
    regroup(s, 4, 0, 1500);
    sim_free(s);
}

static void a_broken_data_path_leads_to_a_regroup_and_all_train_when_it_is_mended(void **state)
{
    struct sim *s = CLUSTER();

    (void)state;
    sim_cut(s, 1, 2, SIM_DATA);
    sim_cut(s, 2, 1, SIM_DATA);
    sim_advance(s, 5000);
    HOLDS(s, sim_alive(s) == 4);
    sim_heal(s);
    regroup(s, 4, 0, 8000);
    sim_free(s);
}

static void a_link_that_breaks_costs_a_regroup_and_nobody_a_process(void **state)
{
    (void)state;
    for (uint32_t i = 1; i < 4; i++) {
        struct sim *s = CLUSTER(.rejoin_ms = 400);

        sim_reset(s, i, 0);
        regroup(s, 4, 0, 200);
        HOLDS(s, sim_alive(s) == 4);
        sim_free(s);
    }
}

/* The chief is suspended, and then cut off. The messages that the others sent before they continued
 * without it arrive long after, all at once: for a moment a majority seems to be present. The chief
 * takes the lease from the others, and must not train before they have stopped. */
static void a_majority_of_old_messages_is_none(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 20; seed++) {
        struct sim *s = CLUSTER(.world = 6, .seed = seed, .delay_ms = 1 + seed % 9);

        sim_kill(s, 5); /* the whole cluster would need no lease */
        regroup(s, 5, 0, 200);
        sim_pause(s, 0);
        sim_advance(s, 3500);
        HOLDS(s, sim_generation(s, 1) > 2);
        sim_partition(s, 1u << 0);
        sim_continue(s, 0);
        sim_advance(s, MEMBER_MINORITY_MS + 200 + 10 * seed);
        sim_heal(s);
        regroup(s, 5, 0, MEMBER_EXPIRY_MS + 2000);
        sim_free(s);
    }
}

/* The chief is dead, and the next two tasks cannot reach each other: each leads, and the last task
 * reaches both. */
static void two_new_chiefs_at_once_become_one(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 10; seed++) {
        struct sim *s = CLUSTER(.seed = seed);

        sim_cut(s, 1, 2, SIM_BOTH);
        sim_cut(s, 2, 1, SIM_BOTH);
        sim_kill(s, 0);
        sim_advance(s, seed * 300);
        sim_heal(s);
        regroup(s, 3, 1, 6000);
        sim_free(s);
    }
}

/* ---- two tasks, and one is lost ---- */

static void of_two_the_worker_dies(void **state)
{
    struct sim *s = CLUSTER(.world = 2);

    (void)state;
    sim_kill(s, 1);
    regroup(s, 1, 0, 2 * LINKS_MS);
    sim_start(s, 1);
    regroup(s, 2, 0, 200);
    sim_free(s);
}

static void of_two_the_chief_dies(void **state)
{
    struct sim *s = CLUSTER(.world = 2);

    (void)state;
    sim_kill(s, 0);
    regroup(s, 1, 1, 2 * LINKS_MS + MEMBER_PROBE_MS);
    sim_start(s, 0);
    regroup(s, 2, 0, 300);
    sim_free(s);
}

static void of_two_the_host_of_the_worker_falls_silent(void **state)
{
    struct sim *s = CLUSTER(.world = 2);

    (void)state;
    sim_power_off(s, 1);
    regroup(s, 1, 0, MEMBER_SILENCE_MS + MEMBER_MINORITY_MS + 300);
    sim_free(s);
}

/* No task can know whether the chief trains; only the expiry of its lease shows that it does
 * not. */
static void of_two_the_host_of_the_chief_falls_silent(void **state)
{
    struct sim *s = CLUSTER(.world = 2);

    (void)state;
    sim_power_off(s, 0);
    sim_advance(s, MEMBER_HOLD_MS - MEMBER_HOLD_MS / 6 - 100);
    HOLDS(s, sim_generation(s, 1) == 0);
    regroup(s, 1, 1, MEMBER_SILENCE_MS + MEMBER_EXPIRY_MS + 1000);
    sim_free(s);
}

static void of_two_without_shared_storage_the_one_left_waits_and_ends_at_the_deadline(void **state)
{
    struct sim *s = CLUSTER(.world = 2, .no_lease = true, .deadline_ms = 5000);

    (void)state;
    sim_kill(s, 0);
    sim_advance(s, 4000);
    says(s, 1, "worker 0");
    says(s, 1, "checkpoint.directory");
    sim_advance(s, 2500);
    ends_with(s, 1, 138, "worker 0");
    sim_free(s);
}

/* ---- the storage ---- */

static void slow_storage_costs_the_whole_cluster_nothing(void **state)
{
    struct sim *s = CLUSTER();
    uint64_t held = sim_newest(s), generation = sim_generation(s, 0);

    (void)state;
    sim_storage(s, SIM_ALL, SIM_STORAGE_HANGS);
    sim_advance(s, 20000);
    HOLDS(s, sim_newest(s) > held + 600);
    HOLDS(s, sim_generation(s, 0) == generation);
    sim_free(s);
}

static void a_smaller_group_waits_for_its_storage_and_goes_on_when_it_answers(void **state)
{
    struct sim *s = CLUSTER(.deadline_ms = 60000);
    uint64_t held;

    (void)state;
    sim_kill(s, 3);
    regroup(s, 3, 0, LINKS_MS);
    sim_storage(s, SIM_ALL, SIM_STORAGE_HANGS);
    sim_advance(s, MEMBER_HOLD_MS + 100);
    held = sim_newest(s);
    sim_advance(s, 3000);
    HOLDS(s, sim_newest(s) == held);
    sim_storage(s, SIM_ALL, SIM_STORAGE_FINE);
    regroup(s, 3, 0, 2000);
    sim_free(s);
}

static void a_majority_goes_on_when_the_storage_of_the_dead_chief_only_answered(void **state)
{
    struct sim *s = CLUSTER();

    (void)state;
    sim_storage(s, SIM_ALL, SIM_STORAGE_FAILS);
    sim_advance(s, 500);
    sim_kill(s, 0);
    sim_advance(s, 3000);
    HOLDS(s, sim_generation(s, 1) == 0); /* no lease can be written */
    says(s, 1, "input/output error");
    sim_storage(s, SIM_ALL, SIM_STORAGE_FINE);
    regroup(s, 3, 1, 1000);
    sim_free(s);
}

static void a_dead_cluster_begins_from_its_checkpoint(void **state)
{
    struct sim *s = CLUSTER(.save_every = 10);

    (void)state;
    HOLDS(s, sim_until_step(s, 25, 5000));
    for (uint32_t i = 0; i < 4; i++)
        sim_kill(s, i);
    for (uint32_t i = 0; i < 4; i++)
        sim_start(s, i);
    HOLDS(s, sim_until_together(s, 4, 1000));
    HOLDS(s, sim_newest(s) >= 20 && sim_newest(s) <= 23);
    sim_free(s);
}

static void the_same_seed_tells_the_same_story(void **state)
{
    char *first;
    struct sim *s = NULL;

    (void)state;
    for (int round = 0; round < 2; round++) {
        s = CLUSTER(.seed = 77, .probe_trouble = 3, .delay_ms = 9, .drift = 5);
        sim_kill(s, 1);
        sim_partition(s, 1u << 3);
        sim_advance(s, 3000);
        sim_heal(s);
        sim_start(s, 1);
        sim_advance(s, 2000);
        if (round == 0) {
            first = strdup(sim_story(s));
            sim_free(s);
        }
    }
    assert_string_equal(sim_story(s), first);
    free(first);
    sim_free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_cluster_that_starts_at_once_is_one_group_at_once),
        cmocka_unit_test(a_worker_dies_and_the_others_go_on),
        cmocka_unit_test(one_loss_is_one_new_generation),
        cmocka_unit_test(two_die_at_once_and_the_others_go_on),
        cmocka_unit_test(the_chief_dies_and_the_lowest_survivor_leads),
        cmocka_unit_test(chief_after_chief_dies),
        cmocka_unit_test(the_chief_that_returns_takes_its_rank_back_at_a_step_boundary),
        cmocka_unit_test(a_chief_that_dies_while_the_group_is_handed_to_it_holds_nobody_up),
        cmocka_unit_test(a_worker_that_is_started_again_is_taken_in_at_a_step_boundary),
        cmocka_unit_test(a_task_that_opens_its_data_for_long_disturbs_nobody),
        cmocka_unit_test(a_worker_whose_host_falls_silent_is_lost_in_time),
        cmocka_unit_test(a_chief_whose_host_falls_silent_is_lost_in_time),
        cmocka_unit_test(a_worker_that_was_stopped_comes_back_with_its_state),
        cmocka_unit_test(a_chief_that_was_stopped_comes_back_as_chief),
        cmocka_unit_test(all_that_were_stopped_together_blame_nobody),
        cmocka_unit_test(clocks_of_different_speed_raise_no_alarm),
        cmocka_unit_test(the_majority_of_a_partition_goes_on_and_the_rest_says_so),
        cmocka_unit_test(of_two_halves_the_lease_decides),
        cmocka_unit_test(without_shared_storage_neither_half_goes_on),
        cmocka_unit_test(who_hears_and_is_not_heard_does_not_stop_the_others),
        cmocka_unit_test(a_worker_that_cannot_reach_the_chief_only_is_out_until_it_can),
        cmocka_unit_test(a_broken_data_path_leads_to_a_regroup_and_all_train_when_it_is_mended),
        cmocka_unit_test(a_link_that_breaks_costs_a_regroup_and_nobody_a_process),
        cmocka_unit_test(a_majority_of_old_messages_is_none),
        cmocka_unit_test(two_new_chiefs_at_once_become_one),
        cmocka_unit_test(of_two_the_worker_dies),
        cmocka_unit_test(of_two_the_chief_dies),
        cmocka_unit_test(of_two_the_host_of_the_worker_falls_silent),
        cmocka_unit_test(of_two_the_host_of_the_chief_falls_silent),
        cmocka_unit_test(of_two_without_shared_storage_the_one_left_waits_and_ends_at_the_deadline),
        cmocka_unit_test(slow_storage_costs_the_whole_cluster_nothing),
        cmocka_unit_test(a_smaller_group_waits_for_its_storage_and_goes_on_when_it_answers),
        cmocka_unit_test(a_majority_goes_on_when_the_storage_of_the_dead_chief_only_answered),
        cmocka_unit_test(a_dead_cluster_begins_from_its_checkpoint),
        cmocka_unit_test(the_same_seed_tells_the_same_story),
    };

    return cmocka_run_group_tests_name("member/node", tests, NULL, NULL);
}
