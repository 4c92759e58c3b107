/* node_reach.c - whom the data path does not reach, although its link to the leader lives.
 *
 * When a generation breaks, each member reports whom its communicator lost, and whether it found a dead path itself
 * or heard of it from others. Dead paths are edges between members; the task with most of them is evicted. Of a
 * single edge either end may be the one that is cut off: if the wrong one is evicted, the next break accuses the other. */
#include "member/node_priv.h"

#include <stdio.h>
#include <string.h>

void node_forget_suspects(struct member_node *n)
{
    n->trouble_ms = 0;
    n->trouble_rank = MEMBER_NOBODY;
    n->trouble_is_path = false;
    for (uint32_t i = 0; i < n->world; i++) {
        n->peers[i].suspects = MEMBER_NOBODY;
        n->peers[i].has_dead_path = false;
    }
}

void node_reset_reach(struct member_node *n, uint32_t rank)
{
    struct peer *p = &n->peers[rank];

    p->strikes = p->losses = p->accused = 0;
    p->quarantine_until = 0;
}

void node_trouble(struct member_node *n, uint32_t from, uint32_t rank, bool is_path_dead, const char *text, uint64_t now_ms)
{
    bool is_first = n->trouble_ms == 0;

    if (is_first)
        n->trouble_ms = now_ms;
    if (n->peers[from].suspects == MEMBER_NOBODY) {
        n->peers[from].suspects = rank;
        n->peers[from].has_dead_path = is_path_dead;
    }
    if (!is_first && (n->trouble_is_path || !is_path_dead))
        return;
    n->trouble_rank = rank;
    n->trouble_is_path = is_path_dead;
    snprintf(n->trouble, sizeof(n->trouble), "%s", text);
}

/* ---- quarantine ---- */

static uint64_t quarantine_ms(uint32_t strikes)
{
    uint64_t ms = MEMBER_QUARANTINE_MS;

    for (uint32_t i = 1; i < strikes && ms < MEMBER_QUARANTINE_MS_MAX; i++)
        ms *= 2;
    return ms < MEMBER_QUARANTINE_MS_MAX ? ms : MEMBER_QUARANTINE_MS_MAX;
}

static uint64_t count_strike(uint32_t *strikes, uint64_t *at_ms, uint64_t now_ms)
{
    if (now_ms - *at_ms > MEMBER_QUARANTINE_MS_MAX + quarantine_ms(*strikes))
        *strikes = 0;
    *strikes += 1;
    *at_ms = now_ms;
    return quarantine_ms(*strikes);
}

static void quarantine(struct member_node *n, uint32_t rank, const char *why, uint64_t now_ms)
{
    struct peer *p = &n->peers[rank];
    uint64_t ms = count_strike(&p->strikes, &p->strike_ms, now_ms);
    const char *text = node_print(n, "%s is in quarantine for %.3g s: %s", node_name(n, rank), (double)ms / 1e3, why);

    p->quarantine_until = now_ms + ms;
    snprintf(p->last_error, sizeof(p->last_error), "in quarantine for %.3g s: %.200s", (double)ms / 1e3, why);
    node_say(n, true, text);
    if (p->is_joined)
        node_send(n, rank, &(struct member_msg){ .kind = MEMBER_MSG_WAIT, .text = text });
}

void node_count_loss(struct member_node *n, uint32_t rank, uint64_t now_ms)
{
    struct peer *p = &n->peers[rank];

    if (now_ms - p->loss_ms > MEMBER_LOSS_MS)
        p->losses = 0;
    p->loss_ms = now_ms;
    if (++p->losses >= MEMBER_LOSSES)
        quarantine(n, rank, node_print(n, "it was lost %u times in a row", p->losses), now_ms);
}

void node_watch_quarantine(struct member_node *n, uint64_t now_ms)
{
    for (uint32_t i = 0; i < n->world; i++) {
        struct peer *p = &n->peers[i];

        if (p->quarantine_until == 0 || now_ms < p->quarantine_until)
            continue;
        p->quarantine_until = 0;
        if (p->is_joined)
            p->last_error[0] = '\0'; /* the quarantine was the reason; a task that has left keeps a newer one */
        if (n->phase == NODE_LIVE && p->is_joined && p->is_ready && !p->is_seated)
            node_start_pause(n, node_print(n, "the quarantine of %s is over: it joins", node_name(n, i)), now_ms);
    }
}

