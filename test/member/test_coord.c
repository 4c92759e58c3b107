/* test_coord.c - the coordinator alone: events in, the list of orders as text out. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "member/member.h"

enum { SILENT_MS = 1500 };

static const char *const names[] = { "worker 0", "worker 1", "worker 2", "worker 3" };
static const char *const addresses[] = { "10.0.0.1:1", "10.0.0.2:2", "10.0.0.3:3", "10.0.0.4:4" };
static const struct member_ident ident = {
    .version = "1.2", .job_digest = "j0b", .cluster_hash = "c1u", .cluster = "worker:a:1,b:2",
    .devices = "cpu", .kernels = "onednn 2.6.3 avx2", .nccl = "",
};

static struct member_coord *new_coord(uint32_t world)
{
    return member_coord_new(&(struct member_coord_opts){ .world = world,
                                                         .names = names,
                                                         .addresses = addresses,
                                                         .silent_ms = SILENT_MS,
                                                         .ident = &ident,
                                                         .n_devices = 1 },
                            0);
}

/* Incarnation number `n`, as bytes. */
static const uint8_t *incarnation(uint8_t n)
{
    static uint8_t bytes[256][MEMBER_INCARNATION_BYTES];

    memset(bytes[n], n, MEMBER_INCARNATION_BYTES);
    return bytes[n];
}

static struct member_join join_of(uint32_t rank, uint8_t inc)
{
    struct member_join j = { .rank = rank, .ident = ident, .n_devices = 1 };

    memcpy(j.incarnation, incarnation(inc), MEMBER_INCARNATION_BYTES);
    return j;
}

static void join(struct member_coord *c, uint32_t rank, uint8_t inc, uint64_t now_ms)
{
    struct member_join j = join_of(rank, inc);

    member_coord_join(c, &j, now_ms);
}

static bool beat(struct member_coord *c, uint32_t rank, uint8_t inc, uint64_t step, uint64_t now_ms)
{
    struct member_beat b = {
        .rank = rank, .generation = 1, .step = step, .phase = "train", .phase_ms = 100
    };

    memcpy(b.incarnation, incarnation(inc), MEMBER_INCARNATION_BYTES);
    return member_coord_beat(c, &b, now_ms);
}

static void leave(struct member_coord *c, uint32_t rank, uint8_t inc, enum member_leave kind,
                  const char *reason, uint64_t now_ms)
{
    member_coord_leave(c, rank, incarnation(inc), member_coord_generation(c), kind, 7, reason,
                       now_ms);
}

/* The orders since the last call, one line each. */
static const char *orders(struct member_coord *c)
{
    static const char *const kinds[] = { "admit", "refuse", "retry",   "view",
                                         "over",  "drop",   "replace", "release" };
    static char all[8192];
    struct member_order o;
    size_t n = 0;

    all[0] = '\0';
    while (member_coord_next(c, &o)) {
        n += (size_t)snprintf(all + n, sizeof(all) - n, "%s ", kinds[o.kind]);
        if (o.kind == MEMBER_ORDER_VIEW)
            n += (size_t)snprintf(all + n, sizeof(all) - n, "%u", (unsigned)o.generation);
        else
            n += (size_t)snprintf(all + n, sizeof(all) - n, "%u", o.rank);
        if (o.kind == MEMBER_ORDER_RELEASE && !o.complete)
            n += (size_t)snprintf(all + n, sizeof(all) - n, " unsafe");
        if (o.kind == MEMBER_ORDER_OVER)
            assert_int_equal(o.culprit, o.rank);
        if (o.text[0] != '\0')
            n += (size_t)snprintf(all + n, sizeof(all) - n, ": %s", o.text);
        n += (size_t)snprintf(all + n, sizeof(all) - n, "\n");
        assert_true(n < sizeof(all));
    }
    return all;
}

/* All of 0..world-1 joined with incarnation rank + 1 at 0 ms, their orders fetched. */
static struct member_coord *running(uint32_t world)
{
    struct member_coord *c = new_coord(world);

    for (uint32_t i = 0; i < world; i++)
        join(c, i, (uint8_t)(i + 1), 0);
    orders(c);
    assert_true(member_coord_running(c));
    return c;
}

