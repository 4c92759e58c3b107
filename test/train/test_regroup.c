/* test_regroup.c - many generations: whichever task joins, leaves, is killed or hangs, at any
 * moment, the others continue with the same bits, and every step and evaluation is reported once.
 * Tasks are processes. */
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>

#include "base/check.h"
#include "base/rng.h"
#include "comm/pieces.h"
#include "harness/ring.h"
#include "train/regroup.h"

/* Slow steps, so that a request of the test precedes the end of the job even if it is late. */
#define SLOWLY "train.forward=delay:100@3+"

static void group_shrunk_and_grown_has_equal_bits_in_every_step(void **state)
{
    static const char *const layouts[] = { "AAAA", "AABB", "ABCA" };

    (void)state;
    for (size_t i = EVERY / 2; i < COUNT_OF(layouts); i += EVERY) {
        struct troupe *k = new_troupe(layouts[i], 1);

        troupe_start_with(k, 3, SLOWLY);
        troupe_until(k, 3);
        troupe_pause(k, 2);
        for (uint32_t t = 1; t < k->n; t++) {
            assert_int_equal(k->tasks[t].last.end, TRAIN_PAUSED);
            assert_int_equal(k->tasks[t].held, k->tasks[0].held);
        }
        troupe_kill(k, 1);
        troupe_start_with(k, 3, SLOWLY); /* three tasks */
        troupe_until(k, 6);
        troupe_pause(k, 0);
        assert_int_equal(k->tasks[3].last.end, TRAIN_PAUSED);
        troupe_kill(k, 0);
        /* task 1 rejoins without state; the new coordinator has no state either */
        troupe_enter(k, 1);
        troupe_start_with(k, 3, SLOWLY); /* three other tasks */
        troupe_until(k, 8);
        troupe_pause(k, 3);
        troupe_enter(k, 0);
        memset(&k->stage->tasks[0], 0, sizeof(k->stage->tasks[0]));
        assert_int_equal(troupe_to_the_end(k), 1);
        assert_non_null(strstr(k->stage->tasks[0].notes, "received the state after step "));
        expect_told(k, 2, 1, layouts[i]);
        expect_told(k, 3, 1, layouts[i]);
        expect_same_end(k, layouts[i]);
        troupe_free(k);
    }
}

static int by_lane(const void *a, const void *b)
{
    const struct group_piece *x = a, *y = b;

    return (x->first > y->first) - (x->first < y->first);
}

/* Divides the lanes at random among the ranks. */
static void divide(struct troupe *k, uint32_t *at)
{
    const struct rng_key key = { .seed = 20261127 };
    uint32_t lanes = 4 * LANES_EACH;
    struct err err;

    do {
        uint32_t mask = rng_u32(&key, (*at)++) % lanes;
        double seconds[TASKS_MAX];

        for (uint32_t i = 0; i < k->n; i++)
            seconds[i] = 1 + rng_u32(&key, (*at)++) % 7;
        k->n_pieces = pieces_plan(seconds, k->n, lanes, lanes, k->pieces);
        for (uint32_t i = 0; i < k->n_pieces; i++)
            k->pieces[i].first ^= mask & ~(k->pieces[i].n - 1);
        qsort(k->pieces, k->n_pieces, sizeof(*k->pieces), by_lane);
    } while (k->n_pieces <= k->n ||
             pieces_check(k->pieces, k->n_pieces, lanes, k->n, lanes, &err) < 0);
}

/* Each generation has another division; evaluations and checksums are part of the job. */
static void lanes_divided_unevenly_have_equal_bits_in_every_step(void **state)
{
    static const char *const layouts[] = { "AAA", "ABC", "AAB", "ABA" };
    uint32_t at = 0;

    (void)state;
    if (fixture_on_gpus())
        return; /* replicas on GPUs have equal shares */
    for (size_t i = 0; i < COUNT_OF(layouts); i += EVERY) {
        struct troupe *k = new_troupe(layouts[i], 1);

        for (uint64_t step = 3; step <= 9; step += 3) {
            divide(k, &at);
            troupe_start_with(k, 1, SLOWLY);
            troupe_until(k, step);
            troupe_pause(k, 0);
            assert_int_equal(k->tasks[1].last.end, TRAIN_PAUSED);
        }
        divide(k, &at);
        assert_int_equal(troupe_to_the_end(k), 1);
        for (uint32_t t = 0; t < k->n; t++)
            expect_told(k, t, 1, layouts[i]);
        expect_same_end(k, layouts[i]);
        troupe_free(k);
    }
}

