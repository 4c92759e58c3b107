/* write.h - writes tf.train.Example samples to TFRecord files, as several shards.
 *
 *   struct buf list = { 0 };
 *   data_write_ints(&list, "label", &label, 1);       one call per feature
 *   data_writer_add(w, &list, err);                   writes the sample and empties the list
 *
 * Sample i is written to shard i mod n. Shards have temporary names until data_writer_commit()
 * syncs and renames them. Threads: one at a time. */
#ifndef DATA_WRITE_H
#define DATA_WRITE_H

#include <stddef.h>
#include <stdint.h>

struct buf;
struct data_writer;
struct err;

/* Opens shards for <prefix>-00000-of-0000n.tfrecord; creates the directory if necessary. Existing
 * files of these names are replaced by the commit. On success the caller owns *out. Errors: ERR_IO,
 * ERR_FULL, ERR_NOMEM. */
int data_writer_open(const char *prefix, uint32_t n_shards, struct data_writer **out,
                     struct err *err);
int data_writer_add(struct data_writer *w, struct buf *list, struct err *err);
int data_writer_commit(struct data_writer *w, struct err *err);
uint64_t data_writer_records(const struct data_writer *w); /* samples added so far */
/* Frees the writer and deletes shards that are not committed. NULL is allowed. */
void data_writer_close(struct data_writer *w);

/* Add a feature to the list of a sample. */
void data_write_bytes(struct buf *list, const char *name, const void *bytes, size_t n);
void data_write_floats(struct buf *list, const char *name, const float *x, size_t n);
void data_write_ints(struct buf *list, const char *name, const int64_t *x, size_t n);

#endif