static void the_last_to_join_brings_the_view(void **state)
{
    struct member_coord *c = new_coord(3);

    (void)state;
    join(c, 2, 30, 1);
    assert_string_equal(orders(c), "admit 2\n");
    join(c, 0, 10, 2);
    assert_string_equal(orders(c), "admit 0\n");
    assert_int_equal(member_coord_generation(c), 0);
    assert_int_equal(member_coord_present(c), 2);
    join(c, 1, 20, 3);
    assert_string_equal(orders(c), "admit 1\nview 1\n");
    assert_true(member_coord_running(c));
    assert_int_equal(member_coord_generation(c), 1);
    assert_int_equal(member_coord_task(c, 2)->state, MEMBER_TASK_ACTIVE);
    member_coord_free(c);
}

static void a_mismatch_is_refused_with_both_sides(void **state)
{
    static const struct {
        struct member_ident with;
        uint32_t n_devices;
        const char *text;
    } rows[] = {
        { { .version = "1.3", .job_digest = "j0b" },
          1,
          "the version of trainerd differs: it has '1.3', the coordinator has '1.2'; run the same "
          "release on every task" },
        { { .cluster_hash = "other", .cluster = "worker:a:1,b:3" },
          1,
          "the cluster differs: it has 'worker:a:1,b:3', the coordinator has 'worker:a:1,b:2'; "
          "give "
          "every task the same cluster specification" },
        { { .job_digest = "J" },
          1,
          "the digest of the job differs: it has 'J', the coordinator has 'j0b'; give every task "
          "the same job file" },
        { { .devices = "cuda" },
          1,
          "the kind of device differs: it has 'cuda', the coordinator has 'cpu'; use the same "
          "--devices on every task" },
        { { .kernels = "onednn 2.6.3 avx512" },
          1,
          "kernel library and instruction set differs: it has 'onednn 2.6.3 avx512', the "
          "coordinator has 'onednn 2.6.3 avx2'; sums would differ in the last bits: use hosts and "
          "releases of one kind" },
        { { .nccl = "2.20" },
          1,
          "the version of NCCL differs: it has '2.20', the coordinator has ''; install the same "
          "NCCL on every task" },
        { { .nccl = "" },
          2,
          "the number of devices differs: it has 2, the coordinator has 1; use the same --devices "
          "on every task" },
    };
    struct member_coord *c = new_coord(2);

    (void)state;
    join(c, 0, 1, 0);
    orders(c);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct member_join j = join_of(1, 2);
        char expected[1024];
#define WITH(f_)                                                                                   \
    if (rows[i].with.f_ != NULL)                                                                   \
    j.ident.f_ = rows[i].with.f_
        WITH(version);
        WITH(cluster_hash);
        WITH(cluster);
        WITH(job_digest);
        WITH(devices);
        WITH(kernels);
        WITH(nccl);
#undef WITH
        j.n_devices = rows[i].n_devices;
        member_coord_join(c, &j, 1);
        snprintf(expected, sizeof(expected), "refuse 1: worker 1 (10.0.0.2:2) cannot join: %s\n",
                 rows[i].text);
        assert_string_equal(orders(c), expected);
        assert_int_equal(member_coord_task(c, 1)->state, MEMBER_TASK_MISSING);
    }
    join(c, 1, 2, 5); /* corrected, it may come */
    assert_string_equal(orders(c), "admit 1\nview 1\n");
    member_coord_free(c);
}

