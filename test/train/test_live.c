/* test_live.c - options that may change during training: when checkpoints are due, how many are
 * kept, and at which steps the norm of the gradient is computed; several replicas must agree on
 * them. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <math.h>
#include <cmocka.h>

#include "base/check.h"
#include "base/fault.h"
#include "harness/wait.h"
#include "train/fixture.h"

static bool has_norm[STEPS + 1];

static void note_norm(void *arg, const struct train_event *e)
{
    if (e->kind == TRAIN_STEP)
        has_norm[e->step] = !isnan(e->report->grad_norm);
    fixture_event(arg, e);
}

static void norm_every_4_from_step_20(struct fixture *f, uint64_t step)
{
    if (step == 20)
        train_set_norm(f->train, 4);
    if (step == 40)
        train_set_norm(f->train, 0);
}

/* The change applies at the boundary after the step in which it was requested, or one step
 * later. */
static void norm_interval_changed_applies_at_the_next_boundary(void **state)
{
    struct fixture *f = fixture_new(4, 4);

    (void)state;
    f->opts.on_event = note_norm;
    f->opts.run.clip_norm = 0;
    f->opts.run.log_every_steps = 3;
    f->on_step = norm_every_4_from_step_20;
    run(f);
    assert_int_equal(f->end, TRAIN_COMPLETE);
    for (uint64_t k = 1; k <= STEPS; k++) {
        bool expected = k <= 20 ? k % 3 == 0 : k <= 40 ? k % 4 == 0 : false;

        if (k != 21 && k != 41 && has_norm[k] != expected)
            fail_msg("step %d: %s norm", (int)k, expected ? "no" : "a");
    }
    fixture_free(f);
}

/* Returns the number of checkpoints that are due up to a step: every 10 steps, from step 30 every
 * 2. */
static uint64_t due_up_to(uint64_t step)
{
    return step <= 30 ? step / 10 : 3 + (step - 30) / 2;
}

/* The disk may be slower than the steps, so each step waits until all checkpoints that were due
 * exist. */
static void save_every_2_from_step_30(struct fixture *f, uint64_t step)
{
    struct ckpt_writer *w = f->train->saving.writer;

    WAIT_UNTIL(__atomic_load_n(&f->saves, __ATOMIC_ACQUIRE) >= due_up_to(step - 1));
    WAIT_UNTIL(w == NULL || !ckpt_is_busy(w)); /* the writer still removes an old checkpoint */
    if (step == 30)
        train_set_checkpoint(f->train, 2, 0, 0);
}

static uint32_t count_folder(const char *folder)
{
    struct err err;
    uint32_t n = 0;

    for (uint64_t step = 1; step <= STEPS; step++) {
        struct ckpt_info info;
        char path[128];

        snprintf(path, sizeof(path), "%s/step-%08d", folder, (int)step);
        n += ckpt_verify(path, NULL, NULL, &info, &err) == 0;
    }
    return n;
}

static void checkpoint_interval_and_count_changed_apply(void **state)
{
    struct fixture *f = fixture_new(2, 4);

    (void)state;
    f->opts.checkpoint.directory = f->checkpoints;
    f->opts.checkpoint.every_steps = 10;
    f->opts.checkpoint.max_to_keep = 1;
    f->on_step = save_every_2_from_step_30;
    run(f);
    assert_int_equal(f->end, TRAIN_COMPLETE);
    /* 10, and 20, which removed it; 30 is written after the change, and all later ones are kept */
    assert_int_equal(f->saves, due_up_to(STEPS));
    assert_int_equal(count_folder(f->checkpoints), f->saves - 1);
    fixture_free(f);
}

static void by_time_too(struct fixture *f, uint64_t step)
{
    if (step == 10)
        train_set_checkpoint(f->train, 0, 1e-9, 3);
    WAIT_UNTIL(step <= 10 || __atomic_load_n(&f->saves, __ATOMIC_ACQUIRE) >= step / 10 - 1);
}

static void checkpoints_by_time_start_when_enabled(void **state)
{
    struct fixture *f = fixture_new(1, 4);

    (void)state;
    f->opts.checkpoint.directory = f->checkpoints;
    f->on_step = by_time_too;
    run(f);
    assert_int_equal(f->end, TRAIN_COMPLETE);
    assert_true(f->saves > 3); /* without the change only one, at the end */
    assert_int_equal(count_folder(f->checkpoints), 3);
    fixture_free(f);
}

static bool was_refused;
static uint64_t written_at;

static int refuse_at_first(void *arg, struct err *err)
{
    (void)arg;
    return __atomic_load_n(&was_refused, __ATOMIC_ACQUIRE)
               ? 0
               : err_set(err, ERR_REFUSED, "the lease is not ours");
}

static void note_checkpoint(void *arg, const struct train_event *e)
{
    if (e->kind == TRAIN_CHECKPOINT && e->ckpt->kind == CKPT_DISCARDED)
        __atomic_store_n(&was_refused, true, __ATOMIC_RELEASE);
    if (e->kind == TRAIN_CHECKPOINT && e->ckpt->kind == CKPT_WRITTEN && written_at == 0)
        written_at = e->step;
    fixture_event(arg, e);
}

