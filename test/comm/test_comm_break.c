/* The ends of a communicator: abort, and a dead, late, wrong or departed peer. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/fault.h"
#include "comm/cast.h"

enum { ELEMENTS = 100000 };
/* stage: argument of the scene; members that are in a call; ranks whose call has returned */
enum { AT = 40, READY, DONE = 50 };

static const char *const layouts[] = { "A1 A1",    "A1 B1",    "A1 A1 A1 A1", "A1 A1 B1 B1",
                                       "A2 B1 C1", "A1 B1 C1", "A2 A1 B1",    "A1@x B1@x C1@x D1@y E1@y", NULL };

static void *data_of(struct cast *k, uint32_t self, uint32_t local)
{
    return (uint8_t *)k->arenas[self].base + local * k->arena_bytes;
}

static void begin(struct cast *k, const char *layout, bool shared_memory)
{
    cast_init(k, layout, shared_memory, ELEMENTS * sizeof(float));
}

/* Makes calls until the generation fails; stores the code. */
static void reduce_until_broken(struct cast *k, struct comm *c, uint32_t self, uint32_t local)
{
    struct err err = { 0 };
    int rc = 0;

    memset(data_of(k, self, local), 0, ELEMENTS * sizeof(float));
    for (int i = 0; rc == 0; i++) {
        rc = comm_all_reduce(c, local, data_of(k, self, local), i % 3 == 0 ? 10 : ELEMENTS,
                             TENSOR_F32, COMM_SUM, &err);
        if (i == 3)
            atomic_fetch_add(&k->stage->number[READY], 1);
    }
    atomic_store(&k->stage->number[DONE + comm_first_rank(c) + local], 1);
    EXPECT(err.code == rc && err.text[0] != '\0', "an error without a text");
    atomic_store(&k->stage->number[self], (uint64_t)-rc);
    /* All further calls fail with the same text. */
    EXPECT(comm_barrier(c, local, NULL) == rc, "works again after '%s'", err.text);
    if (local == 0)
        snprintf(k->stage->text[self], sizeof(k->stage->text[self]), "%.255s", err.text);
}

/* Every call has returned, because of the event: the processes have ended before the deadline. */
static void assert_out(struct cast *k, uint32_t world, uint32_t but_rank)
{
    for (uint32_t r = 0; r < world; r++)
        if (r != but_rank && atomic_load(&k->stage->number[DONE + r]) == 0)
            fail_msg("the call of rank %u has not returned", r);
}

static uint32_t world_of(const struct cast *k)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < k->n; i++)
        n += k->members[i].n_devices;
    return n;
}

/* ---- abort ---- */

static void *abort_soon(void *arg)
{
    struct cast_thread *t = arg;

    cast_until(t->cast, READY, world_of(t->cast));
    wait_disturb(5000000);
    comm_abort(t->c, "the group is regrouping");
    comm_abort(t->c, "again");
    return NULL;
}

static void scene_abort(struct cast *k, uint32_t self)
{
    struct comm *c = cast_open(k, self);
    struct cast_thread t = { .cast = k, .c = c };

    if (self == 0)
        EXPECT(pthread_create(&t.id, NULL, abort_soon, &t) == 0, "a thread");
    cast_ranks(k, c, self, reduce_until_broken);
    if (self == 0)
        pthread_join(t.id, NULL);
    else
        cast_until_told(k, self);
    comm_close(c);
}

static void abort_by_any_thread_ends_every_call_of_every_peer(void **state)
{
    struct cast k;

    (void)state;
    for (size_t i = 0; layouts[i] != NULL; i++) {
        begin(&k, layouts[i], true);
        cast_play(&k, scene_abort);
        assert_out(&k, world_of(&k), UINT32_MAX);
        assert_int_equal(atomic_load(&k.stage->number[0]), -ERR_CANCELED);
        assert_int_equal(atomic_load(&k.stage->told[0]), 0); /* its own abort is not reported */
        for (uint32_t m = 1; m < k.n; m++) {
            assert_int_equal(atomic_load(&k.stage->number[m]), -ERR_PEER);
            assert_int_equal(atomic_load(&k.stage->told[m]), 1); /* member 0 */
            assert_string_equal(k.stage->why[m], "worker 0: the group is regrouping");
            assert_string_equal(k.stage->text[m], k.stage->why[m]);
        }
        cast_fini(&k);
    }
}

