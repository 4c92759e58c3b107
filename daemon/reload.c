#include "daemon/reload.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/text.h"
#include "conf/job.h"
#include "conf/job_diff.h"
#include "daemon/report.h"
#include "daemon/service.h"
#include "loop/loop.h"
#include "metrics/summary.h"
#include "rdzv/rdzv.h"
#include "train/train.h"

enum { PATIENCE_S = 1 }; /* how long reload_stop() waits for a disk that hangs */

/* ---- differences of two jobs ---- */

struct sorter {
    struct reload_changes *out;
    struct reload_change fixed; /* the first changed key that must not change */
    uint32_t n_fixed;           /* number of such keys */
};

static void copy_value(char out[RELOAD_VALUE_BYTES], const char *value)
{
    size_t n = strlen(value);

    if (n < RELOAD_VALUE_BYTES) {
        memcpy(out, value, n + 1);
        return;
    }
    n = text_utf8_cut(value, RELOAD_VALUE_BYTES - 4);
    memcpy(out, value, n);
    memcpy(out + n, "...", 4);
}

static void add_change(void *arg, const struct conf_change *change)
{
    struct sorter *s = arg;
    struct reload_change *to = &s->fixed;

    if (change->is_live) {
        CHECK(s->out->n < RELOAD_CHANGES_MAX);
        to = &s->out->list[s->out->n++];
    } else if (s->n_fixed++ > 0) {
        return;
    }
    snprintf(to->pointer, sizeof(to->pointer), "%s", change->pointer);
    copy_value(to->from, change->from != NULL ? change->from : "");
    copy_value(to->to, change->to != NULL ? change->to : "");
}

int reload_compare(const struct conf *was, const struct conf *now, struct reload_changes *out,
                   struct err *err)
{
    struct sorter s = { .out = out };
    char values[2 * RELOAD_VALUE_BYTES + 16] = "", more[32] = "";
    int rc;

    out->n = 0;
    rc = conf_diff(was, now, add_change, &s, err);
    if (rc < 0 || s.n_fixed == 0)
        return rc;
    if (s.fixed.from[0] != '\0')
        snprintf(values, sizeof(values), " from %s to %s", s.fixed.from, s.fixed.to);
    if (s.n_fixed > 1)
        snprintf(more, sizeof(more), " (and %u more)", s.n_fixed - 1);
    return err_set(err, ERR_REFUSED,
                   "%s: %s changed%s%s, which cannot change while the job runs; restore the old value, or "
                   "restart all tasks (trainerd --schema lists the keys that SIGHUP reads)",
                   now->path, s.fixed.pointer, values, more);
}

/* ---- reloading ----
 *
 *     READ    read the job file                     if refused: finished
 *     OPEN    open the curves in the new folder     if refused: finished (only if it changes)
 *     END     close the curves in the old folder    (only if there are any)
 *
 * The thread runs one stage, the part that may wait for a disk; the loop decides between stages.
 * The thread accesses only struct work, so that the process can end while a disk hangs. */

enum stage { READ, OPEN, END };

struct work {
    enum stage stage;
    char *path;         /* READ: path of the job file; owned */
    struct conf *read;  /* READ: result, owned; OPEN: names the new folder */
    uint64_t step;      /* OPEN: number of finished steps */
    struct summary *fresh; /* OPEN: result, owned; NULL: none */
    struct summary *ended; /* END: curves to close, owned; NULL: none */
    int rc;
    struct err err;
};

struct reload {
    struct reload_opts opts;
    const struct conf *now; /* the job in force */
    struct conf *owned;     /* == now if a reload read it, else NULL */
    struct train *train;    /* NULL: not open */
    struct reload_changes changes;
    pthread_t thread;
    bool running;           /* the thread is to be joined */
    bool again;             /* reload once more after this reload */
    uint64_t number;        /* of the last reload that was started; 0: none */
    struct work work;       /* only the thread may access it while running */

    pthread_mutex_t lock;   /* guards the fields below */
    bool worked;            /* the thread has finished its stage */
    bool closing;           /* the thread must not post to the loop */
    bool orphan;            /* the thread frees this struct */
};

static enum log_level level_of(const struct conf *c)
{
    return c->log.level;
}

static void set_log_every(struct reload *r)
{
    report_set_log_every(r->opts.report, r->now->run.log_every_steps);
    if (r->train != NULL)
        train_set_norm(r->train, r->now->run.log_every_steps);
}

