/* test_node_reach.c - data paths that are dead while every link to the leader is open. */
#include "member/node_kit.h"

enum {
    DETECTION_MS = 2500, /* of the simulated communicator */
    GOES_ON_MS = DETECTION_MS + MEMBER_CAUSE_MS + MEMBER_REACH_MS + 1200,
};

static void cut_data(struct sim *s, uint32_t a, uint32_t b, bool both_ways)
{
    sim_cut(s, a, b, SIM_DATA);
    if (both_ways)
        sim_cut(s, b, a, SIM_DATA);
}

static void isolate(struct sim *s, uint32_t rank, uint32_t world)
{
    for (uint32_t i = 0; i < world; i++)
        if (i != rank)
            cut_data(s, rank, i, true);
}

static uint32_t n_training(const struct sim *s, uint32_t world)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < world; i++)
        n += sim_generation(s, i) > 0;
    return n;
}

static void task_cut_off_on_the_data_path_is_evicted_and_the_others_step(void **state)
{
    (void)state;
    for (uint32_t victim = 0; victim < 4; victim++)
        for (uint64_t seed = 1; seed <= 10; seed++) {
            struct sim *s = START_CLUSTER(.seed = seed);
            uint64_t step;
            char name[32];

            isolate(s, victim, 4);
            sim_advance(s, GOES_ON_MS + (victim == 0 ? MEMBER_SETTLE_MS + MEMBER_ATTACH_MS : 0));
            step = sim_newest(s);
            EXPECT(s, n_training(s, 4) == 3 && sim_generation(s, victim) == 0);
            sim_advance(s, 300);
            EXPECT(s, sim_newest(s) > step);
            EXPECT(s, sim_alive(s) == 4);
            snprintf(name, sizeof(name), "worker %u", victim);
            for (uint32_t i = 0; i < 4; i++)
                EXPECT(s, i == victim ||
                              strncmp(member_node_cause(sim_node(s, i)), name, strlen(name)) == 0);
            sim_free(s);
        }
}

static void isolated_task_interrupts_the_group_once_and_joins_after_repair(void **state)
{
    (void)state;
    for (uint32_t victim = 0; victim < 4; victim++) {
        struct sim *s = START_CLUSTER(.seed = victim);
        uint32_t other = victim == 0 ? 1 : 0;
        uint64_t step, healthy, generation;

        sim_advance(s, 2000);
        step = sim_newest(s);
        sim_advance(s, 2000);
        healthy = sim_newest(s) - step; /* steps in 2 s */
        isolate(s, victim, 4);
        sim_advance(s, GOES_ON_MS + 1500);
        step = sim_newest(s);
        generation = sim_generation(s, other);
        sim_advance(s, 60000);
        EXPECT(s, sim_alive(s) == 4);
        EXPECT(s, sim_generation(s, other) == generation && generation > 0);
        EXPECT(s, sim_newest(s) - step > healthy * 30 * 9 / 10);
        sim_heal(s);
        EXPECT(s, sim_until_together(s, 4, MEMBER_RETEST_MS_MAX + 2000));
        sim_free(s);
    }
}

static void quarantine_continues_under_another_leader(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 10; seed++) {
        struct sim *s = START_CLUSTER(.seed = seed);

        isolate(s, 3, 4);
        sim_advance(s, GOES_ON_MS);
        EXPECT(s, n_training(s, 4) == 3 && sim_generation(s, 3) == 0);
        sim_kill(s, 0);
        sim_advance(s, 30000);
        EXPECT(s, sim_generation(s, 1) > 0 && sim_generation(s, 1) == sim_generation(s, 2));
        EXPECT(s, sim_generation(s, 3) == 0);
        sim_heal(s);
        EXPECT(s, sim_until_together(s, 3, MEMBER_RETEST_MS_MAX + 2000));
        sim_free(s);
    }
}

