/* node_evict.c - evicts the task that the data path does not reach, when all reports and tests are there, and ends the
 * quarantine of a task whose data paths work again. node_reach.c explains both. */
#include "member/node_priv.h"

#include <stdio.h>

/* ---- eviction ---- */

/* Returns the evidence against a task, in this order of weight: its dead paths; earlier evictions
 * of other tasks for a dead path to it; that it does not lead; members that report it lost without
 * a dead path. Such a report repeats what one end says. */
static uint64_t suspicion_of(const struct member_node *n, uint32_t rank)
{
    uint64_t edges = 0, votes = 0;

    for (uint32_t i = 0; i < n->view.n_members; i++) {
        uint32_t other = n->view.members[i].rank;

        if (other == rank)
            continue;
        edges += node_is_dead_edge(n, rank, other);
        votes += n->peers[other].trouble.suspect == rank;
    }
    return edges == 0 ? 0
                      : edges << 48 | (uint64_t)n->peers[rank].quarantine.accusations << 32 |
                            (uint64_t)(rank != n->opts.self) << 31 | votes;
}

/* Among equals, the highest rank. NO_RANK: no dead path between two members is known. */
static uint32_t most_suspected(const struct member_node *n)
{
    uint32_t worst = MEMBER_NO_RANK;
    uint64_t most = 1;

    for (uint32_t i = 0; i < n->view.n_members; i++) {
        uint64_t suspicion = suspicion_of(n, n->view.members[i].rank);

        if (suspicion >= most) {
            worst = n->view.members[i].rank;
            most = suspicion;
        }
    }
    return worst;
}

static void accuse_others(struct member_node *n, uint32_t evicted)
{
    for (uint32_t i = 0; i < n->view.n_members; i++) {
        uint32_t rank = n->view.members[i].rank;

        if (rank != evicted && node_is_dead_edge(n, rank, evicted) &&
            n->peers[rank].quarantine.accusations < UINT16_MAX)
            n->peers[rank].quarantine.accusations++;
    }
    n->peers[evicted].quarantine.accusations = 0;
}

/* This leader is cut off: it hands leadership over and joins the new leader, which quarantines
 * it. */
static void evict_self(struct member_node *n, const char *text, uint64_t now_ms)
{
    uint32_t successor = MEMBER_NO_RANK;

    n->seek.dead_paths = node_dead_paths_of(n, n->opts.self);
    for (uint32_t i = node_n_trainers(n); i-- > 0;)
        if (i != n->opts.self && n->peers[i].is_joined && n->peers[i].is_in_view &&
            n->peers[i].quarantine.until == 0)
            successor = i;
    node_end_view(n, n->opts.self, text, now_ms);
    if (successor == MEMBER_NO_RANK) {
        node_gather(n, now_ms);
        return;
    }
    node_log(
        n, true,
        node_print(n, "this task hands leadership over to %s: %s", node_name(n, successor), text));
    node_hand_over_leadership(n, successor, now_ms);
}

void node_watch_trouble(struct member_node *n, uint64_t now_ms)
{
    uint32_t worst;
    const char *text;

    if (n->lead.phase == NODE_GATHERING || n->trouble.since_ms == 0 ||
        now_ms - n->trouble.since_ms < MEMBER_CAUSE_MS ||
        (n->trouble.round.n_open > 0 && now_ms < n->trouble.round.until_ms))
        return;
    worst = most_suspected(n);
    text = node_print(n, "%s", n->trouble.text);
    if (worst == MEMBER_NO_RANK || n->view.n_members < 2) {
        node_end_view(n, n->trouble.rank, text, now_ms);
        node_gather(n, now_ms);
        return;
    }
    text = node_print(n, "%s cannot be reached over the data path: %s",
                      node_progress_text(n, worst, now_ms), text);
    accuse_others(n, worst);
    if (worst == n->opts.self) {
        evict_self(n, text, now_ms);
        return;
    }
    n->peers[worst].quarantine.dead = node_dead_paths_of(n, worst);
    node_end_view(n, worst, text, now_ms);
    n->peers[worst].is_in_view = n->peers[worst].is_ready = n->peers[worst].is_complete = false;
    node_quarantine(n, worst, text, now_ms);
    node_gather(n, now_ms);
}

/* ---- answers of tests ---- */

void node_reached(struct member_node *n, uint32_t from, uint64_t round, const uint32_t *dead,
                  uint32_t n_dead, uint64_t now_ms)
{
    if (round != 0 && round == n->trouble.round.id && n->lead.phase != NODE_GATHERING) {
        n->trouble.round.n_open -= n->trouble.round.n_open > 0;
        node_add_edges(n, from, dead, n_dead);
        node_watch_trouble(n, now_ms);
        return;
    }
    for (uint32_t i = 0; i < n->opts.world; i++) {
        struct peer *p = &n->peers[i];

        if (round == 0 || p->quarantine.round.id != round)
            continue;
        p->quarantine.round.n_open -= p->quarantine.round.n_open > 0;
        p->quarantine.round.has_failed |= n_dead > 0;
        if (n_dead > 0 && dead[0] < n->opts.world)
            snprintf(p->absence.last_error, sizeof(p->absence.last_error),
                     "in quarantine: no data path from %s to %s", n->opts.names[from],
                     n->opts.names[dead[0]]);
    }
}

/* ---- end of a quarantine ---- */

static void end_quarantine(struct member_node *n, uint32_t rank, uint64_t now_ms)
{
    struct peer *p = &n->peers[rank];

    p->quarantine.until = 0;
    p->quarantine.loss_ms = now_ms;
    p->quarantine.dead.n = 0;
    p->absence.last_error[0] = '\0';
    if (n->lead.phase == NODE_LIVE && p->is_ready && !p->is_in_view)
        node_start_pause(
            n,
            node_print(n, "the data paths of %s work: its quarantine is over, and it joins",
                       node_name(n, rank)),
            now_ms);
}

void node_watch_quarantine(struct member_node *n, uint64_t now_ms)
{
    for (uint32_t i = 0; i < n->opts.world; i++) {
        struct peer *p = &n->peers[i];
        uint64_t pause_ms = MEMBER_RETEST_MS;

        if (p->quarantine.until == 0 || now_ms < p->quarantine.until || !p->is_joined)
            continue;
        if (p->quarantine.round.id == 0)
            node_test_quarantined(n, i, now_ms);
        if (p->quarantine.round.n_open > 0 && now_ms < p->quarantine.round.until_ms)
            continue;
        if (p->quarantine.round.n_open == 0 && !p->quarantine.round.has_failed) {
            p->quarantine.round = (struct node_round){ 0 };
            end_quarantine(n, i, now_ms);
            continue;
        }
        for (uint32_t k = 0; k < p->quarantine.n_failed_rounds && pause_ms < MEMBER_RETEST_MS_MAX;
             k++)
            pause_ms *= 2;
        p->quarantine.n_failed_rounds++;
        p->quarantine.round = (struct node_round){ 0 };
        p->quarantine.until = now_ms + pause_ms;
    }
}
