/* rows.h - reads ranges of rows of the tensors of a checkpoint, wherever they are: in a file of whole tensors, or
 * in shard files. Reads only the bytes of the range. They are compared with the manifest after ckpt_rows_verify(),
 * else by ckpt_verify() alone.
 *
 * The rows of a dynamic table are in the order of their shards, those of a shard by ascending id (shard_files.h).
 *
 * A row of a tensor is its part with one index of dimension 0; a scalar has one row.
 * Threads: ckpt_rows_read() from any; the rest one at a time. */
#ifndef CKPT_ROWS_H
#define CKPT_ROWS_H

#include <stdint.h>

#include "ckpt/shard_files.h"
#include "ckpt/verified.h"
#include "tensor/tensor.h"

struct ckpt_rows;
struct err;

/* Reads the manifest and the headers of a checkpoint folder, whose files stay open. On success the caller owns
 * *out. Errors: ERR_CORRUPT, ERR_NOENT, ERR_IO, ERR_NOMEM. */
int ckpt_rows_open(const char *folder, struct ckpt_rows **out, struct err *err);
void ckpt_rows_close(struct ckpt_rows *r); /* NULL is allowed */
/* Reads all files once, and compares them with their checksums in the manifest. Every later read is then compared with
 * what was verified. Errors: those of ckpt_verified_open(). */
int ckpt_rows_verify(struct ckpt_rows *r, ckpt_verified_fn *on_progress, void *arg,
                     struct err *err);

struct ckpt_rows_tensor {
    const char *name; /* valid until ckpt_rows_close() */
    enum tensor_dtype dtype;
    struct shape shape;
    uint64_t rows;
    size_t row_bytes;
    uint32_t group; /* of a dynamic table in shard files, as in struct ckpt_tensor */
    const uint64_t *in_file; /* [CKPT_SHARD_FILES] rows in each; NULL: a whole tensor */
};
/* The tensors of the weights, or of the optimizer: first those of the file of whole tensors. */
uint32_t ckpt_rows_count(const struct ckpt_rows *r, enum ckpt_shard_kind kind);
void ckpt_rows_describe(const struct ckpt_rows *r, enum ckpt_shard_kind kind, uint32_t i,
                        struct ckpt_rows_tensor *out);
/* Returns the number of a tensor. Errors: ERR_NOENT. */
int ckpt_rows_find(const struct ckpt_rows *r, enum ckpt_shard_kind kind, const char *name,
                   uint32_t *out, struct err *err);
/* Copies rows [first, first + n) of tensor i, n * row_bytes. Errors: ERR_IO, ERR_CORRUPT. */
int ckpt_rows_read(const struct ckpt_rows *r, enum ckpt_shard_kind kind, uint32_t i, uint64_t first,
                   uint64_t n, void *out, struct err *err);
/* Copies elements [first, first + n), in row-major order, of a tensor that is in the file of whole tensors.
 * Errors: those of ckpt_rows_read(); ERR_CORRUPT also if it is in shard files. */
int ckpt_rows_read_flat(const struct ckpt_rows *r, enum ckpt_shard_kind kind, uint32_t i,
                        uint64_t first, uint64_t n, void *out, struct err *err);

#endif
