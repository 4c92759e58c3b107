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
 * Memory of tables of fixed size: one range of addresses for all shards that the store may hold is reserved;
 * only pages that are written need memory. A warm step allocates nothing. The older weights need memory for
 * the rows that the last k steps changed, 16 bytes and the weights of each.
 *
 * Dynamic tables (map.h) have the rows that steps have used; see store_dynamic.c for the rules. Their memory
 * grows in ps_store_reduce(), which may fail, never in ps_store_commit(). They have no older weights.
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

struct ps_rules { /* of a dynamic table */
    uint32_t admit_after; /* a row is trained from the step on that is the n-th with a gradient; > 0 */
    uint32_t sweep_steps; /* rows are removed at steps that this number divides; > 0 */
    uint64_t expire_steps; /* a sweep after step t removes rows without a gradient since t - n; 0: none */
    uint64_t max_rows; /* of the table, which the shards divide; 0: no limit; else >= PS_SHARDS */
};

struct ps_table {
    const char *name; /* for messages */
    uint64_t rows;    /* 0: the table is dynamic */
    uint32_t width; /* floats of a row; > 0 */
    uint32_t first_shard; /* PS_BY_ID: the table is dynamic */
    double rate_factor;  /* times the learning rate */
    double weight_decay; /* replaces that of the hyper-parameters */
    bool lazy;           /* rows without a gradient are not updated; no effect if dynamic: they never are */
    bool is_dense; /* a dense parameter: in checkpoints it is no sharded table, but a whole tensor */
    struct ps_rules rules; /* of a dynamic table; else zero */
};

struct ps_table_facts { /* of a dynamic table, in the shards held */
    char name[128];    /* cut at the end if it is longer */
    uint64_t rows;     /* that are trained */
    uint64_t admitted; /* rows that steps have added, since ps_store_open() */
    uint64_t expired;  /* trained rows that sweeps have removed since then */
};

/* Writes the initial weights of rows [first_row, first_row + n) of a table to out [n * width]. Of dynamic
 * tables n is 1, and the function cannot fail. */
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
    /* Called before the rows of a dynamic table get `bytes` more memory. An error is that of the caller.
     * NULL: no limit. */
    int (*grow)(void *arg, const char *table, uint64_t bytes, struct err *err);
    void *arg;
};

/* Errors: ERR_UNSUPPORTED (the optimizer needs norms over whole parameters: lars, lamb; dynamic tables with
 * staleness), ERR_NOMEM.
 * On failure *out is unchanged. */
int ps_store_open(const struct ps_store_opts *opts, struct ps_store **out, struct err *err);
void ps_store_close(struct ps_store *s); /* NULL is allowed */

/* ---- shards; none of these calls between ps_store_reduce() and the end of its step ---- */

/* Adds a shard that the store does not hold. Slots are zero. fill: the weights are the initial
 * ones, and so is the average; else both are zero until ps_store_import(). Dynamic tables have no row;
 * with `fill` that is their complete content, else ps_store_import_ids() follows. Errors: ERR_NOMEM, those
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

/* Copies what became of the rows of the first `most` dynamic tables. Returns the number of dynamic tables. */
uint32_t ps_store_facts(const struct ps_store *s, struct ps_table_facts *out, uint32_t most);

/* Copies the weights of n rows before the last `age` steps, in any order, to out [n * width]; age 0: the weights
 * of now. A row of a dynamic table that is not trained yet has its initial weights. Errors: ERR_PEER (an unknown
 * table, a row that it does not have, or whose shard is not held; an age above the staleness); then `out` is
 * undefined. */
int ps_store_read(const struct ps_store *s, uint32_t table, uint32_t age, const uint64_t *rows,
                  uint64_t n, float *out, struct err *err);
/* Is the row one of a dynamic table that is not trained, in a shard that is held? */
bool ps_store_is_initial(const struct ps_store *s, uint32_t table, uint64_t row);
/* Copies a part of the state (below) of a row to out [width]. A row of a dynamic table that is not trained
 * yet has its initial weights, which are also its average, and slots of zero. Errors: ERR_PEER. */
