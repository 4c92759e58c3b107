/* store.h - the rows of embedding tables that one server (a service thread of a ps) holds.
 *
 * A store has the weights, the optimizer's slots and the moving average of the rows of some shards
 * (map.h). A step is
 *
 *     ps_store_reduce()      adds the gradients of all ranks: the pending gradient
 *     ps_store_clip()        optional: limits its elements
 *     ps_store_verdict()     is it finite; checksums and squares per shard
 *     ps_store_commit()      updates the rows, or ps_store_skip(): the step leaves them unchanged,
 *                            or ps_store_discard(): the step will be repeated
 *
 * Weights, slots and averages have the bits of the same step on whole tables in a trainer
 * (optim_update(), tensor/packed.h), for every distribution of the shards. The sums follow the tree
 * over the lanes (micro-batch slots) of the batch, in which each rank is an aligned subtree.
 *
 * With staleness k the weights after each of the last k steps can be read too. Before the first step
 * all of them are the initial ones.
 *
 * Memory: one range of addresses for all shards that the store may hold is reserved; only pages
 * that are written need memory. A warm step allocates nothing. The older weights need memory for the rows that
 * the last k steps changed, 16 bytes and the weights of each.
 * Threads: one at a time per store. */
#ifndef PS_STORE_H
#define PS_STORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "opts/ps.h"
#include "ps/map.h"

struct err;
struct optim_def;
struct optim_hyper;
struct ps_store;

enum { PS_MAX_LEAVES = 65536 }; /* of the tree over the lanes */

struct ps_table {
    const char *name; /* for messages */
    uint64_t rows;
    uint32_t width; /* floats of a row; > 0 */
    uint32_t first_shard;
    double rate_factor;  /* times the learning rate */
    double weight_decay; /* replaces that of the hyper-parameters */
    bool lazy;           /* rows without a gradient are not updated */
    bool is_dense; /* a dense parameter: in checkpoints it is no sharded table, but a whole tensor */
};

/* Writes the initial weights of rows [first_row, first_row + n) of a table to out [n * width]. */
typedef int ps_fill_fn(void *arg, uint32_t table, uint64_t first_row, uint64_t n, float *out,
                       struct err *err);

struct ps_store_opts {
    const struct ps_table *tables; /* copied, with their names */
    uint32_t n_tables;
    const struct optim_def *optimizer;
    const struct optim_hyper *hyper; /* of the job: decide which slots exist; copied */
    double average;                  /* decay of the moving average of the weights; 0: no average */
    uint32_t staleness; /* steps whose weights before them are kept, <= PS_STALENESS_MAX */
    /* The store may hold shards s with s mod n_threads = thread. n_threads 0: all shards. */
    uint32_t thread, n_threads;
    ps_fill_fn *fill;
    void *arg;
};

/* Errors: ERR_UNSUPPORTED (the optimizer needs norms over whole parameters: lars, lamb), ERR_NOMEM.
 * On failure *out is unchanged. */
int ps_store_open(const struct ps_store_opts *opts, struct ps_store **out, struct err *err);
void ps_store_close(struct ps_store *s); /* NULL is allowed */

/* ---- shards; none of these calls between ps_store_reduce() and the end of its step ---- */

/* Adds a shard that the store does not hold. Slots are zero. fill: the weights are the initial
 * ones, and so is the average; else both are zero until ps_store_import(). Errors: ERR_NOMEM, those
 * of opts->fill; then the shard is not held. */
int ps_store_add_shard(struct ps_store *s, uint32_t shard, bool fill, struct err *err);
void ps_store_drop_shard(struct ps_store *s, uint32_t shard); /* no effect if it is not held */
bool ps_store_has(const struct ps_store *s, uint32_t shard);
/* Bytes of the weights, slots and averages of the shards held, and of the older weights of tables of which
 * each step changes every row. Those of other tables depend on the gradients. */
uint64_t ps_store_bytes(const struct ps_store *s);
uint64_t ps_store_shard_bytes(const struct ps_store *s, uint32_t shard); /* the same of a shard, held or not */
/* Returns the memory that n shards with these bytes can occupy. All shards have places of one size, that
 * of the shard with the most rows, and huge pages also fill the unused part of a place. */
uint64_t ps_store_memory(const struct ps_store *s, uint32_t n_shards, uint64_t bytes);

/* Copies the weights of n rows before the last `age` steps, in any order, to out [n * width]; age 0: the weights
 * of now. Errors: ERR_PEER (a row that the table does not have, or whose shard is not held; an age above the
 * staleness); then `out` is undefined. */
