/* sim.c - processes of the simulated cluster, the actions of their nodes, and the faults. */
#include "sim/sim_priv.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- messages ---- */

static void view_free(struct sim_view *v)
{
    if (v != NULL && --v->refs == 0)
        free(v);
}

static struct sim_view *view_copy(const struct group_view *v)
{
    struct sim_view *c = sim_alloc(sizeof(*c) + v->n_members * sizeof(*v->members));

    c->refs = 1;
    c->view = *v;
    memcpy(c->members, v->members, v->n_members * sizeof(*v->members));
    c->view.members = c->members;
    return c;
}

/* Returns one copy of a view that all receivers of a message share. */
static struct sim_view *view_share(struct sim *s, const struct group_view *v)
{
    if (s->sharing == NULL || !sim_same_view(&s->sharing->view, v)) {
        view_free(s->sharing);
        s->sharing = view_copy(v);
    }
    s->sharing->refs++;
    return s->sharing;
}

struct sim_msg *sim_msg_copy(struct sim *s, uint32_t rank, const struct member_msg *m)
{
    size_t n = strlen(m->text) + 1;
    struct sim_msg *c = malloc(sizeof(*c) + n);

    if (c == NULL)
        abort();
    c->m = *m;
    memcpy(c->text, m->text, n);
    c->m.text = c->text;
    if (m->n_ranks > 0)
        memcpy(c->ranks, m->ranks, m->n_ranks * sizeof(c->ranks[0]));
    c->m.ranks = c->ranks;
    c->m.ident = m->ident != NULL ? &s->tasks[rank].ident : NULL;
    snprintf(c->phase, sizeof(c->phase), "%s", m->progress.phase != NULL ? m->progress.phase : "");
    c->m.progress.phase = c->phase;
    c->view = m->view != NULL ? view_share(s, m->view) : NULL;
    c->m.view = c->view != NULL ? &c->view->view : NULL;
    return c;
}

void sim_msg_free(struct sim_msg *m)
{
    if (m == NULL)
        return;
    view_free(m->view);
    free(m);
}

/* ---- the log of an action ---- */

static const char *msg_name(enum member_kind kind)
{
    static const char *const names[MEMBER_MSGS] = {
        [MEMBER_MSG_JOIN] = "JOIN",         [MEMBER_MSG_READY] = "READY",
        [MEMBER_MSG_BEAT] = "BEAT",         [MEMBER_MSG_TROUBLE] = "TROUBLE",
        [MEMBER_MSG_REACHED] = "REACHED",   [MEMBER_MSG_COMPLETE] = "COMPLETE",
        [MEMBER_MSG_LEAVE] = "LEAVE",       [MEMBER_MSG_WAIT] = "WAIT",
        [MEMBER_MSG_VIEW] = "VIEW",         [MEMBER_MSG_PAUSE] = "PAUSE",
        [MEMBER_MSG_OVER] = "OVER",         [MEMBER_MSG_REACH] = "REACH",
        [MEMBER_MSG_REDIRECT] = "REDIRECT", [MEMBER_MSG_REFUSE] = "REFUSE",
    };

    return kind < MEMBER_MSGS ? names[kind] : "?";
}

static void tell_msg(struct sim *s, uint32_t from, uint32_t to, const struct member_msg *m)
{
    if (!s->opts.tell || m->kind == MEMBER_MSG_BEAT)
        return;
    sim_print(s, from, "to %s: %s g%" PRIu64 " held %" PRIu64 " code %d%s%s%s%s %s", s->names[to],
              msg_name(m->kind), m->view != NULL ? m->view->generation : m->generation, m->held,
              m->code, m->is_all ? " all" : "", m->is_attaching ? " attaching" : "",
              m->kind == MEMBER_MSG_REDIRECT ? " -> " : "",
              m->kind == MEMBER_MSG_REDIRECT ? s->names[m->rank % s->opts.world] : "", m->text);
}

