/* test_rdzv.c - real tasks meet, lose each other, and leave. */
#include "rdzv/kit.h"

/* ---- meeting ---- */

static void two_tasks_meet_within_milliseconds(void **state)
{
    uint64_t best_ms = UINT64_MAX;

    (void)state;
    for (int round = 0; round < 5; round++) {
        struct cluster *c = new_cluster(2);
        uint64_t start_ms = clock_ms(), last_ms;

        open_node(c, 1); /* the coordinator is not there yet: the first attempt fails */
        open_node(c, 0);
        wait_for_views(c);
        last_ms =
            c->nodes[0].view_ms > c->nodes[1].view_ms ? c->nodes[0].view_ms : c->nodes[1].view_ms;
        best_ms = last_ms - start_ms < best_ms ? last_ms - start_ms : best_ms;
        assert_int_equal(c->nodes[1].n_members, 2);
        assert_memory_equal(c->nodes[0].key, c->nodes[1].key, 32);
        assert_string_equal(c->nodes[0].waiting, ""); /* a fast start is silent */
        close_cluster(c);
    }
    print_message("two tasks met within %u ms\n", (unsigned)best_ms);
    assert_true(best_ms < 250); /* 5 to 40 on a machine with nothing else to do */
}

static void a_coordinator_that_comes_late_is_found_at_once(void **state)
{
    struct cluster *c = new_cluster(2);
    uint64_t start_ms;

    (void)state;
    open_node(c, 1);
    usleep(300000);
    start_ms = clock_ms();
    open_node(c, 0);
    wait_for_views(c);
    assert_true(c->nodes[1].view_ms - start_ms < 400); /* a pause is at most 15 ms * 1.5 here */
    close_cluster(c);
}

static void a_mismatch_is_refused_with_both_sides(void **state)
{
    struct cluster *c = new_cluster(2);
    struct rdzv_opts other = c->opts;

    (void)state;
    open_node(c, 0);
    other.ident.job_digest = "0ther";
    open_node_with(&c->nodes[1], &other);
    WAIT_FOR(SOON_MS, c->nodes[1].code == 2);
    assert_non_null(strstr(c->nodes[1].text, "refused by the coordinator worker 0 (127.0.0.1:"));
    assert_non_null(strstr(c->nodes[1].text, "it has '0ther', the coordinator has 'j0b'"));
    close_cluster(c);
}

static void who_calls_a_task_that_is_not_the_coordinator_is_told_who_is(void **state)
{
    struct cluster *c = new_cluster(3);
    struct rdzv_opts other = c->opts;

    (void)state;
    open_node(c, 1);
    other.coordinator = 1;
    open_node_with(&c->nodes[2], &other);
    WAIT_FOR(SOON_MS, c->nodes[2].code == 2);
    assert_non_null(strstr(c->nodes[2].text, "this is worker 1 (127.0.0.1:"));
    assert_non_null(strstr(c->nodes[2].text, "; the coordinator is worker 0 (127.0.0.1:"));
    close_cluster(c);
}

static void a_second_process_of_a_task_takes_its_place_and_the_first_leaves(void **state)
{
    struct cluster *c = new_cluster(3);
    struct node *second = &c->nodes[2];

    (void)state;
    open_node(c, 0);
    open_node(c, 1);
    WAIT_FOR(SOON_MS, c->nodes[1].state == MEMBER_WAITING);
    /* the same task once more, on another port, where nobody looks */
    second->self = 1;
    strcpy(c->addresses[1], c->addresses[2]);
    open_node_with(second, &c->opts);
    WAIT_FOR(SOON_MS, c->nodes[1].code == 2);
    assert_non_null(
        strstr(c->nodes[1].text, "another process joined as this task; this one leaves"));
    WAIT_FOR(SOON_MS, second->state == MEMBER_WAITING);
    close_cluster(c);
}

static void waiting_names_who_is_missing_and_why_until_the_deadline(void **state)
{
    struct cluster *c = new_cluster(2), *alone = new_cluster(2);
    struct node *chief = &c->nodes[0], *worker = &alone->nodes[1];
    char expected[256];

    (void)state;
    c->opts.deadline_ms = alone->opts.deadline_ms = 2500;
    open_node(c, 0);
    open_node(alone, 1);
    WAIT_FOR(3000, chief->waiting[0] != '\0');
    WAIT_FOR(3000, worker->waiting[0] != '\0');
    snprintf(expected, sizeof(expected),
             "waiting 2 s for 1 of 2 tasks: worker 1 (%s): connect: Connection refused",
             c->addresses[1]);
    assert_string_equal(chief->waiting, expected);
    snprintf(expected, sizeof(expected),
             "cannot reach the coordinator worker 0 (%s), 2 s: connect: Connection refused",
             alone->addresses[0]);
    assert_string_equal(worker->waiting, expected);
    WAIT_FOR(SOON_MS, chief->code == 138);
    WAIT_FOR(SOON_MS, worker->code == 138);
    assert_non_null(strstr(chief->text, "s of waiting for 1 of 2 tasks: worker 1 (127.0.0.1:"));
    assert_non_null(strstr(worker->text, "s: cannot reach the coordinator worker 0 (127.0.0.1:"));
    close_cluster(c);
    close_cluster(alone);
}

