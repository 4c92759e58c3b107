/* node_links.c - the link out to the leader, and the links in of the members. */
#include "member/node_priv.h"

#include <stdio.h>
#include <string.h>

#include "base/check.h"

void node_close_in(struct member_node *n, uint32_t rank)
{
    struct peer *p = &n->peers[rank];

    if (rank == n->opts.self || !p->is_joined)
        return;
    node_add_action(n, MEMBER_CLOSE_IN)->rank = rank;
    p->is_joined = p->is_ready = p->is_complete = p->is_leaving = p->is_attaching = false;
}

void node_note_unproven(struct member_node *n, uint32_t rank, const char *text)
{
    struct peer_absence *a = &n->peers[rank].absence;
    bool is_new = strncmp(a->last_error, text, sizeof(a->last_error) - 1) != 0,
         is_due =
             !a->is_unproven || n->clock.ticked_ms - n->clock.refusal_logged_ms >= MEMBER_LOG_MS;

    a->is_unproven = true;
    snprintf(a->last_error, sizeof(a->last_error), "%s", text);
    if (is_new && is_due) {
        n->clock.refusal_logged_ms = n->clock.ticked_ms;
        node_log(n, true,
                 node_print(n, "%s is absent: the process at its address is not accepted: %s",
                            node_name(n, rank), text));
    }
}

void node_refuse(struct member_node *n, uint32_t rank, int code, const char *text)
{
    if (rank == n->opts.self || !n->peers[rank].is_joined)
        return;
    node_send_member(n, rank, &(struct member_msg){ .kind = MEMBER_MSG_REFUSE, .code = code, .text = text });
    node_close_in(n, rank);
}

void node_redirect_links(struct member_node *n, uint32_t leader)
{
    for (uint32_t i = 0; i < n->opts.world; i++) {
        if (i == n->opts.self || !n->peers[i].is_joined || n->peers[i].is_attaching)
            continue;
        if (i == leader || leader == MEMBER_NO_RANK)
            node_refuse(n, i, MEMBER_CONTINUE, "not a leader");
        else {
            node_send_member(n, i, &(struct member_msg){ .kind = MEMBER_MSG_REDIRECT, .rank = leader, .text = "" });
            node_close_in(n, i);
        }
    }
}

/* These tasks received a view that this task coordinates, but this task did not receive it: the
 * process for which the view was made has died, or its link has closed. */
void node_refuse_attaching(struct member_node *n, uint64_t for_ms, uint64_t now_ms)
{
    for (uint32_t i = 0; i < n->opts.world; i++)
        if (n->peers[i].is_attaching && now_ms - n->peers[i].joined_ms >= for_ms)
            node_refuse(n, i, MEMBER_CONTINUE, "this task does not have this view");
}

void node_send_ready(struct member_node *n)
{
    if (n->out.rank == MEMBER_NO_RANK || n->own.training != NODE_STOPPED)
        return;
    node_send_leader(
        n, &(struct member_msg){ .kind = MEMBER_MSG_READY,
                                 .generation = n->view.generation,
                                 .held = n->own.held,
                                 .storage_failures = n->peers[n->opts.self].storage_failures,
                                 .text = "" });
}

void node_send_leave(struct member_node *n, int code, const char *text)
{
    node_send_leader(
        n, &(struct member_msg){
               .kind = MEMBER_MSG_LEAVE, .code = code, .is_all = n->leave.ends_job, .text = text });
}

void node_open_out(struct member_node *n, uint32_t rank, bool is_attaching, uint64_t now_ms)
{
    CHECK(n->out.rank == MEMBER_NO_RANK && rank != n->opts.self && rank < n->opts.world);
    node_give_up_lease(n);
    n->out.rank = rank;
    n->peers[rank].absence.asked_event = n->clock.events;
    n->out.is_accepted = is_attaching;
    n->out.called_ms = n->out.heard_ms = n->out.moved_ms = now_ms;
    n->out.has_moved = false;
    node_add_action(n, MEMBER_OPEN_OUT)->rank = rank;
    node_send_leader(n, &(struct member_msg){ .kind = MEMBER_MSG_JOIN,
                                              .incarnation = n->opts.incarnation,
                                              .generation = is_attaching ? n->view.generation
                                                                         : n->highest_generation,
                                              .is_attaching = is_attaching,
                                              .ident = n->opts.ident,
                                              .n_devices = n->opts.n_devices,
                                              .n_servers = n->opts.n_servers,
                                              .ranks = n->seek.dead_paths.at,
                                              .n_ranks = is_attaching ? 0 : n->seek.dead_paths.n,
                                              .text = "" });
    if (!is_attaching)
        node_send_ready(n);
    if (n->leave.is_requested)
        node_send_leave(n, 143, node_print(n, "%s was asked to leave", node_name(n, n->opts.self)));
}
