/* coded_tree.h - sums along the binary tree over lanes (micro-batches), in which the sum of each group of
 * lanes is rounded through a code. Pure arithmetic. Threads: any.
 *
 *     sum of all   (g0 + g1) + (g2 + g3)           g: the rounded sum of a group
 *     group 2      round((l4 + l5) + (l6 + l7))    l: the sum of a lane
 *
 * A source is a subtree of that tree: a part of a group, a group, or several groups. Blocks that the map does
 * not code are summed without roundings; they can have other sources. */
#ifndef COMM_CODED_TREE_H
#define COMM_CODED_TREE_H

#include <stddef.h>
#include <stdint.h>

#include "code/code.h"

struct code_map;

enum coded_form {
    CODED_SUM,   /* float32: part of a group, or the sum of several rounded groups */
    CODED_GROUP, /* float32: the sum of a group, which must be rounded */
    CODED_WIRE,  /* the wire form of the sum of a group */
    CODED_MORE,  /* the same, of the coded blocks alone */
};

struct coded_source {
    const void *data; /* of the first element */
    enum coded_form form;
};

struct coded_sources {
    const struct coded_source *from; /* [n] */
    uint32_t n;
    const uint32_t *lanes; /* [n + 1]: source i is the lanes [lanes[i], lanes[i + 1]) */
};

struct coded_tree {
    const struct code_map *map;
    struct code_key key; /* `place` is not used */
    struct coded_sources coded, raw; /* of blocks that the map codes, and of the others */
    uint32_t group_lanes; /* lanes of a group; 0: nothing is rounded, and all sources are CODED_SUM */
};

/* Writes the sum of elements [begin, end) of the map. `begin` is a multiple of CODE_BLOCK. `out` may be the
 * data of a source that is float32. */
void coded_tree_sum(const struct coded_tree *t, size_t begin, size_t end, float *out);

#endif