static void two_long_clusters_are_shown_where_they_differ(void **state)
{
    static char ours[30000], theirs[30000];
    struct member_ident long_ident = ident;
    struct member_coord *c;
    struct member_join j;
    struct member_order o;

    (void)state;
    for (size_t i = 0; i < sizeof(ours) - 1; i += 1)
        ours[i] = theirs[i] = (char)('a' + i % 26);
    memcpy(theirs + 20000, "HERE", 4);
    long_ident.cluster = ours;
    c = member_coord_new(&(struct member_coord_opts){ .world = 1,
                                                      .names = names,
                                                      .addresses = addresses,
                                                      .silent_ms = 1,
                                                      .ident = &long_ident,
                                                      .n_devices = 1 },
                         0);
    j = join_of(0, 1);
    j.ident.cluster = theirs;
    j.ident.cluster_hash = "x";
    member_coord_join(c, &j, 0);
    assert_true(member_coord_next(c, &o));
    assert_int_equal(o.kind, MEMBER_ORDER_REFUSE);
    assert_non_null(strstr(o.text, "efghijklmnopqrstuvwxyzabcdefHEREklm"));
    assert_non_null(strstr(o.text, "; give every task the same cluster specification"));
    assert_true(strlen(o.text) < MEMBER_TEXT_BYTES);
    member_coord_free(c);
}

static void while_gathering_a_newer_process_takes_the_place_of_the_older(void **state)
{
    struct member_coord *c = new_coord(2);

    (void)state;
    join(c, 1, 2, 0);
    orders(c);
    join(c, 1, 3, 5);
    assert_string_equal(orders(c), "replace 1: another process joined as this task\nadmit 1\n");
    assert_false(beat(c, 1, 2, 0, 6)); /* the former self is unknown */
    member_coord_closed(c, 1, incarnation(2), "", 6);                /* and its news are ignored */
    leave(c, 1, 2, MEMBER_LEAVE_FAILED, "late", 6);
    assert_string_equal(orders(c), "");
    assert_int_equal(member_coord_present(c), 1);
    assert_true(beat(c, 1, 3, 0, 6));
    join(c, 1, 3, 7); /* its connection broke and it is faster than the news of it */
    assert_string_equal(orders(c), "drop 1: it joined again\nadmit 1\n");
    join(c, 0, 1, 8);
    assert_string_equal(orders(c), "admit 0\nview 1\n");
    member_coord_free(c);
}

static void who_goes_while_gathering_is_missing_again_with_the_reason(void **state)
{
    struct member_coord *c = new_coord(3);

    (void)state;
    assert_string_equal(member_coord_task(c, 1)->last_error, "");
    member_coord_unreachable(c, 1, "connect: Connection refused");
    assert_string_equal(member_coord_task(c, 1)->last_error, "connect: Connection refused");
    join(c, 1, 2, 10);
    join(c, 2, 3, 10);
    orders(c);
    member_coord_unreachable(c, 1, "late news");
    assert_string_equal(member_coord_task(c, 1)->last_error, "");

    member_coord_closed(c, 1, incarnation(2), "", 20);
    assert_int_equal(member_coord_task(c, 1)->state, MEMBER_TASK_MISSING);
    assert_int_equal(member_coord_task(c, 1)->heard_ms, 20);
    assert_string_equal(member_coord_task(c, 1)->last_error, "its connection closed");
    leave(c, 2, 3, MEMBER_LEAVE_FAILED, "data/a.tfrecord: No such file", 30);
    assert_string_equal(orders(c), "release 2\n");
    member_coord_unreachable(c, 2, "connect: Connection refused"); /* says less */
    assert_string_equal(member_coord_task(c, 2)->last_error,
                        "it left: data/a.tfrecord: No such file");
    assert_int_equal(member_coord_present(c), 0);
    member_coord_free(c);
}

static void a_lost_member_ends_the_generation_and_is_named(void **state)
{
    struct member_coord *c = running(3);

    (void)state;
    assert_true(beat(c, 1, 2, 123, 1000));
    member_coord_closed(c, 1, incarnation(2), "Socket closed", 1200);
    assert_string_equal(orders(c),
                        "over 1: worker 1 (10.0.0.2:2) is lost: its connection closed (Socket "
                        "closed); last heard 0.2 s ago in phase train, step 123 since 0.3 s\n");
    assert_false(member_coord_running(c));
    member_coord_closed(c, 2, incarnation(3), "",
                        1201); /* the others go too: not a second culprit */
    member_coord_tick(c, 9000);
    assert_string_equal(orders(c), "");
    join(c, 1, 9, 1300);
    assert_non_null(
        strstr(orders(c), "retry 1: generation 1 is over: worker 1 (10.0.0.2:2) is lost"));
    member_coord_free(c);
}

