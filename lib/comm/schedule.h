/* schedule.h - what a node sends, receives and adds, step by step. Pure; no sockets, no clock.
 *
 * A schedule is a list of steps over the segments of a vector. In each step a node sends one range
 * of segments to one node and receives another range from one node; it adds the received elements
 * to its own, or copies them. Steps are computed on request, so a list needs no memory.
 *
 * Halving/doubling (the number of nodes is a power of two; R. Rabenseifner, "Optimization of
 * Collective Reduction Operations", ICCS 2004, here with the nearest partner first):
 *   reduce-scatter  step k, with node ^ 2^k: of the range that both still have, send one half and
 *                   keep the other. Each step joins two neighbouring subtrees, so the additions
 *                   follow the binary tree. Node h ends with segment bitreverse(h), so ranges stay
 *                   contiguous
 *   all-gather      the same backwards, with copies
 *   doubling        for small vectors: step k exchanges everything; the same additions in half the
 *                   steps
 *   broadcast       step k: the nodes with a distance (xor) below 2^k from the root forward the
 *                   data
 * Direct (any number of nodes): step i is with the nodes at distance i + 1 in both directions, so
 * every node sends and receives the same amount in each step
 *   reduce-scatter  node h receives segment h of all nodes, and adds along the tree after all have
 *                   arrived (`keep`: they are stored, not added at once)
 *   all-gather      every node sends its segment to all nodes
 *   broadcast       the root sends segment h to node h; an all-gather completes it */
#ifndef COMM_SCHEDULE_H
#define COMM_SCHEDULE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { SCHEDULE_NONE = UINT32_MAX };

enum schedule_what {
    SCHEDULE_REDUCE_SCATTER,
    SCHEDULE_ALL_GATHER,
    SCHEDULE_DOUBLING, /* an all-reduce of the whole vector; halving/doubling only */
    SCHEDULE_BROADCAST,
};

struct schedule {
    enum schedule_what what;
    bool direct;         /* false: halving/doubling, and n_nodes is a power of two */
    uint32_t n_nodes;    /* >= 2 */
    uint32_t self;       /* this node */
    uint32_t root;       /* broadcast: the node with the data */
    uint32_t n_segments; /* broadcast by halving/doubling: 1; else n_nodes */
};

struct schedule_range {
    uint32_t begin, end; /* segments */
};

struct schedule_step {
    uint32_t to, from; /* nodes; SCHEDULE_NONE: nothing to send, nothing to receive */
    struct schedule_range send, recv;
    bool add;  /* the received range is added; else it replaces the own range */
    bool keep; /* neither: the received range is stored */
};

bool schedule_is_power(uint32_t n);                /* of two; 1 is a power of two */
uint32_t schedule_log2(uint32_t n);                /* rounded down; n >= 1 */
uint32_t schedule_reverse(uint32_t x, uint32_t n); /* the log2(n) low bits of x, mirrored */

uint32_t schedule_steps(const struct schedule *s);
struct schedule_step schedule_step(const struct schedule *s, uint32_t i); /* i < steps */

/* Returns part `i` of `count` elements cut into `n` equal parts at multiples of `grain`. */
struct comm_range schedule_cut(uint32_t n, uint32_t i, size_t count, size_t grain);
/* The same at multiples of 16. */
struct comm_range schedule_part(uint32_t n, uint32_t i, size_t count);
/* Returns the elements of x from the `at`-th on, at most `most`; none, if x has no more than `at`. */
struct comm_range schedule_some(struct comm_range x, size_t at, size_t most);

#endif
