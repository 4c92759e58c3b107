/* node_lead.c - leading: joins, losses, pause and end of a view, step watchdog. */
#include "member/node_priv.h"

#include <stdio.h>

#include "base/check.h"

/* ---- becoming a leader ---- */

void node_lead(struct member_node *n, uint64_t now_ms)
{
    struct peer *self = &n->peers[n->opts.self];

    CHECK(n->out.rank == MEMBER_NO_RANK && !node_is_ps(n, n->opts.self));
    n->state = MEMBER_LEADING;
    n->storage.has_failed = false;
    node_refuse_attaching(n, 0, now_ms);
    node_start_gathering(n, now_ms);
    n->lead.rejoin_until = now_ms + n->opts.rejoin_ms;
    if (n->view.generation > 0)
        n->lead.settle_until = now_ms + MEMBER_SETTLE_MS;
    for (uint32_t i = 0; i < n->opts.world; i++) {
        n->peers[i].is_in_view = false; /* present tasks join by themselves */
        node_reset_quarantine(n, i, now_ms);
    }
    self->is_joined = true;
    self->is_ready = n->own.training == NODE_STOPPED;
    self->incarnation = n->opts.incarnation;
    self->held = n->own.held;
    if (n->opts.has_lease)
        node_read_lease(n);
    node_gather(n, now_ms);
}

/* ---- losses ---- */

static void clear_view_state(struct member_node *n, uint32_t rank)
{
    struct peer *p = &n->peers[rank];

    p->is_in_view = p->is_ready = p->is_complete = p->is_leaving = false;
}

/* Returns the reason if this leader, and not the task that it lost, failed: the lost task received
 * nothing from it, it did not run, or it receives nothing from any task. NULL: this leader
 * works. */
static const char *own_fault(struct member_node *n, uint32_t lost, uint64_t now_ms)
{
    uint64_t gap_ms = now_ms > n->clock.ticked_ms ? now_ms - n->clock.ticked_ms : 0,
             quiet_ms = UINT64_MAX;
    uint32_t others = 0, quiet = 0;

    if (gap_ms < n->clock.gap_ms && now_ms - n->clock.ticked_ms < n->opts.silent_ms &&
        now_ms < n->clock.gap_until)
        gap_ms = n->clock.gap_ms;
    if (n->peers[lost].absence.has_lost_leader)
        return node_print(n, "%s sent nothing to %s", node_name(n, n->opts.self),
                          node_name(n, lost));
    if (gap_ms > n->opts.silent_ms)
        return node_print(n, "%s did not run for %.1f s", node_name(n, n->opts.self),
                          (double)gap_ms / 1e3);
    for (uint32_t i = 0; i < n->view.n_members; i++) {
        const struct peer *p = &n->peers[n->view.members[i].rank];
        uint64_t silent_ms = now_ms > p->heard_ms ? now_ms - p->heard_ms : 0;

        if (n->view.members[i].rank == n->opts.self)
            continue;
        others++;
        quiet += silent_ms > 3 * MEMBER_HEARTBEAT_MS;
        quiet_ms = silent_ms < quiet_ms ? silent_ms : quiet_ms;
    }
    if (others < 2 || quiet < others)
        return NULL;
    return node_print(n, "%s received nothing from any task for %.1f s", node_name(n, n->opts.self),
                      (double)quiet_ms / 1e3);
}

void node_lose_member(struct member_node *n, uint32_t rank, const char *why, uint64_t now_ms)
{
    const char *own = own_fault(n, rank, now_ms);
    const char *text =
        own != NULL ? node_print(n, "%s: it lost %s: %s", own, node_name(n, rank), why)
                    : node_print(n, "%s was lost: %s", node_progress_text(n, rank, now_ms), why);

    snprintf(n->peers[rank].absence.last_error, sizeof(n->peers[rank].absence.last_error), "%s",
             why);
    if (own == NULL)
        node_count_loss(n, rank, now_ms);
    node_end_view(n, own != NULL ? n->opts.self : rank, text, now_ms);
    n->peers[rank].has_left |= n->peers[rank].is_leaving; /* it was leaving already */
    node_close_in(n, rank);
    clear_view_state(n, rank);
    node_gather(n, now_ms);
}