static void a_silent_member_is_lost_but_not_when_the_coordinator_slept(void **state)
{
    struct member_coord *c = running(3);

    (void)state;
    for (uint64_t t = 100; t <= 1600; t += 100) {
        assert_true(beat(c, 0, 1, 1, t));
        assert_true(beat(c, 1, 2, 1, t));
        if (t == 100)
            assert_true(beat(c, 2, 3, 5, t));
        member_coord_tick(c, t);
        assert_string_equal(orders(c), "");
    }
    member_coord_tick(c, 1700);
    assert_string_equal(orders(c),
                        "over 2: worker 2 (10.0.0.3:3) is lost: silent for 1.6 s; last heard "
                        "1.6 s ago in phase train, step 5 since 1.7 s\n");
    member_coord_free(c);

    c = running(2);
    member_coord_tick(c, 100);
    member_coord_tick(c, 60000); /* suspended for a minute: we know nothing about the others */
    assert_string_equal(orders(c), "");
    for (uint64_t t = 60100; t <= 61500; t += 100)
        member_coord_tick(c, t);
    assert_string_equal(orders(c), "");
    member_coord_tick(c, 61600);
    assert_non_null(strstr(orders(c), "over 0: worker 0 (10.0.0.1:1) is lost: silent for 1.6 s"));
    member_coord_free(c);
}

static void a_silent_task_that_only_waits_is_missing_again(void **state)
{
    struct member_coord *c = new_coord(2);

    (void)state;
    join(c, 1, 2, 0);
    orders(c);
    for (uint64_t t = 500; t <= 2000; t += 500)
        member_coord_tick(c, t);
    assert_string_equal(orders(c), "drop 1: it was silent for 2.0 s\n");
    assert_string_equal(member_coord_task(c, 1)->last_error, "it was silent for 2.0 s");
    assert_int_equal(member_coord_present(c), 0);
    member_coord_free(c);
}

static void a_restarted_member_tells_that_its_former_self_died(void **state)
{
    struct member_coord *c = running(2);

    (void)state;
    assert_true(beat(c, 1, 2, 4, 900));
    join(c, 1, 77, 1000);
    assert_string_equal(
        orders(c),
        "over 1: worker 1 (10.0.0.2:2) restarted: a new incarnation joined while generation 1 "
        "was running; last heard 0.1 s ago in phase train, step 4 since 0.2 s\n"
        "retry 1: generation 1 is over: worker 1 (10.0.0.2:2) restarted: a new incarnation "
        "joined while generation 1 was running; last heard 0.1 s ago in phase train, step 4 "
        "since 0.2 s\n");
    member_coord_free(c);
}

static void an_error_on_one_task_is_everybodys_news(void **state)
{
    struct member_coord *c = running(3);

    (void)state;
    leave(c, 2, 3, MEMBER_LEAVE_COMPLETE, "", 50); /* parked: then it is not safe */
    assert_string_equal(orders(c), "");
    leave(c, 1, 2, MEMBER_LEAVE_FAILED, "loss is NaN", 60);
    assert_string_equal(orders(c),
                        "release 1\nover 1: worker 1 (10.0.0.2:2) failed in step 8: loss is NaN\n"
                        "release 2 unsafe: worker 1 (10.0.0.2:2) failed in step 8: loss is NaN\n");
    leave(c, 0, 1, MEMBER_LEAVE_COMPLETE, "", 70); /* too late */
    assert_string_equal(orders(c),
                        "release 0 unsafe: worker 1 (10.0.0.2:2) failed in step 8: loss is NaN\n");
    member_coord_free(c);
}

static void the_group_is_released_when_the_coordinator_itself_is_done(void **state)
{
    struct member_coord *c = running(4);

    (void)state;
    leave(c, 1, 2, MEMBER_LEAVE_COMPLETE, "", 10);
    leave(c, 2, 3, MEMBER_LEAVE_COMPLETE, "", 10);
    assert_string_equal(orders(c), ""); /* parked */
    assert_true(beat(c, 1, 2, 9, 11));  /* still in touch */
    leave(c, 0, 1, MEMBER_LEAVE_COMPLETE, "", 20);
    assert_string_equal(orders(c), "release 1\nrelease 2\n"); /* its own after the last */
    leave(c, 2, 3, MEMBER_LEAVE_COMPLETE, "", 25);
    assert_string_equal(orders(c), "release 2\n"); /* asked twice, answered twice */
    leave(c, 3, 4, MEMBER_LEAVE_COMPLETE, "", 30);
    assert_string_equal(orders(c), "release 3\nrelease 0\n");
    assert_int_equal(member_coord_present(c), 0);
    member_coord_free(c);
}

