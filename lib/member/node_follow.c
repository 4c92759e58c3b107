/* node_follow.c - seeks a leader, follows it, and handles its loss. */
#include "member/node_priv.h"

#include <stdio.h>
#include <string.h>

#include "base/check.h"

enum { CODE_INPUT = 2 };

/* ---- calling ---- */

static void close_out(struct member_node *n)
{
    if (n->out.rank != MEMBER_NO_RANK)
        node_add_action(n, MEMBER_CLOSE_OUT);
    n->out.rank = MEMBER_NO_RANK;
    n->out.is_accepted = false;
}

/* A parameter server calls the training tasks of the last view, then all training tasks. */
static uint32_t candidate_of_ps(const struct member_node *n, uint32_t i)
{
    uint32_t n_view = n->view.generation > 0 ? group_view_n_trainers(&n->view) : 0;

    if (i < n_view)
        return n->view.members[i].rank;
    return i - n_view < node_n_trainers(n) ? i - n_view : MEMBER_NO_RANK;
}

/* Returns the i-th task to call: the lower ranks of the last view; without a view, all lower ranks.
 * NO_RANK: there is no i-th task. */
static uint32_t candidate(const struct member_node *n, uint32_t i)
{
    if (node_is_ps(n, n->opts.self))
        return candidate_of_ps(n, i);
    if (n->view.generation > 0)
        return i < n->view.n_members && n->view.members[i].rank < n->opts.self
                   ? n->view.members[i].rank
                   : MEMBER_NO_RANK;
    return i < n->opts.self ? i : MEMBER_NO_RANK;
}

/* No training task accepts this parameter server, which cannot lead: it calls all of them again
 * later, or ends if it was asked to leave. */
static void call_again(struct member_node *n, uint64_t now_ms)
{
    uint32_t rounds = n->seek.tries / node_n_trainers(n);
    uint64_t pause_ms = (uint64_t)MEMBER_PROBE_MS << (rounds < 8 ? rounds : 8);

    if (n->leave.is_requested && n->own.training <= NODE_STOPPED) {
        node_end(n, 143, "stopped; no training task leads");
        return;
    }
    for (uint32_t i = 0; i < n->opts.world; i++)
        n->peers[i].absence.is_silent = false;
    n->seek.candidate = 0;
    n->seek.retry_ms = now_ms + (pause_ms < MEMBER_PROBE_MS_MAX ? pause_ms : MEMBER_PROBE_MS_MAX);
}

/* Skips the tasks that led this task and fell silent: they do not get the time of another call. */
static void call_next(struct member_node *n, uint64_t now_ms)
{
    uint32_t rank = candidate(n, n->seek.candidate);

    if (n->seek.successor != MEMBER_NO_RANK) {
        node_open_out(n, n->seek.successor, false, now_ms);
        return;
    }
    while (rank != MEMBER_NO_RANK && n->peers[rank].absence.is_silent)
        rank = candidate(n, ++n->seek.candidate);
    if (rank != MEMBER_NO_RANK)
        node_open_out(n, rank, false, now_ms);
    else if (node_is_ps(n, n->opts.self))
        call_again(n, now_ms);
    else
        node_lead(n, now_ms);
}

void node_seek(struct member_node *n, uint64_t now_ms)
{
    CHECK(n->out.rank == MEMBER_NO_RANK);
    n->state = MEMBER_SEEKING;
    n->seek.candidate = 0;
    n->seek.retry_ms = 0;
    call_next(n, now_ms);
}

/* The called task does not accept this task: calls the next candidate, or leads. */
static void next_candidate(struct member_node *n, uint64_t now_ms)
{
    n->seek.successor = MEMBER_NO_RANK;
    n->seek.candidate++;
    n->seek.tries++;
    n->seek.retry_ms = 0;
    call_next(n, now_ms);
}

static void seek_again(struct member_node *n, uint64_t now_ms)
{
    close_out(n);
    node_abort_training(n, "the leader rejected this task");
    n->state = MEMBER_SEEKING;
    n->seek.candidate = 0;
    n->seek.retry_ms = now_ms + MEMBER_RETRY_MS;
}

/* Returns the limit for a call without progress. It grows with each complete round of calls, and with each slow
 * call: a slow machine may answer late to every caller, and each further call costs it a handshake. */
static uint64_t call_ms(const struct member_node *n)
{
    uint32_t rounds = n->seek.tries / (n->opts.self + 1);
    uint32_t doublings = rounds > n->seek.slow ? rounds : n->seek.slow;
    uint64_t ms = (uint64_t)MEMBER_CALL_MS << (doublings < 8 ? doublings : 8);

    return ms < MEMBER_CALL_MS_MAX ? ms : MEMBER_CALL_MS_MAX;
}

void node_out_progress(struct member_node *n, const struct member_event *e, uint64_t now_ms)
{
    (void)e;
    n->out.moved_ms = now_ms; /* without a link the next call sets both fields */
    n->out.has_moved = true;
}