static void task_that_loses_large_packets_is_evicted_at_the_first_interruption(void **state)
{
    (void)state;
    for (uint32_t victim = 0; victim < 4; victim++)
        for (uint64_t seed = 1; seed <= 10; seed++) {
            struct sim *s = START_CLUSTER(.seed = seed);
            uint32_t from = seed % 2 == 0 ? victim : SIM_ALL, to = seed % 2 == 0 ? SIM_ALL : victim;

            sim_cut(s, from, to, SIM_LARGE);
            sim_advance(s, GOES_ON_MS + (victim == 0 ? MEMBER_SETTLE_MS : 0));
            EXPECT(s, n_training(s, 4) == 3 && sim_generation(s, victim) == 0);
            sim_advance(s, 20000);
            EXPECT(s, n_training(s, 4) == 3 && sim_generation(s, victim) == 0);
            sim_heal(s);
            EXPECT(s, sim_until_together(s, 4, MEMBER_RETEST_MS_MAX + 2000));
            sim_free(s);
        }
}

static void dead_path_in_one_direction_evicts_one_task(void **state)
{
    (void)state;
    for (uint32_t a = 0; a < 4; a++)
        for (uint32_t b = 0; b < 4; b++) {
            struct sim *s = a == b ? NULL : START_CLUSTER(.seed = 1 + a * 4 + b);

            if (s == NULL)
                continue;
            cut_data(s, a, b, false);
            sim_advance(s, GOES_ON_MS + 2000);
            EXPECT(s, n_training(s, 4) == 3);
            EXPECT(s, sim_alive(s) == 4);
            sim_free(s);
        }
}

static void dead_path_to_the_leader_ambiguous_end_the_leader_stays(void **state)
{
    (void)state;
    for (uint32_t other = 1; other < 4; other++)
        for (uint64_t seed = 1; seed <= 20; seed++) {
            struct sim *s = START_CLUSTER(.seed = seed);

            cut_data(s, seed % 2 == 0 ? 0 : other, seed % 2 == 0 ? other : 0, false);
            sim_advance(s, GOES_ON_MS);
            EXPECT(s, sim_generation(s, 0) > 0 && sim_generation(s, other) == 0);
            EXPECT(s, n_training(s, 4) == 3);
            sim_free(s);
        }
}

static void group_that_needs_all_waits_for_the_path_and_no_task_ends(void **state)
{
    struct sim *s = START_CLUSTER(.min_world = 4);

    (void)state;
    isolate(s, 2, 4);
    sim_advance(s, GOES_ON_MS);
    EXPECT(s, n_training(s, 4) == 0);
    sim_advance(s, 4000);
    sim_heal(s);
    EXPECT(s, sim_until_together(s, 4, 16000));
    EXPECT(s, sim_alive(s) == 4);
    sim_free(s);
}

static void task_without_data_path_that_is_needed_all_end_at_the_deadline_with_the_reason(
    void **state)
{
    (void)state;
    for (uint32_t victim = 0; victim < 4; victim++)
        for (uint32_t late = 0; late < 2; late++) {
            struct sim *s = sim_new(&(struct sim_opts){
                .tell = true, .world = 4, .min_world = 4, .seed = 1 + victim, .rejoin_ms = 500 });
            char name[40];

            if (late > 0)
                EXPECT(s, sim_until_step(s, 5, 60000));
            isolate(s, victim, 4);
            if (!sim_until_ended(s, 100000))
                log_and_fail(s, "the tasks wait without an end");
            snprintf(name, sizeof(name), "worker %u (10.0.0.%u:1): in quarantine", victim, victim);
            for (uint32_t i = 0; i < 4; i++)
                expect_exit(s, i, 138, name);
            sim_free(s);
        }
}

/* Each new process joins, and its data path is dead: the group must not try it again each time. */
static void task_that_every_view_needs_is_lost_repeatedly_and_rejoins_each_time(void **state)
{
    struct sim *s = START_CLUSTER(.seed = 3, .min_world = 4);

    (void)state;
    for (int i = 0; i < 3 * MEMBER_LOSSES; i++) {
        sim_kill(s, 3);
        sim_advance(s, 100);
        sim_start(s, 3);
        EXPECT(s, sim_until_together(s, 4, MEMBER_QUARANTINE_MS / 2));
    }
    sim_free(s);
}

