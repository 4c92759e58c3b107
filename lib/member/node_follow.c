/* node_follow.c - seeks a leader, follows it, and handles its loss. */
#include "member/node_priv.h"

#include <stdio.h>
#include <string.h>

#include "base/check.h"

enum { CODE_INPUT = 2 };

/* ---- calling ---- */

void node_tell_ready(struct member_node *n)
{
    if (n->out == MEMBER_NOBODY || n->rest != NODE_AT_REST)
        return;
    node_tell(n, &(struct member_msg){ .kind = MEMBER_MSG_READY,
                                       .generation = n->view.generation,
                                       .held = n->held,
                                       .storage_failures = n->peers[n->self].storage_failures,
                                       .text = "" });
}

void node_tell_leave(struct member_node *n, int code, const char *text)
{
    node_tell(n, &(struct member_msg){ .kind = MEMBER_MSG_LEAVE,
                                       .code = code,
                                       .is_all = n->stops_all,
                                       .text = text });
}

void node_call(struct member_node *n, uint32_t rank, bool is_attaching, uint64_t now_ms)
{
    CHECK(n->out == MEMBER_NOBODY && rank != n->self && rank < n->world);
    n->out = rank;
    n->peers[rank].asked = n->events;
    n->is_taken_in = is_attaching;
    n->out_ms = n->out_heard_ms = now_ms;
    node_do(n, MEMBER_CALL)->rank = rank;
    node_tell(n, &(struct member_msg){ .kind = MEMBER_MSG_JOIN,
                                       .incarnation = n->incarnation,
                                       .generation = is_attaching ? n->view.generation : n->known,
                                       .is_attaching = is_attaching,
                                       .ident = &n->ident,
                                       .n_devices = n->n_devices,
                                       .ranks = n->own_dead.at,
                                       .n_ranks = is_attaching ? 0 : n->own_dead.n,
                                       .text = "" });
    if (!is_attaching)
        node_tell_ready(n);
    if (n->is_stopping)
        node_tell_leave(n, 143, node_print(n, "%s was asked to leave", node_name(n, n->self)));
}

static void hang_up(struct member_node *n)
{
    if (n->out != MEMBER_NOBODY)
        node_do(n, MEMBER_HANG_UP);
    n->out = MEMBER_NOBODY;
    n->is_taken_in = false;
}

/* Returns the i-th task to call: the lower ranks of the last view; without a view, all lower ranks.
 * NOBODY: there is no i-th task. */
static uint32_t candidate(const struct member_node *n, uint32_t i)
{
    if (n->view.generation > 0)
        return i < n->view.n && n->view.seats[i].rank < n->self ? n->view.seats[i].rank
                                                                 : MEMBER_NOBODY;
    return i < n->self ? i : MEMBER_NOBODY;
}

/* Skips the tasks that led this task and fell silent: they do not get the time of another call. */
static void call_next(struct member_node *n, uint64_t now_ms)
{
    uint32_t rank = candidate(n, n->candidate);

    if (n->heir != MEMBER_NOBODY) {
        node_call(n, n->heir, false, now_ms);
        return;
    }
    while (rank != MEMBER_NOBODY && n->peers[rank].is_silent)
        rank = candidate(n, ++n->candidate);
    if (rank != MEMBER_NOBODY)
        node_call(n, rank, false, now_ms);
    else
        node_lead(n, now_ms);
}

void node_seek(struct member_node *n, uint64_t now_ms)
{
    CHECK(n->out == MEMBER_NOBODY);
    n->state = MEMBER_SEEKING;
    n->candidate = 0;
    n->retry_ms = 0;
    call_next(n, now_ms);
}

void node_hand_over(struct member_node *n, uint32_t heir, uint64_t now_ms)
{
    node_bequeath(n, heir, true);
    n->state = MEMBER_SEEKING;
    n->candidate = 0;
    n->heir = heir;
    /* the REDIRECT must reach the new leader before the JOIN */
    n->retry_ms = now_ms + MEMBER_RETRY_MS;
}

/* The called task does not accept this task: calls the next candidate, or leads. */
static void next_candidate(struct member_node *n, uint64_t now_ms)
{
    n->heir = MEMBER_NOBODY;
    n->candidate++;
    n->tries++;
    n->retry_ms = 0;
    call_next(n, now_ms);
}

