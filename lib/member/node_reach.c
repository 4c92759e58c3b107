/* node_reach.c - data paths that are dead although the links to the leader are open: reports, tests and quarantine.
 * node_evict.c decides which task is evicted, and when its quarantine ends.
 *
 * A dead path is an edge between two tasks. The leader learns about it in two ways:
 *   TROUBLE   the communicator of a member broke and names the peers whose kernel acknowledges
 *             nothing
 *   REACHED   a member tested its data paths on the leader's order (REACH)
 * A communicator knows only the paths that it uses. If only large packets are lost, or only one
 * path was busy, the reports do not show which end of an edge is cut off. When a generation breaks
 * with a dead path, the leader therefore orders tests with full-size messages from every member to
 * both ends, and from both ends to the other members. Then the task with the most edges is evicted.
 * If there is a single edge, either end may be cut off: the group evicts the higher rank first, and
 * the other end if the next generation breaks there.
 *
 * An evicted task is in quarantine: it is joined and in no view. After a delay the leader orders
 * tests of the paths between the task and the members, in both directions. If all succeed, the task
 * joins the next view; else the tests are repeated. A path that stays dead therefore costs the
 * group one interruption.
 *
 * Quarantines, losses and accusations belong to the task, not to its process: a host whose data port
 * is unreachable would otherwise interrupt the group with each process that starts there. Only
 * successful tests end a quarantine, so it also lasts while the task is absent. */
#include "member/node_priv.h"

#include <stdio.h>

/* ---- edges ---- */

void node_reset_trouble(struct member_node *n)
{
    n->trouble.since_ms = 0;
    n->trouble.rank = MEMBER_NO_RANK;
    n->trouble.n_edges = 0;
    n->trouble.round = (struct node_round){ 0 };
    for (uint32_t i = 0; i < n->opts.world; i++) {
        n->peers[i].trouble.suspect = MEMBER_NO_RANK;
        n->peers[i].trouble.is_tested = false;
    }
}

bool node_is_dead_edge(const struct member_node *n, uint32_t a, uint32_t b)
{
    for (uint32_t i = 0; i < n->trouble.n_edges; i++)
        if ((n->trouble.edges[i].a == a && n->trouble.edges[i].b == b) ||
            (n->trouble.edges[i].a == b && n->trouble.edges[i].b == a))
            return true;
    return false;
}

void node_add_edges(struct member_node *n, uint32_t from, const uint32_t *dead, uint32_t n_dead)
{
    for (uint32_t i = 0; i < n_dead; i++) {
        if (dead[i] >= n->opts.world || dead[i] == from ||
            group_view_find(&n->view, dead[i]) == NULL || node_is_dead_edge(n, from, dead[i]) ||
            n->trouble.n_edges == NODE_EDGES)
            continue;
        n->trouble.edges[n->trouble.n_edges].a = from;
        n->trouble.edges[n->trouble.n_edges].b = dead[i];
        n->trouble.n_edges++;
    }
}

static bool add_rank(struct node_ranks *r, uint32_t rank)
{
    for (uint32_t i = 0; i < r->n; i++)
        if (r->at[i] == rank)
            return false;
    if (r->n == MEMBER_REACH_MAX)
        return false;
    r->at[r->n++] = rank;
    return true;
}

struct node_ranks node_dead_paths_of(const struct member_node *n, uint32_t rank)
{
    struct node_ranks r = { 0 };

    for (uint32_t i = 0; i < n->view.n_members; i++)
        if (node_is_dead_edge(n, rank, n->view.members[i].rank))
            (void)add_rank(&r, n->view.members[i].rank);
    return r;
}

/* ---- tests ---- */

void node_test_paths(struct member_node *n, uint64_t round, const uint32_t *ranks, uint32_t n_ranks)
{
    struct member_action *d;
    struct node_ranks to = { 0 };

    for (uint32_t i = 0; i < n_ranks; i++)
        if (ranks[i] < n->opts.world && ranks[i] != n->opts.self)
            (void)add_rank(&to, ranks[i]);
    ranks = node_copy_ranks(n, to.at, to.n);
    d = node_add_action(n, MEMBER_REACH);
    d->round = round;
    d->ranks = ranks;
    d->n_ranks = to.n;
}

