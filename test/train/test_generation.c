/* test_generation.c - one process runs many generations: reports, refusals and released
 * resources. */
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <dirent.h>
#include <errno.h>
#include <time.h>
#include <cmocka.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/fault.h"
#include "harness/sanitized.h"
#include "harness/wait.h"
#include "train/fixture.h"

/* Returns a group of this process alone. */
static struct train_generation alone(const struct fixture *f)
{
    static struct group_member self = { .name = "local", .host_key = "here", .data_address = "" };

    self.n_devices = f->opts.n_devices;
    return (struct train_generation){ .view.generation = 1,
                                      .view.members = &self,
                                      .view.n_members = 1,
                                      .shared_memory = true,
                                      .deadline_ms = 20000,
                                      .view.newest_step = train_held(f->train) };
}

static void start(struct fixture *f, const struct train_generation *g)
{
    struct err err;

    f->ended = false;
    if (train_start(f->train, g, fixture_end, &err) < 0)
        fail_msg("%s", err.text);
}

static bool has_ended(struct fixture *f)
{
    bool ended;

    pthread_mutex_lock(&f->lock);
    ended = f->ended;
    pthread_mutex_unlock(&f->lock);
    return ended;
}

static void until_held(struct fixture *f, uint64_t step)
{
    WAIT_UNTIL(train_held(f->train) >= step);
}

/* Waits until training is in this phase and stays there. */
static void until_phase(struct fixture *f, const char *phase, struct train_progress *p)
{
    WAIT_UNTIL((train_progress(f->train, p), strcmp(p->phase, phase) == 0) &&
               clock_ns() > p->since_ns + 100000000);
}

static uint64_t entries(const char *path)
{
    DIR *d = opendir(path);
    uint64_t n = 0;

    if (d == NULL && errno == ENOENT)
        return 2;
    assert_non_null(d);
    while (readdir(d) != NULL)
        n++;
    closedir(d);
    return n;
}

static uint64_t mappings(void)
{
    FILE *f = fopen("/proc/self/maps", "r");
    uint64_t n = 0;

    assert_non_null(f);
    for (int c; (c = fgetc(f)) != EOF;)
        n += c == '\n';
    fclose(f);
    return n;
}

/* ---- the tests ---- */

static void many_generations_change_no_bit_and_release_all_resources(void **state)
{
    struct fixture *whole = fixture_new(2, 8), *f = fixture_new(2, 8);
    uint64_t files = 0, maps = 0, threads = 0;

    (void)state;
    run(whole);
    f->opts.replicas = 4; /* as if two more replicas were absent */
    f->opts.min_replicas = 2;
    fixture_open(f);
    threads = entries("/proc/self/task");
    for (uint64_t n = 1; train_held(f->train) < STEPS; n++) {
        struct train_generation g = alone(f);
        uint64_t before = train_held(f->train);

        g.view.generation = n;
        f->stop_after = before + 2;
        if (n % 3 == 0)
            assert_int_equal(fault_arm("train.commit@5", NULL), 0);
        fixture_generation(f, &g);
        assert_int_equal(fault_arm(NULL, NULL), 0);
        assert_true(f->held >= before && f->held <= before + 4);
        if (n == 3) {
            files = entries("/proc/self/fd");
            maps = mappings();
        }
        assert_true(n < 2 * STEPS);
    }
    assert_int_equal(entries("/proc/self/fd"), files);
    /* The thread that reported the end is about to exit. There are fewer if a thread of the previous run was still counted. */
    WAIT_UNTIL(entries("/proc/self/task") <= threads);
    /* malloc maps and unmaps arenas; ThreadSanitizer maps memory of its own */
    assert_true(SANITIZED_THREAD || mappings() <= maps + 8);
    assert_int_equal(f->steps, STEPS);
    assert_memory_equal(whole->losses, f->losses, sizeof(f->losses));
    assert_memory_equal(whole->train->engine->memory.state, f->train->engine->memory.state,
                        f->train->engine->memory.state_bytes);
    fixture_free(whole);
    fixture_free(f);
}

static void invalid_group_is_refused_and_no_thread_starts(void **state)
{
    struct group_member members[2] = {
        { .name = "a", .host_key = "here", .data_address = "127.0.0.1:1", .n_devices = 2 },
        { .name = "b", .host_key = "here", .data_address = "127.0.0.1:2", .n_devices = 1 }
    };
    struct fixture *f = fixture_new(2, 4);
    struct train_generation g;
    struct err err;

    (void)state;
    f->opts.replicas = 4;
    f->opts.min_replicas = 3;
    fixture_open(f);
    g = alone(f);
    assert_int_equal(train_start(f->train, &g, fixture_end, &err), ERR_PEER);
    assert_non_null(strstr(err.text, "has 2 replicas, this job was planned for 3 or more"));
    g.view.members = members;
    g.view.n_members = 2;
    members[1].n_devices = 3;
    assert_int_equal(train_start(f->train, &g, fixture_end, &err), ERR_PEER);
    assert_non_null(strstr(err.text, "has 5 replicas, this job was planned for 4"));
    members[0].n_devices = 1;
    members[1].n_devices = 2;
    assert_int_equal(train_start(f->train, &g, fixture_end, &err), ERR_PEER);
    assert_non_null(strstr(err.text, "the group counts on 1 replicas of a, which has 2"));
    fixture_free(f);
}

