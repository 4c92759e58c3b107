/* crc32c.h - CRC-32C (Castagnoli, polynomial 0x1EDC6F41, reflected 0x82F63B78; RFC 3720 B.4).
 *
 * Uses the instructions of the processor: CRC with three interleaved streams, or carry-less multiplication of 512
 * bits. Threads: any. */
#ifndef BASE_CRC32C_H
#define BASE_CRC32C_H

#include <stddef.h>
#include <stdint.h>

/* Returns the CRC of data [n] appended to the bytes whose CRC is `crc` (0: no bytes). */
uint32_t crc32c(uint32_t crc, const void *data, size_t n);

/* TFRecord's masked form: rotate right by 15, add 0xa282ead8. */
static inline uint32_t crc32c_mask(uint32_t crc)
{
    return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

/* The implementations with three streams and with tables, for tests and for processors without the instructions. */
uint32_t crc32c_streams(uint32_t crc, const void *data, size_t n);
uint32_t crc32c_portable(uint32_t crc, const void *data, size_t n);

#endif
