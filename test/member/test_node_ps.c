/* test_node_ps.c - scenarios with parameter servers, which have the highest ranks. */
#include "member/node_kit.h"

enum { FIRST_PS = 3 }; /* after three workers */

static struct sim *start_with(uint32_t n_ps, struct sim_opts o)
{
    o.world = FIRST_PS + n_ps;
    o.n_ps = n_ps;
    o.tell = true;
    return start_together(o);
}
#define START(n_ps_, ...) start_with(n_ps_, (struct sim_opts){ __VA_ARGS__ })

static void cluster_with_parameter_servers_trains_and_all_tasks_end_complete(void **state)
{
    (void)state;
    for (uint32_t n_ps = 1; n_ps <= 3; n_ps++) {
        struct sim *s = START(n_ps);

        expect_group(s, FIRST_PS + n_ps, 0, 100);
        sim_steps(s, sim_newest(s) + 3);
        EXPECT(s, sim_until_ended(s, 2000));
        for (uint32_t i = 0; i < FIRST_PS + n_ps; i++)
            expect_exit(s, i, 0, "");
        sim_free(s);
    }
}

static void parameter_server_starts_first_it_joins_soon_after_the_workers_start(void **state)
{
    struct sim *s = sim_new(&(struct sim_opts){ .world = 5, .n_ps = 2, .seed = 1, .tell = true });

    (void)state;
    sim_advance(s, 1);
    for (uint32_t i = 0; i < FIRST_PS; i++)
        sim_kill(s, i);
    sim_advance(s, 10000);
    EXPECT(s, member_node_state(sim_node(s, 3)) == MEMBER_SEEKING);
    expect_said(s, 3, "worker 0");
    for (uint32_t i = 0; i < FIRST_PS; i++)
        sim_start(s, i);
    EXPECT(s, sim_until_together(s, 5, 1000));
    sim_free(s);
}

/* Kills tasks at each moment of the start and of the first steps; `mask` has their ranks. */
static void kill_at_each_moment(uint32_t n_ps, uint32_t mask)
{
    for (uint64_t ms = 0; ms < 400; ms += 3) {
        uint32_t world = FIRST_PS + n_ps;
        struct sim *s = sim_new(&(struct sim_opts){ .world = world,
                                                    .n_ps = n_ps,
                                                    .seed = ms,
                                                    .start_ms = 40,
                                                    .rejoin_ms = 1000,
                                                    .restart_ms = 100,
                                                    .save_every = 5,
                                                    .tell = true });

        sim_advance(s, ms);
        for (uint32_t i = 0; i < world; i++)
            if (mask >> i & 1)
                sim_kill(s, i);
        EXPECT(s, sim_until_together(s, world, 5000));
        EXPECT(s, sim_until_step(s, sim_newest(s) + 3, 5000));
        sim_steps(s, sim_newest(s) + 2);
        EXPECT(s, sim_until_ended(s, 5000));
        for (uint32_t i = 0; i < world; i++)
            expect_exit(s, i, 0, "");
        sim_free(s);
    }
}

static void parameter_server_dies_at_any_moment_the_group_forms_again(void **state)
{
    (void)state;
    kill_at_each_moment(1, 1 << 3);
    kill_at_each_moment(2, 1 << 4);
    kill_at_each_moment(3, 1 << 3 | 1 << 5);
}

static void parameter_server_and_worker_die_together_the_group_forms_again(void **state)
{
    (void)state;
    kill_at_each_moment(1, 1 << 1 | 1 << 3);
    kill_at_each_moment(2, 1 << 2 | 1 << 3);
}

static void parameter_server_and_leader_die_together_the_group_forms_again(void **state)
{
    (void)state;
    kill_at_each_moment(1, 1 << 0 | 1 << 3);
    kill_at_each_moment(2, 1 << 0 | 1 << 4);
}

static void one_of_two_parameter_servers_dies_the_group_continues_without_it(void **state)
{
    struct sim *s = START(2);

    (void)state;
    sim_kill(s, 4);
    expect_group(s, 4, 0, 300);
    EXPECT(s,
           strstr(member_node_cause(sim_node(s, 0)), "ps 1 (10.0.0.4:1), in compute for ") != NULL);
    sim_start(s, 4);
    expect_group(s, 5, 0, 1000);
    sim_free(s);
}

