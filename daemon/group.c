/* group.c - a task of a cluster: actions of the membership become calls of training, and results of
 * training become events of the membership. */
#include "daemon/group_priv.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/digest.h"
#include "base/group_order.h"
#include "base/log.h"
#include "daemon/advice.h"
#include "daemon/advisor.h"
#include "daemon/balancer.h"
#include "daemon/certificates.h"
#include "daemon/net_test.h"
#include "daemon/placer.h"
#include "daemon/rack_tree.h"
#include "daemon/reload.h"
#include "daemon/report.h"
#include "daemon/status.h"
#include "daemon/work.h"
#include "proto/trainerd.pb-c.h"
#include "train/division.h"

enum { SWEEP_MS = 1000 /* interval of the sweeps of the data port, and of certificates_check() */ };

/* ---- what the communicator lost ---- */

/* Called on a thread of the communicator. */
static void on_broken(void *arg, const struct comm_loss *loss, const char *why)
{
    struct run *r = arg;
    struct group *g = r->group;

    if (loss->has_changed_message)
        report_changed_message(r->report);
    pthread_mutex_lock(&g->lock);
    if (!g->is_broken)
        g->loss = *loss;
    g->is_broken = true;
    pthread_mutex_unlock(&g->lock);
    log_debug("link", "link to member %u broke, %u dead paths: %s", loss->member,
              loss->n_dead_paths, why);
}

/* Returns MEMBER_NO_RANK if the view has no member with this index. */
static uint32_t rank_of(const struct group *g, uint32_t member)
{
    return member < g->view.n_members ? g->view.members[member].rank : MEMBER_NO_RANK;
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
    out.peer = rank_of(g, loss.member);
    for (uint32_t i = 0; i < loss.n_dead_paths && out.n_dead_paths < MEMBER_REACH_MAX; i++)
        if (loss.dead_paths[i] < g->view.n_members)
            out.dead_paths[out.n_dead_paths++] = rank_of(g, loss.dead_paths[i]);
    return out;
}

static void fail(struct run *r, uint64_t generation, int code, uint64_t held, const char *text)
{
    struct group *g = r->group;
    struct member_loss loss = loss_of(g);
    bool is_symptom = generation > 0 && (code == ERR_PEER || code == ERR_PATH || code == ERR_AUTH ||
                                         code == ERR_CANCELED || code == ERR_TIMEOUT);
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

/* ---- actions of the membership ---- */

/* States the order of the ranks of a new generation, and how racks divide the lanes. */
static void log_order(struct run *r)
{
    const struct group_view *v = &r->group->view;
    char order[GROUP_ORDER_TEXT_BYTES], lanes[512] = "";

    if (group_view_n_trainers(v) < 2)
        return;
    if (group_order_is_located(v) && v->n_pieces == 0)
        division_describe(&r->s->lanes.tree, r->s->lanes.n, v, lanes, sizeof(lanes));
    log_record(group_order_has_location(v) ? LOG_INFO : LOG_DEBUG, "order", NULL, 0, "%s%s%s",
               group_order_describe(v, order, sizeof(order)), lanes[0] != '\0' ? "; " : "", lanes);
}

/* The leader of the full group: whether another tree over lanes would save bytes between racks. */
static void log_rack_tree(struct run *r)
{
    const struct group_view *v = &r->group->view;
    const struct settled *s = r->s;
    char text[RACK_TREE_TEXT_BYTES];

    if (v->self == v->coordinator && group_view_n_trainers(v) == s->cluster->world &&
        group_order_is_located(v) && v->n_pieces == 0 && s->devices[0].kind == DEVICE_CPU &&
        rack_tree_advise(v, &s->lanes.tree, s->lanes.n, s->conf->communication.shared_memory, text))
        log_info("racks", "%s", text);
}

static void do_train(struct run *r, const struct rdzv_action *a)
{
    const struct group_view *v = a->view;
    const char *why = a->action->text;
    struct group *g = r->group;
    struct train_generation to = {
        .listener = g->listener,
        .shared_memory = r->s->conf->communication.shared_memory,
        .encrypts = r->s->security.tls != NULL && r->s->conf->communication.encrypt,
        .deadline_ms = run_deadline_ms(r),
        .on_broken = on_broken,
        .may_step = r->lock.lease != NULL ? group_may_step : NULL,
        .may_save = r->lock.lease != NULL ? group_may_save : NULL,
    };
    bool leads = v->self == v->coordinator;
    struct err err;
    int rc;

    arena_fini(&g->view_memory);
    CHECK(group_order_copy(v, &g->view_memory, &g->view));
    to.view = g->view;
    pthread_mutex_lock(&g->lock);
    g->is_broken = false;
    pthread_mutex_unlock(&g->lock);
    digest_hmac(r->s->security.token, strlen(r->s->security.token), v->key, sizeof(v->key), to.key);
    group_check_completion(r, leads && group_view_n_trainers(v) < r->s->cluster->world);
    if (leads)
        lock_acquire(r, v->members, v->n_members);
    else
        lock_release(r);
    report_set_coordinator(r->report, leads);
    status_pages_view(r);
    log_record(LOG_INFO, "view",
               (struct log_field[]){ LOG_I64("generation", (int64_t)v->generation),
                                     LOG_I64("tasks", v->n_members),
                                     LOG_I64("newest_step", (int64_t)v->newest_step) }, 3,
               "generation %" PRIu64 ": %u of %u tasks, led by %s%s%s%s", v->generation, v->n_members,
               r->s->cluster->group, v->members[v->coordinator].name, why[0] != '\0' ? " (" : "", why,
               why[0] != '\0' ? ")" : "");
    log_order(r);
    log_rack_tree(r);
    rc = run_train(r, &to, &err);
    if (rc < 0)
        fail(r, v->generation, rc, r->ops->held(r->work), err.text);
}

static void do_pause(struct run *r, const struct rdzv_action *a)
{
    (void)a;
    r->ops->request(r->work, TRAIN_REQUEST_PAUSE);
}

static void do_abort(struct run *r, const struct rdzv_action *a)
{
    report_trouble(r->report, a->action->text);
    r->ops->abort(r->work, a->action->text);
}

/* Fails without the lease; the membership repeats the action after it has acquired the lease. Where the
 * membership does not request the lease, this task acquires it: another task coordinated the last view. */
static void do_save(struct run *r, const struct rdzv_action *a)
{
    (void)a;
    lock_acquire(r, r->group->view.members, r->group->view.n_members);
    if (group_lease_permits_save(r))
        run_save(r);
    else
        rdzv_report(r->group->rdzv,
                    &(struct member_event){
                        .kind = MEMBER_EV_SAVED,
                        .text = "this task does not hold the lease on the shared storage" });
}

static void do_log(struct run *r, const struct rdzv_action *a)
{
    bool is_trouble = a->action->is_trouble;

    if (is_trouble || r->generation == 0) /* the reason why no generation runs */
        report_trouble(r->report, a->action->text);
    log_record(is_trouble ? LOG_WARN : LOG_INFO, "group", NULL, 0, "%s", a->action->text);
}

static void on_state(void *arg)
{
    group_lease_update(arg);
}

static void do_end(struct run *r, const struct rdzv_action *a)
{
    if (a->action->code == EXIT_COMPLETE)
        group_end_complete(r, a->action->text);
    else
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
    } else if (g->view.self != g->view.coordinator) {
        rdzv_checkpoint_done(g->rdzv, 0, "", "this task does not write checkpoints: ask the chief");
    } else {
        r->checkpoint.is_requested = true;
        r->checkpoint.after_step = r->progress.step;
        r->ops->request(r->work, TRAIN_REQUEST_CHECKPOINT);
    }
}