static void set_checkpoint(struct reload *r)
{
    if (r->train != NULL)
        train_set_checkpoint(r->train, r->now->checkpoint.every_steps,
                             r->now->checkpoint.every_seconds, r->now->checkpoint.max_to_keep);
}

/* move_curves() has already moved the curves, because opening them may fail and a reload applies
 * all changes or none. */
static void set_summary(struct reload *r)
{
    (void)r;
}

static void set_level(struct reload *r)
{
    if (!r->opts.level_is_given)
        log_set_level(level_of(r->now));
}

/* Every key that may change, with the function that applies its value of r->now. */
static const struct setter {
    const char *pointer;
    void (*set)(struct reload *r);
} setters[] = {
    { "/train/log_every_steps", set_log_every }, { "/checkpoint/every_steps", set_checkpoint },
    { "/checkpoint/every_seconds", set_checkpoint }, { "/checkpoint/max_to_keep", set_checkpoint },
    { "/summary/directory", set_summary }, { "/log/level", set_level },
};

static bool has_changed(const struct reload *r, const char *pointer)
{
    for (uint32_t i = 0; i < r->changes.n; i++)
        if (strcmp(r->changes.list[i].pointer, pointer) == 0)
            return true;
    return false;
}

static void apply(struct reload *r)
{
    uint32_t n = 0;

    for (size_t i = 0; i < COUNT_OF(setters); i++)
        if (has_changed(r, setters[i].pointer)) {
            setters[i].set(r);
            n++;
        }
    CHECK(n == r->changes.n); /* a key that may change has a setter */
}

/* Logs a line for each change if the old or the new log level shows it. */
static void log_changes(const struct reload *r, const struct conf *was)
{
    if (!r->opts.level_is_given && level_of(was) < level_of(r->now))
        log_set_level(level_of(was));
    if (r->changes.n == 0)
        log_info("reload", "reload: no key changed in %s", r->now->path);
    for (uint32_t i = 0; i < r->changes.n; i++) {
        const struct reload_change *c = &r->changes.list[i];

        log_record(LOG_INFO, "reload",
                   (struct log_field[]){ LOG_STR("key", c->pointer), LOG_STR("from", c->from),
                                         LOG_STR("to", c->to) },
                   3, "%s: %s -> %s%s", c->pointer, c->from, c->to,
                   c->is_overridden ? "; not applied, because --log-level has priority" : "");
    }
    if (!r->opts.level_is_given)
        log_set_level(level_of(r->now));
}

static void reload_free(struct reload *r)
{
    summary_close(r->work.fresh);
    summary_close(r->work.ended);
    conf_free(r->work.read);
    conf_free(r->owned);
    free(r->work.path);
    pthread_mutex_destroy(&r->lock);
    free(r);
}

static void handle_worked(void *arg);

static void *work(void *arg)
{
    struct reload *r = arg;
    struct work *w = &r->work;
    bool orphan;

    switch (w->stage) {
    case READ:
        w->rc = conf_read(w->path, &w->read, &w->err);
        break;
    case OPEN:
        w->rc = summary_open(w->read->summary.directory, w->step > 0 ? w->step + 1 : 0, &w->fresh,
                             &w->err);
        break;
    case END:
        report_end_summary(w->ended);
        w->ended = NULL;
        break;
    }
    pthread_mutex_lock(&r->lock);
    r->worked = true;
    if (!r->closing)
        loop_post(r->opts.loop, handle_worked, r);
    orphan = r->orphan;
    pthread_mutex_unlock(&r->lock);
    if (orphan)
        reload_free(r);
    return NULL;
}

/* Runs a stage on the thread. Returns false if no thread could be started; r->work.err has the
 * reason. */
static bool start(struct reload *r, enum stage stage)
{
    sigset_t all, before;

    r->work.stage = stage;
    r->work.rc = 0;
    r->worked = false; /* no lock is needed: no thread runs */
    sigfillset(&all);  /* only the loop's thread handles signals */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    r->running = pthread_create(&r->thread, NULL, work, r) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!r->running)
        err_set(&r->work.err, ERR_NOMEM, "no thread could be started");
    return r->running;
}

/* Reports the end of the reload. */
static void report_done(const struct reload *r, const char *error)
{
    if (r->opts.on_done != NULL)
        r->opts.on_done(r->opts.arg, r->number, &r->changes, error);
}

