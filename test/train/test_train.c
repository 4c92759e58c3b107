/* test_train.c - the training loop in one process without a control plane, on the digits. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/cancel.h"
#include "base/check.h"
#include "base/fault.h"
#include "base/lane_tree.h"
#include "harness/allocations.h"
#include "base/buf.h"
#include "ckpt/ckpt_priv.h"
#include "train/fixture.h"

enum { WARM = 20 };
static uint64_t at_warm, at_end;

static void note_allocations(struct fixture *f, uint64_t step)
{
    (void)f;
    if (step == WARM)
        at_warm = allocations();
    at_end = allocations();
}

/* ---- the tests ---- */

static void loss_decreases_and_bits_do_not_depend_on_replicas(void **state)
{
    struct fixture *one = fixture_new(1, 4), *two = fixture_new(2, 4), *four = fixture_new(4, 4);

    (void)state;
    run(one);
    run(two);
    run(four);
    assert_int_equal(one->end, TRAIN_COMPLETE);
    assert_int_equal(one->steps, STEPS);
    assert_true(one->losses[STEPS] < one->losses[1] / 3);
    assert_memory_equal(one->losses, two->losses, sizeof(one->losses));
    assert_memory_equal(one->losses, four->losses, sizeof(one->losses));
    assert_memory_equal(one->train->engine->memory.state, two->train->engine->memory.state,
                        one->train->engine->memory.state_bytes);
    assert_memory_equal(one->train->engine->memory.state, four->train->engine->memory.state,
                        one->train->engine->memory.state_bytes);
    fixture_free(one);
    fixture_free(two);
    fixture_free(four);
}

/* Along the tree of thirds of nine lanes. */
static void lanes_of_a_tree_have_equal_bits_on_any_number_of_replicas(void **state)
{
    static const uint32_t factors[] = { 3, 3 };
    struct fixture *plain = fixture_new(1, 9), *f[COUNT_OF(plain->devices)];

    (void)state;
    plain->opts.global_batch = 36;
    run(plain);
    for (uint32_t n = 1; n <= COUNT_OF(f); n++) {
        f[n - 1] = fixture_new(n, 9);
        f[n - 1]->opts.global_batch = 36;
        assert_int_equal(lane_tree_make(factors, 2, &f[n - 1]->opts.lane_tree, NULL), 0);
        run(f[n - 1]);
        assert_int_equal(f[n - 1]->end, TRAIN_COMPLETE);
        assert_memory_equal(f[0]->losses, f[n - 1]->losses, sizeof(f[0]->losses));
        assert_memory_equal(f[0]->train->engine->memory.state,
                            f[n - 1]->train->engine->memory.state,
                            f[0]->train->engine->memory.state_bytes);
    }
    assert_memory_not_equal(f[0]->train->engine->memory.state, plain->train->engine->memory.state,
                            f[0]->train->engine->memory.state_bytes);
    for (size_t i = 0; i < COUNT_OF(f); i++)
        fixture_free(f[i]);
    fixture_free(plain);
}

static void step_after_warm_up_allocates_no_memory(void **state)
{
    (void)state;
    for (int overlaps = 0; overlaps < 2; overlaps++) {
        struct fixture *f = fixture_new(2, 4);

        f->on_step = note_allocations;
        f->opts.overlap = overlaps ? TRAIN_OVERLAP_ALWAYS : TRAIN_OVERLAP_NEVER;
        f->opts.bucket_bytes = 4096;
        run(f);
        assert_int_equal(f->end, TRAIN_COMPLETE);
        if (ALLOCATIONS_COUNT)
            assert_true(at_warm > 0); /* the counter works: opening allocates */
        assert_int_equal(at_end - at_warm, 0);
        fixture_free(f);
    }
}

