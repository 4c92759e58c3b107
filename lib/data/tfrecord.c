#include "data/tfrecord.h"

#include <inttypes.h>
#include <string.h>

#include "base/buf.h"
#include "base/bytes.h"
#include "base/crc32c.h"
#include "base/err.h"

int tfrecord_head(const uint8_t head[TFRECORD_HEAD_BYTES], uint64_t limit, uint64_t *length,
                  struct err *err)
{
    uint64_t n = bytes_get_u64(head);
    uint32_t stored_crc = bytes_get_u32(head + 8), actual_crc = crc32c_mask(crc32c(0, head, 8));

    if (stored_crc != actual_crc)
        return err_set(err, ERR_CORRUPT,
                       "not a TFRecord header: checksum of the length is 0x%08" PRIx32
                       ", expected 0x%08" PRIx32,
                       stored_crc, actual_crc);
    if (n > limit)
        return err_set(err, ERR_CORRUPT, "record of %" PRIu64 " bytes, expected at most %" PRIu64,
                       n, limit);
    *length = n;
    return 0;
}

int tfrecord_check(const void *data, size_t n, const uint8_t tail[TFRECORD_TAIL_BYTES],
                   struct err *err)
{
    uint32_t stored_crc = bytes_get_u32(tail), actual_crc = crc32c_mask(crc32c(0, data, n));

    if (stored_crc == actual_crc)
        return 0;
    return err_set(err, ERR_CORRUPT,
                   "checksum of the record's %zu bytes is 0x%08" PRIx32
                   ", the file contains 0x%08" PRIx32,
                   n, actual_crc, stored_crc);
}

void tfrecord_append(struct buf *out, const void *data, size_t n)
{
    uint8_t head[TFRECORD_HEAD_BYTES], tail[TFRECORD_TAIL_BYTES];

    bytes_set_u64(head, n);
    bytes_set_u32(head + 8, crc32c_mask(crc32c(0, head, 8)));
    bytes_set_u32(tail, crc32c_mask(crc32c(0, data, n)));
    buf_add(out, head, sizeof(head));
    buf_add(out, data, n);
    buf_add(out, tail, sizeof(tail));
}
