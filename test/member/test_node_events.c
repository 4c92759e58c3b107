/* test_node_events.c - one node and single events, in orders that the simulator does not
 * produce. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "member/node.h"

enum { WORLD = 3, OTHER_INCARNATION = 700 };

static const struct member_ident ident = { "", "", "", "", "", "", "", "", "", "" };

struct rig {
    bool wants_lease; /* a LEASE action that takes the lease was seen */
    struct member_progress progress; /* reported with the next ticks; phase NULL: none */
    struct member_node *node;
    uint64_t now_ms;
    uint32_t n[MEMBER_END + 1]; /* number of actions of each kind since the last reset */
    uint32_t probed[WORLD];
    uint64_t generation; /* of the last TRAIN */
    uint32_t n_members;  /* of the last TRAIN */
    int refused[WORLD];  /* code of the last REFUSE to each */
    /* the last log line; the last WAIT to each */
    char said[MEMBER_TEXT_BYTES], told[WORLD][MEMBER_TEXT_BYTES];
    int code;            /* of END */
    char text[MEMBER_TEXT_BYTES];
};

static void perform(struct rig *r)
{
    struct member_action a;

    while (member_node_next(r->node, &a)) {
        r->n[a.kind]++;
        if (a.kind == MEMBER_PROBE)
            r->probed[a.rank]++;
        if (a.kind == MEMBER_TRAIN) {
            r->generation = a.view->generation;
            r->n_members = a.view->n_members;
        }
        if (a.kind == MEMBER_SEND_MEMBER && a.msg->kind == MEMBER_MSG_REFUSE)
            r->refused[a.rank] = a.msg->code;
        if (a.kind == MEMBER_SEND_MEMBER && a.msg->kind == MEMBER_MSG_WAIT)
            snprintf(r->told[a.rank], sizeof(r->told[0]), "%s", a.msg->text);
        if (a.kind == MEMBER_LEASE && a.token != UINT64_MAX)
            r->wants_lease = true;
        if (a.kind == MEMBER_LOG)
            snprintf(r->said, sizeof(r->said), "%s", a.text);
        if (a.kind == MEMBER_END) {
            r->code = a.code;
            strncpy(r->text, a.text, sizeof(r->text) - 1);
        }
    }
}

static void handle(struct rig *r, struct member_event e)
{
    member_node_handle(r->node, &e, r->now_ms);
    perform(r);
}

static void tick(struct rig *r, uint64_t ms)
{
    for (uint64_t end = r->now_ms + ms; r->now_ms < end;) {
        r->now_ms += MEMBER_TICK_MS;
        handle(r, (struct member_event){ .kind = MEMBER_EV_TICK, .progress = r->progress.phase != NULL ? &r->progress : NULL });
    }
}

/* Returns a node with the lowest rank of three: it leads. */
static struct rig make_rig(bool has_lease)
{
    static const char *const names[WORLD] = { "worker 0", "worker 1", "worker 2" };
    static const char *const addresses[WORLD] = { "a:1", "b:1", "c:1" };
    struct rig r = { .now_ms = 1000 };

    r.node = member_node_new(&(struct member_node_opts){ .world = WORLD,
                                                         .incarnation = 1,
                                                         .names = names,
                                                         .addresses = addresses,
                                                         .ident = &ident,
                                                         .n_devices = 1,
                                                         .min_world = has_lease ? 1 : 2,
                                                         .has_lease = has_lease,
                                                         .rejoin_ms = 100,
                                                         .deadline_ms = 60000,
                                                         .grace_ms = 5000 },
                             r.now_ms);
    assert_non_null(r.node);
    handle(&r, (struct member_event){ .kind = MEMBER_EV_START });
    return r;
}

static struct rig rig_new(void)
{
    return make_rig(false);
}

static struct rig rig_with_lease(void)
{
    return make_rig(true);
}