static void run_stopped_and_reopened_continues_with_equal_bits(void **state)
{
    struct fixture *whole = fixture_new(2, 2), *part = fixture_new(2, 2);
    struct err err;

    (void)state;
    run(whole);
    part->opts.checkpoint.directory = part->checkpoints;
    part->stop_after = 17;
    run(part);
    assert_int_equal(part->end, TRAIN_PAUSED);
    assert_true(part->steps >= 17 && part->steps < STEPS);
    assert_int_equal(part->held, part->steps);
    assert_int_equal(part->saves, 0);
    assert_int_equal(train_save(part->train, 20000, &err), 0);
    assert_int_equal(train_save(part->train, 20000, &err), 0); /* the checkpoint exists */
    assert_int_equal(part->saves, 1);
    train_close(part->train);
    part->train = NULL;
    part->ended = false;
    part->stop_after = 0;
    run(part);
    assert_int_equal(part->end, TRAIN_COMPLETE);
    assert_int_equal(part->steps, STEPS);
    assert_memory_equal(whole->losses, part->losses, sizeof(whole->losses));
    assert_memory_equal(whole->train->engine->memory.state, part->train->engine->memory.state,
                        whole->train->engine->memory.state_bytes);
    fixture_free(whole);
    fixture_free(part);
}

/* Norms of parameters, groups, clipping and the average have the same bits with any number of
 * replicas. */
/* Changes the position in the manifest of the newest checkpoint and corrects the checksum. */
static void change_position(const char *checkpoints, uint64_t by)
{
    struct ckpt_info *info = calloc(1, sizeof(*info));
    struct ckpt_manifest *m = calloc(1, sizeof(*m));
    struct buf text = { 0 };
    struct err err;
    char *path;

    assert_true(info != NULL && m != NULL);
    assert_int_equal(ckpt_newest(checkpoints, NULL, NULL, NULL, NULL, info, &err), 0);
    assert_int_equal(ckpt_manifest_read(info->path, m, &err), 0);
    m->meta.position += by;
    ckpt_manifest_print(m, 0, &text);
    path = fs_join(info->path, CKPT_MANIFEST_FILE);
    assert_int_equal(fs_replace(path, text.data, text.len, &err), 0);
    buf_fini(&text);
    free(path);
    free(m);
    free(info);
}

static void manifest_whose_position_contradicts_its_step_is_refused(void **state)
{
    struct fixture *f = fixture_new(1, 4);

    (void)state;
    f->opts.checkpoint.directory = f->checkpoints;
    f->opts.run.steps = 3;
    run(f);
    assert_int_equal(f->end, TRAIN_COMPLETE);
    train_close(f->train);
    change_position(f->checkpoints, 32);
    f->opts.run.steps = 4;
    run(f);
    assert_int_equal(f->end, TRAIN_FAILED);
    assert_int_equal(f->code, ERR_INPUT);
    assert_non_null(strstr(f->text, "its manifest contradicts step 3; expected epoch 0, position 96, found epoch 0, "
                                    "position 128"));
    fixture_free(f);
}

static void optimizers_have_equal_bits_on_any_number_of_replicas(void **state)
{
    static const char *const patterns[] = { "*.bias" };
    static const struct train_params group = { .match = patterns, .n_match = 1,
                                               .rate_factor = 0.5, .adapts = false };

    (void)state;
    for (size_t k = 0; k < OPTIM_TYPES; k++) {
        struct fixture *f[2] = { fixture_new(1, 4), fixture_new(4, 4) };

        for (int i = 0; i < 2; i++) {
            f[i]->opts.run.steps = 12;
            f[i]->opts.optimizer.type = (enum optim_type)k;
            f[i]->opts.optimizer.hyper = (struct optim_hyper){ .momentum = 0.9, .beta1 = 0.9,
                                                               .beta2 = 0.99, .epsilon = 1e-6,
                                                               .weight_decay = 0.01,
                                                               .trust_coefficient = 0.02,
                                                               .nesterov = true, .centered = true };
            f[i]->opts.optimizer.schedule.learning_rate = k == OPTIM_LION ? 0.0005 : 0.005;
            f[i]->opts.run.clip_value = 0.1;
            f[i]->opts.optimizer.average.decay = 0.9;
            f[i]->opts.groups = &group;
            f[i]->opts.n_groups = 1;
            run(f[i]);
            assert_int_equal(f[i]->end, TRAIN_COMPLETE);
        }
        if (!(f[0]->losses[12] < f[0]->losses[1]))
            fail_msg("%s: from %g to %g", optim_get(k)->name, f[0]->losses[1], f[0]->losses[12]);
        assert_memory_equal(f[0]->losses, f[1]->losses, sizeof(f[0]->losses));
        assert_memory_equal(f[0]->train->engine->memory.state, f[1]->train->engine->memory.state,
                            f[0]->train->engine->memory.state_bytes);
        fixture_free(f[0]);
        fixture_free(f[1]);
    }
}

