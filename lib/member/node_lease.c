/* node_lease.c - starts lease operations; whether this task holds the lease. */
#include "member/node_priv.h"

/* One operation at a time; the delay grows with each failure. */
static bool may_use_lease(const struct member_node *n)
{
    return !n->lease.is_pending && n->clock.ticked_ms >= n->lease.again_ms;
}

/* A leader to which this task reports READY may take the next number at once, because a task that is
 * present does not train elsewhere. This task may not see that number, if its storage fails or is
 * slow, and may believe for MEMBER_HOLD_MS that it still holds the lease. The number that it holds,
 * or that an open action takes, therefore never allows another view; a next one must be taken, which
 * only one task can do. The number stays renewed: the other tasks see that its holder is alive. */
void node_give_up_lease(struct member_node *n)
{
    n->lease.given_up = n->lease.is_pending ? UINT64_MAX : n->lease.record.token;
}

bool node_holds_lease(const struct member_node *n)
{
    return n->lease.record.is_mine && n->lease.record.token > n->lease.given_up;
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
