#include "daemon/run.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cancel.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/idle.h"
#include "base/log.h"
#include "base/log_sink.h"
#include "base/thread.h"
#include "ckpt/ckpt.h"
#include "comm/nccl_env.h"
#include "daemon/advisor.h"
#include "daemon/memory_watch.h"
#include "daemon/reload.h"
#include "daemon/report.h"
#include "daemon/run_priv.h"
#include "daemon/sensors.h"
#include "daemon/service.h"
#include "daemon/status.h"
#include "daemon/stop_signals.h"
#include "daemon/work.h"
#include "loop/loop.h"
#include "member/node.h"
#include "metrics/metrics.h"

enum {
    TICK_MS = 25,   /* maximum age of the data in Status and heartbeats */
    DRAW_TICKS = 4, /* ticks between updates of the progress line and of the service status */
    IDLE_TICKS = 120, /* ticks without a generation until memory that only the start needs is released */
    SHUTDOWN_SECONDS = 10,        /* maximum duration of the shutdown */
    SHUTDOWN_STOPPED_SECONDS = 3, /* after a stop signal, when the state is saved */
    SHUTDOWN_NOW_SECONDS = 1,     /* after a second stop signal */
    DOUBLED_MS = 1000, /* stop signals within this time count as one */
};

/* A task allocates memory when a generation begins: `at_once` there. */
static void watch_memory(struct run *r, bool at_once)
{
    const char *warning = memory_watch_tick(r->memory, clock_ms(), at_once);

    if (warning != NULL)
        report_trouble(r->report, warning);
}

/* ---- messages from the compute plane ---- */

struct connected {
    struct run *run;
    uint64_t generation;
};

static void handle_connected(void *arg)
{
    struct connected *m = arg;
    struct run *r = m->run;

    if (!r->exit.is_decided && m->generation == r->generation) {
        service_ready();
        run_update_progress(r); /* for the first heartbeat of the generation */
        if (r->mode->connected != NULL)
            r->mode->connected(r, m->generation);
        watch_memory(r, true);
    }
    free(m);
}

struct stored {
    struct run *run;
    uint64_t step;
    bool failed;
    char text[4096]; /* path, or the error */
};

static void handle_stored(void *arg)
{
    struct stored *m = arg;
    struct run *r = m->run;

    if (!r->exit.is_decided && !m->failed && r->mode->stored != NULL)
        r->mode->stored(r);
    if (!r->exit.is_decided && r->checkpoint.is_requested &&
        (m->failed || m->step >= r->checkpoint.after_step)) {
        r->checkpoint.is_requested = false;
        r->mode->checkpoint_done(r, m->step, m->failed ? "" : m->text, m->failed ? m->text : NULL);
    }
    free(m);
}

/* Called on the thread of the checkpoint writer. */
static void on_stored(struct run *r, const struct ckpt_event *e)
{
    struct stored *m;

    if (e->kind == CKPT_REMOVED)
        return;
    m = calloc(1, sizeof(*m));
    CHECK(m != NULL);
    *m = (struct stored){ .run = r, .step = e->step, .failed = e->kind != CKPT_WRITTEN };
    if (m->failed)
        snprintf(m->text, sizeof(m->text), "checkpoint of step %llu: %s",
                 (unsigned long long)e->step, e->text);
    else
        snprintf(m->text, sizeof(m->text), "%s", e->path);
    loop_post(r->loop, handle_stored, m);
}

static void on_unlogged(void *arg, uint64_t step)
{
    struct run *r = arg;

    train_set_unlogged(r->train, step);
}

void run_event(struct run *r, const struct train_event *e)
{
    if (e->kind == TRAIN_STEP && e->report->device_idle != NULL)
        sensors_idle(r->gpus.sensors, e->report->device_idle);
    report_event(r->report, e);
    if (e->kind == TRAIN_STEP)
        advisor_step(r->advisor, e->report);
    if (e->kind == TRAIN_EVAL)
        r->evaluation = *e->eval;
    if (e->kind == TRAIN_CONNECTED) {
        struct connected *m = calloc(1, sizeof(*m));

        CHECK(m != NULL);
        *m = (struct connected){ r, r->generation };
        loop_post(r->loop, handle_connected, m);
    } else if (e->kind == TRAIN_CHECKPOINT) {
        on_stored(r, e->ckpt);
    }
}

static void on_train_event(void *arg, const struct train_event *e)
{
    run_event(arg, e);
}

/* ---- opening ---- */

struct opened {
    struct run *run;
    int rc;
    void *work;
    struct err err;
};

