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

/* Returns a number that two writers of the same rows agree on, and that changes if a row changes, or if two
 * rows of a file are exchanged: the sum over rows, mod 2^64, of the checksum of each row and of its place.
 * data: n rows of row_bytes, the first of which is at byte `at` of its file. */
uint64_t ckpt_shard_sum(const void *data, uint64_t n, size_t row_bytes, uint64_t at);

#endif