static void hear(struct rig *r, uint32_t rank, struct member_msg m)
{
    m.text = "";
    m.progress.phase = "";
    handle(r, (struct member_event){ .kind = MEMBER_EV_RECEIVED_IN, .rank = rank, .msg = &m });
}

static void join(struct rig *r, uint32_t rank)
{
    hear(r, rank, (struct member_msg){ .kind = MEMBER_MSG_JOIN,
                                       .incarnation = OTHER_INCARNATION + rank,
                                       .ident = &ident,
                                       .n_devices = 1 });
    hear(r, rank, (struct member_msg){ .kind = MEMBER_MSG_READY });
}

/* Returns a node that trains with worker 1; worker 2 never started. */
static struct rig rig_of_two(void)
{
    struct rig r = rig_new();

    handle(&r, (struct member_event){ .kind = MEMBER_EV_OPENED });
    join(&r, 1);
    tick(&r, 1000);
    assert_int_equal(r.n[MEMBER_TRAIN], 1);
    handle(&r, (struct member_event){ .kind = MEMBER_EV_CONNECTED, .generation = r.generation });
    return r;
}

/* The result of a probe is as old as its start. With two open probes, the result of the first could
 * be taken for that of the second. */
static void probe_open_no_second_probe_is_started(void **state)
{
    struct rig r = rig_of_two();

    (void)state;
    assert_int_equal(r.probed[2], 1); /* that probe is not answered yet */
    handle(&r, (struct member_event){ .kind = MEMBER_EV_IN_CLOSED, .rank = 1, .text = "its connection closed" });
    handle(&r, (struct member_event){ .kind = MEMBER_EV_ABORTED, .generation = r.generation });
    tick(&r, 1000);
    assert_true(r.probed[1] > 0);
    assert_int_equal(r.probed[2], 1);
    handle(&r, (struct member_event){ .kind = MEMBER_EV_PROBE_FAILED, .rank = 2, .closed = MEMBER_CLOSED, .text = "no answer" });
    tick(&r, 1000);
    assert_int_equal(r.probed[2], 2);
    member_node_free(r.node);
}

static void leader_asked_to_regroup_pauses_once_and_publishes_the_same_members(void **state)
{
    struct rig r = rig_of_two();
    uint64_t before = r.generation;

    (void)state;
    handle(&r, (struct member_event){ .kind = MEMBER_EV_REGROUP, .text = "lanes move" });
    assert_int_equal(r.n[MEMBER_PAUSE], 1);
    assert_string_equal(r.said, "lanes move");
    handle(&r, (struct member_event){ .kind = MEMBER_EV_REGROUP, .text = "again" });
    assert_int_equal(r.n[MEMBER_PAUSE], 1); /* the view already ends */
    handle(&r, (struct member_event){ .kind = MEMBER_EV_PAUSED, .generation = before, .held = 7 });
    assert_int_equal(r.n[MEMBER_TRAIN], 1);
    hear(&r, 1, (struct member_msg){ .kind = MEMBER_MSG_READY, .generation = before, .held = 7 });
    assert_int_equal(r.n[MEMBER_TRAIN], 2);
    assert_int_equal(r.generation, before + 1);
    assert_int_equal(r.n_members, 2);
    assert_int_equal(r.n[MEMBER_ABORT], 0);
    /* the view is not connected yet */
    handle(&r, (struct member_event){ .kind = MEMBER_EV_REGROUP, .text = "too early" });
    assert_int_equal(r.n[MEMBER_PAUSE], 1);
    member_node_free(r.node);
}

static void task_that_leaves_has_priority_over_a_regrouping(void **state)
{
    struct rig r = rig_of_two();

    (void)state;
    hear(&r, 1, (struct member_msg){ .kind = MEMBER_MSG_LEAVE, .code = 143 });
    assert_int_equal(r.n[MEMBER_PAUSE], 1);
    handle(&r, (struct member_event){ .kind = MEMBER_EV_REGROUP, .text = "lanes move" });
    assert_int_equal(r.n[MEMBER_PAUSE], 1);
    assert_string_not_equal(r.said, "lanes move");
    member_node_free(r.node);
}

