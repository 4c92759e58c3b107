/* group.c - a task of a cluster: membership (rdzv), training and the lease, joined. All of it on the
 * loop's thread, but where a line says otherwise. */
#include <stdatomic.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cancel.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/digest.h"
#include "base/log.h"
#include "base/rng.h"
#include "ckpt/ckpt.h"
#include "ckpt/lease.h"
#include "conf/job_print.h"
#include "daemon/path_tests.h"
#include "daemon/report.h"
#include "daemon/run_priv.h"
#include "daemon/storage.h"
#include "loop/loop.h"

enum {
    CLOSE_MS = 1000,      /* goodbyes */
    RELEASE_MS = 200,     /* telling the storage that the lease is free */
    STORAGE_TELL_MS = 1000, /* between two reports of one storage failure */
    JOB_BYTES_MAX = 64 << 10, /* a longer job is sent as its digest only */
    SWEEP_MS = 1000, /* between two sweeps of the data port */
};

struct group {
    struct run *run;
    struct rdzv *rdzv;
    struct comm_listener *listener;
    char data_address[320];
    uint64_t incarnation;
    uint64_t generation; /* of the view at work */
    uint32_t *ranks;     /* [world] of its members */
    uint32_t n_members, self;
    bool leads;          /* this task coordinates it */
    pthread_mutex_t lock; /* guards the next two */
    bool is_broken;
    struct comm_loss loss; /* of the generation that broke */
    struct path_tests tests;

    _Atomic bool checks_completion; /* before the next step, this task looks for the checkpoint of the last step */
    bool is_completed;      /* written and read by the first replica's thread: the absent tasks completed the job */
    _Atomic bool needs_lease; /* steps only while it is held */
    bool lease_is_known;
    uint64_t lease_ticket, lease_wish; /* of the last thing asked for */
    uint64_t lease_token; /* for Status */
    char lease_text[512];
    uint64_t storage_told_ms; /* the last report that the storage failed; 0: none */
    uint64_t swept_ms;        /* the last sweep of the data port */
};

/* ---- lease ---- */

/* Returns true if a group smaller than the cluster may train, and needs the lease. Otherwise the lease
 * only locks the checkpoint directory. */
static bool is_driven(const struct settled *s)
{
    return s->min_world < s->cluster->world && s->train.checkpoint.directory != NULL;
}

static void on_lease(struct run *r, const struct lease_state *s)
{
    struct group *g = r->group;
    struct member_lease l = {
        .token = s->token,
        .answered = s->answered >= g->lease_ticket ? g->lease_wish : 0,
        .is_mine = s->is_mine,
        .is_over = s->is_over,
        .is_same_place = s->is_same_place,
        .holder = s->token > 0 && s->holder != LEASE_NOBODY ? s->holder : MEMBER_NO_RANK,
        .incarnation = strtoull(s->incarnation, NULL, 16),
        .members = s->members,
        .n_members = s->n_members,
        /* a lease of another job delays the next request, as a failure does */
        .text = s->is_reachable && (!s->is_foreign || s->is_over) ? "" : s->text,
    };

    g->lease_is_known = g->lease_is_known || s->is_reachable;
    l.is_known = g->lease_is_known;
    g->lease_token = s->token;
    snprintf(g->lease_text, sizeof(g->lease_text), "%s", s->text);
    if (is_driven(r->s))
        rdzv_report(g->rdzv, &(struct member_event){ .kind = MEMBER_EV_LEASE, .lease = &l });
}

static void do_lease(struct run *r, const struct rdzv_action *a)
{
    const struct member_view *record = a->action->view;
    struct group *g = r->group;
    uint32_t *ranks;

    g->lease_wish = a->action->wish;
    if (a->action->token == UINT64_MAX) {
        g->lease_ticket = lease_refresh(r->lock.lease);
        return;
    }
    ranks = calloc(record->n, sizeof(*ranks));
    CHECK(ranks != NULL);
    for (uint32_t i = 0; i < record->n; i++)
        ranks[i] = record->seats[i].rank;
    g->lease_ticket = lease_take(r->lock.lease, a->action->token, ranks, record->n);
    free(ranks);
}

static void do_release(struct run *r, const struct rdzv_action *a)
{
    (void)a;
    (void)lease_release(r->lock.lease, RELEASE_MS); /* unsaid, others wait until it is over */
}