static void an_address_in_use_is_an_error_that_says_so(void **state)
{
    struct cluster *c = new_cluster(2);
    struct rdzv_opts o = c->opts;
    struct rdzv *r = NULL;
    struct loop *l;
    struct err err;

    (void)state;
    open_node(c, 0);
    assert_int_equal(loop_open(&l, NULL), 0);
    o.loop = l;
    o.progress = &c->nodes[1].progress;
    o.listen = c->addresses[0];
    assert_int_equal(rdzv_open(&o, &r, &err), ERR_IO);
    assert_non_null(strstr(
        err.text, ": address already in use, perhaps by another run of this task; `ss -ltnp"));
    o.listen = "192.0.2.1:7777";
    assert_int_equal(rdzv_open(&o, &r, &err), ERR_INPUT);
    assert_non_null(strstr(err.text, "listen on 192.0.2.1:7777: not an address of this host"));
    o.listen = "here";
    assert_int_equal(rdzv_open(&o, &r, &err), ERR_INPUT);
    assert_string_equal(err.text, "listen on 'here': expected HOST:PORT");
    o.listen = c->addresses[1];
    o.token = "two\nlines";
    assert_int_equal(rdzv_open(&o, &r, &err), ERR_INPUT);
    assert_null(r);
    loop_close(l);
    close_cluster(c);
}

/* ---- losing ---- */

static void a_dead_task_is_everybodys_news_within_milliseconds(void **state)
{
    struct cluster *c = open_cluster(4);
    uint64_t start_ms = clock_ms();

    (void)state;
    post(&c->nodes[2], do_die);
    for (uint32_t i = 0; i < 4; i++)
        if (i != 2)
            WAIT_FOR(SOON_MS, c->nodes[i].code != RUNNING);
    assert_true(clock_ms() - start_ms < SILENT_MS); /* by the closed stream, not by silence */
    for (uint32_t i = 0; i < 4; i++) {
        if (i == 2)
            continue;
        assert_int_equal(c->nodes[i].code, 138);
        assert_non_null(strstr(c->nodes[i].text, "worker 2 (127.0.0.1:"));
        assert_non_null(strstr(c->nodes[i].text, ") is lost: its connection closed; last heard "));
        assert_string_equal(c->nodes[i].aborted, c->nodes[i].text);
    }
    close_cluster(c);
}

static void a_task_with_a_stuck_loop_is_silent_and_named(void **state)
{
    struct cluster *c = open_cluster(3);

    (void)state;
    usleep(150000); /* a heartbeat, so that the phase is known */
    post(&c->nodes[1], do_hang);
    for (uint32_t i = 0; i < 3; i++)
        WAIT_FOR(SOON_MS, c->nodes[i].code == 138);
    for (uint32_t i = 0; i < 3; i++) { /* itself too, when it wakes up */
        assert_non_null(strstr(c->nodes[i].text, "worker 1 (127.0.0.1:"));
        assert_non_null(strstr(c->nodes[i].text, ") is lost: silent for 0."));
        assert_non_null(strstr(c->nodes[i].text, " in phase train, step 7 since "));
    }
    close_cluster(c);
}

static void a_task_that_was_stuck_while_it_waited_may_come_again(void **state)
{
    struct cluster *c = new_cluster(3);

    (void)state;
    open_node(c, 0);
    open_node(c, 1);
    WAIT_FOR(SOON_MS, c->nodes[1].state == MEMBER_WAITING);
    post(&c->nodes[1], do_hang);
    WAIT_FOR(SOON_MS, c->nodes[1].state == MEMBER_JOINING);
    WAIT_FOR(SOON_MS, c->nodes[1].state == MEMBER_WAITING);
    close_cluster(c);
}

static void a_dead_coordinator_ends_the_others(void **state)
{
    struct cluster *c = open_cluster(3);

    (void)state;
    post(&c->nodes[0], do_die);
    for (uint32_t i = 1; i < 3; i++) {
        WAIT_FOR(SOON_MS, c->nodes[i].code == 138);
        assert_non_null(strstr(c->nodes[i].text, "lost the coordinator worker 0 (127.0.0.1:"));
    }
    close_cluster(c);
}

