/* test_protocol.c - tests the protocol of steps and generations with fake engines, without a
 * model. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "harness/wait.h"
#include "train/fake_group.h"

/* ---- agreement ---- */

static void group_of_fresh_tasks_trains_to_the_last_step(void **state)
{
    struct fake_group *g = fake_group_new(3, 1);

    (void)state;
    fake_group_open(g);
    fake_generation(g, "012");
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(g->tasks[i].end, TRAIN_COMPLETE);
        fake_expect_state(&g->tasks[i], FAKE_STEPS);
        for (uint64_t k = 1; k <= FAKE_STEPS; k++)
            assert_int_equal(g->tasks[i].steps[k], 1);
    }
    fake_group_free(g);
}

static void replicas_of_one_task_synchronize_at_every_gate(void **state)
{
    struct fake_group *g = fake_group_new(2, 2);

    (void)state;
    fake_group_open(g);
    fake_generation(g, "01");
    for (uint32_t i = 0; i < 2; i++) {
        assert_int_equal(g->tasks[i].end, TRAIN_COMPLETE);
        fake_expect_state(&g->tasks[i], FAKE_STEPS);
    }
    fake_group_free(g);
}

static void group_that_continues_from_an_older_step_is_refused(void **state)
{
    struct fake_group *g = fake_group_new(1, 1);
    struct err err;

    (void)state;
    fake_group_open(g);
    g->tasks[0].pause_at = 3;
    fake_generation(g, "0");
    assert_int_equal(g->tasks[0].end, TRAIN_PAUSED);
    assert_int_equal(
        fake_start(g, (uint32_t[]){ 0 }, 1, 0, train_held(g->tasks[0].train) - 1, 0, &err),
        ERR_PEER);
    fake_expect_state(&g->tasks[0], train_held(g->tasks[0].train));
    fake_group_free(g);
}

/* The coordinator sends different newest steps to two members. */
static void members_with_different_newest_steps_do_not_train(void **state)
{
    struct fake_group *g = fake_group_new(2, 1);
    struct err err;
    uint64_t held;

    (void)state;
    fake_group_open(g);
    g->tasks[0].pause_at = 2;
    fake_generation(g, "0");
    held = train_held(g->tasks[0].train);
    g->generation++;
    assert_int_equal(fake_start(g, (uint32_t[]){ 0, 1 }, 2, 0, held, 0, &err), 0);
    assert_int_equal(fake_start(g, (uint32_t[]){ 0, 1 }, 2, 1, held + 1, 0, &err), 0);
    fake_wait(g);
    assert_int_equal(g->tasks[1].code, ERR_PEER);
    assert_non_null(strstr(g->tasks[1].text, "this task was started with step"));
    assert_int_equal(train_held(g->tasks[1].train), 0);
    fake_expect_state(&g->tasks[0], held);
    fake_group_free(g);
}

/* ---- transfer ---- */

static void task_that_is_older_receives_the_state_of_the_newest(void **state)
{
    struct fake_group *g = fake_group_new(3, 1);
    uint64_t held;

    (void)state;
    fake_group_open(g);
    g->tasks[1].pause_at = 5;
    fake_generation(g, "1");
    held = g->tasks[1].held;
    assert_in_range(held, 5, FAKE_STEPS - 1);
    fake_generation(g, "012");
    assert_non_null(strstr(g->tasks[0].phases, "transfer"));
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(g->tasks[i].end, TRAIN_COMPLETE);
        fake_expect_state(&g->tasks[i], FAKE_STEPS);
        assert_int_equal(g->tasks[i].steps[1], i == 1);
        assert_int_equal(g->tasks[i].steps[FAKE_STEPS], 1);
    }
    fake_group_free(g);
}

/* The device of the sender has lost the state. */
static void state_unreadable_on_its_holder_ends_the_generation(void **state)
{
    struct fake_group *g = fake_group_new(2, 1);

    (void)state;
    fake_group_open(g);
    g->tasks[0].pause_at = 3;
    fake_generation(g, "0");
    g->tasks[0].train->engine->ops->discard(g->tasks[0].train->engine);
    fake_generation(g, "01");
    assert_int_equal(g->tasks[0].end, TRAIN_FAILED);
    assert_int_equal(g->tasks[0].code, ERR_DEVICE);
    assert_int_equal(train_held(g->tasks[1].train), 0); /* the receiver keeps its previous state */
    fake_group_free(g);
}

