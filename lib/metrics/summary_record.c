/* summary_record.c - the frame of an event: summary_add_record(). */
#include "base/buf.h"
#include "base/crc32c.h"
#include "metrics/summary_priv.h"

static void add_u32(struct buf *out, uint32_t v)
{
    buf_add(out,
            (uint8_t[]){ (uint8_t)v, (uint8_t)(v >> 8), (uint8_t)(v >> 16), (uint8_t)(v >> 24) },
            4);
}

void summary_add_record(struct buf *out, const void *data, uint32_t n)
{
    size_t at = out->len;

    add_u32(out, n);
    add_u32(out, 0);
    if (!out->failed)
        add_u32(out, crc32c_mask(crc32c(0, out->data + at, 8)));
    buf_add(out, data, n);
    add_u32(out, crc32c_mask(crc32c(0, data, n)));
}
