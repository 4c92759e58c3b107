/* test_tables.c - training with embedding tables: packed gradients save memory and time and change
 * no bit of the result. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/buf.h"
#include "base/cancel.h"
#include "base/check.h"
#include "base/err.h"
#include "base/fs.h"
#include "code/map.h"
#include "data/write.h"
#include "harness/allocations.h"
#include "harness/emulated_gpus.h"
#include "harness/model.h"
#include "engine/gpu_types.h"
#include "train/train.h"
#include "train/task.h"

/* ---- a model with two tables, a dense part and statistics; its data ---- */

enum { SAMPLES = 256, WORDS = 4, ROWS = 500, BIASES = 130, STEPS = 12, WARM = 4 };

static char folder[] = "/tmp/trainerd-tables-XXXXXX";
static bool is_named[ROWS]; /* rows of the first table that a sample names */
static char model_path[64], data_prefix[64], data_glob[64];

static void write_model(void)
{
    static const int64_t flat[] = { -1, WORDS * 8 }, first = 0;
    struct model *m = model_new(17);
    static float ones[32], zeros[32];
    const uint8_t *bytes;
    size_t n;
    FILE *f;

    for (size_t i = 0; i < 32; i++)
        ones[i] = 1;
    model_input(m, "i", TENSOR_I64, shape_of(2, (int64_t)-1, (int64_t)WORDS));
    model_weights(m, "words", shape_of(2, (int64_t)ROWS, (int64_t)8), 1);
    model_weights(m, "biases", shape_of(1, (int64_t)BIASES), 2);
    model_weights(m, "out", shape_of(2, (int64_t)32, (int64_t)8), 3);
    model_floats(m, "scale", shape_of(1, (int64_t)32), ones);
    model_floats(m, "shift", shape_of(1, (int64_t)32), zeros);
    model_floats(m, "mean", shape_of(1, (int64_t)32), zeros);
    model_floats(m, "var", shape_of(1, (int64_t)32), ones);
    model_int64s(m, "flat", flat, 2);
    model_int64s(m, "first", &first, 1);
    model_node(m, "Gather", "words i", "embedded");
    model_node(m, "Reshape", "embedded flat", "row");
    model_node(m, "BatchNormalization", "row scale shift mean var", "normal new_mean new_var");
    model_int(m, "training_mode", 1);
    model_node(m, "MatMul", "normal out", "scores");
    model_node(m, "Gather", "i first", "column");
    model_int(m, "axis", 1);
    model_node(m, "Gather", "biases column", "bias");
    model_node(m, "Add", "scores bias", "logits");
    model_output(m, "logits");
    bytes = model_bytes(m, &n);
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
    uint32_t x = 9;

    assert_int_equal(data_writer_open(data_prefix, 1, &w, &err), 0);
    for (uint32_t s = 0; s < SAMPLES; s++) {
        int64_t i[WORDS], label = s % 3;

        for (uint32_t k = 0; k < WORDS; k++) {
            x = 1664525 * x + 1013904223;
            /* word 1 names few rows, often */
            i[k] = (int64_t)((x >> 8) % (k == 0 ? BIASES : k == 1 ? 3 : ROWS));
            is_named[i[k]] = true;
        }
        data_write_ints(&list, "i", i, WORDS);
        data_write_ints(&list, "label", &label, 1);
        assert_int_equal(data_writer_add(w, &list, &err), 0);
    }
    assert_int_equal(data_writer_commit(w, &err), 0);
    data_writer_close(w);
    buf_fini(&list);
}

static int set_up(void **state)
{
    (void)state;
    assert_non_null(mkdtemp(folder));
    snprintf(model_path, sizeof(model_path), "%s/model.onnx", folder);
    snprintf(data_prefix, sizeof(data_prefix), "%s/data", folder);
    snprintf(data_glob, sizeof(data_glob), "%s/data-*.tfrecord", folder);
    write_model();
    write_data();
    return 0;
}

static int tear_down(void **state)
{
    struct err err;

    (void)state;
    return fs_remove_tree(folder, &err);
}

/* ---- a run ---- */

struct job {
    struct train_opts opts;
    struct train_input input;
    struct train_target target;
    struct plan_measure loss;
    struct data_feature features[2];
    struct device devices[8];

