/* message.h - the messages between training ranks, servers and the coordinator (comm/channel.h). Pure:
 * bytes in, a validated struct out. Threads: any.
 *
 * Integers and floats are little-endian. Every field lies at a multiple of its size, so the arrays are
 * used in place.
 *
 *   offset  size  field
 *        0     4  magic "tps", then the version 6: PS_MESSAGE_MAGIC
 *        4     4  kind
 *        8     8  step
 *       16     4  flag
 *       20     4  number: see the kind
 *       24     8  first: see the kind
 *       32     4  float: see the kind
 *       36     4  n_sections
 *       40    16  for each section: table u32, part u32, n u64
 *          ...    for each section: rows u64 [n] if the kind has rows; then values f32 [n * width] if the
 *                 kind has values, padded with zeros to a multiple of 8 bytes
 *          ...    kinds without sections: the arrays of the kind
 *
 *   kind    from         to           fields
 *   SETUP   coordinator  server       number: identifies the model; flag: staleness; hyper; the tables and the
 *                                     optimizer; lanes and bound of asynchronous phases
 *   QUERY   coordinator, server       -
 *           rank
 *   HELD    server       coordinator, step: version; flag: enum ps_held; hyper: of the newest update; shards u64 [16]:
 *                        rank         a bit for each shard whose rows the server has; first: the most bytes that its
 *                                     shards may occupy; history: generation of the newest update, and of the pending
 *                                     gradient; ledger; bytes u64 [PS_SHARDS] of each shard, 0 before SETUP
 *   BEGIN   coordinator  server       step: version; flag: enum ps_pending; number: FOLLOWs that will name this server;
 *                                     first: steps between two comparisons of rows, 0: none;
 *                                     hyper; shards to hold; of these, shards that will be copied before READY; shards
 *                                     that will be copied later; history: generation of the newest update, and this
 *                                     generation; ledger
 *   FOLLOW  coordinator  server       number: server point that has the shards; shards to copy from it
 *   FETCH   server       server       step: version; number: shard, first: local row (dynamic table: the lowest row
 *                                     that is missing), one section without rows: the
 *                                     next place to copy; shards that are left. No shard: this FOLLOW has ended
 *   COPY    coordinator, server       step: version; number: shard; flag: enum ps_copy_flag; first: local row; one
 *           server                    section with values. At step 0 no table that SETUP describes as generated
 *   COPY_IDS server      server       step: version; number: shard; flag: enum ps_copy_flag; first: lowest row that may
 *                                     follow; one section of a dynamic table, whose part is the number of parts of
 *                                     the state: rows u64 [n], newest steps u64 [n], counts u64 [n],
 *                                     values f32 [n][parts][width]
 *   READY   server       coordinator  step; flag: 1: all shards are filled, 0: copies are awaited
 *   PULL    rank         server       step: version; flag: 1: the rows are for the lanes of a step, 0: they are not;
 *                                     sections with rows
 *   ROWS    server       rank         step; sections with values, in the order of the rows of PULL
 *   PUSH    rank         server       step; number: first leaf of its lanes; first: leaves (base/lane_tree.h); float: clip; sections with rows and values
 *   VOTE    server       coordinator  step; flag: enum ps_vote_flag; checksums u32 [PS_SHARDS]; squares f64 [PS_SHARDS]; states u64
 *                                     [PS_CHECK_SHARDS]: 1 + the checksum of the rows before the step of each shard that
 *                                     is compared in this step, 0: no comparison, or the rows are not complete
 *   COMMIT  rank         server       step; flag: 1: the step is skipped; hyper
 *   END     rank         server       flag: 1: the job is complete
 *   COUNT   coordinator  server       step: version; shards whose rows of dynamic tables are counted
 *   COUNTS  server       coordinator  step; number: of tables; sizes [number]: of these shards, else zero
 *   LIST    coordinator  server       step: version; number: a dynamic table; shards whose trained rows are listed
 *   LISTED  server       coordinator  step; one section with rows: these, in any order
 *   SAVE    coordinator  server       step: version; shards to write; places: ckpt_row_files.data_at; text: name of
 *                                     the folder in the directory of checkpoints; number: of sizes, 0: no table is
 *                                     dynamic; sizes [number]: of all shards
 *   LOAD    coordinator  server       step; shards to read, of those that will be copied; places: zero; text: name of the
 *                                     checkpoint in the directory of checkpoints
 *   POLL    coordinator  server       after SAVE or LOAD. flag: 1: the work is abandoned, 0: DONE is expected; number: 1:
 *                                     ranks that wait for rows receive WAIT
 *   DONE    server       coordinator  step; flag: enum ps_done; number: the negative error code; first: progress;
 *                                     places: of SAVE, the sums of the rows of each file; text: the error
 *   WAIT    server       rank         the rows that the rank waits for follow later: a checkpoint is being written
 *
 * In an asynchronous phase (units.h); the first server is the *sequencer*:
 *   LIMIT   coordinator  sequencer    step: ranks stop after it; flag: 1: after the newest step that a rank has begun
 *   NEXT    rank         sequencer    step; number: first lane, flag: lanes of the rank; first: newest step of which
 *                                     the rank has facts
 *   GO      sequencer    rank         step; flag: enum ps_go; first: version; number: first lane and n_lanes: the unit;
 *                                     facts of complete steps
 *   PULL    rank         server       flag 2: step: that of the unit; first: the lowest version of the rows
 *   PUSH    rank         server       flag 1: of a unit: step, lanes
 *   TICKET  sequencer    rank         step: version that the unit of the rank will make
 *   ORDER   rank         server       step: version: the server computes the gradient of the rank's unit, and sends VOTE to
 *                                     the rank
 *   COMMIT  rank         server       step: version; flag: enum ps_commit_flag; first: the bits of the loss as f64; clip:
 *                                     norm of the gradient; hyper
 *
 * A ledger: its bytes u64, then those of ps_units_write(). */
