/* node_gather.c - leading without a view: releases tasks that leave, probes the missing tasks for
 * the location of the group, and publishes the next view as soon as the rules allow it. */
#include "member/node_priv.h"

#include <stdio.h>

/* ---- joining another leader ---- */

static void join_leader(struct member_node *n, uint32_t leader, uint64_t now_ms)
{
    node_redirect_links(n, leader);
    n->state = MEMBER_SEEKING;
    n->seek.candidate = 0;
    node_open_out(n, leader, false, now_ms);
}

/* Returns false if the status names a generation that no task can have reached; it is then ignored. */
static bool is_credible_status(struct member_node *n, uint32_t rank, const struct member_status *w,
                               uint64_t now_ms)
{
    const char *why;

    if (node_is_credible(n, w->generation))
        return true;
    why = node_credible_text(n, w->generation);
    if (!n->peers[rank].is_joined)
        snprintf(n->peers[rank].absence.last_error, sizeof(n->peers[rank].absence.last_error),
                 "its status was ignored: %s", why);
    if (now_ms - n->clock.refusal_logged_ms >= MEMBER_LOG_MS) {
        n->clock.refusal_logged_ms = now_ms;
        node_log(n, true,
                 node_print(n, "the status of %s was ignored: %s", node_name(n, rank), why));
    }
    return false;
}

void node_consider_status(struct member_node *n, uint32_t rank, const struct member_status *w,
                          uint64_t now_ms)
{
    uint32_t to = MEMBER_NO_RANK;

    if (w->generation > n->highest_generation)
        n->highest_generation = w->generation;
    if (n->state != MEMBER_LEADING || n->lead.phase != NODE_GATHERING || n->save.is_open ||
        (n->leave.is_requested && n->save.is_done) || n->peers[rank].is_joined ||
        now_ms < n->seek.refused_until)
        return;
    if (w->has_view)
        to = w->leader;
    else if (rank < n->opts.self && w->leader == rank)
        to = rank;
    else if (rank < n->opts.self && w->leader == MEMBER_NO_RANK && n->view.generation == 0)
        to = rank; /* no task trains yet: the lower rank leads, even if it opens model and data for
                      long */
    else if (rank < n->opts.self && w->leader < n->opts.self)
        to = w->leader;
    if (to < node_n_trainers(n) && to != n->opts.self)
        join_leader(n, to, now_ms);
}

/* A task that leads probed this parameter server, which cannot lead: joins it, if no other leader
 * has accepted this task, or if that leader has published no view for a while because it is cut off
 * from the other tasks. */
static void follow_prober(struct member_node *n, uint32_t rank, const struct member_status *w,
                          uint64_t now_ms)
{
    bool has_waited = n->state == MEMBER_FOLLOWING && n->own.training <= NODE_STOPPED &&
                      !n->is_alive && now_ms - n->out.called_ms > MEMBER_PS_PATIENCE_MS;

    if (w->leader != rank || node_is_ps(n, rank) || rank == n->out.rank ||
        now_ms < n->seek.refused_until)
        return;
    if (n->state == MEMBER_SEEKING && n->out.rank == MEMBER_NO_RANK) {
        node_open_out(n, rank, false, now_ms);
    } else if (has_waited) {
        node_add_action(n, MEMBER_CLOSE_OUT);
        n->out.rank = MEMBER_NO_RANK;
        n->out.is_accepted = false;
        n->state = MEMBER_SEEKING;
        n->seek.candidate = 0;
        node_open_out(n, rank, false, now_ms);
    }
}

void member_node_status(const struct member_node *n, struct member_status *out)
{
    *out = (struct member_status){ .incarnation = n->opts.incarnation,
                                   .generation = n->highest_generation,
                                   .leader =
                                       n->own.training == NODE_OPENING && n->state == MEMBER_LEADING
                                           ? MEMBER_NO_RANK
                                           : member_node_leader(n),
                                   .has_view = n->is_alive };
}

void member_node_probed(struct member_node *n, uint32_t rank, const struct member_status *theirs,
                        struct member_status *ours, uint64_t now_ms)
{
    member_node_status(n, ours);
    if (!node_begin_event(n) || rank == n->opts.self ||
        !is_credible_status(n, rank, theirs, now_ms))
        return;
    n->peers[rank].absence.is_dead = n->peers[rank].absence.is_silent = false;
    if (!n->peers[rank].is_joined) {
        n->peers[rank].incarnation = theirs->incarnation;
        node_note_process(n, rank, theirs->incarnation);
    }
    if (node_is_ps(n, n->opts.self))
        follow_prober(n, rank, theirs, now_ms);
    else
        node_consider_status(n, rank, theirs, now_ms);
}

