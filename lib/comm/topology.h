/* topology.h - which ranks work together: from the members to hosts, nodes, channels and
 * connections. Pure; no sockets, no clock.
 *
 *   host     members that map each other's arenas (without shared memory each member is a host)
 *   node     consecutive ranks of one host that reduce in place together, before and after the
 *            exchange over the network
 *   channel  the c-th rank of every node; the channels work in parallel, each on its own part
 *
 *   kind      when                             nodes                          between them
 *   ONE_NODE  all ranks on one host            one                            nothing
 *   HALVING   world a power of two, equal      the largest aligned blocks of  halving/doubling
 *             shares                           2^k ranks inside one host
 *                                              (k = 0: a rank each)
 *   DIRECT    otherwise, or if requested       the largest subtrees inside    all nodes with
 *                                              one host                       all nodes
 *
 * With equal aligned hosts the blocks are the hosts. All kinds add along one binary tree: over the
 * ranks, or, if ranks have shares of different size, over the leaves of the shares. DIRECT nodes
 * may differ in size: there are as many channels as the smallest node has ranks, and channel c of a
 * node represents several of its ranks (topology_represented()).
 *
 * A member without ranks is a parameter server (ps). Its service threads are *servers*. A ps belongs
 * to no node and no channel, and changes nothing of the other members' ranks, hosts and nodes. A
 * *point* is a rank or a server: ranks are 0..world-1, then follow the servers, in the order of the
 * members. */
#ifndef COMM_TOPOLOGY_H
#define COMM_TOPOLOGY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct group_member;
struct err;

/* Which ranks are to work together. */
enum topology_nodes {
    TOPOLOGY_FASTEST, /* as in the table above */
    TOPOLOGY_LINKED,  /* as in the table, but all nodes have links with all nodes: never HALVING */
    TOPOLOGY_HOSTS,   /* the ranks have pieces (piece_tree.h): ONE_NODE or DIRECT; a node is all successive
                         ranks of a host, of which the sum need not be a subtree. No shares */
};

enum topology_kind { TOPOLOGY_ONE_NODE, TOPOLOGY_HALVING, TOPOLOGY_DIRECT };

struct topology {
    enum topology_kind kind;
    uint32_t n_members, world, n_hosts, n_nodes, n_channels;
    uint32_t n_trainers;    /* members with ranks; the other members are ps */
    uint32_t n_servers;     /* of all ps */
    uint32_t *first_rank;   /* [n_members + 1] */
    uint32_t *first_server; /* [n_members + 1]; counts from 0 */
    uint32_t *member_of;    /* [world + n_servers]: member of each point */
    uint32_t *host_of;      /* [n_members]; hosts are numbered by their first member. A ps has a
                               number of its own, >= n_hosts */
    uint32_t *leader_of;    /* [n_hosts, then the ps]: its first member */
    uint32_t *shares_with;  /* [n_members]: the first member, ranks or ps, with which it can share memory */
    uint32_t *node_first; /* [n_nodes + 1]: first rank of each node */
    uint32_t *node_of;    /* [world] */
    uint32_t *leaves;     /* [world + 1]: rank r is the leaves [leaves[r], leaves[r + 1]); NULL: one
                             leaf each */
    uint32_t *node_leaves; /* [n_nodes + 1]: leaves of the nodes; NULL: equal nodes, a power of
                              two; or TOPOLOGY_HOSTS: sums of nodes are no part of a tree */
    void *memory;         /* owned; contains all arrays */
};

/* shares: NULL, or [ranks] as in comm_opts. Errors: ERR_INPUT (no member with ranks, a member with
 * neither ranks nor servers or with both, too many of them, shares that are not subtrees),
 * ERR_NOMEM. */
int topology_init(struct topology *t, const struct group_member *members, uint32_t n_members,
                  const uint32_t *shares, bool shared_memory, enum topology_nodes nodes,
                  struct err *err);
void topology_fini(struct topology *t); /* idempotent */

uint32_t topology_node_ranks(const struct topology *t, uint32_t node);

/* Writes the ranks of other nodes with which `rank` exchanges, and returns their number: at most
 * n_nodes - 1; 0 if it works no channel. The relation is symmetric. */
uint32_t topology_peers(const struct topology *t, uint32_t rank, uint32_t *out);

/* Writes the ranks [*first, *end) of a node whose slices channel `channel` carries. */
void topology_represented(const struct topology *t, uint32_t node, uint32_t channel,
                          uint32_t *first, uint32_t *end);

/* Writes "8 ranks: 2 hosts x 4, shared memory + tcp, halving/doubling", then "; 4 servers over tcp" if
 * there are servers; returns out. */
const char *topology_describe(const struct topology *t, char *out, size_t n);

#endif
