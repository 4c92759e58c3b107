/* node_pause.c - pause and completion of a view. */
#include "member/node_priv.h"

void node_gather_if_paused(struct member_node *n, uint64_t now_ms)
{
    if (n->lead.phase != NODE_PAUSE)
        return;
    for (uint32_t i = 0; i < n->view.n_members; i++) {
        const struct peer *p = &n->peers[n->view.members[i].rank];

        if (!p->is_joined || !p->is_ready)
            return;
    }
    n->is_alive = n->own.is_connected = false;
    node_start_gathering(n, now_ms);
    node_gather(n, now_ms);
}

void node_start_pause(struct member_node *n, const char *text, uint64_t now_ms)
{
    struct member_msg m = { .kind = MEMBER_MSG_PAUSE, .generation = n->view.generation, .text = "" };

    if (n->lead.phase != NODE_LIVE)
        return;
    node_log(n, false, text);
    node_set_cause(n, text);
    n->lead.phase = NODE_PAUSE;
    n->lead.began_ms = now_ms;
    for (uint32_t i = 0; i < n->opts.world; i++) {
        struct peer *p = &n->peers[i];

        if (i == n->opts.self || !p->is_joined || !p->is_in_view)
            continue;
        node_send_member(n, i, &m);
        p->is_ready = p->is_complete; /* a complete task reaches no further boundary */
    }
    node_pause_training(n);
    if (n->own.training == NODE_STOPPED) {
        n->peers[n->opts.self].is_ready = true;
        n->peers[n->opts.self].held = n->own.held;
    }
    node_gather_if_paused(n, now_ms);
}

void node_end_if_complete(struct member_node *n)
{
    if (n->lead.phase == NODE_GATHERING || !n->peers[n->opts.self].is_complete)
        return;
    for (uint32_t i = 0; i < n->view.n_members; i++) {
        const struct peer *p = &n->peers[n->view.members[i].rank];

        if (n->view.members[i].n_servers == 0 && (!p->is_joined || !p->is_complete))
            return; /* a parameter server has no steps of its own */
    }
    node_end_all(n, 0, "the job is complete");
}

void node_training_complete(struct member_node *n)
{
    n->peers[n->opts.self].is_complete = true;
    n->peers[n->opts.self].held = n->own.held;
    node_end_if_complete(n);
}

static void own_training_stopped(struct member_node *n, uint64_t now_ms)
{
    struct peer *self = &n->peers[n->opts.self];

    self->is_ready = true;
    self->held = n->own.held;
    if (n->lead.phase == NODE_GATHERING && n->lead.settle_until < now_ms + MEMBER_SETTLE_MS &&
        n->view.generation == 0)
        /* no task could join before: probe for the group first */
        n->lead.settle_until = now_ms + MEMBER_SETTLE_MS;
    n->lead.probe_ms = now_ms; /* announces at once, to tasks that seek a leader, that this task can
                             lead */
    node_gather_if_paused(n, now_ms);
    node_gather(n, now_ms);
}

void node_training_stopped(struct member_node *n, uint64_t now_ms)
{
    if (n->state == MEMBER_LEADING)
        own_training_stopped(n, now_ms);
    else
        node_send_ready(n);
}
