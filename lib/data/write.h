/* write.h - TFRecord files of tf.train.Example, as several shards.
 *
 *   struct buf list = { 0 };
 *   data_write_ints(&list, "label", &label, 1);       one call a feature
 *   data_writer_add(w, &list, err);                   the sample is complete; the list is emptied
 *
 * Sample i goes to shard i mod n. Shards are written under temporary names and appear together in
 * data_writer_commit(), synced. Threads: one at a time. */
#ifndef DATA_WRITE_H
#define DATA_WRITE_H

#include <stddef.h>
#include <stdint.h>

struct buf;
struct data_writer;
struct err;

/* Files <prefix>-00000-of-0000n.tfrecord; the folder is made if it is not there. Files of these names
 * are replaced. Errors: ERR_IO, ERR_FULL, ERR_NOMEM. */
int data_writer_open(const char *prefix, uint32_t n_shards, struct data_writer **out,
                     struct err *err);
int data_writer_add(struct data_writer *w, struct buf *list, struct err *err);
int data_writer_commit(struct data_writer *w, struct err *err);
uint64_t data_writer_records(const struct data_writer *w);
void data_writer_close(struct data_writer *w); /* without commit nothing is left; NULL is fine */

/* Add a feature to the list of a sample. */
void data_write_bytes(struct buf *list, const char *name, const void *bytes, size_t n);
void data_write_floats(struct buf *list, const char *name, const float *x, size_t n);
void data_write_ints(struct buf *list, const char *name, const int64_t *x, size_t n);

#endif
