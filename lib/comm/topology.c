#include "comm/topology.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/err.h"
#include "comm/comm.h"
#include "comm/reduce.h"
#include "comm/schedule.h"

static int count_points(struct topology *t, const struct group_member *members, struct err *err)
{
    for (uint32_t i = 0; i < t->n_members; i++) {
        const struct group_member *m = &members[i];

        if (m->n_devices == 0 && m->n_servers == 0)
            return err_set(err, ERR_INPUT, "%s has no replica; expected at least one", m->name);
        if (m->n_devices != 0 && m->n_servers != 0)
            return err_set(err, ERR_INPUT, "%s has %u replicas and %u servers; expected one kind",
                           m->name, m->n_devices, m->n_servers);
        if (m->n_devices > COMM_MAX_RANKS - t->world)
            return err_set(err, ERR_INPUT, "%s: more than %d replicas, expected at most that many",
                           m->name, COMM_MAX_RANKS);
        if (m->n_servers > COMM_MAX_SERVERS - t->n_servers)
            return err_set(err, ERR_INPUT, "%s: more than %d servers, expected at most that many",
                           m->name, COMM_MAX_SERVERS);
        t->world += m->n_devices;
        t->n_servers += m->n_servers;
        t->n_trainers += m->n_devices != 0;
    }
    if (t->world == 0)
        return err_set(
            err, ERR_INPUT,
            "communicator without replicas; expected at least one member with a replica");
    return 0;
}

/* Allocates one block of memory and divides it into the arrays. */
static int allocate(struct topology *t)
{
    size_t m = t->n_members, w = t->world;
    uint32_t *p = calloc(5 * m + 2 + 5 * w + 3 + t->n_servers, sizeof(*p));

    if (p == NULL)
        return ERR_NOMEM;
    t->memory = p;
    t->first_rank = p, p += m + 1;
    t->first_server = p, p += m + 1;
    t->host_of = p, p += m;
    t->leader_of = p, p += m;
    t->shares_with = p, p += m;
    t->member_of = p, p += w + t->n_servers;
    t->node_of = p, p += w;
    t->node_first = p, p += w + 1;
    t->leaves = p, p += w + 1;
    t->node_leaves = p; /* [w + 1] */
    return 0;
}

static void number_points(struct topology *t, const struct group_member *members)
{
    for (uint32_t m = 0; m < t->n_members; m++) {
        t->first_rank[m + 1] = t->first_rank[m] + members[m].n_devices;
        t->first_server[m + 1] = t->first_server[m] + members[m].n_servers;
        for (uint32_t r = t->first_rank[m]; r < t->first_rank[m + 1]; r++)
            t->member_of[r] = m;
        for (uint32_t s = t->first_server[m]; s < t->first_server[m + 1]; s++)
            t->member_of[t->world + s] = m;
    }
}

/* Hosts are those of the members with ranks. The numbers of the ps follow. */
static void find_hosts(struct topology *t, const struct group_member *members, bool shared_memory)
{
    for (uint32_t m = 0; m < t->n_members; m++) {
        uint32_t h = t->n_hosts;

        if (members[m].n_devices == 0)
            continue;
        if (shared_memory)
            for (h = 0; h < t->n_hosts; h++)
                if (strcmp(members[t->leader_of[h]].host_key, members[m].host_key) == 0)
                    break;
        if (h == t->n_hosts)
            t->leader_of[t->n_hosts++] = m;
        t->host_of[m] = h;
    }
    for (uint32_t m = 0, h = t->n_hosts; m < t->n_members; m++)
        if (members[m].n_devices == 0) {
            t->leader_of[h] = m;
            t->host_of[m] = h++;
        }
}

static void find_shares(struct topology *t, const struct group_member *members, bool shared_memory)
{
    for (uint32_t m = 0; m < t->n_members; m++) {
        uint32_t first = shared_memory ? 0 : m;

        while (strcmp(members[first].host_key, members[m].host_key) != 0)
            first++;
        t->shares_with[m] = first;
    }
}

static bool same_host(const struct topology *t, uint32_t rank, uint32_t other)
{
    return t->host_of[t->member_of[rank]] == t->host_of[t->member_of[other]];
}

