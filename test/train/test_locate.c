/* test_locate.c - non-finite loss or gradient: the location of the first non-finite value, and the
 * policy of the job. Tasks are processes; each kind of non-finite value has its own model and
 * sample. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <math.h>
#include <cmocka.h>

#include "base/buf.h"
#include "base/check.h"
#include "data/write.h"
#include "harness/model.h"
#include "train/troupe.h"

enum { SAMPLES = 64, BATCH = 16, LANES = 4, FEW = 8 /* two epochs of 4 steps */, ODD = 37 };

static struct heard { /* shared with the tasks */
    _Atomic uint32_t skipped, in_row, warnings;
    char text[TASKS_MAX][1400];
} *heard;

static char folder[] = "/tmp/trainerd-locate-XXXXXX", model_path[64], data_prefix[64],
            data_glob[64];

/* ---- kinds of non-finite values ---- */

struct kind {
    const char *name;
    void (*model)(struct model *m); /* from x [n, 4] and i [n, 1] to logits [n, 3] */
    /* inputs of sample ODD; the first input of all other samples is 1 */
    float odd[4];
    const char *says;               /* part of the message */
    bool of_sample;                 /* the message names the sample */
};

static void plain_model(struct model *m)
{
    model_node(m, "MatMul", "x w", "logits");
}

static void log_model(struct model *m) /* logarithm of 0 */
{
    model_node(m, "Log", "x", "l");
    model_node(m, "MatMul", "l w", "logits");
}

static void exp_model(struct model *m) /* result above the largest float */
{
    model_node(m, "Exp", "x", "e");
    model_node(m, "MatMul", "e w", "logits");
}

static void root_model(struct model *m) /* finite value with an infinite derivative at 0 */
{
    model_node(m, "Mul", "x ones", "scaled");
    model_node(m, "Sqrt", "scaled", "r");
    model_node(m, "MatMul", "r w", "logits");
}

static void masked_model(struct model *m) /* -inf of the mask is intended and not reported */
{
    static const float mask[4] = { 0, -INFINITY, 0, 0 };

    model_floats(m, "mask", shape_of(1, (int64_t)4), mask);
    model_node(m, "Add", "x mask", "masked");
    model_node(m, "Softmax", "masked", "s");
    model_int(m, "axis", -1);
    model_node(m, "Log", "x", "l");
    model_node(m, "Add", "s l", "sum");
    model_node(m, "MatMul", "sum w", "logits");
}

static void table_model(struct model *m) /* a row of the table has a weight that is too large */
{
    static float rows[8 * 4];

    for (size_t i = 0; i < 32; i++)
        rows[i] = i / 4 == 7 ? 3e38f : 0.1f;
    model_floats(m, "table", shape_of(2, (int64_t)8, (int64_t)4), rows);
    model_int64s(m, "flat", (int64_t[]){ -1, 4 }, 2);
    model_node(m, "Gather", "table i", "row");
    model_node(m, "Reshape", "row flat", "flat_row");
    model_node(m, "Add", "flat_row flat_row", "twice");
    model_node(m, "Add", "twice x", "t");
    model_node(m, "MatMul", "t w", "logits");
}

static const struct kind kinds[] = {
    { "a NaN in the data", plain_model, { 1, NAN, 1, 1 }, "the batch: input 'x' float32 [4, 4] holds nan, 1 of 16", true },
    { "log of 0", log_model, { 1, 1, 0, 1 }, "forward of Log 'l': output 'l' float32 [4, 4] holds -inf, 1 of 16 numbers; it read 'x' from 0 to", true },
    { "overflow of exp", exp_model, { 1, 100, 1, 1 }, "forward of Exp 'e': output 'e' float32 [4, 4] holds inf, 1 of 16 numbers; it read 'x' from 0.5 to 100", true },
    { "a slope", root_model, { 1, 0, 1, 1 }, "backward of Sqrt 'r': the gradient of 'scaled'", true },
    { "a mask", masked_model, { 0, 1, 1, 1 }, "forward of Log 'l': output 'l'", true },
    { "a table", table_model, { 1, 1, 1, 1 }, "forward of Add 'twice': output 'twice'", true },
};