/* Evaluations determine the learning rate, and the checkpoint is older than the evaluation of its
 * step. */
static void plateau_schedule_resumed_continues_its_state(void **state)
{
    struct fixture *whole = fixture_new(2, 2), *part = fixture_new(2, 2);
    struct err err;

    (void)state;
    for (int i = 0; i < 2; i++) {
        struct train_opts *o = i == 0 ? &whole->opts : &part->opts;

        o->global_batch = 128; /* 11 steps an epoch */
        o->data.eval = "config/digits/digits-test-*.tfrecord";
        o->run.eval_every_epochs = 1;
        o->optimizer.average.decay = 0.8;
        o->optimizer.average.evaluate = true;
        o->optimizer.schedule = (struct optim_schedule){ .type = OPTIM_PLATEAU, .learning_rate = 0.1,
                                                         .gamma = 0.25, .threshold = 0.99 };
    }
    run(whole);
    assert_int_equal(whole->train->state.schedule.plateau.reductions, 5); /* of 6 evaluations */
    part->opts.checkpoint.directory = part->checkpoints;
    /* the last step of an epoch, and another step */
    for (uint64_t stop = 21; stop <= 40; stop += 11) {
        part->stop_after = stop;
        part->ended = false;
        run(part);
        assert_int_equal(part->end, TRAIN_PAUSED);
        assert_int_equal(train_save(part->train, 20000, &err), 0);
        train_close(part->train);
        part->train = NULL;
    }
    part->stop_after = 0;
    part->ended = false;
    run(part);
    assert_int_equal(part->end, TRAIN_COMPLETE);
    assert_memory_equal(whole->losses, part->losses, sizeof(whole->losses));
    assert_memory_equal(whole->train->engine->memory.state, part->train->engine->memory.state,
                        whole->train->engine->memory.state_bytes);
    assert_memory_equal(&whole->train->state.schedule.plateau, &part->train->state.schedule.plateau,
                        sizeof(whole->train->state.schedule.plateau));
    fixture_free(whole);
    fixture_free(part);
}

/* decay d, weights w_k: a_k = d a_(k-1) + (1 - d) w_k, from the weights in the file. */
static void average_covers_weights_and_statistics_are_copied(void **state)
{
    struct fixture *f = fixture_new(2, 2);
    const struct memory *m;
    struct graph *fresh; /* training releases the initial weights */
    bool differs = false;

    (void)state;
    f->opts.optimizer.average.decay = 0.5;
    f->opts.run.steps = 1;
    run(f);
    m = &f->train->engine->memory;
    assert_int_equal(graph_import(&(struct graph_opts){ .path = f->opts.model.onnx }, &fresh, NULL),
                     0);
    for (uint32_t i = 0, n; i < (graph_params(fresh, &n), n); i++) {
        const struct graph_param *p = &graph_params(fresh, &n)[i];

        for (size_t e = 0; e < p->elements; e++) {
            float w = m->state[p->offset + e], a = m->average[p->offset + e];
            float expected = p->kind == GRAPH_TRAINED ? 0.5f * p->initial[e] + 0.5f * w : w;

            assert_true(a == expected);
            differs = differs || a != w;
        }
    }
    assert_true(differs);
    graph_free(fresh);
    fixture_free(f);
}