static void come_again(struct member_node *n, uint64_t now_ms)
{
    hang_up(n);
    node_abort(n, "the leader turned this task away");
    n->state = MEMBER_SEEKING;
    n->candidate = 0;
    n->retry_ms = now_ms + MEMBER_RETRY_MS;
}

/* Returns the limit for the answer of a candidate. It grows with each complete round of calls,
 * because a slow machine may answer late to every caller. */
static uint64_t try_ms(const struct member_node *n)
{
    return (uint64_t)MEMBER_TRY_MS << (n->tries / (n->self + 1) < 3 ? n->tries / (n->self + 1) : 3);
}

void node_seek_tick(struct member_node *n, uint64_t now_ms)
{
    if (n->out != MEMBER_NOBODY && now_ms - n->out_ms > try_ms(n)) {
        snprintf(n->peers[n->out].last_error, sizeof(n->peers[n->out].last_error),
                 "no answer for %.1f s", (double)(now_ms - n->out_ms) / 1e3);
        hang_up(n);
        next_candidate(n, now_ms);
    } else if (n->out == MEMBER_NOBODY && now_ms >= n->retry_ms) {
        call_next(n, now_ms);
    }
}

/* ---- the leader ---- */

static void lose_leader(struct member_node *n, const char *why, uint64_t now_ms)
{
    uint32_t leader = n->out;
    const char *text;

    n->out = MEMBER_NOBODY;
    n->is_taken_in = false;
    text = node_print(n, "%s leads the group and was lost: %s", node_doing(n, leader, now_ms), why);
    if (n->is_alive) {
        node_set_cause(n, text);
        node_say(n, true, text);
        node_abort(n, text);
    }
    node_seek(n, now_ms);
}

void node_follow_tick(struct member_node *n, uint64_t now_ms)
{
    if (n->out != MEMBER_NOBODY && now_ms - n->out_heard_ms > n->silent_ms) {
        const char *why = node_print(n, "silent for %.1f s", (double)(now_ms - n->out_heard_ms) / 1e3);

        node_tell(n, &(struct member_msg){ .kind = MEMBER_MSG_TROUBLE,
                                           .generation = n->view.generation,
                                           .rank = n->out,
                                           .is_leader_silent = true,
                                           .text = why });
        node_do(n, MEMBER_HANG_UP);
        n->peers[n->out].is_silent = true;
        lose_leader(n, why, now_ms);
    }
}

void node_out_closed(struct member_node *n, const struct member_event *e, uint64_t now_ms)
{
    if (n->out == MEMBER_NOBODY)
        return;
    n->peers[n->out].is_dead = e->closed == MEMBER_REFUSED;
    if (e->closed == MEMBER_REFUSED)
        node_found(n, n->out, 0);
    snprintf(n->peers[n->out].last_error, sizeof(n->peers[n->out].last_error), "%s", e->text);
    if (n->state == MEMBER_FOLLOWING) {
        lose_leader(n, e->text, now_ms);
        return;
    }
    n->out = MEMBER_NOBODY;
    next_candidate(n, now_ms);
}

/* ---- what it says ---- */

static void hear_wait(struct member_node *n, const struct member_msg *m, uint64_t now_ms)
{
    (void)now_ms;
    n->hops = n->tries = n->rejections = 0;
    n->heir = MEMBER_NOBODY;
    n->is_taken_in = true;
    if (n->state == MEMBER_SEEKING) {
        n->state = MEMBER_FOLLOWING;
        /* redirects the tasks that joined while this task had no leader */
        node_turn_away(n, n->out);
    }
    if (m->text[0] != '\0')
        node_say(n, false, m->text);
}

static bool is_view_for_us(const struct member_node *n, const struct member_view *v)
{
    const struct member_seat *self = node_seat(v, n->self);

    return n->rest == NODE_AT_REST && v->n > 0 && self != NULL &&
           self->incarnation == n->incarnation && v->generation > n->view.generation &&
           v->n >= n->min_world;
}

static void hear_view(struct member_node *n, const struct member_msg *m, uint64_t now_ms)
{
    if (!is_view_for_us(n, m->view)) { /* the leader has an older state of this task */
        come_again(n, now_ms);
        return;
    }
    if (n->state == MEMBER_SEEKING)
        node_turn_away(n, n->out);
    n->state = MEMBER_FOLLOWING;
    n->hops = n->tries = 0;
    n->heir = MEMBER_NOBODY;
    n->is_taken_in = true;
    node_adopt(n, m->view, m->text, now_ms);
}