    struct train *train;
    double losses[STEPS + 1], norms[STEPS + 1];
    uint64_t warm, last; /* number of allocations up to the step WARM and to the end */
    size_t packed;       /* floats of packed values in the last step */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool ended;
    enum train_end end;
    char text[512];
};

static void on_event(void *arg, const struct train_event *e)
{
    struct job *j = arg;

    if (e->kind != TRAIN_STEP)
        return;
    j->losses[e->step] = e->report->loss;
    j->norms[e->step] = e->report->grad_norm;
    j->packed = packed_floats(&j->train->replicas[0].device->arenas->rows[0]);
    j->last = allocations();
    if (e->step == WARM)
        j->warm = j->last;
}

static void on_end(void *arg, enum train_end end, uint64_t held, int code, const char *text)
{
    struct job *j = arg;

    (void)held;
    (void)code;
    pthread_mutex_lock(&j->lock);
    j->ended = true;
    j->end = end;
    snprintf(j->text, sizeof(j->text), "%s", text);
    pthread_cond_signal(&j->changed);
    pthread_mutex_unlock(&j->lock);
}

static struct job *job_new(uint32_t replicas, uint32_t lanes)
{
    struct job *j = calloc(1, sizeof(*j));

    assert_non_null(j);
    pthread_mutex_init(&j->lock, NULL);
    pthread_cond_init(&j->changed, NULL);
    j->input = (struct train_input){ .feature = "i", .input = "i" };
    j->target = (struct train_target){ .feature = "label", .dtype = TENSOR_I64 };
    j->loss = (struct plan_measure){ .op = "SoftmaxCrossEntropy", .tensor = "logits" };
    j->features[0] = (struct data_feature){ .name = "i", .stored = TENSOR_I64, .scale = 1,
                                            .shape = shape_of(1, (int64_t)WORDS) };
    j->features[1] = (struct data_feature){ .name = "label", .stored = TENSOR_I64, .scale = 1,
                                            .shape = shape_of(0) };
    for (uint32_t i = 0; i < replicas; i++)
        j->devices[i] = (struct device){ .kind = DEVICE_CPU, .index = i, .core = -1 };
    j->opts = (struct train_opts){
        .model.onnx = model_path,
        .model.inputs = &j->input,
        .model.n_inputs = 1,
        .targets = &j->target,
        .n_targets = 1,
        .losses = &j->loss,
        .n_losses = 1,
        .data.train = data_glob,
        .features = j->features,
        .n_features = 2,
        .data.shuffle = true,
        .data.origin.cache = DATA_CACHE_MEMORY,
        .data.prefetch = 2,
        .run.seed = 3,
        .run.steps = STEPS,
        .global_batch = 32,
        .lanes = lanes,
        .replicas = replicas,
        .run.clip_norm = 0.5,
        .optimizer = { .type = OPTIM_SGD,
                       .schedule = { .type = OPTIM_CONSTANT, .learning_rate = 0.5 } },
        .devices = j->devices,
        .n_devices = replicas,
        .job_digest = "0",
        .job_name = "test",
        .on_event = on_event,
        .arg = j,
    };
    return j;
}

static void job_free(struct job *j)
{
    train_close(j->train);
    pthread_cond_destroy(&j->changed);
    pthread_mutex_destroy(&j->lock);
    free(j);
}

/* pieces: of the lanes of the replicas; n_pieces 0: equal shares. */
static void run_pieces(struct job *j, const struct group_piece *pieces, uint32_t n_pieces)
{
    struct group_member self = {
        .name = "local", .host_key = "here", .data_address = "", .n_devices = j->opts.n_devices
    };
    struct train_generation g = { .view.generation = 1,
                                  .view.members = &self,
                                  .view.n_members = 1,
                                  .view.pieces = pieces,
                                  .view.n_pieces = n_pieces,
                                  .shared_memory = true,
                                  .deadline_ms = 20000 };
    struct cancel cancel = { 0 };
    struct err err;

    if (train_open(&j->opts, &cancel, &j->train, &err) < 0)
        fail_msg("%s", err.text);
    assert_int_equal(train_start(j->train, &g, on_end, &err), 0);
    pthread_mutex_lock(&j->lock);
    while (!j->ended)
        pthread_cond_wait(&j->changed, &j->lock);
    pthread_mutex_unlock(&j->lock);
    if (j->end != TRAIN_COMPLETE)
        fail_msg("%s", j->text);
}

