#include "daemon/run.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/digest.h"
#include "base/err.h"
#include "base/log.h"
#include "daemon/report.h"
#include "daemon/service.h"
#include "daemon/settle.h"
#include "loop/loop.h"
#include "metrics/metrics.h"
#include "op/op.h"
#include "rdzv/rdzv.h"

enum {
    EXIT_COMPLETE = 0,
    EXIT_INPUT = 2,
    EXIT_RETRY = 138,
    EXIT_STOPPED = 143,

    TICK_MS = 25,  /* how old Status and heartbeats may be */
    DRAW_TICKS = 4,
    HEARTBEAT_MS = 250,
    SILENT_MS = 1500,     /* a member unheard for so long is lost */
    FIRST_CAUSE_MS = 700, /* a broken link is a symptom: so long we wait for the coordinator's verdict */
    CLOSE_MS = 1000,
};

static const char NOTHING_TRAINED[] = "stopped before the first step";

struct run {
    const struct settled *s;
    struct loop *loop;
    struct loop_timer *tick, *grace;
    struct metrics *metrics;
    struct metrics_http *http;
    struct report *report;
    struct rdzv *rdzv;               /* NULL without a cluster */
    struct rdzv_progress progress;   /* the loop's copy */
    struct comm_listener *listener;
    char data_address[320];
    struct train_opts train_opts;

    pthread_t opener;
    bool opening;                    /* the opener thread is to be joined */
    volatile int cancel;             /* tells the opener to give up */
    struct train *train;             /* NULL until opened */
    bool opened, has_view, started, ended;
    bool asked_stop;                 /* here: SIGTERM, drain, or the job is to end */
    pthread_t saver;
    bool saving;                     /* the saver thread is to be joined */
    int save_rc;
    struct err save_err;
    uint32_t signals, ticks;
    bool checkpoint_asked;
    uint64_t checkpoint_after;       /* answer Control.Checkpoint when a step >= this is verified */

    /* the view, copied */
    struct comm_member *members;
    struct train_group group;

    struct err failure;              /* waiting for the first cause */
    int exit_code;
    char exit_text[ERR_TEXT_BYTES];
};

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

/* ---- the end ---- */

static void end(struct run *r, int code, const char *text)
{
    if (r->ended)
        return;
    r->ended = true;
    r->exit_code = code;
    snprintf(r->exit_text, sizeof(r->exit_text), "%s", text);
    r->cancel = 1;
    if (r->started)
        train_abort(r->train, text); /* harmless when it has ended */
    loop_stop(r->loop);
}

/* What training ended with, told to the group; alone, it is the end. */
static void end_complete(struct run *r)
{
    if (r->rdzv != NULL)
        rdzv_complete(r->rdzv);
    else
        end(r, EXIT_COMPLETE, "the job is complete");
}

static void end_stopped(struct run *r, bool asked_here, const char *why)
{
    if (r->rdzv != NULL)
        rdzv_stopped(r->rdzv, asked_here, why);
    else
        end(r, EXIT_STOPPED, "stopped, state saved");
}

static void end_failed(struct run *r, int code, const char *text)
{
    report_trouble(r->report, text);
    if (r->rdzv != NULL)
        rdzv_failed(r->rdzv, code, text);
    else
        end(r, code, text);
}

/* ---- messages from the compute plane ---- */

struct train_ended {
    struct run *run;
    enum train_end end;
    uint64_t step;
    int code;
    char text[ERR_TEXT_BYTES];
};

static void grace_over(void *arg)
{
    struct run *r = arg;

    end_failed(r, run_exit_code(r->failure.code), r->failure.text);
}

static void has_saved(void *arg)
{
    struct run *r = arg;

    if (r->ended)
        return;
    pthread_join(r->saver, NULL);
    r->saving = false;
    if (r->save_rc < 0) {
        end_failed(r, run_exit_code(r->save_rc), r->save_err.text);
        return;
    }
    report_phase(r->report, "stopped");
    end_stopped(r, r->asked_stop, "another task was asked to leave");
}

static void *save_state(void *arg)
{
    struct run *r = arg;

    r->save_rc = train_save(r->train, r->group.deadline_ms, &r->save_err);
    loop_post(r->loop, has_saved, r);
    return NULL;
}