static void an_error_on_one_task_is_told_to_all(void **state)
{
    struct cluster *c = open_cluster(3);

    (void)state;
    post(&c->nodes[1], do_fail);
    WAIT_FOR(SOON_MS, c->nodes[1].code == 2);
    assert_string_equal(c->nodes[1].text, "loss is NaN");
    for (uint32_t i = 0; i < 3; i += 2) {
        WAIT_FOR(SOON_MS, c->nodes[i].code == 138);
        assert_non_null(strstr(c->nodes[i].text, ") failed in step 8: loss is NaN"));
    }
    close_cluster(c);
}

/* ---- leaving ---- */

static void nobody_leaves_complete_before_the_coordinator_does(void **state)
{
    struct cluster *c = open_cluster(3);

    (void)state;
    post(&c->nodes[1], do_complete);
    post(&c->nodes[2], do_complete);
    WAIT_FOR(SOON_MS, c->nodes[1].state == MEMBER_LEAVING && c->nodes[2].state == MEMBER_LEAVING);
    usleep((SILENT_MS + 200) * 1000); /* a checkpoint takes its time: those parked are not silent */
    assert_int_equal(c->nodes[1].code, RUNNING);
    post(&c->nodes[0], do_complete);
    for (uint32_t i = 0; i < 3; i++) {
        WAIT_FOR(SOON_MS, c->nodes[i].code != RUNNING);
        assert_int_equal(c->nodes[i].code, 0);
        assert_string_equal(c->nodes[i].text, "the job is complete");
        assert_string_equal(c->nodes[i].aborted, "");
    }
    close_cluster(c);
}

static void complete_is_not_safe_if_the_coordinator_dies_first(void **state)
{
    struct cluster *c = open_cluster(2);

    (void)state;
    post(&c->nodes[1], do_complete);
    WAIT_FOR(SOON_MS, c->nodes[1].state == MEMBER_LEAVING);
    post(&c->nodes[0], do_die);
    WAIT_FOR(SOON_MS, c->nodes[1].code == 138);
    assert_non_null(strstr(c->nodes[1].text, "complete here, but the coordinator worker 0 ("));
    close_cluster(c);
}

static void a_drain_ends_with_143_where_it_was_asked_for(void **state)
{
    struct cluster *c = open_cluster(2);

    (void)state;
    post(&c->nodes[1], do_stop);
    WAIT_FOR(SOON_MS, c->nodes[1].n_drains == 1);
    assert_int_equal(c->nodes[0].n_drains, 0); /* the data plane tells the others */
    post(&c->nodes[1], do_stopped_here);
    post(&c->nodes[0], do_stopped_with_a_peer);
    WAIT_FOR(SOON_MS, c->nodes[1].code == 143);
    WAIT_FOR(SOON_MS, c->nodes[0].code == 138);
    assert_string_equal(c->nodes[0].text, "stopped with the group: worker 1 was asked to leave");
    close_cluster(c);
}

static void a_stop_before_the_group_is_complete_saves_nothing(void **state)
{
    struct cluster *c = new_cluster(3);

    (void)state;
    open_node(c, 0);
    open_node(c, 1);
    WAIT_FOR(SOON_MS, c->nodes[1].state == MEMBER_WAITING);
    post(&c->nodes[1], do_stop);
    WAIT_FOR(SOON_MS, c->nodes[1].code == 143);
    post(&c->nodes[0], do_stop);
    WAIT_FOR(SOON_MS, c->nodes[0].code == 143);
    close_cluster(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_tasks_meet_within_milliseconds),
        cmocka_unit_test(a_coordinator_that_comes_late_is_found_at_once),
        cmocka_unit_test(a_mismatch_is_refused_with_both_sides),
        cmocka_unit_test(who_calls_a_task_that_is_not_the_coordinator_is_told_who_is),
        cmocka_unit_test(a_second_process_of_a_task_takes_its_place_and_the_first_leaves),
        cmocka_unit_test(waiting_names_who_is_missing_and_why_until_the_deadline),
        cmocka_unit_test(an_address_in_use_is_an_error_that_says_so),
        cmocka_unit_test(a_dead_task_is_everybodys_news_within_milliseconds),
        cmocka_unit_test(a_task_with_a_stuck_loop_is_silent_and_named),
        cmocka_unit_test(a_task_that_was_stuck_while_it_waited_may_come_again),
        cmocka_unit_test(a_dead_coordinator_ends_the_others),
        cmocka_unit_test(an_error_on_one_task_is_told_to_all),
        cmocka_unit_test(nobody_leaves_complete_before_the_coordinator_does),
        cmocka_unit_test(complete_is_not_safe_if_the_coordinator_dies_first),
        cmocka_unit_test(a_drain_ends_with_143_where_it_was_asked_for),
        cmocka_unit_test(a_stop_before_the_group_is_complete_saves_nothing),
    };

    return cmocka_run_group_tests_name("rdzv/rdzv", tests, NULL, NULL);
}