/* ---- messages of members ---- */

typedef void message_fn(struct member_node *n, uint32_t rank, const struct member_msg *m,
                        uint64_t now_ms);

/* JOIN to the coordinator of a view that another leader published. */
static void on_attach(struct member_node *n, uint32_t rank, const struct member_msg *m)
{
    struct peer *p = &n->peers[rank];
    const struct group_member *member = group_view_find(&n->view, rank);

    p->attach_generation = m->generation;
    if (n->state != MEMBER_LEADING && m->generation > n->view.generation) {
        p->is_attaching = true; /* the VIEW of this task has not arrived yet */
        return;
    }
    if (n->state != MEMBER_LEADING || n->lead.phase == NODE_GATHERING || member == NULL ||
        m->generation != n->view.generation || m->incarnation != member->incarnation) {
        node_refuse(n, rank, MEMBER_CONTINUE, "this view has ended");
        return;
    }
    if (n->lead.phase == NODE_PAUSE)
        node_send_member(n, rank, &(struct member_msg){ .kind = MEMBER_MSG_PAUSE, .generation = m->generation, .text = "" });
}

static void on_join(struct member_node *n, uint32_t rank, const struct member_msg *m,
                    uint64_t now_ms)
{
    struct peer *p = &n->peers[rank];
    bool is_new = p->incarnation != m->incarnation;
    bool was_in_view =
        p->is_in_view && n->state == MEMBER_LEADING && n->lead.phase != NODE_GATHERING;

    p->is_joined = true;
    p->is_ready = p->is_complete = p->is_leaving = p->has_left = p->absence.is_dead =
        p->absence.is_silent = p->is_attaching = false;
    p->is_in_view = p->is_in_view && m->is_attaching;
    p->absence.has_lost_leader = false;
    p->incarnation = m->incarnation;
    node_note_process(n, rank, m->incarnation);
    p->n_servers = m->n_servers;
    p->joined_ms = now_ms;
    p->absence.last_error[0] = '\0';
    if (!node_check_identity(n, rank, m, now_ms))
        return;
    if (!node_is_credible(n, m->generation)) {
        const char *why = node_credible_text(n, m->generation);

        node_refuse(n, rank, MEMBER_CONTINUE, why);
        snprintf(p->absence.last_error, sizeof(p->absence.last_error), "refused: %s", why);
        return;
    }
    if (m->generation > n->highest_generation)
        n->highest_generation = m->generation;
    if (m->is_attaching) {
        on_attach(n, rank, m);
        return;
    }
    if (n->state == MEMBER_FOLLOWING) {
        node_redirect_links(n, n->out.rank);
        return;
    }
    /* its group must not wait for this task */
    if (n->own.training == NODE_OPENING && m->generation > 0) {
        node_refuse(n, rank, MEMBER_CONTINUE, "still opening model and data");
        return;
    }
    node_send_member(n, rank, &(struct member_msg){ .kind = MEMBER_MSG_WAIT, .text = "" });
    node_join_quarantine(n, rank, is_new, m->ranks, m->n_ranks, now_ms);
    if (n->state != MEMBER_LEADING)
        return;
    if (was_in_view) { /* the task came back before its loss was noticed */
        node_end_view(n, rank, node_print(n, "%s left the group and came back", node_name(n, rank)),
                      now_ms);
        node_gather(n, now_ms);
    }
}

static void on_ready(struct member_node *n, uint32_t rank, const struct member_msg *m,
                     uint64_t now_ms)
{
    struct peer *p = &n->peers[rank];
    bool is_new = !p->is_ready;

    if (p->is_in_view && m->generation != n->view.generation)
        return; /* sent before the present view */
    p->is_ready = true;
    p->is_complete = false;
    p->held = node_is_ps(n, rank) ? 0 : m->held;
    p->storage_failures = m->storage_failures;
    if (n->state != MEMBER_LEADING)
        return;
    if (n->lead.phase == NODE_LIVE && !p->is_in_view && is_new && p->quarantine.until == 0)
        node_start_pause(n, node_print(n, "%s joins", node_name(n, rank)), now_ms);
    node_gather_if_paused(n, now_ms);
    node_gather(n, now_ms);
}

