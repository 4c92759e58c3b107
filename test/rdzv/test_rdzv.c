/* test_rdzv.c - real tasks meet, are lost, form new groups, and leave. */
#include "rdzv/kit.h"

#include "base/fault.h"

/* ---- meeting ---- */

static void two_tasks_start_form_a_group(void **state)
{
    (void)state;
    for (int round = 0; round < 3; round++) {
        struct cluster *c = new_cluster(2);

        open_node(c, 1); /* the lower rank does not run yet: the first attempt is refused */
        open_node(c, 0);
        WAIT_FOR(is_group(c, "01"));
        assert_memory_equal(c->nodes[0].key, c->nodes[1].key, 32);
        for (uint32_t i = 0; i < 2; i++) { /* the data of each task reached both tasks */
            assert_int_equal(c->nodes[i].in_view, i);
            assert_string_equal(c->nodes[i].data_addresses[0], "127.0.0.1:40000");
            assert_string_equal(c->nodes[i].data_addresses[1], "127.0.0.1:40001");
        }
        close_cluster(c);
    }
}

static void mismatched_identity_is_refused_with_both_values(void **state)
{
    struct cluster *c = new_cluster(2);
    struct rdzv_opts other = c->opts;

    (void)state;
    open_node(c, 0);
    other.ident.job_digest = "0ther";
    open_node_with(&c->nodes[1], &other);
    WAIT_FOR(c->nodes[1].code == 2);
    assert_non_null(strstr(c->nodes[1].text, "it has '0ther', the coordinator has 'j0b'"));
    WAIT_FOR(strstr(c->nodes[0].trouble, "it has '0ther'") != NULL);
    close_cluster(c);
}

static void task_of_another_cluster_is_rejected_and_does_not_end(void **state)
{
    struct cluster *c = new_cluster(2), *other = new_cluster(3);

    (void)state;
    open_node(c, 0);
    strcpy(other->addresses[0], c->addresses[0]);
    strcpy(other->addresses[1], c->addresses[0]); /* no other task is probed */
    open_node(other, 2);
    WAIT_FOR(strstr(other->nodes[2].trouble, "cannot join: it is no training task of the "
                                                      "coordinator's") != NULL);
    assert_non_null(strstr(other->nodes[2].trouble, "worker 2 (127.0.0.1:"));
    assert_int_equal(other->nodes[2].code, RUNNING);
    close_cluster(other);
    close_cluster(c);
}

static void task_of_another_cluster_started_first_is_told_and_does_not_end(void **state)
{
    struct cluster *c = new_cluster(2), *other = new_cluster(3);

    (void)state;
    strcpy(other->addresses[0], c->addresses[0]); /* no process listens yet */
    strcpy(other->addresses[1], c->addresses[0]);
    other->opts.ident.cluster_hash = "0th3r";
    open_node(other, 2);
    WAIT_FOR(other->nodes[2].state == MEMBER_LEADING);
    open_node(c, 0);
    WAIT_FOR(strstr(other->nodes[2].trouble, "cannot join: it is no training task of the "
                                                      "coordinator's") != NULL);
    assert_int_equal(other->nodes[2].code, RUNNING);
    assert_int_equal(c->nodes[0].code, RUNNING);
    close_cluster(other);
    close_cluster(c);
}

static void address_of_another_task_is_named_in_the_error(void **state)
{
    struct cluster *c = new_cluster(3);
    struct rdzv_opts lost = c->opts;
    struct rdzv_task tasks[3];

    (void)state;
    memcpy(tasks, c->tasks, sizeof(tasks));
    tasks[0].address = c->addresses[1];
    lost.tasks = tasks;
    open_node(c, 1);
    open_node_with(&c->nodes[2], &lost);
    WAIT_FOR(c->nodes[2].trace != NULL &&
                          strstr(c->nodes[2].trace, ", but worker 0 was called: its address "
                                                    "127.0.0.1:") != NULL);
    close_cluster(c);
}

