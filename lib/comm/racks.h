/* racks.h - two levels of exchange for the all-reduce of a DIRECT topology (topology.h): inside racks, and
 * between racks.
 *
 * If all nodes exchange with all nodes, a rack of m of the N nodes sends 2 m (N - m) / N vectors to the others. With
 * racks, the vector is cut into a block for each of the R racks, and
 *
 *   1. for each block, the nodes of a rack reduce-scatter among themselves: node i of m has part i
 *   2. they send what they have of the block of another rack to the nodes of that rack
 *   3. these add all racks, and send the sum back to the other racks
 *   4. the nodes of a rack gather all parts
 *
 * The additions follow the tree over ranks, so the nodes of a rack can add only what is a whole subtree. A *root* is
 * the largest subtree whose nodes are in one rack; a rack with k roots sends k vectors side by side in
 * step 2. It sends (1 - 1/R)(k + 1) vectors in all: with k = 1, of racks that are subtrees, 2 (1 - 1/R), which
 * is the least possible. The bits are those of the direct exchange.
 *
 * Pure; no sockets, no clock. */
#ifndef COMM_RACKS_H
#define COMM_RACKS_H

#include <stddef.h>
#include <stdint.h>

#include "comm/comm.h"

struct err;
struct topology;

struct racks {
    uint32_t n_racks;      /* 0: all nodes exchange directly, and the rest is not used */
    uint32_t least, most;  /* nodes of a rack */
    uint32_t *first;       /* [n_racks + 1] first node of each rack, which are consecutive */
    uint32_t n_roots;
    uint32_t *root_first;  /* [n_roots + 1] first node of each root */
    uint32_t *root_leaves; /* [n_roots + 1] */
    uint32_t *roots;       /* [n_racks + 1] first root of each rack */
    void *memory;          /* owned; contains all arrays */
};

/* Divides the nodes into racks by the locations of the members. n_racks becomes 0 if the topology is not
 * DIRECT along a tree, a member with ranks has no location, there is one rack or every rack has one node, or no rack
 * would send or receive less than by the direct exchange. Errors: ERR_NOMEM. */
int racks_init(struct racks *r, const struct topology *t, const struct group_member *members,
               struct err *err);
void racks_fini(struct racks *r); /* idempotent */

uint32_t racks_nodes(const struct racks *r, uint32_t rack);
uint32_t racks_of(const struct racks *r, uint32_t node); /* the rack of a node */

/* Returns the most vectors that a rack sends to the others, or receives from them, in an all-reduce. */
double racks_traffic(const struct racks *r);
/* The same if all nodes exchange with all nodes. */
double racks_direct_traffic(const struct racks *r);

/* Returns the part of `block`, the block of a rack, that belongs to node `index` of a rack with `nodes` nodes; of a
 * vector of `count` elements. */
struct comm_range racks_part(const struct racks *r, uint32_t block, uint32_t nodes, uint32_t index,
                             size_t count);
/* Returns the most elements of a vector whose parts have at most `most` elements each; most > 64. */
size_t racks_chunk(const struct racks *r, size_t most);

#endif
