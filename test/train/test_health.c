/* test_health.c - tasks compare checksums of their state: a divergent task is named and receives
 * the state of the others, and divergent state is never written. Tasks are processes; the test is
 * their coordinator. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/check.h"
#include "train/troupe.h"

enum { FEW = 12 };

/* Errors that the tasks reported; in memory shared with them. */
static struct heard {
    _Atomic uint32_t differs, warnings;
    char text[TASKS_MAX][600];
} *heard;

static struct {
    uint64_t weigh_every, save_every;
    uint32_t tasks_planned;
} job = { .weigh_every = 1, .tasks_planned = 4 };
static char checkpoints[128];

static void hear(void *arg, const struct train_event *e)
{
    struct player *p = arg;

    if (e->kind == TRAIN_DIFFERS) {
        heard->differs++;
        snprintf(heard->text[p->task], sizeof(heard->text[0]), "%s", e->text);
    } else if (e->kind == TRAIN_WARN) {
        heard->warnings++;
    }
    player_event(arg, e);
}

static void digits_job(struct fixture *f, uint32_t task)
{
    (void)task;
    snprintf(checkpoints, sizeof(checkpoints), "%.60s/checkpoints", fixture_root);
    f->opts.run.steps = FEW;
    f->opts.replicas = 4;
    f->opts.min_replicas = 1;
    f->opts.lanes = 8;
    f->opts.global_batch = 64;
    f->opts.health.check_gradients = true;
    f->opts.health.check_weights_every_steps = job.weigh_every;
    f->opts.on_event = hear;
    if (job.save_every > 0) {
        f->opts.checkpoint.directory = checkpoints;
        f->opts.checkpoint.every_steps = job.save_every;
    }
}

static uint32_t undisturbed;

static struct troupe *new_troupe(const char *hosts, uint32_t devices)
{
    memset(heard, 0, sizeof(*heard));
    return troupe_new(hosts, devices, digits_job);
}

static uint32_t end_crc(struct troupe *k)
{
    uint32_t crc = 0;

    troupe_quit(k);
    for (uint32_t i = 0; i < k->n; i++) {
        if (i > 0)
            assert_int_equal(k->stage->tasks[i].crc, crc);
        crc = k->stage->tasks[i].crc;
    }
    return crc;
}

/* Checks that all tasks hold equal states; on CPUs also that of a single task. On GPUs the bits of
 * sums depend on their number. */
static void expect_end(struct troupe *k)
{
    uint32_t crc = end_crc(k);

    if (!fixture_on_gpus())
        assert_int_equal(crc, undisturbed);
}

static int run_undisturbed(void **state)
{
    struct troupe *k;

    (void)state;
    heard = mmap(NULL, sizeof(*heard), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(heard != MAP_FAILED);
    k = new_troupe("A", 1);
    assert_int_equal(troupe_to_the_end(k), 1);
    undisturbed = end_crc(k);
    troupe_free(k);
    return 0;
}

static void expect_text(const struct troupe *k, uint32_t task, const char *part)
{
    if (strstr(k->tasks[task].last.text, part) == NULL)
        fail_msg("worker %u says '%s', not '%s'", task, k->tasks[task].last.text, part);
}

/* Runs a generation in which the fault occurs on task `odd`, and all tasks report that it
 * diverges. */
static void play_odd(struct troupe *k, uint32_t odd, const char *fault, uint64_t step,
                     const char *what)
{
    char named[64], of_step[64];

    troupe_start_with(k, odd, fault);
    troupe_wait(k);
    snprintf(named, sizeof(named), "%s differs from the others", k->names[odd]);
    snprintf(of_step, sizeof(of_step), "its %s of step %llu", what, (unsigned long long)step);
    for (uint32_t i = 0; i < k->n; i++) {
        if (k->tasks[i].last.end != TRAIN_DIVERGED)
            fail_msg("%s: worker %u ended with %d: %s", fault, i, (int)k->tasks[i].last.end,
                     k->tasks[i].last.text);
        expect_text(k, i, named);
        expect_text(k, i, of_step);
        assert_int_equal(k->tasks[i].last.code, ERR_DEVICE);
        assert_int_equal(k->tasks[i].held, i == odd ? 0 : step);
        assert_string_equal(heard->text[i], heard->text[0]);
        expect_text(k, i, heard->text[0]);
    }
    assert_int_equal(heard->differs, k->n);
}

static void gradient_bit_flip_is_detected_after_a_step_and_repaired_by_the_majority(void **state)
{
    static const char *const layouts[] = { "AAA", "ABC", "AABB" };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(layouts); i++)
        for (uint32_t odd = 0; odd < 3; odd += 2) {
            struct troupe *k = new_troupe(layouts[i], 1);

            play_odd(k, odd, "health.flip_gradient@5", 5, "reduced gradient");
            assert_int_equal(troupe_to_the_end(k), 1);
            expect_end(k);
            troupe_free(k);
        }
}