void node_probe_answered(struct member_node *n, const struct member_event *e, uint64_t now_ms)
{
    const struct member_status *w = e->status;
    uint32_t rank = e->rank;
    struct peer *p = &n->peers[rank];

    p->absence.is_probed = false;
    if (rank == n->opts.self || p->is_joined || !is_credible_status(n, rank, w, now_ms))
        return;
    p->absence.is_dead = p->absence.is_silent = p->absence.is_unproven = false;
    p->incarnation = w->incarnation;
    node_note_incarnation(n, rank, w->incarnation);
    node_note_process(n, rank, w->incarnation);
    if (n->seek.refusals == 0) /* else the reason of the refusal stays */
        snprintf(p->absence.last_error, sizeof(p->absence.last_error), "%s",
                 w->has_view || w->leader == n->opts.self ? "" : "it runs and has not joined yet");
    node_consider_status(n, rank, w, now_ms);
    if (n->state == MEMBER_LEADING)
        node_gather(n, now_ms);
}

void node_probe_failed(struct member_node *n, const struct member_event *e, uint64_t now_ms)
{
    uint32_t rank = e->rank;
    struct peer *p = &n->peers[rank];

    p->absence.is_probed = false;
    if (rank == n->opts.self || p->is_joined)
        return;
    p->absence.is_dead = e->closed == MEMBER_REFUSED;
    p->absence.is_unproven = p->absence.is_unproven && !p->absence.is_dead;
    p->absence.is_mismatched = p->absence.is_mismatched && !p->absence.is_dead;
    if (p->absence.is_dead)
        node_note_incarnation(n, rank, 0);
    if (e->closed == MEMBER_OTHER_CLUSTER && !p->absence.is_unproven && rank < n->opts.self &&
        n->view.generation == 0 && n->state == MEMBER_LEADING && n->lead.phase == NODE_GATHERING &&
        !n->save.is_open) {
        /* once, as if that task had started first: if it knows this task, both identities are
           compared, else that process is a stranger */
        join_leader(n, rank, now_ms);
        return;
    }
    if (e->closed == MEMBER_UNPROVEN || e->closed == MEMBER_OTHER_CLUSTER)
        node_note_unproven(n, rank, e->text);
    else if (!p->has_left) /* "it was asked to leave" is the better reason */
        snprintf(p->absence.last_error, sizeof(p->absence.last_error), "%s", e->text);
    if (n->state == MEMBER_LEADING)
        node_gather(n, now_ms);
}

/* ---- leaving ---- */

static uint64_t newest_held(const struct member_node *n)
{
    uint64_t newest = 0;

    for (uint32_t i = 0; i < n->opts.world; i++)
        if (node_is_present(n, i) && n->peers[i].held > newest)
            newest = n->peers[i].held;
    return newest;
}

/* Returns the joined training task with the lowest rank, which leads next; NO_RANK: none. */
static uint32_t lowest_other(const struct member_node *n)
{
    for (uint32_t i = 0; i < node_n_trainers(n); i++)
        if (i != n->opts.self && n->peers[i].is_joined)
            return i;
    return MEMBER_NO_RANK;
}

/* The state is saved, if there was any: hands leadership over and ends. */
static void leave_group(struct member_node *n, uint64_t now_ms)
{
    bool failed = n->save.error[0] != '\0';
    const char *text =
        failed ? node_print(n, "stopped, but the state could not be saved: %s", n->save.error)
        : n->own.held > 0
            ? node_print(n, "stopped at step %llu, state saved", (unsigned long long)n->own.held)
            : "stopped before the first step";

    if (n->leave.ends_job) {
        node_end_all(n, failed ? 138 : 143, text);
        return;
    }
    if (lowest_other(n) != MEMBER_NO_RANK && now_ms - n->save.ended_ms < MEMBER_GATHER_LEAVE_MS)
        return; /* other tasks may have been asked to leave, too: one checkpoint serves all */
    if (lowest_other(n) != MEMBER_NO_RANK)
        node_hand_over_links(n, lowest_other(n), false);
    else
        node_redirect_links(n, MEMBER_NO_RANK); /* the parameter servers wait for a leader */
    node_end(n, failed ? 138 : 143, text);
}