static void start_saving(struct run *r, uint64_t step)
{
    log_info("stopped", "stopped after step %llu%s", (unsigned long long)step,
             r->s->is_chief && r->s->train.checkpoint_directory != NULL ? "; saving" : "");
    r->save_rc = 0;
    if (!r->s->is_chief) {
        report_phase(r->report, "stopped");
        end_stopped(r, r->asked_stop, "another task was asked to leave");
        return;
    }
    CHECK(pthread_create(&r->saver, NULL, save_state, r) == 0);
    r->saving = true;
}

static void train_has_ended(void *arg)
{
    struct train_ended *m = arg;
    struct run *r = m->run;

    if (r->ended) { /* too late: nobody asks any more */
        free(m);
        return;
    }
    if (m->end == TRAIN_COMPLETE) {
        report_phase(r->report, "complete");
        end_complete(r);
    } else if (m->end == TRAIN_PAUSED) {
        start_saving(r, m->step);
    } else {
        bool symptom = m->code == ERR_PEER || m->code == ERR_CANCELED || m->code == ERR_TIMEOUT;

        r->failure.code = m->code;
        snprintf(r->failure.text, sizeof(r->failure.text), "%s", m->text);
        if (symptom && r->rdzv != NULL)
            r->grace = loop_timer_new(r->loop, FIRST_CAUSE_MS, 0, grace_over, r);
        else
            grace_over(r);
    }
    free(m);
}

static void on_train_end(void *arg, enum train_end how, uint64_t step, int code, const char *text)
{
    struct run *r = arg;
    struct train_ended *m = calloc(1, sizeof(*m));

    CHECK(m != NULL);
    *m = (struct train_ended){ .run = r, .end = how, .step = step, .code = code };
    snprintf(m->text, sizeof(m->text), "%s", text);
    loop_post(r->loop, train_has_ended, m);
}

static void on_broken_link(void *arg, uint32_t member, const char *why)
{
    struct run *r = arg;

    log_debug("link", "link to %s broke: %s", r->members[member].name, why);
}

/* ---- opening and starting ---- */

static void start_if_ready(struct run *r)
{
    struct err err;
    int rc;

    if (!r->opened || !r->has_view || r->started || r->ended)
        return;
    if (r->asked_stop) { /* nothing was trained: nothing to save */
        end_stopped(r, true, NOTHING_TRAINED);
        return;
    }
    r->started = true;
    rc = train_start(r->train, &r->group, on_train_end, &err);
    if (rc < 0) {
        r->started = false;
        end_failed(r, run_exit_code(rc), err.text);
        return;
    }
    service_ready();
    if (r->rdzv != NULL)
        rdzv_set_serving(r->rdzv, true);
}

struct opened {
    struct run *run;
    int rc;
    struct err err;
};

static void has_opened(void *arg)
{
    struct opened *m = arg;
    struct run *r = m->run;

    if (r->ended) {
        free(m);
        return;
    }
    pthread_join(r->opener, NULL);
    r->opening = false;
    if (m->rc == 0) {
        struct train_facts f;

        r->opened = true;
        train_facts(r->train, &f);
        report_total(r->report, f.total_steps, f.steps_per_epoch);
        if (r->rdzv != NULL && !r->has_view)
            report_phase(r->report, "waiting");
        start_if_ready(r);
    } else if (m->rc == ERR_CANCELED && r->asked_stop) {
        end_stopped(r, true, NOTHING_TRAINED);
    } else {
        end_failed(r, run_exit_code(m->rc), m->err.text);
    }
    free(m);
}

static void *open_training(void *arg)
{
    struct run *r = arg;
    struct opened *m = calloc(1, sizeof(*m));

    CHECK(m != NULL);
    m->run = r;
    m->rc = train_open(&r->train_opts, &r->cancel, &r->train, &m->err);
    loop_post(r->loop, has_opened, m);
    return NULL;
}

static void on_train_event(void *arg, const struct train_event *e)
{
    struct run *r = arg;

    report_event(r->report, e);
}

/* ---- messages from the control plane ---- */

static void on_move(void *arg, const struct member_move *move, uint64_t in_state_ms)
{
    struct run *r = arg;
    char status[128];

    log_debug("member", "member: %s -> %s on %s, %llu ms in state", member_state_name(move->from),
              member_state_name(move->to), member_event_name(move->on), (unsigned long long)in_state_ms);
    snprintf(status, sizeof(status), "%s", member_state_name(move->to));
    service_status(status);
    if (move->to == MEMBER_WAITING && r->opened)
        report_phase(r->report, "waiting");
}