static void sleep_in_barrier(struct cast *k, struct comm *c, uint32_t self, uint32_t local)
{
    struct err err;

    atomic_fetch_add(&k->stage->number[READY], 1);
    EXPECT(comm_barrier(c, local, &err) < 0, "the barrier let rank %u through", local);
    atomic_store(&k->stage->number[DONE + comm_first_rank(c) + local], 1);
    (void)self;
}

static void scene_abort_sleepers(struct cast *k, uint32_t self)
{
    struct comm *c = cast_open(k, self);

    if (self != 0) {
        cast_ranks(k, c, self, sleep_in_barrier);
        cast_until_told(k, self);
    } else { /* no rank of this member enters the barrier: the other ranks sleep, they do not
                spin */
        cast_until(k, READY, world_of(k) - k->members[0].n_devices);
        for (uint32_t m = 1; m < k->n; m++)
            cast_until_asleep(k, m);
        comm_abort(c, "enough");
        for (uint32_t r = 0; r < k->members[0].n_devices; r++)
            atomic_store(&k->stage->number[DONE + r], 1);
    }
    comm_close(c);
}

static void abort_wakes_sleeping_ranks(void **state)
{
    struct cast k;

    (void)state;
    for (size_t i = 0; layouts[i] != NULL; i++) {
        begin(&k, layouts[i], i % 2 == 0);
        cast_play(&k, scene_abort_sleepers);
        assert_out(&k, world_of(&k), UINT32_MAX);
        cast_fini(&k);
    }
}

/* ---- death ---- */

static void scene_survive(struct cast *k, uint32_t self)
{
    struct comm *c = cast_open(k, self);

    cast_ranks(k, c, self, reduce_until_broken);
    cast_until_told(k, self);
    comm_close(c);
}

static void killed_peer_is_named_by_every_survivor_at_once(void **state)
{
    struct cast k;

    (void)state;
    for (size_t i = 0; layouts[i] != NULL; i++) {
        /* the leader of a host, and another member */
        for (uint32_t victim = 0; victim < 2; victim++) {
            uint32_t rank = victim == 0 ? 0 : 1;

            if (victim == 0 && layouts[i][1] == '2')
                continue; /* one rank per victim */
            begin(&k, layouts[i], true);
            if (k.members[0].n_devices == 2)
                rank = 2;
            k.expect_signal[victim] = SIGKILL;
            cast_start(&k, scene_survive);
            cast_until(&k, READY, world_of(&k));
            kill(k.pids[victim], SIGKILL);
            cast_join(&k);
            assert_out(&k, world_of(&k), rank);
            for (uint32_t m = 0; m < k.n; m++) {
                char name[32];

                if (m == victim)
                    continue;
                snprintf(name, sizeof(name), "worker %u", victim);
                assert_int_equal(atomic_load(&k.stage->number[m]), -ERR_PEER);
                assert_int_equal(atomic_load(&k.stage->told[m]), victim + 1);
                assert_non_null(strstr(k.stage->why[m], name));
            }
            cast_fini(&k);
        }
    }
}

static void scene_abort_past_a_stopped_leader(struct cast *k, uint32_t self)
{
    struct comm *c = cast_open(k, self);
    struct cast_thread t = { .cast = k, .c = c };

    atomic_fetch_add(&k->stage->number[READY], 1);
    if (self == 0)
        for (;;)
            pause();
    cast_until(k, READY, 4); /* the test has suspended the leader */
    if (self == 1)
        EXPECT(pthread_create(&t.id, NULL, abort_soon, &t) == 0, "a thread");
    sleep_in_barrier(k, c, self, 0);
    if (self == 1)
        pthread_join(t.id, NULL);
    else
        cast_until_told(k, self);
    comm_close(c);
}

static void suspended_leader_abort_still_reaches_the_host(void **state)
{
    struct cast k;

    (void)state;
    begin(&k, "A1 A1 A1", true);
    k.expect_signal[0] = SIGKILL;
    cast_start(&k, scene_abort_past_a_stopped_leader);
    cast_until(&k, READY, 3);
    kill(k.pids[0], SIGSTOP);
    atomic_fetch_add(&k.stage->number[READY], 1);
    cast_until(&k, DONE + 1, 1);
    cast_until(&k, DONE + 2, 1);
    kill(k.pids[0], SIGKILL);
    cast_join(&k);
    assert_out(&k, 3, 0);
    cast_fini(&k);
}