void node_seek_tick(struct member_node *n, uint64_t now_ms)
{
    /* a training task that finds no leader leads soon, and then logs the missing tasks */
    if (node_is_ps(n, n->opts.self) && now_ms - n->clock.logged_ms >= MEMBER_LOG_MS) {
        n->clock.logged_ms = now_ms;
        node_log(n, false, node_print(n, "waiting: %s", node_missing_text(n)));
    }
    if (n->out.rank != MEMBER_NO_RANK && now_ms - n->out.moved_ms > call_ms(n)) {
        snprintf(n->peers[n->out.rank].absence.last_error,
                 sizeof(n->peers[n->out.rank].absence.last_error), "no answer for %.1f s",
                 (double)(now_ms - n->out.called_ms) / 1e3);
        n->seek.slow += n->out.has_moved;
        close_out(n);
        next_candidate(n, now_ms);
    } else if (n->out.rank == MEMBER_NO_RANK && now_ms >= n->seek.retry_ms) {
        call_next(n, now_ms);
    }
}

/* ---- the leader ---- */

static void lose_leader(struct member_node *n, const char *why, uint64_t now_ms)
{
    uint32_t leader = n->out.rank;
    const char *text;

    n->out.rank = MEMBER_NO_RANK;
    n->out.is_accepted = false;
    text = node_print(n, "%s leads the group and was lost: %s",
                      node_progress_text(n, leader, now_ms), why);
    if (n->is_alive) {
        node_set_cause(n, text);
        node_log(n, true, text);
        node_abort_training(n, text);
    }
    node_seek(n, now_ms);
}

void node_follow_tick(struct member_node *n, uint64_t now_ms)
{
    if (n->out.rank != MEMBER_NO_RANK && now_ms - n->out.heard_ms > n->opts.silent_ms) {
        const char *why =
            node_print(n, "silent for %.1f s", (double)(now_ms - n->out.heard_ms) / 1e3);

        node_send_leader(n, &(struct member_msg){ .kind = MEMBER_MSG_TROUBLE,
                                                  .generation = n->view.generation,
                                                  .rank = n->out.rank,
                                                  .is_leader_silent = true,
                                                  .text = why });
        node_add_action(n, MEMBER_CLOSE_OUT);
        n->peers[n->out.rank].absence.is_silent = true;
        lose_leader(n, why, now_ms);
    }
}

void node_out_closed(struct member_node *n, const struct member_event *e, uint64_t now_ms)
{
    if (n->out.rank == MEMBER_NO_RANK)
        return;
    n->peers[n->out.rank].absence.is_dead = e->closed == MEMBER_REFUSED;
    if (e->closed == MEMBER_REFUSED)
        node_note_incarnation(n, n->out.rank, 0);
    if (e->closed == MEMBER_UNPROVEN || e->closed == MEMBER_OTHER_CLUSTER)
        node_note_unproven(n, n->out.rank, e->text);
    else
        snprintf(n->peers[n->out.rank].absence.last_error,
                 sizeof(n->peers[n->out.rank].absence.last_error), "%s", e->text);
    if (n->state == MEMBER_FOLLOWING) {
        lose_leader(n, e->text, now_ms);
        return;
    }
    n->out.rank = MEMBER_NO_RANK;
    next_candidate(n, now_ms);
}

/* ---- messages of the leader ---- */

static void on_wait(struct member_node *n, const struct member_msg *m, uint64_t now_ms)
{
    (void)now_ms;
    n->seek.hops = n->seek.tries = n->seek.slow = n->seek.refusals = 0;
    n->seek.successor = MEMBER_NO_RANK;
    n->out.is_accepted = true;
    if (n->state == MEMBER_SEEKING) {
        n->state = MEMBER_FOLLOWING;
        /* redirects the tasks that joined while this task had no leader */
        node_redirect_links(n, n->out.rank);
    }
    if (m->text[0] != '\0')
        node_log(n, false, m->text);
}

static bool is_valid_view(const struct member_node *n, const struct group_view *v)
{
    const struct group_member *self = group_view_find(v, n->opts.self);
    uint32_t n_trainers = group_view_n_trainers(v);

    return n->own.training == NODE_STOPPED && v->n_members > 0 && self != NULL &&
           self->incarnation == n->opts.incarnation && v->generation > n->view.generation &&
           node_is_credible(n, v->generation) &&
           node_is_large_enough(n, n_trainers, v->n_members - n_trainers);
}

static void on_view(struct member_node *n, const struct member_msg *m, uint64_t now_ms)
{
    if (!is_valid_view(n, m->view)) { /* the leader has an older state of this task */
        seek_again(n, now_ms);
        return;
    }
    if (n->state == MEMBER_SEEKING)
        node_redirect_links(n, n->out.rank);
    n->state = MEMBER_FOLLOWING;
    n->seek.hops = n->seek.tries = n->seek.slow = 0;
    n->seek.successor = MEMBER_NO_RANK;
    n->out.is_accepted = true;
    node_adopt_view(n, m->view, m->text, now_ms);
}