static void weights_bit_flip_is_detected_by_their_checksum(void **state)
{
    struct troupe *k;

    (void)state;
    k = new_troupe("AAB", 1);
    play_odd(k, 1, "health.flip_weight@3", 3, "weights and optimizer state");
    assert_int_equal(troupe_to_the_end(k), 1);
    expect_end(k);
    troupe_free(k);

    job.weigh_every = 4; /* until then its weights influence the gradients of all tasks */
    k = new_troupe("AAB", 1);
    play_odd(k, 1, "health.flip_weight@5", 8, "weights and optimizer state");
    assert_int_equal(troupe_to_the_end(k), 1);
    (void)end_crc(k);
    troupe_free(k);
    job.weigh_every = 1;
}

static void last_step_is_compared(void **state)
{
    (void)state;
    for (int weights = 0; weights < 2; weights++) {
        struct troupe *k = new_troupe("AAA", 1);

        play_odd(k, 2, weights ? "health.flip_weight@12" : "health.flip_gradient@12", FEW,
                 weights ? "weights and optimizer state" : "reduced gradient");
        assert_int_equal(troupe_to_the_end(k), 1);
        expect_end(k);
        troupe_free(k);
    }
}

/* Waits until the newest checkpoint is of this step; checks that it verifies. */
static void expect_saved(uint64_t step)
{
    struct ckpt_info *info = calloc(1, sizeof(*info));
    struct err err;

    assert_non_null(info);
    WAIT_UNTIL(ckpt_newest(checkpoints, NULL, NULL, NULL, NULL, info, &err) >= 0 &&
               info->meta.step >= step);
    assert_int_equal(info->meta.step, step);
    free(info);
}

static void name_checkpoints(const struct troupe *k)
{
    snprintf(checkpoints, sizeof(checkpoints), "%.60s/checkpoints", k->folder);
}

static void divergence_without_majority_ends_all_and_the_checkpoint_is_equal(void **state)
{
    struct troupe *k;

    (void)state;
    job.save_every = 4;
    k = new_troupe("AB", 1);
    name_checkpoints(k);
    troupe_start_with(k, 1, "health.flip_gradient@8,train.forward=delay:30@1+");
    troupe_wait(k);
    for (uint32_t i = 0; i < 2; i++) {
        assert_int_equal(k->tasks[i].last.end, TRAIN_FAILED);
        assert_int_equal(k->tasks[i].last.code, ERR_DEVICE);
        assert_int_equal(k->tasks[i].held, 0);
        expect_text(k, i, "no majority shows which are right: the reduced gradient of step 8");
    }
    expect_saved(4); /* the one of step 8 was due, but its state diverged */
    assert_int_equal(troupe_to_the_end(k), 1);
    assert_non_null(strstr(k->stage->tasks[0].resumed, "0 ")); /* at the first start */
    expect_end(k);
    expect_saved(FEW);
    troupe_free(k);
    job.save_every = 0;
}

static void divergence_before_any_checkpoint_restarts_at_step_1(void **state)
{
    struct troupe *k = new_troupe("AB", 1);

    (void)state;
    troupe_start_with(k, 0, "health.flip_gradient@4");
    troupe_wait(k);
    assert_int_equal(k->tasks[0].held + k->tasks[1].held, 0);
    assert_int_equal(troupe_to_the_end(k), 1);
    expect_end(k);
    assert_int_equal(k->stage->tasks[1].steps[1].times, 2);
    troupe_free(k);
}

/* Member 0 writes checkpoints. If its state is divergent, no checkpoint may be published. */
static void divergent_state_is_never_written(void **state)
{
    /* the checkpoint of step 4 must be written before step 8, otherwise that of step 8 is
     * delayed */
    static const char *const faults[] = { "health.flip_weight@8,train.forward=delay:1500@7",
                                          "health.flip_gradient@8,train.forward=delay:1500@7" };

    (void)state;
    job.save_every = 4;
    job.weigh_every = 1000; /* a checkpoint compares the weights in addition */
    for (size_t i = 0; i < COUNT_OF(faults); i++) {
        struct troupe *k = new_troupe("AAB", 1);

        name_checkpoints(k);
        play_odd(k, 0, faults[i], 8, i == 0 ? "weights and optimizer state" : "reduced gradient");
        expect_saved(4);
        assert_int_equal(troupe_to_the_end(k), 1);
        expect_end(k);
        expect_saved(FEW);
        troupe_free(k);
    }
    job.save_every = 0;
    job.weigh_every = 1;
}