/* SIGSTOP, or a suspended host: the messages that arrived meanwhile are handled before the next
 * tick. */
static void suspended_task_deadline_of_the_abort_is_extended(void **state)
{
    struct rig r = rig_of_two();

    (void)state;
    r.progress = (struct member_progress){ .place = 1, .phase = "reduce" };
    tick(&r, MEMBER_TICK_MS);
    r.now_ms += 2 * MEMBER_STOPPING_MS;
    handle(&r, (struct member_event){ .kind = MEMBER_EV_IN_CLOSED, .rank = 1, .text = "its connection closed" });
    assert_int_equal(r.n[MEMBER_ABORT], 1);
    tick(&r, MEMBER_STOPPING_MS - 200);
    assert_int_equal(r.n[MEMBER_END], 0);
    tick(&r, 400);
    assert_int_equal(r.n[MEMBER_END], 1); /* the extension is limited */
    assert_int_equal(r.code, 138);
    assert_non_null(strstr(
        r.text,
        "training of worker 0 (a:1) does not stop, in reduce; first cause: worker 0 (a:1) did not run for 20.0 s"));
    member_node_free(r.node);
}

static void view_does_not_connect_task_ends_with_the_reason(void **state)
{
    struct rig r = rig_new();

    (void)state;
    handle(&r, (struct member_event){ .kind = MEMBER_EV_OPENED });
    join(&r, 1);
    for (int i = 0; i < 1000 && r.n[MEMBER_END] == 0; i++) {
        tick(&r, 100);
        if (i % 4 == 0)
            hear(&r, 1, (struct member_msg){ .kind = MEMBER_MSG_BEAT, .generation = r.generation });
    }
    assert_int_equal(r.n[MEMBER_END], 1);
    assert_int_equal(r.code, 138);
    /* the deadline, and half of it again for the view that connects */
    assert_non_null(strstr(r.text, "no step for 90.5 s (train.deadline_seconds): generation 1 does not connect: "
                                   "worker 0 (a:1), step 1, in the beginning of a generation for "));
    assert_non_null(
        strstr(r.text, " s, and worker 1 (b:1), step 1, in the beginning of a generation for "));
    assert_non_null(strstr(r.text, " s, are not connected"));
    member_node_free(r.node);
}

/* Advances the time while worker 0 and `other` connect and wait, and `hangs` reports no phase. */
static void connect_until(struct rig *r, uint64_t began_ms, uint64_t ms, uint32_t other,
                          uint32_t hangs)
{
    enum { WAITS = 7, HANGS = 6 };

    while (r->now_ms < began_ms + ms && r->n[MEMBER_END] == 0) {
        struct member_msg m = { .kind = MEMBER_MSG_BEAT, .generation = r->generation, .text = "" };

        tick(r, MEMBER_HEARTBEAT_MS);
        m.progress = (struct member_progress){ .phase = "connect", .place = WAITS };
        r->progress = m.progress;
        tick(r, MEMBER_TICK_MS);
        if (other != MEMBER_NO_RANK)
            handle(r, (struct member_event){ .kind = MEMBER_EV_RECEIVED_IN, .rank = other, .msg = &m });
        m.progress = (struct member_progress){ .phase = "connect", .place = HANGS, .phase_ms = r->now_ms - began_ms, .limit_ms = 60000 };
        handle(r, (struct member_event){ .kind = MEMBER_EV_RECEIVED_IN, .rank = hangs, .msg = &m });
    }
}

