/* node_view_end.c - the end of a view, and of the job. */
#include "member/node_priv.h"

void node_start_gathering(struct member_node *n, uint64_t now_ms)
{
    n->lead.phase = NODE_GATHERING;
    n->lead.began_ms = n->lead.probe_ms = now_ms;
    n->lead.settle_until = n->lead.rejoin_until = now_ms;
    n->lead.rows_ms = 0;
    n->save.is_open = n->save.is_done = false;
    n->save.began_ms = n->save.again_ms = 0;
    n->save.failures = 0;
    n->save.error[0] = '\0';
    n->lead.blocked = NULL;
    n->straggler.rank = MEMBER_NO_RANK;
    node_reset_trouble(n);
}

/* The members abort and report the step that they hold. The culprit receives OVER, too, if its link
 * is open; tasks that wait for a view receive WAIT with the cause. */
void node_end_view(struct member_node *n, uint32_t culprit, const char *text, uint64_t now_ms)
{
    struct member_msg m = { .kind = MEMBER_MSG_OVER,
                            .generation = n->view.generation,
                            .rank = culprit,
                            .code = MEMBER_CONTINUE,
                            .text = text };
    struct member_msg wait = { .kind = MEMBER_MSG_WAIT, .text = text };

    if (n->lead.phase == NODE_GATHERING)
        return;
    node_set_cause(n, text);
    node_log(n, true, text);
    for (uint32_t i = 0; i < n->opts.world; i++) {
        if (i == n->opts.self || !n->peers[i].is_joined)
            continue;
        m.ranks = n->peers[i].quarantine.dead.at;
        m.n_ranks = i == culprit ? n->peers[i].quarantine.dead.n : 0;
        node_send_member(n, i, n->peers[i].is_in_view ? &m : &wait);
    }
    node_start_gathering(n, now_ms);
    n->lead.rejoin_until = now_ms + n->opts.rejoin_ms;
    node_abort_training(n, text);
    n->peers[n->opts.self].is_complete = false;
    if (n->own.training == NODE_STOPPED) {
        n->peers[n->opts.self].is_ready = true;
        n->peers[n->opts.self].held = n->own.held;
    }
    if (n->opts.has_lease)
        node_read_lease(n);
}

void node_end_all(struct member_node *n, int code, const char *text)
{
    struct member_msg m = { .kind = MEMBER_MSG_OVER, .rank = MEMBER_NO_RANK, .code = code, .text = text };

    for (uint32_t i = 0; i < n->opts.world; i++)
        if (i != n->opts.self && n->peers[i].is_joined) {
            node_send_member(n, i, &m);
            node_close_in(n, i);
        }
    node_set_cause(n, code == 0 ? "" : text);
    node_end(n, code, text);
}
