/* store_priv.h - shared by the files of the store.
 *
 *   store.c          shards, reading rows, the state of a shard
 *   store_reduce.c   the pending gradient: sums
 *   store_verdict.c  the pending gradient: clipping, verdict
 *   store_commit.c   the update
 *   store_history.c  the weights before the last steps
 *   store_dynamic.c  all of these for dynamic tables, whose rows are not in the arena (dynamic.h)
 *   store_groups.c   their rows for checkpoints
 *   store_refuse.c   errors
 *
 * The arena is one range of addresses with a place for each shard that the store may hold. All
 * places have the same layout, that of a shard with the most rows, so one offset leads from the
 * weight of any row to its slot:
 *
 *     arena   | place 0 | place 1 | ...                       place_floats each, whole pages
 *     place   | weights | slot | ... | average | rest of the last page    part_floats per part
 *     part    | local rows of table 0 | local rows of table 1 | ...       tables[i].offset
 *
 * Only the places of shards that are held can be accessed.
 *
 * With staleness k each shard also has k logs, one for each of the last k steps: the rows that the step changed,
 * with their weights before it. A step that changes every row of a table, as with weight decay, logs all of
 * them. */
#ifndef PS_STORE_PRIV_H
#define PS_STORE_PRIV_H

#include "optim/optim.h"
#include "ps/dynamic.h"
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
    bool skips_rows;    /* with the hyper-parameters of the job: store_skips_rows() */
    struct ps_dynamic *dynamic; /* [PS_SHARDS] owned; NULL: not a dynamic table */
    _Atomic uint64_t trained;   /* rows of a dynamic table in the shards held; a load adds to them in its thread */
    uint64_t admitted, expired; /* as in struct ps_table_facts */
    struct pending pending;
};

struct store_log_row {
    size_t at;    /* floats from the start of a part to the row */
    size_t value; /* index of its weights in the values of the log */
};

struct store_log { /* of a shard and a step */
    struct store_log_row *rows; /* owned [n], ascending */
    float *values;              /* owned [n_values] */
    size_t n, n_values, room_rows, room_values;
};

struct ps_store {
    struct ps_store_opts opts; /* its pointers to tables and hyper-parameters are NULL */
    uint32_t n_tables;
    uint32_t n_parts; /* of a place; the parts of older weights follow them, and are in the logs */
    struct store_table *tables; /* [n_tables] owned */
    const char *part_names[OPTIM_MAX_SLOTS + 2 + PS_STALENESS_MAX];
    uint32_t slot_parts[OPTIM_MAX_SLOTS]; /* the part of each slot; 0: not used */
    float *arena; /* owned; mapped; NULL: not yet */
    size_t arena_bytes, part_floats, place_floats;
    /* A step reads random rows, each on a page of its own: huge pages save the page walks. Of tables with few
     * rows most places are nearly empty, and huge pages would waste memory. */
    bool wants_huge_pages;
    struct optim_state state;      /* w, slots and average: parts of place 0 */
    uint64_t held[PS_SHARDS / 64]; /* bit s % 64 of word s / 64 */
    uint64_t bytes; /* of the shards held, without dynamic tables */
    _Atomic uint64_t dynamic_bytes; /* of the shards held; a load adds to them in its thread */
    bool is_pending;
    struct store_log *logs; /* owned [PS_SHARDS * staleness] */
    uint32_t newest_log;    /* < staleness: of the last step; the one before it is the next, circularly */
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

/* Returns the first float of a shard's place. */
static inline float *store_place(const struct ps_store *s, uint32_t shard)
{
    return s->arena + (size_t)(shard / s->opts.n_threads) * s->place_floats;
}

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

static inline bool store_is_dynamic(const struct store_table *t)
{
    return t->dynamic != NULL;
}

/* Is the row in the table and in a shard that is held? */
static inline bool store_has_row(const struct ps_store *s, const struct store_table *t,
                                 uint64_t row)
{
    return (row < t->is.rows || store_is_dynamic(t)) &&
           store_holds(s, ps_shard_of(t->is.first_shard, row));
}

/* ---- store_refuse.c: each returns ERR_PEER ---- */

/* store_has_row() is false. */
int store_bad_row(const struct store_table *t, uint64_t row, struct err *err);
int store_unknown_table(const struct ps_store *s, uint32_t table, struct err *err);
int store_unknown_part(const struct ps_store *s, uint32_t part, struct err *err);
int store_too_old(const struct ps_store *s, uint32_t age, struct err *err);

/* ---- store_dynamic.c ---- */

/* Errors: ERR_NOMEM. */
int store_dynamic_open(struct ps_store *s, struct store_table *t, struct err *err);
void store_dynamic_close(struct store_table *t);
/* A shard was added; is_complete: the absence of rows is its content. */
void store_dynamic_add(struct ps_store *s, uint32_t shard, bool is_complete);
void store_dynamic_drop(struct ps_store *s, uint32_t shard);
/* The bytes of a shard. */
uint64_t store_dynamic_bytes(const struct ps_store *s, uint32_t shard);
/* Copies the weights of rows to out [n * width]. Errors: ERR_PEER (a shard that is not held). */
int store_dynamic_read_rows(const struct ps_store *s, uint32_t table, const uint64_t *rows,
                            uint64_t n, float *out, struct err *err);
/* Copies a part of a row to out [width]. */
void store_dynamic_read(const struct ps_store *s, uint32_t table, uint32_t part, uint64_t row,
                        float *out);
/* Makes room for the rows that the pending gradient adds. Errors: ERR_NOMEM, those of opts.grow. */
int store_dynamic_reserve(struct ps_store *s, struct store_table *t, struct err *err);
/* Updates the rows with the pending gradient, the averages of all rows, and sweeps. order, first: the
 * pending rows by shard. */
void store_dynamic_update(struct ps_store *s, uint32_t table, const struct optim_hyper *own,
                          uint64_t step, const uint32_t *order, const uint32_t *first);
uint32_t store_dynamic_checksum(const struct ps_store *s, uint32_t table, uint32_t shard);

/* Does a step with these hyper-parameters leave the rows of a table without a gradient unchanged? */
static inline bool store_skips_rows(const struct ps_store *s, const struct store_table *t,
                                    const struct optim_hyper *hyper)
{
    struct optim_hyper own = optim_own_hyper(hyper, t->is.rate_factor, t->is.weight_decay);

    return optim_skips_rows(s->opts.optimizer, &own, t->is.lazy);
}

/* ---- store_history.c ---- */

/* Returns the weights of a row before the last `age` <= staleness steps; `at`: floats from the start of a part
 * to the row. Valid until the store changes. */
const float *store_older(const struct ps_store *s, uint32_t shard, size_t at, uint32_t age);
/* Logs the rows that the pending gradient will change. Errors: ERR_NOMEM; then nothing has changed. */
int store_log_step(struct ps_store *s, const struct optim_hyper *hyper, struct err *err);
void store_log_nothing(struct ps_store *s); /* the step changes no row */
/* Sets the weights of n rows from `at` on before the last `age` steps, age > 0. Those of age - 1 are set before,
 * and not after. Errors: ERR_NOMEM. */
int store_import_older(struct ps_store *s, uint32_t shard, size_t at, uint32_t age, uint64_t n,
                       size_t width, const float *in, struct err *err);
void store_drop_logs(struct ps_store *s, uint32_t shard);

/* Number of rows that one call of optim_update_range() updates where all rows of a table are
 * updated. */
static inline uint64_t store_sweep_rows(const struct store_table *t)
{
    return t->is.width < OPTIM_BLOCK ? OPTIM_BLOCK / t->is.width : 1;
}

#endif