static void refuse(struct reload *r)
{
    log_error("reload_refused", "reload: %s; no change was applied, the job continues",
              r->work.err.text);
    report_done(r, r->work.err.text);
    conf_free(r->work.read);
    r->work.read = NULL;
}

/* Makes the new job the job in force. */
static void apply_new_job(struct reload *r)
{
    const struct conf *was = r->now;

    for (uint32_t i = 0; i < r->changes.n; i++)
        r->changes.list[i].is_overridden =
            r->opts.level_is_given && strcmp(r->changes.list[i].pointer, "/log/level") == 0;
    r->now = r->work.read;
    apply(r);
    log_changes(r, was);
    conf_free(r->owned);
    r->owned = r->work.read;
    r->work.read = NULL;
    report_done(r, NULL);
}

static bool move_curves(struct reload *r)
{
    struct work *w = &r->work;
    bool done = report_set_summary(r->opts.report, w->read->summary.directory, w->fresh, &w->ended);

    if (done)
        w->fresh = NULL;
    return done;
}

/* Starts the next stage. Returns false if the reload is finished. */
static bool next_stage(struct reload *r)
{
    struct work *w = &r->work;
    struct rdzv_progress progress;

    if (w->stage == END)
        return false;
    if (w->rc == 0 && w->stage == READ)
        w->rc = reload_compare(r->now, w->read, &r->changes, &w->err);
    if (w->rc < 0 && w->stage == OPEN)
        err_wrap(&w->err, w->rc, "%s: /summary/directory", w->read->path);
    if (w->rc == 0 && has_changed(r, "/summary/directory") && !move_curves(r)) {
        report_progress(r->opts.report, &progress);
        w->step = progress.step;
        if (start(r, OPEN))
            return true;
        w->rc = ERR_NOMEM;
    }
    if (w->rc < 0) {
        refuse(r);
        return false;
    }
    apply_new_job(r);
    return w->ended != NULL && start(r, END);
}

static void handle_worked(void *arg)
{
    struct reload *r = arg;

    if (r->closing) /* no lock is needed: only this thread writes it */
        return;
    pthread_join(r->thread, NULL);
    r->running = false;
    if (next_stage(r))
        return;
    service_reloaded();
    if (r->again) {
        r->again = false;
        (void)reload_start(r); /* a failure is logged and reported there */
    }
}

int reload_open(const struct reload_opts *opts, struct reload **out, struct err *err)
{
    struct reload *r = calloc(1, sizeof(*r));

    if (r != NULL)
        r->work.path = strdup(opts->conf->path);
    if (r == NULL || r->work.path == NULL) {
        free(r);
        return err_set(err, ERR_NOMEM, "reload: out of memory");
    }
    r->opts = *opts;
    r->now = opts->conf;
    pthread_mutex_init(&r->lock, NULL);
    *out = r;
    return 0;
}

void reload_train(struct reload *r, struct train *t)
{
    r->train = t;
    set_log_every(r);
    set_checkpoint(r);
}

uint64_t reload_start(struct reload *r)
{
    if (r->closing) /* no lock is needed: only this thread writes it */
        return 0;
    if (r->running) {
        r->again = true;
        return r->number + 1;
    }
    service_reloading();
    r->number++;
    if (!start(r, READ)) {
        refuse(r);
        service_reloaded();
        return 0;
    }
    return r->number;
}

bool reload_is_running(const struct reload *r)
{
    return r->running;
}

void reload_stop(struct reload *r)
{
    struct timespec until;

    if (r == NULL)
        return;
    pthread_mutex_lock(&r->lock);
    r->closing = true;
    pthread_mutex_unlock(&r->lock);
    if (!r->running)
        return;
    until = clock_after_ms(PATIENCE_S * 1000);
    r->running = pthread_clockjoin_np(r->thread, NULL, CLOCK_MONOTONIC, &until) != 0;
}

void reload_close(struct reload *r)
{
    bool is_stuck;

    if (r == NULL)
        return;
    CHECK(r->closing);
    pthread_mutex_lock(&r->lock);
    is_stuck = r->running && !r->worked;
    r->orphan = is_stuck; /* a disk hangs; the thread frees the struct when it continues */
    if (is_stuck)
        pthread_detach(r->thread);
    pthread_mutex_unlock(&r->lock);
    if (is_stuck)
        return;
    if (r->running)
        pthread_join(r->thread, NULL); /* the thread has finished since reload_stop() */
    reload_free(r);
}