/* A replica's thread. */
static bool may_step(void *arg)
{
    struct run *r = arg;
    struct group *g = r->group;

    if (atomic_exchange_explicit(&g->checks_completion, false, memory_order_acq_rel))
        g->is_completed = run_was_completed(r);
    if (g->is_completed || !lock_may_step(r))
        return false;
    return !atomic_load_explicit(&g->needs_lease, memory_order_acquire) ||
           clock_ns() < lease_hold_until(r->lock.lease);
}

static int may_save(void *arg, struct err *err)
{
    return lock_may_save(arg, err);
}

/* ---- from the membership ---- */

/* A thread of the communicator. */
static void on_broken(void *arg, const struct comm_loss *loss, const char *why)
{
    struct group *g = ((struct run *)arg)->group;

    pthread_mutex_lock(&g->lock);
    if (!g->is_broken)
        g->loss = *loss;
    g->is_broken = true;
    pthread_mutex_unlock(&g->lock);
    log_debug("link", "link to member %u broke, %u dead paths: %s", loss->member, loss->n_dead_paths, why);
}

/* What the communicator lost, in ranks. */
static struct member_loss loss_of(struct group *g)
{
    struct member_loss out = { .peer = MEMBER_NO_RANK };
    struct comm_loss loss;
    bool is_broken;

    pthread_mutex_lock(&g->lock);
    is_broken = g->is_broken;
    loss = g->loss;
    pthread_mutex_unlock(&g->lock);
    if (!is_broken)
        return out;
    out.peer = loss.member < g->n_members ? g->ranks[loss.member] : MEMBER_NO_RANK;
    for (uint32_t i = 0; i < loss.n_dead_paths && out.n_dead_paths < MEMBER_REACH_MAX; i++)
        if (loss.dead_paths[i] < g->n_members)
            out.dead_paths[out.n_dead_paths++] = g->ranks[loss.dead_paths[i]];
    return out;
}

static void fail(struct run *r, uint64_t generation, int code, uint64_t held, const char *text)
{
    struct group *g = r->group;
    struct member_loss loss = loss_of(g);
    bool is_symptom = generation > 0 && (code == ERR_PEER || code == ERR_PATH || code == ERR_CANCELED || code == ERR_TIMEOUT);
    bool is_of_files = code == ERR_NOENT || code == ERR_CORRUPT; /* those of other hosts may be good */
    enum member_failure kind = is_symptom                          ? MEMBER_FAIL_PEER
                               : is_of_files && generation == 0    ? MEMBER_FAIL_FILES
                               : is_of_files                       ? MEMBER_FAIL_LOCAL
                               : run_exit_code(code) == EXIT_INPUT ? MEMBER_FAIL_INPUT
                                                                   : MEMBER_FAIL_LOCAL;

    if (!is_symptom)
        report_trouble(r->report, text);
    rdzv_report(g->rdzv, &(struct member_event){ .kind = MEMBER_EV_FAILED,
                                                 .generation = generation,
                                                 .held = held,
                                                 .failure = kind,
                                                 .loss = &loss,
                                                 .text = text });
}

static void do_train(struct run *r, const struct rdzv_action *a)
{
    const struct rdzv_view *v = a->view;
    const char *why = a->action->text;
    struct group *g = r->group;
    struct comm_member *members = calloc(v->n_members, sizeof(*members));
    struct train_group to = {
        .generation = v->generation,
        .members = members,
        .n_members = v->n_members,
        .self = v->self,
        .listener = g->listener,
        .shared_memory = r->s->conf->communication.shared_memory,
        .deadline_ms = run_deadline_ms(r),
        .newest_step = v->newest_step,
        .newest_member = v->newest_member,
        .coordinator = v->coordinator,
        .on_broken = on_broken,
        .may_step = r->lock.lease != NULL ? may_step : NULL,
        .may_save = r->lock.lease != NULL ? may_save : NULL,
    };
    struct err err;
    int rc;

    CHECK(members != NULL);
    for (uint32_t i = 0; i < v->n_members; i++) {
        members[i] = (struct comm_member){ .name = v->members[i].name,
                                           .host = v->members[i].host_key,
                                           .address = v->members[i].data_address,
                                           .n_ranks = v->members[i].n_devices };
        g->ranks[i] = v->members[i].rank;
    }
    g->generation = v->generation;
    g->n_members = v->n_members;
    g->self = v->self;
    pthread_mutex_lock(&g->lock);
    g->is_broken = false;
    pthread_mutex_unlock(&g->lock);
    digest_hmac(r->s->token, strlen(r->s->token), v->key, sizeof(v->key), to.key);
    atomic_store_explicit(&g->checks_completion, v->n_members < r->s->cluster->world, memory_order_release);
    g->leads = v->self == v->coordinator;
    if (g->leads)
        lock_want(r, g->ranks, v->n_members);
    else
        lock_yield(r);
    report_lead(r->report, g->leads);
    log_record(LOG_INFO, "view",
               (struct log_field[]){ LOG_I64("generation", (int64_t)v->generation),
                                     LOG_I64("tasks", v->n_members),
                                     LOG_I64("newest_step", (int64_t)v->newest_step) }, 3,
               "generation %" PRIu64 ": %u of %u tasks, led by %s%s%s%s", v->generation, v->n_members,
               r->s->cluster->world, v->members[v->coordinator].name, why[0] != '\0' ? " (" : "", why,
               why[0] != '\0' ? ")" : "");
    rc = run_train(r, &to, &err);
    free(members);
    if (rc < 0)
        fail(r, v->generation, rc, train_held(r->train), err.text);
}