/* Returns the largest power of two such that no aligned block of that many ranks spans two
 * hosts. */
static uint32_t block_ranks(const struct topology *t)
{
    uint32_t block = t->world;

    for (uint32_t r = 1; r < t->world; r++)
        if (!same_host(t, r - 1, r))
            while (r % block != 0)
                block /= 2;
    return block;
}

static void add_node(struct topology *t, uint32_t first, uint32_t end)
{
    for (uint32_t r = first; r < end; r++)
        t->node_of[r] = t->n_nodes;
    t->node_first[t->n_nodes++] = first;
}

static bool on_one_host(const struct topology *t, uint32_t first, uint32_t end)
{
    for (uint32_t r = first + 1; r < end; r++)
        if (!same_host(t, first, r))
            return false;
    return true;
}

/* Finds the largest subtrees of the subtree [first, end) of ranks that are on one host each. */
static void cut_nodes(struct topology *t, uint32_t first, uint32_t end)
{
    uint32_t cut;

    if (on_one_host(t, first, end)) {
        add_node(t, first, end);
        return;
    }
    cut = reduce_cut(t->leaves, first, end - first);
    cut_nodes(t, first, cut);
    cut_nodes(t, cut, end);
}

/* Makes a node of all successive ranks of a host. */
static void join_nodes(struct topology *t)
{
    for (uint32_t first = 0, end = 1; first < t->world; first = end++) {
        while (end < t->world && same_host(t, first, end))
            end++;
        add_node(t, first, end);
    }
}

static bool is_tree(const uint32_t *leaves, uint32_t first, uint32_t n)
{
    uint32_t cut = n > 1 ? reduce_cut(leaves, first, n) : 0;

    return n == 1 || (cut > first && is_tree(leaves, first, cut - first) &&
                      is_tree(leaves, cut, first + n - cut));
}

/* Equal shares are treated as no shares. */
static int find_leaves(struct topology *t, const uint32_t *shares, struct err *err)
{
    bool equal = true;

    for (uint32_t r = 0; shares != NULL && r < t->world; r++) {
        if (shares[r] == 0 || shares[r] > COMM_MAX_LEAVES - t->leaves[r])
            return err_set(err, ERR_INPUT,
                           "rank %u has a share of %u; expected 1 or more, %d in all", r, shares[r],
                           COMM_MAX_LEAVES);
        t->leaves[r + 1] = t->leaves[r] + shares[r];
        equal = equal && shares[r] == shares[0];
    }
    if (shares == NULL || (equal && schedule_is_power(shares[0])))
        t->leaves = NULL; /* the tree over the ranks */
    else if (!is_tree(t->leaves, 0, t->world))
        return err_set(err, ERR_INPUT, "the shares of the ranks are not subtrees of one tree");
    return 0;
}

static void find_nodes(struct topology *t, enum topology_nodes nodes)
{
    bool power = schedule_is_power(t->world) && t->leaves == NULL && nodes == TOPOLOGY_FASTEST;
    uint32_t block = power ? block_ranks(t) : 0, smallest = t->world;

    if (nodes == TOPOLOGY_HOSTS)
        join_nodes(t);
    else if (!power)
        cut_nodes(t, 0, t->world);
    for (uint32_t r = 0; power && r < t->world; r += block)
        add_node(t, r, r + block);
    t->node_first[t->n_nodes] = t->world;
    t->kind = t->n_nodes == 1 ? TOPOLOGY_ONE_NODE : power ? TOPOLOGY_HALVING : TOPOLOGY_DIRECT;
    for (uint32_t n = 0; n < t->n_nodes; n++) {
        uint32_t end = t->node_first[n + 1];

        t->node_leaves[n + 1] = t->leaves != NULL ? t->leaves[end] : end;
        if (topology_node_ranks(t, n) < smallest)
            smallest = topology_node_ranks(t, n);
    }
    if (t->kind != TOPOLOGY_DIRECT || nodes == TOPOLOGY_HOSTS)
        t->node_leaves = NULL;
    t->n_channels = smallest;
}