static void straggler_of_a_connecting_view_is_evicted_and_one_more_view_follows(void **state)
{
    struct rig r = rig_new();
    uint64_t began;

    (void)state;
    handle(&r, (struct member_event){ .kind = MEMBER_EV_OPENED });
    join(&r, 1);
    join(&r, 2);
    assert_int_equal(r.n_members, 3);
    began = r.now_ms;
    connect_until(&r, began, 59000, 1, 2);
    assert_int_equal(r.n[MEMBER_ABORT], 0);
    connect_until(&r, began, 62000, 1, 2);
    assert_int_equal(r.n[MEMBER_ABORT], 1);
    assert_int_equal(r.refused[2], 138);
    assert_non_null(strstr(r.said, "worker 2 (c:1), step 1, in connect for 60."));
    assert_non_null(strstr(
        r.said,
        " s, makes no progress, and the others wait for it; this phase has a limit of 60.0 s"));

    handle(&r, (struct member_event){ .kind = MEMBER_EV_ABORTED, .generation = r.generation });
    hear(&r, 1, (struct member_msg){ .kind = MEMBER_MSG_READY, .generation = r.generation });
    tick(&r, 300); /* rejoin_ms */
    assert_int_equal(r.n_members, 2);
    assert_int_equal(r.n[MEMBER_END], 0);
    connect_until(&r, r.now_ms, 62000, MEMBER_NO_RANK, 1);
    assert_int_equal(r.refused[1], 138); /* the second eviction does not reset the deadline */
    tick(&r, 2000);
    assert_int_equal(r.n[MEMBER_END], 1);
    assert_int_equal(r.code, 138);
    assert_non_null(strstr(r.text, "2 of 3 tasks are missing"));
    assert_non_null(strstr(r.text, "first cause: worker 1 (b:1), step 1, in connect for 60."));
    member_node_free(r.node);
}

static void views_fail_to_connect_in_a_row_deadline_is_not_reset(void **state)
{
    struct rig r = rig_new();

    (void)state;
    handle(&r, (struct member_event){ .kind = MEMBER_EV_OPENED });
    join(&r, 1);
    join(&r, 2);
    /* two views that connect for 40 s each; the deadline is 60 s */
    for (uint32_t views = 1; views <= 2; views++) {
        assert_int_equal(r.n[MEMBER_TRAIN], views);
        connect_until(&r, r.now_ms, 40000, 1, 2);
        handle(&r, (struct member_event){ .kind = MEMBER_EV_FAILED,
                                          .generation = r.generation,
                                          .failure = MEMBER_FAIL_PEER,
                                          .loss = &(struct member_loss){ .peer = 2 },
                                          .text = "cannot connect to worker 2" });
        tick(&r, MEMBER_CAUSE_MS + MEMBER_TICK_MS);
        for (uint32_t i = 1; i < WORLD; i++)
            hear(&r, i, (struct member_msg){ .kind = MEMBER_MSG_READY, .generation = r.generation });
    }
    assert_int_equal(r.n[MEMBER_TRAIN], 2);
    assert_int_equal(r.n[MEMBER_END], 1);
    assert_int_equal(r.code, 138);
    assert_non_null(strstr(r.text, "no step for 80."));
    assert_non_null(
        strstr(r.text, "all tasks are present; first cause: cannot connect to worker 2"));
    member_node_free(r.node);
}

static void waiting_task_receives_the_cause_of_the_end_of_a_generation(void **state)
{
    struct rig r = rig_of_two();

    (void)state;
    hear(&r, 2, (struct member_msg){ .kind = MEMBER_MSG_JOIN, .incarnation = OTHER_INCARNATION + 2, .ident = &ident,
                                     .n_devices = 1 });
    assert_string_equal(r.told[2], "");
    handle(&r, (struct member_event){ .kind = MEMBER_EV_IN_CLOSED, .rank = 1, .text = "its connection closed" });
    assert_non_null(strstr(r.told[2], "worker 1 (b:1), step 1, in "));
    assert_non_null(strstr(r.told[2], " was lost: its connection closed"));
    assert_string_equal(r.told[2], r.said);
    member_node_free(r.node);
}

