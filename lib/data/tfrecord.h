/* tfrecord.h - the TFRecord container: per record
 *
 *  uint64 length (little-endian) | uint32 masked crc32c(length) | data | uint32 masked crc32c(data)
 *
 * (TensorFlow, lib/io/record_writer). Threads: any; pure functions. */
#ifndef DATA_TFRECORD_H
#define DATA_TFRECORD_H

#include <stddef.h>
#include <stdint.h>

struct buf;
struct err;

enum { TFRECORD_HEAD_BYTES = 12, TFRECORD_TAIL_BYTES = 4 };

/* Parses the length from the 12 bytes of a header. Errors: ERR_CORRUPT (wrong CRC, or a length
 * above `limit`). */
int tfrecord_head(const uint8_t head[TFRECORD_HEAD_BYTES], uint64_t limit, uint64_t *length,
                  struct err *err);
/* Checks the CRC of the data; `tail`: the four bytes after the data. Errors: ERR_CORRUPT, whose
 * text contains both CRCs. */
int tfrecord_check(const void *data, size_t n, const uint8_t tail[TFRECORD_TAIL_BYTES],
                   struct err *err);
/* Appends a record with its header and tail. */
void tfrecord_append(struct buf *out, const void *data, size_t n);

#endif