int ps_store_read_part(const struct ps_store *s, uint32_t table, uint32_t part, uint64_t row,
                       float *out, struct err *err);

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
     * ascending, the block sums of lib/optim for a stretch that is that block. A row of a dynamic table is
     * a block of its own, also before it is trained. The norm over a model adds shards 0, 1, ... in
     * order. 0 for shards without a gradient. */
    double squares[PS_SHARDS];
};
void ps_store_verdict(const struct ps_store *s, struct ps_verdict *out);

/* Updates the rows with the pending gradient. `hyper` is that of the step, with grad_scale and
 * step; the factors of each table are applied here. `step`: that the rules of dynamic tables count. Errors:
 * ERR_NOMEM, only with staleness; then nothing has changed. */
int ps_store_commit(struct ps_store *s, const struct optim_hyper *hyper, uint64_t step,
                    struct err *err);
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
/* Copies rows [first_local, first_local + n) of a table of fixed size in a shard. Errors: ERR_PEER (a shard
 * that is not held, unknown table or part, rows out of range). */
int ps_store_export(const struct ps_store *s, uint32_t shard, uint32_t table, uint32_t part,
                    uint64_t first_local, uint64_t n, float *out, struct err *err);
int ps_store_import(struct ps_store *s, uint32_t shard, uint32_t table, uint32_t part,
                    uint64_t first_local, uint64_t n, const float *in, struct err *err);
/* As ps_store_import() of the weights, and the average becomes equal, in a shard without older weights. The slots stay: those of an added
 * shard are zero, so its rows are then initial. */
int ps_store_import_initial(struct ps_store *s, uint32_t shard, uint32_t table,
                            uint64_t first_local, uint64_t n, const float *in, struct err *err);

/* Rows of a dynamic table in one shard, in ascending order: those of COPY messages and checkpoints. */
struct ps_ids {
    uint64_t n;
    const uint64_t *rows;       /* [n] */
    const uint64_t *last_steps; /* [n] newest step with a gradient */
    const uint64_t *counts;     /* [n] steps with a gradient, at most UINT32_MAX */
    const float *values;        /* [n][n_parts][width]; of rows that are not trained yet as ps_store_read() */
};
struct ps_ids_room { /* the same arrays, to be written */
    uint64_t most;
    uint64_t *rows, *last_steps, *counts;
    float *values;
};
/* Returns the number of rows from `first` on. Errors: as ps_store_export_ids(), but ERR_NOMEM. */
int64_t ps_store_count_ids(const struct ps_store *s, uint32_t shard, uint32_t table, uint64_t first,
                           struct err *err);
/* Writes the `most` lowest rows from `first` on. Returns their number, or an error; *is_last: no row
 * follows. Errors: ERR_PEER (a shard that is not held, or not complete; not a dynamic table), ERR_NOMEM. */
int64_t ps_store_export_ids(const struct ps_store *s, uint32_t shard, uint32_t table,
                            uint64_t first, const struct ps_ids_room *out, bool *is_last,
                            struct err *err);
/* Adds rows to a shard that is not complete: its rows below `first` are complete before the call, and
 * afterwards those up to the last row of `in`; is_last: the table is complete in the shard. A step updates
 * only the rows that are complete. Errors: ERR_PEER (a shard that is not held, or complete; not a dynamic
 * table; `first` is not the next row; rows that are not ascending, or of another shard; numbers out of
 * range), ERR_NOMEM, those of opts.grow; the store is then unchanged. */
int ps_store_import_ids(struct ps_store *s, uint32_t shard, uint32_t table, uint64_t first,
                        const struct ps_ids *in, bool is_last, struct err *err);
/* The lowest row that is missing in a shard that is not complete. */
uint64_t ps_store_next_row(const struct ps_store *s, uint32_t shard, uint32_t table);
/* Does a commit of this step remove rows of a dynamic table? In shards that are not complete it removes
 * none, because the rows that are missing decide too: ps_store_restart() must follow for them. */
bool ps_store_sweeps(const struct ps_store *s, uint64_t step);
/* Removes the rows of all dynamic tables in a shard; none is complete. */
void ps_store_restart(struct ps_store *s, uint32_t shard);

/* Returns the checksum of all parts of a shard that is held. Equal options give equal checksums of
 * equal states, in every store. */
uint32_t ps_store_checksum(const struct ps_store *s, uint32_t shard);
/* Inverts a bit of a weight in the first shard that is held and has rows of a table of fixed size: a fault, for tests. */
void ps_store_flip(struct ps_store *s);

#endif