static void second_process_is_admitted_only_if_first_is_silent_and_identity_agrees(void **state)
{
    struct rig r = rig_of_two();
    struct member_ident other = ident;
    struct member_msg refusal, again = { .kind = MEMBER_MSG_JOIN,
                                         .incarnation = OTHER_INCARNATION + 1,
                                         .ident = &ident,
                                         .n_devices = 1,
                                         .text = "" };
    struct member_msg second = again;

    (void)state;
    second.incarnation += 100;
    assert_true(member_node_admits(r.node, 1, &again, &refusal, r.now_ms));
    assert_false(member_node_admits(r.node, 1, &second, &refusal, r.now_ms + 1));
    assert_int_equal(refusal.code, MEMBER_CONTINUE);
    assert_non_null(strstr(refusal.text, "another process runs as worker 1"));
    perform(&r);
    assert_true(member_node_admits(r.node, 1, &second, &refusal, r.now_ms + MEMBER_SILENCE_MS + 1));
    other.job_digest = "other";
    second.ident = &other;
    assert_false(
        member_node_admits(r.node, 1, &second, &refusal, r.now_ms + MEMBER_SILENCE_MS + 1));
    assert_int_equal(refusal.code, 2);
    assert_non_null(strstr(refusal.text, "'other'"));
    perform(&r);
    again.ident = &other; /* the process of the older link, as a stranger writes it */
    assert_false(member_node_admits(r.node, 1, &again, &refusal, r.now_ms + MEMBER_SILENCE_MS + 1));
    assert_non_null(strstr(refusal.text, "a Join as worker 1 (b:1) was refused: "));
    assert_non_null(strstr(refusal.text, "'other'"));
    perform(&r);
    member_node_free(r.node);
}

static void leader_still_opening_data_leaves_at_once(void **state)
{
    (void)state;
    for (int everywhere = 0; everywhere < 2; everywhere++) {
        struct rig r = rig_new();

        join(&r, 1);
        tick(&r, 100);
        handle(&r, (struct member_event){ .kind = MEMBER_EV_STOP, .everywhere = everywhere });
        tick(&r, MEMBER_GATHER_LEAVE_MS + MEMBER_TICK_MS);
        assert_int_equal(r.n[MEMBER_END], 1);
        assert_int_equal(r.code, 143);
        assert_string_equal(r.text, "stopped before the first step");
        assert_int_equal(r.n[MEMBER_SAVE], 0);
        member_node_free(r.node);
    }
}

static void member_ends_the_job_while_the_leader_opens_its_data(void **state)
{
    struct rig r = rig_new();

    (void)state;
    join(&r, 2);
    hear(&r, 2, (struct member_msg){ .kind = MEMBER_MSG_LEAVE, .code = 143, .is_all = true });
    tick(&r, MEMBER_TICK_MS);
    assert_int_equal(r.n[MEMBER_END], 1);
    assert_int_equal(r.code, 143);
    member_node_free(r.node);
}

static void lease_is(struct rig *r, bool is_same_place, bool is_over)
{
    static const uint32_t members[] = { 0, 1, 2 };
    struct member_lease l = { .token = 5,
                              .answered = UINT64_MAX,
                              .is_known = true,
                              .is_over = is_over,
                              .is_same_place = is_same_place,
                              .holder = 0,
                              .incarnation = OTHER_INCARNATION,
                              .members = members,
                              .n_members = WORLD,
                              .text = "" };

    handle(r, (struct member_event){ .kind = MEMBER_EV_LEASE, .lease = &l });
}

/* A second process of a task runs on another host by mistake. The first process leads a group that
 * the second cannot join, because the others redirect it to its own rank. */
static void second_process_of_the_holder_on_another_host_waits_until_the_lease_is_over(void **state)
{
    struct rig r = rig_with_lease();

    (void)state;
    handle(&r, (struct member_event){ .kind = MEMBER_EV_OPENED });
    lease_is(&r, false, false);
    for (int i = 0; i < 50; i++) {
        tick(&r, 100);
        lease_is(&r, false, false);
    }
    assert_int_equal(r.n[MEMBER_TRAIN], 0);
    assert_false(r.wants_lease);
    lease_is(&r, false, true);
    tick(&r, MEMBER_LEASE_POLL_MS);
    assert_true(r.wants_lease);
    member_node_free(r.node);
}

