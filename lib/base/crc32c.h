/* crc32c.h - CRC-32C (Castagnoli, polynomial 0x1EDC6F41 reflected 0x82F63B78; RFC 3720 B.4),
 * with the processor's instruction where there is one (three streams interleaved).
 * Threads: any. */
#ifndef BASE_CRC32C_H
#define BASE_CRC32C_H

#include <stddef.h>
#include <stdint.h>

/* `crc` is 0 to begin, or the result so far. */
uint32_t crc32c(uint32_t crc, const void *data, size_t n);

/* TFRecord's masked form: rotate right by 15, add 0xa282ead8. */
static inline uint32_t crc32c_mask(uint32_t crc)
{
    return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

/* The table form, for tests and machines without the instruction. */
uint32_t crc32c_portable(uint32_t crc, const void *data, size_t n);

#endif