static void do_pause(struct run *r, const struct rdzv_action *a)
{
    (void)a;
    train_request(r->train, TRAIN_ASK_PAUSE);
}

static void do_abort(struct run *r, const struct rdzv_action *a)
{
    report_trouble(r->report, a->action->text);
    train_abort(r->train, a->action->text);
}

/* The lease may have to run out first: the membership sees to that, and asks again. */
static void do_save(struct run *r, const struct rdzv_action *a)
{
    struct group *g = r->group;

    (void)a;
    if (is_driven(r->s) && lease_hold_until(r->lock.lease) == 0)
        rdzv_report(g->rdzv, &(struct member_event){ .kind = MEMBER_EV_SAVED,
                                                     .text = "this task does not hold the lease on the shared storage" });
    else
        run_save(r);
}

static void do_say(struct run *r, const struct rdzv_action *a)
{
    bool is_trouble = a->action->is_trouble;

    if (is_trouble || r->generation == 0) /* while training is at rest, why it is */
        report_trouble(r->report, a->action->text);
    log_record(is_trouble ? LOG_WARN : LOG_INFO, "group", NULL, 0, "%s", a->action->text);
}

static void on_state(void *arg)
{
    struct run *r = arg;
    struct group *g = r->group;
    const struct member_node *n = rdzv_node(g->rdzv);

    if (!is_driven(r->s))
        return;
    atomic_store_explicit(&g->needs_lease, member_node_needs_lease(n), memory_order_release);
    lease_watch(r->lock.lease, member_node_state(n) == MEMBER_LEADING);
}

static void do_end(struct run *r, const struct rdzv_action *a)
{
    run_end(r, a->action->code, a->action->text);
}

static void on_checkpoint_request(void *arg)
{
    struct run *r = arg;
    struct group *g = r->group;

    if (r->s->train.checkpoint.directory == NULL) {
        rdzv_checkpoint_done(g->rdzv, 0, "", "the job has no checkpoint.directory");
    } else if (r->generation == 0) {
        char text[sizeof(r->progress.last_trouble) + 64];

        snprintf(text, sizeof(text), "training is at rest, in phase '%s'%s%s", r->progress.phase,
                 r->progress.last_trouble[0] != '\0' ? ": " : "", r->progress.last_trouble);
        rdzv_checkpoint_done(g->rdzv, 0, "", text);
    } else if (!g->leads) {
        rdzv_checkpoint_done(g->rdzv, 0, "", "this task does not write checkpoints: ask the chief");
    } else {
        r->checkpoint_asked = true;
        r->checkpoint_after = r->progress.step;
        train_request(r->train, TRAIN_ASK_CHECKPOINT);
    }
}

static void on_trace(void *arg, const char *text)
{
    (void)arg;
    log_debug("message", "%s", text);
}

static void on_tested(void *arg, uint64_t round, const struct member_loss *loss)
{
    struct run *r = arg;

    rdzv_report(r->group->rdzv, &(struct member_event){ .kind = MEMBER_EV_REACHED, .round = round, .loss = loss });
}

static void do_reach(struct run *r, const struct rdzv_action *a)
{
    path_tests_start(&r->group->tests, a, on_tested, r);
}

/* ---- actions ---- */

