/* node_storage.c - a leader that cannot write to its storage hands leadership over to another task.
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

enum { DOUBLINGS_MAX = 5 };

uint32_t member_view_coordinator(const struct member_view *v)
{
    uint32_t best = 0;

    for (uint32_t i = 1; i < v->n; i++)
        if (v->seats[i].storage_failures < v->seats[best].storage_failures)
            best = i;
    return best;
}

/* Returns the present task with the fewest failures, at most as many as this task; NO_RANK:
 * none. */
static uint32_t successor_of(const struct member_node *n)
{
    uint32_t successor = MEMBER_NO_RANK;

    for (uint32_t i = 0; i < n->world; i++)
        if (i != n->self && node_is_present(n, i) &&
            n->peers[i].storage_failures <= n->peers[n->self].storage_failures &&
            (successor == MEMBER_NO_RANK || n->peers[i].storage_failures < n->peers[successor].storage_failures))
            successor = i;
    return successor;
}

bool node_storage_hand_over(struct member_node *n, uint64_t now_ms)
{
    uint32_t successor = n->storage_failed ? successor_of(n) : MEMBER_NO_RANK;

    if (successor == MEMBER_NO_RANK)
        return false;
    node_log(n, true, node_print(n, "%s cannot write to the storage (%s) and hands leadership over to %s",
                                 node_name(n, n->self), n->storage_error, node_name(n, successor)));
    n->storage_failed = false;
    node_hand_over_leadership(n, successor, now_ms);
    return true;
}

static void count_failure(struct member_node *n, const char *text)
{
    snprintf(n->storage_error, sizeof(n->storage_error), "%s", text);
    n->storage_failed = true;
    n->peers[n->self].storage_failures++;
    n->storage_ms = 0;
}

bool node_another_writes(struct member_node *n, const char *text, uint64_t now_ms)
{
    bool is_over;

    if (n->unsaved_ms == 0)
        n->unsaved_ms = now_ms;
    is_over = n->view.n < 2 || now_ms - n->unsaved_ms > n->deadline_ms;
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
    uint32_t failures = n->peers[n->self].storage_failures;
    uint64_t pause_ms = (uint64_t)MEMBER_STORAGE_MS << (failures < DOUBLINGS_MAX ? failures : DOUBLINGS_MAX);

    if (n->storage_ms == 0 || now_ms - n->storage_reported_ms > 2 * MEMBER_STORAGE_MS)
        n->storage_ms = now_ms;
    n->storage_reported_ms = now_ms;
    return failures == 0 || now_ms - n->storage_ms >= pause_ms;
}

void node_storage(struct member_node *n, const struct member_event *e, uint64_t now_ms)
{
    const char *trouble = e->text;

    if (trouble == NULL) {
        n->peers[n->self].storage_failures = 0;
        n->storage_failed = false;
        n->storage_ms = n->unsaved_ms = 0;
        return;
    }
    if (n->state != MEMBER_LEADING || !has_lasted(n, now_ms))
        return;
    count_failure(n, trouble);
    if (n->phase != NODE_GATHERING && n->view.n > 1)
        node_end_view(n, MEMBER_NO_RANK,
                  node_print(n, "%s cannot write to the storage: %s", node_name(n, n->self), trouble), now_ms);
    node_gather(n, now_ms);
}
