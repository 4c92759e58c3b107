/* ids.h - the ids of dynamic tables in a checkpoint (shard_files.h). The files are not trusted.
 *
 * Threads: as rows.h. */
#ifndef CKPT_IDS_H
#define CKPT_IDS_H

#include <stdint.h>

#include "ckpt/shard_files.h"

struct ckpt_rows;
struct err;

/* The tensors of a group of rows of a dynamic table. */
struct ckpt_ids {
    const struct ckpt_rows *rows; /* borrowed */
    const char *table;            /* borrowed */
    enum ckpt_group group;
    uint64_t n; /* rows */
    enum ckpt_shard_kind kind; /* of the tensor of ids; the others are in the files of the optimizer */
    uint32_t ids, last_steps, counts; /* numbers of tensors */
};

/* Errors: ERR_NOENT, ERR_CORRUPT. */
int ckpt_ids_open(const struct ckpt_rows *rows, const char *table, enum ckpt_group group,
                  struct ckpt_ids *out, struct err *err);
/* Finds the first row of a shard, or of the next ones; SHARDS: after the last row. Errors: ERR_IO, ERR_CORRUPT. */
int ckpt_ids_find(const struct ckpt_ids *t, uint32_t shard, uint64_t *out, struct err *err);
/* Reads the ids, newest steps and counts of rows [first, first + n). Errors: ERR_IO, ERR_CORRUPT. */
int ckpt_ids_read(const struct ckpt_ids *t, uint64_t first, uint64_t n, int64_t *ids,
                  int64_t *last_steps, int64_t *counts, struct err *err);

/* Checks all dynamic tables in shard files: every id is in the file of its shard, at its place, once, and either
 * trained or a candidate; steps are from 1 to `step`, counts from 1 to 2^32 - 1. Errors: ERR_CORRUPT, ERR_IO, ERR_NOMEM. */
int ckpt_ids_check(const struct ckpt_rows *rows, uint64_t step, struct err *err);

#endif