static void run(struct job *j)
{
    run_pieces(j, NULL, 0);
}

static void expect_same(const struct job *a, const struct job *b)
{
    assert_memory_equal(a->losses, b->losses, sizeof(a->losses));
    assert_memory_equal(a->norms, b->norms, sizeof(a->norms));
    assert_int_equal(a->train->engine->memory.state_bytes, b->train->engine->memory.state_bytes);
    assert_memory_equal(a->train->engine->memory.state, b->train->engine->memory.state,
                        a->train->engine->memory.state_bytes);
}

/* ---- the tests ---- */

static void gradients_packed_or_whole_have_equal_bits_on_any_number_of_replicas(void **state)
{
    (void)state;
    for (uint32_t lanes = 1; lanes <= 8; lanes *= 2) {
        struct job *whole = job_new(1, lanes);

        whole->opts.whole_gradients = true;
        run(whole);
        assert_int_equal(whole->packed, 0);
        assert_true(whole->losses[STEPS] < whole->losses[1]);
        for (uint32_t replicas = 1; replicas <= lanes; replicas *= 2) {
            struct job *packed = job_new(replicas, lanes);

            run(packed);
            expect_same(whole, packed);
            assert_in_range(packed->packed, 32, (32 * WORDS) * 8 + 32); /* of 4130 floats */
            job_free(packed);
        }
        job_free(whole);
    }
}

/* The dense part is reduced in buckets while the last lane computes; tables are in the last
 * bucket. */
static void gradients_reduced_in_buckets_have_equal_bits(void **state)
{
    struct job *whole = job_new(1, 8);

    (void)state;
    run(whole);
    for (uint32_t replicas = 2; replicas <= 8; replicas *= 2) {
        struct job *j = job_new(replicas, 8);

        j->opts.overlap = TRAIN_OVERLAP_ALWAYS;
        j->opts.bucket_bytes = 64 * sizeof(float);
        run(j);
        assert_int_equal(j->train->replicas[0].device->n_buckets,
                         graph_dense_floats(j->train->model.graph) / 64 + 1);
        assert_in_range(j->train->replicas[0].device->n_buckets, 3, 10);
        expect_same(whole, j);
        job_free(j);
    }
    job_free(whole);
}

/* With fewer replicas than the full cluster each replica has several slots, and not all have
 * equally many. */
static void replicas_with_several_slots_have_equal_bits(void **state)
{
    struct job *whole = job_new(1, 16);

    (void)state;
    whole->opts.replicas = 1;
    run(whole);
    for (uint32_t replicas = 1; replicas <= 8; replicas++)
        for (int overlaps = 0; overlaps < 2; overlaps++) {
            struct job *j = job_new(replicas, 16);

            j->opts.replicas = 8;
            j->opts.min_replicas = replicas;
            if (overlaps) {
                j->opts.overlap = TRAIN_OVERLAP_ALWAYS;
                j->opts.bucket_bytes = 64 * sizeof(float);
            }
            run(j);
            expect_same(whole, j);
            job_free(j);
        }
    job_free(whole);
}

/* A replica with two pieces contributes two sums, each with marks of its own. */
static void replicas_with_two_pieces_of_lanes_have_equal_bits(void **state)
{
    static const struct {
        uint32_t replicas, n;
        struct group_piece pieces[6];
    } rows[] = {
        { 2, 4, { { 1, 0, 8 }, { 0, 8, 4 }, { 1, 12, 2 }, { 0, 14, 2 } } },
        { 2, 3, { { 0, 0, 8 }, { 1, 8, 4 }, { 0, 12, 4 } } },
        { 3, 6, { { 2, 0, 4 }, { 0, 4, 4 }, { 1, 8, 4 }, { 2, 12, 2 }, { 1, 14, 1 }, { 0, 15, 1 } } },
        { 3, 5, { { 0, 0, 8 }, { 1, 8, 4 }, { 2, 12, 2 }, { 1, 14, 1 }, { 0, 15, 1 } } },
    };
    struct job *whole = job_new(1, 16);

    (void)state;
    whole->opts.whole_gradients = true;
    run(whole);
    for (size_t i = 0; i < 4 * COUNT_OF(rows); i++) {
        struct job *j = job_new(rows[i / 4].replicas, 16);

        j->opts.balances = true;
        j->opts.whole_gradients = i % 2 == 0;
        if (i % 4 >= 2) {
            j->opts.overlap = TRAIN_OVERLAP_ALWAYS;
            j->opts.bucket_bytes = 64 * sizeof(float);
        }
        run_pieces(j, rows[i / 4].pieces, rows[i / 4].n);
        expect_same(whole, j);
        job_free(j);
    }
    job_free(whole);
}