static void new_process_of_the_holder_on_the_same_host_takes_the_lease_at_once(void **state)
{
    struct rig r = rig_with_lease();

    (void)state;
    handle(&r, (struct member_event){ .kind = MEMBER_EV_OPENED });
    tick(&r, MEMBER_SETTLE_MS + 200);
    lease_is(&r, true, false);
    tick(&r, MEMBER_LEASE_POLL_MS);
    assert_true(r.wants_lease);
    member_node_free(r.node);
}

/* Reports the lease `token`, which this task holds with itself as the record; 0: there is no lease.
 * All requests are complete. */
static void own_lease_is(struct rig *r, uint64_t token)
{
    static const uint32_t members[] = { 0 };
    struct member_lease l = { .token = token,
                              .answered = UINT64_MAX,
                              .is_known = true,
                              .is_mine = token > 0,
                              .holder = token > 0 ? 0 : MEMBER_NO_RANK,
                              .incarnation = token > 0 ? 1 : 0,
                              .members = members,
                              .n_members = token > 0,
                              .text = "" };

    handle(r, (struct member_event){ .kind = MEMBER_EV_LEASE, .lease = &l });
}

/* Returns a node that is alone, and that waits for the result of its first request for the lease. */
static struct rig rig_that_takes_the_lease(void)
{
    struct rig r = rig_with_lease();

    handle(&r, (struct member_event){ .kind = MEMBER_EV_OPENED });
    for (uint64_t ms = 0; !r.wants_lease && ms < MEMBER_MINORITY_MS + 500; ms += 100) {
        own_lease_is(&r, 0); /* answers the last read */
        tick(&r, MEMBER_LEASE_POLL_MS);
    }
    assert_true(r.wants_lease);
    r.wants_lease = false;
    return r;
}

static const uint64_t INVENTED = (uint64_t)1 << 62;

/* Without the limit this task would publish a generation that no message can carry. */
static void probe_that_invents_a_generation_changes_nothing(void **state)
{
    struct rig r = rig_new();
    struct member_status ours,
        theirs = { .incarnation = 9, .generation = INVENTED, .leader = 1, .has_view = true };

    (void)state;
    handle(&r, (struct member_event){ .kind = MEMBER_EV_OPENED });
    tick(&r, MEMBER_LOG_MS);
    member_node_probed(r.node, 1, &theirs, &ours, r.now_ms);
    perform(&r);
    assert_int_equal(member_node_state(r.node), MEMBER_LEADING);
    assert_non_null(strstr(r.said, "the status of worker 1 (b:1) was ignored: it names generation "
                                   "4611686018427387904; expected at most "));
    handle(&r, (struct member_event){ .kind = MEMBER_EV_PROBE_ANSWERED, .rank = 1, .status = &theirs });
    assert_int_equal(member_node_state(r.node), MEMBER_LEADING);
    theirs = (struct member_status){ .incarnation = 9, .generation = 5000, .leader = MEMBER_NO_RANK };
    member_node_probed(r.node, 1, &theirs, &ours, r.now_ms);
    perform(&r);
    join(&r, 1);
    join(&r, 2);
    assert_int_equal(r.generation, 5001);
    member_node_free(r.node);
}

static void join_that_invents_a_generation_is_refused(void **state)
{
    struct rig r = rig_new();

    (void)state;
    handle(&r, (struct member_event){ .kind = MEMBER_EV_OPENED });
    hear(&r, 1, (struct member_msg){ .kind = MEMBER_MSG_JOIN,
                                     .incarnation = 9,
                                     .generation = INVENTED,
                                     .ident = &ident,
                                     .n_devices = 1 });
    assert_int_equal(r.refused[1], MEMBER_CONTINUE);
    join(&r, 1);
    join(&r, 2);
    assert_int_equal(r.generation, 1);
    member_node_free(r.node);
}

