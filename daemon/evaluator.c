/* evaluator.c - an evaluator task: follows the checkpoint directory of the job.
 *
 *   worker    pins and loads the next checkpoint            evaluator_work.c
 *   loop      run_train(): a generation of this task alone, which only evaluates
 *   worker    records the result: curves, the best checkpoint, the state; then the next checkpoint
 *
 * It opens no port and no link to the tasks of the group, takes no lease and writes nothing to the
 * checkpoint directory, so it may be started, killed and removed at any time.
 *
 * All functions run on the loop's thread. */
#include "daemon/evaluator.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/rng.h"
#include "base/thread.h"
#include "comm/comm.h"
#include "daemon/report.h"
#include "daemon/run_priv.h"
#include "daemon/service.h"
#include "daemon/status.h"
#include "loop/loop.h"

enum {
    POLL_MS = 500,        /* between two looks at the checkpoint directory */
    RETRY_MS = 1000,      /* after a failure of the storage; doubled after each further one */
    RETRY_MS_MAX = 30000,
};

static void start_worker(struct run *r);

/* ---- results of the worker ---- */

static void evaluate(struct run *r)
{
    struct group_member self = { .name = r->s->task_name,
                                 .host_key = comm_host_key(),
                                 .data_address = "",
                                 .n_devices = r->s->n_devices };
    struct train_generation g = { .view = { .generation = r->generation_count + 1,
                                            .members = &self,
                                            .n_members = 1,
                                            .newest_step = train_held(r->train) },
                                  .deadline_ms = run_deadline_ms(r),
                                  .only_evaluates = true };
    struct err err;
    int rc;

    CHECK(rng_os(g.key, sizeof(g.key)) == 0);
    rc = run_train(r, &g, &err);
    if (rc < 0)
        run_end(r, run_exit_code(rc), err.text);
}

/* The storage failed: the work is repeated after a growing delay, and the task ends when nothing has
 * succeeded for train.deadline_seconds. */
static void retry_later(struct run *r, const char *why)
{
    struct evaluator *e = r->evaluator;
    uint64_t now = clock_ms();
    char text[ERR_TEXT_BYTES + 96];

    if (e->failing_since_ms == 0) {
        e->failing_since_ms = now;
        e->delay_ms = RETRY_MS;
    }
    if (now - e->failing_since_ms > run_deadline_ms(r)) {
        snprintf(text, sizeof(text), "the storage has failed for %llu s: %s",
                 (unsigned long long)((now - e->failing_since_ms) / 1000), why);
        run_end(r, EXIT_RETRY, text);
        return;
    }
    report_trouble(r->report, why);
    log_warn("storage", "%s; trying again in %llu ms", why, (unsigned long long)e->delay_ms);
    e->due_ms = now + e->delay_ms;
    e->delay_ms = 2 * e->delay_ms < RETRY_MS_MAX ? 2 * e->delay_ms : RETRY_MS_MAX;
}

static void handle_worked(void *arg)
{
    struct evaluator_done *m = arg;
    struct run *r = m->run;
    struct evaluator *e = r->evaluator;

    if (r->exit.is_decided) {
        free(m);
        return;
    }
    pthread_join(e->thread, NULL);
    e->has_thread = false;
    if (m->outcome != EVALUATOR_FAILED)
        e->failing_since_ms = 0;
    switch (m->outcome) {
    case EVALUATOR_LOADED:
        evaluate(r);
        break;
    case EVALUATOR_NOTHING:
        report_phase(r->report, "wait for a checkpoint");
        e->due_ms = clock_ms() + POLL_MS;
        break;
    case EVALUATOR_COMPLETE:
        report_phase(r->report, "complete");
        run_end(r, EXIT_COMPLETE, m->err.text);
        break;
    case EVALUATOR_FAILED:
        if (run_exit_code(m->err.code) == EXIT_INPUT && m->err.code != ERR_NOENT)
            run_end(r, EXIT_INPUT, m->err.text);
        else
            retry_later(r, m->err.text);
        break;
    }
    free(m);
}

static void *work(void *arg)
{
    struct evaluator_done *m = arg;

    m->outcome = evaluator_work(m->run, &m->err);
    loop_post(m->run->loop, handle_worked, m);
    return NULL;
}

static void start_worker(struct run *r)
{
    struct evaluator *e = r->evaluator;
    struct evaluator_done *m = calloc(1, sizeof(*m));
    struct err err;
    int rc;

    CHECK(m != NULL && !e->has_thread);
    m->run = r;
    e->due_ms = 0;
    rc = thread_start(&e->thread, "follows the checkpoints", work, m, &err);
    e->has_thread = rc == 0;
    if (rc < 0) {
        free(m);
        retry_later(r, err.text);
    }
}

/* ---- the mode ---- */

static int open_evaluator(struct run *r, struct err *err)
{
    r->evaluator = calloc(1, sizeof(*r->evaluator));
    if (r->evaluator == NULL)
        return err_set(err, ERR_NOMEM, "evaluator: out of memory");
    report_set_coordinator(r->report, true); /* it writes the log lines of its evaluations */
    r->evaluator->lock = -1;
    evaluator_open_metrics(r);
    return 0;
}

static void on_opened(struct run *r)
{
    service_ready();
    report_phase(r->report, "wait for a checkpoint");
    start_worker(r);
}

static void end_stopped(struct run *r)
{
    run_end(r, EXIT_STOPPED,
            "stopped; the checkpoint in progress is evaluated after the next start");
}

static void on_ended(struct run *r, const struct run_ended *m)
{
    switch (m->end) {
    case TRAIN_COMPLETE:
    case TRAIN_PAUSED:
        if (r->stop.is_requested) { /* it came after the last batch */
            end_stopped(r);
            break;
        }
        r->evaluator->is_evaluated = true;
        start_worker(r);
        break;
    case TRAIN_ABORTED:
        end_stopped(r);
        break;
    default:
        run_end(r, run_exit_code(m->code), m->text);
        break;
    }
}

static void on_stop(struct run *r)
{
    if (r->generation != 0)
        train_abort(r->train, "the evaluator is stopped");
    else
        run_end(r, EXIT_STOPPED, "stopped");
}

static void on_tick(struct run *r)
{
    struct evaluator *e = r->evaluator;

    if (r->generation == 0 && !e->has_thread && e->due_ms != 0 && clock_ms() >= e->due_ms)
        start_worker(r);
}

static void close_evaluator(struct run *r)
{
    struct evaluator *e = r->evaluator;

    if (e == NULL)
        return;
    if (e->has_thread)
        pthread_join(e->thread, NULL);
    e->has_thread = false;
    evaluator_end(r);
}

static void free_evaluator(struct run *r)
{
    free(r->evaluator);
    r->evaluator = NULL;
}

static void never_saved(struct run *r, int rc, const char *text)
{
    (void)r;
    (void)rc;
    (void)text;
    CHECK(!"an evaluator saves no state");
}

const struct run_mode evaluator_mode = {
    .open = open_evaluator,
    .opened = on_opened,
    .ended = on_ended,
    .saved = never_saved,
    .stop = on_stop,
    .tick = on_tick,
    .describe = status_describe_alone,
    .checkpoint_done = NULL, /* no caller can request a checkpoint */
    .close = close_evaluator,
    .free = free_evaluator,
};
