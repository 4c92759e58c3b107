/* regroup.h - a small job of several tasks, which are processes, and the comparison of its steps, evaluations, samples and
 * final state with those of an undisturbed run; for the tests of many generations. */
#ifndef TEST_TRAIN_REGROUP_H
#define TEST_TRAIN_REGROUP_H

#include <math.h>
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "train/sample_check.h"
#include "train/troupe.h"

enum { FEW = 12, LANES_EACH = 2, EVAL_STEPS = 4 }; /* 4 tasks, 4 steps an epoch */

static char checkpoints[128], exported[128]; /* of all tasks */
static char samples[128];                    /* of one task */
static bool saves, exports;
static uint64_t save_every; /* steps; 0: no periodic checkpoints */

static inline void name_files(const char *folder)
{
    snprintf(checkpoints, sizeof(checkpoints), "%.60s/checkpoints", folder);
    snprintf(exported, sizeof(exported), "%.60s/model.onnx", folder);
}

static inline void small_job(struct fixture *f, uint32_t task)
{
    name_files(fixture_root);
    snprintf(samples, sizeof(samples), "%.60s/samples-%u", fixture_root, task);
    f->opts.sample_log = samples;
    f->opts.run.steps = FEW;
    f->opts.replicas = 4; /* of the full cluster; most scenes use fewer */
    f->opts.min_replicas = 1;
    f->opts.lanes = 4 * LANES_EACH;
    f->opts.balances = !fixture_on_gpus();
    f->opts.global_batch = 352; /* 4 steps an epoch */
    f->opts.data.eval = "config/digits/digits-test-*.tfrecord";
    f->opts.run.eval_every_epochs = 1;
    f->opts.optimizer.type = OPTIM_LAMB; /* its norms use all gates of an update */
    f->opts.optimizer.hyper = (struct optim_hyper){ .beta1 = 0.9, .beta2 = 0.99, .epsilon = 1e-6 };
    f->opts.optimizer.schedule = (struct optim_schedule){ .type = OPTIM_PLATEAU, .learning_rate = 0.02,
                                                .gamma = 0.5, .threshold = 0.9 };
    f->opts.optimizer.average.decay = 0.9;
    f->opts.health.check_gradients = true;
    f->opts.health.check_weights_every_steps = 5;
    f->opts.overlap = TRAIN_OVERLAP_ALWAYS;
    f->opts.bucket_bytes = 16384;
    if (saves)
        f->opts.checkpoint.directory = checkpoints;
    f->opts.checkpoint.every_steps = save_every;
    if (exports)
        f->opts.export.onnx = exported;
}

static inline struct troupe *new_troupe(const char *hosts, uint32_t devices)
{
    struct troupe *k = troupe_new(hosts, devices, small_job);

    name_files(k->folder);
    return k;
}

/* ---- the reports of an undisturbed run ---- */

static struct {
    struct told steps[STEPS + 1], evals[STEPS + 1];
    uint32_t crc;
    struct sample_check *samples;
} undisturbed;

static inline int run_undisturbed(void **state)
{
    struct troupe *k = new_troupe("AAAA", 1);

    (void)state;
    assert_int_equal(troupe_to_the_end(k), 1);
    troupe_quit(k);
    memcpy(undisturbed.steps, k->stage->tasks[0].steps, sizeof(undisturbed.steps));
    memcpy(undisturbed.evals, k->stage->tasks[0].evals, sizeof(undisturbed.evals));
    undisturbed.crc = k->stage->tasks[0].crc;
    undisturbed.samples = sample_check(k, 4 * LANES_EACH, FEW, NULL, "undisturbed");
    troupe_free(k);
    return 0;
}

static inline int forget_undisturbed(void **state)
{
    (void)state;
    sample_check_free(undisturbed.samples);
    return 0;
}

/* Compares two reports; on GPUs only approximately, because the order of a sum depends on their
 * number. */
static inline bool is_same(const struct told *a, const struct told *b)
{
    if (!fixture_on_gpus())
        return memcmp(a, b, sizeof(*a)) == 0;
    return a->times == b->times && fabs(a->loss - b->loss) < 1e-3 &&
           (isnan(b->norm) ? isnan(a->norm) : fabs(a->norm - b->norm) < 1e-2);
}

/* Checks the reports of a task from step `from`, the first step that it can have trained. */
static inline void expect_told(const struct troupe *k, uint32_t task, uint64_t from,
                               const char *what)
{
    const struct task_stage *s = &k->stage->tasks[task];

    for (uint64_t i = from; i <= FEW; i++) {
        bool evaluates = i % EVAL_STEPS == 0;

        if (s->steps[i].times != 1 || s->evals[i].times != evaluates)
            fail_msg("%s: worker %u told step %llu %u times, its evaluation %u times", what, task,
                     (unsigned long long)i, s->steps[i].times, s->evals[i].times);
        if (!is_same(&s->steps[i], &undisturbed.steps[i]) ||
            !is_same(&s->evals[i], &undisturbed.evals[i]))
            fail_msg("%s: worker %u: step %llu is not that of the undisturbed run", what, task,
                     (unsigned long long)i);
    }
}

/* Checks that all running tasks have completed the job with the bits of the undisturbed run. */
static inline void expect_same_end(struct troupe *k, const char *what)
{
    bool there[TASKS_MAX];
    uint32_t want = undisturbed.crc;

    for (uint32_t i = 0; i < k->n; i++)
        there[i] = k->tasks[i].pid != 0 && !k->tasks[i].stopped;
    troupe_quit(k);
    for (uint32_t i = k->n; fixture_on_gpus() && i-- > 0;)
        want = there[i] ? k->stage->tasks[i].crc : want;
    for (uint32_t i = 0; i < k->n; i++)
        if (there[i] && k->stage->tasks[i].crc != want)
            fail_msg("%s: worker %u ended with other bits", what, i);
    sample_check_free(sample_check(k, 4 * LANES_EACH, FEW, undisturbed.samples, what));
}

#endif