static uint64_t on_reload_request(void *arg)
{
    struct run *r = arg;

    return reload_start(r->reload);
}

static void on_trace(void *arg, const char *text)
{
    (void)arg;
    log_debug("message", "%s", text);
}

/* Called on a thread of lib/rdzv, which ends before the work is closed. */
static int read_rows(void *arg, const struct rdzv_rows_request *q, struct rdzv_rows *out,
                     struct err *err)
{
    struct run *r = arg;

    return r->ops->read_rows(r->work, q, out, err);
}

/* Called on a thread of lib/rdzv, which ends before the group is freed. */
static int netcheck(void *arg, const struct rdzv_netcheck *q, struct rdzv_netcheck_result *out,
                    struct err *err)
{
    return net_test_perform(((struct run *)arg)->group->net_test, q, out, err);
}

static void on_status(void *arg, struct Trainerd__V1__StatusReply *s, struct arena *a)
{
    struct run *r = arg;

    s->leader_page = member_node_state(rdzv_node(r->group->rdzv)) == MEMBER_LEADING
                         ? s->page
                         : (char *)rdzv_leader_page(r->group->rdzv);
    status_complete(r, s, &r->group->view, a);
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

static void (*const perform[])(struct run *r, const struct rdzv_action *a) = {
    [MEMBER_TRAIN] = do_train,
    [MEMBER_PAUSE] = do_pause,
    [MEMBER_ABORT] = do_abort,
    [MEMBER_SAVE] = do_save,
    [MEMBER_LEASE] = group_lease_acquire,
    [MEMBER_REACH] = do_reach,
    [MEMBER_LOG] = do_log,
    [MEMBER_END] = do_end,
    [MEMBER_RELEASE] = group_lease_release,
};

static void on_action(void *arg, const struct rdzv_action *a)
{
    CHECK((size_t)a->action->kind < COUNT_OF(perform) && perform[a->action->kind] != NULL);
    perform[a->action->kind](arg, a);
}

/* ---- results of training ---- */

static void on_opened(struct run *r)
{
    const char *refused = r->opening.refused[0] != '\0' ? r->opening.refused : NULL;

    if (refused != NULL) {
        report_trouble(r->report, refused);
        log_warn("storage", "%s; another task must write the results", refused);
    }
    report_phase(r->report, "waiting");
    rdzv_report(r->group->rdzv,
                &(struct member_event){ .kind = MEMBER_EV_OPENED, .text = refused });
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

/* Ends the generation on every task because of the results of `member`. No task is lost: the next
 * generation continues with the state that the members hold. */
static void end_generation(struct run *r, const struct run_ended *m, uint32_t member)
{
    struct group *g = r->group;
    struct member_loss loss = { .peer = rank_of(g, member) };

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
    if (r->checkpoint.is_requested) { /* the next generation may have another chief */
        r->checkpoint.is_requested = false;
        rdzv_checkpoint_done(z, 0, "", "the group changed meanwhile: ask again");
    }
    report_phase(r->report, m->end == TRAIN_COMPLETE ? "wait for the end of the job" : "waiting");
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
    case TRAIN_DIVERGED: /* only training tasks compare results; the divergent task has discarded its state, and receives that of the
                            others */
        if (train_diverged(r->train) == r->group->view.self &&
            run_diverged_again(r, m->text, text, sizeof(text)))
            fail(r, m->generation, m->code, m->held, text);
        else
            end_generation(r, m, train_diverged(r->train));
        break;
    case TRAIN_ROLL_BACK: /* no task holds state: the next generation reads a checkpoint */
        end_generation(r, m, UINT32_MAX);
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
        return; /* its record of the lease is outdated */
    p->lease_token = r->group->lease.token;
    snprintf(p->lease, sizeof(p->lease), "%s", r->group->lease.text);
}

static void on_stored(struct run *r)
{
    rdzv_report(r->group->rdzv, &(struct member_event){ .kind = MEMBER_EV_STORAGE });
}

static void balance(struct run *r, enum member_node_state state)
{
    struct group *g = r->group;
    struct advice_group windows;

    if (advisor_judged(r->advisor, &windows) && state == MEMBER_LEADING &&
        g->view.generation == member_node_view(rdzv_node(g->rdzv))->generation)
        if (!placer_judge(g->placer, &windows, &g->view, g->rdzv))
            balancer_judge(g->balancer, &windows, &g->view, g->rdzv);
}

static void on_tick(struct run *r)
{
    enum member_node_state state = member_node_state(rdzv_node(r->group->rdzv));

    group_final_tick(r);
    lock_retry(r);
    advisor_tick(r->advisor, r->group->rdzv);
    balance(r, state);
    group_watch_storage(r, state);
    if (clock_ms() - r->group->swept_ms >= SWEEP_MS) {
        r->group->swept_ms = clock_ms();
        comm_listener_sweep(r->group->listener);
        certificates_check(r->group->certificates);
    }
    if (r->opening.is_done && r->generation == 0 && !r->saving.is_open && !r->exit.is_decided &&
        !r->group->final.is_open)
        report_phase(r->report, state == MEMBER_SEEKING ? "joining" : "waiting");
}

static void reply_checkpoint(struct run *r, uint64_t step, const char *path, const char *error)
{
    rdzv_checkpoint_done(r->group->rdzv, step, path, error);
}

static void reply_reload(struct run *r, uint64_t number, const struct reload_changes *changes,
                         const char *error)
{
    struct rdzv_change list[RELOAD_CHANGES_MAX];

    if (r->group == NULL || r->group->rdzv == NULL)
        return; /* SIGHUP before the control port is open: no call waits */
    for (uint32_t i = 0; i < changes->n; i++)
        list[i] = (struct rdzv_change){ .key = changes->list[i].pointer,
                                        .from = changes->list[i].from,
                                        .to = changes->list[i].to,
                                        .note = changes->list[i].is_overridden ? "--log-level has priority" : "" };
    rdzv_reload_done(r->group->rdzv, number, list, changes->n, error);
}

static uint32_t count_present(const struct run *r, uint64_t *generation)
{
    const struct group_view *v = member_node_view(rdzv_node(r->group->rdzv));

    *generation = v->generation;
    return v->n_members > 0 ? v->n_members : 1;
}

static void describe_group(struct run *r, struct Trainerd__V1__StatusReply *s, struct arena *a)
{
    rdzv_describe(r->group->rdzv, s, a);
}

/* ---- the mode ---- */

static int open_group(struct run *r, struct err *err)
{
    const struct rdzv_opts callbacks = { .on_action = on_action,
                                         .on_state = on_state,
                                         .on_checkpoint = on_checkpoint_request,
                                         .on_reload = on_reload_request,
                                         .on_status = on_status,
                                         .read_rows = read_rows,
                                         .netcheck = netcheck,
                                         .on_trace = on_trace };

    return group_open(r, &callbacks, err);
}

const struct run_mode group_mode = {
    .open = open_group,
    .opened = on_opened,
    .failed = on_failed,
    .connected = on_connected,
    .ended = on_ended,
    .saved = on_saved,
    .stored = on_stored,
    .stop = on_stop,
    .tick = on_tick,
    .progress = add_progress,
    .present = count_present,
    .describe = describe_group,
    .checkpoint_done = reply_checkpoint,
    .reload_done = reply_reload,
    .close = group_close,
    .free = group_free,
};