static void optimizers_with_packed_gradients_equal_whole_gradients(void **state)
{

    (void)state;
    for (size_t k = 0; k < OPTIM_TYPES; k++)
        for (uint32_t way = 0; way < 2; way++) {
            struct job *j[2] = { job_new(1, 4), job_new(2, 4) };

            for (int i = 0; i < 2; i++) {
                j[i]->opts.whole_gradients = i == 0;
                j[i]->opts.run.steps = 6;
                j[i]->opts.optimizer.type = (enum optim_type)k;
                j[i]->opts.optimizer.hyper = (struct optim_hyper){ .momentum = 0.9, .beta1 = 0.9,
                                                         .beta2 = 0.99, .epsilon = 1e-6,
                                                         .weight_decay = way == 0 ? 0.01 : 0,
                                                         .trust_coefficient = 0.02 };
                j[i]->opts.optimizer.schedule.learning_rate = 0.005;
                j[i]->opts.run.clip_value = 0.1;
                j[i]->opts.optimizer.average.decay = way == 0 ? 0.9 : 0;
                j[i]->opts.mean_of_weights = way == 1;
                run(j[i]);
            }
            expect_same(j[0], j[1]);
            job_free(j[0]);
            job_free(j[1]);
        }
}

static void lazy_rows_have_equal_bits_on_any_number_of_replicas(void **state)
{
    static const char *const patterns[] = { "words", "biases" };
    static const struct train_params group = { .match = patterns, .n_match = 2, .rate_factor = 1,
                                               .lazy = true };
    struct job *j[4];

    (void)state;
    for (int i = 0; i < 4; i++) { /* the last job is not lazy and has other results */
        j[i] = job_new(i < 3 ? 1u << i : 1, 4);
        j[i]->opts.optimizer.type = OPTIM_ADAM;
        j[i]->opts.optimizer.hyper = (struct optim_hyper){ .beta1 = 0.9, .beta2 = 0.99, .epsilon = 1e-6 };
        j[i]->opts.optimizer.schedule.learning_rate = 0.01;
        j[i]->opts.groups = &group;
        j[i]->opts.n_groups = i < 3;
        run(j[i]);
    }
    expect_same(j[0], j[1]);
    expect_same(j[0], j[2]);
    assert_true(j[0]->losses[1] == j[3]->losses[1]);
    assert_true(j[0]->losses[STEPS] != j[3]->losses[STEPS]);
    for (int i = 0; i < 4; i++)
        job_free(j[i]);
}

static void lazy_rows_unsupported_are_refused(void **state)
{
    static const char *const table[] = { "words" }, *const dense[] = { "out" };
    static const struct {
        const char *const *match;
        enum optim_type optimizer;
        const char *words;
    } rows[] = {
        { dense, OPTIM_ADAM, "'out' is no table" },
        { table, OPTIM_LAMB, "lamb takes norms over all rows" },
    };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct train_params group = { .match = rows[i].match, .n_match = 1, .rate_factor = 1,
                                      .lazy = true };
        struct job *j = job_new(1, 1);
        struct cancel cancel = { 0 };
        struct err err;

        j->opts.optimizer.type = rows[i].optimizer;
        j->opts.groups = &group;
        j->opts.n_groups = 1;
        assert_int_equal(train_open(&j->opts, &cancel, &j->train, &err), ERR_INPUT);
        if (strstr(err.text, rows[i].words) == NULL)
            fail_msg("%s", err.text);
        assert_non_null(strstr(err.text, "/optimizer/groups/0/lazy_rows"));
        job_free(j);
    }
}