/* ---- survivors regroup ---- */

static void scene_regroup(struct cast *k, uint32_t self)
{
    struct comm *c = cast_open(k, self);
    struct comm_opts o = cast_opts(k, self);
    float *data = data_of(k, self, 0);
    struct err err;

    reduce_until_broken(k, c, self, 0);
    comm_close(c);
    /* Opens generation 2 without member 1, on the same listeners. */
    k->members[1] = k->members[2];
    o.view.n_members = 2;
    o.view.self = self == 0 ? 0 : 1;
    o.view.generation = 2;
    EXPECT(cast_connect(&o, &c, &err) == 0, "%s", err.text);
    EXPECT(comm_world(c) == 2, "world %u", comm_world(c));
    data[0] = (float)self;
    EXPECT(comm_all_reduce(c, 0, data, 1, TENSOR_F32, COMM_SUM, &err) == 0, "%s", err.text);
    EXPECT(data[0] == 2, "the sum is %g", (double)data[0]);
    comm_close(c);
}

static void survivors_connect_in_the_next_generation(void **state)
{
    static const char *const groups[] = { "A1 A1 A1", "A1 B1 C1" };
    struct cast k;

    (void)state;
    for (int i = 0; i < 2; i++) {
        begin(&k, groups[i], true);
        k.expect_signal[1] = SIGKILL;
        cast_start(&k, scene_regroup);
        cast_until(&k, READY, 3);
        kill(k.pids[1], SIGKILL);
        cast_join(&k);
        cast_fini(&k);
    }
}

/* ---- late ranks ---- */

static void scene_late(struct cast *k, uint32_t self)
{
    struct comm *c = cast_open(k, self);
    uint32_t last = k->n - 1;
    char limit[32];
    struct err err;

    snprintf(limit, sizeof(limit), "within %.3g s", (double)k->deadline_ms / 1e3);
    if (self == last) { /* its process runs, but it never enters the call */
        cast_until_told(k, self);
        EXPECT(strstr(k->stage->why[self], "worker 1)") != NULL, "%s", k->stage->why[self]);
    } else {
        int rc = comm_all_reduce(c, 0, data_of(k, self, 0), ELEMENTS, TENSOR_F32, COMM_SUM, &err);

        EXPECT(rc == ERR_TIMEOUT || k->n > 2, "%d: %s", rc, err.text);
        EXPECT(strstr(err.text, "rank 1 (worker 1)") != NULL &&
                   strstr(err.text, "call 1, all-reduce") && strstr(err.text, limit),
               "%s", err.text);
    }
    comm_close(c);
}

static void late_rank_is_named_at_the_deadline(void **state)
{
    struct cast k;

    (void)state;
    for (int shared = 0; shared < 2; shared++)
        for (uint64_t ms = CAST_SHORT_MS; ms != 0; cast_fini(&k)) {
            begin(&k, "A1 A1", shared);
            k.deadline_ms = ms;
            cast_start(&k, scene_late);
            ms = cast_judge(&k);
        }
}

/* ---- different calls ---- */

static void scene_mismatch(struct cast *k, uint32_t self)
{
    struct comm *c = cast_open(k, self);
    struct err err;
    int rc;

    if (self == 0)
        rc = comm_all_reduce(c, 0, data_of(k, self, 0), 1000, TENSOR_F32, COMM_SUM, &err);
    else
        rc = comm_all_reduce(c, 0, data_of(k, self, 0), 1001, TENSOR_F32, COMM_SUM, &err);
    EXPECT(rc == ERR_PEER, "%d", rc);
    EXPECT(strstr(err.text, "rank 0") && strstr(err.text, "rank 1") &&
               strstr(err.text, "1000 float32") && strstr(err.text, "1001 float32"),
           "%s", err.text);
    comm_close(c);
}

static void different_calls_both_ranks_are_named(void **state)
{
    struct cast k;

    (void)state;
    for (int shared = 0; shared < 2; shared++) {
        begin(&k, "A1 A1", shared);
        cast_play(&k, scene_mismatch);
        cast_fini(&k);
    }
}

