/* fixture.h - trains the digits network for a few steps with a task in this process. */
#ifndef TEST_TRAIN_FIXTURE_H
#define TEST_TRAIN_FIXTURE_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cancel.h"
#include "base/err.h"
#include "base/fs.h"
#include "ckpt/ckpt.h"
#include "harness/in_memory.h"
#include "harness/model.h"
#include "train/train.h"
#include "train/task.h"

enum { STEPS = 60 };

static const char *fixture_root; /* parent of the folders of all fixtures */

__attribute__((constructor)) static void choose_root(void)
{
    fixture_root = in_memory();
}

struct fixture {
    char folder[80];
    char checkpoints[112], exported[112], model[112];
    struct train_input input;
    struct train_target target;
    struct plan_measure loss;
    struct train_metric metric;
    struct data_feature features[2];
    struct device devices[8];
    struct train_opts opts;

    double losses[STEPS + 1];
    uint64_t steps;          /* number of reported steps */
    uint64_t stop_after;     /* request a pause when this step is reported; 0: never */
    void (*on_step)(struct fixture *f, uint64_t step); /* called after each step; NULL: none */
    double accuracy;
    uint64_t evals, saves;
    struct train *train;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool ended;
    enum train_end end;
    uint64_t held;
    int code;
    char text[512];
};

static inline void fixture_event(void *arg, const struct train_event *e)
{
    struct fixture *f = arg;

    if (e->kind == TRAIN_STEP) {
        f->losses[e->step] = e->report->loss;
        f->steps++;
        if (f->on_step != NULL)
            f->on_step(f, e->step);
        if (e->step == f->stop_after)
            train_request(f->train, TRAIN_REQUEST_PAUSE);
    } else if (e->kind == TRAIN_EVAL) {
        f->accuracy = e->eval->metrics[0];
        f->evals++;
    } else if (e->kind == TRAIN_CHECKPOINT && e->ckpt->kind == CKPT_WRITTEN) {
        __atomic_add_fetch(&f->saves, 1, __ATOMIC_RELEASE); /* on the thread of the writer */
    }
}

static inline void fixture_end(void *arg, enum train_end end, uint64_t held, int code,
                               const char *text)
{
    struct fixture *f = arg;

    pthread_mutex_lock(&f->lock);
    f->ended = true;
    f->end = end;
    f->held = held;
    f->code = code;
    snprintf(f->text, sizeof(f->text), "%s", text);
    pthread_cond_signal(&f->changed);
    pthread_mutex_unlock(&f->lock);
}

/* Copies the state of the devices to the host's memory, where tests compare it. */
static inline int train_sync(struct train *t, struct err *err)
{
    return t->engine->ops->sync(t->engine, train_held(t), err);
}

/* Returns true if the tests run on emulated GPUs. scripts/test sets the variable and the path of
 * the plugin. */
static inline bool fixture_on_gpus(void)
{
    return getenv("TRAINERD_TEST_CUDA") != NULL;
}

static inline void fixture_devices(struct fixture *f, uint32_t replicas)
{
    char spec[32] = "cuda:0";
    struct err err;
    uint32_t n;

    for (uint32_t i = 0; i < replicas; i++)
        f->devices[i] = (struct device){ .kind = DEVICE_CPU, .index = i, .core = -1 };
    if (!fixture_on_gpus())
        return;
    setenv("EMULATED_GPUS", "4", 0);
    for (uint32_t i = 1; i < replicas; i++)
        snprintf(spec + strlen(spec), sizeof(spec) - strlen(spec), ",%u", i);
    if (device_parse(spec, 0, f->devices, &n, &err) < 0)
        fail_msg("%s", err.text);
}

/* Selects a network of four calls, because emulated GPUs are slow. */
static inline void fixture_small_model(struct fixture *f)
{
    struct model *m = model_new(17);
    FILE *file;
    const uint8_t *bytes;
    size_t n;

    snprintf(f->model, sizeof(f->model), "%s/small.onnx", f->folder);
    model_input(m, "x", TENSOR_F32, shape_of(4, (int64_t)-1, (int64_t)1, (int64_t)8, (int64_t)8));
    model_int64s(m, "flat", (int64_t[]){ -1, 64 }, 2);
    model_weights(m, "w", shape_of(2, (int64_t)64, (int64_t)8), 1);
    model_weights(m, "v", shape_of(2, (int64_t)8, (int64_t)10), 2);
    model_node(m, "Reshape", "x flat", "f");
    model_node(m, "MatMul", "f w", "h");
    model_node(m, "Relu", "h", "r");
    model_node(m, "MatMul", "r v", "logits");
    model_output(m, "logits");
    bytes = model_bytes(m, &n);
    file = fopen(f->model, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, n, file), n);
    assert_int_equal(fclose(file), 0);
    model_free(m);
    f->opts.model.onnx = f->model;
}

