/* piece_tree.h - which sources nodes exchange if the ranks have pieces of lanes (comm/pieces.h).
 *
 * A node adds up what it can: its pieces that are complete subtrees. A *root* is the largest subtree of
 * lanes that one node has in full; a node has one or more, and sends the sum of each. With the pieces
 *
 *     lanes   0-3  4-5  6  7        nodes   A has 0-3, 6 and 7; B has 4-5
 *
 * the roots are 0-3 (A), 4-5 (B), 6-7 (A). Pure; no sockets, no clock. */
#ifndef COMM_PIECE_TREE_H
#define COMM_PIECE_TREE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/group_view.h"

struct err;

struct piece_root {
    uint32_t node;
    uint32_t first, end; /* pieces [first, end) */
};

struct piece_tree {
    uint32_t n_pieces; /* 0: the ranks have equal shares, and the tree is empty */
    uint32_t n_roots;
    struct group_piece *pieces; /* [n_pieces] by first lane */
    uint32_t *leaves;           /* [n_pieces + 1] first lane of each piece, then the number of lanes */
    struct piece_root *roots;   /* [n_roots] by first lane */
    uint32_t *root_leaves;      /* [n_roots + 1] */
    uint32_t *roots_of;         /* [n_roots] the roots of node 0, then those of node 1, ... */
    uint32_t *node_roots;       /* [n_nodes + 1]: node n has roots_of[node_roots[n]], ... */
    bool *is_second;            /* [n_pieces] the piece is the second one of its rank */
    void *memory;               /* owned; contains all arrays */
};

/* node_of: [world] of each rank; nodes are numbered from 0. n 0: an empty tree. Errors: ERR_INPUT (not a
 * division of lanes), ERR_NOMEM. */
int piece_tree_init(struct piece_tree *t, const struct group_piece *pieces, uint32_t n,
                    const uint32_t *node_of, uint32_t world, uint32_t n_nodes, struct err *err);
void piece_tree_fini(struct piece_tree *t); /* idempotent */

bool piece_tree_has_two(const struct piece_tree *t, uint32_t rank); /* pieces */
uint32_t piece_tree_n_roots(const struct piece_tree *t, uint32_t node);
/* Returns the index of root i of a node. */
uint32_t piece_tree_root(const struct piece_tree *t, uint32_t node, uint32_t i);

#endif