#ifndef PS_MESSAGE_H
#define PS_MESSAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "opts/optim.h"
#include "ps/map.h"

struct ckpt_sizes;
struct err;
struct iovec;
struct ps_ids_room;
struct ps_step_facts;
struct ps_units;

enum ps_kind {
    PS_SETUP = 1,
    PS_QUERY,
    PS_HELD,
    PS_BEGIN,
    PS_FOLLOW,
    PS_FETCH,
    PS_COPY,
    PS_READY,
    PS_PULL,
    PS_ROWS,
    PS_PUSH,
    PS_VOTE,
    PS_COMMIT,
    PS_END,
    PS_SAVE,
    PS_LOAD,
    PS_POLL,
    PS_DONE,
    PS_WAIT,
    PS_COPY_IDS,
    PS_COUNT,
    PS_COUNTS,
    PS_LIST,
    PS_LISTED,
    PS_LIMIT,
    PS_NEXT,
    PS_GO,
    PS_TICKET,
    PS_ORDER,
    PS_KINDS,
};

enum ps_held { PS_HELD_PENDING = 1, /* the gradient of the next version is pending */
               PS_HELD_SKIPPED = 2 /* the newest update was skipped */ };

enum ps_pull {
    PS_PULL_HELD, /* rows of a version */
    PS_PULL_STEP, /* for the lanes of a synchronous step */
    PS_PULL_UNIT, /* for the lanes of a unit: the newest rows */
};

enum ps_go {
    PS_GO_UNIT, /* the rank may begin the unit */
    PS_GO_NONE, /* all its lanes of the step are applied */
    PS_GO_STOP, /* all ranks stop: the steps up to the limit are complete */
};

enum ps_vote_flag {
    PS_VOTE_FINITE = 1,
    PS_VOTE_SAVE = 2, /* the memory of the ps is about to be full: a checkpoint should be saved */
};

enum ps_commit_flag { PS_COMMIT_SKIP = 1, PS_COMMIT_UNIT = 2 };

enum ps_pending { /* what BEGIN does with a pending gradient */
    PS_DROP,      /* the group repeats that step */
    PS_APPLY,     /* the group has applied that step: `hyper` is its update */
    PS_SKIP,      /* the group has skipped that step */
};

enum ps_copy_flag {
    PS_COPY_INITIAL = 1, /* initial rows, of which only part 0 (weights) is sent */
    PS_COPY_LAST = 2,    /* the last answer to a FETCH */
    PS_COPY_TABLE_END = 4, /* COPY_IDS: no row of the table in the shard follows */
};

enum ps_done { /* the rows that SAVE or LOAD requested */
    PS_DONE_SOME, /* are being written, or read */
    PS_DONE_ALL,  /* are synced, or in the store */
    PS_DONE_NONE, /* could not be written or read */
};

enum {
    PS_PLACES = 32, /* shard files of weights, then of slots */
    PS_TEXT_MAX = 8192,
    PS_SET_WORDS = PS_SHARDS / 64, /* a set of shards: bit s % 64 of word s / 64 */
    PS_TABLES_MAX = 4096,
    PS_WIDTH_MAX = 1 << 20, /* floats of a row */
    /* Holders compare the rows of so many shards at once: each row after PS_CHECKS comparisons. */
    PS_CHECK_SHARDS = 16,
    PS_CHECKS = PS_SHARDS / PS_CHECK_SHARDS,
    PS_PARTS_MAX = 6, /* of the state: weights, slots, average */
};