static void on_waiting(void *arg, const char *text)
{
    struct run *r = arg;

    report_trouble(r->report, text);
    log_info("waiting", "%s", text);
}

static void on_refused(void *arg, const char *text)
{
    struct run *r = arg;

    report_trouble(r->report, text);
    log_warn("refused", "%s", text);
}

static void on_view(void *arg, const struct rdzv_view *v)
{
    struct run *r = arg;

    CHECK(!r->has_view); /* one generation in this version */
    r->members = calloc(v->n_members, sizeof(*r->members));
    CHECK(r->members != NULL);
    for (uint32_t i = 0; i < v->n_members; i++) {
        r->members[i] = (struct comm_member){ .name = strdup(v->members[i].name),
                                              .host = strdup(v->members[i].host_key),
                                              .address = strdup(v->members[i].data_address),
                                              .n_ranks = v->members[i].n_devices };
        CHECK(r->members[i].name && r->members[i].host && r->members[i].address);
    }
    r->group = (struct train_group){ .generation = v->generation,
                                     .members = r->members,
                                     .n_members = v->n_members,
                                     .self = v->self,
                                     .listener = r->listener,
                                     .shared_memory = r->s->conf->communication.shared_memory,
                                     .deadline_ms = (uint64_t)(r->s->conf->train.deadline_seconds * 1e3),
                                     .on_broken = on_broken_link };
    digest_hmac(r->s->token, strlen(r->s->token), v->key, sizeof(v->key), r->group.key);
    log_info("view", "generation %llu: %u tasks, this one is rank %u", (unsigned long long)v->generation,
             v->n_members, v->self);
    r->has_view = true;
    report_trouble(r->report, "");
    start_if_ready(r);
}

static void ask_stop(struct run *r, bool everywhere)
{
    (void)everywhere; /* the tasks pause together */
    r->asked_stop = true;
    service_stopping();
    if (r->started)
        train_request(r->train, TRAIN_ASK_PAUSE);
    else {
        r->cancel = 1;
        if (!r->opening)
            end_stopped(r, true, NOTHING_TRAINED);
    }
}

static void on_drain(void *arg, bool everywhere)
{
    ask_stop(arg, everywhere);
}

static void on_abort(void *arg, const char *text)
{
    struct run *r = arg;

    report_trouble(r->report, text);
    r->cancel = 1;
    loop_timer_free(r->grace);
    r->grace = NULL;
    if (r->started)
        train_abort(r->train, text);
}

static void on_rdzv_end(void *arg, int code, const char *text)
{
    end(arg, code, text);
}

static void on_checkpoint_request(void *arg)
{
    struct run *r = arg;

    if (r->s->train.checkpoint_directory == NULL) {
        rdzv_checkpoint_done(r->rdzv, 0, "", "the job has no checkpoint.directory");
    } else if (!r->s->is_chief) {
        rdzv_checkpoint_done(r->rdzv, 0, "", "this task does not write checkpoints: ask the chief");
    } else if (!r->started) {
        rdzv_checkpoint_done(r->rdzv, 0, "", "training has not started");
    } else {
        r->checkpoint_asked = true;
        r->checkpoint_after = r->progress.step;
        train_request(r->train, TRAIN_ASK_CHECKPOINT);
    }
}

/* ---- the loop's own events ---- */

static void tick(void *arg)
{
    struct run *r = arg;

    report_progress(r->report, &r->progress);
    if (r->ticks++ % DRAW_TICKS == 0) {
        report_draw(r->report);
        service_alive();
    }
    if (r->checkpoint_asked && r->progress.checkpoint_step >= r->checkpoint_after &&
        r->progress.checkpoint_path[0] != '\0') {
        r->checkpoint_asked = false;
        rdzv_checkpoint_done(r->rdzv, r->progress.checkpoint_step, r->progress.checkpoint_path, NULL);
    }
}

