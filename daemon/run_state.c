/* run_state.c - starts the generations and saves of a task, and ends the task. group.c and alone.c call
 * these functions; the results reach them through the table r->mode. */
#include <stdio.h>
#include <stdlib.h>

#include "base/check.h"
#include "base/thread.h"
#include "daemon/advisor.h"
#include "daemon/complete.h"
#include "daemon/report.h"
#include "daemon/run_priv.h"
#include "daemon/sensors.h"
#include "daemon/work.h"
#include "loop/loop.h"

enum { DIVERGED_MAX = 3 /* the task ends at this number of divergences */ };

int run_exit_code(int err_code)
{
    switch (err_code) {
    case ERR_INPUT:
    case ERR_UNSUPPORTED:
    case ERR_CORRUPT:
    case ERR_NOENT:
    case ERR_REFUSED:
        return EXIT_INPUT;
    default:
        return EXIT_RETRY;
    }
}

uint64_t run_deadline_ms(const struct run *r)
{
    return (uint64_t)(r->s->conf->train.deadline_seconds * 1e3);
}

uint64_t run_grace_ms(const struct run *r)
{
    return (uint64_t)(r->s->conf->train.grace_seconds * 1e3);
}

void run_end(struct run *r, int code, const char *text)
{
    if (r->exit.is_decided)
        return;
    r->exit.is_decided = true;
    r->exit.code = code;
    snprintf(r->exit.text, sizeof(r->exit.text), "%s", text);
    cancel_set(&r->cancel, true);
    if (r->work != NULL)
        r->ops->abort(r->work, text); /* no effect if no generation runs */
    loop_stop(r->loop);
}

static void handle_ended(void *arg)
{
    struct run_ended *m = arg;
    struct run *r = m->run;

    r->generation = 0;
    if (!r->exit.is_decided) /* else the exit code is decided */
        r->mode->ended(r, m);
    free(m);
}

static void on_train_end(void *arg, enum train_end how, uint64_t held, int code, const char *text)
{
    struct run *r = arg;
    struct run_ended *m = calloc(1, sizeof(*m));

    CHECK(m != NULL);
    report_generation_end(r->report); /* before any task can go on from the state of this one */
    *m = (struct run_ended){ .run = r, .generation = r->generation, .end = how, .held = held, .code = code };
    snprintf(m->text, sizeof(m->text), "%s", text);
    loop_post(r->loop, handle_ended, m);
}

int run_train(struct run *r, const struct train_generation *g, struct err *err)
{
    int rc;

    CHECK(r->generation == 0 && r->work != NULL);
    r->generation_count++;
    advisor_begin(r->advisor, &g->view);
    r->generation = g->view.generation; /* the generation may end before start() returns */
    rc = r->ops->start(r->work, g, on_train_end, err);
    if (rc < 0)
        r->generation = 0;
    return rc;
}

bool run_diverged_again(struct run *r, const char *why, char *text, size_t n)
{
    if (++r->n_diverged < DIVERGED_MAX)
        return false;
    snprintf(text, n,
             "the results of this task diverged %d times; check the hardware of its host: %s",
             DIVERGED_MAX, why);
    return true;
}

struct completion {
    struct run *run;
    char text[8400];
};

static void handle_completed(void *arg)
{
    struct completion *m = arg;

    run_end(m->run, EXIT_COMPLETE, m->text);
    free(m);
}

void run_end_complete(struct run *r, const char *text)
{
    struct completion *m = calloc(1, sizeof(*m));

    CHECK(m != NULL);
    m->run = r;
    snprintf(m->text, sizeof(m->text), "%s", text);
    loop_post(r->loop, handle_completed, m);
}

bool run_was_completed(struct run *r)
{
    char text[8400];

    if (!complete_already(r->s->conf, NULL, text, sizeof(text)))
        return false;
    run_end_complete(r, text);
    return true;
}

struct saved {
    struct run *run;
    int rc;
    struct err err;
};

static void handle_saved(void *arg)
{
    struct saved *m = arg;
    struct run *r = m->run;

    if (r->saving.is_open) {
        if (r->saving.has_thread)
            pthread_join(r->saving.thread, NULL);
        r->saving.is_open = r->saving.has_thread = false;
        if (!r->exit.is_decided)
            r->mode->saved(r, m->rc, m->err.text);
    }
    free(m);
}

static void *save(void *arg)
{
    struct saved *m = arg;

    m->rc = m->run->ops->save(m->run->work, run_grace_ms(m->run), &m->err);
    loop_post(m->run->loop, handle_saved, m);
    return NULL;
}

void run_save(struct run *r)
{
    struct saved *m;
    struct err err;
    int rc;

    CHECK(r->generation == 0 && !r->saving.is_open && r->ops->save != NULL);
    report_phase(r->report, "save");
    m = calloc(1, sizeof(*m));
    CHECK(m != NULL);
    m->run = r;
    r->saving.is_open = true;
    rc = thread_start(&r->saving.thread, "saves", save, m, &err);
    r->saving.has_thread = rc == 0;
    if (rc < 0) {
        m->rc = rc;
        m->err = err;
        loop_post(r->loop, handle_saved, m);
    }
}

void run_update_progress(struct run *r)
{
    struct train_progress p;

    report_progress(r->report, &r->progress);
    advisor_progress(r->advisor, &r->progress);
    r->progress.gpus = r->gpus.readings;
    r->progress.n_gpus = sensors_read(r->gpus.sensors, r->gpus.readings, r->s->n_devices);
    r->progress.page = r->http.page;
    if (r->mode->progress != NULL)
        r->mode->progress(r, &r->progress);
    if (r->generation == 0)
        return;
    r->ops->progress(r->work, &p);
    r->progress.place = p.place;
    r->progress.limit_ms = p.limit_ms;
    r->progress.doing = p.phase;
    r->progress.doing_since_ms = p.since_ns / 1000000;
}