static void last_parameter_server_dies_the_group_waits_for_it(void **state)
{
    struct sim *s = START(1);
    uint64_t held;

    (void)state;
    sim_kill(s, 3);
    sim_advance(s, 5000);
    held = sim_newest(s);
    sim_advance(s, 5000);
    EXPECT(s, sim_newest(s) == held);
    expect_said(s, 0, "ps 0 (10.0.0.3:1)");
    expect_said(s, 0, "no parameter server is present");
    sim_start(s, 3);
    expect_group(s, 4, 0, 1000);
    sim_free(s);
}

static void last_parameter_server_does_not_return_all_tasks_end_at_the_deadline(void **state)
{
    struct sim *s = START(1, .deadline_ms = 8000);

    (void)state;
    sim_kill(s, 3);
    EXPECT(s, sim_until_ended(s, 9500));
    for (uint32_t i = 0; i < FIRST_PS; i++)
        expect_exit(s, i, 138, "no parameter server is present");
    sim_free(s);
}

static void leader_dies_a_worker_leads_and_the_parameter_servers_follow(void **state)
{
    struct sim *s = START(3);

    (void)state;
    sim_kill(s, 0);
    expect_group(s, 5, 1, 300);
    sim_kill(s, 1);
    expect_group(s, 4, 2, 6000); /* a minority needs the lease */
    sim_free(s);
}

static void leader_falls_silent_a_worker_leads_and_the_parameter_servers_follow(void **state)
{
    struct sim *s = START(2);

    (void)state;
    sim_power_off(s, 0);
    expect_group(s, 4, 1, 4000);
    sim_free(s);
}

static void all_workers_die_the_parameter_servers_join_their_successors(void **state)
{
    struct sim *s = START(2, .save_every = 2);

    (void)state;
    for (uint32_t i = 0; i < FIRST_PS; i++)
        sim_kill(s, i);
    sim_advance(s, 3000);
    EXPECT(s, sim_alive(s) == 2);
    for (uint32_t i = 0; i < FIRST_PS; i++)
        sim_start(s, i);
    EXPECT(s, sim_until_together(s, 5, 6000));
    EXPECT(s, sim_until_step(s, 8, 6000));
    sim_free(s);
}

static void all_workers_die_for_good_the_parameter_servers_end_at_the_deadline(void **state)
{
    struct sim *s = START(2, .deadline_ms = 5000);

    (void)state;
    for (uint32_t i = 0; i < FIRST_PS; i++)
        sim_kill(s, i);
    EXPECT(s, sim_until_ended(s, 6500));
    for (uint32_t i = 3; i < 5; i++)
        expect_exit(s, i, 138, "no training task leads: worker 0");
    sim_free(s);
}

/* A parameter server holds no step. Its deadline is reset by the steps of the group, so that many
 * short losses of leaders do not add up. */
static void many_leaders_die_the_deadline_of_a_parameter_server_starts_again(void **state)
{
    struct sim *s = START(1, .deadline_ms = 3000, .restart_ms = 100, .rejoin_ms = 500);

    (void)state;
    for (int i = 0; i < 20; i++) {
        sim_power_off(s, 0);
        sim_advance(s, 2500);
        sim_start(s, 0);
        EXPECT(s, sim_until_together(s, 4, 4000));
        EXPECT(s, sim_until_step(s, sim_newest(s) + 2, 1000));
    }
    EXPECT(s, sim_exit_code(s, 3) == SIM_RUNNING);
    sim_free(s);
}

/* At the start and after a death, for each min_ps of three parameter servers. */
static void fewer_parameter_servers_than_min_ps_the_group_waits_for_one(void **state)
{
    (void)state;
    for (uint32_t min_ps = 2; min_ps <= 3; min_ps++) {
        uint32_t lost = 4 - min_ps; /* one more than the group may lose */
        struct sim *s = START(3, .min_ps = min_ps);
        uint64_t held;

        for (uint32_t i = 1; i < lost; i++) {
            sim_kill(s, FIRST_PS + i);
            expect_group(s, 6 - i, 0, 300);
        }
        sim_kill(s, FIRST_PS);
        sim_advance(s, 5000);
        held = sim_newest(s);
        sim_advance(s, 5000);
        EXPECT(s, sim_newest(s) == held);
        expect_said(s, 0, "ps 0 (10.0.0.3:1)");
        expect_said(s, 0,
                    min_ps == 2 ? "1 parameter server is present, and min_ps is 2"
                                : "2 parameter servers are present, and min_ps is 3");
        sim_start(s, FIRST_PS);
        expect_group(s, 7 - lost, 0, 1000);
        sim_free(s);
    }
}