int topology_init(struct topology *t, const struct group_member *members, uint32_t n_members,
                  const uint32_t *shares, bool shared_memory, enum topology_nodes nodes,
                  struct err *err)
{
    struct topology made = { .n_members = n_members };
    int rc = count_points(&made, members, err);

    if (rc < 0)
        return rc;
    if (allocate(&made) < 0)
        return err_set(err, ERR_NOMEM, "topology of %u ranks: out of memory", made.world);
    number_points(&made, members);
    find_hosts(&made, members, shared_memory);
    find_shares(&made, members, shared_memory);
    CHECK(shares == NULL || nodes != TOPOLOGY_HOSTS);
    rc = find_leaves(&made, shares, err);
    if (rc < 0) {
        topology_fini(&made);
        return rc;
    }
    find_nodes(&made, nodes);
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

uint32_t topology_peers(const struct topology *t, uint32_t rank, uint32_t *out)
{
    uint32_t node = t->node_of[rank], channel = rank - t->node_first[node], n = 0;

    if (channel >= t->n_channels)
        return 0;
    if (t->kind == TOPOLOGY_HALVING) {
        for (uint32_t distance = 1; distance < t->n_nodes; distance *= 2)
            out[n++] = t->node_first[node ^ distance] + channel;
    } else if (t->kind == TOPOLOGY_DIRECT) {
        for (uint32_t other = 0; other < t->n_nodes; other++)
            if (other != node)
                out[n++] = t->node_first[other] + channel;
    }
    return n;
}

void topology_represented(const struct topology *t, uint32_t node, uint32_t channel,
                          uint32_t *first, uint32_t *end)
{
    uint32_t ranks = topology_node_ranks(t, node);

    CHECK(channel < t->n_channels);
    *first = t->node_first[node] + channel * ranks / t->n_channels;
    *end = t->node_first[node] + (channel + 1) * ranks / t->n_channels;
}

/* Writes "2 hosts x 4", "3 hosts of 1 to 4", or "4 members x 1" where memory is not shared. */
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
        snprintf(out, n, "%s", t->n_trainers == 1 ? "1 member" : "1 host");
    else if (least == most)
        snprintf(out, n, "%u %s x %u", t->n_hosts, t->n_hosts < t->n_trainers ? "hosts" : "members",
                 most);
    else
        snprintf(out, n, "%u %s of %u to %u", t->n_hosts,
                 t->n_hosts < t->n_trainers ? "hosts" : "members", least, most);
}

/* Writes "; 4 servers over shared memory + tcp": the channels between ranks and servers. */
static void describe_servers(const struct topology *t, char *out, size_t n)
{
    bool memory = false, tcp = false;

    for (uint32_t r = 0; r < t->world; r++)
        for (uint32_t s = t->world; s < t->world + t->n_servers; s++) {
            bool shares = t->shares_with[t->member_of[r]] == t->shares_with[t->member_of[s]];

            memory = memory || shares;
            tcp = tcp || !shares;
        }
    snprintf(out, n, "; %u server%s over %s%s%s", t->n_servers, t->n_servers == 1 ? "" : "s",
             memory ? "shared memory" : "", memory && tcp ? " + " : "", tcp ? "tcp" : "");
}

const char *topology_describe(const struct topology *t, char *out, size_t n)
{
    static const char *const kinds[] = { "binary tree", "halving/doubling", "direct" };
    char parts[64], groups[96] = "", servers[64] = "";
    bool memory = t->n_nodes < t->world;

    describe_parts(t, parts, sizeof(parts));
    /* mentioned, because ranks of a host then also exchange over tcp */
    if (t->n_nodes != t->n_hosts)
        snprintf(groups, sizeof(groups),
                 " as %u groups (the hosts are unequal or their ranks alternate)", t->n_nodes);
    if (t->n_servers > 0)
        describe_servers(t, servers, sizeof(servers));
    snprintf(out, n, "%u rank%s: %s%s, %s%s%s, %s%s", t->world, t->world == 1 ? "" : "s", parts,
             groups, memory || t->n_nodes == 1 ? "shared memory" : "",
             memory && t->n_nodes > 1 ? " + " : "", t->n_nodes > 1 ? "tcp" : "", kinds[t->kind],
             servers);
    return out;
}
