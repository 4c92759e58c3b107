/* shard_files.h - where the rows of sharded tables (tensor/shards.h) are in the files of a checkpoint. Pure.
 *
 * The 1024 shards are divided among 16 files: file i has shards 64 i to 64 i + 63, whatever task holds them,
 * so the bytes of a file do not depend on the number of parameter servers. In a file, the rows of a table
 * are one tensor, in ascending order:
 *
 *     model-00000-of-00016.safetensors      <table>/rows-00000-of-00016           [rows in file 0, ...]
 *     model-00001-of-00016.safetensors      <table>/rows-00001-of-00016           [rows in file 1, ...]
 *     ...
 *     optimizer-00000-of-00016.safetensors  <table>/<slot>/rows-00000-of-00016    [rows in file 0, ...]
 *     ...
 *
 * The data of a file are the tensors of table 0, table 1, ..., those of its slots in their order. The number
 * of a table follows from this order, and determines its first shard. A file has a tensor of each table, also
 * if the table has no row there.
 *
 * A dynamic table (tensor/shards.h) has two groups of rows: those that are trained, and the candidates, ids whose
 * gradients are counted until the row is trained. Its number of rows is different in each checkpoint. Its tensors of
 * integers precede the floats of all tables, in the order of the tables, so that each tensor is aligned:
 *
 *     model-*        <table>/ids        int64  [trained]    <table>         float32 [trained, ...]
 *     optimizer-*    <table>/last_step  int64  [trained]    <table>/<slot>  float32 [trained, ...]
 *                    <table>/count      int64  [trained]
 *                    <table>/candidate_ids, <table>/candidate_last_step, <table>/candidate_count   int64 [candidates]
 *
 * Its rows are in the order of their shards, those of a shard by ascending id. So the place of a row follows from
 * the number of rows in each shard (struct ckpt_sizes), and several servers can write one file.
 *
 * The names are different in all files, because an index in the format of Hugging Face names one file for each
 * tensor: readers of such an index load every row once, and none of them takes a part for the table.
 * No number here may ever change. Threads: any. */
#ifndef CKPT_SHARD_FILES_H
#define CKPT_SHARD_FILES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tensor/shards.h"

enum {
    CKPT_SHARD_FILES = 16,
    CKPT_FILE_SHARDS = SHARDS / CKPT_SHARD_FILES,
    CKPT_FILE_NAME_BYTES = 128, /* of a file of a checkpoint, with NUL */
};

/* Files with rows: their weights, their slots (with the moving average). */
enum ckpt_shard_kind { CKPT_SHARD_MODEL, CKPT_SHARD_OPTIMIZER, CKPT_SHARD_KINDS };

void ckpt_shard_file_name(enum ckpt_shard_kind kind, uint32_t file, char out[CKPT_FILE_NAME_BYTES]);

/* Returns the file that has a row of the table with this first shard. */
static inline uint32_t ckpt_shard_file_of(uint32_t first_shard, uint64_t row)
{
    return shard_of_block(first_shard, row / SHARD_BLOCK_ROWS) / CKPT_FILE_SHARDS;
}

/* Returns how many rows of the table precede `row` in a file: for a row of the file its index there, and
 * for the number of rows of the table the number of its rows in the file. */
uint64_t ckpt_shard_rows_before(uint32_t first_shard, uint32_t file, uint64_t row);

/* Finds the next rows of a table of `rows` rows that are in the file: *row: the first of them from *row on;
 * *n: how many consecutive rows. false: there is none. */
bool ckpt_shard_next(uint64_t rows, uint32_t first_shard, uint32_t file, uint64_t *row,
                     uint64_t *n);

/* ---- dynamic tables ---- */

enum ckpt_group { CKPT_TRAINED, CKPT_CANDIDATES, CKPT_GROUPS };

/* The tensors of integers of a dynamic table in a file of the optimizer, in their order. */
enum { CKPT_INTEGERS = 5 };
struct ckpt_integers {
    const char *part; /* of the name: <table>/<part> */
    enum ckpt_group group;
};
extern const struct ckpt_integers ckpt_integers[CKPT_INTEGERS];

struct ckpt_sizes { /* of a dynamic table; of others all zero */
    uint32_t rows[CKPT_GROUPS][SHARDS];
};

/* Returns how many rows of the group are in the shards of a file before `shard`, which is of the file, or the first
 * one of the next file: then all of them. */
uint64_t ckpt_sizes_before(const struct ckpt_sizes *s, enum ckpt_group group, uint32_t file,
                           uint32_t shard);
static inline uint64_t ckpt_sizes_in_file(const struct ckpt_sizes *s, enum ckpt_group group,
                                          uint32_t file)
{
    return ckpt_sizes_before(s, group, file, (file + 1) * CKPT_FILE_SHARDS);
}

/* ---- sums ---- */

/* Returns a number that two writers of the same rows agree on, and that changes if a row changes, or if two
 * rows of a file are exchanged: the sum over rows, mod 2^64, of the checksum of each row and of its place.
 * data: n rows of row_bytes, the first of which is at byte `at` of its file. */
uint64_t ckpt_shard_sum(const void *data, uint64_t n, size_t row_bytes, uint64_t at);

#endif