/* ---- non-finite numbers ---- */

static struct fake_group *group_with_nan(enum train_non_finite policy, uint32_t times)
{
    struct fake_group *g = fake_group_new(2, 1);

    for (uint32_t i = 0; i < 2; i++) {
        g->tasks[i].opts.health.non_finite = policy;
        g->tasks[i].script.nan_step = 3;
        g->tasks[i].script.nan_steps = times;
    }
    fake_group_open(g);
    return g;
}

static void loss_nan_under_skip_keeps_the_state(void **state)
{
    struct fake_group *g = group_with_nan(TRAIN_SKIP, FAKE_STEPS);

    (void)state;
    fake_generation(g, "01");
    for (uint32_t i = 0; i < 2; i++) {
        struct fake_task *t = &g->tasks[i];
        float want[FAKE_FLOATS];
        struct err err;

        assert_int_equal(t->end, TRAIN_COMPLETE);
        assert_int_equal(t->skips, FAKE_STEPS - 2);
        assert_int_equal(t->train->engine->ops->sync(t->train->engine, FAKE_STEPS, &err), 0);
        fake_expect(2, FAKE_LANES, want);
        assert_memory_equal(t->train->engine->memory.state, want, sizeof(want));
        assert_non_null(strstr(t->warning, "its lanes are computed again"));
    }
    fake_group_free(g);
}

static void loss_nan_under_stop_ends_the_job_with_the_previous_state(void **state)
{
    struct fake_group *g = group_with_nan(TRAIN_STOP, 1);

    (void)state;
    fake_generation(g, "01");
    for (uint32_t i = 0; i < 2; i++) {
        assert_int_equal(g->tasks[i].end, TRAIN_FAILED);
        assert_int_equal(g->tasks[i].code, ERR_INPUT);
        assert_non_null(strstr(g->tasks[i].text, "first in lane 0: scripted"));
        fake_expect_state(&g->tasks[i], 2);
    }
    fake_group_free(g);
}

static void loss_nan_under_restore_rolls_back_and_then_stops(void **state)
{
    struct fake_group *g = group_with_nan(TRAIN_RESTORE, 1);

    (void)state;
    fake_generation(g, "01");
    for (uint32_t i = 0; i < 2; i++) {
        assert_int_equal(g->tasks[i].end, TRAIN_ROLL_BACK);
        assert_int_equal(g->tasks[i].held, 0);
    }
    fake_generation(g, "01"); /* no checkpoint: fresh weights, and the same step again */
    for (uint32_t i = 0; i < 2; i++) {
        assert_int_equal(g->tasks[i].end, TRAIN_FAILED);
        assert_int_equal(g->tasks[i].code, ERR_INPUT);
        assert_non_null(strstr(g->tasks[i].text, "so it was before"));
        fake_expect_state(&g->tasks[i], 2);
    }
    fake_group_free(g);
}

/* ---- divergence ---- */

static void state_that_differs_is_found_by_its_checksum_and_replaced(void **state)
{
    struct fake_group *g = fake_group_new(3, 1);

    (void)state;
    g->tasks[2].script.flip_step = 4; /* a step whose state is compared */
    fake_group_open(g);
    fake_generation(g, "012");
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(g->tasks[i].end, TRAIN_DIVERGED);
        assert_int_equal(train_diverged(g->tasks[i].train), 2);
        assert_int_equal(g->tasks[i].differs, 1);
        assert_non_null(strstr(g->tasks[i].text, "worker 2 differs from the others"));
    }
    assert_int_equal(train_held(g->tasks[2].train), 0);
    fake_expect_state(&g->tasks[0], 4);
    g->tasks[2].script.flip_step = 0;
    fake_generation(g, "012");
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(g->tasks[i].end, TRAIN_COMPLETE);
        fake_expect_state(&g->tasks[i], FAKE_STEPS);
    }
    fake_group_free(g);
}

static void two_states_that_differ_have_no_majority_and_neither_counts(void **state)
{
    struct fake_group *g = fake_group_new(2, 1);

    (void)state;
    g->tasks[1].script.flip_step = 4;
    fake_group_open(g);
    fake_generation(g, "01");
    for (uint32_t i = 0; i < 2; i++) {
        assert_int_equal(g->tasks[i].end, TRAIN_FAILED);
        assert_int_equal(g->tasks[i].code, ERR_DEVICE);
        assert_int_equal(train_diverged(g->tasks[i].train), UINT32_MAX);
        assert_int_equal(g->tasks[i].held, 0);
    }
    fake_group_free(g);
}