static void handle_opened(void *arg)
{
    struct opened *m = arg;
    struct run *r = m->run;

    if (!r->opening.has_thread) { /* shut_down() has joined the thread */
        r->ops->close(m->work);
        free(m);
        return;
    }
    pthread_join(r->opening.thread, NULL);
    r->opening.has_thread = false;
    r->work = m->work;
    if (r->exit.is_decided) {
        free(m);
        return;
    }
    if (m->rc == 0) {
        r->opening.is_done = true;
        r->ops->opened(r);
        r->mode->opened(r);
    } else {
        report_trouble(r->report, m->err.text);
        if (r->mode->failed != NULL)
            r->mode->failed(r, m->rc, m->err.text);
        else
            run_end(r, run_exit_code(m->rc), m->err.text);
    }
    free(m);
}

static void *open_work(void *arg)
{
    struct run *r = arg;
    struct opened *m = calloc(1, sizeof(*m));

    CHECK(m != NULL);
    m->run = r;
    m->rc = r->ops->open(r, &m->work, &m->err);
    loop_post(r->loop, handle_opened, m);
    return NULL;
}

/* ---- the loop's own events ---- */

static bool work_moves(const struct run *r)
{
    struct train_progress p;
    uint64_t age_ms;

    if (r->generation == 0)
        return true;
    r->ops->progress(r->work, &p);
    age_ms = (clock_ns() - p.since_ns) / 1000000;
    return p.limit_ms == 0 || age_ms < p.limit_ms + run_deadline_ms(r);
}

static void update_service(struct run *r)
{
    uint64_t generation = 0;
    uint32_t present = r->mode->present != NULL ? r->mode->present(r, &generation) : 1;
    char text[1400];

    service_status_text(&r->progress, generation, present,
                        settled_is_evaluator(r->s) ? 1 : r->s->cluster->group, clock_ms(), text,
                        sizeof(text));
    service_status(text);
    service_watchdog(work_moves(r));
}

/* Begins to save and to end. */
static void begin_stop(struct run *r)
{
    service_stopping();
    r->stop.is_requested = true;
    r->stop.since_ms = clock_ms();
    r->mode->stop(r);
}

static void watch_launcher(struct run *r)
{
    if (r->stop.is_requested || r->exit.is_decided || !launcher_has_ended(&r->launcher))
        return;
    log_warn("launcher", "%s (process %" PRIu64 "), which started this task, has ended: saving at the next step, then "
                         "leaving", r->launcher.name, r->launcher.pid);
    begin_stop(r);
}

/* A task may wait for its group for hours. Releases memory once in each wait, and not at once: a group
 * that regroups within seconds continues with the memory that it has. */
static void watch_idle(struct run *r)
{
    if (r->generation != 0 || r->opening.has_thread)
        r->idle_ticks = 0;
    else if (r->idle_ticks < IDLE_TICKS && ++r->idle_ticks == IDLE_TICKS)
        idle_release_memory();
}

static void tick(void *arg)
{
    struct run *r = arg;

    run_update_progress(r);
    watch_idle(r);
    watch_memory(r, false);
    r->mode->tick(r);
    status_pages_tick(r);
    if (r->ticks++ % DRAW_TICKS == 0) {
        watch_launcher(r);
        report_draw(r->report);
        update_service(r);
    }
}

/* ---- signals ---- */

static void on_signal(void *arg, int signum)
{
    struct run *r = arg;
    const char *name = stop_signal_name(signum);
    bool announces = stop_signal_announces(signum); /* never counts as the second signal */

    if (announces && r->stop.is_requested)
        return;
    /* mpirun and timeout(1) signal the process and its group; srun and a shell both pass on the interrupt of
     * a terminal */
    if (!announces && r->signals > 0 && clock_ms() - r->signal_ms < DOUBLED_MS)
        return;
    if (!announces && r->signals++ > 0) {
        log_warn("signal", "a second %s: leaving at once, without saving", name);
        run_end(r, EXIT_RETRY, "stopped without saving by a second signal");
        return;
    }
    log_info("signal", "%s: %s", name,
             settled_is_evaluator(r->s) || r->s->is_ps ? "leaving"
                                                       : "saving at the next step, then leaving");
    if (!r->stop.is_requested)
        begin_stop(r);
    if (!announces)
        r->signal_ms = clock_ms();
}

static void on_hangup(void *arg, int signum)
{
    struct run *r = arg;

    (void)signum;
    if (settled_is_evaluator(r->s))
        log_warn("reload", "SIGHUP: an evaluator reads the job file only at its start; restart it");
    else
        (void)reload_start(r->reload); /* the log has the result */
}

static void on_reload_done(void *arg, uint64_t number, const struct reload_changes *changes,
                           const char *error)
{
    struct run *r = arg;

    if (r->mode->reload_done != NULL)
        r->mode->reload_done(r, number, changes, error);
}

static void fill_handled(sigset_t *set)
{
    sigemptyset(set);
    stop_signals_add(set);
    sigaddset(set, SIGHUP);
}