static void divergence_of_replicas_is_detected_before_the_state_changes(void **state)
{
    struct troupe *k = new_troupe("A", 2);

    (void)state;
    troupe_start_with(k, 0, "health.flip_gradient@5");
    troupe_wait(k);
    assert_int_equal(k->tasks[0].last.end, TRAIN_DIVERGED);
    assert_int_equal(k->tasks[0].held, 4);
    expect_text(k, 0,
                fixture_on_gpus() ? "cuda:1 and cuda:0 differ in the reduced gradient of step 5"
                                  : "its replicas 0 and 1 hold different reduced gradients");
    assert_int_equal(troupe_to_the_end(k), 1);
    expect_end(k);
    for (uint64_t i = 1; i <= FEW; i++)
        assert_int_equal(k->stage->tasks[0].steps[i].times, 1);
    troupe_free(k);
}

/* Each GPU has a copy of the state, so a divergent copy is detected also without peers. On CPUs a
 * task has one state. */
static void divergent_weights_of_a_gpu_are_detected_within_its_task(void **state)
{
    struct troupe *k = new_troupe("A", 2);

    (void)state;
    troupe_start_with(k, 0, "health.flip_weight@5");
    troupe_wait(k);
    assert_int_equal(k->tasks[0].last.end, TRAIN_DIVERGED);
    assert_int_equal(k->tasks[0].held, 0);
    expect_text(k, 0, "cuda:1 and cuda:0 differ in the weights and optimizer state of step 5");
    assert_int_equal(troupe_to_the_end(k), 1);
    expect_end(k);
    troupe_free(k);
}

/* The task starts to locate the NaN while its peers continue; they detect that its call differs.
 * The first peer that detects it has finished the step; its abort may end the call of a third task
 * that is about to finish the step. */
static void nan_on_one_task_only_ends_the_generation_and_training_continues(void **state)
{
    static const char *const layouts[] = { "AA", "AB", "AAB" };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(layouts); i++) {
        struct troupe *k = new_troupe(layouts[i], 1);
        bool made = false;

        troupe_start_with(k, 1, "health.not_finite@5");
        troupe_wait(k);
        for (uint32_t t = 0; t < k->n; t++) {
            assert_true(k->tasks[t].last.end == TRAIN_FAILED ||
                        k->tasks[t].last.end == TRAIN_ABORTED);
            assert_in_range(k->tasks[t].held, 4, t == 1 ? 4 : 5);
            made = made || k->tasks[t].held == 5;
        }
        assert_true(made);
        assert_true(heard->warnings > 0);
        assert_int_equal(troupe_to_the_end(k), 1);
        expect_end(k);
        troupe_free(k);
    }
}

static void comparison_of_checksums_changes_no_bit(void **state)
{
    struct troupe *k;

    (void)state;
    job.weigh_every = 0;
    k = new_troupe("AABB", 1);
    assert_int_equal(troupe_to_the_end(k), 1);
    assert_int_equal(heard->differs, 0);
    expect_end(k);
    troupe_free(k);
    job.weigh_every = 1;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradient_bit_flip_is_detected_after_a_step_and_repaired_by_the_majority),
        cmocka_unit_test(weights_bit_flip_is_detected_by_their_checksum),
        cmocka_unit_test(last_step_is_compared),
        cmocka_unit_test(divergence_without_majority_ends_all_and_the_checkpoint_is_equal),
        cmocka_unit_test(divergence_before_any_checkpoint_restarts_at_step_1),
        cmocka_unit_test(divergent_state_is_never_written),
        cmocka_unit_test(divergence_of_replicas_is_detected_before_the_state_changes),
        cmocka_unit_test(nan_on_one_task_only_ends_the_generation_and_training_continues),
        cmocka_unit_test(comparison_of_checksums_changes_no_bit),
    };

    const struct CMUnitTest of_gpus[] = {
        cmocka_unit_test(divergent_weights_of_a_gpu_are_detected_within_its_task),
    };
    int failed = cmocka_run_group_tests(tests, run_undisturbed, NULL);

    return fixture_on_gpus() ? failed + cmocka_run_group_tests(of_gpus, run_undisturbed, NULL)
                             : failed;
}