static void state_in_memory_is_never_discarded(void **state)
{
    struct fixture *f = fixture_new(1, 2);
    struct train_generation g;
    struct err err;

    (void)state;
    f->opts.checkpoint.directory = f->checkpoints;
    f->stop_after = 3;
    run(f);
    assert_true(f->held >= 3);
    g = alone(f);
    g.view.newest_step = f->held - 1;
    assert_int_equal(train_start(f->train, &g, fixture_end, &err), ERR_PEER);
    assert_non_null(strstr(err.text, "which must not be discarded"));
    g.view.newest_step = 0;
    assert_int_equal(train_start(f->train, &g, fixture_end, &err), ERR_PEER);
    fixture_free(f);
}

static void abort_ends_a_generation_soon_and_keeps_the_state_whole(void **state)
{
    struct fixture *whole = fixture_new(2, 4), *f = fixture_new(2, 4);

    (void)state;
    run(whole);
    fixture_open(f);
    train_abort(f->train, "nothing runs: harmless");
    for (int i = 0; i < 10; i++) {
        struct train_generation g = alone(f);

        /* fast steps, then slow ones, so that the abort precedes the end of the run even if it is
         * late */
        assert_int_equal(fault_arm("train.forward=delay:50@5+", NULL), 0);
        start(f, &g);
        until_held(f, g.view.newest_step + 1);
        train_abort(f->train, "the test says so");
        WAIT_UNTIL(has_ended(f));
        assert_int_equal(f->end, TRAIN_ABORTED);
        assert_int_equal(f->held, train_held(f->train));
        assert_string_equal(f->text, "the test says so");
        train_abort(f->train, "once more: harmless");
    }
    assert_int_equal(fault_arm(NULL, NULL), 0);
    {
        struct train_generation g = alone(f);

        fixture_generation(f, &g);
    }
    assert_int_equal(f->end, TRAIN_COMPLETE);
    assert_int_equal(f->steps, STEPS);
    assert_memory_equal(whole->losses, f->losses, sizeof(f->losses));
    assert_memory_equal(whole->train->engine->memory.state, f->train->engine->memory.state,
                        f->train->engine->memory.state_bytes);
    fixture_free(whole);
    fixture_free(f);
}

static void abort_while_storage_hangs_ends_the_generation(void **state)
{
    struct fixture *f = fixture_new(2, 4);
    struct train_generation g;
    struct train_progress p;

    (void)state;
    f->opts.data.origin.cache = DATA_CACHE_NONE;
    f->opts.data_deadline_ms = 20000 * SLOW; /* the read is retried for this time */
    fixture_open(f);
    g = alone(f);
    assert_int_equal(fault_arm("data.read@1+", NULL), 0);
    start(f, &g);
    until_phase(f, "wait for samples", &p);
    train_abort(f->train, "enough");
    WAIT_UNTIL(has_ended(f));
    assert_int_equal(fault_arm(NULL, NULL), 0);
    assert_int_equal(f->end, TRAIN_ABORTED);
    assert_int_equal(f->held, 0);
    fixture_generation(f, &g); /* the same again from step 1 */
    assert_int_equal(f->end, TRAIN_COMPLETE);
    fixture_free(f);
}

/* Storage fails as soon as training reports a given event. */
static struct {
    int kind;
    const char *text, *fault;
    _Atomic uint32_t told; /* 1 after the event; the replicas report from different threads */
} moment;

static void fails_at_a_moment(void *arg, const struct train_event *e)
{
    uint32_t none = 0;

    fixture_event(arg, e);
    if ((int)e->kind != moment.kind || strstr(e->text, moment.text) == NULL ||
        !atomic_compare_exchange_strong(&moment.told, &none, 1))
        return;
    assert_int_equal(fault_arm(moment.fault, NULL), 0);
}

