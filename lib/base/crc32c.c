/* crc32c.c - the CRC instruction has a latency of 3 cycles and a throughput of one per cycle, so
 * three adjacent streams are processed in parallel. Carry-less multiplication combines their CRCs:
 * appending n bytes to a stream multiplies its CRC by x^(8n) modulo the polynomial.
 *
 * A processor with AVX-512 and VPCLMULQDQ folds long data instead: it replaces a block of 256 bytes and
 * the next one by a block with the same CRC. Measured with 256 KiB in the second-level cache of a Zen 4 core: 90
 * GB/s; three streams 24, XXH3 of libxxhash 21 to 54. */
#include "base/crc32c.h"

#include <pthread.h>
#include <stdbool.h>
#include <string.h>

#include "base/check.h"

enum { SLICES = 8 };

/* table[k][b]: the CRC of byte b followed by k zero bytes. */
static uint32_t table[SLICES][256];
static pthread_once_t table_once = PTHREAD_ONCE_INIT;

static void fill_table(void)
{
    for (uint32_t b = 0; b < 256; b++) {
        uint32_t crc = b;

        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (0x82f63b78u & (0u - (crc & 1)));
        table[0][b] = crc;
    }
    for (uint32_t b = 0; b < 256; b++)
        for (int k = 1; k < SLICES; k++)
            table[k][b] = table[k - 1][b] >> 8 ^ table[0][table[k - 1][b] & 0xff];
}