static void task_with_pieces_killed_in_an_all_reduce_loses_no_bit(void **state)
{
    static const char *const faults[] = { "train.lane=kill@9", "train.bucket=kill@3",
                                          "comm.write=kill@4", "train.reduce=kill@2",
                                          "train.evaluated=kill@1" };
    static const char *const layouts[] = { "AAA", "ABB" };
    uint32_t at = 1000;

    (void)state;
    for (size_t i = 0; i < 2 * COUNT_OF(faults) && !fixture_on_gpus(); i += ring_count(3, EVERY)) {
        struct troupe *k = new_troupe(layouts[i % 2], 1);

        divide(k, &at);
        troupe_start_with(k, 1, faults[i / 2]);
        troupe_wait(k);
        if (k->tasks[1].pid != 0)
            fail_msg("%s in %s: it lives", faults[i / 2], layouts[i % 2]);
        k->n_pieces = 0; /* of two tasks */
        troupe_start_with(k, 2, SLOWLY);
        troupe_until(k, 8);
        troupe_pause(k, 0);
        troupe_enter(k, 1);
        divide(k, &at);
        assert_int_equal(troupe_to_the_end(k), 1);
        expect_told(k, 0, 1, faults[i / 2]);
        expect_told(k, 2, 1, faults[i / 2]);
        expect_same_end(k, faults[i / 2]);
        troupe_free(k);
    }
}

static void single_remaining_task_completes_the_job(void **state)
{
    struct troupe *k = new_troupe("AABB", 1);

    (void)state;
    troupe_start(k);
    troupe_until(k, 2);
    troupe_kill(k, 0);
    troupe_order_all(k, ORDER_ABORT);
    troupe_wait(k);
    troupe_start(k);
    troupe_until(k, 4);
    troupe_kill(k, 2);
    troupe_kill(k, 3);
    troupe_order_all(k, ORDER_ABORT);
    troupe_wait(k);
    (void)troupe_to_the_end(k);
    expect_told(k, 1, 1, "the last one");
    expect_same_end(k, "the last one");
    troupe_free(k);
}

static void replicas_with_unequal_shares_have_equal_bits(void **state)
{
    struct troupe *k;

    (void)state;
    k = new_troupe("AB", 2); /* two replicas each */
    troupe_start(k);
    troupe_until(k, 5);
    troupe_kill(k, 0);
    troupe_order_all(k, ORDER_ABORT);
    troupe_wait(k);
    troupe_start(k); /* two slots for each replica */
    troupe_until(k, 7);
    troupe_pause(k, 1);
    troupe_enter(k, 0);
    (void)troupe_to_the_end(k);
    expect_told(k, 1, 1, "two replicas");
    expect_same_end(k, "two replicas");
    troupe_free(k);
}

/* Waits until tasks 0 and 2 wait in a call for task 1, which is suspended. */
static void until_others_wait(const struct troupe *k)
{
    int n_asleep = 0;

    WAIT_UNTIL((n_asleep = wait_is_asleep(k->tasks[0].pid, 0) && wait_is_asleep(k->tasks[2].pid, 0)
                               ? n_asleep + 1
                               : 0) == 20);
}

/* A suspended task continues to write to shared memory when it resumes: its peers must no longer
 * read there. */
static void task_resumed_after_a_stop_does_not_change_others(void **state)
{
    static const char *const faults[] = { "train.bucket=stop@8", "train.commit=stop@3" };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(faults); i++) {
        struct troupe *k = new_troupe("AAA", 1);
        uint64_t region;

        troupe_start_with(k, 1, faults[i]);
        troupe_until_stopped(k, 1);
        region = k->stage->tasks[0].region;
        until_others_wait(k);
        troupe_order_all(k, ORDER_ABORT);
        troupe_wait(k);
        troupe_start(k);
        troupe_until(k, 4);
        /* GPUs wait for each other in NCCL, so no task is in a call in shared memory. */
        assert_true(region != 0 && (fixture_on_gpus() || k->stage->tasks[0].region != region));
        assert_int_equal(kill(k->tasks[1].pid, SIGCONT), 0);
        troupe_wait(k);
        (void)troupe_to_the_end(k);
        expect_told(k, 0, 1, faults[i]);
        expect_same_end(k, faults[i]);
        troupe_free(k);
    }
}

/* Returns two tasks of which task 0 has finished step 6 and task 1 has not: task 1 has sent its
 * part of the all-reduce but not received the sum. Task 1 waits before it fails, longer on a busy
 * machine. */
static struct troupe *one_step_apart(void)
{
    struct troupe *k = NULL;