/* ---- checkpoints ---- */

static void checkpoint_is_loaded_when_no_task_holds_state(void **state)
{
    struct fake_group *g = fake_group_new(2, 1);
    char folder[112];
    struct err err;

    (void)state;
    snprintf(folder, sizeof(folder), "%s/checkpoints", g->folder);
    for (uint32_t i = 0; i < 2; i++)
        g->tasks[i].opts.checkpoint.directory = folder;
    fake_open_task(&g->tasks[0]);
    g->tasks[0].pause_at = 3;
    fake_generation(g, "0");
    if (train_save(g->tasks[0].train, 5000 * SLOW, &err) < 0)
        fail_msg("%s", err.text);
    assert_int_equal(g->tasks[0].saved, 1);
    fake_open_task(&g->tasks[1]);
    fake_generation(g, "1");
    assert_int_equal(g->tasks[1].end, TRAIN_COMPLETE);
    assert_int_equal(g->tasks[1].steps[1], 0);
    assert_int_equal(g->tasks[1].steps[FAKE_STEPS], 1);
    fake_expect_state(&g->tasks[1], FAKE_STEPS);
    fake_group_free(g);
}

/* The device that holds the state fails when the last checkpoint copies it. */
static void lose_state(void *arg, const char *verb, uint64_t step)
{
    struct fake_task *t = arg;

    if (strcmp(verb, "end_step") == 0 && step == FAKE_STEPS)
        t->train->engine->ops->discard(t->train->engine);
}

static void checkpoint_that_cannot_be_copied_fails_the_job_by_the_device(void **state)
{
    struct fake_group *g = fake_group_new(1, 1);
    struct fake_task *t = &g->tasks[0];
    char folder[112];

    (void)state;
    snprintf(folder, sizeof(folder), "%s/checkpoints", g->folder);
    t->opts.checkpoint.directory = folder;
    t->script.on_verb = lose_state;
    t->script.arg = t;
    fake_group_open(g);
    fake_generation(g, "0");
    assert_int_equal(t->end, TRAIN_FAILED);
    assert_int_equal(t->code, ERR_DEVICE);
    assert_int_equal(t->saved, 0);
    assert_non_null(strstr(t->text, "last checkpoint"));
    fake_group_free(g);
}

/* Replaces the directory with a file while the task trains. The writer may be using the
 * directory. */
static void replace_directory(void *arg, const char *verb, uint64_t step)
{
    struct fake_task *t = arg;
    FILE *f = NULL;
    struct err err;

    if (strcmp(verb, "end_step") != 0 || step != 2)
        return;
    /* fopen() reports a failure */
    WAIT_UNTIL(((void)fs_remove_tree(t->opts.checkpoint.directory, &err),
                f = fopen(t->opts.checkpoint.directory, "w")) != NULL);
    fclose(f);
}

static void checkpoint_whose_storage_fails_leaves_the_job_unsaved(void **state)
{
    struct fake_group *g = fake_group_new(1, 1);
    struct fake_task *t = &g->tasks[0];
    struct group_member self = {
        .name = "local", .host_key = "A", .data_address = "", .n_devices = 1
    };
    struct train_generation group = {
        .view.generation = 1, .view.members = &self, .view.n_members = 1, .deadline_ms = 50
    };
    char folder[112];
    struct err err;

    (void)state;
    snprintf(folder, sizeof(folder), "%s/checkpoints", g->folder);
    t->opts.checkpoint.directory = folder;
    t->script.on_verb = replace_directory;
    t->script.arg = t;
    fake_group_open(g);
    assert_int_equal(train_start(t->train, &group, fake_ended, &err), 0);
    t->runs = true;
    fake_wait(g);
    assert_int_equal(t->end, TRAIN_UNSAVED);
    fake_expect_state(t, FAKE_STEPS);
    fake_group_free(g);
}

/* ---- abort ---- */

struct abort_at {
    struct fake_task *task;
    const char *verb;
    uint64_t step;
};

static void abort_in_verb(void *arg, const char *verb, uint64_t step)
{
    const struct abort_at *a = arg;

    if (strcmp(a->verb, verb) == 0 && a->step == step)
        train_abort(a->task->train, "the test says so");
}