static void open_round(struct member_node *n, struct node_round *r, uint64_t now_ms)
{
    if (r->id == 0) /* differs from the ids of another leader, whose answers may arrive at this
                       task */
        *r = (struct node_round){ .id = (n->opts.incarnation << 20) + ++n->n_rounds };
    r->until_ms = now_ms + 2 * MEMBER_REACH_MS;
}

static void order_tests(struct member_node *n, struct node_round *r, uint32_t from,
                        const struct node_ranks *to)
{
    if (to->n == 0 || (from != n->opts.self && !n->peers[from].is_joined))
        return;
    r->n_open++;
    if (from == n->opts.self)
        node_test_paths(n, r->id, to->at, to->n);
    else
        node_send_member(n, from, &(struct member_msg){ .kind = MEMBER_MSG_REACH,
                                                 .round = r->id,
                                                 .ranks = to->at,
                                                 .n_ranks = to->n,
                                                 .text = "" });
}

/* Orders tests of all paths between `rank` and the members of the view, up to the limit of one
 * REACH. */
static void test_paths_of(struct member_node *n, uint32_t rank, uint64_t now_ms)
{
    struct node_ranks others = node_dead_paths_of(n, rank), self = { 1, { rank } };

    if (n->peers[rank].trouble.is_tested)
        return;
    n->peers[rank].trouble.is_tested = true;
    open_round(n, &n->trouble.round, now_ms);
    for (uint32_t i = 0; i < n->view.n_members; i++)
        if (n->view.members[i].rank != rank)
            (void)add_rank(&others, n->view.members[i].rank);
    order_tests(n, &n->trouble.round, rank, &others);
    for (uint32_t i = 0; i < others.n; i++)
        order_tests(n, &n->trouble.round, others.at[i], &self);
}

/* ---- trouble ---- */

void node_trouble(struct member_node *n, uint32_t from, const struct member_loss *loss,
                  const char *text, uint64_t now_ms)
{
    bool is_first = n->trouble.since_ms == 0,
         is_first_path = loss->n_dead_paths > 0 && n->trouble.n_edges == 0;

    if (is_first)
        n->trouble.since_ms = now_ms;
    if (loss->n_dead_paths == 0)
        n->peers[from].trouble.suspect = loss->peer;
    node_add_edges(n, from, loss->dead_paths, loss->n_dead_paths);
    for (uint32_t i = 0; i < n->trouble.n_edges; i++) {
        test_paths_of(n, n->trouble.edges[i].a, now_ms);
        test_paths_of(n, n->trouble.edges[i].b, now_ms);
    }
    if (!is_first && !is_first_path)
        return;
    n->trouble.rank = loss->peer;
    snprintf(n->trouble.text, sizeof(n->trouble.text), "%s", text);
}

/* ---- quarantine ---- */

static uint64_t quarantine_ms(uint32_t strikes)
{
    uint64_t ms = MEMBER_QUARANTINE_MS;

    for (uint32_t i = 1; i < strikes && ms < MEMBER_QUARANTINE_MS_MAX; i++)
        ms *= 2;
    return ms < MEMBER_QUARANTINE_MS_MAX ? ms : MEMBER_QUARANTINE_MS_MAX;
}

void node_quarantine(struct member_node *n, uint32_t rank, const char *why, uint64_t now_ms)
{
    struct peer *p = &n->peers[rank];
    const char *text;
    uint64_t ms;

    if (now_ms - p->quarantine.since_ms >
        MEMBER_QUARANTINE_MS_MAX + quarantine_ms(p->quarantine.count))
        p->quarantine.count = 0;
    p->quarantine.count++;
    p->quarantine.since_ms = now_ms;
    p->quarantine.n_failed_rounds = 0;
    p->quarantine.round = (struct node_round){ 0 };
    ms = quarantine_ms(p->quarantine.count);
    p->quarantine.until = now_ms + ms;
    text = node_print(n, "%s is in quarantine for %.3g s: %s", node_name(n, rank), (double)ms / 1e3,
                      why);
    snprintf(p->quarantine.why, sizeof(p->quarantine.why), "%s", why);
    snprintf(p->absence.last_error, sizeof(p->absence.last_error), "in quarantine for %.3g s: %s",
             (double)ms / 1e3, p->quarantine.why);
    node_log(n, true, text);
    if (p->is_joined)
        node_send_member(n, rank, &(struct member_msg){ .kind = MEMBER_MSG_WAIT, .text = text });
}