static inline struct fixture *fixture_new(uint32_t replicas, uint32_t lanes)
{
    struct fixture *f = calloc(1, sizeof(*f));

    assert_non_null(f);
    snprintf(f->folder, sizeof(f->folder), "%.40s/trainerd-train-XXXXXX", fixture_root);
    assert_non_null(mkdtemp(f->folder));
    snprintf(f->checkpoints, sizeof(f->checkpoints), "%s/checkpoints", f->folder);
    snprintf(f->exported, sizeof(f->exported), "%s/model.onnx", f->folder);
    pthread_mutex_init(&f->lock, NULL);
    pthread_cond_init(&f->changed, NULL);
    f->input = (struct train_input){ .feature = "image", .input = "x" };
    f->target = (struct train_target){ .feature = "label", .dtype = TENSOR_I64 };
    f->loss = (struct plan_measure){ .op = "SoftmaxCrossEntropy", .tensor = "logits" };
    f->metric = (struct train_metric){ .name = "accuracy",
                                       .measure = { .op = "Accuracy", .tensor = "logits" } };
    f->features[0] = (struct data_feature){ .name = "image", .stored = TENSOR_U8, .scale = 1.0 / 16,
                                             .shape = shape_of(3, (int64_t)1, (int64_t)8, (int64_t)8) };
    f->features[1] = (struct data_feature){ .name = "label", .stored = TENSOR_I64, .scale = 1,
                                             .shape = shape_of(0) };
    fixture_devices(f, replicas);
    f->opts = (struct train_opts){
        .model.onnx = "config/digits/digits_cnn.onnx",
        .model.inputs = &f->input,
        .model.n_inputs = 1,
        .targets = &f->target,
        .n_targets = 1,
        .losses = &f->loss,
        .n_losses = 1,
        .metrics = &f->metric,
        .n_metrics = 1,
        .data.train = "config/digits/digits-train-*.tfrecord",
        .features = f->features,
        .n_features = 2,
        .data.shuffle = true,
        .data.origin.cache = DATA_CACHE_MEMORY,
        .data.prefetch = 2,
        .run.seed = 3,
        .run.steps = STEPS,
        .global_batch = 32,
        .lanes = lanes,
        .replicas = replicas,
        .run.clip_norm = 1,
        .health.check_gradients = true,
        .health.check_weights_every_steps = 7,
        .health.stuck_factor = 10,
        .optimizer = { .type = OPTIM_MOMENTUM,
                       .hyper = { .momentum = 0.9 },
                       .schedule = { .type = OPTIM_CONSTANT, .learning_rate = 0.05 } },
        .devices = f->devices,
        .n_devices = replicas,
        .job_digest = "0",
        .job_name = "test",
        .on_event = fixture_event,
        .arg = f,
    };
    if (fixture_on_gpus())
        fixture_small_model(f);
    return f;
}

static inline void fixture_free(struct fixture *f)
{
    struct err err;

    train_close(f->train);
    assert_int_equal(fs_remove_tree(f->folder, &err), 0);
    pthread_cond_destroy(&f->changed);
    pthread_mutex_destroy(&f->lock);
    free(f);
}

static inline void fixture_open(struct fixture *f)
{
    struct cancel cancel = { 0 };
    struct err err;

    if (train_open(&f->opts, &cancel, &f->train, &err) < 0)
        fail_msg("%s", err.text);
}

/* Runs one generation to its end. */
static inline void fixture_generation(struct fixture *f, const struct train_generation *g)
{
    struct err err;

    f->ended = false;
    if (train_start(f->train, g, fixture_end, &err) < 0)
        fail_msg("%s", err.text);
    pthread_mutex_lock(&f->lock);
    while (!f->ended)
        pthread_cond_wait(&f->changed, &f->lock);
    pthread_mutex_unlock(&f->lock);
    if (fixture_on_gpus() && train_held(f->train) > 0)
        assert_int_equal(train_sync(f->train, &err), 0); /* tests compare the state of the host */
}

/* Trains as member `self` of a group and waits for the end. */
static inline void fixture_train(struct fixture *f, const struct train_generation *g)
{
    fixture_open(f);
    fixture_generation(f, g);
}

static inline void run(struct fixture *f)
{
    struct group_member self = {
        .name = "local", .host_key = "here", .data_address = "", .n_devices = f->opts.n_devices
    };
    struct train_generation g = { .view.generation = 1,
                                  .view.members = &self,
                                  .view.n_members = 1,
                                  .shared_memory = true,
                                  .deadline_ms = 20000 };

    fixture_train(f, &g);
}

#endif