static void release_leavers(struct member_node *n)
{
    bool failed = n->save.error[0] != '\0';
    const char *text =
        failed ? node_print(n, "released, but the state could not be saved: %s", n->save.error)
               : "stopped, state saved";

    for (uint32_t i = 0; i < n->opts.world; i++)
        if (i != n->opts.self && n->peers[i].is_joined && n->peers[i].is_leaving) {
            snprintf(n->peers[i].absence.last_error, sizeof(n->peers[i].absence.last_error),
                     "it was asked to leave");
            node_refuse(n, i, failed ? 138 : 143, text);
            n->peers[i].is_in_view = false;
            n->peers[i].has_left = true;
        }
}

/* Starts to save the held state, after the delay that follows a failure. */
static void save_held(struct member_node *n, uint64_t now_ms)
{
    if (now_ms < n->save.again_ms)
        return;
    if (n->save.began_ms == 0)
        n->save.began_ms = now_ms;
    node_request_lease(n, now_ms);
    n->save.is_open = true;
    node_add_action(n, MEMBER_SAVE);
}

/* Saves the state and releases the tasks that leave. Returns true if the gathering must wait for
 * that. */
static bool handle_leavers(struct member_node *n, uint64_t now_ms)
{
    /* this task has an older step: a view transfers the state to it first */
    if (!node_has_leaving_task(n) || n->own.held + 1 < newest_held(n))
        return false;
    if (n->own.held == 0 && !n->save.is_done) {
        n->save.is_done = true;
        n->save.ended_ms = now_ms;
        n->save.error[0] = '\0';
    }
    if (!n->save.is_done && node_storage_hand_over(n, now_ms))
        return true;
    if (!n->save.is_done) {
        save_held(n, now_ms);
        return true;
    }
    release_leavers(n);
    if (n->leave.is_requested)
        leave_group(n, now_ms);
    return n->leave.is_requested;
}

void node_saved(struct member_node *n, const struct member_event *e, uint64_t now_ms)
{
    bool ok = e->ok;

    if (!n->save.is_open)
        return;
    n->save.is_open = false;
    n->save.failures = ok ? 0 : n->save.failures + 1;
    if (!ok && n->state == MEMBER_LEADING && node_storage_hand_over(n, now_ms))
        return;
    /* the storage may recover, or the lease may be taken */
    if (!ok && now_ms - n->save.began_ms < n->opts.grace_ms) {
        n->save.again_ms = now_ms + node_retry_ms(n->save.failures);
        snprintf(n->save.error, sizeof(n->save.error), "%s", e->text);
        return;
    }
    n->save.is_done = true;
    n->save.ended_ms = now_ms;
    snprintf(n->save.error, sizeof(n->save.error), "%s%s%s", ok ? "" : node_name(n, n->opts.self),
             ok ? "" : ": ", ok ? "" : e->text);
    if (!ok)
        node_log(n, true, node_print(n, "the state could not be saved: %s", e->text));
    if (n->state == MEMBER_LEADING)
        node_gather(n, now_ms);
}

/* ---- the deadline ---- */

/* Another task holds a newer state than this leader: it leads, and saves. */
static void leave_save_to(struct member_node *n, uint32_t successor, const char *text)
{
    node_log(
        n, true,
        node_print(n, "%s; %s holds the newest step and leads now", text, node_name(n, successor)));
    node_hand_over_links(n, successor, false);
    node_end(n, 138, text);
}

/* The training task that is present and holds the newest step, if this task is more than one step behind. */
static uint32_t newest_holder(const struct member_node *n)
{
    uint64_t newest = newest_held(n);

    if (!n->opts.saves || n->own.held + 1 >= newest)
        return MEMBER_NO_RANK;
    for (uint32_t i = 0; i < node_n_trainers(n); i++)
        if (i != n->opts.self && node_is_present(n, i) && n->peers[i].held == newest)
            return i;
    return MEMBER_NO_RANK;
}

