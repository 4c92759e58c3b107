/* spare_lanes.c - see spare_lanes.h. */
#include "comm/spare_lanes.h"

#include <stddef.h>

#include "base/group_view.h"

/* The lanes [first, first + n) are a subtree, whose left half has the largest power of two below n. */
static struct spare_lanes halves(uint32_t first, uint32_t n)
{
    uint32_t left = 1;

    while (left * 2 < n)
        left *= 2;
    return (struct spare_lanes){ .first = first,
                                 .n = left,
                                 .block = first + left,
                                 .n_block = n - left,
                                 .joins = n > left };
}

struct spare_lanes spare_lanes_of(const struct group_piece *pieces, uint32_t n_pieces,
                                  const uint32_t *shares, uint32_t rank)
{
    const struct group_piece *first = NULL;
    uint32_t begin = 0;

    for (uint32_t r = 0; n_pieces == 0 && r < rank; r++)
        begin += shares != NULL ? shares[r] : 1;
    for (uint32_t i = 0; i < n_pieces; i++) {
        const struct group_piece *p = &pieces[i];

        if (p->rank == rank && first != NULL)
            return (struct spare_lanes){ first->first, first->n, p->first, p->n, false };
        if (p->rank == rank)
            first = p;
    }
    if (first != NULL)
        return halves(first->first, first->n);
    return halves(begin, shares != NULL ? shares[rank] : 1);
}

bool spare_lanes_exist(const struct group_piece *pieces, uint32_t n_pieces, const uint32_t *shares,
                       uint32_t world)
{
    for (uint32_t r = 0; r < world; r++)
        if (spare_lanes_of(pieces, n_pieces, shares, r).n_block > 0)
            return true;
    return false;
}