static void (*const performs[])(struct run *r, const struct rdzv_action *a) = {
    [MEMBER_TRAIN] = do_train,     [MEMBER_PAUSE] = do_pause, [MEMBER_ABORT] = do_abort, [MEMBER_SAVE] = do_save,
    [MEMBER_LEASE] = do_lease,     [MEMBER_REACH] = do_reach, [MEMBER_LOG] = do_say,     [MEMBER_END] = do_end,
    [MEMBER_RELEASE] = do_release,
};

static void on_action(void *arg, const struct rdzv_action *a)
{
    CHECK((size_t)a->action->what < COUNT_OF(performs) && performs[a->action->what] != NULL);
    performs[a->action->what](arg, a);
}

/* ---- from training ---- */

static void on_opened(struct run *r)
{
    report_phase(r->report, "waiting");
    rdzv_report(r->group->rdzv, &(struct member_event){ .kind = MEMBER_EV_OPENED });
}

static void on_failed(struct run *r, int code, const char *text)
{
    fail(r, 0, code, 0, text);
}

static void on_connected(struct run *r, uint64_t generation)
{
    report_trouble(r->report, "");
    rdzv_set_serving(r->group->rdzv, true);
    rdzv_report(r->group->rdzv, &(struct member_event){ .kind = MEMBER_EV_CONNECTED, .generation = generation });
}

/* Nobody is lost; the group meets again, with what its members hold now. */
static void end_by(struct run *r, const struct run_ended *m, uint32_t member)
{
    struct group *g = r->group;
    struct member_loss loss = { .peer = member < g->n_members ? g->ranks[member] : MEMBER_NO_RANK };

    report_trouble(r->report, m->text);
    rdzv_report(g->rdzv, &(struct member_event){ .kind = MEMBER_EV_FAILED,
                                                 .generation = m->generation,
                                                 .held = m->held,
                                                 .failure = MEMBER_FAIL_PEER,
                                                 .loss = &loss,
                                                 .text = m->text });
}

static void on_ended(struct run *r, const struct run_ended *m)
{
    struct rdzv *z = r->group->rdzv;
    struct member_event event = { .generation = m->generation, .held = m->held, .text = m->text };
    char text[ERR_TEXT_BYTES];

    rdzv_set_serving(z, false);
    if (r->checkpoint_asked) { /* the next generation may have another chief */
        r->checkpoint_asked = false;
        rdzv_checkpoint_done(z, 0, "", "the group changed meanwhile: ask again");
    }
    report_phase(r->report, m->end == TRAIN_COMPLETE ? "complete" : "waiting");
    switch (m->end) {
    case TRAIN_COMPLETE:
    case TRAIN_PAUSED:
    case TRAIN_ABORTED:
        event.kind = m->end == TRAIN_COMPLETE ? MEMBER_EV_COMPLETE
                     : m->end == TRAIN_PAUSED ? MEMBER_EV_PAUSED
                                              : MEMBER_EV_ABORTED;
        rdzv_report(z, &event);
        break;
    case TRAIN_UNSAVED:
        report_trouble(r->report, m->text);
        event.kind = MEMBER_EV_FAILED;
        event.failure = MEMBER_FAIL_STORAGE;
        rdzv_report(z, &event);
        break;
    case TRAIN_DIVERGED: /* whoever differs holds nothing any more, and takes the state of the others */
        if (train_diverged(r->train) == r->group->self && run_is_wrong_again(r, m->text, text, sizeof(text)))
            fail(r, m->generation, m->code, m->held, text);
        else
            end_by(r, m, train_diverged(r->train));
        break;
    case TRAIN_ROLL_BACK: /* nobody holds anything: the next generation reads a checkpoint */
        end_by(r, m, UINT32_MAX);
        break;
    default:
        fail(r, m->generation, m->code, m->held, m->text);
        break;
    }
}

static void on_saved(struct run *r, int rc, const char *text)
{
    report_phase(r->report, "waiting");
    rdzv_report(r->group->rdzv, &(struct member_event){ .kind = MEMBER_EV_SAVED, .ok = rc == 0, .text = rc == 0 ? "" : text });
}

static void on_stop(struct run *r)
{
    rdzv_report(r->group->rdzv, &(struct member_event){ .kind = MEMBER_EV_STOP });
}

static void add_progress(const struct run *r, struct rdzv_progress *p)
{
    if (member_node_state(rdzv_node(r->group->rdzv)) != MEMBER_LEADING)
        return; /* it does not look at it */
    p->lease_token = r->group->lease_token;
    snprintf(p->lease, sizeof(p->lease), "%s", r->group->lease_text);
}