static void abort_while_a_step_is_read_again_ends_the_generation(void **state)
{
    struct fixture *f = fixture_new(1, 4);
    struct train_generation g;

    (void)state;
    moment.kind = TRAIN_WARN;
    moment.text = "computed again";
    moment.fault = "data.read@1+";
    moment.told = 0;
    f->opts.on_event = fails_at_a_moment;
    f->opts.data.origin.cache = DATA_CACHE_NONE;
    f->opts.data_deadline_ms = 20000 * SLOW;
    fixture_open(f);
    g = alone(f);
    assert_int_equal(fault_arm("health.not_finite@3", NULL), 0);
    start(f, &g);
    WAIT_UNTIL(moment.told == 1);
    wait_disturb(100000000); /* the step is read again */
    train_abort(f->train, "enough");
    WAIT_UNTIL(has_ended(f));
    assert_int_equal(fault_arm(NULL, NULL), 0);
    assert_int_equal(f->end, TRAIN_ABORTED);
    assert_int_equal(f->held, 2);
    fixture_free(f);
}

static void evaluation_waits_for_storage_at_most_as_long_as_a_step(void **state)
{
    struct fixture *f = fixture_new(2, 4);
    struct train_generation g;

    (void)state;
    moment.kind = TRAIN_PHASE;
    moment.text = "evaluate";
    moment.fault = "data.read=delay:1500@1+";
    moment.told = 0;
    f->opts.on_event = fails_at_a_moment;
    f->opts.data.origin.cache = DATA_CACHE_NONE;
    f->opts.data_deadline_ms = 200;
    f->opts.data.eval = "config/digits/digits-test-*.tfrecord";
    f->opts.run.steps = 2;
    fixture_open(f);
    g = alone(f);
    fixture_generation(f, &g);
    assert_int_equal(fault_arm(NULL, NULL), 0);
    assert_int_equal(moment.told, 1);
    assert_int_equal(f->end, TRAIN_FAILED);
    assert_int_equal(f->code, ERR_IO);
    if (strstr(f->text, "evaluation after step 2") == NULL ||
        strstr(f->text, "digits-test") == NULL)
        fail_msg("'%s' names neither the evaluation nor the file", f->text);
    g.view.newest_step = train_held(f->train);
    assert_int_equal(g.view.newest_step, 2);
    fixture_generation(f, &g); /* the evaluation is repeated */
    assert_int_equal(f->end, TRAIN_COMPLETE);
    assert_int_equal(f->evals, 1);
    fixture_free(f);
}

static void thread_start_failure_is_an_error_and_no_thread_runs(void **state)
{
    struct fixture *f = fixture_new(2, 4);
    struct train_generation g;
    struct err err;

    (void)state;
    fixture_open(f);
    g = alone(f);
    for (int nth = 1; nth <= 2; nth++) {
        char spec[32];

        snprintf(spec, sizeof(spec), "train.thread@%d", nth);
        assert_int_equal(fault_arm(spec, NULL), 0);
        f->ended = false;
        assert_int_equal(train_start(f->train, &g, fixture_end, &err), ERR_DEVICE);
        assert_non_null(strstr(err.text, "train.thread"));
        assert_true(fault_fired());
        assert_int_equal(fault_arm(NULL, NULL), 0);
        wait_disturb(20000000);
        assert_false(has_ended(f));
        assert_int_equal(train_held(f->train), 0);
    }
    fixture_generation(f, &g);
    assert_int_equal(f->end, TRAIN_COMPLETE);
    assert_int_equal(f->steps, STEPS);
    fixture_free(f);
}

static void weights_discarded_twice_are_initialized_again(void **state)
{
    struct fixture *whole = fixture_new(1, 4), *f = fixture_new(1, 4);
    struct train_generation g;
    char model[112], *file;

    (void)state;
    run(whole);
    snprintf(model, sizeof(model), "%s/link.onnx", f->folder);
    file = realpath(f->opts.model.onnx, NULL);
    assert_non_null(file);
    assert_int_equal(symlink(file, model), 0);
    f->opts.model.onnx = model;
    f->opts.health.non_finite = TRAIN_RESTORE;
    fixture_open(f);
    g = alone(f);
    assert_int_equal(fault_arm("health.not_finite@9", NULL), 0);
    fixture_generation(f, &g);
    assert_int_equal(fault_arm(NULL, NULL), 0);
    assert_int_equal(f->end, TRAIN_ROLL_BACK);
    assert_int_equal(f->held, 0);

    assert_int_equal(unlink(model), 0); /* without a checkpoint the model file is read again */
    fixture_generation(f, &g);
    assert_int_equal(f->end, TRAIN_FAILED);
    assert_non_null(strstr(f->text, "initial weights"));
    assert_int_equal(symlink(file, model), 0);
    free(file);

    fixture_generation(f, &g);
    assert_int_equal(f->end, TRAIN_COMPLETE);
    assert_memory_equal(whole->losses, f->losses, sizeof(f->losses));
    assert_memory_equal(whole->train->engine->memory.state, f->train->engine->memory.state,
                        f->train->engine->memory.state_bytes);
    fixture_free(whole);
    fixture_free(f);
}

