/* bytes.h - reads and writes numbers at fixed offsets of a message or of a file header.
 *
 * Every binary format of the project stores integers and floats in little-endian order, whatever
 * the byte order of the machine. The address needs no alignment. On a little-endian machine each
 * function compiles to one load or one store. Threads: any. */
#ifndef BASE_BYTES_H
#define BASE_BYTES_H

#include <endian.h>
#include <stdint.h>
#include <string.h>

static inline void bytes_set_u32(void *at, uint32_t v)
{
    v = htole32(v);
    memcpy(at, &v, sizeof(v));
}

static inline void bytes_set_u64(void *at, uint64_t v)
{
    v = htole64(v);
    memcpy(at, &v, sizeof(v));
}

/* IEEE 754 binary64; every bit of a NaN is kept. */
static inline void bytes_set_f64(void *at, double v)
{
    uint64_t bits;

    memcpy(&bits, &v, sizeof(bits));
    bytes_set_u64(at, bits);
}

static inline uint32_t bytes_get_u32(const void *at)
{
    uint32_t v;

    memcpy(&v, at, sizeof(v));
    return le32toh(v);
}

static inline uint64_t bytes_get_u64(const void *at)
{
    uint64_t v;

    memcpy(&v, at, sizeof(v));
    return le64toh(v);
}

static inline double bytes_get_f64(const void *at)
{
    uint64_t bits = bytes_get_u64(at);
    double v;

    memcpy(&v, &bits, sizeof(v));
    return v;
}

#endif