/* A leader that cannot write hands the group over. It is told again while the failure lasts. */
static void watch_storage(struct run *r, enum member_node_state state)
{
    struct group *g = r->group;
    struct ckpt_trouble ckpt;
    struct storage_seen seen = { .ckpt = &ckpt, .lease_text = g->lease_text, .deadline_ms = run_deadline_ms(r) };
    char text[600];

    if (state != MEMBER_LEADING || r->train == NULL || clock_ms() - g->storage_told_ms < STORAGE_TELL_MS)
        return;
    train_storage(r->train, &ckpt);
    if (is_driven(r->s)) {
        seen.needs_lease = r->generation == 0 || atomic_load_explicit(&g->needs_lease, memory_order_acquire);
        seen.lease_ms = lease_trouble_ms(r->lock.lease);
    }
    if (!storage_has_failed(&seen, text, sizeof(text)))
        return;
    g->storage_told_ms = clock_ms();
    rdzv_report(g->rdzv, &(struct member_event){ .kind = MEMBER_EV_STORAGE, .text = text });
}

static void on_stored(struct run *r)
{
    rdzv_report(r->group->rdzv, &(struct member_event){ .kind = MEMBER_EV_STORAGE });
}

static void on_tick(struct run *r)
{
    enum member_node_state state = member_node_state(rdzv_node(r->group->rdzv));

    lock_tick(r);
    watch_storage(r, state);
    if (clock_ms() - r->group->swept_ms >= SWEEP_MS) {
        r->group->swept_ms = clock_ms();
        comm_listener_sweep(r->group->listener);
    }
    if (r->has_opened && r->generation == 0 && !r->is_saving && !r->has_ended)
        report_phase(r->report, state == MEMBER_SEEKING ? "joining" : "waiting");
}

static void reply_checkpoint(struct run *r, uint64_t step, const char *path, const char *error)
{
    rdzv_checkpoint_done(r->group->rdzv, step, path, error);
}

static uint32_t count_present(const struct run *r, uint64_t *generation)
{
    const struct member_view *v = member_node_view(rdzv_node(r->group->rdzv));

    *generation = v->generation;
    return v->n > 0 ? v->n : 1;
}

/* ---- building and taking down ---- */

/* "host:port" with the host as peers know it and the port that was bound. */
static int open_data_plane(struct run *r, struct err *err)
{
    struct group *g = r->group;
    const struct cluster_task *self = r->s->cluster->self;
    bool any = strncmp(r->s->listen, "0.0.0.0:", 8) == 0;
    const char *bound;
    const struct conf_ports *ports = &r->s->conf->communication.data_port;
    int rc = comm_listener_open(any ? "0.0.0.0" : self->host, (uint16_t)ports->first, (uint16_t)ports->last,
                                &g->listener, err);

    if (rc < 0)
        return err_wrap(err, rc, "data plane of %s", r->s->task_name);
    bound = comm_listener_address(g->listener);
    if (any)
        snprintf(g->data_address, sizeof(g->data_address), strchr(self->host, ':') ? "[%s]%s" : "%s%s",
                 self->host, strrchr(bound, ':'));
    else
        snprintf(g->data_address, sizeof(g->data_address), "%s", bound);
    return 0;
}

/* Writes the name of the job for its lease: equal for the tasks of one running cluster. If all tasks
 * are on one host, the host belongs to the name: an address such as 127.0.0.1 is valid on every host,
 * and the same cluster text may run on several. */
static void lease_job(const struct cluster *c, char *out, size_t n)
{
    bool is_one_host = true;

    for (uint32_t i = 1; i < c->world; i++)
        is_one_host = is_one_host && strcmp(c->ranks[i]->host, c->ranks[0]->host) == 0;
    snprintf(out, n, "%s%s%s", c->hash, is_one_host ? " " : "", is_one_host ? comm_host_key() : "");
}

static void on_conflict(struct run *r, const char *text)
{
    fail(r, r->generation, ERR_REFUSED, 0, text);
}

static int open_lease(struct run *r, struct err *err)
{
    char name[128], job[128];
    struct lock_opts o = { .name = name, .job = job, .incarnation = r->group->incarnation, .is_driven = is_driven(r->s),
                           .on_state = on_lease, .on_conflict = on_conflict };

    snprintf(name, sizeof(name), "%.50s (%.70s)", r->s->task_name, r->s->cluster->self->address);
    lease_job(r->s->cluster, job, sizeof(job));
    return lock_open(r, &o, err);
}