static void second_process_of_a_task_joins_after_the_first_ends(void **state)
{
    struct cluster *c = new_cluster(3);
    struct node *second = &c->nodes[2];

    (void)state;
    open_node(c, 0);
    open_node(c, 1);
    WAIT_FOR(c->nodes[1].state == MEMBER_FOLLOWING);
    /* a second process of the same task, on another port that no task calls */
    second->self = 1;
    strcpy(c->addresses[1], c->addresses[2]);
    open_node_with(second, &c->opts);
    WAIT_FOR(strstr(second->trouble, "another process runs as worker 1") != NULL);
    assert_int_equal(c->nodes[1].code, RUNNING);
    assert_int_equal(c->nodes[1].state, MEMBER_FOLLOWING);
    kill_node(c, 1);
    WAIT_FOR(second->state == MEMBER_FOLLOWING);
    close_cluster(c);
}

static void second_process_of_another_job_does_not_displace_the_first(void **state)
{
    struct cluster *c = new_cluster(3);
    struct node *second = &c->nodes[2];
    struct rdzv_opts other = c->opts;

    (void)state;
    open_node(c, 0);
    open_node(c, 1);
    WAIT_FOR(c->nodes[1].state == MEMBER_FOLLOWING);
    second->self = 1;
    strcpy(c->addresses[1], c->addresses[2]);
    other.ident.job_digest = "0ther";
    open_node_with(second, &other);
    WAIT_FOR(second->code == 2);
    assert_non_null(strstr(second->text, "it has '0ther', the coordinator has 'j0b'"));
    assert_int_equal(c->nodes[1].code, RUNNING);
    assert_int_equal(c->nodes[1].state, MEMBER_FOLLOWING);
    close_cluster(c);
}

static void missing_tasks_are_named_until_the_deadline(void **state)
{
    struct cluster *c = new_cluster(2);
    struct node *chief = &c->nodes[0];
    char expected[256];

    (void)state;
    c->opts.deadline_ms = 3000;
    c->opts.rejoin_ms = 60000;
    open_node(c, 0);
    WAIT_FOR(chief->said[0] != '\0' || chief->trouble[0] != '\0');
    snprintf(expected, sizeof(expected), "worker 1 (%s): connect: Connection refused",
             c->addresses[1]);
    print_message("%s%s\n", chief->said, chief->trouble);
    assert_true(strstr(chief->said, expected) != NULL || strstr(chief->trouble, expected) != NULL);
    WAIT_FOR(chief->code == 138);
    assert_non_null(strstr(chief->text, expected));
    close_cluster(c);
}

static void address_in_use_open_fails_with_the_remedy(void **state)
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
    o.incarnation = 1;
    o.data_address = "127.0.0.1:9";
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

/* ---- losses ---- */

/* Only the closed connection can show the loss: the limit of the silence is above the guard. */
static void process_killed_a_new_view_follows_its_closed_connection(void **state)
{
    (void)state;
    for (int round = 0; round < 3; round++) {
        struct cluster *c = new_cluster(4);

        c->opts.silent_ms = 2 * WAIT_GUARD_MS;
        for (uint32_t i = 0; i < 3; i++)
            open_node(c, i);
        spawn_node(c, 3);
        WAIT_FOR(is_group(c, "0123"));
        kill(c->nodes[3].pid, SIGKILL);
        WAIT_FOR(is_group(c, "012"));
        for (uint32_t i = 0; i < 3; i++) {
            struct node *n = &c->nodes[i];

            assert_int_equal(n->code, RUNNING);
            assert_non_null(strstr(n->aborted, "worker 3 (127.0.0.1:"));
            assert_non_null(strstr(n->aborted, "was lost: its connection closed"));
            assert_memory_equal(n->key, c->nodes[0].key, 32);
        }
        reap_node(c, 3);
        close_cluster(c);
    }
}

static void leader_killed_the_lowest_survivor_leads(void **state)
{
    (void)state;
    for (int round = 0; round < 2; round++) {
        struct cluster *c = new_cluster(4);

        c->opts.silent_ms = 2 * WAIT_GUARD_MS;
        spawn_node(c, 0);
        for (uint32_t i = 1; i < 4; i++)
            open_node(c, i);
        WAIT_FOR(is_group(c, "0123"));
        kill(c->nodes[0].pid, SIGKILL);
        WAIT_FOR(is_group(c, "123"));
        for (uint32_t i = 1; i < 4; i++)
            assert_memory_equal(c->nodes[i].key, c->nodes[1].key, 32);
        WAIT_FOR(c->nodes[1].state == MEMBER_LEADING);
        reap_node(c, 0);
        close_cluster(c);
    }
}