uint32_t crc32c_portable(uint32_t crc, const void *data, size_t n)
{
    const uint8_t *p = data;

    pthread_once(&table_once, fill_table);
    crc = ~crc;
    /* Eight bytes per iteration: byte i of the eight uses table[7 - i]. */
    for (; n >= 8; n -= 8, p += 8) {
        uint32_t low = crc ^ ((uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 |
                              (uint32_t)p[3] << 24);

        crc = table[7][low & 0xff] ^ table[6][low >> 8 & 0xff] ^ table[5][low >> 16 & 0xff] ^
              table[4][low >> 24] ^ table[3][p[4]] ^ table[2][p[5]] ^ table[1][p[6]] ^
              table[0][p[7]];
    }
    for (; n > 0; n--, p++)
        crc = crc >> 8 ^ table[0][(crc ^ *p) & 0xff];
    return ~crc;
}

#if defined(__x86_64__)
#include <immintrin.h>

/* A block of three streams of `bytes` each. The factors are x^(8 * bytes - 33) and
 * x^(16 * bytes - 33), reflected: the product of two reflected 32-bit values contains an extra
 * factor x, and the reduction of the 64-bit product with the CRC instruction adds a factor x^32,
 * which supply the missing x^33. */
struct stride {
    size_t bytes;
    uint32_t over_one, over_two; /* factors that append one stream, two streams */
};

static const struct stride strides[] = {
    { 4096, 0x82f89c77, 0x54a86326 },
    { 256, 0xb9e02b86, 0xdd7e3b0c },
};

__attribute__((target("sse4.2,pclmul"))) static uint64_t pass_over(uint64_t crc, uint32_t factor)
{
    __m128i product =
        _mm_clmulepi64_si128(_mm_cvtsi64_si128((long long)crc), _mm_cvtsi32_si128((int)factor), 0);

    return _mm_crc32_u64(0, (uint64_t)_mm_cvtsi128_si64(product));
}

static uint64_t load(const uint8_t *p)
{
    uint64_t word;

    memcpy(&word, p, sizeof(word));
    return word;
}

__attribute__((target("sse4.2,pclmul"))) static uint64_t three_streams(uint64_t crc,
                                                                       const uint8_t *p,
                                                                       const struct stride *s)
{
    uint64_t second = 0, third = 0;

    for (const uint8_t *end = p + s->bytes; p < end; p += 8) {
        crc = _mm_crc32_u64(crc, load(p));
        second = _mm_crc32_u64(second, load(p + s->bytes));
        third = _mm_crc32_u64(third, load(p + 2 * s->bytes));
    }
    return pass_over(crc, s->over_two) ^ pass_over(second, s->over_one) ^ third;
}

__attribute__((target("sse4.2,pclmul"))) static uint32_t crc32c_sse(uint32_t start,
                                                                    const uint8_t *p, size_t n)
{
    uint64_t crc = ~start;

    for (size_t i = 0; i < COUNT_OF(strides); i++)
        for (; n >= 3 * strides[i].bytes; n -= 3 * strides[i].bytes, p += 3 * strides[i].bytes)
            crc = three_streams(crc, p, &strides[i]);
    for (; n >= 8; n -= 8, p += 8)
        crc = _mm_crc32_u64(crc, load(p));
    for (; n > 0; n--, p++)
        crc = _mm_crc32_u8((uint32_t)crc, *p);
    return ~(uint32_t)crc;
}

enum { FOLD_BYTES = 256, FOLD_LEAST = 4 * FOLD_BYTES };

/* Without AddressSanitizer: gcc 12 stores vectors of 64 bytes, as if aligned, into its frames, which are aligned to 32. */
#define FOLD_TARGET \
    __attribute__((target("avx512f,avx512vl,vpclmulqdq,sse4.2"), no_sanitize("address")))

/* Moves x forward by FOLD_BYTES, and adds the 64 bytes that are there. The factors are x^(8 * FOLD_BYTES + 32) for the low
 * half of each 16 bytes and x^(8 * FOLD_BYTES - 32) for the high half, reflected and multiplied by x. */
FOLD_TARGET static inline __m512i fold(__m512i x, const uint8_t *p)
{
    const __m512i factors = _mm512_set4_epi32(0, (int)0xb9e02b86, 0, (int)0xdcb17aa4);
    __m512i low = _mm512_clmulepi64_epi128(x, factors, 0x00);
    __m512i high = _mm512_clmulepi64_epi128(x, factors, 0x11);

    return _mm512_ternarylogic_epi64(low, high, _mm512_loadu_si512(p), 0x96); /* exclusive or */
}

FOLD_TARGET static uint32_t crc32c_fold(uint32_t start, const uint8_t *p, size_t n)
{
    /* four variables: GCC keeps an array in memory, which takes twice as long */
    __m512i x = _mm512_loadu_si512(p), y = _mm512_loadu_si512(p + 64);
    __m512i z = _mm512_loadu_si512(p + 128), w = _mm512_loadu_si512(p + 192);
    uint8_t block[FOLD_BYTES];
    uint64_t crc = 0;

    x = _mm512_xor_si512(x, _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)~start)));
    for (n -= FOLD_BYTES, p += FOLD_BYTES; n >= FOLD_BYTES; n -= FOLD_BYTES, p += FOLD_BYTES) {
        x = fold(x, p);
        y = fold(y, p + 64);
        z = fold(z, p + 128);
        w = fold(w, p + 192);
    }
    _mm512_storeu_si512(block, x);
    _mm512_storeu_si512(block + 64, y);
    _mm512_storeu_si512(block + 128, z);
    _mm512_storeu_si512(block + 192, w);
    for (int i = 0; i < FOLD_BYTES; i += 8)
        crc = _mm_crc32_u64(crc, load(block + i));
    return crc32c_sse(~(uint32_t)crc, p, n);
}

static bool has_fold(void)
{
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("vpclmulqdq") && __builtin_cpu_supports("sse4.2") &&
           __builtin_cpu_supports("pclmul");
}
#endif

uint32_t crc32c_streams(uint32_t crc, const void *data, size_t n)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("pclmul"))
        return crc32c_sse(crc, data, n);
#endif
    return crc32c_portable(crc, data, n);
}

uint32_t crc32c(uint32_t crc, const void *data, size_t n)
{
#if defined(__x86_64__)
    if (n >= FOLD_LEAST && has_fold())
        return crc32c_fold(crc, data, n);
#endif
    return crc32c_streams(crc, data, n);
}
