/* saver_priv.h - shared by the files of a saver.
 *
 *   saver.c      files, and the rows of tables of fixed size
 *   saver_ids.c  the rows of dynamic tables
 *   saver_chunk.c  writes rows that were collected */
#ifndef PS_SAVER_PRIV_H
#define PS_SAVER_PRIV_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ckpt/ckpt.h"
#include "ps/background.h"
#include "ps/saver.h"

enum {
    SAVER_CHUNK_BYTES = 4 << 20,
    SAVER_FILES = CKPT_SHARD_KINDS * CKPT_SHARD_FILES,
    SAVER_LISTS = CKPT_GROUPS * CKPT_FILE_SHARDS,
};

_Static_assert((int)SAVER_FILES == (int)PS_PLACES, "messages have a place for each file");

struct saver {
    struct ps_background base;
    /* constant */
    struct ps_save_job job; /* its pointers, except `store`, are owned */
    uint64_t data_at[SAVER_FILES], shards[PS_SET_WORDS];
    uint32_t n_parts;
    bool *is_dense; /* owned [n_tables] */

    /* used by the thread alone */
    int fds[SAVER_FILES]; /* owned; -1: not open */
    char *path;       /* owned; of the file in use */
    uint8_t *chunk;   /* owned */
    size_t n_chunk, row_bytes;
    uint64_t chunk_at; /* byte of the file */
    uint32_t file;     /* index in fds */
    struct err *err;
    uint64_t sums[SAVER_FILES]; /* constant when the work is done */
    struct ckpt_sizes *sizes; /* owned [job.n_sizes] */
    /* owned [n_tables * SAVER_LISTS], with the lists: places of the rows of each group in the shards of the file in use; NULL:
     * no table is dynamic */
    uint32_t **lists;
};

/* ---- saver_chunk.c ---- */

/* Writes the chunk. */
int saver_flush(struct saver *s);

/* ---- saver_ids.c ---- */

/* Lists the rows of the file. Errors: ERR_PEER (other numbers of rows than those of the job), ERR_NOMEM, ERR_CANCELED. */
int saver_list_ids(struct saver *s);
void saver_free_ids(struct saver *s);
/* Writes the tensors of integers of all dynamic tables. *at: byte of the first one; then of the next tensor. */
int saver_write_integers(struct saver *s, uint64_t *at);
/* Writes a part of the trained rows of a dynamic table. */
int saver_write_part(struct saver *s, uint32_t table, uint32_t part, uint64_t *at);

#endif