static void tell_view(struct sim *s, uint32_t rank, const struct member_action *d)
{
    char list[400] = "";
    size_t n = 0;

    for (uint32_t i = 0; i < d->view->n_members && n + 8 < sizeof(list) && s->opts.tell; i++)
        n += (size_t)snprintf(list + n, sizeof(list) - n, " %u", d->view->members[i].rank);
    sim_print(s, rank, "TRAIN g%" PRIu64 " of%s, newest step %" PRIu64 ": %s", d->view->generation,
              list, d->view->newest_step, d->text != NULL ? d->text : "");
}

/* ---- actions ---- */

static bool send_to(struct sim *s, uint32_t rank, const struct member_action *d)
{
    struct sim_task *t = &s->tasks[rank];
    bool to_caller = d->kind == MEMBER_SEND_MEMBER;
    uint32_t link = to_caller ? t->in[d->rank] : t->out;

    if (link == 0) {
        sim_fail_run(s, "%s sends %s %s without an open link", s->names[rank],
                     msg_name(d->msg->kind), to_caller ? s->names[d->rank] : "on the link out");
        return false;
    }
    tell_msg(s, rank, to_caller ? d->rank : s->links.at[link].to, d->msg);
    if (d->msg->kind == MEMBER_MSG_VIEW)
        (void)sim_group_of(s, rank, d->msg->view);
    sim_link_send(s, link, to_caller, sim_msg_copy(s, rank, d->msg));
    return true;
}

static void hang_up(struct sim *s, uint32_t rank, const struct member_action *d)
{
    struct sim_task *t = &s->tasks[rank];
    uint32_t *link = d->kind == MEMBER_CLOSE_IN ? &t->in[d->rank] : &t->out;

    if (*link == 0) {
        sim_fail_run(s, "%s closes a link that does not exist (%s)", s->names[rank],
                     d->kind == MEMBER_CLOSE_IN ? s->names[d->rank] : "out");
        return;
    }
    sim_link_end(s, *link, d->kind == MEMBER_CLOSE_OUT);
    *link = 0;
}

static void perform(struct sim *s, uint32_t rank, const struct member_action *d)
{
    struct sim_task *t = &s->tasks[rank];

    sim_judge_action(s, rank, d);
    if (s->is_broken)
        return;
    switch (d->kind) {
    case MEMBER_OPEN_OUT:
        sim_print(s, rank, "calls %s", s->names[d->rank]);
        sim_link_call(s, rank, d->rank);
        return;
    case MEMBER_CLOSE_OUT:
    case MEMBER_CLOSE_IN:
        sim_print(s, rank,
                  d->kind == MEMBER_CLOSE_IN ? "closes the link from %s" : "closes the link out%s",
                  d->kind == MEMBER_CLOSE_IN ? s->names[d->rank] : "");
        hang_up(s, rank, d);
        return;
    case MEMBER_SEND_LEADER:
    case MEMBER_SEND_MEMBER:
        (void)send_to(s, rank, d);
        return;
    case MEMBER_PROBE:
        sim_link_probe(s, rank, d->rank);
        return;
    case MEMBER_REACH:
        sim_train_test_paths(s, rank, d);
        return;
    case MEMBER_TRAIN:
        tell_view(s, rank, d);
        sim_train_begin(s, rank, d->view);
        return;
    case MEMBER_PAUSE:
        sim_print(s, rank, "PAUSE");
        sim_train_pause(s, rank);
        return;
    case MEMBER_ABORT:
        sim_print(s, rank, "ABORT: %s", d->text);
        sim_train_abort_now(s, rank);
        return;
    case MEMBER_SAVE:
        sim_print(s, rank, "SAVE step %" PRIu64, t->held);
        sim_store_save(s, rank, t->held, true, false);
        return;
    case MEMBER_LEASE:
        if (d->token == UINT64_MAX)
            sim_print(s, rank, "reads the lease");
        else
            sim_print(s, rank, "requests lease %" PRIu64, d->token + 1);
        sim_store_request(s, rank, d);
        return;
    case MEMBER_RELEASE:
        sim_store_release(s, rank);
        return;
    case MEMBER_LOG:
        sim_print(s, rank, "%s: %s", d->is_trouble ? "TROUBLE" : "logs", d->text);
        snprintf(t->said, sizeof(t->said), "%s", d->text);
        t->said_ms = s->now_ms;
        return;
    case MEMBER_END:
        sim_exit(s, rank, d->code, d->text);
        return;
    }
}