struct ps_section {
    uint32_t table, part;
    uint64_t n;
    const uint64_t *rows; /* [n]; NULL: the kind has no rows */
    const float *values;  /* [n * width]; NULL: the kind has no values */
};

enum ps_table_flag {
    PS_TABLE_LAZY = 1,  /* rows without a gradient are not updated */
    PS_TABLE_DENSE = 2, /* a dense parameter, in rows of PS_DENSE_WIDTH floats */
};

struct ps_setup_table {
    uint64_t rows; /* 0: the table is dynamic, and its rows are generated */
    uint32_t width, flags; /* enum ps_table_flag */
    double rate_factor, weight_decay;
    /* struct table_fill. Not 0: at step 0 every server generates the rows of its shards, and no COPY has
     * them */
    uint32_t fill, stream;
    uint64_t seed;
    double scale;
    /* struct ps_rules of a dynamic table; else 0 */
    uint32_t admit_after, sweep_steps;
    uint64_t expire_steps, max_rows;
};

/* A message. The pointers are into the bytes that were read. */
struct ps_message {
    enum ps_kind kind;
    uint64_t step, first;
    uint32_t flag, number;
    float clip;
    uint32_t n_sections;
    struct ps_section *sections; /* the caller's memory; see ps_message_read() */
    struct optim_hyper hyper;    /* BEGIN, COMMIT, SETUP */
    /* [PS_SET_WORDS] HELD, BEGIN (all three), FOLLOW, FETCH, SAVE, LOAD */
    const uint64_t *shards, *copied, *followed;
    const uint64_t *places; /* [PS_PLACES] SAVE, LOAD, DONE */
    const char *text;       /* SAVE, LOAD, DONE */
    const uint64_t *history; /* [2] HELD, BEGIN */
    const uint8_t *ledger;   /* [ledger_bytes] HELD, BEGIN */
    size_t ledger_bytes;
    const uint64_t *bytes;   /* [PS_SHARDS] HELD */
    uint32_t n_lanes, n_facts;          /* GO; n_lanes also SETUP */
    const struct ps_step_facts *facts;  /* [n_facts] GO */
    const struct ckpt_sizes *sizes; /* [number] COUNTS, SAVE */
    const uint32_t *checksums;   /* [PS_SHARDS] VOTE */
    const double *squares;       /* [PS_SHARDS] VOTE */
    const uint64_t *states;      /* [PS_CHECK_SHARDS] VOTE */
    const uint64_t *last_steps, *counts; /* [n of the section] COPY_IDS */
    /* SETUP */
    uint32_t optimizer, n_tables, bound;
    double average;
    const struct ps_setup_table *tables; /* [n_tables] */
    const char *names;                   /* of the tables, one after the other, each with its NUL */
};

/* Validates n bytes. widths [n_widths]: floats of a row of each table, to find the values of a section;
 * sections [PS_TABLES_MAX] receives the sections. Unknown tables, sizes that do not match the bytes, bytes
 * after the end, numbers out of range are refused. Rows are not compared with the tables. Errors: ERR_PEER. */
int ps_message_read(const uint8_t *data, size_t n, const uint32_t *widths, uint32_t n_widths,
                    struct ps_section *sections, struct ps_message *out, struct err *err);

/* ---- writing: a message grows in memory that is used again ---- */
struct ps_run { /* a part with bytes of `data` from `at` on */
    uint32_t part;
    size_t at;
};
struct ps_writer {
    uint8_t *data; /* owned; 8-byte aligned; the bytes that are not borrowed */
    size_t n, room;
    size_t listed;       /* of the n bytes, those in `parts` */
    size_t borrowed;     /* bytes */
    struct iovec *parts; /* owned; those of ps_writer_parts(), apart from the last one */
    uint32_t n_parts, room_parts;
    struct ps_run *runs; /* owned */
    uint32_t n_runs, room_runs;
    bool failed; /* out of memory */
};
void ps_writer_fini(struct ps_writer *w); /* a zeroed one is allowed */
/* Begins a message: fields kind, step, first, flag, number, clip, and with `has_hyper` kinds the hyper-parameters
 * of `m`. Room for n_sections sections, which ps_write_section() fills in order. */
