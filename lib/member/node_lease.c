/* node_lease.c - starts lease operations. */
#include "member/node_priv.h"

/* One operation at a time; the delay grows with each failure. */
static bool may_use_lease(const struct member_node *n)
{
    return !n->is_lease_pending && n->ticked_ms >= n->lease_again_ms;
}

void node_read_lease(struct member_node *n)
{
    struct member_action *d;

    if (!may_use_lease(n))
        return;
    n->is_lease_pending = true;
    d = node_add_action(n, MEMBER_LEASE);
    d->token = UINT64_MAX;
    d->wish = ++n->wish;
}

/* Reads the lease again while the node can only wait for the storage. */
void node_poll_lease(struct member_node *n, uint64_t now_ms)
{
    if (now_ms - n->polled_ms < MEMBER_LEASE_POLL_MS)
        return;
    n->polled_ms = now_ms;
    node_read_lease(n);
}

void node_take_lease(struct member_node *n, const struct group_view *v)
{
    struct member_action *d;

    if (!may_use_lease(n))
        return;
    n->is_lease_pending = true;
    d = node_add_action(n, MEMBER_LEASE);
    d->token = n->lease.token;
    d->wish = ++n->wish;
    d->view = v;
    n->is_taking_early = n->lease.token != 0 && !n->lease.is_mine && !n->lease.is_over &&
                         (n->lease.holder != n->self || !n->lease.is_same_place) &&
                         !n->is_holder_gone &&
                         (n->phase == NODE_GATHERING || n->lease.holder >= n->world ||
                          group_view_find(&n->view, n->lease.holder) == NULL);
}