static void ps_tables_pattern_that_selects_no_table_is_refused(void **state)
{
    static const struct {
        const char *patterns[2];
        const char *words; /* NULL: allowed */
    } rows[] = {
        { { "words", "bias*" }, NULL },
        { { "*", "words" }, NULL },
        { { "words", "wrods" }, "'wrods' matches no table that trains; did you mean 'words'" },
        { { "nothing.*", "words" }, "'nothing.*' matches no table that trains" },
        { { "words", "out" }, "'out' selects 'out', which is no table" },
        { { "o?t", "words" }, "'o?t' selects 'out', which is no table" },
    };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        const char *patterns[] = { rows[i].patterns[0], rows[i].patterns[1] };
        struct ps_settings ps = { .tables = PS_TABLES_LISTED, .patterns = patterns, .n_patterns = 2,
                                  .replicas = 2, .min_ps = 1 };
        struct job *j = job_new(1, 1);
        struct cancel cancel = { 0 };
        struct err err = { .text = "" };
        int rc;

        j->opts.ps_tables = &ps;
        rc = train_open(&j->opts, &cancel, &j->train, &err);
        assert_int_equal(rc, rows[i].words == NULL ? 0 : ERR_INPUT);
        if (rows[i].words != NULL && (strstr(err.text, rows[i].words) == NULL ||
                                      strstr(err.text, "/parameter_server/tables: ") == NULL))
            fail_msg("%s", err.text);
        job_free(j);
    }
}

/* ---- on GPUs: emulated ones (test/cuda), or with TRAINERD_TEST_CUDA=1 all GPUs of the machine
 * ---- */

static void lazy_adam(struct job *j)
{
    static const char *const patterns[] = { "words", "biases" };
    static const struct train_params group = { .match = patterns, .n_match = 2, .rate_factor = 1,
                                               .lazy = true };

    j->opts.optimizer.type = OPTIM_ADAM;
    j->opts.optimizer.hyper = (struct optim_hyper){ .beta1 = 0.9, .beta2 = 0.99, .epsilon = 1e-6 };
    j->opts.optimizer.schedule.learning_rate = 0.01;
    j->opts.groups = &group;
    j->opts.n_groups = 1;
    j->opts.mean_of_weights = true; /* scales the gradient in place, but not the marks beside it */
    j->opts.optimizer.average.decay = 0.9;
}

static void resting_adagrad(struct job *j)
{
    j->opts.optimizer.type = OPTIM_ADAGRAD;
    j->opts.optimizer.hyper = (struct optim_hyper){ .epsilon = 1e-6 };
    j->opts.optimizer.schedule.learning_rate = 0.05;
}

static void decaying_adam(struct job *j)
{
    lazy_adam(j);
    j->opts.n_groups = 0;
    j->opts.optimizer.hyper.weight_decay = 0.01;
}

/* Checks that rows that no sample names have their initial bits, and that all others have
 * changed. */
static void expect_rows(const struct job *gpu, const struct job *cpu, const struct job *fresh)
{
    uint32_t n, moved = 0, still = 0;
    const struct graph_param *p = graph_params(cpu->train->model.graph, &n);
    const float *a = gpu->train->engine->memory.state, *b = cpu->train->engine->memory.state,
                *was = fresh->train->engine->memory.state;

    for (uint32_t i = 0; i < n; i++)
        for (size_t k = 0; k < p[i].elements; k++) {
            size_t at = p[i].offset + k, row = k / 8;

            if (!(fabsf(a[at] - b[at]) <= 2e-3f))
                fail_msg("%u lanes: %s [%zu] is %g, on a CPU %g", cpu->opts.lanes, p[i].name, k,
                         (double)a[at], (double)b[at]);
            if (strcmp(p[i].name, "words") != 0)
                continue;
            if ((a[at] == was[at]) != !is_named[row] || (b[at] == was[at]) != !is_named[row])
                fail_msg("row %zu of %s is %g, %g on a CPU, and was %g: %s", row, p[i].name,
                         (double)a[at], (double)b[at], (double)was[at],
                         is_named[row] ? "it was read" : "nobody read it");
            moved += is_named[row];
            still += !is_named[row];
        }
    assert_int_equal(moved + still, ROWS * 8);
    assert_in_range(still, 20 * 8, ROWS * 4);
}

