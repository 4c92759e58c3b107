/* alone.c - a task without a cluster: the group of each generation is this task alone. The functions
 * run on the loop's thread, except where a comment names another. */
#include <inttypes.h>
#include <stdio.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/rng.h"
#include "comm/comm.h"
#include "daemon/advisor.h"
#include "daemon/report.h"
#include "daemon/run_priv.h"
#include "daemon/status.h"

static const char NOTHING_TRAINED[] = "stopped before the first step";

/* A replica's thread, before each step. The process for whose lease this one waited may have
 * completed the job. */
static bool may_step(void *arg)
{
    struct run *r = arg;

    if (r->lock.checks_completion)
        r->lock.is_completed = run_was_completed(r);
    r->lock.checks_completion = false;
    return !r->lock.is_completed;
}

static int may_save(void *arg, struct err *err)
{
    return lock_may_save(arg, err);
}

static void start_training(struct run *r)
{
    struct group_member self = { .name = "local",
                                 .host_key = comm_host_key(),
                                 .data_address = "",
                                 .n_devices = r->s->n_devices };
    struct train_generation g = { .view = { .generation = r->generation_count + 1,
                                            .members = &self,
                                            .n_members = 1,
                                            .newest_step = train_held(r->train) },
                                  .deadline_ms = run_deadline_ms(r),
                                  .may_step = r->lock.lease != NULL ? may_step : NULL,
                                  .may_save = r->lock.lease != NULL ? may_save : NULL,
                                  .shared_memory = true };
    struct err err;
    int rc;

    /* distinguishes this generation from earlier ones in a sample log */
    CHECK(rng_os(g.key, sizeof(g.key)) == 0);
    rc = run_train(r, &g, &err);
    if (rc < 0)
        run_end(r, run_exit_code(rc), err.text);
}

/* Training begins when the model is open and the directory is locked. */
static void start_if_ready(struct run *r)
{
    if (r->opening.is_done && r->generation_count == 0 && !r->saving.is_open &&
        !r->stop.is_requested && !lock_must_wait(r))
        start_training(r);
}

static void on_lock(struct run *r, const struct lease_state *s)
{
    (void)s;
    start_if_ready(r);
}

static void on_conflict(struct run *r, const char *text)
{
    run_end(r, EXIT_INPUT, text);
}

/* The lease on the checkpoint directory. Every process without a cluster is a job of its own. */
static int open_alone(struct run *r, struct err *err)
{
    uint64_t incarnation = 0;
    char job[32];
    struct lock_opts o = { .name = "a task without a cluster",
                           .job = job,
                           .on_state = on_lock,
                           .on_conflict = on_conflict };
    const struct group_member self = { .rank = 0 };
    int rc;

    report_set_coordinator(r->report, r->s->is_chief);
    if (rng_os(&incarnation, sizeof(incarnation)) < 0)
        return err_set(err, ERR_IO, "the system gives no random numbers");
    snprintf(job, sizeof(job), "alone %016" PRIx64, incarnation);
    o.incarnation = incarnation;
    rc = lock_open(r, &o, err);
    if (rc == 0)
        lock_acquire(r, &self, 1);
    return rc;
}

static void on_ended(struct run *r, const struct run_ended *m)
{
    char text[ERR_TEXT_BYTES];

    switch (m->end) {
    case TRAIN_COMPLETE:
        report_phase(r->report, "complete");
        run_end(r, EXIT_COMPLETE, "the job is complete");
        break;
    case TRAIN_PAUSED:
    case TRAIN_ABORTED: /* the step exceeded train.grace_seconds while stopping */
        run_save(r);
        break;
    case TRAIN_UNSAVED:
        run_end(r, EXIT_RETRY, m->text);
        break;
    case TRAIN_DIVERGED:
    case TRAIN_ROLL_BACK: /* continue from the state in memory or from a checkpoint */
        if (m->end == TRAIN_DIVERGED && run_diverged_again(r, m->text, text, sizeof(text))) {
            run_end(r, EXIT_RETRY, text);
            break;
        }
        report_trouble(r->report, m->text);
        log_warn("group", "%s", m->text);
        if (r->stop.is_requested)
            run_save(r);
        else
            start_training(r);
        break;
    default:
        run_end(r, run_exit_code(m->code), m->text);
        break;
    }
}

static void on_saved(struct run *r, int rc, const char *text)
{
    uint64_t held = train_held(r->train);

    if (rc < 0) {
        run_end(r, EXIT_RETRY, text);
        return;
    }
    if (held > 0)
        log_info("stopped", "stopped after step %llu%s", (unsigned long long)held,
                 r->s->train.checkpoint.directory != NULL ? "; state saved" : "");
    run_end(r, EXIT_STOPPED, held == 0 ? NOTHING_TRAINED : "stopped, state saved");
}

static void on_stop(struct run *r)
{
    if (r->generation != 0)
        train_request(r->train, TRAIN_REQUEST_PAUSE);
    else if (!r->saving.is_open)
        run_end(r, EXIT_STOPPED, NOTHING_TRAINED);
}

static void on_tick(struct run *r)
{
    lock_retry(r);
    advisor_tick(r->advisor, NULL);
    start_if_ready(r);
    if (r->stop.is_requested && r->generation != 0 &&
        clock_ms() - r->stop.since_ms > run_grace_ms(r))
        train_abort(r->train,
                    "the step is not complete within train.grace_seconds: the step is aborted");
}

const struct run_mode alone_mode = {
    .open = open_alone,
    .opened = start_if_ready,
    .ended = on_ended,
    .saved = on_saved,
    .stop = on_stop,
    .tick = on_tick,
    .describe = status_describe_alone,
    .checkpoint_done = NULL, /* no one can ask for a checkpoint */
    .free = lock_close,
};