/* Whatever listens at the address of an absent task, this task waits for that task or trains without it. */
static void address_of_a_task_is_taken_by_a_stranger_the_task_is_absent_with_the_reason(
    void **state)
{
    static const enum member_closed kinds[] = { MEMBER_UNPROVEN, MEMBER_OTHER_CLUSTER };

    (void)state;
    for (int i = 0; i < 2; i++) {
        struct rig r = rig_new();

        handle(&r, (struct member_event){ .kind = MEMBER_EV_OPENED });
        join(&r, 1);
        tick(&r, MEMBER_LOG_MS);
        handle(&r, (struct member_event){ .kind = MEMBER_EV_IN_CLOSED, .rank = 1, .text = "closed" });
        handle(&r, (struct member_event){ .kind = MEMBER_EV_ABORTED, .generation = r.generation });
        handle(&r, (struct member_event){ .kind = MEMBER_EV_PROBE_FAILED, .rank = 2, .closed = kinds[i], .text = "a web server" });
        assert_string_equal(r.said, "worker 2 (c:1) is absent: the process at its address is not "
                                    "accepted: a web server");
        tick(&r, 61000);
        assert_int_equal(r.code, 138);
        assert_non_null(strstr(r.text, "worker 2 (c:1): a web server"));
        member_node_free(r.node);
    }
}

/* Worker 1 leads a view: this task sends it JOIN and READY. */
static void join_worker_1(struct rig *r)
{
    struct member_status status = {
        .incarnation = OTHER_INCARNATION + 1, .generation = 1, .leader = 1, .has_view = true
    };

    handle(r, (struct member_event){ .kind = MEMBER_EV_PROBE_ANSWERED, .rank = 1, .status = &status });
    assert_int_equal(member_node_state(r->node), MEMBER_SEEKING);
    assert_int_equal(r->n[MEMBER_OPEN_OUT], 1);
}

/* The request for lease 1 is complete after this task joined worker 1, which may have taken lease 2
 * since then. After the loss of worker 1 this task needs a new number. */
static void lease_acquired_after_joining_a_leader_does_not_count(void **state)
{
    struct rig r = rig_that_takes_the_lease();

    (void)state;
    join_worker_1(&r);
    own_lease_is(&r, 1);
    handle(&r, (struct member_event){ .kind = MEMBER_EV_OUT_CLOSED, .text = "reset" });
    tick(&r, 2 * MEMBER_SETTLE_MS);
    assert_int_equal(member_node_state(r.node), MEMBER_LEADING);
    assert_int_equal(r.n[MEMBER_TRAIN], 0); /* the storage has not answered */
    own_lease_is(&r, 1);
    assert_int_equal(r.n[MEMBER_TRAIN], 0);
    tick(&r, MEMBER_LEASE_POLL_MS);
    assert_true(r.wants_lease);
    own_lease_is(&r, 2);
    assert_int_equal(r.n[MEMBER_TRAIN], 1);
    member_node_free(r.node);
}

/* ---- calls that make progress ---- */

/* Returns a node with the highest rank of three, which calls worker 0 at once. */
static struct rig rig_that_calls(void)
{
    static const char *const names[WORLD] = { "worker 0", "worker 1", "worker 2" };
    static const char *const addresses[WORLD] = { "a:1", "b:1", "c:1" };
    struct rig r = { .now_ms = 1000 };

    r.node = member_node_new(&(struct member_node_opts){ .world = WORLD,
                                                         .self = 2,
                                                         .incarnation = 1,
                                                         .names = names,
                                                         .addresses = addresses,
                                                         .ident = &ident,
                                                         .n_devices = 1,
                                                         .min_world = 2,
                                                         .rejoin_ms = 100,
                                                         .deadline_ms = 60000,
                                                         .grace_ms = 5000 },
                             r.now_ms);
    assert_non_null(r.node);
    handle(&r, (struct member_event){ .kind = MEMBER_EV_START });
    assert_int_equal(r.n[MEMBER_OPEN_OUT], 1);
    return r;
}

