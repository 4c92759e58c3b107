/* varints.c - decodes packed int64 varints of protobuf in blocks. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "base/clones.h"
#include "data/data_priv.h"

enum {
    BLOCK = DATA_VARINTS_BLOCK,
    NUMBER_MAX = DATA_VARINTS_LONGEST,
    READ = BLOCK + NUMBER_MAX, /* bytes that decoding a block may read */
};

/* Returns a mask: bit i is set if byte i of the block ends a number (its highest bit is 0). */
static inline uint64_t find_ends(const uint8_t *at)
{
    uint64_t inside = 0;

#if defined(__SSE2__)
    for (unsigned i = 0; i < BLOCK; i += 16)
        inside |= (uint64_t)(uint32_t)_mm_movemask_epi8(_mm_loadu_si128((const void *)(at + i)))
                  << i;
#else
    for (unsigned i = 0; i < BLOCK; i += 8) {
        uint64_t x;

        memcpy(&x, at + i, 8);
        x = (x >> 7) & UINT64_C(0x0101010101010101);
        inside |= (x * UINT64_C(0x0102040810204080) >> 56) << i; /* byte k becomes bit k */
    }
#endif
    return ~inside;
}

/* Removes all ends from the first number of more than NUMBER_MAX bytes on, at which decoding
 * stops. */
static inline uint64_t short_ends(uint64_t ends)
{
    uint64_t inside = ~ends;

    inside &= inside >> 1;
    inside &= inside >> 2;
    inside &= inside >> 4;
    return inside != 0 ? ends & ((inside & -inside) - 1) : ends;
}

static const uint64_t low_bytes[NUMBER_MAX + 1] = {
    0,         0xff, 0xffff, 0xffffff, 0xffffffff, 0xffffffffff, 0xffffffffffff, 0xffffffffffffff,
    UINT64_MAX
};

/* Extracts the bytes of each number of a block, without their decoding. Returns the count of
 * numbers; *used: their bytes. */
static size_t extract_block(const uint8_t *at, uint64_t ends, uint64_t *out, size_t *used)
{
    unsigned start = 0;
    size_t n = 0;

    for (; ends != 0; ends &= ends - 1) {
        unsigned end = (unsigned)__builtin_ctzll(ends) + 1;
        uint64_t x;

        memcpy(&x, at + start, 8);
        out[n++] = x & low_bytes[end - start];
        start = end;
    }
    *used = start;
    return n;
}

/* Decodes numbers: concatenates the low 7 bits of each byte. */
CLONES static void concatenate_bits(uint64_t *x, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint64_t v = x[i] & UINT64_C(0x7f7f7f7f7f7f7f7f);

        v = (v & UINT64_C(0x007f007f007f007f)) | (v & UINT64_C(0x7f007f007f007f00)) >> 1;
        v = (v & UINT64_C(0x00003fff00003fff)) | (v & UINT64_C(0x3fff00003fff0000)) >> 2;
        x[i] = (v & UINT64_C(0x0fffffff)) | (v & UINT64_C(0x0fffffff00000000)) >> 4;
    }
}

size_t data_varints_portable(const uint8_t *at, size_t bytes, uint64_t *out, size_t room,
                             size_t *used)
{
    size_t n = 0, block, taken;

    for (*used = 0; bytes - *used >= READ && room - n >= BLOCK; *used += block) {
        uint64_t ends = short_ends(find_ends(at + *used));

        if (ends == 0)
            break;
        taken = extract_block(at + *used, ends, out + n, &block);
        concatenate_bits(out + n, taken);
        n += taken;
    }
    return n;
}

#if defined(__x86_64__)
/* low_bits[n]: mask of the low 7 bits of n bytes. */
static const uint64_t low_bits[NUMBER_MAX + 1] = { 0,
                                                   0x7f,
                                                   0x7f7f,
                                                   0x7f7f7f,
                                                   0x7f7f7f7f,
                                                   0x7f7f7f7f7f,
                                                   0x7f7f7f7f7f7f,
                                                   0x7f7f7f7f7f7f7f,
                                                   0x7f7f7f7f7f7f7f7f };

/* data_varints() with the PEXT instruction. */
__attribute__((target("bmi,bmi2"))) static size_t numbers_pext(const uint8_t *at, size_t bytes,
                                                               uint64_t *out, size_t room,
                                                               size_t *used)
{
    const uint8_t *from = at;
    uint64_t *to = out, *last = out + room;

    while (bytes - (size_t)(from - at) >= READ && last - to >= BLOCK) {
        uint64_t ends = short_ends(find_ends(from));
        const uint8_t *block = from;

        if (ends == 0)
            break;
        for (; ends != 0; ends &= ends - 1) {
            const uint8_t *end = block + __builtin_ctzll(ends) + 1;
            uint64_t x;

            memcpy(&x, from, 8);
            *to++ = _pext_u64(x, low_bits[end - from]);
            from = end;
        }
    }
    *used = (size_t)(from - at);
    return (size_t)(to - out);
}

size_t data_varints(const uint8_t *at, size_t bytes, uint64_t *out, size_t room, size_t *used)
{
    return (__builtin_cpu_supports("bmi2") ? numbers_pext : data_varints_portable)(at, bytes, out,
                                                                                   room, used);
}
#else
size_t data_varints(const uint8_t *at, size_t bytes, uint64_t *out, size_t room, size_t *used)
{
    return data_varints_portable(at, bytes, out, room, used);
}
#endif
