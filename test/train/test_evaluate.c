/* test_evaluate.c - generations that only evaluate a checkpoint: the work of an evaluator task. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <math.h>
#include <cmocka.h>

#include "base/fault.h"
#include "train/fixture.h"

enum { EACH = 20 }; /* steps between two checkpoints */

static struct train_eval_report evaluations[STEPS + 1]; /* of the running task, by step */
static uint64_t connected;                              /* step of the last TRAIN_CONNECTED */

static void note_event(void *arg, const struct train_event *e)
{
    if (e->kind == TRAIN_EVAL)
        evaluations[e->step] = *e->eval;
    if (e->kind == TRAIN_CONNECTED)
        connected = e->step;
    fixture_event(arg, e);
}

static struct fixture *begin(uint32_t replicas)
{
    struct fixture *f = fixture_new(replicas, 4);

    f->opts.data.eval = "config/digits/digits-test-*.tfrecord";
    f->opts.on_event = note_event;
    memset(evaluations, 0, sizeof(evaluations));
    return f;
}

/* Trains; the evaluations of the group are those of whole epochs and of the last step. */
static struct fixture *trained(void)
{
    struct fixture *f = begin(2);

    f->opts.checkpoint.directory = f->checkpoints;
    f->opts.checkpoint.every_steps = EACH;
    f->opts.run.eval_every_epochs = 1;
    run(f);
    assert_int_equal(f->end, TRAIN_COMPLETE);
    return f;
}

static void path_of(const struct fixture *f, uint64_t step, char out[256])
{
    snprintf(out, 256, "%s/step-%08u", f->checkpoints, (unsigned)step);
}

static void evaluate(struct fixture *f, uint64_t generation)
{
    struct group_member self = {
        .name = "evaluator 0", .host_key = "here", .data_address = "", .n_devices = f->opts.n_devices
    };
    struct train_generation g = { .view.generation = generation,
                                  .view.members = &self,
                                  .view.n_members = 1,
                                  .view.newest_step = train_held(f->train),
                                  .deadline_ms = 60000,
                                  .only_evaluates = true };

    fixture_generation(f, &g);
}

static void load(struct fixture *f, const char *path)
{
    struct ckpt_info info;
    struct err err;

    if (train_load(f->train, path, &info, &err) < 0)
        fail_msg("%s", err.text);
    assert_int_equal(train_held(f->train), info.meta.step);
}

/* The bits of a CPU; close values of a GPU, whose sums have another order for another number of
 * replicas. */
static void assert_same(const struct train_eval_report *a, const struct train_eval_report *b)
{
    assert_int_equal(a->step, b->step);
    assert_int_equal(a->samples, b->samples);
    if (fixture_on_gpus()) {
        assert_true(fabs(a->loss - b->loss) < 1e-4 * b->loss);
    } else {
        assert_true(a->loss == b->loss);
        assert_true(a->metrics[0] == b->metrics[0]);
    }
}

static void checkpoint_is_evaluated_as_by_the_group_and_nothing_changes(void **state)
{
    struct fixture *group = trained(), *f;
    struct train_eval_report of_group = evaluations[STEPS], again;
    char path[256];

    (void)state;
    f = begin(1);
    f->opts.min_replicas = 1;
    fixture_open(f);
    for (uint64_t k = 1; k <= 3; k++) {
        path_of(group, k * EACH, path);
        load(f, path);
        evaluate(f, k);
        assert_int_equal(f->end, k < 3 ? TRAIN_PAUSED : TRAIN_COMPLETE);
        assert_int_equal(f->held, k * EACH);
        assert_int_equal(connected, k * EACH - 1);
        assert_int_equal(f->evals, k);
        assert_int_equal(evaluations[k * EACH].samples, 359);
    }
    assert_same(&evaluations[STEPS], &of_group);
    assert_true(evaluations[EACH].loss > evaluations[STEPS].loss);
    again = evaluations[EACH];
    path_of(group, EACH, path); /* an older one follows, and the same once more */
    for (uint64_t k = 4; k <= 5; k++) {
        load(f, path);
        evaluate(f, k);
        assert_int_equal(f->evals, k);
        assert_same(&evaluations[EACH], &again);
    }
    assert_int_equal(f->steps, 0);
    assert_int_equal(f->saves, 0);
    fixture_free(f);
    fixture_free(group);
}

static void damaged_or_foreign_checkpoint_keeps_the_state(void **state)
{
    struct fixture *group = trained(), *f = begin(1);
    struct ckpt_info info;
    char path[256], file[300];
    struct err err;
    FILE *out;

    (void)state;
    fixture_open(f);
    path_of(group, EACH, path);
    load(f, path);
    path_of(group, 2 * EACH, path);
    snprintf(file, sizeof(file), "%s/model.safetensors", path);
    out = fopen(file, "r+b");
    assert_non_null(out);
    assert_int_equal(fseek(out, -3, SEEK_END), 0);
    assert_int_equal(fputc(0x55, out), 0x55);
    assert_int_equal(fclose(out), 0);
    assert_int_equal(train_load(f->train, path, &info, &err), ERR_CORRUPT);
    assert_int_equal(train_held(f->train), EACH);
    snprintf(path, sizeof(path), "%s/step-00000099", group->checkpoints);
    assert_int_equal(train_load(f->train, path, &info, &err), ERR_NOENT);
    evaluate(f, 1); /* of the state that was kept */
    assert_int_equal(f->evals, 1);
    assert_true(evaluations[EACH].loss > 0);
    fixture_free(f);
    fixture_free(group);
}

static void failed_evaluation_can_be_repeated(void **state)
{
    struct fixture *group = trained(), *f = begin(1);
    char path[256];

    (void)state;
    fixture_open(f);
    path_of(group, EACH, path);
    load(f, path);
    fault_arm("train.evaluated=fail", NULL);
    evaluate(f, 1);
    fault_arm(NULL, NULL);
    assert_int_equal(f->end, TRAIN_FAILED);
    assert_int_equal(f->evals, 0);
    evaluate(f, 2);
    assert_int_equal(f->end, TRAIN_PAUSED);
    assert_int_equal(f->evals, 1);
    fixture_free(f);
    fixture_free(group);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(checkpoint_is_evaluated_as_by_the_group_and_nothing_changes),
        cmocka_unit_test(damaged_or_foreign_checkpoint_keeps_the_state),
        cmocka_unit_test(failed_evaluation_can_be_repeated),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
