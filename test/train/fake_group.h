/* fake_group.h - tasks of one process that train together on fake engines, over real communicators.
 *
 * The test is the coordinator: fake_generation() starts a generation on some of the tasks and waits
 * until all of them have ended. When one task fails, the test aborts the others, as the coordinator
 * of a real group would. A generation takes milliseconds. */
#ifndef TEST_TRAIN_FAKE_GROUP_H
#define TEST_TRAIN_FAKE_GROUP_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/err.h"
#include "base/fs.h"
#include "ckpt/ckpt.h"
#include "comm/comm.h"
#include "harness/fake_engine.h"
#include "harness/in_memory.h"
#include "harness/sanitized.h"
#include "train/open.h"
#include "train/task.h"
#include "train/train.h"

enum { FAKE_TASKS = 4, FAKE_LANES = 4, FAKE_BATCH = 8, FAKE_STEPS = 8, FAKE_EPOCH = 4 };

struct fake_group {
    uint32_t n;
    pthread_mutex_t lock; /* guards `ended` and `fails` of all tasks */
    pthread_cond_t changed;
    uint8_t key[COMM_KEY_BYTES];
    uint64_t generation;
    char folder[80]; /* for checkpoints */

    struct fake_task {
        struct fake_group *group;
        struct train_opts opts;
        struct device devices[2];
        struct fake_script script;
        struct comm_listener *listener;
        char name[16], host[2], address[80];
        struct train *train;
        bool evaluates;    /* evaluates after each epoch */
        uint64_t pause_at; /* request a pause when this step is reported; 0: never */
        /* Reports of the task. */
        uint32_t steps[FAKE_STEPS + 1]; /* how often each step was reported */
        uint32_t evals[FAKE_STEPS + 1]; /* how often each evaluation was reported */
        uint32_t skips, differs, resumed, saved;
        char warning[1200], phases[256];
        bool runs, ended;
        enum train_end end;
        uint64_t held;
        int code;
        char text[1200];
    } tasks[FAKE_TASKS];
};

static inline void fake_event(void *arg, const struct train_event *e)
{
    struct fake_task *t = arg;

    if (e->kind == TRAIN_STEP) {
        t->steps[e->step]++;
        if (e->step == t->pause_at)
            train_request(t->train, TRAIN_REQUEST_PAUSE);
    }
    if (e->kind == TRAIN_EVAL)
        t->evals[e->step]++;
    t->skips += e->kind == TRAIN_SKIPPED;
    t->differs += e->kind == TRAIN_DIFFERS;
    t->resumed += e->kind == TRAIN_RESUMED;
    t->saved += e->kind == TRAIN_CHECKPOINT && e->ckpt->kind == CKPT_WRITTEN;
    if (e->kind == TRAIN_WARN)
        snprintf(t->warning, sizeof(t->warning), "%s", e->text);
    if (e->kind == TRAIN_PHASE)
        snprintf(t->phases + strlen(t->phases), sizeof(t->phases) - strlen(t->phases), "%s ",
                 e->text);
}

static inline void fake_ended(void *arg, enum train_end end, uint64_t held, int code,
                              const char *text)
{
    struct fake_task *t = arg;

    pthread_mutex_lock(&t->group->lock);
    t->ended = true;
    t->end = end;
    t->held = held;
    t->code = code;
    snprintf(t->text, sizeof(t->text), "%s", text);
    pthread_cond_signal(&t->group->changed);
    pthread_mutex_unlock(&t->group->lock);
}

/* Creates n tasks with n_devices replicas each. They are not open, so that a test can change
 * t->opts. */
