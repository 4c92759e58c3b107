/* map.h - which shard (tensor/shards.h) contains a row, and which parameter servers (ps) hold a shard. Pure.
 *
 * A shard has every 1024th block of 64 rows of each table, so the rows that are used most (often the
 * first ones) are spread over all servers.
 *
 *     block of 64 rows   0        1            2            ...   1024      1025
 *     shard (mod 1024)   first    first + 1    first + 2    ...   first     first + 1
 *     local rows         0..63    0..63        0..63        ...   64..127   64..127
 *
 * The rows of a table in one shard have the local numbers 0, 1, 2, ... in ascending order of rows.
 *
 * A dynamic table has a row for every 64-bit id that a step has used. Its rows are numbered so that
 * the order of rows, as unsigned numbers, is the order of ids: row = id + 2^63. A hash of the id
 * selects the shard; rows of such a table have no local numbers.
 *
 * All members of a group compute the same map from the view alone, and data in checkpoints and in
 * memory of servers stays in its shard, so nothing here may ever change.
 * Threads: any. */
#ifndef PS_MAP_H
#define PS_MAP_H

#include <stdint.h>

#include "tensor/shards.h"

enum {
    PS_SHARDS = SHARDS,
    PS_BLOCK_ROWS = SHARD_BLOCK_ROWS,
    PS_BY_ID = PS_SHARDS, /* as first shard: the table is dynamic */
};

static inline uint64_t ps_mix64(uint64_t x)
{
    return shard_mix64(x);
}

/* Returns the row of an id of a dynamic table. */
static inline uint64_t ps_row_of_id(int64_t id)
{
    return (uint64_t)id ^ (uint64_t)1 << 63;
}

/* The inverse of ps_row_of_id(). */
static inline int64_t ps_id_of_row(uint64_t row)
{
    return (int64_t)(row ^ (uint64_t)1 << 63);
}

/* Returns the shard of row 0 of a table. */
static inline uint32_t ps_first_shard(uint32_t table)
{
    return shard_first(table);
}

/* Returns what ps_shard_of() needs: of table number `table` with so many rows; 0: it is dynamic. */
static inline uint32_t ps_first_shard_of(uint32_t table, uint64_t rows)
{
    return rows == 0 ? PS_BY_ID : ps_first_shard(table);
}

/* Returns the shard of a row of the table with this first shard; PS_BY_ID: of a dynamic table. */
static inline uint32_t ps_shard_of(uint32_t first_shard, uint64_t row)
{
    if (first_shard == PS_BY_ID)
        return shard_of_id(ps_id_of_row(row));
    return shard_of_block(first_shard, row / PS_BLOCK_ROWS);
}

/* Returns the number of a row among the rows of its shard. */
static inline uint64_t ps_local_of(uint64_t row)
{
    return row / PS_BLOCK_ROWS / PS_SHARDS * PS_BLOCK_ROWS + row % PS_BLOCK_ROWS;
}

/* The inverse of ps_local_of(): for local = 0, 1, ..., ps_local_rows() - 1 the rows of the shard in
 * ascending order. */
static inline uint64_t ps_row_of(uint32_t first_shard, uint32_t shard, uint64_t local)
{
    uint64_t first_block = (shard + PS_SHARDS - first_shard) % PS_SHARDS;

    return (local / PS_BLOCK_ROWS * PS_SHARDS + first_block) * PS_BLOCK_ROWS +
           local % PS_BLOCK_ROWS;
}

/* Returns how many of the `rows` rows of a table are in a shard. */
uint64_t ps_local_rows(uint64_t rows, uint32_t first_shard, uint32_t shard);

/* ---- holders ---- */

/* Assigns each shard to the ps with the highest scores for it (rendezvous hashing), so the loss of
 * one ps moves only the shards that it held. The score is a hash of the rank of the ps in the
 * cluster and of the shard.
 * ranks [n]: ranks of the ps in the cluster, all different; n >= 1, replicas >= 1. Writes for each
 * shard the indices in `ranks` of its min(replicas, n) holders, best score first: holder k of shard
 * s is holders[s * k_holders + k], where k_holders is the returned number. Room of `holders`:
 * PS_SHARDS * min(replicas, n).
 * The number of shards of a ps varies as if each shard drew its holder: with 4 ps by about 7 % of
 * the mean, with 16 ps by about 12 % (standard deviation). */
uint32_t ps_map_make(const uint32_t *ranks, uint32_t n, uint32_t replicas, uint32_t *holders);

/* Returns the service thread of a ps with n_servers threads that owns a shard. */
static inline uint32_t ps_thread_of(uint32_t shard, uint32_t n_servers)
{
    return shard % n_servers;
}

#endif
