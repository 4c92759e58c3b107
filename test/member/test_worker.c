#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "member/member.h"

static void every_pair_of_state_and_event_is_decided_exactly_once(void **state)
{
    uint32_t n, decided[MEMBER_STATES][MEMBER_EVENTS] = { 0 };
    const struct member_move *moves = member_moves(&n);

    (void)state;
    for (uint32_t i = 0; i < n; i++)
        decided[moves[i].from][moves[i].on]++;
    for (int s = 0; s < MEMBER_STATES; s++) {
        for (int e = 0; e < MEMBER_EVENTS; e++) {
            if (decided[s][e] + member_ignored(s, e) != 1)
                fail_msg("%s on %s is decided %u times and ignored %d times", member_state_name(s),
                         member_event_name(e), decided[s][e], member_ignored(s, e));
        }
    }
}

static void every_state_can_be_reached_and_can_reach_gone(void **state)
{
    uint32_t n;
    const struct member_move *moves = member_moves(&n);
    bool from_start[MEMBER_STATES] = { [MEMBER_JOINING] = true };
    bool to_gone[MEMBER_STATES] = { [MEMBER_GONE] = true };

    (void)state;
    for (int round = 0; round < MEMBER_STATES; round++) {
        for (uint32_t i = 0; i < n; i++) {
            from_start[moves[i].to] |= from_start[moves[i].from];
            to_gone[moves[i].from] |= to_gone[moves[i].to];
        }
    }
    for (int s = 0; s < MEMBER_STATES; s++) {
        assert_true(from_start[s]);
        assert_true(to_gone[s]);
    }
}

static void what_enters_a_state_is_what_the_state_means(void **state)
{
    uint32_t n;
    const struct member_move *moves = member_moves(&n);

    (void)state;
    for (uint32_t i = 0; i < n; i++) {
        const struct member_move *m = &moves[i];
        bool was_training = m->from == MEMBER_ACTIVE || m->from == MEMBER_DRAINING;

        assert_int_not_equal(m->from, MEMBER_GONE); /* the end is the end */
        if (m->to == MEMBER_GONE) /* a trainer is stopped before the end, others only end */
            assert_int_equal(m->act, was_training ? MEMBER_DO_ABORT : MEMBER_DO_END);
        if (m->to == MEMBER_JOINING)
            assert_int_equal(m->act, MEMBER_DO_JOIN);
        if (m->to == MEMBER_ACTIVE)
            assert_int_equal(m->act, MEMBER_DO_TRAIN);
        if (m->to == MEMBER_DRAINING)
            assert_int_equal(m->act, MEMBER_DO_DRAIN);
        if (m->to == MEMBER_LEAVING)
            assert_int_equal(m->act, MEMBER_DO_LEAVE);
        if (was_training) /* this version does not regroup */
            assert_true(m->to >= MEMBER_DRAINING);
    }
}

struct row {
    enum member_event on;
    enum member_state to;
    enum member_action act;
};

static void live(const struct row *rows, uint32_t n)
{
    struct member_worker w;

    member_worker_init(&w, 100);
    assert_int_equal(w.state, MEMBER_JOINING);
    for (uint32_t i = 0; i < n; i++) {
        const struct member_move *m = NULL;
        enum member_state before = w.state;

        assert_int_equal(member_worker_step(&w, rows[i].on, 200 + i, &m), rows[i].act);
        assert_int_equal(w.state, rows[i].to);
        if (m == NULL) {
            assert_int_equal(rows[i].act, MEMBER_DO_NOTHING);
            assert_int_equal(before, w.state);
        } else {
            assert_int_equal(m->from, before);
            assert_int_equal(m->to, w.state);
            assert_int_equal(m->on, rows[i].on);
        }
        if (w.state != before)
            assert_int_equal(w.since_ms, 200 + i);
    }
}
#define LIVE(...)                                                                                  \
    live((const struct row[]){ __VA_ARGS__ },                                                      \
         sizeof((const struct row[]){ __VA_ARGS__ }) / sizeof(struct row))
#define ROW(ev_, to_, do_) { MEMBER_EV_##ev_, MEMBER_##to_, MEMBER_DO_##do_ }

static void a_task_joins_waits_trains_and_leaves(void **state)
{
    (void)state;
    LIVE(ROW(START, JOINING, JOIN), ROW(COORD_LOST, JOINING, JOIN), ROW(ADMITTED, WAITING, NOTHING),
         ROW(ADMITTED, WAITING, NOTHING), ROW(GROUP_READY, ACTIVE, TRAIN),
         ROW(DEADLINE, ACTIVE, NOTHING), ROW(COMPLETE, LEAVING, LEAVE), ROW(STOP, LEAVING, NOTHING),
         ROW(LEFT, GONE, END), ROW(COORD_LOST, GONE, NOTHING));
}

static void a_coordinator_that_restarts_while_we_wait_is_joined_again(void **state)
{
    (void)state;
    LIVE(ROW(START, JOINING, JOIN), ROW(ADMITTED, WAITING, NOTHING), ROW(COORD_LOST, JOINING, JOIN),
         ROW(COORD_LOST, JOINING, JOIN), ROW(ADMITTED, WAITING, NOTHING),
         ROW(GROUP_OVER, JOINING, JOIN), ROW(DEADLINE, GONE, END));
}

static void a_drain_ends_by_leaving_and_a_lost_peer_ends_it_at_once(void **state)
{
    (void)state;
    LIVE(ROW(START, JOINING, JOIN), ROW(GROUP_READY, ACTIVE, TRAIN), ROW(STOP, DRAINING, DRAIN),
         ROW(STOP, DRAINING, DRAIN), ROW(STOPPED, LEAVING, LEAVE), ROW(LEFT, GONE, END));
    LIVE(ROW(START, JOINING, JOIN), ROW(GROUP_READY, ACTIVE, TRAIN), ROW(STOP, DRAINING, DRAIN),
         ROW(GROUP_OVER, GONE, ABORT), ROW(STOPPED, GONE, NOTHING));
}

static void names_are_those_of_the_log(void **state)
{
    (void)state;
    for (int s = 0; s < MEMBER_STATES; s++)
        assert_true(strlen(member_state_name(s)) > 0);
    for (int e = 0; e < MEMBER_EVENTS; e++)
        assert_true(strlen(member_event_name(e)) > 0);
    for (int a = MEMBER_DO_NOTHING; a <= MEMBER_DO_END; a++)
        assert_true(strlen(member_action_name(a)) > 0);
    assert_string_equal(member_state_name(MEMBER_DRAINING), "draining");
    assert_string_equal(member_event_name(MEMBER_EV_GROUP_OVER), "group_over");
    assert_string_equal(member_action_name(MEMBER_DO_ABORT), "abort");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_pair_of_state_and_event_is_decided_exactly_once),
        cmocka_unit_test(every_state_can_be_reached_and_can_reach_gone),
        cmocka_unit_test(what_enters_a_state_is_what_the_state_means),
        cmocka_unit_test(a_task_joins_waits_trains_and_leaves),
        cmocka_unit_test(a_coordinator_that_restarts_while_we_wait_is_joined_again),
        cmocka_unit_test(a_drain_ends_by_leaving_and_a_lost_peer_ends_it_at_once),
        cmocka_unit_test(names_are_those_of_the_log),
    };

    return cmocka_run_group_tests_name("member/worker", tests, NULL, NULL);
}