static _Atomic uint64_t permitted; /* number of steps that may be finished */
static _Atomic uint64_t asked;
static struct train *asks;

static bool ask(void *arg)
{
    (void)arg;
    asked++;
    return train_held(asks) < permitted;
}

static void step_without_permission_is_not_finished(void **state)
{
    struct fixture *f = fixture_new(2, 4);
    struct train_generation g;
    struct train_progress p;

    (void)state;
    fixture_open(f);
    g = alone(f);
    g.may_step = ask;
    asks = f->train;
    permitted = 3;
    start(f, &g);
    until_phase(f, "wait for permission", &p);
    assert_int_equal(train_held(f->train), 3);
    wait_disturb(60000000);
    assert_int_equal(train_held(f->train), 3);
    train_progress(f->train, &p);
    assert_string_equal(p.phase, "wait for permission");
    assert_int_equal(p.limit_ms, 0); /* the phase has no time limit */
    permitted = 5;
    until_held(f, 5);
    until_phase(f, "wait for permission", &p);
    train_abort(f->train, "enough");
    WAIT_UNTIL(has_ended(f));
    assert_int_equal(f->end, TRAIN_ABORTED);
    assert_int_equal(f->held, 5);
    assert_true(asked > 3 + 5);
    fixture_free(f);
}

static _Atomic bool fenced;

static int ask_to_save(void *arg, struct err *err)
{
    (void)arg;
    return fenced ? err_set(err, ERR_REFUSED, "somebody else has the lease") : 0;
}

static void checkpoint_without_permission_is_not_published(void **state)
{
    struct fixture *f = fixture_new(1, 2);
    struct train_generation g;
    struct err err;

    (void)state;
    f->opts.checkpoint.directory = f->checkpoints;
    f->opts.checkpoint.every_steps = 2;
    f->stop_after = 5;
    fixture_open(f);
    g = alone(f);
    g.may_save = ask_to_save;
    fenced = true;
    fixture_generation(f, &g);
    assert_int_equal(f->end, TRAIN_PAUSED);
    assert_true(train_save(f->train, 100, &err) < 0);
    assert_non_null(strstr(err.text, "somebody else has the lease"));
    assert_int_equal(f->saves, 0);
    assert_int_equal(entries(f->checkpoints), 2); /* . and .. : no partial checkpoint either */
    fenced = false;
    if (train_save(f->train, 5000 * SLOW, &err) < 0)
        fail_msg("%s", err.text);
    assert_true(f->saves >= 1);
    fixture_free(f);
}

static void progress_states_place_and_limit(void **state)
{
    struct fixture *f = fixture_new(2, 4);
    struct train_generation g;
    struct train_progress p, before;

    (void)state;
    f->opts.run.steps = 0;
    f->opts.run.epochs = 40; /* many steps: losses are not recorded */
    f->opts.global_batch = 1024;
    fixture_open(f);
    train_progress(f->train, &before);
    assert_string_equal(before.phase, "rest");
    g = alone(f);
    /* both replicas count passages */
    assert_int_equal(fault_arm("train.forward=hold@41", NULL), 0);
    start(f, &g);
    until_held(f, 12);
    train_progress(f->train, &p);
    assert_true(p.place > before.place);
    assert_true(p.step >= 12 && p.step <= f->train->model.total_steps);
    until_held(f, 20);
    until_phase(f, "begin", &p); /* one replica is held, the other one waits for it */
    train_progress(f->train, &before);
    assert_int_equal(p.place, before.place);
    assert_int_equal(p.step, 21);
    assert_string_equal(p.phase, "begin");
    assert_in_range(p.limit_ms, 1000, 20000);
    train_abort(f->train, "enough");
    assert_int_equal(fault_arm(NULL, NULL), 0);
    WAIT_UNTIL(has_ended(f));
    fixture_free(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(many_generations_change_no_bit_and_release_all_resources),
        cmocka_unit_test(invalid_group_is_refused_and_no_thread_starts),
        cmocka_unit_test(state_in_memory_is_never_discarded),
        cmocka_unit_test(abort_ends_a_generation_soon_and_keeps_the_state_whole),
        cmocka_unit_test(abort_while_storage_hangs_ends_the_generation),
        cmocka_unit_test(abort_while_a_step_is_read_again_ends_the_generation),
        cmocka_unit_test(evaluation_waits_for_storage_at_most_as_long_as_a_step),
        cmocka_unit_test(thread_start_failure_is_an_error_and_no_thread_runs),
        cmocka_unit_test(weights_discarded_twice_are_initialized_again),
        cmocka_unit_test(step_without_permission_is_not_finished),
        cmocka_unit_test(checkpoint_without_permission_is_not_published),
        cmocka_unit_test(progress_states_place_and_limit),
    };

    return cmocka_run_group_tests_name("train/generation", tests, NULL, NULL);
}
