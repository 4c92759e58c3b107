/* map.c - see map.h. */
#include "ps/map.h"

#include "base/check.h"

uint64_t ps_local_rows(uint64_t rows, uint32_t first_shard, uint32_t shard)
{
    uint64_t first_block = (shard + PS_SHARDS - first_shard) % PS_SHARDS;
    uint64_t whole = rows / PS_BLOCK_ROWS; /* blocks; the last rows are a partial block */
    uint64_t n = whole > first_block ? (whole - first_block - 1) / PS_SHARDS + 1 : 0;

    return n * PS_BLOCK_ROWS + (whole % PS_SHARDS == first_block ? rows % PS_BLOCK_ROWS : 0);
}

/* The hash is a bijection: two ps never have the same score for a shard. */
static uint64_t score(uint32_t rank, uint32_t shard)
{
    return ps_mix64((uint64_t)rank << 32 | shard);
}

uint32_t ps_map_make(const uint32_t *ranks, uint32_t n, uint32_t replicas, uint32_t *holders)
{
    uint32_t n_best = replicas < n ? replicas : n;

    CHECK(n > 0 && replicas > 0);
    for (uint32_t shard = 0; shard < PS_SHARDS; shard++, holders += n_best)
        for (uint32_t i = 0, n_sorted = 0; i < n; i++) { /* insertion into the best so far */
            uint64_t own = score(ranks[i], shard);
            uint32_t at = n_sorted;

            while (at > 0 && score(ranks[holders[at - 1]], shard) < own)
                at--;
            if (at == n_best)
                continue;
            n_sorted += n_sorted < n_best;
            for (uint32_t k = n_sorted - 1; k > at; k--)
                holders[k] = holders[k - 1];
            holders[at] = i;
        }
    return n_best;
}
