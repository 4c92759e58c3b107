/* shards.h - the shards of an embedding table. Pure.
 *
 * Every table is divided into the same SHARDS shards: blocks of 64 rows are dealt to them in turn. Table i
 * begins at another shard than table i + 1, so that small tables do not all lie in shard 0.
 *
 *     block of 64 rows   0        1            2            ...   1024      1025
 *     shard (mod 1024)   first    first + 1    first + 2    ...   first     first + 1
 *
 * A dynamic table has a row for any 64-bit id; a hash of the id selects its shard.
 *
 * Parameter servers hold shards (ps/map.h), and sums of squares over such tables are added shard by shard
 * on every task (optim/optim.h). No constant here may ever change: sums, checkpoints and the memory of
 * servers depend on them. Threads: any. */
#ifndef TENSOR_SHARDS_H
#define TENSOR_SHARDS_H

#include <stdint.h>

enum {
    SHARDS = 1024,
    SHARD_BLOCK_ROWS = 64,
    SHARD_TABLE_STRIDE = 389, /* distance of the first shards of two tables; odd, so that 1024 tables
                                 have different first shards */
};

/* Returns the shard of row 0 of a table. `table`: its number among the tables of the job that are divided
 * into shards, in the order of the arena. */
static inline uint32_t shard_first(uint32_t table)
{
    return (uint32_t)((uint64_t)table * SHARD_TABLE_STRIDE % SHARDS);
}

/* Returns the shard of a block of 64 rows of the table with this first shard. */
static inline uint32_t shard_of_block(uint32_t first_shard, uint64_t block)
{
    return (uint32_t)((block + first_shard) % SHARDS);
}

/* The output function of SplitMix64, a bijection. */
static inline uint64_t shard_mix64(uint64_t x)
{
    x += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

/* Returns the shard of an id of a dynamic table: the top 10 bits of its hash. */
static inline uint32_t shard_of_id(int64_t id)
{
    return (uint32_t)(shard_mix64((uint64_t)id) >> 54);
}

#endif