static void call_that_makes_progress_is_not_given_up(void **state)
{
    struct rig r = rig_that_calls();

    (void)state;
    for (int i = 0; i < 10; i++) {
        tick(&r, MEMBER_CALL_MS - MEMBER_TICK_MS);
        handle(&r, (struct member_event){ .kind = MEMBER_EV_OUT_PROGRESS });
    }
    assert_int_equal(r.n[MEMBER_OPEN_OUT], 1);
    assert_int_equal(r.n[MEMBER_CLOSE_OUT], 0);
    tick(&r, MEMBER_CALL_MS + MEMBER_TICK_MS);
    assert_int_equal(r.n[MEMBER_CLOSE_OUT], 1);
    member_node_free(r.node);
}

/* Worker 0 has answered nothing, but its host has accepted the call: worker 1 gets twice the time. */
static void limit_of_calls_grows_after_the_first_slow_call(void **state)
{
    struct rig r = rig_that_calls();

    (void)state;
    handle(&r, (struct member_event){ .kind = MEMBER_EV_OUT_PROGRESS });
    tick(&r, MEMBER_CALL_MS + MEMBER_TICK_MS);
    assert_int_equal(r.n[MEMBER_OPEN_OUT], 2);
    tick(&r, 2 * MEMBER_CALL_MS);
    assert_int_equal(r.n[MEMBER_CLOSE_OUT], 1);
    tick(&r, 2 * MEMBER_TICK_MS);
    assert_int_equal(r.n[MEMBER_CLOSE_OUT], 2);
    member_node_free(r.node);
}

/* A host that is off says nothing about the speed of the others. */
static void limit_of_calls_stays_after_a_call_without_progress(void **state)
{
    struct rig r = rig_that_calls();

    (void)state;
    tick(&r, 2 * (MEMBER_CALL_MS + MEMBER_TICK_MS));
    assert_int_equal(r.n[MEMBER_CLOSE_OUT], 2);
    assert_int_equal(member_node_state(r.node), MEMBER_LEADING);
    member_node_free(r.node);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(address_of_a_task_is_taken_by_a_stranger_the_task_is_absent_with_the_reason),
        cmocka_unit_test(probe_that_invents_a_generation_changes_nothing),
        cmocka_unit_test(join_that_invents_a_generation_is_refused),
        cmocka_unit_test(probe_open_no_second_probe_is_started),
        cmocka_unit_test(leader_asked_to_regroup_pauses_once_and_publishes_the_same_members),
        cmocka_unit_test(task_that_leaves_has_priority_over_a_regrouping),
        cmocka_unit_test(suspended_task_deadline_of_the_abort_is_extended),
        cmocka_unit_test(view_does_not_connect_task_ends_with_the_reason),
        cmocka_unit_test(straggler_of_a_connecting_view_is_evicted_and_one_more_view_follows),
        cmocka_unit_test(views_fail_to_connect_in_a_row_deadline_is_not_reset),
        cmocka_unit_test(waiting_task_receives_the_cause_of_the_end_of_a_generation),
        cmocka_unit_test(second_process_is_admitted_only_if_first_is_silent_and_identity_agrees),
        cmocka_unit_test(leader_still_opening_data_leaves_at_once),
        cmocka_unit_test(second_process_of_the_holder_on_another_host_waits_until_the_lease_is_over),
        cmocka_unit_test(new_process_of_the_holder_on_the_same_host_takes_the_lease_at_once),
        cmocka_unit_test(member_ends_the_job_while_the_leader_opens_its_data),
        cmocka_unit_test(lease_acquired_after_joining_a_leader_does_not_count),
        cmocka_unit_test(call_that_makes_progress_is_not_given_up),
        cmocka_unit_test(limit_of_calls_grows_after_the_first_slow_call),
        cmocka_unit_test(limit_of_calls_stays_after_a_call_without_progress),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