static inline struct fake_group *fake_group_new(uint32_t n, uint32_t n_devices)
{
    struct fake_group *g = calloc(1, sizeof(*g));
    struct err err;

    assert_non_null(g);
    g->n = n;
    pthread_mutex_init(&g->lock, NULL);
    pthread_cond_init(&g->changed, NULL);
    snprintf(g->folder, sizeof(g->folder), "%.40s/trainerd-fake-XXXXXX", in_memory());
    assert_non_null(mkdtemp(g->folder));
    snprintf((char *)g->key, sizeof(g->key), "key of %d", (int)getpid());
    for (uint32_t i = 0; i < n; i++) {
        struct fake_task *t = &g->tasks[i];

        t->group = g;
        snprintf(t->name, sizeof(t->name), "worker %u", i);
        t->host[0] = (char)('A' + i); /* each task has its own host, so that they use TCP */
        if (comm_listener_open("127.0.0.1", 0, 0, NULL, &t->listener, &err) < 0)
            fail_msg("%s", err.text);
        snprintf(t->address, sizeof(t->address), "%s", comm_listener_address(t->listener));
        for (uint32_t d = 0; d < n_devices; d++)
            t->devices[d] = (struct device){ .kind = DEVICE_CPU, .index = d, .core = -1 };
        t->opts = (struct train_opts){
            .global_batch = FAKE_BATCH,
            .lanes = FAKE_LANES,
            .replicas = n * n_devices,
            .min_replicas = 1,
            .run.steps = FAKE_STEPS,
            .run.eval_every_epochs = 1,
            .health.check_gradients = true,
            .health.check_weights_every_steps = 2,
            .health.stuck_factor = 10,
            .optimizer = { .type = OPTIM_SGD,
                           .schedule = { .type = OPTIM_CONSTANT, .learning_rate = 0.1 } },
            .devices = t->devices,
            .n_devices = n_devices,
            .job_digest = "0",
            .job_name = "fake",
            .on_event = fake_event,
            .arg = t,
        };
    }
    return g;
}

/* The model of a fake has one tensor. */
static inline void fake_fill_model(struct model *m, const struct fake_task *t)
{
    m->opts = &t->opts;
    memset(m->digest, 'a', sizeof(m->digest) - 1); /* 64 hexadecimal digits */
    memset(m->data_digest, 'b', sizeof(m->data_digest) - 1);
    m->samples = FAKE_EPOCH * FAKE_BATCH;
    m->eval_samples = t->evaluates ? FAKE_BATCH : 0;
    m->steps_per_epoch = FAKE_EPOCH;
    m->total_steps = FAKE_STEPS;
    m->lane_batch = FAKE_BATCH / FAKE_LANES;
    m->tensors.model = calloc(1, sizeof(*m->tensors.model));
    assert_non_null(m->tensors.model);
    m->tensors.n_model = 1;
    m->tensors.model[0] = (struct ckpt_tensor){ .name = "w",
                                                .dtype = TENSOR_F32,
                                                .shape = shape_of(1, (int64_t)FAKE_FLOATS) };
}

static inline void fake_open_task(struct fake_task *t)
{
    struct err err;

    fake_next_script = &t->script;
    if (train_new(&t->opts, &t->train, &err) < 0)
        fail_msg("%s", err.text);
    fake_fill_model(&t->train->model, t);
    t->train->model.events = &t->train->events;
    if (train_open_engine(t->train, &engine_fake, &err) < 0)
        fail_msg("%s", err.text);
}

static inline void fake_group_open(struct fake_group *g)
{
    for (uint32_t i = 0; i < g->n; i++)
        fake_open_task(&g->tasks[i]);
}

static inline void fake_group_free(struct fake_group *g)
{
    struct err err;

    for (uint32_t i = 0; i < g->n; i++) {
        train_close(g->tasks[i].train);
        comm_listener_close(g->tasks[i].listener);
    }
    assert_int_equal(fs_remove_tree(g->folder, &err), 0);
    pthread_cond_destroy(&g->changed);
    pthread_mutex_destroy(&g->lock);
    free(g);
}