    for (int ms = 50; k == NULL || k->tasks[0].held != 6; ms *= 6) {
        char fault[64];

        assert_true(ms < 5000);
        if (k != NULL)
            troupe_free(k);
        k = new_troupe("AB", 1);
        snprintf(fault, sizeof(fault), "train.commit=delay:%d@6,train.commit@6", ms);
        troupe_start_with(k, 1, fault);
        troupe_wait(k);
        assert_int_equal(k->tasks[1].held, 5);
    }
    return k;
}

static void state_sender_killed_receivers_keep_their_state(void **state)
{
    struct troupe *k = one_step_apart();
    uint64_t held;

    (void)state;
    troupe_start_with(k, 0, "train.state_send=kill@3");
    troupe_wait(k);
    held = k->tasks[1].held;
    assert_int_equal(held, 5);
    (void)troupe_to_the_end(k);
    expect_told(k, 1, 1, "the sender died");
    expect_same_end(k, "the sender died");
    troupe_free(k);
}

static void pause_delays_an_evaluation_only_once(void **state)
{
    struct troupe *k = new_troupe("AAB", 1);

    (void)state;
    for (uint64_t at = EVAL_STEPS - 1; at < FEW; at += EVAL_STEPS) {
        uint64_t region = k->stage->tasks[0].region;

        troupe_start_with(k, 0, "train.forward=delay:60@2+");
        troupe_until(k, at);
        troupe_pause(k, 1);
        /* all tasks have unmapped it */
        assert_true(region == 0 || region == k->stage->tasks[0].region);
    }
    (void)troupe_to_the_end(k);
    for (uint32_t i = 0; i < k->n; i++)
        expect_told(k, i, 1, "pauses");
    expect_same_end(k, "pauses");
    troupe_free(k);
}

static void coordinator_without_a_log_line_informs_each_other_task(void **state)
{
    struct troupe *k = new_troupe("AAB", 1);

    (void)state;
    k->stage->unlogged_steps = UINT64_C(1) << 5 | UINT64_C(1) << FEW;
    troupe_start_with(k, 0, "train.forward=delay:60@2+");
    troupe_until(k, 2);
    troupe_pause(k, 1); /* the lines of the last step of a generation are decided at its end */
    (void)troupe_to_the_end(k);
    for (uint32_t i = 0; i < k->n; i++)
        for (uint64_t step = 1; step <= FEW; step++) {
            const struct task_stage *s = &k->stage->tasks[i];
            bool missing = step == 5 || step == FEW;

            if ((s->unlogged[step] > 0) != (i > 0 && missing) ||
                (s->logged[step] > 0) != (i > 0 && !missing))
                fail_msg("worker %u: step %llu: logged %u times, not logged %u times", i,
                         (unsigned long long)step, s->logged[step], s->unlogged[step]);
        }
    expect_same_end(k, "log lines");
    troupe_free(k);
}

static uint64_t folders(const char *path)
{
    DIR *d = opendir(path);
    uint64_t n = 0;

    for (struct dirent *e; d != NULL && (e = readdir(d)) != NULL;)
        n += strncmp(e->d_name, "step-", 5) == 0;
    if (d != NULL)
        closedir(d);
    return n;
}

static void checkpoint_is_read_only_if_no_task_holds_state(void **state)
{
    struct troupe *k;
    struct news saved;

    (void)state;
    saves = true;
    k = new_troupe("AAB", 1);
    troupe_start_with(k, 0, SLOWLY);
    troupe_until(k, EVAL_STEPS - 1);
    troupe_pause(k, 1);
    saved = troupe_save(k, 0, DEADLINE_MS);
    if (saved.code != 0)
        fail_msg("%s", saved.text);
    assert_int_equal(troupe_save(k, 0, DEADLINE_MS).code, 0); /* the checkpoint exists */
    assert_int_equal(k->stage->tasks[0].n_saved, 1);
    assert_int_equal(folders(checkpoints), 1);
    for (uint32_t i = 0; i < k->n; i++) {
        troupe_kill(k, i);
        k->stage->tasks[i].step = 0; /* reset for the next process */
    }
    troupe_enter(k, 1);
    troupe_enter(k, 2); /* the writer of the checkpoint does not rejoin */
    troupe_start(k);
    troupe_until(k, 6);
    assert_non_null(strstr(k->stage->tasks[1].resumed, "/step-000000"));
    assert_null(strstr(k->stage->tasks[2].resumed, "/step-000000"));
    assert_non_null(strstr(k->stage->tasks[2].notes, "received the state"));
    troupe_kill(k, 1);
    troupe_order_all(k, ORDER_ABORT);
    troupe_wait(k);
    memset(&k->stage->tasks[2].resumed, 0, sizeof(k->stage->tasks[2].resumed));
    troupe_enter(k, 0);
    /* task 0 coordinates and receives the state from task 2: no file is read */
    (void)troupe_to_the_end(k);
    assert_null(strstr(k->stage->tasks[0].resumed, "/step-"));
    expect_told(k, 2, 1, "checkpoint");
    expect_same_end(k, "checkpoint");
    troupe_free(k);
    saves = false;
}

