/* node_quorum.c - whether a view may be published: majority and lease. */
#include "member/node_priv.h"

/* ---- the record ---- */

/* Without a record the group is the whole cluster. */
static uint32_t n_recorded(const struct member_node *n)
{
    return n->lease.token == 0 || n->lease.n_members == 0 ? n->world : n->lease.n_members;
}

static uint32_t recorded_rank(const struct member_node *n, uint32_t i)
{
    return n->lease.token == 0 || n->lease.n_members == 0 ? i : n->lease.members[i];
}

static bool has_majority(const struct member_node *n)
{
    uint32_t here = 0, all = n_recorded(n);

    for (uint32_t i = 0; i < all; i++)
        here += node_is_present(n, recorded_rank(n, i));
    return 2 * here > all;
}

/* Returns true if all absent tasks of the recorded group are known to be dead. */
static bool others_are_dead(const struct member_node *n)
{
    for (uint32_t i = 0; i < n_recorded(n); i++) {
        uint32_t rank = recorded_rank(n, i);

        if (!node_is_present(n, rank) && !n->peers[rank].is_dead)
            return false;
    }
    return true;
}

/* The process that took the present token was alive then. Evidence of its death must therefore be
 * newer than the token: the result of a call or probe that began after this task had seen the
 * token. An older refusal or incarnation proves nothing. */
void node_note_incarnation(struct member_node *n, uint32_t rank, uint64_t incarnation)
{
    if (rank == n->lease.holder && incarnation != n->lease.incarnation &&
        n->peers[rank].asked_event > n->lease_since)
        n->is_holder_gone = true;
}

/* Returns true if the holder of the lease does not train: no process listens at its address,
 * another process runs there, it has joined this task, or it was an earlier process of this task on
 * this host. An earlier process of this task on another host may be alive: two processes can run as
 * one task by mistake, and only the expiry of the lease shows that the other has stopped. */
static bool holder_is_gone(const struct member_node *n)
{
    uint32_t h = n->lease.holder;

    if (h >= n->world)
        return false; /* unknown holder: wait for the expiry */
    if (h == n->self)
        return n->lease.incarnation == n->incarnation || n->lease.is_same_place;
    if (n->is_holder_gone)
        return true;
    return node_is_present(n, h) && (n->peers[h].incarnation == n->lease.incarnation ||
                                     n->peers[h].heard_ms - n->peers[h].joined_ms >= MEMBER_HEARTBEAT_MS);
}

/* ---- the rule ---- */

/* A joined task may have died after it sent its messages, so the presence of a majority is not
 * proof that the holder stops. If the lease was taken without waiting for the holder, the holder
 * does not train only if the holder itself or a majority of its group is in the new view, or after
 * the holder must have stopped by itself. */
static bool prior_may_train(const struct member_node *n, uint64_t now_ms)
{
    uint32_t here = 0;

    if (n->n_prior == 0 || now_ms >= n->prior_until ||
        (n->prior_holder < n->world && node_is_present(n, n->prior_holder)))
        return false;
    for (uint32_t i = 0; i < n->n_prior; i++)
        here += node_is_present(n, n->prior[i]);
    return 2 * here <= n->n_prior;
}

static bool may_take(struct member_node *n, uint64_t now_ms)
{
    if (has_majority(n))
        return true;
    if (n->lease.token == 0 || n->lease.is_mine) {
        n->blocked = "less than a majority of the last group is present, and the others may train elsewhere";
        return others_are_dead(n) || now_ms - n->gather_ms > MEMBER_MINORITY_MS;
    }
    n->blocked = "less than a majority of the last group is present, and its leader may be alive elsewhere: "
                 "it holds the lease";
    return n->lease.is_over || holder_is_gone(n);
}

bool node_may_publish(struct member_node *n, uint64_t now_ms)
{
    if (node_n_present(n) == n->world)
        return true;
    if (!n->has_lease) {
        if (has_majority(n))
            return true;
        n->blocked = "less than a majority of the cluster is present, and without checkpoint.directory "
                     "it is unknown whether the others train elsewhere";
        return false;
    }
    if (!n->lease.is_known) {
        n->blocked = "the lease on the shared storage cannot be read";
        node_poll_lease(n, now_ms);
        return false;
    }
    if (n->lease.is_mine && prior_may_train(n, now_ms)) {
        n->blocked = "the previous holder of the lease may not have stopped yet";
        return false;
    }
    if (n->lease.is_mine && has_majority(n))
        return true;
    if (may_take(n, now_ms)) {
        n->blocked = "the lease is being taken";
        node_take_lease(n, node_present_view(n));
    } else {
        node_poll_lease(n, now_ms);
    }
    return false;
}

void node_request_lease(struct member_node *n, uint64_t now_ms)
{
    if (!n->has_lease || n->lease.is_mine)
        return;
    if (!n->lease.is_known || !may_take(n, now_ms))
        node_poll_lease(n, now_ms);
    else
        node_take_lease(n, node_present_view(n));
}

static bool is_recorded(const struct member_node *n)
{
    if (!n->lease.is_mine || n->lease.n_members != n->view.n_members)
        return false;
    for (uint32_t i = 0; i < n->view.n_members; i++)
        if (n->lease.members[i] != n->view.members[i].rank)
            return false;
    return true;
}

/* The coordinator holds the lease, with its group as the record. The rules allowed the view, so the
 * coordinator takes the lease without waiting for the previous holder, unless a task outside the
 * view holds it now. */
void node_keep_lease(struct member_node *n, uint64_t now_ms)
{
    if (!n->has_lease || n->is_lease_pending || n->phase == NODE_GATHERING || is_recorded(n))
        return;
    if (!n->lease.is_known) {
        node_poll_lease(n, now_ms);
        return;
    }
    if (!n->lease.is_mine && !node_is_full_view(&n->view, n->world) && n->lease.holder < n->world &&
        group_view_find(&n->view, n->lease.holder) == NULL && !n->lease.is_over &&
        !holder_is_gone(n)) {
        node_end_view(n, MEMBER_NO_RANK,
                  node_print(n, "%s holds the lease now: another group may be training",
                             node_name(n, n->lease.holder)), now_ms);
        return;
    }
    node_take_lease(n, &n->view);
}