static void parameter_server_is_in_the_view_and_follows_the_next_leader(void **state)
{
    struct cluster *c = new_cluster(4);
    struct rdzv_opts serves;

    (void)state;
    snprintf(c->names[3], sizeof(c->names[3]), "ps 0");
    c->tasks[3] = (struct rdzv_task){ "ps", 0, c->addresses[3], c->names[3] };
    c->opts.n_ps = c->opts.min_ps = 1;
    serves = c->opts;
    serves.n_devices = 0;
    serves.n_servers = 4;
    serves.ident.devices = serves.ident.kernels = "other";
    open_node_with(&c->nodes[3], &serves);
    wait_disturb(100000000); /* it seeks: it does not lead */
    assert_int_equal(c->nodes[3].state, MEMBER_SEEKING);
    for (uint32_t i = 0; i < 3; i++)
        open_node(c, i);
    WAIT_FOR(is_group(c, "0123"));
    for (uint32_t i = 0; i < 4; i++) {
        assert_int_equal(c->nodes[i].n_servers[2], 0);
        assert_int_equal(c->nodes[i].n_servers[3], 4);
    }
    assert_int_equal(c->nodes[3].state, MEMBER_FOLLOWING);
    kill_node(c, 0);
    WAIT_FOR(is_group(c, "123"));
    WAIT_FOR(c->nodes[1].state == MEMBER_LEADING);
    assert_int_equal(c->nodes[1].n_servers[2], 4);
    close_cluster(c);
}

static void returning_chief_becomes_coordinator_and_knows_the_newest_state(void **state)
{
    struct cluster *c = open_cluster(3);
    uint64_t generation;

    (void)state;
    for (uint32_t i = 0; i < 3; i++)
        post(&c->nodes[i], do_step);
    kill_node(c, 0);
    WAIT_FOR(is_group(c, "12"));
    post(&c->nodes[1], do_step);
    post(&c->nodes[2], do_step);
    generation = c->nodes[1].generation;
    start_counting(c);
    reopen_node(c, 0);
    WAIT_FOR(is_group(c, "012") && c->nodes[0].state == MEMBER_LEADING);
    assert_true(c->nodes[0].generation > generation);
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(c->nodes[i].newest_step, 2);
        assert_int_equal(c->nodes[i].newest_member, 1);
        assert_memory_equal(c->nodes[i].key, c->nodes[1].key, 32);
    }
    assert_string_equal(c->nodes[0].data_addresses[2], "127.0.0.1:40002");
    assert_int_equal(c->nodes[1].n_pauses, 1); /* at a step boundary: no step was aborted */
    assert_int_equal(c->nodes[1].n_aborts, 0);
    WAIT_FOR(c->nodes[1].state == MEMBER_FOLLOWING);
    kill_node(c, 2); /* it leads: it detects the next loss */
    WAIT_FOR(is_group(c, "01"));
    close_cluster(c);
}

static void two_tasks_one_lost_the_other_continues_with_the_lease(void **state)
{
    struct cluster *c = new_cluster(2);

    (void)state;
    c->opts.has_lease = true;
    open_node(c, 0);
    open_node(c, 1);
    WAIT_FOR(is_group(c, "01"));
    kill_node(c, 0);
    WAIT_FOR(is_group(c, "1"));
    pthread_mutex_lock(&lock);
    assert_int_equal(c->lease_holder, 1);
    assert_int_equal(c->n_lease_members, 1);
    pthread_mutex_unlock(&lock);
    reopen_node(c, 0);
    WAIT_FOR(is_group(c, "01"));
    close_cluster(c);
}