static void on_pause(struct member_node *n, const struct member_msg *m, uint64_t now_ms)
{
    (void)now_ms;
    if (n->is_alive && m->generation == n->view.generation)
        node_pause_training(n);
}

static void on_over(struct member_node *n, const struct member_msg *m, uint64_t now_ms)
{
    (void)now_ms;
    if (m->code != MEMBER_CONTINUE) {
        node_set_cause(n, m->text);
        node_end(n, m->code, m->text);
        return;
    }
    if (!n->is_alive || m->generation != n->view.generation)
        return;
    if (m->rank == n->opts.self && m->n_ranks > 0) {
        n->seek.dead_paths.n = m->n_ranks < MEMBER_REACH_MAX ? m->n_ranks : MEMBER_REACH_MAX;
        memcpy(n->seek.dead_paths.at, m->ranks,
               n->seek.dead_paths.n * sizeof(n->seek.dead_paths.at[0]));
    }
    node_set_cause(n, m->text);
    node_log(n, true, m->text);
    /* this task is complete; the other tasks repeat the last steps */
    if (n->own.training == NODE_STOPPED) {
        node_abort_training(n, m->text);
        node_send_ready(n);
    } else {
        node_abort_training(n, m->text);
    }
}

static void on_redirect(struct member_node *n, const struct member_msg *m, uint64_t now_ms)
{
    if (m->rank == n->opts.self && n->state == MEMBER_FOLLOWING &&
        !node_is_ps(n, n->opts.self)) { /* this task leads now */
        n->peers[n->out.rank].has_left = !m->is_staying;
        close_out(n);
        if (n->is_alive)
            node_abort_training(n, m->is_staying ? "the leader handed leadership over"
                                                 : "the leader has left");
        if (m->expired_ms > 0) {
            n->deadline.no_step_ms = n->opts.deadline_ms + 1;
            n->deadline.over_ms = m->expired_ms - 1;
        }
        node_lead(n, now_ms);
        return;
    }
    if (m->rank >= node_n_trainers(n) || m->rank == n->opts.self || n->seek.hops++ >= NODE_HOPS) {
        n->seek.hops = 0;
        seek_again(n, now_ms);
        return;
    }
    close_out(n);
    n->state = MEMBER_SEEKING;
    n->seek.candidate = 0;
    if (n->is_alive) /* the sender is no longer the coordinator and did not publish a next view: the
                        view has ended */
        node_abort_training(n, "the leader joined another leader");
    node_open_out(n, m->rank, false, now_ms);
}

static void on_refuse(struct member_node *n, const struct member_msg *m, uint64_t now_ms)
{
    /* A task that was in a view agreed with its group: the task that refuses it for its identity is
       the exception. */
    bool is_by_exception = m->code == CODE_INPUT && n->view.generation > 0;

    if (m->code != MEMBER_CONTINUE && !is_by_exception) {
        node_end(n, m->code, m->text);
        return;
    }
    node_refused(n, n->out.rank, m->text, now_ms);
    if (n->state == MEMBER_SEEKING) {
        close_out(n);
        next_candidate(n, now_ms);
        return;
    }
    if (n->is_alive)
        node_set_cause(n, m->text);
    seek_again(n, now_ms);
}

static void on_heartbeat(struct member_node *n, const struct member_msg *m, uint64_t now_ms)
{
    if (m->generation == n->view.generation)
        node_set_progress(n, n->out.rank, &m->progress, now_ms);
}

static void on_reach(struct member_node *n, const struct member_msg *m, uint64_t now_ms)
{
    (void)now_ms;
    if (n->state == MEMBER_FOLLOWING)
        node_test_paths(n, m->round, m->ranks, m->n_ranks);
}

typedef void message_fn(struct member_node *n, const struct member_msg *m, uint64_t now_ms);
static message_fn *const message_handlers[MEMBER_MSGS] = {
    [MEMBER_MSG_WAIT] = on_wait,         [MEMBER_MSG_VIEW] = on_view,
    [MEMBER_MSG_PAUSE] = on_pause,       [MEMBER_MSG_OVER] = on_over,
    [MEMBER_MSG_REDIRECT] = on_redirect, [MEMBER_MSG_REFUSE] = on_refuse,
    [MEMBER_MSG_BEAT] = on_heartbeat,         [MEMBER_MSG_REACH] = on_reach,
};

void node_received_out(struct member_node *n, const struct member_event *e, uint64_t now_ms)
{
    const struct member_msg *m = e->msg;

    if (n->out.rank == MEMBER_NO_RANK || m->kind >= MEMBER_MSGS ||
        message_handlers[m->kind] == NULL)
        return;
    n->out.heard_ms = now_ms;
    n->peers[n->out.rank].absence.is_dead = n->peers[n->out.rank].absence.is_silent = false;
    n->peers[n->out.rank].absence.last_error[0] = '\0';
    message_handlers[m->kind](n, m, now_ms);
}