static void host_without_data_path_that_restarts_interrupts_the_group_once(void **state)
{
    (void)state;
    for (uint32_t absent_ms = 100; absent_ms <= 6000; absent_ms += 5900) {
        struct sim *s = START_CLUSTER(.seed = 3);
        uint64_t step, healthy, generation;

        step = sim_newest(s);
        sim_advance(s, 2000);
        healthy = sim_newest(s) - step;
        isolate(s, 3, 4);
        sim_advance(s, GOES_ON_MS);
        step = sim_newest(s);
        generation = sim_generation(s, 0);
        EXPECT(s, generation > 0 && sim_generation(s, 3) == 0);
        for (int i = 0; i < 12; i++) {
            sim_kill(s, 3);
            sim_advance(s, absent_ms);
            sim_start(s, 3);
            sim_advance(s, 5000);
        }
        EXPECT(s, sim_generation(s, 0) == generation);
        EXPECT(s, sim_newest(s) - step > healthy * 30 * 9 / 10);
        sim_heal(s);
        EXPECT(s, sim_until_together(s, 4, MEMBER_RETEST_MS_MAX + 2000));
        sim_free(s);
    }
}

/* The data path of each new process passes its tests, and the process dies a moment later. */
static void task_whose_processes_die_is_quarantined_for_longer_each_time(void **state)
{
    struct sim *s = START_CLUSTER(.restart_ms = 100);
    uint64_t generation = sim_generation(s, 0), first = 0, second = 0;

    (void)state;
    for (uint32_t half = 0; half < 2; half++) {
        for (uint32_t i = 0; i < 120; i++) {
            sim_advance(s, 1000);
            if (sim_generation(s, 3) > 0)
                sim_kill(s, 3);
        }
        first = half == 0 ? sim_generation(s, 0) - generation : first;
        second = sim_generation(s, 0) - generation;
    }
    second -= first;
    EXPECT(s, first <= 2 * (MEMBER_LOSSES + 6)); /* without a quarantine more than 200 */
    EXPECT(s, second <= 2 * 4);
    EXPECT(s, sim_until_together(s, 4, MEMBER_QUARANTINE_MS_MAX + 5000));
    sim_free(s);
}

static void two_tasks_dead_path_one_continues_alone(void **state)
{
    struct sim *s = START_CLUSTER(.world = 2, .min_world = 1);
    uint64_t step;

    (void)state;
    isolate(s, 1, 2);
    sim_advance(s, GOES_ON_MS + MEMBER_MINORITY_MS);
    step = sim_newest(s);
    EXPECT(s, n_training(s, 2) == 1);
    sim_advance(s, 500);
    EXPECT(s, sim_newest(s) > step && sim_alive(s) == 2);
    sim_free(s);
}

static void new_process_of_a_quarantined_task_with_repaired_paths_joins_at_once(void **state)
{
    struct sim *s = START_CLUSTER();

    (void)state;
    isolate(s, 3, 4);
    sim_advance(s, 15000);
    sim_heal(s);
    sim_kill(s, 3);
    sim_advance(s, 100);
    sim_start(s, 3);
    EXPECT(s, sim_until_together(s, 4, 3000));
    sim_free(s);
}

static void status_reports_a_quarantine_only_while_it_lasts(void **state)
{
    struct member_peer p;
    struct sim *s = START_CLUSTER();

    (void)state;
    isolate(s, 3, 4);
    sim_advance(s, GOES_ON_MS);
    member_node_peer(sim_node(s, 0), 3, &p);
    EXPECT(s, p.quarantine_until_ms > sim_now(s));
    EXPECT(s, strncmp(p.last_error, "in quarantine for ", 18) == 0);
    sim_heal(s);
    EXPECT(s, sim_until_together(s, 4, MEMBER_QUARANTINE_MS + 5000));
    member_node_peer(sim_node(s, 0), 3, &p);
    EXPECT(s, p.is_in_view && p.quarantine_until_ms == 0);
    EXPECT(s, p.last_error[0] == '\0');
    sim_free(s);
}

static void expect_cause(struct sim *s, uint32_t rank, const char *text)
{
    if (strstr(member_node_cause(sim_node(s, rank)), text) != NULL)
        return;
    fputs(sim_log(s), stderr);
    fail_msg("worker %u: '%s', expected '%s'", rank, member_node_cause(sim_node(s, rank)), text);
}