void sim_handle(struct sim *s, uint32_t rank, struct member_event e)
{
    member_node_handle(s->tasks[rank].node, &e, sim_clock(s, rank));
}

void sim_drain(struct sim *s, uint32_t rank)
{
    struct sim_task *t = &s->tasks[rank];
    uint32_t serial = t->serial;
    struct member_action d;

    while (!s->is_broken && t->node != NULL && t->serial == serial && member_node_next(t->node, &d))
        perform(s, rank, &d);
}

/* ---- processes ---- */

static void gone(struct sim *s, uint32_t rank, int code, const char *text, bool is_silent)
{
    struct sim_task *t = &s->tasks[rank];

    t->exit_code = code;
    t->ended_ms = s->now_ms;
    snprintf(t->exit_text, sizeof(t->exit_text), "%s", text);
    sim_link_process_gone(s, rank, code == SIM_KILLED, is_silent);
    sim_train_process_gone(s, rank, is_silent);
    sim_store_process_gone(s, rank);
    member_node_free(t->node);
    t->node = NULL;
    t->is_stopped = false;
    t->out = 0;
    t->held = 0;
    memset(t->in, 0, s->opts.world * sizeof(*t->in));
    memset(t->probes, 0, s->opts.world * sizeof(*t->probes));
    sim_release_held(s);
    if (s->opts.restart_ms > 0 && (code == 138 || code == SIM_KILLED) && !is_silent)
        sim_push(s, (struct sim_event){ .at_ms = s->now_ms + s->opts.restart_ms,
                                        .kind = EV_START,
                                        .from = rank,
                                        .to = rank,
                                        .a = t->serial });
}

/* Ends the process. Called while an action of its node is performed: the node is freed, so that
 * action is the last one. */
void sim_exit(struct sim *s, uint32_t rank, int code, const char *text)
{
    char copy[TEXT];

    snprintf(copy, sizeof(copy), "%s", text);
    sim_print(s, rank, "ends with %d: %s", code, copy);
    sim_judge_end(s, rank, code, copy);
    gone(s, rank, code, copy, false);
}

static void start(struct sim *s, uint32_t rank)
{
    struct sim_task *t = &s->tasks[rank];
    struct member_node_opts o = {
        .world = s->opts.world,
        .self = rank,
        .names = s->names,
        .addresses = s->addresses,
        .ident = &t->ident,
        .n_devices = sim_is_ps(s, rank) ? 0 : 1,
        .n_ps = s->opts.n_ps,
        .n_servers = sim_is_ps(s, rank) ? 1 + rank % 2 : 0,
        .min_world = s->opts.min_world,
        .min_ps = s->opts.min_ps,
        .replicas = s->opts.replicas,
        .rejoin_ms = s->opts.rejoin_ms,
        .deadline_ms = s->opts.deadline_ms,
        .grace_ms = s->opts.grace_ms,
        .has_lease = !s->opts.no_lease,
        .saves = true,
    };

    if (t->node != NULL)
        return;
    t->is_off = t->was_told_to_stop = false;
    t->may_end_2 = t->has_other_job;
    t->serial = ++s->next_serial;
    t->held = 0;
    t->exit_code = SIM_RUNNING;
    t->exit_text[0] = t->said[0] = '\0';
    t->started_ms = t->said_ms = s->now_ms;
    t->clock_ms = 1000 + sim_random(s, 100000);
    t->clock_at_ms = s->now_ms;
    t->clock_speed = 1000 - 10 * s->opts.drift + sim_random(s, 20 * s->opts.drift + 1);
    t->train.is_stuck = false;
    t->lease.text = "";
    if (s->complete_step != 0 && !s->opts.no_lease && t->storage == SIM_STORAGE_FINE) {
        t->exit_code = 0;
        snprintf(t->exit_text, sizeof(t->exit_text), "the job is complete already");
        sim_print(s, rank, "starts; the job is complete already");
        return;
    }
    t->incarnation = o.incarnation = ((uint64_t)t->serial << 32) + 1 + sim_random(s, 1 << 30);
    if (t->has_other_job)
        t->ident.job_digest = "22222222";
    sim_print(s, rank, "starts");
    t->node = member_node_new(&o, sim_clock(s, rank));
    sim_handle(s, rank, (struct member_event){ .kind = MEMBER_EV_START });
    sim_push(s, (struct sim_event){ .at_ms = s->now_ms + sim_random(s, s->opts.open_ms + 1),
                                    .kind = EV_OPENED,
                                    .from = rank,
                                    .to = rank,
                                    .serial = t->serial });
    sim_push(s, (struct sim_event){ .at_ms = s->now_ms + sim_random(s, s->opts.tick_ms),
                                    .kind = EV_TICK,
                                    .from = rank,
                                    .to = rank,
                                    .serial = t->serial });
    sim_drain(s, rank);
}

