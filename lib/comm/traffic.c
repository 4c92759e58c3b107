/* traffic.c - see traffic.h. The schedules of all nodes are run, and what crosses a border of two groups is counted. */
#include "comm/traffic.h"

#include <stdlib.h>

#include "base/err.h"
#include "base/group_view.h"
#include "base/lane_tree.h"
#include "comm/comm.h"
#include "comm/schedule.h"
#include "comm/tiers.h"
#include "comm/topology.h"

enum { ELEMENTS = 1 << 20 /* of the vector */ };

struct count {
    const struct topology *t;
    const uint32_t *groups; /* of members */
    uint32_t node;
    double *sent; /* [nodes] elements that the node sends to other groups */
};

static uint32_t group_of(const struct count *c, uint32_t node)
{
    return c->groups[c->t->member_of[c->t->node_first[node]]];
}

static void add(struct count *c, uint32_t to, double elements)
{
    if (group_of(c, c->node) != group_of(c, to))
        c->sent[c->node] += elements;
}

static int count_transfer(void *arg, const struct tiers_end *send, const struct tiers_end *recv,
                          uint64_t tag)
{
    (void)recv;
    (void)tag;
    if (send->x.begin < send->x.end)
        add(arg, send->node, (double)(send->x.end - send->x.begin));
    return 0;
}

static void no_source(void *arg, uint32_t i, uint32_t buffer, struct comm_range x)
{
    (void)arg;
    (void)i;
    (void)buffer;
    (void)x;
}

static void no_sum(void *arg, uint32_t buffer, uint32_t n, const uint32_t *leaves,
                   struct comm_range x)
{
    (void)arg;
    (void)buffer;
    (void)n;
    (void)leaves;
    (void)x;
}

static void count_schedule(struct count *c, enum schedule_what what)
{
    struct schedule s = { .what = what,
                          .direct = c->t->kind == TOPOLOGY_DIRECT,
                          .n_nodes = c->t->n_nodes,
                          .self = c->node,
                          .n_segments = c->t->n_nodes };

    for (uint32_t i = 0; i < schedule_steps(&s); i++) {
        struct schedule_step step = schedule_step(&s, i);

        add(c, step.to, (double)(step.send.end - step.send.begin) * ELEMENTS / s.n_segments);
    }
}

static void count_node(struct count *c, const struct tiers *tiers)
{
    static const struct tiers_verbs verbs = { count_transfer, no_source, no_sum };

    if (tiers->n_groups > 0) {
        (void)tiers_all_reduce(tiers, c->node, ELEMENTS, &verbs, c); /* no verb fails */
        return;
    }
    count_schedule(c, SCHEDULE_REDUCE_SCATTER);
    count_schedule(c, SCHEDULE_ALL_GATHER);
}

/* Returns the largest sum over the nodes of a group, in vectors. */
static double largest(const struct count *c)
{
    double most = 0;

    for (uint32_t i = 0; i < c->t->n_nodes; i++) {
        double sum = 0;

        for (uint32_t k = 0; k < c->t->n_nodes; k++)
            sum += group_of(c, k) == group_of(c, i) ? c->sent[k] : 0;
        most = sum > most ? sum : most;
    }
    return most / ELEMENTS;
}

int comm_traffic(const struct group_view *v, const struct lane_tree *tree, uint32_t lanes,
                 bool shared_memory, const uint32_t *groups, double *out, struct err *err)
{
    struct topology t = { .n_nodes = 0 };
    struct tiers tiers = { .n_groups = 0 };
    struct count c = { .t = &t, .groups = groups };
    uint32_t *shares = calloc(COMM_MAX_RANKS, sizeof(*shares));
    int rc = shares == NULL ? err_set(err, ERR_NOMEM, "traffic: out of memory") : 0;

    if (rc == 0) {
        comm_share_view(tree, lanes, v, shares);
        lane_tree_leaves(tree, shares, group_view_n_ranks(v), shares);
        rc = topology_init(&t, v->members, v->n_members, shares, shared_memory, TOPOLOGY_FASTEST,
                           err);
    }
    if (rc == 0)
        rc = tiers_init(&tiers, &t, v->members, err);
    if (rc == 0) {
        c.sent = calloc(t.n_nodes, sizeof(*c.sent));
        rc = c.sent == NULL ? err_set(err, ERR_NOMEM, "traffic: out of memory") : 0;
    }
    if (rc == 0) {
        for (c.node = 0; c.node < t.n_nodes && t.kind != TOPOLOGY_ONE_NODE; c.node++)
            count_node(&c, &tiers);
        *out = largest(&c);
    }
    free(c.sent);
    tiers_fini(&tiers);
    topology_fini(&t);
    free(shares);
    return rc;
}