static void parameter_servers_are_absent_at_the_start_min_ps_decides(void **state)
{
    (void)state;
    for (uint32_t min_ps = 1; min_ps <= 3; min_ps++) {
        struct sim *s = sim_new(&(struct sim_opts){ .world = 6,
                                                    .n_ps = 3,
                                                    .min_ps = min_ps,
                                                    .n_absent = 2,
                                                    .seed = min_ps,
                                                    .rejoin_ms = 300,
                                                    .tell = true });

        EXPECT(s, sim_until_together(s, 4, 5000) == (min_ps == 1));
        EXPECT(s, sim_until_step(s, 3, 3000) == (min_ps == 1));
        sim_start(s, 4);
        EXPECT(s, sim_until_together(s, 5, 5000) == (min_ps <= 2));
        sim_start(s, 5);
        EXPECT(s, sim_until_together(s, 6, 5000));
        EXPECT(s, sim_until_step(s, sim_newest(s) + 3, 5000));
        sim_free(s);
    }
}

static void fewer_parameter_servers_than_min_ps_for_good_all_tasks_end_at_the_deadline(void **state)
{
    struct sim *s = START(2, .min_ps = 2, .deadline_ms = 8000);

    (void)state;
    sim_kill(s, 4);
    EXPECT(s, sim_until_ended(s, 9500));
    for (uint32_t i = 0; i < 4; i++)
        expect_exit(s, i, 138,
                    i < FIRST_PS ? "1 parameter server is present, and min_ps is 2" : "");
    sim_free(s);
}

/* The leave of a parameter server is not refused: the others wait for its successor. */
static void parameter_server_leaves_below_min_ps_the_others_wait(void **state)
{
    struct sim *s = START(2, .min_ps = 2);
    uint64_t held;

    (void)state;
    sim_stop(s, 4, false);
    sim_advance(s, 3000);
    expect_exit(s, 4, 143, "");
    held = sim_newest(s);
    sim_advance(s, 3000);
    EXPECT(s, sim_newest(s) == held);
    sim_start(s, 4);
    expect_group(s, 5, 0, 1000);
    sim_free(s);
}

static void parameter_servers_are_present_min_world_counts_workers_alone(void **state)
{
    struct sim *s = START(3, .min_world = 3);
    uint64_t held;

    (void)state;
    sim_kill(s, 2); /* five tasks are left, two of them workers */
    sim_advance(s, 1000);
    held = sim_newest(s);
    sim_advance(s, 3000);
    EXPECT(s, sim_newest(s) == held);
    expect_said(s, 0, "worker 2");
    sim_start(s, 2);
    expect_group(s, 6, 0, 1000);
    sim_free(s);
}

/* One worker of three with three parameter servers is no majority. */
static void parameter_servers_are_present_the_majority_counts_workers_alone(void **state)
{
    struct sim *s = START(3, .no_lease = true);
    uint64_t held;

    (void)state;
    sim_kill(s, 1);
    sim_kill(s, 2);
    sim_advance(s, 1000);
    held = sim_newest(s);
    sim_advance(s, 5000);
    EXPECT(s, sim_newest(s) == held);
    sim_free(s);
}

/* All workers are present: no other group can train, so that the view needs no lease. */
static void parameter_server_is_absent_the_view_needs_no_lease(void **state)
{
    struct sim *s = START(2);

    (void)state;
    sim_storage(s, SIM_ALL, SIM_STORAGE_HANGS);
    sim_kill(s, 4);
    expect_group(s, 4, 0, 500);
    EXPECT(s, !member_node_needs_lease(sim_node(s, 0)));
    sim_free(s);
}

static void parameter_server_leaves_the_others_continue(void **state)
{
    struct sim *s = START(2);

    (void)state;
    sim_stop(s, 4, false);
    expect_group(s, 4, 0, 300);
    expect_exit(s, 4, 143, "");
    sim_free(s);
}

static void chief_leaves_a_worker_leads(void **state)
{
    struct sim *s = START(2);

    (void)state;
    sim_stop(s, 0, false);
    expect_group(s, 4, 1, MEMBER_GATHER_LEAVE_MS + MEMBER_SETTLE_MS + 300);
    expect_exit(s, 0, 143, "state saved");
    sim_free(s);
}

static void all_tasks_leave_in_any_order_all_end(void **state)
{
    static const uint64_t apart_ms[] = { 0, 3, 30, 100, 400 };

    (void)state;
    for (size_t k = 0; k < 25; k++) {
        struct sim *s = START(2, .grace_ms = 2000);
        uint64_t held = sim_newest(s);

        for (uint32_t i = 0; i < 5; i++) {
            sim_stop(s, (i + (uint32_t)k) % 5, false);
            sim_advance(s, apart_ms[k / 5]);
        }
        EXPECT(s, sim_until_ended(s, 3000));
        for (uint32_t i = 0; i < 5; i++)
            expect_exit(s, i, 143, "");
        EXPECT(s, sim_checkpoint(s) >= held);
        sim_free(s);
    }
}