/* Registers the signal handlers. Signals that arrived while they were blocked are delivered now. */
static int register_signals(struct run *r, struct err *err)
{
    sigset_t set;
    size_t n;
    const int *signals = stop_signals(&n);
    int rc = loop_signal(r->loop, SIGHUP, on_hangup, r, err);

    for (size_t i = 0; rc == 0 && i < n; i++)
        rc = loop_signal(r->loop, signals[i], on_signal, r, err);
    fill_handled(&set);
    pthread_sigmask(SIG_UNBLOCK, &set, NULL);
    return rc;
}

/* loop_close() removes the handlers, after which a signal would end the process before it returns the
 * decided exit code: so the signals are blocked first and stay blocked. All other threads block them. */
static void block_signals(void)
{
    sigset_t set;

    fill_handled(&set);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
}

/* ---- start and shutdown ---- */

/* Sets the environment variables of NCCL. Called before any thread that reads the environment
 * starts. */
static void prepare_gpus(const struct settled *s)
{
    char text[2048];

    if (s->gpus == NULL || s->replicas < 2)
        return;
    comm_nccl_environment(s->cluster->is_local ? NULL : s->cluster->self->address, text,
                          sizeof(text));
    log_info("nccl", "%s", text);
}

static int open_sensors(struct run *r, struct err *err)
{
    r->gpus.readings = calloc(r->s->n_devices, sizeof(*r->gpus.readings));
    if (r->gpus.readings == NULL)
        return err_set(err, ERR_NOMEM, "status of %u GPUs: out of memory", r->s->n_devices);
    return sensors_open(r->s, r->http.metrics, &r->gpus.sensors, err);
}

static int open_all(struct run *r, const struct run_opts *opts, struct err *err)
{
    const struct settled *s = r->s;
    struct report_opts ro = {
        .train = &r->train_opts,
        .job = s->conf->name,
        .task = s->task_name,
        .version = TRAINERD_VERSION,
        .summary_directory = settled_is_evaluator(s) || s->is_ps ? NULL : s->conf->summary.directory,
        .takes_no_steps = settled_is_evaluator(s) || s->is_ps,
        .log_every_steps = s->conf->run.log_every_steps,
        .on_unlogged = on_unlogged,
        .arg = r,
    };
    int rc;

    prepare_gpus(s);
    r->memory = memory_watch_new("", s->is_ps);
    rc = loop_open(&r->loop, err);
    if (rc < 0)
        return rc;
    r->http.metrics = metrics_new();
    CHECK(r->http.metrics != NULL);
    r->advisor = advisor_new(s, r->http.metrics);
    metrics_set_prologue(r->http.metrics, metrics_print_process);
    r->train_opts = s->train;
    r->train_opts.on_event = on_train_event;
    r->train_opts.arg = r;
    ro.metrics = r->http.metrics;
    rc = report_open(&ro, &r->report, err);
    if (rc == 0)
        rc = reload_open(&(struct reload_opts){ .loop = r->loop, .conf = s->conf, .report = r->report,
                                                .level_is_given = opts->level_is_given,
                                                .on_done = on_reload_done, .arg = r },
                         &r->reload, err);
    if (rc == 0)
        report_progress(r->report, &r->progress);
    if (rc == 0)
        rc = train_check_trace(s->train.trace, err);
    if (rc == 0)
        rc = register_signals(r, err);
    if (rc == 0 && s->gpus != NULL)
        rc = open_sensors(r, err);
    if (rc == 0 && opts->metrics_listen != NULL)
        rc = status_pages_open(r, opts->metrics_listen, opts->metrics_hosts, err);
    if (rc < 0)
        return rc;
    rc = thread_start(&r->opening.thread, "opens model and data", open_work, r, err);
    if (rc < 0)
        return rc;
    r->opening.has_thread = true;
    return r->mode->open(r, err);
}

static struct {
    volatile sig_atomic_t code;
    const char *volatile stage; /* the running stage of the start or the shutdown */
    char before[64], after[64]; /* parts of the message around the stage */
} time_limit;

/* SIGALRM: the start or the shutdown takes too long, for example in a library. Ends the process with the decided
 * exit code. Async-signal-safe. */
static void on_time_limit(int signum)
{
    const char *const parts[] = { time_limit.before, time_limit.stage, time_limit.after };

    (void)signum;
    log_sink_write_final_parts(parts, COUNT_OF(parts));
    _exit(time_limit.code);
}

/* Limits the start of the task, in which no loop runs: its signals are handled later, and a library may
 * wait for ever. 0: the start is over. */
static void limit_start(const struct run *r, bool is_over)
{
    unsigned seconds = is_over ? 0 : (unsigned)(run_deadline_ms(r) / 1000) + 1;

    time_limit.code = EXIT_RETRY;
    time_limit.stage = "the control plane";
    snprintf(time_limit.before, sizeof(time_limit.before), "trainerd: the start exceeded %u s in ",
             seconds);
    snprintf(time_limit.after, sizeof(time_limit.after), "; exiting with code %d", EXIT_RETRY);
    signal(SIGALRM, on_time_limit);
    alarm(seconds);
}