/* ---- departure ---- */

static void scene_leave(struct cast *k, uint32_t self)
{
    struct comm *c = cast_open(k, self);
    struct err err;
    int rc;

    EXPECT(comm_all_reduce(c, 0, data_of(k, self, 0), 1000, TENSOR_F32, COMM_SUM, &err) == 0, "%s",
           err.text);
    if (self == 0) {
        comm_close(c); /* the leader closes at once; the others later */
        return;
    }
    wait_disturb(60000000); /* wrong code would report the departed leader */
    EXPECT(atomic_load(&k->stage->told[self]) == 0, "on_broken was called: %s",
           k->stage->why[self]);
    if (self == 1) { /* one call more than the others */
        rc = comm_all_reduce(c, 0, data_of(k, self, 0), 1000, TENSOR_F32, COMM_SUM, &err);
        EXPECT(rc == ERR_PEER && strstr(err.text, "rank 0 (worker 0) has left") != NULL, "%d: %s",
               rc, err.text);
    }
    comm_close(c);
}

static void peer_closes_in_order_nothing_is_reported(void **state)
{
    struct cast k;

    (void)state;
    for (int i = 0; i < 3; i++) {
        begin(&k, i == 2 ? "A1 B1" : "A1 A1", i != 1);
        cast_play(&k, scene_leave);
        cast_fini(&k);
    }
}

/* ---- injected faults ---- */

static void scene_fault(struct cast *k, uint32_t self)
{
    struct comm_opts o = cast_opts(k, self);
    struct comm *c = NULL;
    struct err err;
    char spec[64];
    int rc;

    snprintf(spec, sizeof(spec), "*@%llu", (unsigned long long)atomic_load(&k->stage->number[AT]));
    if (self == 0)
        EXPECT(fault_arm(spec, &err) == 0, "%s", err.text);
    rc = cast_connect(&o, &c, &err);
    if (rc == 0)
        rc = comm_all_reduce(c, 0, data_of(k, self, 0), 20000, TENSOR_F32, COMM_SUM, &err);
    if (rc < 0) /* an error with a text, no hang */
        EXPECT(
            (rc == ERR_PEER || (self == 0 ? rc == ERR_NOMEM || rc == ERR_IO : rc == ERR_TIMEOUT)) &&
                err.text[0] != '\0',
            "%s: %s", spec, err.text);
    comm_close(c);
    if (self == 0)
        atomic_store(&k->stage->number[READY], fault_fired());
}

static void single_fault_at_any_point_ends_with_an_error_or_success(void **state)
{
    static const char *const groups[] = { "A1 A1", "A1 B1", "A1 A1 B1 B1" };
    struct cast k;

    (void)state;
    for (int i = 0; i < 3; i++) {
        bool fired = true;

        for (uint64_t n = 1; fired && n < 60; n++)
            for (uint64_t ms = CAST_SHORT_MS; ms != 0; cast_fini(&k)) {
                begin(&k, groups[i], true);
                k.deadline_ms = ms; /* a member that never connects is only missing */
                atomic_store(&k.stage->number[AT], n);
                cast_start(&k, scene_fault);
                ms = cast_judge(&k);
                fired = atomic_load(&k.stage->number[READY]) != 0;
            }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(abort_by_any_thread_ends_every_call_of_every_peer),
        cmocka_unit_test(abort_wakes_sleeping_ranks),
        cmocka_unit_test(killed_peer_is_named_by_every_survivor_at_once),
        cmocka_unit_test(suspended_leader_abort_still_reaches_the_host),
        cmocka_unit_test(survivors_connect_in_the_next_generation),
        cmocka_unit_test(late_rank_is_named_at_the_deadline),
        cmocka_unit_test(different_calls_both_ranks_are_named),
        cmocka_unit_test(peer_closes_in_order_nothing_is_reported),
        cmocka_unit_test(single_fault_at_any_point_ends_with_an_error_or_success),
    };
    int failed;

    signal(SIGPIPE, SIG_IGN); /* as the daemon: OpenSSL writes without MSG_NOSIGNAL */
    failed = cmocka_run_group_tests_name("comm/break", tests, NULL, NULL);
    cast_encrypts = true;
    return failed + cmocka_run_group_tests_name("comm/break under TLS", tests, NULL, NULL);
}
