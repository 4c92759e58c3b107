#include "data/tfrecord.h"

#include <inttypes.h>
#include <string.h>

#include "base/buf.h"
#include "base/crc32c.h"
#include "base/err.h"

static uint32_t load_u32(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static uint64_t load_u64(const uint8_t *p)
{
    return load_u32(p) | (uint64_t)load_u32(p + 4) << 32;
}

static void store(uint8_t *p, size_t n, uint64_t v)
{
    for (size_t i = 0; i < n; i++)
        p[i] = (uint8_t)(v >> (8 * i));
}

int tfrecord_head(const uint8_t head[TFRECORD_HEAD_BYTES], uint64_t limit, uint64_t *length,
                  struct err *err)
{
    uint64_t n = load_u64(head);
    uint32_t said = load_u32(head + 8), is = crc32c_mask(crc32c(0, head, 8));

    if (said != is)
        return err_set(err, ERR_CORRUPT,
                       "no TFRecord head: checksum of the length is 0x%08" PRIx32
                       ", expected 0x%08" PRIx32,
                       said, is);
    if (n > limit)
        return err_set(err, ERR_CORRUPT, "record of %" PRIu64 " bytes, expected at most %" PRIu64,
                       n, limit);
    *length = n;
    return 0;
}

int tfrecord_check(const void *data, size_t n, const uint8_t tail[TFRECORD_TAIL_BYTES],
                   struct err *err)
{
    uint32_t said = load_u32(tail), is = crc32c_mask(crc32c(0, data, n));

    if (said == is)
        return 0;
    return err_set(err, ERR_CORRUPT,
                   "checksum of the record's %zu bytes is 0x%08" PRIx32
                   ", the file says 0x%08" PRIx32,
                   n, is, said);
}

void tfrecord_append(struct buf *out, const void *data, size_t n)
{
    uint8_t head[TFRECORD_HEAD_BYTES], tail[TFRECORD_TAIL_BYTES];

    store(head, 8, n);
    store(head + 8, 4, crc32c_mask(crc32c(0, head, 8)));
    store(tail, 4, crc32c_mask(crc32c(0, data, n)));
    buf_add(out, head, sizeof(head));
    buf_add(out, data, n);
    buf_add(out, tail, sizeof(tail));
}