static void wait_for_refusal(struct fixture *f, uint64_t step)
{
    if (step == 2)
        train_request(f->train, TRAIN_REQUEST_CHECKPOINT);
    WAIT_UNTIL(step != 10 || __atomic_load_n(&was_refused, __ATOMIC_ACQUIRE));
}

/* The permission to write was briefly absent. The next checkpoint follows sooner than the
 * interval. */
static void checkpoint_discarded_is_repeated_soon(void **state)
{
    struct fixture *f = fixture_new(1, 1);
    struct group_member self = {
        .name = "local", .host_key = "here", .data_address = "", .n_devices = 1
    };
    struct train_generation g = { .view.generation = 1,
                                  .view.members = &self,
                                  .view.n_members = 1,
                                  .shared_memory = true,
                                  .deadline_ms = 20000,
                                  .may_save = refuse_at_first };

    (void)state;
    f->opts.on_event = note_checkpoint;
    f->opts.checkpoint.directory = f->checkpoints;
    f->opts.checkpoint.every_steps = 0;
    f->on_step = wait_for_refusal;
    fixture_train(f, &g);
    assert_int_equal(f->end, TRAIN_COMPLETE);
    assert_true(was_refused);
    assert_in_range(written_at, 3, STEPS - 1); /* it was requested after step 2 */
    fixture_free(f);
}

/* Asks for a checkpoint, and for another one at once while the writer writes the first. */
static void make_urgent(struct fixture *f, uint64_t step)
{
    struct saving *s = &f->train->saving;

    if (step == 2)
        train_request(f->train, TRAIN_REQUEST_CHECKPOINT);
    if (step == 10) {
        WAIT_UNTIL(s->writer != NULL && ckpt_is_busy(s->writer));
        s->is_due = s->is_urgent = true;
    }
}

static bool waits_for_the_writer(const struct fixture *f)
{
    return place_read(&f->train->engine->replicas[0]->place).phase == PHASE_WRITER;
}

static void *abort_the_wait(void *arg)
{
    struct fixture *f = arg;

    WAIT_UNTIL(waits_for_the_writer(f));
    train_abort(f->train, "a peer has died");
    return NULL;
}

static void *pause_the_wait(void *arg)
{
    struct fixture *f = arg;

    WAIT_UNTIL(waits_for_the_writer(f));
    train_request(f->train, TRAIN_REQUEST_PAUSE);
    return NULL;
}

static void *release_the_writer(void *arg)
{
    struct fixture *f = arg;

    WAIT_UNTIL(waits_for_the_writer(f));
    assert_int_equal(fault_arm(NULL, NULL), 0);
    return NULL;
}

/* Trains while the writer stands still and step 11 waits for it; the limits of that wait are longer
 * than those of a test. */
static struct fixture *run_urgent(void *(*meanwhile)(void *arg))
{
    struct fixture *f = fixture_new(1, 1);
    struct group_member self = {
        .name = "local", .host_key = "here", .data_address = "", .n_devices = 1
    };
    struct train_generation g = { .view.generation = 1,
                                  .view.members = &self,
                                  .view.n_members = 1,
                                  .shared_memory = true,
                                  .deadline_ms = 3600000 };
    pthread_t thread;

    f->opts.checkpoint.directory = f->checkpoints;
    f->on_step = make_urgent;
    fixture_open(f);
    assert_int_equal(fault_arm("ckpt.write=hold", NULL), 0);
    assert_int_equal(pthread_create(&thread, NULL, meanwhile, f), 0);
    fixture_generation(f, &g);
    pthread_join(thread, NULL);
    assert_int_equal(fault_arm(NULL, NULL), 0);
    return f;
}

static void urgent_checkpoint_waits_until_the_writer_is_ready(void **state)
{
    struct fixture *f = run_urgent(release_the_writer);

    (void)state;
    assert_int_equal(f->end, TRAIN_COMPLETE);
    assert_false(f->train->saving.is_urgent);
    assert_true(f->saves >= 3); /* the requested one, the urgent one and the last one */
    fixture_free(f);
}

static void urgent_checkpoint_abort_ends_the_wait(void **state)
{
    struct fixture *f = run_urgent(abort_the_wait);

    (void)state;
    assert_int_equal(f->end, TRAIN_ABORTED);
    assert_int_equal(f->held, 10);
    fixture_free(f);
}

static void urgent_checkpoint_pause_ends_the_wait(void **state)
{
    struct fixture *f = run_urgent(pause_the_wait);

    (void)state;
    assert_int_equal(f->end, TRAIN_PAUSED);
    assert_int_equal(f->held, 11);
    fixture_free(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(norm_interval_changed_applies_at_the_next_boundary),
        cmocka_unit_test(checkpoint_interval_and_count_changed_apply),
        cmocka_unit_test(checkpoint_discarded_is_repeated_soon),
        cmocka_unit_test(checkpoints_by_time_start_when_enabled),
        cmocka_unit_test(urgent_checkpoint_waits_until_the_writer_is_ready),
        cmocka_unit_test(urgent_checkpoint_abort_ends_the_wait),
        cmocka_unit_test(urgent_checkpoint_pause_ends_the_wait),
    };

    return cmocka_run_group_tests_name("train/live", tests, NULL, NULL);
}
