/* node_admit.c - which process may join as a task: comparison of identities, a second process of a
 * task that is connected, and the delay of a task that was refused.
 *
 * A mismatch of identities ends only the processes that differ from the group. If this task was in
 * a view, that view is the group. Before the first view, the group is the side that has at least
 * half of the tasks of the cluster; the side of this leader is checked first. As long as neither
 * side is known to have that many tasks, no process ends: the joining task tries again until its
 * deadline. */
#include "member/node_priv.h"

#include <stdio.h>

enum {
    CODE_INPUT = 2,
    REFUSALS_AT_ONCE = 2, /* the link of a process that has just died may close a moment later */
};

enum verdict { UNDECIDED, THEY_DIFFER, WE_DIFFER };

/* Decides whether the joining task or this task differs from the group. */
static enum verdict decide(const struct member_node *n)
{
    uint32_t differing = 0, agreeing = 0, unknown;

    if (n->view.generation > 0)
        return THEY_DIFFER;
    for (uint32_t i = 0; i < n->opts.world; i++) {
        differing += n->peers[i].absence.is_mismatched;
        agreeing +=
            i == n->opts.self || (n->peers[i].is_joined && !n->peers[i].absence.is_mismatched);
    }
    unknown = n->opts.world - differing - agreeing;
    if (agreeing >= differing + unknown)
        return THEY_DIFFER;
    return differing > agreeing + unknown ? WE_DIFFER : UNDECIDED;
}

/* Returns whether the task joins in the role that the cluster gives it; else writes the reason. */
static bool has_role(const struct member_node *n, uint32_t rank, const struct member_msg *m,
                     char *out, size_t n_out)
{
    bool serves = m->n_servers > 0;

    if (serves == node_is_ps(n, rank))
        return true;
    snprintf(out, n_out, "it joins as a %s, but is a %s for this task; give every task the same job "
                         "file and the same cluster specification",
             serves ? "parameter server" : "training task",
             serves ? "training task" : "parameter server");
    return false;
}

bool node_check_identity(struct member_node *n, uint32_t rank, const struct member_msg *m,
                         uint64_t now_ms)
{
    struct peer *p = &n->peers[rank];
    char why[NODE_TEXT];
    enum verdict verdict;
    const char *text;

    p->absence.is_mismatched = !has_role(n, rank, m, why, sizeof(why)) ||
                               !member_ident_agrees(m->ident, m->n_devices, n->opts.ident,
                                                    n->opts.n_devices, why, sizeof(why));
    if (!p->absence.is_mismatched)
        return true;
    if (n->state == MEMBER_FOLLOWING && n->view.generation == 0) {
        node_redirect_links(n, n->out.rank); /* the leader decides */
        return false;
    }
    verdict = n->state == MEMBER_LEADING || n->view.generation > 0 ? decide(n) : UNDECIDED;
    text = node_print(n, "%s was refused: %s", node_name(n, rank), why);
    if (verdict == WE_DIFFER) {
        node_refuse(n, rank, MEMBER_CONTINUE, text);
        text = node_print(n, "most tasks of the cluster differ from this task, %s; %s",
                          node_name(n, n->opts.self), text);
        node_end_all(n, CODE_INPUT, text);
        return false;
    }
    if (verdict == THEY_DIFFER || now_ms - n->clock.refusal_logged_ms >= MEMBER_LOG_MS) {
        n->clock.refusal_logged_ms = now_ms;
        node_log(n, true, text);
    }
    node_refuse(n, rank, verdict == THEY_DIFFER ? CODE_INPUT : MEMBER_CONTINUE, text);
    snprintf(p->absence.last_error, sizeof(p->absence.last_error), "refused: %.200s", why);
    return false;
}

bool member_node_admits(struct member_node *n, uint32_t rank, const struct member_msg *join,
                        struct member_msg *refusal, uint64_t now_ms)
{
    const struct peer *p = &n->peers[rank];
    uint64_t silent_ms = now_ms > p->heard_ms ? now_ms - p->heard_ms : 0;
    char why[NODE_TEXT];
    bool agrees;

    if (!node_begin_event(n) || !p->is_joined)
        return true;
    agrees = has_role(n, rank, join, why, sizeof(why)) &&
             member_ident_agrees(join->ident, join->n_devices, n->opts.ident, n->opts.n_devices,
                                 why, sizeof(why));
    if (agrees && p->incarnation == join->incarnation) /* the task calls again */
        return true;
    *refusal = (struct member_msg){ .kind = MEMBER_MSG_REFUSE, .code = MEMBER_CONTINUE };
    if (!agrees) {
        refusal->code = CODE_INPUT;
        refusal->text = node_print(n,
                                   p->incarnation == join->incarnation
                                       ? "a Join as %s was refused: %s"
                                       : "a second process of %s was refused: %s",
                                   node_name(n, rank), why);
    } else if (silent_ms <= n->opts.silent_ms) {
        refusal->text = node_print(
            n, "another process runs as %s and sent a message %.1f s ago; end one of the two",
            node_name(n, rank), (double)silent_ms / 1e3);
    } else {
        return true;
    }
    if (now_ms - n->clock.refusal_logged_ms >= MEMBER_LOG_MS) {
        n->clock.refusal_logged_ms = now_ms;
        node_log(n, true, refusal->text);
    }
    return false;
}

void node_refused(struct member_node *n, uint32_t by, const char *why, uint64_t now_ms)
{
    snprintf(n->peers[by].absence.last_error, sizeof(n->peers[by].absence.last_error), "%s", why);
    if (++n->seek.refusals <= REFUSALS_AT_ONCE)
        return;
    n->seek.refused_until = now_ms + node_retry_ms(n->seek.refusals - REFUSALS_AT_ONCE);
    if (now_ms - n->clock.refusal_logged_ms >= MEMBER_LOG_MS) {
        n->clock.refusal_logged_ms = now_ms;
        node_log(n, true, node_print(n, "join refused by %s: %s", node_name(n, by), why));
    }
}
