/* saver.h - writes the rows of some shards of a store to the shard files of a checkpoint (ckpt/shard_files.h), on
 * a thread of its own, so that the service thread answers meanwhile, also if the storage hangs.
 *
 * Every row is copied from the store to one chunk of a few MiB and written at its place in the file: each file is
 * written by all servers that hold shards of it, each byte by one of them. The files exist with their final sizes.
 * They are opened for writing alone, so that a client of a network file system sends the bytes that were written,
 * and not the pages around them.
 *
 * While the thread runs, the store must not change and no shard of it may be dropped.
 * Fault points: ps.save: before each write to a file; ps.save_sync: before a file is synced.
 * Threads: the functions: one at a time. */
#ifndef PS_SAVER_H
#define PS_SAVER_H

#include <stdint.h>

#include "base/err.h"
#include "ckpt/shard_files.h"
#include "ps/message.h"

struct ps_saver;
struct ps_store;

struct ps_save_job {
    const struct ps_store *store; /* borrowed until ps_saver_stop() */
    uint32_t n_tables;
    const uint64_t *rows;   /* [n_tables] copied */
    const uint32_t *widths; /* [n_tables] copied */
    const char *folder; /* copied; NULL: the job of this task has none, so the save fails */
    const uint64_t *data_at; /* [CKPT_SHARD_KINDS * CKPT_SHARD_FILES] as ckpt_row_files; copied */
    const uint64_t *shards;  /* [PS_SET_WORDS] copied; the store holds them all */
};

/* On success the caller owns *out; a save that cannot begin has failed. Errors: ERR_NOMEM. */
int ps_saver_start(const struct ps_save_job *job, struct ps_saver **out, struct err *err);

struct ps_saver_status {
    enum ps_saved state;
    uint64_t progress; /* grows with each completed operation of the storage */
    uint64_t sums[CKPT_SHARD_KINDS * CKPT_SHARD_FILES]; /* PS_SAVED_ALL: of the rows that were written */
    struct err err;                                     /* PS_SAVED_NONE */
};
void ps_saver_status(struct ps_saver *s, struct ps_saver_status *out);

/* The thread uses the store no more. It writes nothing after the write in progress, and frees the saver when that
 * write returns. NULL is allowed. */
void ps_saver_stop(struct ps_saver *s);

#endif
