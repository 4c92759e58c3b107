/* node_storage.c - reports about the shared storage: the lease, and a leader that cannot write.
 *
 * A leader that cannot write to its storage hands leadership over to another task.
 *
 * Every task counts the failures of its storage since the last checkpoint that it wrote; READY and
 * the view carry the counts. The member with the lowest count is the coordinator. While the storage
 * of all tasks fails, the tasks therefore take turns, each time after a longer delay; a task whose
 * storage works stays the coordinator.
 *
 * If this leader may publish a view, the next view hands leadership over. Otherwise it cannot take
 * or renew the lease, and it redirects all members to the new leader, which takes the lease by the
 * usual rules. */
#include "member/node_priv.h"

#include <stdio.h>
#include <string.h>

enum { DOUBLINGS_MAX = 5 };

/* ---- failures of the storage ---- */

static void count_failure(struct member_node *n, const char *text)
{
    snprintf(n->storage.error, sizeof(n->storage.error), "%s", text);
    n->storage.has_failed = true;
    n->peers[n->opts.self].storage_failures++;
    n->storage.since_ms = 0;
}

bool node_hand_over_save(struct member_node *n, const char *text, uint64_t now_ms)
{
    bool is_over;

    if (n->storage.unsaved_ms == 0)
        n->storage.unsaved_ms = now_ms;
    is_over =
        group_view_n_trainers(&n->view) < 2 || now_ms - n->storage.unsaved_ms > n->opts.deadline_ms;
    if (n->is_alive && n->state == MEMBER_LEADING && is_over)
        return false;
    count_failure(n, text);
    if (n->is_alive && n->state == MEMBER_LEADING) {
        node_end_view(n, MEMBER_NO_RANK, text, now_ms);
        node_gather(n, now_ms);
    } else {
        node_training_stopped(n, now_ms);
    }
    return true;
}

/* Returns true if the failure counts: the first at once, a later one after it has lasted for a time
 * that grows with the count. */
static bool has_lasted(struct member_node *n, uint64_t now_ms)
{
    uint32_t failures = n->peers[n->opts.self].storage_failures;
    uint64_t pause_ms = (uint64_t)MEMBER_STORAGE_MS
                        << (failures < DOUBLINGS_MAX ? failures : DOUBLINGS_MAX);

    if (n->storage.since_ms == 0 || now_ms - n->storage.reported_ms > 2 * MEMBER_STORAGE_MS)
        n->storage.since_ms = now_ms;
    n->storage.reported_ms = now_ms;
    return failures == 0 || now_ms - n->storage.since_ms >= pause_ms;
}

void node_storage(struct member_node *n, const struct member_event *e, uint64_t now_ms)
{
    const char *trouble = e->text;

    if (trouble == NULL) {
        n->peers[n->opts.self].storage_failures = 0;
        n->storage.has_failed = false;
        n->storage.since_ms = n->storage.unsaved_ms = 0;
        return;
    }
    if (n->state != MEMBER_LEADING || !has_lasted(n, now_ms))
        return;
    count_failure(n, trouble);
    if (n->lead.phase != NODE_GATHERING && group_view_n_trainers(&n->view) > 1)
        node_end_view(n, MEMBER_NO_RANK,
                      node_print(n, "%s cannot write to the storage: %s",
                                 node_name(n, n->opts.self), trouble),
                      now_ms);
    node_gather(n, now_ms);
}

/* ---- the lease ---- */

void node_lease(struct member_node *n, const struct member_event *e, uint64_t now_ms)
{
    const struct member_lease *l = e->lease;
    bool is_answer = n->lease.is_pending && l->answered >= n->lease.request;
    bool is_lost = n->lease.record.is_mine && !l->is_mine && l->token > n->lease.record.token;
    uint32_t n_members = 0;

    if (l->token != n->lease.record.token || l->is_mine != n->lease.record.is_mine ||
        l->is_over != n->lease.record.is_over)
        n->save.again_ms = 0; /* a save that waits for the lease may succeed now */
    if (l->token != n->lease.record.token || l->incarnation != n->lease.record.incarnation) {
        n->lease.since_event = n->clock.events;
        n->lease.is_holder_gone = false;
        if (l->is_mine && n->lease.prior.is_taking) {
            n->lease.prior.n = n->lease.record.n_members;
            n->lease.prior.holder = n->lease.record.holder;
            memcpy(n->lease.prior.ranks, n->lease.members,
                   n->lease.prior.n * sizeof(*n->lease.prior.ranks));
            n->lease.prior.until_ms = now_ms + MEMBER_EXPIRY_MS;
        }
        n->lease.prior.is_taking = false;
    }
    /* the record may be of another cluster: only ranks of this cluster are valid */
    for (uint32_t i = 0; i < l->n_members; i++)
        if (l->members[i] < node_n_trainers(n) && n_members < node_n_trainers(n))
            n->lease.members[n_members++] = l->members[i];
    if (l->text[0] != '\0' && strcmp(l->text, n->storage.lease_error) != 0)
        node_log(n, true, node_print(n, "lease: %s", l->text));
    /* a successful read does not show that a take would succeed */
    if (l->text[0] != '\0' || is_answer)
        snprintf(n->storage.lease_error, sizeof(n->storage.lease_error), "%s", l->text);
    n->lease.record = *l;
    n->lease.record.members = n->lease.members;
    n->lease.record.n_members = n_members;
    n->lease.record.text = "";
    if (is_answer) {
        n->lease.is_pending = false;
        if (n->lease.given_up == UINT64_MAX)
            n->lease.given_up = l->token;
        n->lease.failures = l->text[0] != '\0' ? n->lease.failures + 1 : 0;
        n->lease.again_ms = n->lease.failures > 0 ? now_ms + node_retry_ms(n->lease.failures) : 0;
    }
    if (n->state != MEMBER_LEADING)
        return;
    if (n->lead.phase == NODE_GATHERING)
        node_gather(n, now_ms);
    else if (is_lost && !node_has_all_trainers(n, &n->view))
        node_end_view(
            n, MEMBER_NO_RANK,
            node_print(n, "%s took the lease: another group may have trained",
                       l->holder < n->opts.world ? node_name(n, l->holder) : "another task"),
            now_ms);
    else
        node_keep_lease(n, now_ms);
}