/* A step is finished or has no effect, and the next generation ends with the same bits. */
static void abort_in_any_verb_keeps_a_whole_state(void **state)
{
    static const struct {
        const char *verb;
        uint64_t step, held; /* step: of the verb; held: by the aborted task */
    } rows[] = {
        { "begin", 0, 0 },     { "bind", 0, 0 },     { "read", 1, 0 },    { "run_lanes", 1, 0 },
        { "run_lanes", 4, 3 }, { "reduce", 4, 3 },   { "inspect", 4, 3 }, { "update", 4, 4 },
        { "checksum", 4, 4 },  { "end_step", 4, 4 },
    };

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct fake_group *g = fake_group_new(2, 1);
        struct abort_at a = { &g->tasks[1], rows[i].verb, rows[i].step };

        g->tasks[1].script.on_verb = abort_in_verb;
        g->tasks[1].script.arg = &a;
        fake_group_open(g);
        fake_generation(g, "01");
        if (g->tasks[1].end != TRAIN_ABORTED || g->tasks[1].held != rows[i].held)
            fail_msg("%s of step %d: end %d, held %d", rows[i].verb, (int)rows[i].step,
                     (int)g->tasks[1].end, (int)g->tasks[1].held);
        assert_in_range(g->tasks[0].held, rows[i].held > 0 ? rows[i].held - 1 : 0,
                        rows[i].held + 1);
        fake_expect_state(&g->tasks[1], rows[i].held);
        g->tasks[1].script.on_verb = NULL;
        fake_generation(g, "01");
        for (uint32_t k = 0; k < 2; k++) {
            assert_int_equal(g->tasks[k].end, TRAIN_COMPLETE);
            fake_expect_state(&g->tasks[k], FAKE_STEPS);
            for (uint64_t s = 1; s <= FAKE_STEPS; s++)
                assert_int_equal(g->tasks[k].steps[s], 1);
        }
        fake_group_free(g);
    }
}

/* The samples of a lane never arrive. */
static void wait_for_samples_ends_when_the_generation_is_aborted(void **state)
{
    struct fake_group *g = fake_group_new(2, 1);

    (void)state;
    g->tasks[0].script.block_verb = "run_lanes";
    g->tasks[0].script.block_step = 3;
    g->tasks[1].script.fail_verb = "run_lanes";
    g->tasks[1].script.fail_step = 3;
    fake_group_open(g);
    fake_generation(g, "01");
    assert_int_equal(g->tasks[1].code, ERR_DEVICE);
    assert_true(g->tasks[0].code < 0);
    assert_in_range(g->tasks[0].held, 1, 2); /* the task may not have reached step 3 */
    fake_expect_state(&g->tasks[0], g->tasks[0].held);
    fake_group_free(g);
}

/* ---- evaluation ---- */

static void evaluation_interrupted_is_repeated_once(void **state)
{
    struct fake_group *g = fake_group_new(2, 1);
    struct abort_at a = { &g->tasks[0], "evaluate", FAKE_EPOCH };

    (void)state;
    for (uint32_t i = 0; i < 2; i++)
        g->tasks[i].evaluates = true;
    g->tasks[0].script.on_verb = abort_in_verb;
    g->tasks[0].script.arg = &a;
    fake_group_open(g);
    fake_generation(g, "01");
    assert_int_equal(g->tasks[0].end, TRAIN_ABORTED);
    assert_int_equal(g->tasks[0].held, FAKE_EPOCH);
    assert_int_equal(g->tasks[0].evals[FAKE_EPOCH], 0);
    g->tasks[0].script.on_verb = NULL;
    fake_generation(g, "01");
    for (uint32_t i = 0; i < 2; i++) {
        assert_int_equal(g->tasks[i].end, TRAIN_COMPLETE);
        for (uint64_t k = 1; k <= FAKE_STEPS; k++)
            assert_int_equal(g->tasks[i].evals[k], k % FAKE_EPOCH == 0);
    }
    fake_group_free(g);
}

/* ---- pause, restart ---- */

static void ask_for_pause(void *arg, const char *verb, uint64_t step)
{
    struct fake_task *t = arg;

    if (strcmp(verb, "begin") == 0 && step == 0)
        train_request(t->train, TRAIN_REQUEST_PAUSE);
}