/* Whether a view is possible without the task. */
static bool is_dispensable(const struct member_node *n, uint32_t rank)
{
    uint32_t n_trainers = n->opts.world - n->opts.n_ps;

    return rank < n_trainers ? n_trainers > n->opts.min_world : n->opts.n_ps > n->opts.min_ps;
}

/* A task without which no view is possible is not quarantined for its losses: the others would only wait. */
void node_count_loss(struct member_node *n, uint32_t rank, uint64_t now_ms)
{
    struct peer *p = &n->peers[rank];

    if (now_ms - p->quarantine.loss_ms > MEMBER_LOSS_MS)
        p->quarantine.losses = 0;
    p->quarantine.loss_ms = now_ms;
    if (++p->quarantine.losses >= MEMBER_LOSSES && is_dispensable(n, rank))
        node_quarantine(
            n, rank, node_print(n, "it was lost %u times in a row", p->quarantine.losses), now_ms);
}

static const char *no_path_text(struct member_node *n, uint32_t rank)
{
    const struct node_ranks *dead = &n->peers[rank].quarantine.dead;

    return node_print(n, "no data path to %s%s", n->opts.names[dead->at[0]],
                      dead->n > 1 ? " and other tasks" : "");
}

/* A new process of a task in quarantine may run on a repaired host, or on another one. Its dead paths
 * are tested at once, unless the task was in quarantine before. */
static void continue_quarantine(struct member_node *n, uint32_t rank, bool is_new, uint64_t now_ms)
{
    struct peer *p = &n->peers[rank];

    snprintf(p->absence.last_error, sizeof(p->absence.last_error), "in quarantine: %s",
             p->quarantine.why);
    if (!is_new)
        return;
    p->quarantine.round = (struct node_round){ 0 }; /* its answers were of the previous process */
    if (p->quarantine.dead.n > 0 && p->quarantine.count == 1)
        p->quarantine.until = now_ms;
}

void node_join_quarantine(struct member_node *n, uint32_t rank, bool is_new, const uint32_t *dead,
                          uint32_t n_dead, uint64_t now_ms)
{
    struct peer *p = &n->peers[rank];

    if (n->state == MEMBER_LEADING && p->quarantine.until != 0) {
        continue_quarantine(n, rank, is_new, now_ms);
        return;
    }
    p->quarantine.dead.n = 0;
    for (uint32_t i = 0; i < n_dead; i++)
        if (dead[i] < n->opts.world && dead[i] != rank)
            (void)add_rank(&p->quarantine.dead, dead[i]);
    if (n->state == MEMBER_LEADING && p->quarantine.dead.n > 0)
        node_quarantine(n, rank, no_path_text(n, rank), now_ms);
}

void node_reset_quarantine(struct member_node *n, uint32_t rank, uint64_t now_ms)
{
    struct peer *p = &n->peers[rank];

    p->quarantine.until = 0;
    p->quarantine.round = (struct node_round){ 0 };
    if (rank != n->opts.self && p->is_joined && p->quarantine.dead.n > 0)
        node_quarantine(n, rank, no_path_text(n, rank), now_ms);
}

/* Orders tests between the task and the members; first the members with a dead path to it. */
void node_test_quarantined(struct member_node *n, uint32_t rank, uint64_t now_ms)
{
    struct peer *p = &n->peers[rank];
    struct node_ranks others = { 0 }, self = { 1, { rank } };

    for (uint32_t pass = 0; pass < 2; pass++)
        for (uint32_t i = 0; i < (pass == 0 ? p->quarantine.dead.n : n->opts.world); i++) {
            uint32_t other = pass == 0 ? p->quarantine.dead.at[i] : i;

            if (other != rank && n->peers[other].is_joined && n->peers[other].quarantine.until == 0)
                (void)add_rank(&others, other);
        }
    open_round(n, &p->quarantine.round, now_ms);
    order_tests(n, &p->quarantine.round, rank, &others);
    for (uint32_t i = 0; i < others.n; i++)
        order_tests(n, &p->quarantine.round, others.at[i], &self);
}
