/* spare_lanes.h - spare lanes: a rank that waits for a late one computes the last lanes of that rank, too.
 *
 * The *block* of a rank is its second piece (comm/pieces.h); with one piece, the right half of that subtree of
 * lanes. Every rank has a *helper*: the next rank, which receives the first message of the exchange from it.
 *
 *     late rank     ... lanes ... (pause) ... lanes | looks for an offer | exchange: its state
 *     helper        ... lanes ... | exchange: waits, computes the block, offers it | continues
 *
 * The late rank alone decides, when its exchange begins, and states the result in the head of each of its
 * messages. A helper sends its copy only if that state says so: no state loses a block or counts it twice,
 * whenever an offer arrives.
 *
 *     state  offer                                block of the late rank   copy of the helper
 *     OWN    none before the exchange             contributed              not sent
 *     GIVEN  before the block was complete        not computed             contributed
 *     APART  after it, before the exchange        contributed              compared with it
 *
 * The sum follows the tree over lanes in all three. Pure arithmetic. Threads: any. */
#ifndef COMM_SPARE_LANES_H
#define COMM_SPARE_LANES_H

#include <stdbool.h>
#include <stdint.h>

struct group_piece;

enum spare_state { /* numbers of the wire (message.h) */
    SPARE_OWN = 0,
    SPARE_GIVEN = 1,
    SPARE_APART = 2,
};

struct spare_lanes { /* of a rank */
    uint32_t first, n;       /* lanes without the block */
    uint32_t block, n_block; /* first lane of the block, lanes; n_block 0: one lane, and no block */
    bool joins;              /* both are the halves of one subtree: their sum is that of the rank */
};

/* Returns the lanes of a rank: those of its pieces, or, if n_pieces is 0, of its share. shares: [rank + 1];
 * NULL: one lane each. */
struct spare_lanes spare_lanes_of(const struct group_piece *pieces, uint32_t n_pieces,
                                  const uint32_t *shares, uint32_t rank);

/* Whether a rank has a block. A property of the division, so all ranks of a group get the same answer, also those
 * that have one lane and help no other rank. Arguments: as spare_lanes_of(), of `world` ranks. */
bool spare_lanes_exist(const struct group_piece *pieces, uint32_t n_pieces, const uint32_t *shares,
                       uint32_t world);

/* Returns the helper of a rank, and the rank that a rank helps. world >= 2. */
static inline uint32_t spare_helper(uint32_t rank, uint32_t world)
{
    return (rank + 1) % world;
}

static inline uint32_t spare_helped(uint32_t rank, uint32_t world)
{
    return (rank + world - 1) % world;
}

#endif