static const struct kind *kind;
static bool all_odd;
static enum train_non_finite policy;
static uint64_t save_every, wanted_steps = FEW;
static char checkpoints[128];

static void write_model(void)
{
    struct model *m = model_new(17);
    static const float ones[4] = { 1, 1, 1, 1 };
    const uint8_t *bytes;
    size_t n;
    FILE *f;

    model_input(m, "x", TENSOR_F32, shape_of(2, (int64_t)-1, (int64_t)4));
    if (kind->model == table_model)
        model_input(m, "i", TENSOR_I64, shape_of(2, (int64_t)-1, (int64_t)1));
    model_floats(m, "ones", shape_of(1, (int64_t)4), ones);
    model_weights(m, "w", shape_of(2, (int64_t)4, (int64_t)3), 3);
    kind->model(m);
    model_output(m, "logits");
    /* a node has the name of its output */
    for (size_t i = 0; i < model_proto(m)->graph->n_node; i++)
        model_proto(m)->graph->node[i]->name = model_proto(m)->graph->node[i]->output[0];
    bytes = model_bytes(m, &n);
    for (size_t i = 0; i < model_proto(m)->graph->n_node; i++)
        model_proto(m)->graph->node[i]->name = (char *)protobuf_c_empty_string;
    f = fopen(model_path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
    model_free(m);
}

static void write_data(void)
{
    struct data_writer *w = NULL;
    struct buf list = { 0 };
    struct err err = { 0 };

    assert_int_equal(data_writer_open(data_prefix, 1, &w, &err), 0);
    for (uint32_t s = 0; s < SAMPLES; s++) {
        float x[4] = { 1, 0.5f + (float)(s % 7) / 7, 0.5f + (float)(s % 5) / 5, 0.5f };
        int64_t label = s % 3, row = s == ODD ? 7 : s % 7;

        data_write_floats(&list, "x", s == ODD || all_odd ? kind->odd : x, 4);
        data_write_ints(&list, "i", &row, 1);
        data_write_ints(&list, "label", &label, 1);
        assert_int_equal(data_writer_add(w, &list, &err), 0);
    }
    assert_int_equal(data_writer_commit(w, &err), 0);
    data_writer_close(w);
    buf_fini(&list);
}

/* ---- the job ---- */

static void hear(void *arg, const struct train_event *e)
{
    struct player *p = arg;

    if (e->kind == TRAIN_SKIPPED) {
        heard->skipped++;
        heard->in_row = (uint32_t)e->done;
        snprintf(heard->text[p->task], sizeof(heard->text[0]), "%s", e->text);
    } else if (e->kind == TRAIN_WARN) {
        heard->warnings++;
    }
    player_event(arg, e);
}

static void small_job(struct fixture *f, uint32_t task)
{
    static struct train_input inputs[2] = { { "x", "x" }, { "i", "i" } };
    static struct data_feature features[3];
    static const char *const frozen[] = { "mask" }, *const trainable[] = { "ones" };

    (void)task;
    features[0] = (struct data_feature){ .name = "x", .stored = TENSOR_F32, .scale = 1,
                                         .shape = shape_of(1, (int64_t)4) };
    features[1] = (struct data_feature){ .name = "label", .stored = TENSOR_I64, .scale = 1,
                                         .shape = shape_of(0) };
    features[2] = (struct data_feature){ .name = "i", .stored = TENSOR_I64, .scale = 1,
                                         .shape = shape_of(1, (int64_t)1) };
    snprintf(checkpoints, sizeof(checkpoints), "%.60s/checkpoints", fixture_root);
    f->opts.model.onnx = model_path;
    f->opts.model.frozen = frozen;
    f->opts.model.n_frozen = kind->model == masked_model;
    f->opts.model.trainable = trainable;
    f->opts.model.n_trainable = kind->model == root_model;
    f->opts.model.inputs = inputs;
    f->opts.model.n_inputs = kind->model == table_model ? 2 : 1;
    f->opts.features = features;
    f->opts.n_features = f->opts.model.n_inputs + 1;
    f->opts.data.train = data_glob;
    f->opts.run.steps = all_odd ? 30 : wanted_steps;
    f->opts.run.seed = 4; /* the odd sample is in steps that are not consecutive */
    f->opts.replicas = LANES;
    f->opts.min_replicas = 1;
    f->opts.lanes = LANES;
    f->opts.global_batch = BATCH;
    f->opts.run.clip_norm = 0;
    f->opts.health.check_gradients = true;
    f->opts.health.check_weights_every_steps = 1;
    f->opts.health.non_finite = policy;
    f->opts.on_event = hear;
    if (save_every > 0) {
        f->opts.checkpoint.directory = checkpoints;
        f->opts.checkpoint.every_steps = save_every;
    }
}

static struct troupe *new_troupe(const struct kind *k, const char *hosts, uint32_t devices)
{
    kind = k;
    memset(heard, 0, sizeof(*heard));
    write_model();
    write_data();
    return troupe_new(hosts, devices, small_job);
}

static int set_up(void **state)
{
    (void)state;
    heard = mmap(NULL, sizeof(*heard), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(heard != MAP_FAILED);
    assert_non_null(mkdtemp(folder));
    snprintf(model_path, sizeof(model_path), "%s/model.onnx", folder);
    snprintf(data_prefix, sizeof(data_prefix), "%s/data", folder);
    snprintf(data_glob, sizeof(data_glob), "%s/data-*.tfrecord", folder);
    return 0;
}

static int tear_down(void **state)
{
    struct err err;

    (void)state;
    return fs_remove_tree(folder, &err);
}

static uint32_t end_crc(struct troupe *k)
{
    troupe_quit(k);
    for (uint32_t i = 1; i < k->n; i++)
        assert_int_equal(k->stage->tasks[i].crc, k->stage->tasks[0].crc);
    return k->stage->tasks[0].crc;
}

static void expect(const char *text, const char *part)
{
    if (strstr(text, part) == NULL)
        fail_msg("%s: '%s' does not say '%s'", kind->name, text, part);
}

/* ---- the tests ---- */

static void non_finite_value_of_each_kind_is_located_on_every_task(void **state)
{
    static const char *const layouts[] = { "A", "AB", "AAB" };

    (void)state;
    policy = TRAIN_SKIP;
    for (size_t i = 0; i < COUNT_OF(kinds); i++) {
        uint32_t crc = 0;

        for (size_t l = 0; l < COUNT_OF(layouts); l++) {
            struct troupe *k = new_troupe(&kinds[i], layouts[l], 1);

            assert_int_equal(troupe_to_the_end(k), 1);
            if (heard->skipped != 2 * k->n) /* once in each of two epochs */
                fail_msg("%s: %u skipped: %s", kind->name, heard->skipped, heard->text[0]);
            assert_int_equal(heard->in_row, 1);
            for (uint32_t t = 0; t < k->n; t++) {
                assert_string_equal(heard->text[t], heard->text[0]);
                for (uint64_t s = 1; s <= FEW; s++)
                    assert_int_equal(k->stage->tasks[t].steps[s].times, 1);
            }
            expect(heard->text[0], kind->says);
            expect(heard->text[0], "first in lane ");
            expect(heard->text[0], "of epoch 1)");
            if (kind->of_sample)
                expect(heard->text[0], ", sample 37 of the data at position ");
            if (l == 0)
                crc = end_crc(k);
            else if (k->n == 2) /* with three tasks the lanes are added along the same tree */
                assert_int_equal(end_crc(k), crc);
            troupe_free(k);
        }
    }
}

/* The state after a skipped step equals that before it, and the next step continues from it. */
static void skipped_step_has_no_effect_on_the_state(void **state)
{
    uint64_t odd = 0;
    uint32_t crc[3];

    (void)state;
    policy = TRAIN_SKIP;
    for (uint64_t end = 0; end < 4; end++) {
        struct troupe *k;

        wanted_steps = end == 0 ? FEW : odd - 2 + end;
        k = new_troupe(&kinds[1], "AB", 1);
        (void)troupe_to_the_end(k);
        for (uint64_t s = FEW; s > 1 && end == 0; s--)
            odd = isfinite(k->stage->tasks[0].steps[s].loss) ? odd : s;
        assert_true(odd > 1 && odd < FEW);
        if (end > 0)
            crc[end - 1] = end_crc(k);
        troupe_free(k);
    }
    wanted_steps = FEW;
    assert_int_equal(crc[1], crc[0]);
    assert_int_not_equal(crc[2], crc[1]);
}

static void too_many_skips_in_a_row_stop_the_job(void **state)
{
    (void)state;
    policy = TRAIN_SKIP;
    all_odd = true;
    for (int two = 0; two < 2; two++) {
        struct troupe *k = new_troupe(&kinds[1], two ? "AB" : "A", 1);

        troupe_start(k);
        troupe_wait(k);
        for (uint32_t t = 0; t < k->n; t++) {
            assert_int_equal(k->tasks[t].last.end, TRAIN_FAILED);
            assert_int_equal(k->tasks[t].last.code, ERR_INPUT);
            assert_int_equal(k->tasks[t].held, HEALTH_MAX_SKIPS);
        }
        assert_int_equal(heard->skipped, HEALTH_MAX_SKIPS * k->n);
        troupe_free(k);
    }
    all_odd = false;
}

static void policy_stop_ends_all_tasks_and_keeps_the_previous_state(void **state)
{
    static const char *const layouts[] = { "A", "AB", "AAA" };

    (void)state;
    policy = TRAIN_STOP;
    save_every = 1000;
    for (size_t l = 0; l < COUNT_OF(layouts); l++) {
        struct troupe *k = new_troupe(&kinds[2], layouts[l], 1);
        struct ckpt_info *info = calloc(1, sizeof(*info));
        struct err err;

        assert_non_null(info);
        snprintf(checkpoints, sizeof(checkpoints), "%.60s/checkpoints", k->folder);
        troupe_start(k);
        troupe_wait(k);
        for (uint32_t t = 0; t < k->n; t++) {
            assert_int_equal(k->tasks[t].last.end, TRAIN_FAILED);
            assert_int_equal(k->tasks[t].last.code, ERR_INPUT);
            assert_string_equal(k->tasks[t].last.text, k->tasks[0].last.text);
        }
        expect(k->tasks[0].last.text,
               "reduced gradient of 'w' holds NaN or infinity; first in lane");
        if (k->tasks[0].held > 0) {
            assert_int_equal(ckpt_newest(checkpoints, NULL, NULL, NULL, NULL, info, &err), 0);
            assert_int_equal(info->meta.step, k->tasks[0].held);
        }
        assert_true(isnan(k->stage->tasks[0].steps[k->tasks[0].held + 1].loss) ||
                    k->stage->tasks[0].steps[k->tasks[0].held + 1].times == 0);
        free(info);
        troupe_free(k);
    }
    save_every = 0;
}

static void policy_restore_rolls_back_once_and_then_stops(void **state)
{
    (void)state;
    policy = TRAIN_RESTORE;
    for (int saves = 0; saves < 2; saves++) {
        struct troupe *k;
        uint64_t step;

        save_every = saves;
        k = new_troupe(&kinds[1], "AB", 1);
        troupe_start(k);
        troupe_wait(k);
        for (uint32_t t = 0; t < k->n; t++) {
            assert_int_equal(k->tasks[t].last.end, TRAIN_ROLL_BACK);
            assert_int_equal(k->tasks[t].held, 0);
            expect(k->tasks[t].last.text, "all tasks return to the newest checkpoint");
        }
        troupe_start(k);
        troupe_wait(k);
        for (uint32_t t = 0; t < k->n; t++) {
            assert_int_equal(k->tasks[t].last.end, TRAIN_FAILED);
            assert_int_equal(k->tasks[t].last.code, ERR_INPUT);
            expect(k->tasks[t].last.text, "so it was before");
        }
        step = k->tasks[0].held;
        assert_int_equal(k->tasks[1].held, step);
        troupe_free(k);
    }
    save_every = 0;
}

/* A task was absent when the others rolled back and still holds the state before the step. The
 * group continues from that state, so the rollback does not count. */
static void task_absent_during_a_rollback_does_not_stop_the_job(void **state)
{
    char fault[64];
    uint64_t odd;
    struct troupe *k;

    (void)state;
    policy = TRAIN_RESTORE;
    k = new_troupe(&kinds[1], "AB", 1);
    troupe_start(k);
    troupe_wait(k);
    odd = k->stage->tasks[0].step + 1;
    assert_true(odd > 1);
    troupe_free(k);

    k = new_troupe(&kinds[1], "ABC", 1);
    snprintf(fault, sizeof(fault), "train.forward@%llu", (unsigned long long)odd);
    troupe_start_with(k, 2, fault);
    troupe_wait(k);
    assert_int_equal(k->tasks[2].held, odd - 1);
    k->tasks[2].stopped = true; /* as the others see it */
    for (int n = 0; n < 2; n++) {
        troupe_start(k);
        troupe_wait(k);
        for (uint32_t t = 0; t < k->n; t++) {
            if (n == 0 && t == 2)
                continue;
            if (k->tasks[t].last.end != TRAIN_ROLL_BACK)
                fail_msg("time %d: worker %u ended with %d: %s", n, t, (int)k->tasks[t].last.end,
                         k->tasks[t].last.text);
            assert_int_equal(k->tasks[t].held, 0);
        }
        k->tasks[2].stopped = false;
    }
    troupe_start(k);
    troupe_wait(k);
    for (uint32_t t = 0; t < k->n; t++) {
        assert_int_equal(k->tasks[t].last.end, TRAIN_FAILED);
        assert_int_equal(k->tasks[t].held, odd - 1);
        expect(k->tasks[t].last.text, "so it was before, from the checkpoint on");
    }
    troupe_free(k);
}

/* The repetition of the step is finite: the NaN is not reproducible. */
static void non_finite_value_not_reproducible_is_attributed_to_the_machine(void **state)
{
    struct troupe *k;

    (void)state;
    policy = TRAIN_RESTORE;
    kind = &(const struct kind){ .name = "no trouble", .model = plain_model, .odd = { 1, 1, 1, 1 } };
    k = new_troupe(kind, "A", 1);
    troupe_start_with(k, 0, "health.not_finite@5");
    troupe_wait(k);
    assert_int_equal(k->tasks[0].last.end, TRAIN_ROLL_BACK);
    expect(k->tasks[0].last.text, "when every lane was computed again all was finite: a processor or "
                                  "memory of worker 0");
    assert_int_equal(troupe_to_the_end(k), 1);
    troupe_free(k);
}

/* Each replica adds up the rows of its part of the tables. */
static void table_row_bit_flip_is_detected(void **state)
{
    static const struct kind quiet = { .name = "no trouble", .model = table_model,
                                       .odd = { 1, 1, 1, 1 } };
    struct troupe *k;

    (void)state;
    policy = TRAIN_SKIP;
    for (uint32_t devices = 1; devices <= 2; devices++) {
        k = new_troupe(&quiet, devices == 1 ? "AAB" : "A", devices);
        /* GPUs do not reduce rows separately */
        troupe_start_with(k, devices % 2,
                          fixture_on_gpus() ? "health.flip_gradient@2" : "health.flip_row@2");
        troupe_wait(k);
        expect(k->tasks[devices % 2].last.text, devices == 1 ? "worker 1 differs from the others: its reduced "
                                                     "gradient of step 2"
               : fixture_on_gpus()   ? "worker 0: cuda:1 and cuda:0 differ"
                                     : "worker 0: its replicas");
        assert_int_equal(k->tasks[devices % 2].last.end, TRAIN_DIVERGED);
        assert_int_equal(troupe_to_the_end(k), 1);
        (void)end_crc(k);
        troupe_free(k);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(non_finite_value_of_each_kind_is_located_on_every_task),
        cmocka_unit_test(skipped_step_has_no_effect_on_the_state),
        cmocka_unit_test(too_many_skips_in_a_row_stop_the_job),
        cmocka_unit_test(policy_stop_ends_all_tasks_and_keeps_the_previous_state),
        cmocka_unit_test(policy_restore_rolls_back_once_and_then_stops),
        cmocka_unit_test(task_absent_during_a_rollback_does_not_stop_the_job),
        cmocka_unit_test(table_row_bit_flip_is_detected),
        cmocka_unit_test(non_finite_value_not_reproducible_is_attributed_to_the_machine),
    };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}