static void on_heartbeat(struct member_node *n, uint32_t rank, const struct member_msg *m,
                         uint64_t now_ms)
{
    if (m->generation == n->view.generation)
        node_set_progress(n, rank, &m->progress, now_ms);
}

static void on_trouble(struct member_node *n, uint32_t rank, const struct member_msg *m,
                       uint64_t now_ms)
{
    struct member_loss loss = { .peer = m->rank < n->opts.world ? m->rank : MEMBER_NO_RANK };

    n->peers[rank].absence.has_lost_leader |= m->is_leader_silent;
    if (n->lead.phase == NODE_GATHERING || !n->peers[rank].is_in_view ||
        m->generation != n->view.generation || m->is_leader_silent)
        return;
    for (uint32_t i = 0; i < m->n_ranks && i < MEMBER_REACH_MAX; i++)
        if (m->ranks[i] < n->opts.world)
            loss.dead_paths[loss.n_dead_paths++] = m->ranks[i];
    node_trouble(n, rank, &loss, node_print(n, "%s reports: %s", node_name(n, rank), m->text),
                 now_ms);
}

static void on_reached(struct member_node *n, uint32_t rank, const struct member_msg *m,
                       uint64_t now_ms)
{
    node_reached(n, rank, m->round, m->ranks, m->n_ranks, now_ms);
}

static void on_complete(struct member_node *n, uint32_t rank, const struct member_msg *m,
                        uint64_t now_ms)
{
    struct peer *p = &n->peers[rank];

    if (!p->is_in_view || m->generation != n->view.generation || node_is_ps(n, rank))
        return;
    p->is_complete = true;
    p->held = m->held;
    /* its training has stopped; the next view repeats the last steps */
    if (n->lead.phase == NODE_GATHERING)
        on_ready(n, rank, m, now_ms);
    else if (n->lead.phase == NODE_PAUSE) { /* it reaches no further boundary */
        p->is_ready = true;
        node_gather_if_paused(n, now_ms);
    }
    node_end_if_complete(n);
}

static void on_leave(struct member_node *n, uint32_t rank, const struct member_msg *m,
                     uint64_t now_ms)
{
    struct peer *p = &n->peers[rank];
    const char *text = m->text;

    if (m->code == 2 && m->is_all) {
        text = node_print(n, "%s: %s", node_name(n, rank), m->text);
        node_log(n, true, text);
        node_end_all(n, 2, text);
        return;
    }
    if (m->code != 143) {
        if (n->lead.phase != NODE_GATHERING && p->is_in_view)
            node_lose_member(n, rank, m->text, now_ms);
        else
            node_close_in(n, rank);
        snprintf(p->absence.last_error, sizeof(p->absence.last_error), "%s", m->text);
        return;
    }
    p->is_leaving = true;
    if (m->is_all && !n->leave.ends_job) {
        n->leave.is_requested = n->leave.ends_job = true;
        n->leave.since_ms = now_ms;
    }
    if (n->lead.phase == NODE_LIVE)
        node_start_pause(n, m->text, now_ms);
    node_gather(n, now_ms);
}

static message_fn *const message_handlers[MEMBER_MSGS] = {
    [MEMBER_MSG_READY] = on_ready,       [MEMBER_MSG_BEAT] = on_heartbeat,
    [MEMBER_MSG_TROUBLE] = on_trouble,   [MEMBER_MSG_COMPLETE] = on_complete,
    [MEMBER_MSG_LEAVE] = on_leave,       [MEMBER_MSG_REACHED] = on_reached,
};