int ps_store_read(const struct ps_store *s, uint32_t table, uint32_t age, const uint64_t *rows,
                  uint64_t n, float *out, struct err *err);

/* Returns the weights of now of a row, followed by those of the rows after it in its block of 64 rows; valid until
 * they are updated. NULL: as the errors of ps_store_read(). */
const float *ps_store_in_place(const struct ps_store *s, uint32_t table, uint64_t row,
                               struct err *err);

/* ---- a step ---- */

/* The gradients of some rows of one table from one rank: the sums over its lanes. */
struct ps_part {
    uint32_t rank; /* for messages */
    /* The lanes of the rank are leaves [first_leaf, first_leaf + n_leaves) of the tree. */
    uint32_t first_leaf, n_leaves;
    uint32_t table;
    uint64_t n;
    const uint64_t *rows; /* [n] strictly ascending */
    const float *values;  /* [n * width]; no element is -0 */
};

/* Computes the pending gradient. The parts are sorted by table, then by first_leaf; the lanes of
 * ranks without a part for a table add nothing. A row with one contributor has that contributor's
 * value. Errors: ERR_PEER (unknown table, rows that are not ascending, out of range or in a shard
 * that is not held, ranks whose lanes are not separate subtrees), ERR_NOMEM; then nothing is
 * pending. */
int ps_store_reduce(struct ps_store *s, const struct ps_part *parts, uint32_t n_parts,
                    struct err *err);
bool ps_store_is_pending(const struct ps_store *s);
/* Limits each element of the pending gradient to [-limit, limit]. */
void ps_store_clip(struct ps_store *s, float limit);

struct ps_verdict {
    bool is_finite;    /* no element of the gradient is NaN or infinite */
    uint32_t checksum; /* sum of those of the shards, mod CHECKSUM_MODULUS */
    /* Of the rows with a gradient and of its bits. Two stores that hold a shard agree on it. 0 for
     * shards without a gradient. */
    uint32_t checksums[PS_SHARDS];
    /* Sum of squares of the gradient: over the tables in order, over their blocks of 64 rows
     * ascending, the block sums of lib/optim for a stretch that is that block. The norm over a
     * model adds shards 0, 1, ... in order. 0 for shards without a gradient. */
    double squares[PS_SHARDS];
};
void ps_store_verdict(const struct ps_store *s, struct ps_verdict *out);

/* Updates the rows with the pending gradient. `hyper` is that of the step, with grad_scale and
 * step; the factors of each table are applied here. Errors: ERR_NOMEM, only with staleness; then nothing has
 * changed. */
int ps_store_commit(struct ps_store *s, const struct optim_hyper *hyper, struct err *err);
/* Drops the pending gradient. skip: the step leaves all rows unchanged; discard: it is no step; no effect if
 * nothing is pending. */
void ps_store_skip(struct ps_store *s);
void ps_store_discard(struct ps_store *s);

/* ---- the state of a shard: for copies, checkpoints and comparison ---- */

/* The parts of the state: 0 the weights, then the slots that are used, then the average, then the weights before
 * the last 1, 2, ... staleness steps. The older weights are imported after the weights, newest first. */
const char *ps_store_table_name(const struct ps_store *s, uint32_t table);
bool ps_store_is_dense(const struct ps_store *s, uint32_t table);
uint32_t ps_store_n_parts(const struct ps_store *s);
/* "weights", the name of the slot, "average", or "delayed.AGE". */
const char *ps_store_part_name(const struct ps_store *s, uint32_t part);
/* Copies rows [first_local, first_local + n) of a table in a shard. Errors: ERR_PEER (a shard that
 * is not held, unknown table or part, rows out of range). */
int ps_store_export(const struct ps_store *s, uint32_t shard, uint32_t table, uint32_t part,
                    uint64_t first_local, uint64_t n, float *out, struct err *err);
int ps_store_import(struct ps_store *s, uint32_t shard, uint32_t table, uint32_t part,
                    uint64_t first_local, uint64_t n, const float *in, struct err *err);
/* As ps_store_import() of the weights, and the average becomes equal, in a shard without older weights. The slots stay: those of an added
 * shard are zero, so its rows are then initial. */
int ps_store_import_initial(struct ps_store *s, uint32_t shard, uint32_t table,
                            uint64_t first_local, uint64_t n, const float *in, struct err *err);
/* Returns the checksum of all parts of a shard that is held. Equal options give equal checksums of
 * equal states, in every store. */
uint32_t ps_store_checksum(const struct ps_store *s, uint32_t shard);

#endif