static void gpu_tables_keep_the_same_rows_unchanged(void **state)
{
    static void (*const changes[])(struct job *j) = { lazy_adam, resting_adagrad, decaying_adam };
    static const struct { uint32_t gpus, lanes; } rows[] = { { 1, 1 }, { 1, 4 }, { 2, 2 }, { 2, 8 } };
    struct device there[DEVICE_MAX];
    struct job *fresh = job_new(1, 1);
    struct cancel cancel = { 0 };
    struct err err;

    (void)state;
    assert_true(gpus_there(1, there));
    assert_int_equal(train_open(&fresh->opts, &cancel, &fresh->train, &err), 0);
    for (size_t c = 0; c < COUNT_OF(changes); c++)
        for (size_t i = 0; i < COUNT_OF(rows) && gpus_there(rows[i].gpus, there); i++) {
            struct job *cpu = job_new(1, rows[i].lanes),
                       *gpu = job_new(rows[i].gpus, rows[i].lanes);

            memcpy(gpu->devices, there, sizeof(gpu->devices));
            gpu->opts.bucket_bytes = 1024;
            changes[c](cpu);
            changes[c](gpu);
            run(cpu);
            run(gpu);
            assert_int_equal(
                gpu->train->engine->ops->sync(gpu->train->engine, train_held(gpu->train), &err), 0);
            assert_int_equal(gpu_of(gpu->train->replicas[0].device)->grads.rows_at > 0,
                             changes[c] != decaying_adam);
            for (uint32_t k = 1; k <= STEPS; k++)
                if (!(fabs(gpu->losses[k] - cpu->losses[k]) <= 1e-3))
                    fail_msg("loss of step %u is %g, the CPU's %g", k, gpu->losses[k],
                             cpu->losses[k]);
            if (changes[c] != decaying_adam)
                expect_rows(gpu, cpu, fresh);
            job_free(cpu);
            job_free(gpu);
        }
    job_free(fresh);
}

static void coded(struct job *j, const struct device *there)
{
    memcpy(j->devices, there, sizeof(j->devices));
    lazy_adam(j);
    j->opts.bucket_bytes = 1024;
    j->opts.code = (struct code_settings){ .kind = CODE_INT8, .groups = 2 };
}

/* Gradients of tables and the marks of their rows stay float32 beside coded parameters. */
static void gpu_tables_beside_codes_have_equal_bits_on_any_number_of_gpus(void **state)
{
    struct job *one = job_new(1, 8), *two = job_new(2, 8);
    struct device there[DEVICE_MAX];
    struct err err;

    (void)state;
    if (gpus_there(2, there)) {
        coded(one, there);
        coded(two, there);
        run(one);
        run(two);
        for (int i = 0; i < 2; i++) {
            struct train *t = (i == 0 ? one : two)->train;

            assert_int_equal(t->engine->ops->sync(t->engine, train_held(t), &err), 0);
            assert_true(code_map_coded(t->engine->codes) > 0);
        }
        expect_same(two, one);
    }
    job_free(one);
    job_free(two);
}

static void step_with_tables_after_warm_up_allocates_no_memory(void **state)
{
    (void)state;
    /* on CPUs, on GPUs, and on GPUs with codes */
    for (int way = 0; way < 3; way++) {
        struct device there[DEVICE_MAX];
        struct job *j = job_new(way > 0 && !gpus_there(2, there) ? 1 : 2, 8);

        if (way == 1)
            memcpy(j->devices, there, sizeof(j->devices));
        if (way == 2)
            coded(j, there);
        run(j);
        if (ALLOCATIONS_COUNT)
            assert_int_equal(j->last, j->warm);
        job_free(j);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_packed_or_whole_have_equal_bits_on_any_number_of_replicas),
        cmocka_unit_test(gradients_reduced_in_buckets_have_equal_bits),
        cmocka_unit_test(replicas_with_several_slots_have_equal_bits),
        cmocka_unit_test(replicas_with_two_pieces_of_lanes_have_equal_bits),
        cmocka_unit_test(optimizers_with_packed_gradients_equal_whole_gradients),
        cmocka_unit_test(lazy_rows_have_equal_bits_on_any_number_of_replicas),
        cmocka_unit_test(lazy_rows_unsupported_are_refused),
        cmocka_unit_test(ps_tables_pattern_that_selects_no_table_is_refused),
        cmocka_unit_test(gpu_tables_keep_the_same_rows_unchanged),
        cmocka_unit_test(gpu_tables_beside_codes_have_equal_bits_on_any_number_of_gpus),
        cmocka_unit_test(step_with_tables_after_warm_up_allocates_no_memory),
    };

    (void)argc;
    emulated_gpus(argv);
    return cmocka_run_group_tests_name("train/tables", tests, set_up, tear_down);
}