void ps_write_begin(struct ps_writer *w, const struct ps_message *m, uint32_t n_sections);
/* Adds bytes; n a multiple of 8. Returns their place, valid until the next bytes are added; NULL: out of memory. */
void *ps_write_room(struct ps_writer *w, size_t n);
/* Adds n bytes that stay where they are; they must not change before the message is sent. Together with other
 * bytes a multiple of 8. A part costs time, so values of less than PS_BORROW_BYTES are copied. */
enum { PS_BORROW_BYTES = 256 };
void ps_write_borrow(struct ps_writer *w, const void *data, size_t n);
void ps_write_padding(struct ps_writer *w, uint64_t n_floats); /* after so many borrowed floats of a section */
/* Returns the bytes of the message in parts, valid until the next call; NULL: out of memory. */
const struct iovec *ps_writer_parts(struct ps_writer *w, uint32_t *n);
uint64_t ps_writer_bytes(const struct ps_writer *w); /* of the message */
/* Adds a flag to a message that was written. */
void ps_write_flag(struct ps_writer *w, uint32_t flag);
void ps_write_section(struct ps_writer *w, uint32_t i, uint32_t table, uint32_t part, uint64_t n);
/* Returns n of section i of the message. */
uint64_t ps_written_rows(const struct ps_writer *w, uint32_t i);
void ps_write_set(struct ps_writer *w, const uint64_t set[PS_SET_WORDS]);
/* Adds the optimizer, average, n_tables, tables, n_lanes and bound of `m` to SETUP, and the names. */
void ps_write_setup(struct ps_writer *w, const struct ps_message *m, const char *const *names);
/* Adds history and ledger to HELD and BEGIN. */
void ps_write_units(struct ps_writer *w, const uint64_t history[2], const struct ps_units *u);
/* Adds the lanes of the unit and the facts to GO. */
void ps_write_go(struct ps_writer *w, uint32_t n_lanes, const struct ps_step_facts *facts,
                 uint32_t n);

/* Adds places [PS_PLACES] and text to SAVE, LOAD and DONE. */
void ps_write_save(struct ps_writer *w, const uint64_t *places, const char *text);
/* Adds sizes to COUNTS and SAVE; n is the `number` of the message. */
void ps_write_sizes(struct ps_writer *w, const struct ckpt_sizes *sizes, uint32_t n);

/* Writes the head of a COPY message; the caller writes n * width floats to *values. flags: enum
 * ps_copy_flag. Returns ERR_NOMEM or 0. */
int ps_write_copy(struct ps_writer *w, uint64_t step, uint32_t shard, unsigned flags,
                  uint32_t table, uint32_t part, uint64_t first, uint64_t n, uint32_t width,
                  float **values);

/* The same for a COPY_IDS message of n rows; the caller writes the arrays of *out. */
int ps_write_copy_ids(struct ps_writer *w, const struct ps_message *m, uint32_t table,
                      uint32_t n_parts, uint64_t n, uint32_t width, struct ps_ids_room *out);

/* Returns how many of `left` rows are in one COPY message. */
static inline uint64_t ps_copy_rows(uint32_t width, uint64_t left)
{
    enum { FLOATS = 64 << 10 };
    uint64_t n = width < FLOATS ? FLOATS / width : 1;

    return n < left ? n : left;
}

/* Returns the first of the shards that holders compare in a step; PS_SHARDS: none. every: steps between two
 * comparisons; 0: never. */
static inline uint32_t ps_checked_shard(uint64_t step, uint64_t every)
{
    return every > 0 && step % every == 0 ? (uint32_t)(step / every % PS_CHECKS) * PS_CHECK_SHARDS
                                          : PS_SHARDS;
}

static inline size_t ps_padded(uint64_t n_floats)
{
    return (size_t)((n_floats * sizeof(float) + 7) / 8 * 8);
}

static inline bool ps_set_has(const uint64_t *set, uint32_t shard)
{
    return (set[shard / 64] >> shard % 64 & 1) != 0;
}

static inline void ps_set_add(uint64_t *set, uint32_t shard)
{
    set[shard / 64] |= (uint64_t)1 << shard % 64;
}

static inline void ps_set_remove(uint64_t *set, uint32_t shard)
{
    set[shard / 64] &= ~((uint64_t)1 << shard % 64);
}

/* Returns the first shard of a set from `shard` on; PS_SHARDS: none. */
static inline uint32_t ps_set_next(const uint64_t *set, uint32_t shard)
{
    while (shard < PS_SHARDS && !ps_set_has(set, shard))
        shard++;
    return shard;
}

#endif