static void tick(struct sim *s, uint32_t rank)
{
    struct sim_task *t = &s->tasks[rank];
    uint64_t ms = sim_real_ms(s, rank, s->opts.tick_ms);
    struct member_progress p;

    sim_train_progress(s, rank, &p);
    sim_store_watch(s, rank);
    if (t->node == NULL)
        return; /* an action ended the process */
    sim_handle(s, rank, (struct member_event){ .kind = MEMBER_EV_TICK, .progress = &p });
    if (sim_random(s, 64) == 0)
        ms += sim_random(s, 6 * ms); /* a late answer */
    sim_push(s, (struct sim_event){ .at_ms = s->now_ms + ms,
                                    .kind = EV_TICK,
                                    .from = rank,
                                    .to = rank,
                                    .serial = t->serial });
}

/* ---- events ---- */

static enum sim_arrival arrival(const struct sim *s, const struct sim_event *e)
{
    const struct sim_task *t = &s->tasks[e->to];

    if (e->kind >= EV_CALL && e->kind <= EV_NO_ANSWER)
        return sim_link_arrival(s, e);
    if (e->serial == 0)
        return ARRIVES;
    if (t->node == NULL || t->serial != e->serial)
        return VANISHES;
    return t->is_stopped ? WAITS : ARRIVES;
}

void sim_release_held(struct sim *s)
{
    size_t kept = 0;

    for (size_t i = 0; i < s->held.n; i++) {
        struct sim_event e = s->held.at[i];

        if (arrival(s, &e) == WAITS) {
            s->held.at[kept++] = e;
            continue;
        }
        e.at_ms = s->now_ms;
        sim_push_again(s, e);
    }
    s->held.n = kept;
}

static void happens(struct sim *s, struct sim_event *e)
{
    switch (e->kind) {
    case EV_START:
        if (s->tasks[e->to].serial == e->a && !s->tasks[e->to].is_off)
            start(s, e->to);
        return;
    case EV_OPENED:
        sim_print(s, e->to, "has opened model and data");
        if (e->to < s->opts.n_refused)
            sim_storage(s, e->to, SIM_STORAGE_FAILS);
        sim_handle(s, e->to,
                   (struct member_event){ .kind = MEMBER_EV_OPENED,
                                          .text = e->to < s->opts.n_refused ? "permission denied"
                                                                            : NULL });
        break;
    case EV_TICK:
        tick(s, e->to);
        break;
    case EV_GROUP:
        sim_train_event(s, e);
        return;
    case EV_TRAIN:
    case EV_NEWS:
        sim_train_event(s, e);
        break;
    case EV_REACHED:
        sim_train_tested(s, e);
        break;
    case EV_LEASE_EFFECT:
    case EV_LEASE_DONE:
    case EV_LEASE_DUE:
    case EV_SAVE:
        sim_store_event(s, e);
        break;
    default:
        sim_link_event(s, e);
        break;
    }
    sim_drain(s, e->to);
}

