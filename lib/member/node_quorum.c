/* node_quorum.c - whether a view may be published: majority and lease. */
#include "member/node_priv.h"

/* ---- the record ---- */

/* Ranks of training tasks alone: parameter servers do not decide which group trains. Without a
 * record the group is the whole cluster. */
static uint32_t n_recorded(const struct member_node *n)
{
    return n->lease.record.token == 0 || n->lease.record.n_members == 0 ? node_n_trainers(n)
                                                                        : n->lease.record.n_members;
}

static uint32_t recorded_rank(const struct member_node *n, uint32_t i)
{
    return n->lease.record.token == 0 || n->lease.record.n_members == 0
               ? i
               : n->lease.record.members[i];
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

        if (!node_is_present(n, rank) && !n->peers[rank].absence.is_dead)
            return false;
    }
    return true;
}

/* The process that took the present token was alive then. Evidence of its death must therefore be
 * newer than the token: the result of a call or probe that began after this task had seen the
 * token. An older refusal or incarnation proves nothing. */
void node_note_incarnation(struct member_node *n, uint32_t rank, uint64_t incarnation)
{
    if (rank == n->lease.record.holder && incarnation != n->lease.record.incarnation &&
        n->peers[rank].absence.asked_event > n->lease.since_event)
        n->lease.is_holder_gone = true;
}

/* Returns true if the holder of the lease does not train: no process listens at its address,
 * another process runs there, it has joined this task, or it was an earlier process of this task on
 * this host. An earlier process of this task on another host may be alive: two processes can run as
 * one task by mistake, and only the expiry of the lease shows that the other has stopped. */
static bool holder_is_gone(const struct member_node *n)
{
    uint32_t h = n->lease.record.holder;

    if (h >= n->opts.world)
        return false; /* unknown holder: wait for the expiry */
    if (h == n->opts.self)
        return n->lease.record.incarnation == n->opts.incarnation || n->lease.record.is_same_place;
    if (n->lease.is_holder_gone)
        return true;
    return node_is_present(n, h) &&
           (n->peers[h].incarnation == n->lease.record.incarnation ||
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

    if (n->lease.prior.n == 0 || now_ms >= n->lease.prior.until_ms ||
        (n->lease.prior.holder < n->opts.world && node_is_present(n, n->lease.prior.holder)))
        return false;
    for (uint32_t i = 0; i < n->lease.prior.n; i++)
        here += node_is_present(n, n->lease.prior.ranks[i]);
    return 2 * here <= n->lease.prior.n;
}

static bool may_take(struct member_node *n, uint64_t now_ms)
{
    if (has_majority(n))
        return true;
    if (n->lease.record.token == 0 || n->lease.record.is_mine) {
        n->lead.blocked =
            "less than a majority of the last group is present, and the others may train elsewhere";
        return others_are_dead(n) || now_ms - n->lead.began_ms > MEMBER_MINORITY_MS;
    }
    n->lead.blocked =
        "less than a majority of the last group is present, and its leader may be alive elsewhere: "
        "it holds the lease";
    return n->lease.record.is_over || holder_is_gone(n);
}

bool node_may_publish(struct member_node *n, uint64_t now_ms)
{
    bool is_holder;

    if (node_n_present_trainers(n) == node_n_trainers(n))
        return true;
    if (!n->opts.has_lease) {
        if (has_majority(n))
            return true;
        n->lead.blocked =
            "less than a majority of the cluster is present, and without checkpoint.directory "
            "it is unknown whether the others train elsewhere";
        return false;
    }
    if (!n->lease.record.is_known) {
        n->lead.blocked = "the lease on the shared storage cannot be read";
        node_poll_lease(n, now_ms);
        return false;
    }
    if (node_holds_lease(n) && prior_may_train(n, now_ms)) {
        n->lead.blocked = "the previous holder of the lease may not have stopped yet";
        return false;
    }
    is_holder = node_holds_lease(n) && has_majority(n);
    if ((!is_holder && !may_take(n, now_ms)) || node_waits_for_rows(n, now_ms)) {
        node_poll_lease(n, now_ms);
        return false;
    }
    if (is_holder)
        return true;
    n->lead.blocked = "the lease is being taken";
    node_take_lease(n, node_present_view(n));
    return false;
}

void node_request_lease(struct member_node *n, uint64_t now_ms)
{
    if (!n->opts.has_lease || n->lease.record.is_mine)
        return;
    if (!n->lease.record.is_known || !may_take(n, now_ms))
        node_poll_lease(n, now_ms);
    else
        node_take_lease(n, node_present_view(n));
}

static bool is_recorded(const struct member_node *n)
{
    uint32_t n_trainers = group_view_n_trainers(&n->view);

    if (!node_holds_lease(n) || n->lease.record.n_members != n_trainers)
        return false;
    for (uint32_t i = 0; i < n_trainers; i++)
        if (n->lease.record.members[i] != n->view.members[i].rank)
            return false;
    return true;
}

/* The coordinator holds the lease, with its group as the record. The rules allowed the view, so the
 * coordinator takes the lease without waiting for the previous holder, which gave it up when it
 * joined, unless a task outside the view holds it now. */
void node_keep_lease(struct member_node *n, uint64_t now_ms)
{
    if (!n->opts.has_lease || n->lease.is_pending || n->lead.phase == NODE_GATHERING ||
        is_recorded(n))
        return;
    if (!n->lease.record.is_known) {
        node_poll_lease(n, now_ms);
        return;
    }
    if (!n->lease.record.is_mine && !node_has_all_trainers(n, &n->view) &&
        n->lease.record.holder < n->opts.world &&
        group_view_find(&n->view, n->lease.record.holder) == NULL && !n->lease.record.is_over &&
        !holder_is_gone(n)) {
        node_end_view(n, MEMBER_NO_RANK,
                      node_print(n, "%s holds the lease now: another group may be training",
                                 node_name(n, n->lease.record.holder)),
                      now_ms);
        return;
    }
    node_take_lease(n, &n->view);
}
