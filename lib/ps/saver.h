/* saver.h - background work (background.h): writes the rows of some shards of a store to the shard files of a
 * checkpoint (ckpt/shard_files.h).
 *
 * Every row is copied from the store to one chunk of a few MiB and written at its place in the file: each file is
 * written by all servers that hold shards of it, each byte by one of them. The files exist with their final sizes.
 * They are opened for writing alone, so that a client of a network file system sends the bytes that were written,
 * and not the pages around them. Dense parameters are in no shard file: the coordinator writes them.
 *
 * Fault points: ps.save: before each write to a file; ps.save_sync: before a file is synced.
 * Threads: the owner's. */
#ifndef PS_SAVER_H
#define PS_SAVER_H

#include <stdint.h>

struct ckpt_sizes;
struct ps_background;
struct ps_store;

struct ps_save_job {
    const struct ps_store *store; /* borrowed until ps_background_stop() */
    uint32_t n_tables;
    const uint64_t *rows;   /* [n_tables] copied; 0: the table is dynamic */
    const uint32_t *widths; /* [n_tables] copied */
    const char *folder; /* copied; NULL: the job of this task has none, so the save fails */
    const uint64_t *data_at; /* [CKPT_SHARD_KINDS * CKPT_SHARD_FILES] as ckpt_row_files; copied */
    const uint64_t *shards;  /* [PS_SET_WORDS] copied; the store holds them all */
    const struct ckpt_sizes *sizes; /* [n_sizes] of all shards; copied */
    uint32_t n_sizes; /* n_tables, or 0: no table is dynamic */
};

/* The caller owns the result, as work that ps_background_stop() ends. NULL: out of memory. */
struct ps_background *ps_saver_start(const struct ps_save_job *job);
/* PS_DONE_ALL: copies the sums of the rows of each file to out [PS_PLACES]. */
void ps_saver_sums(const struct ps_background *b, uint64_t *out);

#endif