static void run_one(struct sim *s)
{
    struct sim_event e = sim_pop(s);
    enum sim_arrival how;

    s->now_ms = e.at_ms;
    how = arrival(s, &e);
    if (how == WAITS) {
        if (!VEC_PUSH(s->held, e))
            abort();
        return;
    }
    if (how == BOUNCES)
        sim_link_bounce(s, &e);
    else if (how == ARRIVES) {
        happens(s, &e);
        sim_judge_event(s, e.to);
    }
    sim_msg_free(e.msg);
}

void sim_advance(struct sim *s, uint64_t ms)
{
    uint64_t until_ms = s->now_ms + ms;

    while (!s->is_broken && s->heap.n > 0 && s->heap.at[0].at_ms <= until_ms)
        run_one(s);
    if (!s->is_broken)
        s->now_ms = until_ms;
}

/* ---- open and close ---- */

static uint64_t otherwise(uint64_t value, uint64_t normally)
{
    return value != 0 ? value : normally;
}

struct sim *sim_new(const struct sim_opts *opts)
{
    static const struct member_ident ident = {
        .version = "0.1.0",
        .job_digest = "11111111",
        .cluster_hash = "33333333",
        .cluster = "{}",
        .devices = "cpu",
        .kernels = "onednn",
        .nccl = "",
    };
    struct sim *s = sim_alloc(sizeof(*s));
    struct sim_opts *o = &s->opts;

    *o = *opts;
    o->min_world = o->min_world != 0 ? o->min_world : 1;
    o->min_ps = o->n_ps > 0 && o->min_ps == 0 ? 1 : o->min_ps;
    o->rejoin_ms = otherwise(o->rejoin_ms, 500);
    o->deadline_ms = otherwise(o->deadline_ms, 30000);
    o->grace_ms = otherwise(o->grace_ms, 5000);
    o->step_ms = otherwise(o->step_ms, 20);
    o->delay_ms = otherwise(o->delay_ms, 1);
    o->store_ms = otherwise(o->store_ms, 2);
    o->transfer_ms = otherwise(o->transfer_ms, 10);
    o->tick_ms = otherwise(o->tick_ms, MEMBER_TICK_MS);
    s->random = (opts->seed + 1) * 0x9e3779b97f4a7c15u;
    s->tasks = sim_alloc(o->world * sizeof(*s->tasks));
    s->names = sim_alloc(o->world * sizeof(*s->names));
    s->addresses = sim_alloc(o->world * sizeof(*s->addresses));
    if (!VEC_PUSH(s->links, (struct sim_link){ .state = LINK_FAILED }) ||
        !VEC_PUSH(s->groups, NULL))
        abort();
    for (uint32_t i = 0; i < o->world; i++) {
        struct sim_task *t = &s->tasks[i];
        char text[32];

        snprintf(text, sizeof(text), sim_is_ps(s, i) ? "ps %u" : "worker %u",
                 sim_is_ps(s, i) ? i - (o->world - o->n_ps) : i);
        s->names[i] = strdup(text);
        snprintf(text, sizeof(text), "10.0.%u.%u:1", i / 256 % 256, i % 256);
        s->addresses[i] = strdup(text);
        t->in = sim_alloc(o->world * sizeof(*t->in));
        t->probes = sim_alloc(o->world * sizeof(*t->probes));
        t->ident = ident;
        t->clock_speed = 1000;
        t->lease.text = "";
        t->exit_code = SIM_RUNNING; /* the process runs, or starts in a moment */
        if (i < o->world - o->n_absent)
            sim_push(s, (struct sim_event){ .at_ms = sim_random(s, o->start_ms + 1),
                                            .kind = EV_START,
                                            .from = i,
                                            .to = i });
        else
            t->exit_code = SIM_KILLED;
    }
    return s;
}