static void parameter_group_without_match_is_refused(void **state)
{
    static const char *const patterns[] = { "*.bias", "conv1.wieght" };
    static const struct train_params group = { .match = patterns, .n_match = 2, .rate_factor = 1 };
    struct fixture *f = fixture_new(1, 2);
    struct cancel cancel = { 0 };
    struct err err;

    (void)state;
    f->opts.groups = &group;
    f->opts.n_groups = 1;
    assert_int_equal(train_open(&f->opts, &cancel, &f->train, &err), ERR_INPUT);
    assert_non_null(
        strstr(err.text, "/optimizer/groups/0/match: 'conv1.wieght' matches no parameter"));
    assert_non_null(strstr(err.text, "did you mean 'conv1.weight'"));
    fixture_free(f);
}

static void last_batch_padded_counts_every_sample_once(void **state)
{
    struct fixture *f = fixture_new(1, 2);

    (void)state;
    f->opts.run.steps = 0;
    f->opts.run.epochs = 1;
    f->opts.data.pad = true;
    if (!fixture_on_gpus())
        fixture_small_model(f); /* it has no running averages, which would count the padding */
    f->opts.data.eval = "config/digits/digits-test-*.tfrecord";
    run(f);
    assert_int_equal(f->end, TRAIN_COMPLETE);
    assert_int_equal(f->steps, 45); /* 1438 samples in batches of 32: 44 and one of 30 */
    assert_int_equal(model_samples_of(&f->train->model, 45), 30);
    assert_int_equal(f->evals, 1);
    assert_true(f->accuracy > 0.5);
    fixture_free(f);
}

static void invalid_job_is_refused_at_opening(void **state)
{
    static const struct { const char *words; int what; } rows[] = {
        { "has no input 'y'", 0 }, { "no such file", 1 },     { "fewer than one global batch", 2 },
        { "logitz", 3 },           { "no feature 'labbel'", 4 },
    };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct fixture *f = fixture_new(1, 2);
        struct cancel cancel = { 0 };
        struct err err = { .code = 0 };

        if (rows[i].what == 0)
            f->input.input = "y";
        if (rows[i].what == 1)
            f->opts.data.train = "config/digits/nothing-*.tfrecord";
        if (rows[i].what == 2)
            f->opts.global_batch = 4096;
        if (rows[i].what == 3)
            f->loss.tensor = "logitz";
        if (rows[i].what == 4)
            f->target.feature = "labbel";
        assert_true(train_open(&f->opts, &cancel, &f->train, &err) < 0);
        assert_null(f->train);
        if (rows[i].what != 1 && strstr(err.text, rows[i].words) == NULL)
            fail_msg("'%s' does not say '%s'", err.text, rows[i].words);
        if (rows[i].what == 1 && strstr(err.text, "nothing-*.tfrecord") == NULL)
            fail_msg("'%s' does not name the files", err.text);
        fixture_free(f);
    }
}

static void error_in_one_replica_ends_all_replicas(void **state)
{
    struct fixture *f = fixture_new(4, 4);
    struct err err;

    (void)state;
    assert_int_equal(fault_arm("train.reduce@30", &err), 0);
    run(f);
    assert_int_equal(fault_arm(NULL, &err), 0);
    assert_int_equal(f->end, TRAIN_FAILED);
    assert_non_null(strstr(f->text, "train.reduce"));
    fixture_free(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(loss_decreases_and_bits_do_not_depend_on_replicas),
        cmocka_unit_test(lanes_of_a_tree_have_equal_bits_on_any_number_of_replicas),
        cmocka_unit_test(step_after_warm_up_allocates_no_memory),
        cmocka_unit_test(run_stopped_and_reopened_continues_with_equal_bits),
        cmocka_unit_test(manifest_whose_position_contradicts_its_step_is_refused),
        cmocka_unit_test(optimizers_have_equal_bits_on_any_number_of_replicas),
        cmocka_unit_test(plateau_schedule_resumed_continues_its_state),
        cmocka_unit_test(average_covers_weights_and_statistics_are_copied),
        cmocka_unit_test(parameter_group_without_match_is_refused),
        cmocka_unit_test(last_batch_padded_counts_every_sample_once),
        cmocka_unit_test(invalid_job_is_refused_at_opening),
        cmocka_unit_test(error_in_one_replica_ends_all_replicas),
    };

    return cmocka_run_group_tests_name("train/train", tests, NULL, NULL);
}