/* Saves the held state before the job ends, if there is a state. Returns true while that is going on. */
static bool saves_at_deadline(struct member_node *n, const char *text, uint64_t now_ms)
{
    if (!n->opts.saves || n->own.held == 0 || n->save.is_done ||
        n->deadline.over_ms > 2 * n->opts.grace_ms + MEMBER_STOPPING_MS)
        return false;
    if (n->state != MEMBER_LEADING) /* a training task finds a leader soon, or leads */
        return true;
    if (n->own.training != NODE_STOPPED) {
        node_end_view(n, MEMBER_NO_RANK, text, now_ms);
        return true; /* watch_abort() limits this wait */
    }
    if (n->save.is_open)
        return true;
    if (n->save.began_ms == 0)
        node_log(n, true,
                 node_print(n, "%s; saving step %llu before all tasks end", text,
                            (unsigned long long)n->own.held));
    save_held(n, now_ms);
    return true;
}

bool node_deadline_expired(struct member_node *n, uint64_t now_ms)
{
    const char *text;
    uint32_t holder;

    if (n->deadline.no_step_ms <= n->opts.deadline_ms)
        return false;
    text = node_print(n, "no step for %.1f s (train.deadline_seconds): %s",
                      (double)n->deadline.no_step_ms / 1e3, node_missing_text(n));
    if (n->state == MEMBER_LEADING && now_ms < n->lead.settle_until)
        return true; /* tasks that shall end, too, join this new leader */
    holder = n->state == MEMBER_LEADING ? newest_holder(n) : MEMBER_NO_RANK;
    if (holder != MEMBER_NO_RANK) {
        leave_save_to(n, holder, text);
        return true;
    }
    if (saves_at_deadline(n, text, now_ms))
        return true;
    if (n->opts.saves && n->own.held > 0 && !(n->save.is_done && n->save.error[0] == '\0'))
        text =
            node_print(n, "%s; step %llu was not saved: %s", text, (unsigned long long)n->own.held,
                       n->save.error[0] != '\0' ? n->save.error
                       : n->save.is_open        ? "the storage does not answer"
                                                : "training did not stop in time");
    if (n->state == MEMBER_LEADING)
        node_end_all(n, 138, text);
    else
        node_end(n, 138, text);
    return true;
}

/* ---- the next view ---- */

static void publish(struct member_node *n, uint64_t now_ms)
{
    struct group_view v = *node_present_view(n);
    struct member_msg m = { .kind = MEMBER_MSG_VIEW, .view = &v, .text = n->cause };

    v.generation = n->highest_generation + 1;
    for (uint32_t i = 0; i < v.n_members; i++)
        if (v.members[i].rank != n->opts.self)
            node_send_member(n, v.members[i].rank, &m);
    node_adopt_view(n, &v, n->cause, now_ms);
}

/* Returns true while a task is expected: a task of the last view (without a view: of the cluster)
 * that is lost, within rejoin_until; or one that is not known to be dead and may be on its way to
 * this new leader, within settle_until. A task that left is not expected. */
static bool is_task_expected(const struct member_node *n, uint64_t now_ms)
{
    if (now_ms >= n->lead.settle_until && now_ms >= n->lead.rejoin_until)
        return false;
    for (uint32_t i = 0; i < n->opts.world; i++) {
        const struct peer *p = &n->peers[i];

        if (i == n->opts.self || node_is_present(n, i) || p->has_left || p->quarantine.until != 0 ||
            (n->view.generation > 0 && group_view_find(&n->view, i) == NULL))
            continue;
        if (now_ms < n->lead.rejoin_until ||
            (!p->is_joined && !p->absence.is_dead && !p->absence.is_silent))
            return true;
    }
    return false;
}

/* No task that is present can write the results. A task that is absent may be able to. */
static void end_refused(struct member_node *n, uint32_t n_trainers)
{
    if (n_trainers < node_n_trainers(n))
        n->lead.blocked = "no task that is present can write the results of the job";
    else
        node_end_all(n, 2,
                     node_print(n, "no task can write the results of the job: %s: %s",
                                node_name(n, n->opts.self), n->storage.error));
}