static void pause_requested_before_the_first_step_is_agreed_at_once(void **state)
{
    struct fake_group *g = fake_group_new(2, 1);

    (void)state;
    g->tasks[1].script.on_verb = ask_for_pause;
    g->tasks[1].script.arg = &g->tasks[1];
    fake_group_open(g);
    fake_generation(g, "01");
    for (uint32_t i = 0; i < 2; i++) {
        assert_int_equal(g->tasks[i].end, TRAIN_PAUSED);
        assert_int_equal(g->tasks[i].held, 0);
        assert_int_equal(g->tasks[i].steps[1], 0);
    }
    fake_group_free(g);
}

static void pause_ends_all_tasks_after_the_same_step(void **state)
{
    struct fake_group *g = fake_group_new(3, 1);
    uint64_t held;

    (void)state;
    fake_group_open(g);
    g->tasks[2].pause_at = 4;
    fake_generation(g, "012");
    held = g->tasks[0].held;
    assert_in_range(held, 4, 5);
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(g->tasks[i].end, TRAIN_PAUSED);
        fake_expect_state(&g->tasks[i], held);
    }
    fake_generation(g, "012");
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(g->tasks[i].end, TRAIN_COMPLETE);
        fake_expect_state(&g->tasks[i], FAKE_STEPS);
        assert_int_equal(g->tasks[i].resumed, 1);
    }
    fake_group_free(g);
}

/* Whichever verb fails on one task, the others continue without it, and the task rejoins. */
static void generation_restarts_without_the_task_whose_device_failed(void **state)
{
    static const char *const verbs[] = { "begin",  "bind",     "read",    "run_lanes",
                                         "reduce", "checksum", "end_step" };

    (void)state;
    for (size_t v = 0; v < sizeof(verbs) / sizeof(verbs[0]); v++) {
        struct fake_group *g = fake_group_new(3, 1);

        g->tasks[1].script.fail_verb = verbs[v];
        g->tasks[1].script.fail_step = v < 2 ? 0 : v == 2 ? 1 : 4;
        fake_group_open(g);
        fake_generation(g, "012");
        if (g->tasks[1].code != ERR_DEVICE || strstr(g->tasks[1].text, "as scripted") == NULL)
            fail_msg("%s: code %d, %s", verbs[v], g->tasks[1].code, g->tasks[1].text);
        g->tasks[0].pause_at = 6;
        fake_generation(g, "02");
        assert_int_equal(g->tasks[0].end, TRAIN_PAUSED);
        g->tasks[0].pause_at = 0;
        g->tasks[1].script.fail_verb = NULL;
        fake_generation(g, "012");
        for (uint32_t i = 0; i < 3; i++) {
            assert_int_equal(g->tasks[i].end, TRAIN_COMPLETE);
            fake_expect_state(&g->tasks[i], FAKE_STEPS);
        }
        fake_group_free(g);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(group_of_fresh_tasks_trains_to_the_last_step),
        cmocka_unit_test(replicas_of_one_task_synchronize_at_every_gate),
        cmocka_unit_test(group_that_continues_from_an_older_step_is_refused),
        cmocka_unit_test(members_with_different_newest_steps_do_not_train),
        cmocka_unit_test(task_that_is_older_receives_the_state_of_the_newest),
        cmocka_unit_test(state_unreadable_on_its_holder_ends_the_generation),
        cmocka_unit_test(loss_nan_under_skip_keeps_the_state),
        cmocka_unit_test(loss_nan_under_stop_ends_the_job_with_the_previous_state),
        cmocka_unit_test(loss_nan_under_restore_rolls_back_and_then_stops),
        cmocka_unit_test(state_that_differs_is_found_by_its_checksum_and_replaced),
        cmocka_unit_test(two_states_that_differ_have_no_majority_and_neither_counts),
        cmocka_unit_test(checkpoint_is_loaded_when_no_task_holds_state),
        cmocka_unit_test(checkpoint_that_cannot_be_copied_fails_the_job_by_the_device),
        cmocka_unit_test(checkpoint_whose_storage_fails_leaves_the_job_unsaved),
        cmocka_unit_test(abort_in_any_verb_keeps_a_whole_state),
        cmocka_unit_test(wait_for_samples_ends_when_the_generation_is_aborted),
        cmocka_unit_test(evaluation_interrupted_is_repeated_once),
        cmocka_unit_test(pause_requested_before_the_first_step_is_agreed_at_once),
        cmocka_unit_test(pause_ends_all_tasks_after_the_same_step),
        cmocka_unit_test(generation_restarts_without_the_task_whose_device_failed),
    };

    return cmocka_run_group_tests_name("train/protocol", tests, NULL, NULL);
}