/* The disk of the leader fails, so that a checkpoint waits; another task leads; then the first one
 * leads again. */
static void former_leader_discards_its_checkpoint(void **state)
{
    struct troupe *k;
    struct news saved;

    (void)state;
    saves = true;
    k = new_troupe("AB", 1);
    troupe_start_with(k, 0, "ckpt.write@1+");
    troupe_until(k, 2);
    troupe_pause(k, 1);
    assert_int_not_equal(troupe_save(k, 0, 10).code, 0);
    /* both generations end before a step is finished */
    for (k->first = 1; k->generation < 3; k->first = 0) {
        uint64_t n = k->generation;

        troupe_start_with(k, 0,
                          n == 1 ? "ckpt.write@1+,train.forward=delay:300@1+"
                                 : "train.forward=delay:300@1+");
        troupe_until_told(&k->stage->tasks[0].n_connected, n + 1);
        troupe_until_told(&k->stage->tasks[0].n_discarded, 1);
        troupe_order_all(k, ORDER_ABORT);
        troupe_wait(k);
    }
    assert_int_equal(k->stage->tasks[0].n_saved, 0);
    saved = troupe_save(k, 0, DEADLINE_MS); /* the step whose checkpoint was discarded */
    if (saved.code != 0)
        fail_msg("%s", saved.text);
    assert_int_equal(k->stage->tasks[0].n_saved, 1);
    (void)troupe_to_the_end(k);
    expect_same_end(k, "another one leads");
    troupe_free(k);
    saves = false;
}

static void checkpoint_due_after_every_step_leaves_the_last_one(void **state)
{
    struct troupe *k;

    (void)state;
    saves = true;
    save_every = 1;
    k = new_troupe("AB", 1);
    troupe_start_with(k, 0, "train.forward=delay:30@1+");
    troupe_wait(k);
    /* a slow disk delays some of them; the last one always exists */
    assert_true(k->stage->tasks[0].n_saved > 2);
    troupe_free(k);
    saves = false;
    save_every = 0;
}

static void chief_killed_while_finishing_has_a_successor(void **state)
{
    static const char *const faults[] = { "train.evaluated=kill@3", "train.save=kill@1",
                                          "train.export=kill@1" };

    (void)state;
    saves = exports = true;
    for (size_t i = 0; i < COUNT_OF(faults); i++) {
        struct troupe *k = new_troupe("AAB", 1);
        struct stat before = { 0 }, after;
        char manifest[192];

        troupe_start_with(k, 0, faults[i]);
        troupe_wait(k);
        assert_int_equal(k->tasks[0].pid, 0);
        assert_int_equal(access(exported, F_OK), -1);
        snprintf(manifest, sizeof(manifest), "%s/step-%08d/manifest.json", checkpoints, FEW);
        assert_int_equal(stat(manifest, &before) == 0, i == 2);
        (void)troupe_to_the_end(k);
        assert_int_equal(stat(manifest, &after), 0);
        if (i == 2)
            assert_int_equal(after.st_ino, before.st_ino);
        assert_int_equal(access(exported, F_OK), 0);
        expect_told(k, 1, 1, faults[i]);
        expect_told(k, 2, 1, faults[i]);
        expect_same_end(k, faults[i]);
        troupe_free(k);
    }
    saves = exports = false;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(group_shrunk_and_grown_has_equal_bits_in_every_step),
        cmocka_unit_test(lanes_divided_unevenly_have_equal_bits_in_every_step),
        cmocka_unit_test(task_with_pieces_killed_in_an_all_reduce_loses_no_bit),
        cmocka_unit_test(single_remaining_task_completes_the_job),
        cmocka_unit_test(replicas_with_unequal_shares_have_equal_bits),
        cmocka_unit_test(task_resumed_after_a_stop_does_not_change_others),
        cmocka_unit_test(state_sender_killed_receivers_keep_their_state),
        cmocka_unit_test(pause_delays_an_evaluation_only_once),
        cmocka_unit_test(coordinator_without_a_log_line_informs_each_other_task),
        cmocka_unit_test(checkpoint_is_read_only_if_no_task_holds_state),
        cmocka_unit_test(former_leader_discards_its_checkpoint),
        cmocka_unit_test(checkpoint_due_after_every_step_leaves_the_last_one),
        cmocka_unit_test(chief_killed_while_finishing_has_a_successor),
    };

    return cmocka_run_group_tests_name("train/regroup", tests, run_undisturbed, forget_undisturbed);
}
