/* topology.h - who works with whom: from the members to hosts, nodes, channels and connections.
 * Pure; no sockets, no clock.
 *
 *   host     members that map each other's arenas (without shared memory: every member is one)
 *   node     consecutive ranks of one host that reduce in place together, before and after
 *            anything goes over a wire
 *   channel  the c-th rank of every node; the channels exchange side by side, each its own part
 *
 *   kind      when                             nodes                          between them
 *   ONE_NODE  all ranks on one host            one                            nothing
 *   HALVING   world a power of two, equal      the largest aligned blocks of  halving/doubling
 *             shares                           2^k ranks that no host border
 *                                              cuts (k = 0: a rank each)
 *   DIRECT    otherwise                        the largest subtrees that no   everybody with
 *                                              host border cuts               everybody
 *
 * With equal aligned hosts the blocks are the hosts. All add along one binary tree: over the ranks,
 * or, where ranks have shares of different size, over the leaves that the shares are made of.
 * DIRECT nodes may differ in size: there are as many channels as the smallest node has ranks, and
 * channel c of a node speaks for several of its ranks (topology_spoken()). */
#ifndef COMM_TOPOLOGY_H
#define COMM_TOPOLOGY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct comm_member;
struct err;

enum topology_kind { TOPOLOGY_ONE_NODE, TOPOLOGY_HALVING, TOPOLOGY_DIRECT };

struct topology {
    enum topology_kind kind;
    uint32_t n_members, world, n_hosts, n_nodes, n_channels;
    uint32_t *first_rank; /* [n_members + 1] */
    uint32_t *member_of;  /* [world] */
    uint32_t *host_of;    /* [n_members]; hosts are numbered by their first member */
    uint32_t *leader_of;  /* [n_hosts]: its first member */
    uint32_t *node_first; /* [n_nodes + 1]: first rank of each node */
    uint32_t *node_of;    /* [world] */
    uint32_t *leaves;     /* [world + 1]: rank r is the leaves [leaves[r], leaves[r + 1]); NULL: one each */
    uint32_t *node_leaves; /* [n_nodes + 1]: of the nodes likewise; NULL: equal nodes, a power of two */
    void *memory;         /* owned; behind all arrays */
};

/* shares: NULL, or [ranks] as in comm_opts. Errors: ERR_INPUT (no member, a member without ranks, too
 * many ranks, shares that are no subtrees), ERR_NOMEM. */
int topology_init(struct topology *t, const struct comm_member *members, uint32_t n_members,
                  const uint32_t *shares, bool shared_memory, struct err *err);
void topology_fini(struct topology *t); /* idempotent */

uint32_t topology_node_ranks(const struct topology *t, uint32_t node);

/* The ranks of other nodes that `rank` exchanges with, at most n_nodes - 1; none if it works no
 * channel. The relation is symmetric. */
uint32_t topology_peers(const struct topology *t, uint32_t rank, uint32_t *out);

/* The ranks [*first, *end) of a node whose slices channel `channel` carries. */
void topology_spoken(const struct topology *t, uint32_t node, uint32_t channel, uint32_t *first,
                     uint32_t *end);

/* "8 ranks: 2 hosts x 4, shared memory + tcp, halving/doubling"; returns out. */
const char *topology_describe(const struct topology *t, char *out, size_t n);

#endif