static void suspended_leader_blames_itself(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 20; seed++) {
        struct sim *s = START_CLUSTER(.seed = seed);
        char all[4096];

        sim_pause(s, 0);
        sim_advance(s, 3000 + 200 * seed);
        sim_continue(s, 0);
        sim_advance(s, 40);
        snprintf(all, sizeof(all), "%s", sim_last_line(s, 0));
        EXPECT(s,
               strstr(all, "worker 1 (10.0.0.1:1), ") == NULL || strstr(all, "was lost") == NULL);
        EXPECT(s,
               strstr(all, "worker 2 (10.0.0.2:1), ") == NULL || strstr(all, "was lost") == NULL);
        EXPECT(s,
               strstr(all, "worker 3 (10.0.0.3:1), ") == NULL || strstr(all, "was lost") == NULL);
        expect_group(s, 4, 0, 3000);
        sim_free(s);
    }
}

static void leader_that_receives_nothing_blames_itself(void **state)
{
    struct sim *s = START_CLUSTER();

    (void)state;
    sim_cut(s, 0, SIM_ALL, SIM_CONTROL);
    for (uint32_t i = 1; i < 4; i++)
        sim_cut(s, i, 0, SIM_CONTROL);
    sim_advance(s, 1400);
    expect_cause(s, 0, "worker 0 (10.0.0.0:1) received nothing from any task");
    expect_cause(s, 1, "worker 0 (10.0.0.0:1)");
    sim_heal(s);
    EXPECT(s, sim_until_together(s, 4, 20000));
    sim_free(s);
}

/* The followers leave the leader while its cable is unplugged; the leader receives that after the
 * cable is plugged in again. */
static void leader_whose_messages_are_lost_blames_itself(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 20; seed++) {
        struct sim *s = START_CLUSTER(.seed = seed);

        sim_reset_log(s);
        sim_cut(s, 0, SIM_ALL, SIM_CONTROL); /* messages of the other tasks still arrive */
        sim_advance(s, 1150 + 5 * seed);
        sim_heal(s);
        sim_advance(s, 500);
        EXPECT(s, strstr(sim_log(s), "worker 0  > TROUBLE: worker 1 ") == NULL);
        EXPECT(s, strstr(sim_log(s), "worker 0  > TROUBLE: worker 2 ") == NULL);
        EXPECT(s, strstr(sim_log(s), "worker 0  > TROUBLE: worker 3 ") == NULL);
        EXPECT(s, sim_until_together(s, 4, 20000));
        sim_free(s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(task_cut_off_on_the_data_path_is_evicted_and_the_others_step),
        cmocka_unit_test(isolated_task_interrupts_the_group_once_and_joins_after_repair),
        cmocka_unit_test(quarantine_continues_under_another_leader),
        cmocka_unit_test(task_that_loses_large_packets_is_evicted_at_the_first_interruption),
        cmocka_unit_test(dead_path_in_one_direction_evicts_one_task),
        cmocka_unit_test(dead_path_to_the_leader_ambiguous_end_the_leader_stays),
        cmocka_unit_test(group_that_needs_all_waits_for_the_path_and_no_task_ends),
        cmocka_unit_test(task_without_data_path_that_is_needed_all_end_at_the_deadline_with_the_reason),
        cmocka_unit_test(task_that_every_view_needs_is_lost_repeatedly_and_rejoins_each_time),
        cmocka_unit_test(host_without_data_path_that_restarts_interrupts_the_group_once),
        cmocka_unit_test(task_whose_processes_die_is_quarantined_for_longer_each_time),
        cmocka_unit_test(two_tasks_dead_path_one_continues_alone),
        cmocka_unit_test(new_process_of_a_quarantined_task_with_repaired_paths_joins_at_once),
        cmocka_unit_test(status_reports_a_quarantine_only_while_it_lasts),
        cmocka_unit_test(suspended_leader_blames_itself),
        cmocka_unit_test(leader_that_receives_nothing_blames_itself),
        cmocka_unit_test(leader_whose_messages_are_lost_blames_itself),
    };

    return cmocka_run_group_tests_name("member/node_reach", tests, NULL, NULL);
}