static void on_signal(void *arg, int signum)
{
    struct run *r = arg;

    if (r->signals++ > 0) {
        log_warn("signal", "a second %s: leaving at once, without saving",
                 signum == SIGINT ? "SIGINT" : "SIGTERM");
        end(r, EXIT_RETRY, "stopped without saving by a second signal");
        return;
    }
    log_info("signal", "%s: saving at the next step, then leaving",
             signum == SIGINT ? "SIGINT" : "SIGTERM");
    if (r->rdzv != NULL)
        rdzv_stop(r->rdzv, false); /* comes back as on_drain */
    else
        ask_stop(r, false);
}

/* Those that came while they were blocked are heard now. */
static int hear_signals(struct run *r, struct err *err)
{
    static const int signals[] = { SIGTERM, SIGINT };
    sigset_t set;
    int rc = 0;

    sigemptyset(&set);
    for (size_t i = 0; rc == 0 && i < COUNT_OF(signals); i++) {
        rc = loop_signal(r->loop, signals[i], on_signal, r, err);
        sigaddset(&set, signals[i]);
    }
    pthread_sigmask(SIG_UNBLOCK, &set, NULL);
    return rc;
}

static void print_http_status(void *arg, struct buf *out)
{
    report_status(arg, out);
}

/* ---- building and taking down ---- */

/* "host:port" with the host as peers know it and the port the system gave. */
static int open_data_plane(struct run *r, struct err *err)
{
    const struct cluster_task *self = r->s->cluster->self;
    bool any = strncmp(r->s->listen, "0.0.0.0:", 8) == 0;
    const char *bound;
    int rc = comm_listener_open(any ? "0.0.0.0" : self->host, 0, &r->listener, err);

    if (rc < 0)
        return err_wrap(err, rc, "data plane of %s", r->s->task_name);
    bound = comm_listener_address(r->listener);
    if (any)
        snprintf(r->data_address, sizeof(r->data_address), strchr(self->host, ':') ? "[%s]%s" : "%s%s",
                 self->host, strrchr(bound, ':'));
    else
        snprintf(r->data_address, sizeof(r->data_address), "%s", bound);
    return 0;
}

static int open_rdzv(struct run *r, struct err *err)
{
    const struct settled *s = r->s;
    const struct cluster *c = s->cluster;
    struct rdzv_task *tasks = calloc(c->world, sizeof(*tasks));
    char (*names)[64] = calloc(c->world, sizeof(*names));
    struct rdzv_opts o = {
        .loop = r->loop,
        .metrics = r->metrics,
        .version = TRAINERD_VERSION,
        .job_name = s->conf->name,
        .tasks = tasks,
        .world = c->world,
        .self = c->self->rank,
        .coordinator = 0,
        .listen = s->listen,
        .token = s->token[0] != '\0' ? s->token : NULL,
        .ident = { .version = TRAINERD_VERSION,
                   .job_digest = s->conf->digest,
                   .cluster_hash = c->hash,
                   .cluster = c->canonical,
                   .devices = s->devices[0].kind == DEVICE_CUDA ? "cuda" : "cpu",
                   .kernels = op_kernel_id(),
                   .nccl = "" },
        .n_devices = s->n_devices,
        .data_address = r->data_address,
        .host_key = comm_host_key(),
        .deadline_ms = (uint64_t)(s->conf->train.deadline_seconds * 1e3),
        .heartbeat_ms = HEARTBEAT_MS,
        .silent_ms = SILENT_MS,
        .progress = &r->progress,
        .arg = r,
        .on_move = on_move,
        .on_waiting = on_waiting,
        .on_refused = on_refused,
        .on_view = on_view,
        .on_drain = on_drain,
        .on_abort = on_abort,
        .on_end = on_rdzv_end,
        .on_checkpoint = on_checkpoint_request,
    };
    int rc;

    CHECK(tasks != NULL && names != NULL);
    for (uint32_t i = 0; i < c->world; i++) {
        const struct cluster_task *t = c->ranks[i];

        cluster_task_name(t, names[i], sizeof(names[i]));
        tasks[i] = (struct rdzv_task){ .type = cluster_type_name(t->type),
                                       .index = t->index,
                                       .address = t->address,
                                       .name = names[i] };
    }
    rc = rdzv_open(&o, &r->rdzv, err);
    free(tasks);
    free(names);
    return rc;
}

