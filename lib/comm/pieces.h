/* pieces.h - the division of the lanes (micro-batches) of a step among ranks of unequal speed.
 *
 * A rank has one or two pieces. A piece is an aligned block of 2^k lanes: a subtree of the binary tree
 * over all lanes. Whoever computes a lane, the sum follows that tree, so a division decides no bit.
 *
 * Ranks of equal speed have equal shares instead (comm_share()), one subtree each. With unequal speeds a
 * rank with one subtree is seldom close to its ideal share: 64 lanes and seconds 1, 1, 1, 2 take 32
 * seconds with one piece per rank, 20 with two, and 18.3 with any number of lanes.
 *
 * Pure arithmetic. Threads: any. */
#ifndef COMM_PIECES_H
#define COMM_PIECES_H

#include <stdbool.h>
#include <stdint.h>

struct err;
struct group_piece;

enum {
    PIECES_PER_RANK = 2,
    PIECES_MAX_RANKS = 512,   /* larger groups, and more lanes, keep equal shares: */
    PIECES_MAX_LANES = 4096,  /* a plan takes lanes x ranks x log2(lanes)^3 / 128 operations */
};

/* Validates a division: the pieces are sorted, aligned, and cover the lanes once; every rank has one or
 * two; none is larger than `most`, and a second piece of a rank is smaller than its first. Errors:
 * ERR_INPUT. */
int pieces_check(const struct group_piece *pieces, uint32_t n, uint32_t lanes, uint32_t world,
                 uint32_t most, struct err *err);

/* Returns the largest number of seconds that a rank computes. seconds: [world] of a lane on each rank. n
 * 0: each rank has its share. shares: [world]; NULL: as comm_share() divides `lanes`, whose limits hold. The pieces
 * are valid. */
double pieces_seconds(const struct group_piece *pieces, uint32_t n, const uint32_t *shares,
                      const double *seconds, uint32_t world, uint32_t lanes);

/* Writes the division with the lowest pieces_seconds() to `out` [PIECES_PER_RANK * world]; among such
 * divisions ranks have one piece where that is possible, because a second one is sent too. most: lanes of
 * the largest piece, a power of two. Returns the number of pieces; 0: equal shares are as good, or the
 * group is beyond the limits above. seconds: finite, > 0. */
uint32_t pieces_plan(const double *seconds, uint32_t world, uint32_t lanes, uint32_t most,
                     struct group_piece *out);

#endif
