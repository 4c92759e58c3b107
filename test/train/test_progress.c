/* test_progress.c - the places of the threads of a task: which place is reported, and the order of
 * tasks that wait for each other. One thread simulates all threads. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "base/clock.h"
#include "engine/engine.h"
#include "train/progress.h"
#include "train/train.h"

enum { DEADLINE_MS = 20000, BUCKETS = 5, STEP = 8 };

struct task {
    struct engine engine;
    struct engine_opts opts;
    struct engine_replica replicas[2], *pointers[2];
    double stuck_factor;
};

/* The tests that use it freeze the clock first. */
static void advance_ms(uint64_t ms)
{
    clock_fake(clock_ns() + ms * 1000000);
}

static void one_step(struct engine_replica *r, uint64_t step)
{
    place_step(&r->place, step);
    place_enter(&r->place, PHASE_LANE);
    for (uint32_t b = 0; b + 1 < BUCKETS; b++)
        place_bucket(&r->helper_place, step, b);
    place_wait(&r->helper_place, PLACE_WAITS_LOCAL);
    place_bucket(&r->place, step, BUCKETS - 1);
    place_enter(&r->place, PHASE_CHECK);
    place_enter(&r->place, PHASE_UPDATE);
    place_enter(&r->place, PHASE_BETWEEN);
}

/* Starts a generation that has finished all steps before STEP. */
static void task_begin(struct task *k, uint32_t n_devices)
{
    memset(k, 0, sizeof(*k));
    k->opts.n_devices = n_devices;
    k->engine.opts = &k->opts;
    k->engine.replicas = k->pointers;
    k->stuck_factor = 10;
    for (uint32_t i = 0; i < n_devices; i++) {
        k->pointers[i] = &k->replicas[i];
        place_start(&k->replicas[i].place, 0, PLACE_WORKS);
        place_start(&k->replicas[i].helper_place, 0, PLACE_WAITS_LOCAL);
        for (uint64_t step = 1; step < STEP; step++)
            one_step(&k->replicas[i], step);
        place_step(&k->replicas[i].place, STEP);
        place_enter(&k->replicas[i].place, PHASE_LANE);
    }
}

static struct train_progress at(const struct task *k)
{
    struct train_progress p;

    progress_of(&k->engine, DEADLINE_MS, k->stuck_factor, &p);
    return p;
}

/* Enters a bucket. The replica reduces the last bucket and waits for the reducer in the others. */
static struct place *to_bucket(struct task *k, uint32_t replica, uint32_t bucket)
{
    struct engine_replica *r = &k->replicas[replica];
    struct place *p = bucket + 1 == BUCKETS ? &r->place : &r->helper_place;

    place_bucket(&r->place, STEP, BUCKETS - 1);
    if (p != &r->place)
        place_wait(&r->place, PLACE_WAITS_LOCAL);
    place_bucket(p, STEP, bucket);
    return p;
}

static void task_hung_in_a_bucket_ranks_below_all_that_wait_for_it(void **state)
{
    struct task hangs, waits, ahead;
    uint64_t before = 0;

    (void)state;
    for (uint32_t bucket = 0; bucket < BUCKETS; bucket++) {
        struct train_progress h, w;

        task_begin(&hangs, 1);
        task_begin(&waits, 1);
        task_begin(&ahead, 1);
        to_bucket(&hangs, 0, bucket);
        place_wait(to_bucket(&waits, 0, bucket), PLACE_WAITS_PEERS);
        h = at(&hangs);
        w = at(&waits);
        assert_string_equal(h.phase, "reduce");
        assert_string_equal(w.phase, "reduce");
        assert_true(h.step == STEP && h.limit_ms >= 3000 && h.limit_ms <= DEADLINE_MS);
        assert_int_equal(w.limit_ms, 0); /* no limit: it waits for peers */
        assert_true(h.place < w.place && h.place > before);
        if (bucket + 1 < BUCKETS) { /* a peer may already have received everything from this task */
            place_wait(to_bucket(&ahead, 0, bucket + 1), PLACE_WAITS_PEERS);
            assert_true(w.place < at(&ahead).place);
        }
        before = h.place;
    }
    place_enter(&hangs.replicas[0].place, PHASE_UPDATE);
    assert_true(at(&hangs).place > at(&waits).place);
}