/* Returns the newest step that a listed task holds, and its position in the list. */
static inline uint64_t fake_newest(const struct fake_group *g, const uint32_t *list, uint32_t n,
                                   uint32_t *member)
{
    uint64_t newest = 0;

    *member = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint64_t held = train_held(g->tasks[list[i]].train);

        if (held > newest) {
            newest = held;
            *member = i;
        }
    }
    return newest;
}

/* Starts task `list[self]` in a group of the listed tasks. */
static inline int fake_start(struct fake_group *g, const uint32_t *list, uint32_t n, uint32_t self,
                             uint64_t newest_step, uint32_t newest_member, struct err *err)
{
    struct group_member members[FAKE_TASKS];
    struct fake_task *t = &g->tasks[list[self]];
    struct train_generation group = { .view.generation = g->generation,
                                      .view.members = members,
                                      .view.n_members = n,
                                      .view.self = self,
                                      .listener = n > 1 ? t->listener : NULL,
                                      .deadline_ms = 5000 * SLOW,
                                      .view.newest_step = newest_step,
                                      .view.newest_member = newest_member };
    int rc;

    for (uint32_t i = 0; i < n; i++) {
        const struct fake_task *m = &g->tasks[list[i]];

        members[i] = (struct group_member){ .name = m->name,
                                            .host_key = m->host,
                                            .data_address = m->address,
                                            .n_devices = m->opts.n_devices };
    }
    memcpy(group.key, g->key, sizeof(group.key));
    t->ended = false;
    t->phases[0] = '\0';
    rc = train_start(t->train, &group, fake_ended, err);
    t->runs = rc == 0;
    return rc;
}

/* Waits until all running tasks have ended their generation. */
static inline void fake_wait(struct fake_group *g)
{
    bool aborted = false;

    for (;;) {
        bool fails = false, is_left[FAKE_TASKS];
        uint32_t n_left = 0;

        pthread_mutex_lock(&g->lock);
        for (;;) {
            n_left = 0;
            fails = false;
            for (uint32_t i = 0; i < g->n; i++) {
                is_left[i] = g->tasks[i].runs && !g->tasks[i].ended;
                n_left += is_left[i];
                fails = fails || (g->tasks[i].runs && g->tasks[i].ended && g->tasks[i].code < 0);
            }
            if (n_left == 0 || (fails && !aborted))
                break;
            pthread_cond_wait(&g->changed, &g->lock);
        }
        pthread_mutex_unlock(&g->lock);
        for (uint32_t i = 0; fails && !aborted && i < g->n; i++)
            if (is_left[i])
                train_abort(g->tasks[i].train, "the coordinator says so");
        aborted = aborted || fails;
        if (n_left == 0)
            break;
    }
    for (uint32_t i = 0; i < g->n; i++)
        g->tasks[i].runs = false;
}

/* Runs a generation of the tasks in `digits` ("012") from the newest state that one of them
 * holds. */
static inline void fake_generation(struct fake_group *g, const char *digits)
{
    uint32_t list[FAKE_TASKS], n = (uint32_t)strlen(digits), member;
    uint64_t newest;
    struct err err;

    for (uint32_t i = 0; i < n; i++)
        list[i] = (uint32_t)(digits[i] - '0');
    newest = fake_newest(g, list, n, &member);
    g->generation++;
    for (uint32_t i = 0; i < n; i++)
        if (fake_start(g, list, n, i, newest, member, &err) < 0)
            fail_msg("%s", err.text);
    fake_wait(g);
}

/* Checks that the task holds exactly the state after `step`. */
static inline void fake_expect_state(struct fake_task *t, uint64_t step)
{
    float want[FAKE_FLOATS];
    struct err err;

    assert_int_equal(train_held(t->train), step);
    if (t->train->engine->ops->sync(t->train->engine, step, &err) < 0)
        fail_msg("%s", err.text);
    fake_expect(step, FAKE_LANES, want);
    assert_memory_equal(t->train->engine->memory.state, want, sizeof(want));
}

#endif
