/* node_lease.c - starts lease operations. */
#include "member/node_priv.h"

/* One operation at a time; the delay grows with each failure. */
static bool may_use_lease(const struct member_node *n)
{
    return !n->lease.is_pending && n->clock.ticked_ms >= n->lease.again_ms;
}

void node_read_lease(struct member_node *n)
{
    struct member_action *d;

    if (!may_use_lease(n))
        return;
    n->lease.is_pending = true;
    d = node_add_action(n, MEMBER_LEASE);
    d->token = UINT64_MAX;
    d->request = ++n->lease.request;
}

/* Reads the lease again while the node can only wait for the storage. */
void node_poll_lease(struct member_node *n, uint64_t now_ms)
{
    if (now_ms - n->lease.polled_ms < MEMBER_LEASE_POLL_MS)
        return;
    n->lease.polled_ms = now_ms;
    node_read_lease(n);
}

void node_take_lease(struct member_node *n, const struct group_view *v)
{
    struct member_action *d;

    if (!may_use_lease(n))
        return;
    n->lease.is_pending = true;
    d = node_add_action(n, MEMBER_LEASE);
    d->token = n->lease.record.token;
    d->request = ++n->lease.request;
    d->view = v;
    n->lease.prior.is_taking =
        n->lease.record.token != 0 && !n->lease.record.is_mine && !n->lease.record.is_over &&
        (n->lease.record.holder != n->opts.self || !n->lease.record.is_same_place) &&
        !n->lease.is_holder_gone &&
        (n->lead.phase == NODE_GATHERING || n->lease.record.holder >= n->opts.world ||
         group_view_find(&n->view, n->lease.record.holder) == NULL);
}