static void who_is_lost_after_it_was_done_is_nobodys_fault(void **state)
{
    struct member_coord *c = running(3);

    (void)state;
    leave(c, 1, 2, MEMBER_LEAVE_STOPPED, "", 10);
    member_coord_closed(c, 1, incarnation(2), "", 20);
    join(c, 1, 99, 30);
    assert_string_equal(orders(c), "retry 1: generation 1 is finishing without worker 1\n");
    leave(c, 0, 1, MEMBER_LEAVE_STOPPED, "", 40);
    assert_string_equal(orders(c), "");
    member_coord_closed(c, 2, incarnation(3), "", 50); /* the last state is safe without it */
    assert_string_equal(orders(c), "release 0\n");
    member_coord_free(c);
}

static void who_leaves_without_having_seen_the_view_ends_it(void **state)
{
    struct member_coord *c = running(2);

    (void)state;
    member_coord_leave(c, 1, incarnation(2), 0, MEMBER_LEAVE_STOPPED, 0, "stopped", 10);
    assert_string_equal(
        orders(c), "release 1\n"
                   "over 1: worker 1 (10.0.0.2:2) left just before generation 1 began: stopped\n");
    member_coord_free(c);
}

static void the_coordinators_own_trouble_is_told_like_any_other(void **state)
{
    struct member_coord *c = running(2);

    (void)state;
    leave(c, 0, 1, MEMBER_LEAVE_FAILED, "disk full", 10);
    assert_string_equal(orders(c),
                        "release 0\nover 0: worker 0 (10.0.0.1:1) failed in step 8: disk full\n");
    member_coord_free(c);
}

static void a_long_reason_is_cut_between_two_characters(void **state)
{
    struct member_coord *c = running(2);
    char reason[4000];
    struct member_order o;

    (void)state;
    for (size_t i = 0; i + 2 < sizeof(reason); i += 2)
        memcpy(reason + i, "\xc3\xa9", 3);
    for (uint32_t shift = 0; shift < 2; shift++) {
        leave(c, 1, 2, MEMBER_LEAVE_FAILED, reason + 2 * shift, 10);
        while (member_coord_next(c, &o))
            assert_true(text_is_utf8(o.text, strlen(o.text)));
    }
    member_coord_free(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_last_to_join_brings_the_view),
        cmocka_unit_test(a_mismatch_is_refused_with_both_sides),
        cmocka_unit_test(two_long_clusters_are_shown_where_they_differ),
        cmocka_unit_test(while_gathering_a_newer_process_takes_the_place_of_the_older),
        cmocka_unit_test(who_goes_while_gathering_is_missing_again_with_the_reason),
        cmocka_unit_test(a_lost_member_ends_the_generation_and_is_named),
        cmocka_unit_test(a_silent_member_is_lost_but_not_when_the_coordinator_slept),
        cmocka_unit_test(a_silent_task_that_only_waits_is_missing_again),
        cmocka_unit_test(a_restarted_member_tells_that_its_former_self_died),
        cmocka_unit_test(an_error_on_one_task_is_everybodys_news),
        cmocka_unit_test(the_group_is_released_when_the_coordinator_itself_is_done),
        cmocka_unit_test(who_is_lost_after_it_was_done_is_nobodys_fault),
        cmocka_unit_test(who_leaves_without_having_seen_the_view_ends_it),
        cmocka_unit_test(the_coordinators_own_trouble_is_told_like_any_other),
        cmocka_unit_test(a_long_reason_is_cut_between_two_characters),
    };

    return cmocka_run_group_tests_name("member/coord", tests, NULL, NULL);
}
