#include "comm/topology.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/err.h"
#include "comm/comm.h"
#include "comm/schedule.h"

static int count_ranks(const struct comm_member *members, uint32_t n_members, uint32_t *world,
                       struct err *err)
{
    uint32_t n = 0;

    if (n_members == 0)
        return err_set(err, ERR_INPUT, "a communicator without members");
    for (uint32_t m = 0; m < n_members; m++) {
        if (members[m].n_ranks == 0)
            return err_set(err, ERR_INPUT, "%s has no replica; expected at least one",
                           members[m].name);
        if (members[m].n_ranks > COMM_MAX_RANKS - n)
            return err_set(err, ERR_INPUT, "%s brings the replicas above %d, the most there can be",
                           members[m].name, COMM_MAX_RANKS);
        n += members[m].n_ranks;
    }
    *world = n;
    return 0;
}

/* One block of memory, cut into the arrays. */
static int allocate(struct topology *t)
{
    size_t m = t->n_members, w = t->world;
    uint32_t *p = calloc(3 * m + 1 + 3 * w + 1, sizeof(*p));

    if (p == NULL)
        return ERR_NOMEM;
    t->memory = p;
    t->first_rank = p, p += m + 1;
    t->host_of = p, p += m;
    t->leader_of = p, p += m;
    t->member_of = p, p += w;
    t->node_of = p, p += w;
    t->node_first = p; /* [w + 1] */
    return 0;
}

static void find_hosts(struct topology *t, const struct comm_member *members, bool shared_memory)
{
    for (uint32_t m = 0; m < t->n_members; m++) {
        uint32_t h = t->n_hosts;

        t->first_rank[m + 1] = t->first_rank[m] + members[m].n_ranks;
        for (uint32_t r = t->first_rank[m]; r < t->first_rank[m + 1]; r++)
            t->member_of[r] = m;
        if (shared_memory)
            for (h = 0; h < t->n_hosts; h++)
                if (strcmp(members[t->leader_of[h]].host, members[m].host) == 0)
                    break;
        if (h == t->n_hosts)
            t->leader_of[t->n_hosts++] = m;
        t->host_of[m] = h;
    }
}

static bool same_host(const struct topology *t, uint32_t rank, uint32_t other)
{
    return t->host_of[t->member_of[rank]] == t->host_of[t->member_of[other]];
}

/* The largest power of two such that no aligned block of that many ranks spans two hosts. */
static uint32_t block_ranks(const struct topology *t)
{
    uint32_t block = t->world;

    for (uint32_t r = 1; r < t->world; r++)
        if (!same_host(t, r - 1, r))
            while (r % block != 0)
                block /= 2;
    return block;
}

static void find_nodes(struct topology *t)
{
    bool power = schedule_is_power(t->world);
    uint32_t block = power ? block_ranks(t) : 0, smallest = t->world;

    for (uint32_t r = 0; r < t->world; r++) {
        if (r == 0 || (t->n_hosts > 1 && (power ? r % block == 0 : !same_host(t, r - 1, r))))
            t->node_first[t->n_nodes++] = r;
        t->node_of[r] = t->n_nodes - 1;
    }
    t->node_first[t->n_nodes] = t->world;
    t->kind = t->n_nodes == 1 ? TOPOLOGY_ONE_NODE : power ? TOPOLOGY_HALVING : TOPOLOGY_RING;
    for (uint32_t n = 0; n < t->n_nodes; n++)
        if (topology_node_ranks(t, n) < smallest)
            smallest = topology_node_ranks(t, n);
    t->n_channels = smallest;
}

int topology_init(struct topology *t, const struct comm_member *members, uint32_t n_members,
                  bool shared_memory, struct err *err)
{
    struct topology made = { .n_members = n_members };
    int rc = count_ranks(members, n_members, &made.world, err);

    if (rc < 0)
        return rc;
    if (allocate(&made) < 0)
        return err_set(err, ERR_NOMEM, "topology of %u ranks: out of memory", made.world);
    find_hosts(&made, members, shared_memory);
    find_nodes(&made);
    *t = made;
    return 0;
}

void topology_fini(struct topology *t)
{
    free(t->memory);
    *t = (struct topology){ 0 };
}

uint32_t topology_node_ranks(const struct topology *t, uint32_t node)
{
    return t->node_first[node + 1] - t->node_first[node];
}

uint32_t topology_peers(const struct topology *t, uint32_t rank, uint32_t out[TOPOLOGY_MAX_PEERS])
{
    uint32_t node = t->node_of[rank], channel = rank - t->node_first[node], n = 0;

    if (channel >= t->n_channels)
        return 0;
    if (t->kind == TOPOLOGY_HALVING) {
        for (uint32_t distance = 1; distance < t->n_nodes; distance *= 2)
            out[n++] = t->node_first[node ^ distance] + channel;
    } else if (t->kind == TOPOLOGY_RING) {
        uint32_t next = (node + 1) % t->n_nodes, previous = (node + t->n_nodes - 1) % t->n_nodes;

        out[n++] = t->node_first[next] + channel;
        if (previous != next)
            out[n++] = t->node_first[previous] + channel;
    }
    return n;
}

void topology_spoken(const struct topology *t, uint32_t node, uint32_t channel, uint32_t *first,
                     uint32_t *end)
{
    uint32_t ranks = topology_node_ranks(t, node);

    CHECK(channel < t->n_channels);
    *first = t->node_first[node] + channel * ranks / t->n_channels;
    *end = t->node_first[node] + (channel + 1) * ranks / t->n_channels;
}

/* "2 hosts x 4", "3 hosts of 1 to 4" or "4 members x 1" where memory is not shared. */
static void describe_parts(const struct topology *t, char *out, size_t n)
{
    uint32_t least = t->world, most = 0;

    for (uint32_t h = 0; h < t->n_hosts; h++) {
        uint32_t ranks = 0;

        for (uint32_t m = 0; m < t->n_members; m++)
            if (t->host_of[m] == h)
                ranks += t->first_rank[m + 1] - t->first_rank[m];
        least = ranks < least ? ranks : least;
        most = ranks > most ? ranks : most;
    }
    if (t->n_hosts == 1)
        snprintf(out, n, "%s", t->n_members == 1 ? "1 member" : "1 host");
    else if (least == most)
        snprintf(out, n, "%u %s x %u", t->n_hosts, t->n_hosts < t->n_members ? "hosts" : "members",
                 most);
    else
        snprintf(out, n, "%u %s of %u to %u", t->n_hosts,
                 t->n_hosts < t->n_members ? "hosts" : "members", least, most);
}

const char *topology_describe(const struct topology *t, char *out, size_t n)
{
    static const char *const kinds[] = { "binary tree", "halving/doubling", "ring" };
    char parts[64], groups[96] = "";
    bool memory = t->n_nodes < t->world;

    describe_parts(t, parts, sizeof(parts));
    if (t->n_nodes != t->n_hosts) /* said aloud: the ranks of a host then also talk over tcp */
        snprintf(groups, sizeof(groups),
                 " as %u groups (the hosts are unequal or their ranks alternate)", t->n_nodes);
    snprintf(out, n, "%u rank%s: %s%s, %s%s%s, %s", t->world, t->world == 1 ? "" : "s", parts,
             groups, memory || t->n_nodes == 1 ? "shared memory" : "",
             memory && t->n_nodes > 1 ? " + " : "", t->n_nodes > 1 ? "tcp" : "", kinds[t->kind]);
    return out;
}