static void view_of_one(struct run *r)
{
    r->members = calloc(1, sizeof(*r->members));
    CHECK(r->members != NULL);
    r->members[0] = (struct comm_member){ .name = strdup("local"),
                                          .host = strdup(comm_host_key()),
                                          .address = strdup(""),
                                          .n_ranks = r->s->n_devices };
    r->group = (struct train_group){ .generation = 1,
                                     .members = r->members,
                                     .n_members = 1,
                                     .deadline_ms = (uint64_t)(r->s->conf->train.deadline_seconds * 1e3),
                                     .shared_memory = true,
                                     .on_broken = on_broken_link };
    r->has_view = true;
}

static int build(struct run *r, const struct run_opts *opts, struct err *err)
{
    const struct settled *s = r->s;
    struct report_opts ro = {
        .train = &r->train_opts,
        .job = s->conf->name,
        .task = s->task_name,
        .version = TRAINERD_VERSION,
        .summary_directory = s->conf->summary.directory,
        .log_every_steps = s->conf->train.log_every_steps,
        .is_chief = s->is_chief,
    };
    int rc = loop_open(&r->loop, err);

    if (rc < 0)
        return rc;
    r->metrics = metrics_new();
    CHECK(r->metrics != NULL);
    r->train_opts = s->train;
    r->train_opts.on_event = on_train_event;
    r->train_opts.arg = r;
    ro.metrics = r->metrics;
    rc = report_open(&ro, &r->report, err);
    if (rc == 0)
        report_progress(r->report, &r->progress);
    if (rc == 0)
        rc = train_check_trace(s->train.trace, err);
    if (rc == 0)
        rc = hear_signals(r, err);
    if (rc == 0 && opts->metrics_listen != NULL)
        rc = metrics_http_open(r->metrics, opts->metrics_listen, print_http_status, r->report, &r->http, err);
    if (rc < 0)
        return rc;
    r->opening = true;
    CHECK(pthread_create(&r->opener, NULL, open_training, r) == 0);
    if (s->cluster->is_local) {
        view_of_one(r);
        return 0;
    }
    rc = open_data_plane(r, err);
    return rc < 0 ? rc : open_rdzv(r, err);
}

/* If a library refuses to stop, the process ends all the same. */
static void deadman(int signum)
{
    static const char text[] = "trainerd: something does not stop; ending the process\n";

    (void)signum;
    (void)!write(STDERR_FILENO, text, sizeof(text) - 1);
    _exit(EXIT_RETRY);
}

static void take_down(struct run *r)
{
    signal(SIGALRM, deadman);
    alarm(10);
    r->ended = true; /* what is still posted finds nobody */
    r->cancel = 1;
    loop_timer_free(r->tick);
    loop_timer_free(r->grace);
    if (r->opening)
        pthread_join(r->opener, NULL);
    if (r->saving)
        pthread_join(r->saver, NULL);
    train_close(r->train);
    if (r->rdzv != NULL)
        rdzv_close(r->rdzv, CLOSE_MS);
    comm_listener_close(r->listener);
    metrics_http_close(r->http);
    loop_close(r->loop);
    report_close(r->report);
    metrics_free(r->metrics);
    for (uint32_t i = 0; r->members != NULL && i < r->group.n_members; i++) {
        free((char *)r->members[i].name);
        free((char *)r->members[i].host);
        free((char *)r->members[i].address);
    }
    free(r->members);
    alarm(0);
}

int run_task(const struct run_opts *opts)
{
    struct run *r = calloc(1, sizeof(*r));
    struct err err;
    int rc, code;

    CHECK(r != NULL);
    r->s = opts->settled;
    r->progress.phase = "starting";
    rc = build(r, opts, &err);
    if (rc == 0) {
        r->tick = loop_timer_new(r->loop, TICK_MS, TICK_MS, tick, r);
        loop_run(r->loop);
    } else {
        r->exit_code = run_exit_code(rc);
        snprintf(r->exit_text, sizeof(r->exit_text), "%s", err.text);
    }
    code = r->exit_code;
    log_progress(NULL);
    if (code == EXIT_COMPLETE)
        log_info("end", "%s", r->exit_text);
    else
        log_record(code == EXIT_STOPPED ? LOG_INFO : LOG_ERROR, "end",
                   (struct log_field[]){ LOG_I64("exit_code", code) }, 1, "exit %d: %s", code, r->exit_text);
    service_status(r->exit_text);
    take_down(r);
    free(r);
    return code;
}