static void task_with_blocked_loop_is_lost_by_name_and_rejoins(void **state)
{
    struct cluster *c = open_cluster(3);

    (void)state;
    /* waits for some heartbeats of each task, so that the phase is known */
    assert_int_equal(fault_arm("rdzv.beat.in=delay:1@8", NULL), 0);
    WAIT_FOR(fault_fired());
    assert_int_equal(fault_arm(NULL, NULL), 0);
    post(&c->nodes[1], do_hang);
    WAIT_FOR(is_group(c, "02"));
    for (uint32_t i = 0; i < 3; i += 2) {
        assert_non_null(strstr(c->nodes[i].aborted, "worker 1 (127.0.0.1:"));
        assert_non_null(strstr(c->nodes[i].aborted, "silent for "));
        assert_non_null(strstr(c->nodes[i].aborted, "reduce for "));
    }
    __atomic_store_n(&c->nodes[1].is_resumed, true, __ATOMIC_RELEASE);
    WAIT_FOR(is_group(c, "012"));
    close_cluster(c);
}

/* The sockets of a stopped process stay open, and the kernel accepts connections: only the silence
 * shows the loss. */
static void suspended_leader_is_replaced_and_follows_after_resume(void **state)
{
    struct cluster *c = new_cluster(3);
    const char *said;

    (void)state;
    spawn_node(c, 0);
    open_node(c, 1);
    open_node(c, 2);
    WAIT_FOR(is_group(c, "012"));
    start_counting(c);
    kill(c->nodes[0].pid, SIGSTOP);
    WAIT_FOR(is_group(c, "12"));
    assert_non_null(strstr(c->nodes[2].aborted, "worker 0 (127.0.0.1:"));
    said = strstr(c->nodes[2].aborted, "silent for ");
    assert_non_null(said);
    assert_true(strtod(said + 11, NULL) * 1000 >= MEMBER_SILENCE_MS - 100);
    WAIT_FOR(c->nodes[1].state == MEMBER_LEADING);
    kill(c->nodes[0].pid, SIGCONT);
    WAIT_FOR(is_group(c, "012"));
    WAIT_FOR(c->nodes[1].state == MEMBER_FOLLOWING); /* it is the coordinator again */
    close_cluster(c);
}

static void local_failure_only_that_task_ends(void **state)
{
    struct cluster *c = open_cluster(3);

    (void)state;
    post(&c->nodes[1], do_fail_local);
    WAIT_FOR(c->nodes[1].code == 138);
    assert_non_null(strstr(c->nodes[1].text, "worker 1"));
    assert_non_null(strstr(c->nodes[1].text, "the device fell off"));
    WAIT_FOR(is_group(c, "02"));
    assert_non_null(strstr(c->nodes[2].aborted, "the device fell off"));
    close_cluster(c);
}

static void invalid_input_ends_the_job_on_every_task(void **state)
{
    struct cluster *c = open_cluster(3);

    (void)state;
    post(&c->nodes[1], do_fail_input);
    for (uint32_t i = 0; i < 3; i++) {
        WAIT_FOR(c->nodes[i].code == 2);
        assert_non_null(strstr(c->nodes[i].text, "the loss is NaN"));
    }
    close_cluster(c);
}

/* ---- leaving ---- */

static void complete_job_ends_everywhere_with_0(void **state)
{
    struct cluster *c = open_cluster(3);

    (void)state;
    assert_int_equal(fault_arm("rdzv.complete.in=delay:0@2", NULL), 0);
    post(&c->nodes[1], do_complete);
    post(&c->nodes[2], do_complete);
    WAIT_FOR(fault_fired());
    /* two heartbeats on each link follow: an end would have been sent before */
    assert_int_equal(fault_arm("rdzv.beat.in=delay:0@8", NULL), 0);
    WAIT_FOR(fault_fired());
    assert_int_equal(fault_arm(NULL, NULL), 0);
    /* the chief must verify the last checkpoint first */
    assert_int_equal(c->nodes[1].code, RUNNING);
    post(&c->nodes[0], do_complete);
    for (uint32_t i = 0; i < 3; i++) {
        WAIT_FOR(c->nodes[i].code != RUNNING);
        assert_int_equal(c->nodes[i].code, 0);
        assert_string_equal(c->nodes[i].text, "the job is complete");
        assert_string_equal(c->nodes[i].aborted, "");
    }
    close_cluster(c);
}

static void stopped_task_leaves_with_143_and_the_others_continue(void **state)
{
    struct cluster *c = open_cluster(3);

    (void)state;
    post(&c->nodes[1], do_stop);
    WAIT_FOR(c->nodes[1].code == 143);
    WAIT_FOR(is_group(c, "02"));
    assert_int_equal(c->nodes[2].n_aborts, 0); /* all tasks stopped at the same step boundary */
    assert_int_equal(c->nodes[2].n_pauses, 1);
    close_cluster(c);
}

