/* lane_tree.h - the binary tree along which the gradients of the lanes (micro-batches) of a global batch are added.
 *
 * Without factors it is the plain tree over lane numbers: the left half of a tree of n lanes has the largest power of
 * two below n, so six lanes are ((0+1)+(2+3))+(4+5). A job can name branching factors, whose product is the number of
 * lanes: with [2, 3], the lanes are two blocks of three. A plain tree over the blocks adds their sums, and each block
 * adds its own lanes along such a tree again: ((0+1)+2)+((3+4)+5). So a block is a subtree although its size is no
 * power of two, and a rack whose tasks compute a block sends a single sum to other racks.
 *
 * The tree is a part of the plain tree over more leaves. Each lane has the leaves of a whole subtree: in [2, 3], lanes
 * 0, 1 and 2 have the leaves {0}, {1} and {2, 3}. Code that knows only plain trees, such as the communicator
 * (comm_opts.shares) and parameter servers, works with leaves in place of lanes and makes the same additions.
 *
 * Pure. */
#ifndef BASE_LANE_TREE_H
#define BASE_LANE_TREE_H

#include <stddef.h>
#include <stdint.h>

struct err;

enum {
    LANE_TREE_FACTORS = 8,       /* of a tree, at most */
    LANE_TREE_LEAVES = 1 << 16,  /* of a tree, at most; also lanes */
    LANE_TREE_TEXT_BYTES = 6 * LANE_TREE_FACTORS + 8,
};

/* Factors that are powers of two change nothing, so [3, 4] and [12] are equal structs. Zeroed: the plain tree; functions
 * also accept NULL for it. */
struct lane_tree {
    uint32_t n_blocks;
    /* [n_blocks] lanes of the blocks of each level, the largest first; a size is a multiple of the next */
    uint32_t blocks[LANE_TREE_FACTORS - 1];
    uint32_t block_leaves; /* leaves of blocks[0] lanes: a power of two */
};

/* Makes the tree of these factors, the number of the largest blocks first; 1 <= n <= LANE_TREE_FACTORS. Errors:
 * ERR_INPUT: a factor is 0, or there are too many lanes or leaves. */
int lane_tree_make(const uint32_t *factors, uint32_t n, struct lane_tree *out, struct err *err);

/* Writes the shortest list of factors that makes the tree of so many lanes: "[3, 3]"; returns `out`. */
const char *lane_tree_text(const struct lane_tree *t, uint32_t lanes,
                           char out[LANE_TREE_TEXT_BYTES]);

/* Returns the lanes of the left half of a subtree; lanes > 1. A subtree follows from the number of its lanes. */
uint32_t lane_tree_left(const struct lane_tree *t, uint32_t lanes);

/* Returns the first leaf of a lane. For the number of lanes: the number of leaves. */
uint32_t lane_tree_leaf(const struct lane_tree *t, uint32_t lane);

/* Sets the leaves of n successive shares of lanes; the first one begins at lane 0. `leaves` may be `lanes`. */
void lane_tree_leaves(const struct lane_tree *t, const uint32_t *lanes, uint32_t n,
                      uint32_t *leaves);

#endif
