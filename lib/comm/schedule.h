/* schedule.h - what a node sends, receives and adds, step by step. Pure; no sockets, no clock.
 *
 * A schedule is a list of steps over the segments of a vector. In each step a node sends one range
 * of segments to one node while it receives another from one node, and adds what it received to its
 * own or copies it. Steps are computed when asked for, so a list costs no memory.
 *
 * Halving/doubling (nodes a power of two; R. Rabenseifner, "Optimization of Collective Reduction
 * Operations", ICCS 2004, here with the nearest partner first):
 *   reduce-scatter  step k: with node ^ 2^k; of the range both still hold, give one half, keep the
 *                   other; each step joins two neighbouring subtrees, so the additions follow the
 *                   binary tree. Node h ends with segment bitreverse(h): ranges stay contiguous
 *   all-gather      the same backwards, copying
 *   doubling        for small vectors: in step k exchange everything; the same additions, half
 *                   the steps
 *   broadcast       step k: the nodes whose distance (xor) from the root is below 2^k pass it on
 * Direct (any number of nodes): in step i with the nodes i + 1 before and behind, so that everybody
 * sends and receives as much in each
 *   reduce-scatter  node h is sent segment h of everybody, to be added along the tree when all are
 *                   there (`keep`: not onto its own)
 *   all-gather      every node sends its segment to everybody
 *   broadcast       the root sends node h segment h; an all-gather is the rest */
#ifndef COMM_SCHEDULE_H
#define COMM_SCHEDULE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { SCHEDULE_NOBODY = UINT32_MAX };

enum schedule_what {
    SCHEDULE_REDUCE_SCATTER,
    SCHEDULE_ALL_GATHER,
    SCHEDULE_DOUBLING, /* an all-reduce of everything at once; halving/doubling only */
    SCHEDULE_BROADCAST,
};

struct schedule {
    enum schedule_what what;
    bool direct;         /* else halving/doubling: n_nodes is a power of two */
    uint32_t n_nodes;    /* >= 2 */
    uint32_t self;       /* this node */
    uint32_t root;       /* broadcast: the node that has it */
    uint32_t n_segments; /* broadcast by halving/doubling: 1; else n_nodes */
};

struct schedule_range {
    uint32_t begin, end; /* segments */
};

struct schedule_step {
    uint32_t to, from; /* nodes; SCHEDULE_NOBODY: nothing to send, to receive */
    struct schedule_range send, recv;
    bool add;  /* received is added to ours; else it replaces it */
    bool keep; /* neither: it is put aside */
};

bool schedule_is_power(uint32_t n);                /* of two; 1 is one */
uint32_t schedule_log2(uint32_t n);                /* rounded down; n >= 1 */
uint32_t schedule_reverse(uint32_t x, uint32_t n); /* the log2(n) low bits of x, mirrored */

uint32_t schedule_steps(const struct schedule *s);
struct schedule_step schedule_step(const struct schedule *s, uint32_t i); /* i < steps */

/* Part `i` of `count` elements cut into `n` even parts at multiples of 16. */
struct comm_range schedule_part(uint32_t n, uint32_t i, size_t count);

#endif