static void task_that_waits_for_its_writer_ranks_below_all_that_wait_for_it(void **state)
{
    struct task writes, waits;

    (void)state;
    task_begin(&writes, 1);
    task_begin(&waits, 1);
    place_enter(&writes.replicas[0].place, PHASE_WRITER);
    place_wait(to_bucket(&waits, 0, 0), PLACE_WAITS_PEERS);
    assert_true(at(&writes).place < at(&waits).place);
    assert_string_equal(at(&writes).phase, "wait for the last checkpoint");
    assert_int_equal(at(&writes).limit_ms, 0); /* the writer has its own */
}

/* One task holds the state of step 7, the other one has just joined. */
static void task_hung_before_the_first_step_ranks_below_all_others(void **state)
{
    static const enum phase phases[] = { PHASE_START, PHASE_LOAD, PHASE_CONNECT, PHASE_NCCL, PHASE_AGREE, PHASE_TRANSFER };
    struct task old, new;
    uint64_t before = 0;

    (void)state;
    for (int i = 0; i < 6; i++)
        for (int old_hangs = 0; old_hangs < 2; old_hangs++) {
            struct train_progress h, w;

            task_begin(&old, 1);
            task_begin(&new, 1);
            place_step(&new.replicas[0].place, 0);
            place_enter(&old.replicas[0].place, phases[i]);
            place_enter(&new.replicas[0].place, phases[i]);
            place_wait(&(old_hangs ? &new : &old)->replicas[0].place, PLACE_WAITS_PEERS);
            h = at(old_hangs ? &old : &new);
            w = at(old_hangs ? &new : &old);
            assert_true(before < h.place && h.place < w.place);
            assert_int_equal(h.limit_ms, DEADLINE_MS);
            assert_int_equal(w.limit_ms, 0);
            /* the reported step is the one that the task holds */
            assert_int_equal(at(&old).step, STEP);
            if (old_hangs)
                before = w.place;
        }
    place_chunk(&old.replicas[0].place, 7);
    place_wait(&old.replicas[0].place, PLACE_WAITS_PEERS);
    place_chunk(&new.replicas[0].place, 8);
    assert_true(before < at(&old).place && at(&old).place < at(&new).place);
    place_chunk(&new.replicas[0].place, UINT32_MAX);
    place_step(&old.replicas[0].place, 1);
    assert_true(at(&new).place < at(&old).place);
}

static void places_fit_and_increase_up_to_the_maximum_step_and_bucket(void **state)
{
    struct task k;
    struct train_progress p;
    uint64_t steps[] = { 1, UINT64_C(999999999999), UINT64_C(1000000000000) }, before = 0;

    (void)state;
    task_begin(&k, 1);
    for (int i = 0; i < 3; i++)
        for (int phase = 0; phase < 2; phase++) {
            if (phase == 0)
                place_bucket(&k.replicas[0].place, steps[i], UINT32_MAX);
            else
                place_enter(&k.replicas[0].place, PHASE_EXPORT); /* the last of all phases */
            p = at(&k);
            assert_true(p.place > before && p.place < UINT64_C(1) << 62 && p.step == steps[i]);
            before = p.place;
        }
}

static void task_while_its_replica_computes_reports_the_replica(void **state)
{
    struct task k;
    uint64_t computes;

    (void)state;
    task_begin(&k, 1);
    computes = at(&k).place;
    place_bucket(&k.replicas[0].helper_place, STEP, 0);
    assert_int_equal(at(&k).place, computes);
    assert_string_equal(at(&k).phase, "forward and backward");
    to_bucket(&k, 0, 1);
    assert_string_equal(at(&k).phase, "reduce");
    assert_true(at(&k).place > computes);
}

static void task_with_two_replicas_reports_the_one_that_does_not_wait(void **state)
{
    struct task k;
    struct place *p;
    uint64_t since;

    (void)state;
    task_begin(&k, 2);
    place_wait(to_bucket(&k, 0, 2), PLACE_WAITS_PEERS);
    p = to_bucket(&k, 1, 2);
    since = p->since_ns;
    assert_true(at(&k).since_ns == since && at(&k).limit_ms >= 3000);
    place_wait(p, PLACE_WAITS_PEERS);
    assert_int_equal(at(&k).limit_ms, 0);
    /* and waits at the same place as the other replica */
    place_enter(&k.replicas[0].place, PHASE_CHECK);
    place_wait(&k.replicas[0].place, PLACE_WAITS_LOCAL);
    place_wait(&k.replicas[0].helper_place, PLACE_WAITS_LOCAL);
    place_enter(&k.replicas[1].place, PHASE_CHECK);
    place_wait(&k.replicas[1].helper_place, PLACE_WAITS_LOCAL);
    assert_string_equal(at(&k).phase, "check the gradient");
    assert_true(at(&k).since_ns == k.replicas[1].place.since_ns && at(&k).limit_ms >= 3000);
}