static void hear_pause(struct member_node *n, const struct member_msg *m, uint64_t now_ms)
{
    (void)now_ms;
    if (n->is_alive && m->generation == n->view.generation)
        node_pause(n);
}

static void hear_over(struct member_node *n, const struct member_msg *m, uint64_t now_ms)
{
    (void)now_ms;
    if (m->code != MEMBER_GO_ON) {
        node_set_cause(n, m->text);
        node_finish(n, m->code, m->text);
        return;
    }
    if (!n->is_alive || m->generation != n->view.generation)
        return;
    if (m->rank == n->self && m->n_ranks > 0) {
        n->own_dead.n = m->n_ranks < MEMBER_REACH_MAX ? m->n_ranks : MEMBER_REACH_MAX;
        memcpy(n->own_dead.at, m->ranks, n->own_dead.n * sizeof(n->own_dead.at[0]));
    }
    node_set_cause(n, m->text);
    node_say(n, true, m->text);
    /* this task is complete; the other tasks repeat the last steps */
    if (n->rest == NODE_AT_REST) {
        node_abort(n, m->text);
        node_tell_ready(n);
    } else {
        node_abort(n, m->text);
    }
}

static void hear_redirect(struct member_node *n, const struct member_msg *m, uint64_t now_ms)
{
    if (m->rank == n->self && n->state == MEMBER_FOLLOWING) { /* this task leads now */
        n->peers[n->out].has_left = !m->is_staying;
        hang_up(n);
        if (n->is_alive)
            node_abort(n, m->is_staying ? "the leader handed leadership over" : "the leader has left");
        node_lead(n, now_ms);
        return;
    }
    if (m->rank >= n->world || m->rank == n->self || n->hops++ >= NODE_HOPS) {
        n->hops = 0;
        come_again(n, now_ms);
        return;
    }
    hang_up(n);
    n->state = MEMBER_SEEKING;
    n->candidate = 0;
    if (n->is_alive) /* the sender is no longer the coordinator and did not publish a next view: the
                        view has ended */
        node_abort(n, "the leader went to another one");
    node_call(n, m->rank, false, now_ms);
}

static void hear_refuse(struct member_node *n, const struct member_msg *m, uint64_t now_ms)
{
    /* A task that was in a view agreed with its group: the task that refuses it for its identity is
       the exception. */
    bool is_by_stranger = m->code == CODE_INPUT && n->view.generation > 0;

    if (m->code != MEMBER_GO_ON && !is_by_stranger) {
        node_finish(n, m->code, m->text);
        return;
    }
    node_rejected(n, n->out, m->text, now_ms);
    if (n->state == MEMBER_SEEKING) {
        hang_up(n);
        next_candidate(n, now_ms);
        return;
    }
    if (n->is_alive)
        node_set_cause(n, m->text);
    come_again(n, now_ms);
}

static void hear_beat(struct member_node *n, const struct member_msg *m, uint64_t now_ms)
{
    if (m->generation == n->view.generation)
        node_keep_progress(n, n->out, &m->progress, now_ms);
}

static void hear_reach(struct member_node *n, const struct member_msg *m, uint64_t now_ms)
{
    (void)now_ms;
    if (n->state == MEMBER_FOLLOWING)
        node_test_paths(n, m->round, m->ranks, m->n_ranks);
}

typedef void hear_fn(struct member_node *n, const struct member_msg *m, uint64_t now_ms);
static hear_fn *const heard[MEMBER_MSGS] = {
    [MEMBER_MSG_WAIT] = hear_wait,         [MEMBER_MSG_VIEW] = hear_view,
    [MEMBER_MSG_PAUSE] = hear_pause,       [MEMBER_MSG_OVER] = hear_over,
    [MEMBER_MSG_REDIRECT] = hear_redirect, [MEMBER_MSG_REFUSE] = hear_refuse,
    [MEMBER_MSG_BEAT] = hear_beat,         [MEMBER_MSG_REACH] = hear_reach,
};

void node_heard_out(struct member_node *n, const struct member_event *e, uint64_t now_ms)
{
    const struct member_msg *m = e->msg;

    if (n->out == MEMBER_NOBODY || m->kind >= MEMBER_MSGS ||
        heard[m->kind] == NULL)
        return;
    n->out_heard_ms = now_ms;
    n->peers[n->out].is_dead = n->peers[n->out].is_silent = false;
    n->peers[n->out].last_error[0] = '\0';
    heard[m->kind](n, m, now_ms);
}