/* ---- eviction ---- */

/* Do the members at both ends, or one of them, say that nothing passes between them? */
static bool is_dead_edge(const struct member_node *n, uint32_t a, uint32_t b)
{
    const struct peer *p = &n->peers[a], *q = &n->peers[b];

    return (p->has_dead_path && p->suspects == b) || (q->has_dead_path && q->suspects == a);
}

/* What speaks against a task: dead paths to it, evictions of others for a dead path to it, and members that heard
 * from others that it is lost. The last of them repeat what one end says, so they do not outweigh that a leader in
 * doubt stays: its successor would not know who was evicted before. */
static uint64_t suspicion_of(const struct member_node *n, uint32_t rank)
{
    uint64_t edges = 0, votes = 0;

    for (uint32_t i = 0; i < n->view.n; i++) {
        uint32_t other = n->view.seats[i].rank;

        if (other == rank)
            continue;
        edges += is_dead_edge(n, rank, other);
        votes += !n->peers[other].has_dead_path && n->peers[other].suspects == rank;
    }
    return edges == 0 ? 0 : edges << 48 | (uint64_t)n->peers[rank].accused << 32 | (uint64_t)(rank != n->self) << 31 | votes;
}

/* In doubt the one of the highest rank. NOBODY: no dead path between two members is known. */
static uint32_t most_suspected(const struct member_node *n)
{
    uint32_t worst = MEMBER_NOBODY;
    uint64_t most = 1;

    for (uint32_t i = 0; i < n->view.n; i++) {
        uint64_t suspicion = suspicion_of(n, n->view.seats[i].rank);

        if (suspicion >= most) {
            worst = n->view.seats[i].rank;
            most = suspicion;
        }
    }
    return worst;
}

static void accuse_others(struct member_node *n, uint32_t evicted)
{
    for (uint32_t i = 0; i < n->view.n; i++) {
        uint32_t rank = n->view.seats[i].rank;

        if (rank != evicted && is_dead_edge(n, rank, evicted) && n->peers[rank].accused < UINT16_MAX)
            n->peers[rank].accused++;
    }
    n->peers[evicted].accused = 0;
}

/* This leader is the one that is not reached: another task leads, and this one comes back later. */
static void step_aside(struct member_node *n, const char *text, uint64_t now_ms)
{
    uint64_t ms = count_strike(&n->own_strikes, &n->own_strike_ms, now_ms);
    uint32_t heir = MEMBER_NOBODY;

    for (uint32_t i = n->world; i-- > 0;)
        if (i != n->self && n->peers[i].is_joined && n->peers[i].is_seated && n->peers[i].quarantine_until == 0)
            heir = i;
    node_over(n, n->self, text, now_ms);
    if (heir == MEMBER_NOBODY) {
        node_gather(n, now_ms);
        return;
    }
    node_say(n, true, node_print(n, "this task hands over to %s and is in quarantine for %.3g s: %s", node_name(n, heir),
                                 (double)ms / 1e3, text));
    node_bequeath(n, heir, false);
    n->state = MEMBER_SEEKING;
    n->candidate = 0;
    n->heir = heir;
    n->retry_ms = now_ms + ms;
}

void node_watch_trouble(struct member_node *n, uint64_t now_ms)
{
    uint32_t worst;
    bool is_path = n->trouble_is_path;
    const char *text;

    if (n->trouble_ms == 0 || now_ms - n->trouble_ms < MEMBER_CAUSE_MS)
        return;
    worst = most_suspected(n);
    text = node_print(n, "%s", n->trouble);
    if (!is_path || worst == MEMBER_NOBODY || n->view.n < 2) {
        node_over(n, n->trouble_rank, text, now_ms);
        node_gather(n, now_ms);
        return;
    }
    text = node_print(n, "%s cannot be reached over the data path: %s", node_doing(n, worst, now_ms), text);
    accuse_others(n, worst);
    if (worst == n->self) {
        step_aside(n, text, now_ms);
        return;
    }
    node_over(n, worst, text, now_ms);
    n->peers[worst].is_seated = n->peers[worst].is_ready = n->peers[worst].is_complete = false;
    quarantine(n, worst, text, now_ms);
    node_gather(n, now_ms);
}
