/* tiers.h - the all-reduce of a DIRECT topology (topology.h) in several levels: inside racks, between the racks of a
 * zone, between zones.
 *
 * If all nodes exchange with all nodes, a rack of m of the N nodes sends 2 m (N - m) / N vectors to the others. With
 * tiers, the nodes form a tree of *groups* by the names of their locations: all nodes, zones, racks, nodes. A group of R
 * children reduce-scatters a vector X in these steps; X is cut into a block for each child:
 *
 *   1. for each block, each child reduce-scatters it in the same way among its own children; a node does nothing
 *   2. its nodes send what they have of the block of another child to the nodes of that child
 *   3. these add what the children sent
 *
 * The all-gather makes the same steps backwards: children send the sums of their block to each other, then each child
 * gathers all blocks.
 *
 * The additions follow the tree over ranks, so a group can add only what is a whole subtree. A *root* of a group is the largest
 * subtree whose nodes are all in it; a child with k roots sends k vectors side by side in step 2. So it sends
 * (1 - 1/R)(k + 1) vectors to its siblings in all: with k = 1, of children that are subtrees, 2 (1 - 1/R), which is the
 * least possible, at every level at once. The bits are those of the direct exchange.
 *
 * Lanes are cut so that racks have one root where possible (comm_share_view()). For 3 racks of 3 ranks with equal shares it is
 * possible if a factor of the tree over lanes is 3 (base/lane_tree.h; daemon/rack_tree.h advises it). In a plain tree,
 * k + 1 = 3 in place of 2 is close to the least: the nine leaves have the subtrees {0-7} and those below, and {8}, so a
 * rack of three leaves is at least two subtrees. A rack sends a vector for each of them unless the sibling of a subtree is
 * sent to it first, which costs as much, and it sends the sum of its own block to both other racks. The smallest total
 * over all racks for such a tree is 5 vectors, against 6 here, and only with owners of unequal size.
 *
 * A level is left out where its groups would send as much as without it.
 *
 * Pure; no sockets, no clock. */
#ifndef COMM_TIERS_H
#define COMM_TIERS_H

#include <stddef.h>
#include <stdint.h>

#include "base/location.h"
#include "comm/comm.h"

struct err;
struct topology;

enum {
    TIERS_MAX = LOCATION_PARTS + 1, /* levels of exchange: a host can have several nodes */
    TIERS_VECTOR = UINT32_MAX,      /* in place of a buffer: the vector itself */
};

struct tier_group {
    uint32_t first, end;           /* its nodes [first, end) */
    uint32_t children, n_children; /* first child; 0 children: a node */
    uint32_t roots, n_roots;       /* first root */
};

struct tiers {
    uint32_t n_groups;         /* 0: all nodes exchange directly, and the rest is not used */
    struct tier_group *groups; /* [n_groups] all nodes; then children of a group are consecutive */
    uint32_t n_levels;         /* of exchange, >= 2 */
    uint32_t n_buffers;        /* that a node needs at most */
    uint32_t parts;            /* a vector is cut into so many parts, or more */
    /* The roots of siblings are consecutive, and an entry follows them with the end of the last one. */
    uint32_t *root_first; /* first node of each root */
    uint32_t *root_leaf;  /* first leaf */
    void *memory;         /* owned; contains the arrays of roots */
};

/* Finds the groups by the locations of the members. n_groups becomes 0 if the topology is not DIRECT along a tree, a
 * member with ranks has no location, or no level sends less than the direct exchange. Errors: ERR_NOMEM. */
int tiers_init(struct tiers *t, const struct topology *topo, const struct group_member *members,
               struct err *err);
void tiers_fini(struct tiers *t); /* idempotent */

/* Returns the most vectors that a child of `group` sends to its siblings, or receives from them, in an all-reduce. */
double tiers_traffic(const struct tiers *t, uint32_t group);

/* Writes "2 zones, 4 racks": the number of groups of each level above the nodes; returns `out`. */
const char *tiers_describe(const struct tiers *t, char *out, size_t n);

/* Returns the elements of X that belong to `node` after `group`, which contains it, has reduce-scattered X. */
struct comm_range tiers_part(const struct tiers *t, uint32_t group, struct comm_range x,
                             uint32_t node);
/* Returns the most elements of a vector whose parts have at most `most` elements each; most > 128. */
size_t tiers_chunk(const struct tiers *t, size_t most);

/* An end of a transfer: the other node, the elements, and where they are: in the vector, or in a buffer from element `offset`
 * on. No elements: there is no transfer. */
struct tiers_end {
    uint32_t node;
    struct comm_range x;
    uint32_t buffer;
    size_t offset;
};

/* What a node does. Both ends of a transfer have the same tag. */
struct tiers_verbs {
    int (*transfer)(void *arg, const struct tiers_end *send, const struct tiers_end *recv,
                    uint64_t tag); /* <0: ends the schedule */
    /* Sets source i of the next sum: the elements x of the vector, or the begin of a buffer. */
    void (*source)(void *arg, uint32_t i, uint32_t buffer, struct comm_range x);
    /* Adds up n sources for the elements x; the sum replaces the content of `buffer`, which may be a source. leaves:
     * as for reduce(). */
    void (*add)(void *arg, uint32_t buffer, uint32_t n, const uint32_t *leaves,
                struct comm_range x);
};

/* Makes the steps of an all-reduce of `count` elements that are those of `node`. Every node makes the same rounds: in
 * round i a child works for the child that is i further, and in each step of a round a node sends to one node and
 * receives from one. Both ends of a transfer make it in the same step of the same round of their group, so no
 * cycle of nodes waits. */
int tiers_all_reduce(const struct tiers *t, uint32_t node, size_t count,
                     const struct tiers_verbs *verbs, void *arg);

#endif
