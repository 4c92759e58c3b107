/* node_rows.c - a group of absent tasks that should train instead of the present ones, because it may have
 * rows that these lack, or because these are too few.
 *
 * Each row of a table is on `replicas` parameter servers of the last group. A side of a divided network has
 * all rows if it lacks fewer of them than that. A group without all rows begins again at the newest
 * checkpoint, so it first gives a side that may have them time to take the lease. */
#include "member/node_priv.h"

/* ---- the last group ---- */

void node_note_group(struct member_node *n)
{
    for (uint32_t i = 0; i < n->opts.world; i++) {
        const struct group_member *member = group_view_find(&n->view, i);

        n->peers[i].rows = (struct peer_rows){ .incarnation = member != NULL ? member->incarnation : 0 };
    }
    n->rows.is_known = true;
    n->rows.has_waited = false;
}

void node_note_process(struct member_node *n, uint32_t rank, uint64_t incarnation)
{
    n->peers[rank].rows.is_gone |= incarnation != n->peers[rank].rows.incarnation;
}

/* A process that was in no group does not know the last one: it may have had every task. */
static bool was_in_group(const struct member_node *n, uint32_t rank)
{
    return !n->rows.is_known || n->peers[rank].rows.incarnation != 0;
}

static bool is_same_process(const struct member_node *n, uint32_t rank)
{
    return !n->rows.is_known || !n->peers[rank].rows.is_gone;
}

/* ---- the absent tasks ---- */

struct others {
    uint32_t n_trainers, n_ps; /* absent tasks that may be alive, and may train */
    uint32_t n_lost;           /* parameter servers of the last group that cannot be among them */
    uint32_t n_missing;        /* parameter servers of the last group that are not present */
    uint32_t n_all;            /* parameter servers of the last group */
};

static bool may_train_elsewhere(const struct member_node *n, uint32_t rank)
{
    const struct peer *p = &n->peers[rank];

    return !p->is_joined && !p->has_left && !p->absence.is_dead && is_same_process(n, rank);
}

static struct others find_others(const struct member_node *n)
{
    struct others o = { 0 };

    for (uint32_t i = 0; i < n->opts.world; i++) {
        bool is_elsewhere = may_train_elsewhere(n, i);

        if (!was_in_group(n, i))
            continue;
        *(node_is_ps(n, i) ? &o.n_ps : &o.n_trainers) += is_elsewhere;
        if (!node_is_ps(n, i))
            continue;
        o.n_all++;
        o.n_lost += !is_elsewhere;
        o.n_missing += !(node_is_present(n, i) && is_same_process(n, i));
    }
    return o;
}

static void release_lease(struct member_node *n)
{
    if (n->lease.is_pending || !node_holds_lease(n))
        return;
    node_give_up_lease(n);
    node_add_action(n, MEMBER_RELEASE);
}

/* ---- the rules ---- */

void node_leave_lease(struct member_node *n)
{
    struct others o = find_others(n);

    if (n->opts.has_lease && node_is_large_enough(n, o.n_trainers, o.n_ps))
        release_lease(n);
}

static bool holds_step(const struct member_node *n)
{
    for (uint32_t i = 0; i < n->opts.world; i++)
        if (node_is_present(n, i) && n->peers[i].held > 0)
            return true;
    return false;
}

static bool rows_may_be_elsewhere(const struct member_node *n)
{
    struct others o = find_others(n);
    uint32_t copies = n->opts.replicas < o.n_all ? n->opts.replicas : o.n_all;

    return o.n_missing >= copies && o.n_lost < copies && holds_step(n) &&
           node_is_large_enough(n, o.n_trainers, o.n_ps);
}

/* A quarter of the deadline is left for the group that goes on. */
static bool has_time_to_wait(const struct member_node *n, uint64_t now_ms)
{
    return now_ms - n->lead.rows_ms < MEMBER_ROWS_MS &&
           4 * n->deadline.no_step_ms < 3 * n->opts.deadline_ms;
}

bool node_waits_for_rows(struct member_node *n, uint64_t now_ms)
{
    bool begins = n->lead.rows_ms == 0;

    if (n->rows.has_waited || !rows_may_be_elsewhere(n))
        return false;
    if (begins)
        n->lead.rows_ms = now_ms;
    if (!has_time_to_wait(n, now_ms)) {
        n->rows.has_waited = true;
        node_log(n, true,
                 begins ? "absent parameter servers may have rows that the present ones lack, but no time is "
                          "left to wait for a group of them; this group goes on without a wait"
                        : "no group with all rows of the tables took the lease in time; this group goes on");
        return false;
    }
    n->lead.blocked =
        "the absent parameter servers may have rows that the present ones lack, and may train elsewhere";
    if (begins)
        node_log(n, true,
                 node_print(n, "leaving the lease to another group for up to %d s: %s",
                            MEMBER_ROWS_MS / 1000, node_missing_text(n)));
    release_lease(n);
    return true;
}