static void thread_that_stops_renewing_its_wait_counts_as_hung(void **state)
{
    struct task hangs, waits;
    struct place *h, *w;
    uint64_t begin = clock_ns();

    (void)state;
    clock_fake(begin);
    task_begin(&hangs, 1);
    task_begin(&waits, 1);
    h = to_bucket(&hangs, 0, 1);
    w = to_bucket(&waits, 0, 1);
    place_wait(h, PLACE_WAITS_PEERS);
    place_wait(w, PLACE_WAITS_PEERS);
    assert_int_equal(at(&hangs).place, at(&waits).place);
    while (clock_ns() - begin < 1100 * UINT64_C(1000000)) {
        place_wait(w, PLACE_WAITS_PEERS);
        advance_ms(50);
    }
    place_wait(w, PLACE_WAITS_PEERS);
    assert_true(at(&hangs).place < at(&waits).place);
    assert_true(at(&hangs).limit_ms >= 3000 && at(&hangs).since_ns == h->stated_ns);
    assert_true(at(&waits).limit_ms == 0 && at(&waits).since_ns == w->since_ns);
    place_wait(h, PLACE_WAITS_PEERS); /* renewed after the limit */
    assert_int_equal(at(&hangs).place, at(&waits).place);
    clock_fake(UINT64_MAX);
}

static void limit_without_history_is_the_deadline(void **state)
{
    struct task k;

    (void)state;
    task_begin(&k, 1);
    place_start(&k.replicas[0].place, 0, PLACE_WORKS);
    place_start(&k.replicas[0].helper_place, 0, PLACE_WAITS_LOCAL);
    place_step(&k.replicas[0].place, 1);
    assert_int_equal(at(&k).limit_ms, DEADLINE_MS);
    to_bucket(&k, 0, 0);
    assert_int_equal(at(&k).limit_ms, DEADLINE_MS);
    place_enter(&k.replicas[0].place, PHASE_DATA); /* this phase has its own deadline */
    assert_int_equal(at(&k).limit_ms, 0);
    task_begin(&k, 1);
    k.stuck_factor = 0;
    to_bucket(&k, 0, 1);
    assert_int_equal(at(&k).limit_ms, DEADLINE_MS);
}

static void duration_of_a_phase_excludes_waits(void **state)
{
    enum { WORK_MS = 20, PEERS_MS = 250 };
    uint64_t limit;
    struct task k;

    (void)state;
    clock_fake(clock_ns());
    task_begin(&k, 1);
    k.stuck_factor = 100;
    for (uint32_t bucket = 0; bucket + 1 < BUCKETS; bucket++) {
        struct place *p = to_bucket(&k, 0, bucket);

        advance_ms(WORK_MS);
        place_wait(p, PLACE_WAITS_PEERS);
        advance_ms(PEERS_MS);
        place_wait(p, PLACE_WORKS);
    }
    place_bucket(&k.replicas[0].helper_place, STEP + 1, 0);
    limit = at(&k).limit_ms;
    clock_fake(UINT64_MAX);
    /* with the waits the limit would be the deadline */
    assert_in_range(limit, WORK_MS * 100, WORK_MS * (BUCKETS - 1) * 100);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(task_hung_in_a_bucket_ranks_below_all_that_wait_for_it),
        cmocka_unit_test(task_that_waits_for_its_writer_ranks_below_all_that_wait_for_it),
        cmocka_unit_test(task_hung_before_the_first_step_ranks_below_all_others),
        cmocka_unit_test(places_fit_and_increase_up_to_the_maximum_step_and_bucket),
        cmocka_unit_test(task_while_its_replica_computes_reports_the_replica),
        cmocka_unit_test(task_with_two_replicas_reports_the_one_that_does_not_wait),
        cmocka_unit_test(thread_that_stops_renewing_its_wait_counts_as_hung),
        cmocka_unit_test(limit_without_history_is_the_deadline),
        cmocka_unit_test(duration_of_a_phase_excludes_waits),
    };

    return cmocka_run_group_tests_name("train/progress", tests, NULL, NULL);
}