static void all_workers_leave_the_parameter_servers_wait_for_others(void **state)
{
    struct sim *s = START(2);

    (void)state;
    for (uint32_t i = 0; i < FIRST_PS; i++)
        sim_stop(s, i, false);
    sim_advance(s, 3000);
    EXPECT(s, sim_alive(s) == 2);
    for (uint32_t i = 0; i < FIRST_PS; i++)
        sim_start(s, i);
    EXPECT(s, sim_until_together(s, 5, 3000));
    sim_free(s);
}

static void parameter_server_hangs_its_process_ends_and_the_others_continue(void **state)
{
    struct sim *s = START(2, .deadline_ms = 5000);

    (void)state;
    sim_stuck(s, 4);
    EXPECT(s, sim_until_together(s, 4, 30000));
    expect_exit(s, 4, 138, "does not stop");
    EXPECT(s, sim_until_step(s, sim_newest(s) + 2, 1000));
    sim_free(s);
}

/* A worker that hangs is found although the parameter servers report no position. */
static void worker_hangs_it_is_evicted_and_not_a_parameter_server(void **state)
{
    struct sim *s = START(2);

    (void)state;
    sim_stuck(s, 2);
    EXPECT(s, sim_until_together(s, 4, 5000));
    expect_exit(s, 2, 138, "worker 2");
    sim_free(s);
}

/* The leader is cut off from the workers alone. It keeps the parameter server, without which the
 * others cannot train, until the parameter server has waited for a view in vain. */
static void leader_without_workers_keeps_the_parameter_server_it_joins_the_majority(void **state)
{
    struct sim *s = START(1, .min_world = 2);
    uint64_t first = sim_generation(s, 1);

    (void)state;
    for (uint32_t i = 1; i < FIRST_PS; i++) {
        sim_cut(s, 0, i, SIM_BOTH);
        sim_cut(s, i, 0, SIM_BOTH);
    }
    for (int i = 0; i < 120 && sim_generation(s, 3) <= first; i++)
        sim_advance(s, 100);
    EXPECT(s, sim_generation(s, 3) > first && sim_generation(s, 3) == sim_generation(s, 1));
    EXPECT(s, sim_until_step(s, sim_newest(s) + 3, 2000));
    sim_free(s);
}

/* Runs until `rank` trains alone with the tasks of its side, a mask, and checks that the others took no
 * step. */
static void expect_side(struct sim *s, uint32_t rank, uint64_t side, uint64_t limit_ms)
{
    uint64_t held = sim_newest(s), until = sim_now(s) + limit_ms;

    while (sim_held(s, rank) < held + 3 && sim_now(s) < until)
        sim_advance(s, 10);
    EXPECT(s, sim_held(s, rank) >= held + 3);
    for (uint32_t i = 0; i < FIRST_PS; i++)
        EXPECT(s, side >> i & 1 || sim_held(s, i) <= held + 1);
}

/* Two of three parameter servers have every row, if each row is on two. */
static void majority_of_workers_lacks_rows_the_side_with_every_row_trains(void **state)
{
    (void)state;
    for (uint32_t with_chief = 0; with_chief < 2; with_chief++) {
        struct sim *s = START(3, .replicas = 2);
        uint64_t side = with_chief ? 1 << 0 | 1 << 4 | 1 << 5 : 1 << 2 | 1 << 4 | 1 << 5;

        sim_partition(s, side);
        expect_side(s, with_chief ? 0 : 2, side, MEMBER_SILENCE_MS + MEMBER_MINORITY_MS + 2000);
        if (!with_chief)
            expect_said(s, 0,
                        "the absent parameter servers may have rows that the present ones lack");
        sim_heal(s);
        EXPECT(s, sim_until_together(s, 6, 8000));
        sim_free(s);
    }
}

static void majority_of_workers_has_no_parameter_server_the_other_side_trains(void **state)
{
    struct sim *s = START(3, .replicas = 2);
    uint64_t side = 1 << 2 | 7 << FIRST_PS;

    (void)state;
    sim_partition(s, side);
    expect_side(s, 2, side, MEMBER_SILENCE_MS + 2000);
    sim_heal(s);
    EXPECT(s, sim_until_together(s, 6, 8000));
    sim_free(s);
}

