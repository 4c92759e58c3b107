/* node_hand_over.c - hands leadership over to another task. */
#include "member/node_priv.h"

#include <stdio.h>

/* The deadline of the group counts on at the next leader. */
static uint32_t expired_ms(const struct member_node *n)
{
    return n->deadline.no_step_ms > n->opts.deadline_ms ? (uint32_t)n->deadline.over_ms + 1 : 0;
}

void node_hand_over_links(struct member_node *n, uint32_t successor, bool is_staying)
{
    for (uint32_t i = 0; i < n->opts.world; i++) {
        if (i == n->opts.self || !n->peers[i].is_joined)
            continue;
        node_send_member(n, i, &(struct member_msg){ .kind = MEMBER_MSG_REDIRECT,
                                              .rank = successor,
                                              .is_staying = is_staying,
                                              .expired_ms = expired_ms(n),
                                              .text = "" });
        node_close_in(n, i);
    }
}

void node_hand_over_leadership(struct member_node *n, uint32_t successor, uint64_t now_ms)
{
    node_hand_over_links(n, successor, true);
    n->state = MEMBER_SEEKING;
    n->seek.candidate = 0;
    n->seek.successor = successor;
    /* the REDIRECT must reach the new leader before the JOIN */
    n->seek.retry_ms = now_ms + MEMBER_RETRY_MS;
}

/* Returns the present training task with the fewest failures, at most as many as this task; NO_RANK:
 * none. */
static uint32_t successor_of(const struct member_node *n)
{
    uint32_t successor = MEMBER_NO_RANK;

    for (uint32_t i = 0; i < node_n_trainers(n); i++)
        if (i != n->opts.self && node_is_present(n, i) &&
            n->peers[i].storage_failures <= n->peers[n->opts.self].storage_failures &&
            (successor == MEMBER_NO_RANK ||
             n->peers[i].storage_failures < n->peers[successor].storage_failures))
            successor = i;
    return successor;
}

void node_storage_refuse(struct member_node *n, const char *text)
{
    snprintf(n->storage.error, sizeof(n->storage.error), "%s", text);
    n->storage.has_failed = true;
    n->peers[n->opts.self].storage_failures = MEMBER_STORAGE_REFUSED;
}

bool node_storage_is_refused(const struct member_node *n)
{
    for (uint32_t i = 0; i < node_n_trainers(n); i++)
        if (node_is_present(n, i) &&
            (n->peers[i].storage_failures < MEMBER_STORAGE_REFUSED || n->peers[i].held > 0))
            return false;
    return true;
}

bool node_storage_hand_over(struct member_node *n, uint64_t now_ms)
{
    uint32_t successor = n->storage.has_failed ? successor_of(n) : MEMBER_NO_RANK;

    if (successor == MEMBER_NO_RANK)
        return false;
    node_log(n, true,
             node_print(n, "%s cannot write to the storage (%s) and hands leadership over to %s",
                        node_name(n, n->opts.self), n->storage.error, node_name(n, successor)));
    n->storage.has_failed = false;
    node_hand_over_leadership(n, successor, now_ms);
    return true;
}