void sim_free(struct sim *s)
{
    for (uint32_t i = 0; i < s->opts.world; i++) {
        struct sim_task *t = &s->tasks[i];

        member_node_free(t->node);
        free(t->in);
        free(t->probes);
        free(t->lease.members);
        free(t->lease.op_members);
        free((void *)s->names[i]);
        free((void *)s->addresses[i]);
    }
    for (size_t i = 0; i < s->heap.n; i++)
        sim_msg_free(s->heap.at[i].msg);
    for (size_t i = 0; i < s->held.n; i++)
        sim_msg_free(s->held.at[i].msg);
    for (size_t i = 1; i < s->groups.n; i++) {
        free(s->groups.at[i]->members);
        free(s->groups.at[i]);
    }
    view_free(s->sharing);
    sim_store_fini(s);
    VEC_FINI(s->heap);
    VEC_FINI(s->held);
    VEC_FINI(s->links);
    VEC_FINI(s->groups);
    buf_fini(&s->log);
    buf_fini(&s->finding);
    free(s->cuts);
    free(s->tasks);
    free(s->names);
    free(s->addresses);
    free(s);
}

/* ---- faults ---- */

void sim_start(struct sim *s, uint32_t rank)
{
    if (!s->is_broken)
        start(s, rank);
}

static void end_process(struct sim *s, uint32_t rank, const char *how, bool is_silent)
{
    if (s->tasks[rank].node == NULL || s->is_broken)
        return;
    sim_print(s, rank, "%s, held step %" PRIu64, how, s->tasks[rank].held);
    gone(s, rank, SIM_KILLED, how, is_silent);
}

void sim_kill(struct sim *s, uint32_t rank)
{
    end_process(s, rank, "killed", false);
}

void sim_power_off(struct sim *s, uint32_t rank)
{
    end_process(s, rank, "its host is switched off", true);
    s->tasks[rank].is_off = true;
}

void sim_pause(struct sim *s, uint32_t rank)
{
    sim_print(s, rank, "SIGSTOP");
    s->tasks[rank].is_stopped = s->tasks[rank].node != NULL;
}

void sim_continue(struct sim *s, uint32_t rank)
{
    sim_print(s, rank, "SIGCONT");
    s->tasks[rank].is_stopped = false;
    sim_release_held(s);
}

void sim_stop(struct sim *s, uint32_t rank, bool everywhere)
{
    struct sim_task *t = &s->tasks[rank];

    if (t->node == NULL || t->is_stopped || s->is_broken)
        return;
    sim_print(s, rank, everywhere ? "is asked to stop the job" : "SIGTERM");
    t->was_told_to_stop = true;
    s->everybody_stops |= everywhere;
    sim_handle(s, rank, (struct member_event){ .kind = MEMBER_EV_STOP, .everywhere = everywhere });
    sim_drain(s, rank);
}

void sim_regroup(struct sim *s, uint32_t rank)
{
    if (s->tasks[rank].node == NULL || s->tasks[rank].is_stopped || s->is_broken)
        return;
    sim_handle(s, rank, (struct member_event){ .kind = MEMBER_EV_REGROUP, .text = "lanes move" });
    sim_drain(s, rank);
}

void sim_fail(struct sim *s, uint32_t rank, enum member_failure kind, const char *text)
{
    for (uint32_t i = 0; i < s->opts.world && kind == MEMBER_FAIL_INPUT; i++)
        s->tasks[i].may_end_2 = true;
    sim_train_fail(s, rank, kind, text);
}

void sim_other_job(struct sim *s, uint32_t rank)
{
    s->tasks[rank].has_other_job = s->tasks[rank].may_end_2 = true;
}

void sim_steps(struct sim *s, uint64_t steps)
{
    s->opts.steps = steps;
}

void sim_supervise(struct sim *s, uint64_t restart_ms)
{
    s->opts.restart_ms = restart_ms;
}
