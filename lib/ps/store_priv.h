/* store_priv.h - shared by the files of the store.
 *
 *   store.c          shards, reading rows, the state of a shard
 *   store_reduce.c   the pending gradient: sums
 *   store_verdict.c  the pending gradient: clipping, verdict
 *   store_commit.c   the update
 *
 * The arena is one range of addresses with a place for each shard that the store may hold. All
 * places have the same layout, that of a shard with the most rows, so one offset leads from the
 * weight of any row to its slot:
 *
 *     arena   | place 0 | place 1 | ...                       place_floats each, whole pages
 *     place   | weights | slot | ... | average | rest of the last page    part_floats per part
 *     part    | local rows of table 0 | local rows of table 1 | ...       tables[i].offset
 *
 * Only the places of shards that are held can be accessed. */
#ifndef PS_STORE_PRIV_H
#define PS_STORE_PRIV_H

#include "optim/optim.h"
#include "ps/store.h"

enum { STORE_LINE_FLOATS = 16 }; /* a cache line */

/* The pending gradient of a table. */
struct pending {
    uint64_t n;                      /* rows */
    uint64_t *rows;                  /* owned; ascending */
    float *values;                   /* owned; [n * width] */
    uint64_t room_rows, room_values; /* elements */
};

struct store_table {
    struct ps_table is; /* its name is owned */
    size_t offset;      /* floats from the start of a part to its first row */
    struct pending pending;
};

struct ps_store {
    struct ps_store_opts opts; /* its pointers to tables and hyper-parameters are NULL */
    uint32_t n_tables, n_parts;
    struct store_table *tables; /* [n_tables] owned */
    const char *part_names[OPTIM_MAX_SLOTS + 2];
    float *arena; /* owned; mapped; NULL: not yet */
    size_t arena_bytes, part_floats, place_floats;
    /* A step reads random rows, each on a page of its own: huge pages save the page walks. Of tables with few
     * rows most places are nearly empty, and huge pages would waste memory. */
    bool wants_huge_pages;
    struct optim_state state;      /* w, slots and average: parts of place 0 */
    uint64_t held[PS_SHARDS / 64]; /* bit s % 64 of word s / 64 */
    uint64_t bytes; /* of the shards held */
    bool is_pending;
    /* Memory that steps use again */
    struct node *nodes; /* owned; see store_reduce.c */
    uint64_t room_nodes;
    float *sums; /* owned; [room_sums] memory of the nodes */
    uint64_t room_sums;
    const struct ps_part **with_rows; /* owned; [room_parts] parts of a table that have rows */
    uint64_t room_parts;
    uint32_t *order; /* owned; [room_order] the pending rows of any table; see store_commit.c */
    uint64_t room_order;
    float *whole; /* owned; gradients of a range of rows; zero between the calls */
};

static inline bool store_holds(const struct ps_store *s, uint32_t shard)
{
    return (s->held[shard / 64] >> shard % 64 & 1) != 0;
}

/* Returns the index in the arena of the first weight of a shard's table. */
static inline size_t store_base(const struct ps_store *s, const struct store_table *t,
                                uint32_t shard)
{
    return (size_t)(shard / s->opts.n_threads) * s->place_floats + t->offset;
}

/* Returns the index in the arena of the weights of a row. */
static inline size_t store_at(const struct ps_store *s, const struct store_table *t, uint64_t row)
{
    return store_base(s, t, ps_shard_of(t->is.first_shard, row)) +
           (size_t)ps_local_of(row) * t->is.width;
}

/* Is the row in the table and in a shard that is held? */
static inline bool store_has_row(const struct ps_store *s, const struct store_table *t,
                                 uint64_t row)
{
    return row < t->is.rows && store_holds(s, ps_shard_of(t->is.first_shard, row));
}

/* Reports that store_has_row() is false; returns ERR_PEER. */
int store_bad_row(const struct store_table *t, uint64_t row, struct err *err);

/* Number of rows that one call of optim_update_range() updates where all rows of a table are
 * updated. */
static inline uint64_t store_sweep_rows(const struct store_table *t)
{
    return t->is.width < OPTIM_BLOCK ? OPTIM_BLOCK / t->is.width : 1;
}

#endif