void node_received_in(struct member_node *n, const struct member_event *e, uint64_t now_ms)
{
    const struct member_msg *m = e->msg;
    uint32_t rank = e->rank;

    CHECK(rank < n->opts.world && rank != n->opts.self);
    n->peers[rank].heard_ms = now_ms;
    if (m->kind == MEMBER_MSG_JOIN) {
        on_join(n, rank, m, now_ms);
        return;
    }
    if (!n->peers[rank].is_joined || m->kind >= MEMBER_MSGS || message_handlers[m->kind] == NULL)
        return;
    /* While this task seeks a leader, only READY and LEAVE of a joined task are kept: the next
       leader receives them again. */
    if (n->state == MEMBER_LEADING || m->kind == MEMBER_MSG_READY)
        message_handlers[m->kind](n, rank, m, now_ms);
    else if (m->kind == MEMBER_MSG_LEAVE && m->code == 143)
        n->peers[rank].is_leaving = true;
}

void node_in_closed(struct member_node *n, const struct member_event *e, uint64_t now_ms)
{
    uint32_t rank = e->rank;
    struct peer *p = &n->peers[rank];
    bool counts;

    CHECK(rank < n->opts.world && rank != n->opts.self);
    if (!p->is_joined)
        return;
    counts = n->state == MEMBER_LEADING && n->lead.phase != NODE_GATHERING && p->is_in_view;
    p->is_joined = p->is_attaching = false;
    if (counts) {
        node_lose_member(n, rank, e->text, now_ms);
        return;
    }
    snprintf(p->absence.last_error, sizeof(p->absence.last_error), "%s", e->text);
    clear_view_state(n, rank);
    if (n->state == MEMBER_LEADING)
        node_gather(n, now_ms);
}

/* ---- watchdogs ---- */

static void watch_silence(struct member_node *n, uint64_t now_ms)
{
    for (uint32_t i = 0; i < n->opts.world; i++) {
        struct peer *p = &n->peers[i];
        bool counts = p->is_in_view && n->lead.phase != NODE_GATHERING;
        uint64_t silent = now_ms > p->heard_ms ? now_ms - p->heard_ms : 0;

        if (i == n->opts.self || (!p->is_joined && !counts))
            continue;
        if (counts && !p->is_joined && silent > MEMBER_ATTACH_MS) {
            node_lose_member(n, i, "it did not join this task, which leads the group now", now_ms);
        } else if (p->is_joined && silent > n->opts.silent_ms) {
            const char *why = node_print(n, "silent for %.1f s", (double)silent / 1e3);

            if (counts)
                node_lose_member(n, i, why, now_ms);
            else
                node_close_in(n, i);
            snprintf(p->absence.last_error, sizeof(p->absence.last_error), "%s", why);
        }
    }
}

static struct member_progress progress_of(const struct member_node *n, uint32_t rank,
                                          uint64_t now_ms)
{
    struct member_progress p = n->peers[rank].progress.last;

    if (rank == n->opts.self)
        return n->own.progress;
    p.phase_ms +=
        now_ms > n->peers[rank].progress.at_ms ? now_ms - n->peers[rank].progress.at_ms : 0;
    return p;
}

/* Returns the training task with the lowest position; NO_RANK if it is unknown. *others_ahead: false
 * if all training tasks have the same position. A task whose training has stopped delays no task. A
 * parameter server has no position: it answers the training tasks. */
static uint32_t find_straggler(const struct member_node *n, struct member_progress *last,
                               bool *others_ahead, uint64_t now_ms)
{
    uint32_t rank = MEMBER_NO_RANK;
    bool is_done = false;

    *others_ahead = group_view_n_trainers(&n->view) == 1;
    for (uint32_t i = 0; i < n->view.n_members; i++) {
        uint32_t r = n->view.members[i].rank;
        struct member_progress p = progress_of(n, r, now_ms);

        if (n->view.members[i].n_servers > 0)
            continue;
        is_done |= n->peers[r].is_complete;
        if (n->peers[r].is_ready || n->peers[r].is_complete ||
            (r == n->opts.self && n->own.training == NODE_STOPPED)) {
            *others_ahead = true;
            continue;
        }
        if (p.phase == NULL || p.phase[0] == '\0')
            return MEMBER_NO_RANK; /* a task does not train yet */
        if (rank != MEMBER_NO_RANK && p.place != last->place)
            *others_ahead = true;
        if (rank == MEMBER_NO_RANK || p.place < last->place) {
            rank = r;
            *last = p;
        }
    }
    /* all steps are done: the save and the export of this task have no limit */
    if (is_done && rank == n->opts.self)
        return MEMBER_NO_RANK;
    return rank;
}