/* Hosts that fall silent look like another side. */
static void all_holders_of_rows_and_a_worker_fall_silent_the_others_go_on_after_a_while(
    void **state)
{
    struct sim *s = START(3, .replicas = 2);

    (void)state;
    sim_power_off(s, 2);
    sim_power_off(s, 4);
    sim_power_off(s, 5);
    sim_advance(s, MEMBER_SILENCE_MS + 2000);
    expect_said(s, 0, "may train elsewhere");
    expect_group(s, 3, 0, MEMBER_ROWS_MS);
    sim_free(s);
}

/* No process listens there, so that no other side has the rows: the others do not wait for it. */
static void all_holders_of_rows_and_a_worker_die_the_others_go_on_at_once(void **state)
{
    struct sim *s = START(3, .replicas = 2);

    (void)state;
    sim_kill(s, 2);
    sim_kill(s, 4);
    sim_kill(s, 5);
    expect_group(s, 3, 0, 500);
    sim_free(s);
}

/* Without a worker on the other side no group can train there. */
static void all_holders_of_rows_fall_silent_the_others_go_on_at_once(void **state)
{
    struct sim *s = START(3, .replicas = 2);

    (void)state;
    sim_power_off(s, 4);
    sim_power_off(s, 5);
    expect_group(s, 4, 0, MEMBER_SILENCE_MS + 500);
    sim_free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(majority_of_workers_lacks_rows_the_side_with_every_row_trains),
        cmocka_unit_test(majority_of_workers_has_no_parameter_server_the_other_side_trains),
        cmocka_unit_test(all_holders_of_rows_and_a_worker_fall_silent_the_others_go_on_after_a_while),
        cmocka_unit_test(all_holders_of_rows_and_a_worker_die_the_others_go_on_at_once),
        cmocka_unit_test(all_holders_of_rows_fall_silent_the_others_go_on_at_once),
        cmocka_unit_test(cluster_with_parameter_servers_trains_and_all_tasks_end_complete),
        cmocka_unit_test(parameter_server_starts_first_it_joins_soon_after_the_workers_start),
        cmocka_unit_test(parameter_server_dies_at_any_moment_the_group_forms_again),
        cmocka_unit_test(parameter_server_and_worker_die_together_the_group_forms_again),
        cmocka_unit_test(parameter_server_and_leader_die_together_the_group_forms_again),
        cmocka_unit_test(one_of_two_parameter_servers_dies_the_group_continues_without_it),
        cmocka_unit_test(last_parameter_server_dies_the_group_waits_for_it),
        cmocka_unit_test(last_parameter_server_does_not_return_all_tasks_end_at_the_deadline),
        cmocka_unit_test(leader_dies_a_worker_leads_and_the_parameter_servers_follow),
        cmocka_unit_test(leader_falls_silent_a_worker_leads_and_the_parameter_servers_follow),
        cmocka_unit_test(all_workers_die_the_parameter_servers_join_their_successors),
        cmocka_unit_test(all_workers_die_for_good_the_parameter_servers_end_at_the_deadline),
        cmocka_unit_test(many_leaders_die_the_deadline_of_a_parameter_server_starts_again),
        cmocka_unit_test(fewer_parameter_servers_than_min_ps_the_group_waits_for_one),
        cmocka_unit_test(parameter_servers_are_absent_at_the_start_min_ps_decides),
        cmocka_unit_test(fewer_parameter_servers_than_min_ps_for_good_all_tasks_end_at_the_deadline),
        cmocka_unit_test(parameter_server_leaves_below_min_ps_the_others_wait),
        cmocka_unit_test(parameter_servers_are_present_min_world_counts_workers_alone),
        cmocka_unit_test(parameter_servers_are_present_the_majority_counts_workers_alone),
        cmocka_unit_test(parameter_server_is_absent_the_view_needs_no_lease),
        cmocka_unit_test(parameter_server_leaves_the_others_continue),
        cmocka_unit_test(chief_leaves_a_worker_leads),
        cmocka_unit_test(all_tasks_leave_in_any_order_all_end),
        cmocka_unit_test(all_workers_leave_the_parameter_servers_wait_for_others),
        cmocka_unit_test(parameter_server_hangs_its_process_ends_and_the_others_continue),
        cmocka_unit_test(worker_hangs_it_is_evicted_and_not_a_parameter_server),
        cmocka_unit_test(leader_without_workers_keeps_the_parameter_server_it_joins_the_majority),
    };

    return cmocka_run_group_tests_name("member/node_ps", tests, NULL, NULL);
}