static int open_rdzv(struct run *r, struct err *err)
{
    const struct settled *s = r->s;
    const struct conf *conf = s->conf;
    const struct cluster *c = s->cluster;
    struct group *g = r->group;
    struct rdzv_task *tasks = calloc(c->world, sizeof(*tasks));
    char (*names)[64] = calloc(c->world, sizeof(*names));
    struct rdzv_opts o = {
        .loop = r->loop,
        .version = TRAINERD_VERSION,
        .job_name = conf->name,
        .tasks = tasks,
        .world = c->world,
        .self = c->self->rank,
        .incarnation = g->incarnation,
        .listen = s->listen,
        .token = s->token[0] != '\0' ? s->token : NULL,
        .ident = { .version = TRAINERD_VERSION,
                   .job_digest = conf->digest,
                   .cluster_hash = c->hash,
                   .cluster = c->canonical,
                   .devices = s->devices[0].kind == DEVICE_CUDA ? "cuda" : "cpu",
                   .kernels = s->kernels,
                   .nccl = s->nccl },
        .n_devices = s->n_devices,
        .data_address = g->data_address,
        .host_key = comm_host_key(),
        .min_world = s->min_world,
        .rejoin_ms = (uint64_t)(conf->elastic.rejoin_seconds * 1e3),
        .deadline_ms = run_deadline_ms(r),
        .grace_ms = run_grace_ms(r),
        .silent_ms = (uint64_t)(conf->detection.silent_seconds * 1e3),
        .has_lease = is_driven(s),
        .progress = &r->progress,
        .arg = r,
        .on_action = on_action,
        .on_state = on_state,
        .on_checkpoint = on_checkpoint_request,
        .on_trace = on_trace,
    };
    struct buf job = { 0 };
    int rc;

    CHECK(tasks != NULL && names != NULL);
    conf_job_canonical(conf, &job);
    for (size_t i = 0; i < job.len; i++) /* between the values; a message has no control characters */
        job.data[i] = (unsigned char)job.data[i] < ' ' ? ' ' : job.data[i];
    if (!job.failed && job.len <= JOB_BYTES_MAX)
        o.ident.job = job.data;
    for (uint32_t i = 0; i < c->world; i++) {
        const struct cluster_task *t = c->ranks[i];

        cluster_task_name(t, names[i], sizeof(names[i]));
        tasks[i] = (struct rdzv_task){ .type = cluster_type_name(t->type),
                                       .index = t->index,
                                       .address = t->address,
                                       .name = names[i] };
    }
    rc = rdzv_open(&o, &g->rdzv, err);
    free(tasks);
    free(names);
    buf_fini(&job);
    return rc;
}

static int new_incarnation(struct group *g, struct err *err)
{
    int rc = 0;

    while (rc == 0 && g->incarnation == 0)
        rc = rng_os(&g->incarnation, sizeof(g->incarnation));
    return rc < 0 ? err_set(err, ERR_IO, "the system gives no random numbers") : 0;
}

static int open_group(struct run *r, struct err *err)
{
    struct group *g = calloc(1, sizeof(*g));
    int rc;

    CHECK(g != NULL);
    r->group = g;
    g->run = r;
    g->tests.loop = r->loop;
    pthread_mutex_init(&g->lock, NULL);
    g->ranks = calloc(r->s->cluster->world, sizeof(*g->ranks));
    CHECK(g->ranks != NULL);
    rc = new_incarnation(g, err);
    if (rc == 0)
        rc = open_data_plane(r, err);
    if (rc == 0)
        rc = open_lease(r, err);
    return rc < 0 ? rc : open_rdzv(r, err);
}

static void close_group(struct run *r)
{
    if (r->group == NULL)
        return;
    path_tests_abandon(&r->group->tests);
    rdzv_close(r->group->rdzv, CLOSE_MS);
    r->group->rdzv = NULL;
}

static void free_group(struct run *r)
{
    struct group *g = r->group;

    if (g == NULL)
        return;
    lock_close(r);
    comm_listener_close(g->listener);
    free(g->ranks);
    pthread_mutex_destroy(&g->lock);
    free(g);
    r->group = NULL;
}

const struct run_mode group_mode = {
    .open = open_group,         .opened = on_opened, .failed = on_failed,
    .connected = on_connected,  .ended = on_ended,   .saved = on_saved,
    .stored = on_stored,        .stop = on_stop,     .tick = on_tick,
    .progress = add_progress,   .present = count_present,
    .checkpoint_done = reply_checkpoint,
    .close = close_group,       .free = free_group,
};