static void evict_straggler(struct member_node *n, uint32_t rank, const char *text, uint64_t now_ms)
{
    node_end_view(n, rank, text, now_ms);
    if (!n->deadline.has_blamed) /* the other tasks could not use that time */
        n->deadline.no_step_ms = n->deadline.over_ms = 0;
    n->deadline.has_blamed = true;
    if (rank == n->opts.self) {
        node_redirect_links(n, MEMBER_NO_RANK);
        node_end(n, 138, text);
        return;
    }
    node_refuse(n, rank, 138, text);
    clear_view_state(n, rank);
    node_gather(n, now_ms);
}

/* The step watchdog: the task with the lowest position delays the others, and for longer than its
 * phase may take. The progress of a member is as old as its last heartbeat, so the condition must
 * hold for MEMBER_STRAGGLER_MS. If all tasks have the same position, no culprit is known, and they
 * try again. */
static void watch_steps(struct member_node *n, uint64_t now_ms)
{
    struct member_progress p = { 0 };
    bool others_ahead;
    uint32_t last = find_straggler(n, &p, &others_ahead, now_ms);
    /* 0: the operation of the phase has its own deadline, and reports a more precise error */
    uint64_t limit_ms =
        p.limit_ms != 0 ? p.limit_ms : n->opts.deadline_ms + n->opts.deadline_ms / 2;

    if (last != n->straggler.rank || p.place != n->straggler.place) {
        n->straggler.rank = last;
        n->straggler.place = p.place;
        n->straggler.since_ms = now_ms;
    }
    if (last == MEMBER_NO_RANK || p.phase_ms <= limit_ms ||
        now_ms - n->straggler.since_ms < MEMBER_STRAGGLER_MS)
        return;
    if (last != n->opts.self && now_ms - n->peers[last].heard_ms > 2 * MEMBER_HEARTBEAT_MS)
        return; /* the member is silent, not stuck: it may come back with its state */
    if (others_ahead) {
        evict_straggler(n, last,
                        node_print(n, "%s makes no progress%s; this phase has a limit of %.1f s",
                                   node_progress_text(n, last, now_ms),
                                   n->view.n_members > 1 ? ", and the others wait for it" : "",
                                   (double)limit_ms / 1e3),
                        now_ms);
        return;
    }
    node_end_view(
        n, MEMBER_NO_RANK,
        node_print(n,
                   "no task makes progress: %s like the others; this phase has a limit of %.1f s",
                   node_progress_text(n, last, now_ms), (double)limit_ms / 1e3),
        now_ms);
    node_gather(n, now_ms);
}

void node_lead_tick(struct member_node *n, uint64_t now_ms)
{
    watch_silence(n, now_ms);
    node_watch_quarantine(n, now_ms);
    if (n->lead.phase != NODE_GATHERING)
        node_watch_trouble(n, now_ms);
    if (n->lead.phase != NODE_GATHERING)
        watch_steps(n, now_ms);
    if (n->state != MEMBER_LEADING)
        return;
    if (n->lead.phase == NODE_LIVE && node_has_leaving_task(n))
        node_start_pause(n, "a task was asked to leave", now_ms);
    if (n->lead.phase == NODE_PAUSE && now_ms - n->lead.began_ms > n->opts.grace_ms &&
        node_has_leaving_task(n))
        node_end_view(
            n, MEMBER_NO_RANK,
            node_print(n,
                       "the step is not complete after %.1f s, and tasks were asked to leave: "
                       "the step is aborted (train.grace_seconds)",
                       (double)n->opts.grace_ms / 1e3),
            now_ms);
    if (n->lead.phase == NODE_GATHERING)
        node_gather_tick(n, now_ms);
    else
        node_keep_lease(n, now_ms);
}
