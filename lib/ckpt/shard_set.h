/* shard_set.h - the shard files (shard_files.h) of a checkpoint, of one kind: their tables, and where the rows
 * are. The files are not trusted. Threads: one at a time; reading rows: any. */
#ifndef CKPT_SHARD_SET_H
#define CKPT_SHARD_SET_H

#include <stddef.h>
#include <stdint.h>

#include "ckpt/shard_files.h"
#include "ckpt/verified.h"
#include "tensor/tensor.h"

struct ckpt_manifest;
struct err;
struct safetensors;

struct ckpt_shard_table {
    char *name;         /* owned; of the whole tensor */
    struct shape shape; /* of the whole tensor; rank >= 1 */
    enum tensor_dtype dtype;
    uint64_t rows;      /* shape.dim[0] */
    size_t row_bytes;
    uint32_t number;      /* of the table to which the rows belong */
    uint32_t first_shard; /* of a table of fixed size */
    uint32_t group;       /* as in struct ckpt_tensor; the rows of a dynamic table are in the order of the files */
    uint64_t at[CKPT_SHARD_FILES];   /* bytes before its first row in each file */
    uint64_t n_rows[CKPT_SHARD_FILES];
};

struct ckpt_shard_set {
    int fds[CKPT_SHARD_FILES];     /* owned; -1: not open */
    char *paths[CKPT_SHARD_FILES]; /* owned */
    struct ckpt_verified verified[CKPT_SHARD_FILES]; /* owned */
    struct ckpt_shard_table *tables; /* owned; [n] in the order of the data; those of integers first */
    uint32_t n;
};

/* Opens all files that the manifest lists. `model`: the set of the weights, for the set of the slots; NULL: this
 * is it. The caller closes *out, also after a failure. Errors: ERR_CORRUPT (a file is absent, or the headers
 * are not those of shards_files.h), ERR_IO, ERR_NOMEM. */
int ckpt_shard_set_open(const char *folder, const struct ckpt_manifest *m,
                        enum ckpt_shard_kind kind, const struct ckpt_shard_set *model,
                        struct ckpt_shard_set *out, struct err *err);
void ckpt_shard_set_close(struct ckpt_shard_set *s); /* one that ckpt_shard_set_init() began is allowed */
/* Compares all files with their checksums in the manifest; later reads then compare what they read (verified.h). */
int ckpt_shard_set_verify(struct ckpt_shard_set *s, const struct ckpt_manifest *m,
                          enum ckpt_shard_kind kind, ckpt_verified_fn *on_progress, void *arg,
                          struct err *err);
/* Copies rows [first, first + n) of a table, n * row_bytes. Errors: ERR_IO, ERR_CORRUPT. */
int ckpt_shard_set_read(const struct ckpt_shard_set *s, uint32_t table, uint64_t first, uint64_t n,
                        void *out, struct err *err);

/* ---- the parts of ckpt_shard_set_open(); pure ---- */
void ckpt_shard_set_init(struct ckpt_shard_set *s);
/* Adds the header of file 0, 1, ... */
int ckpt_shard_set_add(struct ckpt_shard_set *s, uint32_t file, const struct safetensors *header,
                       struct err *err);
/* Numbers the tables, and compares the rows of each file with those that the rule gives it; of dynamic tables the
 * numbers of rows of their tensors with each other. */
int ckpt_shard_set_check(struct ckpt_shard_set *s, const struct ckpt_shard_set *model,
                         struct err *err);

#endif