static void limit_shutdown(const struct run *r)
{
    unsigned seconds = r->signals > 1                 ? SHUTDOWN_NOW_SECONDS
                       : r->exit.code == EXIT_STOPPED ? SHUTDOWN_STOPPED_SECONDS
                                                      : SHUTDOWN_SECONDS;

    time_limit.code = r->exit.code;
    time_limit.stage = "the control plane";
    snprintf(time_limit.before, sizeof(time_limit.before), "trainerd: shutdown exceeded %u s in ",
             seconds);
    snprintf(time_limit.after, sizeof(time_limit.after), "; exiting with code %d", r->exit.code);
    signal(SIGALRM, on_time_limit);
    alarm(seconds);
}

static void shut_down(struct run *r)
{
    static char opening[64]; /* read by the handler of SIGALRM */

    limit_shutdown(r);
    r->exit.is_decided = true; /* messages that are still posted are ignored */
    cancel_set(&r->cancel, true);
    loop_timer_free(r->tick);
    reload_stop(r->reload);
    status_pages_end(r->http.pages);
    if (r->work != NULL)
        r->ops->abort(r->work, r->exit.text);
    if (r->mode->close != NULL)
        r->mode->close(r);
    snprintf(opening, sizeof(opening), "opening %s", r->ops->what);
    time_limit.stage = opening;
    if (r->opening.has_thread)
        pthread_join(r->opening.thread, NULL);
    r->opening.has_thread = false;
    time_limit.stage = "saving";
    if (r->saving.has_thread)
        pthread_join(r->saving.thread, NULL);
    r->saving.is_open = r->saving.has_thread = false;
    time_limit.stage = "training";
    r->ops->close(r->work);
    time_limit.stage = "the control plane";
    r->mode->free(r);
    time_limit.stage = "the status page";
    if (r->signals < 2)
        status_pages_linger(r->http.pages);
    metrics_http_close(r->http.server);
    time_limit.stage = "the GPU sensors";
    sensors_close(r->gpus.sensors);
    time_limit.stage = "the event loop";
    block_signals();
    loop_close(r->loop);
    time_limit.stage = "the reports";
    reload_close(r->reload);
    report_close(r->report);
    status_pages_free(r->http.pages);
    metrics_free(r->http.metrics);
    memory_watch_free(r->memory);
    advisor_free(r->advisor);
    free(r->gpus.readings);
    /* The alarm stays armed: libraries have exit handlers that run after main(). */
    time_limit.stage = "the exit handlers of libraries";
}

/* The longest time after which a task that waits, or whose loop was held up, ends by itself: the deadline, the
 * save at the deadline (member/node.h), and the shutdown; doubled, so that no two of these times are close to
 * the limit of the service manager. */
static uint64_t own_limit_ms(const struct run *r)
{
    return 2 * (run_deadline_ms(r) + 2 * run_grace_ms(r) + MEMBER_STOPPING_MS +
                SHUTDOWN_SECONDS * 1000ull);
}

int run_task(const struct run_opts *opts)
{
    struct run *r = calloc(1, sizeof(*r));
    struct err err;
    int rc, code;

    CHECK(r != NULL);
    r->s = opts->settled;
    r->started_ms = clock_ms();
    r->launcher = *opts->launcher;
    r->mode = r->s->cluster->is_local      ? &alone_mode
              : settled_is_evaluator(r->s) ? &evaluator_mode
                                           : &group_mode;
    r->ops = r->s->is_ps ? &work_ps : &work_train;
    r->progress.phase = "starting";
    r->progress.doing = "";
    service_set_limit(own_limit_ms(r));
    limit_start(r, false);
    rc = open_all(r, opts, &err);
    limit_start(r, true);
    if (rc == 0) {
        r->tick = loop_timer_new(r->loop, TICK_MS, TICK_MS, tick, r);
        loop_run(r->loop);
    } else {
        r->exit.code = run_exit_code(rc);
        snprintf(r->exit.text, sizeof(r->exit.text), "%s", err.text);
    }
    code = r->exit.code;
    log_progress(NULL);
    if (code == EXIT_COMPLETE)
        log_info("end", "%s", r->exit.text);
    else
        log_record(code == EXIT_STOPPED ? LOG_INFO : LOG_ERROR, "end",
                   (struct log_field[]){ LOG_I64("exit_code", code) }, 1, "exit %d: %s", code,
                   r->exit.text);
    service_end(code, r->exit.text);
    if (rc == 0)
        status_pages_final(r);
    shut_down(r);
    free(r);
    return code;
}