void node_gather(struct member_node *n, uint64_t now_ms)
{
    bool all_at_rest = true;
    uint32_t n_trainers, n_ps;
    /* A task that leaves needs no model and no data. */
    bool can_act = n->own.training == NODE_STOPPED ||
                   (n->own.training == NODE_OPENING && n->leave.is_requested);

    if (n->state != MEMBER_LEADING || n->lead.phase != NODE_GATHERING || n->save.is_open ||
        !can_act)
        return;
    for (uint32_t i = 0; i < n->opts.world; i++)
        all_at_rest = all_at_rest && !node_is_stopping(n, i);
    if (!all_at_rest &&
        (!node_has_leaving_task(n) || now_ms - n->lead.began_ms < MEMBER_LEAVE_REST_MS))
        return;
    if (handle_leavers(n, now_ms) || n->state != MEMBER_LEADING || !all_at_rest)
        return;
    n_trainers = node_n_present_trainers(n);
    n_ps = node_n_present(n) - n_trainers;
    n->lead.blocked = NULL;
    if (n_trainers + n_ps < n->opts.world && is_task_expected(n, now_ms))
        return;
    if (!node_is_large_enough(n, n_trainers, n_ps)) {
        node_leave_lease(n);
        return;
    }
    if (node_storage_is_refused(n))
        end_refused(n, n_trainers);
    else if (!node_may_publish(n, now_ms))
        (void)node_storage_hand_over(n, now_ms);
    /* else the previous view used the time: views that do not connect must not follow one another
       without end */
    else if (!node_deadline_expired(n, now_ms))
        publish(n, now_ms);
}

/* ---- waiting ---- */

static void probe_missing(struct member_node *n, uint64_t now_ms)
{
    uint64_t pause = (now_ms - n->lead.began_ms) / 10;
    uint32_t n_probed = 0;

    for (uint32_t i = 0; i < n->opts.world && n_probed < MEMBER_PROBES; i++) {
        uint32_t rank = (n->lead.probe_at + i) % n->opts.world;
        struct peer *p = &n->peers[rank];

        if (rank == n->opts.self || p->is_joined || p->absence.is_probed)
            continue;
        p->absence.is_probed = true;
        p->absence.asked_event = n->clock.events;
        node_add_action(n, MEMBER_PROBE)->rank = rank;
        n_probed++;
        if (n_probed == MEMBER_PROBES)
            n->lead.probe_at = rank + 1;
    }
    if (pause < MEMBER_PROBE_MS)
        pause = MEMBER_PROBE_MS;
    n->lead.probe_ms = now_ms + (pause < MEMBER_PROBE_MS_MAX ? pause : MEMBER_PROBE_MS_MAX);
}

static void log_missing(struct member_node *n, uint64_t now_ms)
{
    const char *text =
        n->save.began_ms != 0 && !n->save.is_done
            ? node_print(
                  n, "%s saves the state before it releases the tasks that were asked to leave%s%s",
                  node_name(n, n->opts.self), n->save.error[0] != '\0' ? "; not yet: " : "",
                  n->save.error)
            : node_print(n, "waiting: %s", node_missing_text(n));
    struct member_msg m = { .kind = MEMBER_MSG_WAIT, .text = text };

    n->clock.logged_ms = now_ms;
    node_log(n, false, text);
    for (uint32_t i = 0; i < n->opts.world; i++)
        if (i != n->opts.self && n->peers[i].is_joined)
            node_send_member(n, i, &m);
}

/* Refuses the tasks whose training does not stop: they end, and their supervisor starts them
 * again. */
static void refuse_running(struct member_node *n, uint64_t now_ms)
{
    const char *text;

    if (now_ms - n->lead.began_ms < MEMBER_STOPPING_MS)
        return;
    for (uint32_t i = 0; i < n->opts.world; i++) {
        if (i == n->opts.self || !node_is_stopping(n, i) ||
            now_ms - n->peers[i].joined_ms < MEMBER_STOPPING_MS)
            continue;
        text = node_print(n, "training of %s does not stop", node_name(n, i));
        node_log(n, true, text);
        node_refuse(n, i, 138, text);
    }
}

void node_gather_tick(struct member_node *n, uint64_t now_ms)
{
    refuse_running(n, now_ms);
    if (n->state != MEMBER_LEADING)
        return;
    if (now_ms >= n->lead.probe_ms)
        probe_missing(n, now_ms);
    if (now_ms - n->clock.logged_ms >= MEMBER_LOG_MS &&
        now_ms - n->lead.began_ms >= MEMBER_LOG_MS / 2)
        log_missing(n, now_ms);
    node_gather(n, now_ms);
}