static void all_tasks_stopped_at_once_leave_with_143(void **state)
{
    struct cluster *c = open_cluster(3);

    (void)state;
    for (uint32_t i = 0; i < 3; i++)
        post(&c->nodes[i], do_stop);
    for (uint32_t i = 0; i < 3; i++)
        WAIT_FOR(c->nodes[i].code == 143);
    close_cluster(c);
}

static void stop_before_the_first_view_leaves_at_once(void **state)
{
    struct cluster *c = new_cluster(3);

    (void)state;
    c->opts.rejoin_ms = 60000;
    open_node(c, 0);
    open_node(c, 1);
    WAIT_FOR(c->nodes[1].state == MEMBER_FOLLOWING);
    post(&c->nodes[1], do_stop);
    WAIT_FOR(c->nodes[1].code == 143);
    post(&c->nodes[0], do_stop);
    WAIT_FOR(c->nodes[0].code == 143);
    close_cluster(c);
}

static void trace_of_a_regroup_has_each_message(void **state)
{
    static const char *const lines[] = {
        "link of worker 2: closed by the peer\n",
        "to worker 1: OVER generation ",
        " worker 2 continue: worker 2 (127.0.0.1:",
        "from worker 1: READY generation ",
        "to worker 1: VIEW ",
        " of 2: worker 0 holds 0, worker 1 holds 0",
    };
    struct cluster *c = open_cluster(3);
    const char *at;

    (void)state;
    kill_node(c, 2);
    WAIT_FOR(is_group(c, "01"));
    pthread_mutex_lock(&lock);
    at = c->nodes[0].trace;
    for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++) {
        at = strstr(at, lines[i]);
        if (at == NULL)
            print_error("no '%s' in:\n%s", lines[i], c->nodes[0].trace);
        assert_non_null(at);
    }
    assert_null(strstr(c->nodes[0].trace, "BEAT"));
    pthread_mutex_unlock(&lock);
    close_cluster(c);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_tasks_start_form_a_group),
        cmocka_unit_test(mismatched_identity_is_refused_with_both_values),
        cmocka_unit_test(task_of_another_cluster_is_rejected_and_does_not_end),
        cmocka_unit_test(task_of_another_cluster_started_first_is_told_and_does_not_end),
        cmocka_unit_test(address_of_another_task_is_named_in_the_error),
        cmocka_unit_test(second_process_of_a_task_joins_after_the_first_ends),
        cmocka_unit_test(second_process_of_another_job_does_not_displace_the_first),
        cmocka_unit_test(missing_tasks_are_named_until_the_deadline),
        cmocka_unit_test(address_in_use_open_fails_with_the_remedy),
        cmocka_unit_test(process_killed_a_new_view_follows_its_closed_connection),
        cmocka_unit_test(leader_killed_the_lowest_survivor_leads),
        cmocka_unit_test(parameter_server_is_in_the_view_and_follows_the_next_leader),
        cmocka_unit_test(returning_chief_becomes_coordinator_and_knows_the_newest_state),
        cmocka_unit_test(two_tasks_one_lost_the_other_continues_with_the_lease),
        cmocka_unit_test(task_with_blocked_loop_is_lost_by_name_and_rejoins),
        cmocka_unit_test(suspended_leader_is_replaced_and_follows_after_resume),
        cmocka_unit_test(local_failure_only_that_task_ends),
        cmocka_unit_test(invalid_input_ends_the_job_on_every_task),
        cmocka_unit_test(complete_job_ends_everywhere_with_0),
        cmocka_unit_test(stopped_task_leaves_with_143_and_the_others_continue),
        cmocka_unit_test(all_tasks_stopped_at_once_leave_with_143),
        cmocka_unit_test(stop_before_the_first_view_leaves_at_once),
        cmocka_unit_test(trace_of_a_regroup_has_each_message),
    };

    run_as_task(argc, argv);
    return cmocka_run_group_tests_name("rdzv/rdzv", tests, NULL, NULL);
}
