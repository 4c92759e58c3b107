/* checksum.c - computes the sum in two ways: whole rows of 16 elements with running sums (s += x; t
 * += s adds each row once for every row from it to the end), single elements with their weights. */
#include "base/checksum.h"

#include "base/clones.h"

enum { COLUMNS = CHECKSUM_COLUMNS, CHUNK = CHECKSUM_CHUNK, ROWS = CHUNK / COLUMNS };
enum { EXPONENT = 0x7f800000, PREFETCH_BYTES = 4096 /* bytes */ };

typedef uint32_t __attribute__((may_alias)) word;
/* Half a row. gcc splits a vector type that is wider than a register into scalars: with whole rows,
 * AVX2 took nine times as long, while AVX-512 was one eighth faster. */
enum { WIDTH = 8, HALVES = COLUMNS / WIDTH };
typedef uint32_t half __attribute__((vector_size(WIDTH * sizeof(uint32_t))));
typedef float numbers __attribute__((vector_size(WIDTH * sizeof(float))));
typedef uint32_t half_at /* half a row in memory, without alignment */
    __attribute__((vector_size(WIDTH * sizeof(uint32_t)), aligned(4), may_alias));

const uint32_t checksum_factor[CHECKSUM_COLUMNS] = { 257, 263, 269, 271, 277, 281, 283, 293,
                                                     307, 311, 313, 317, 331, 337, 347, 349 };

/* Prefetches the words PREFETCH_BYTES bytes after x. Half of a gradient that was just reduced in
 * host memory is in the cache of another core. A prefetch beyond the end of the array has no
 * effect. */
static inline void prefetch_ahead(const word *x)
{
    __builtin_prefetch((const void *)((uintptr_t)x + PREFETCH_BYTES));
}

typedef uint64_t pairs __attribute__((vector_size(WIDTH * sizeof(uint32_t)))); /* of elements of half a row */
#define EVEN(half_) ((pairs)(half_) & UINT32_MAX)
#define ODD(half_) ((pairs)(half_) >> 32)

/* Returns the bits of x - x for each float x: 0 if x is finite, else NaN. */
#define NOT_FINITE(words_) ((half)((numbers)(words_) - (numbers)(words_)))

/* Whole vectors first: of a loop over the elements gcc makes many shuffles. */
static bool all_finite(const half *differences, uint32_t n)
{
    half any = { 0 };
    uint64_t all = 0;

    for (uint32_t h = 0; h < n; h++)
        any |= differences[h];
    for (uint32_t i = 0; i < WIDTH / 2; i++)
        all |= ((pairs)any)[i];
    return (all & ((uint64_t)EXPONENT << 32 | EXPONENT)) == 0;
}

/* Sums the n rows of a chunk that start at row `first`. s and t are sums of words, mod 2^32. s_high
 * and t_high are the same sums of the words' upper 16 bits, and exact: with 256 rows, t_high is at
 * most 65535 * 256 * 257 / 2, below 2^32. The weighted sum of the lower 16 bits has the same bound,
 * so it equals t - t_high * 2^16 mod 2^32. */
CLONES static uint64_t sum_rows(const word *x, uint32_t first, uint32_t n, bool *finite)
{
    half s[HALVES] = { 0 }, t[HALVES] = { 0 }, s_high[HALVES] = { 0 }, t_high[HALVES] = { 0 };
    half bad[HALVES] = { 0 };
    uint32_t n_after = ROWS - first - n;
    pairs sum = { 0 };

    for (const word *end = x + (size_t)n * COLUMNS; x < end; x += COLUMNS) {
        prefetch_ahead(x);
        for (uint32_t h = 0; h < HALVES; h++) {
            half v = *(const half_at *)(x + h * WIDTH);

            s[h] += v;
            t[h] += s[h];
            s_high[h] += v >> 16;
            t_high[h] += s_high[h];
            bad[h] |= NOT_FINITE(v);
        }
    }
    for (uint32_t h = 0; h < HALVES; h++) {
        half upper = t_high[h] + n_after * s_high[h];
        half lower = t[h] + n_after * s[h] - (upper << 16);
        half factor = *(const half_at *)(checksum_factor + h * WIDTH);

        sum += (EVEN(lower) + (EVEN(upper) << 16)) * EVEN(factor); /* each term is below 2^49 * 2^9 */
        sum += (ODD(lower) + (ODD(upper) << 16)) * ODD(factor);
    }
    if (!all_finite(bad, HALVES))
        *finite = false;
    return sum[0] + sum[1] + sum[2] + sum[3];
}

/* Sums the n elements of a chunk that start at element `first`. No overflow: at most 2^12 terms,
 * each below 2^32 * 2^8 * 2^9. */
static uint64_t sum_elements(const word *x, uint32_t first, uint32_t n, bool *finite)
{
    uint64_t sum = 0;
    bool all = true;

    for (uint32_t i = first; i < first + n; i++) {
        uint32_t v = *x++;

        sum += (uint64_t)v * ((ROWS - i / COLUMNS) * checksum_factor[i % COLUMNS]);
        all = all && (v & EXPONENT) != EXPONENT;
    }
    if (!all)
        *finite = false;
    return sum;
}

/* Sums the n elements of one chunk that start at element `first`: single elements up to the next
 * row boundary, whole rows, the remaining elements. */
static uint64_t sum_chunk(const word *x, uint32_t first, uint32_t n, bool *finite)
{
    uint32_t end = first + n, from = (first + COLUMNS - 1) / COLUMNS, to = end / COLUMNS;
    uint32_t head = from * COLUMNS - first, rows = to - from;

    if (from >= to)
        return sum_elements(x, first, n, finite);
    return sum_elements(x, first, head, finite) + sum_rows(x + head, from, rows, finite) +
           sum_elements(x + head + rows * COLUMNS, to * COLUMNS, end - to * COLUMNS, finite);
}

CLONES static bool finite_rows(const word *x, size_t n)
{
    half bad[2 * HALVES] = { 0 };

    for (const word *end = x + n; x < end; x += 2 * COLUMNS) {
        prefetch_ahead(x);
        prefetch_ahead(x + COLUMNS);
        for (uint32_t h = 0; h < 2 * HALVES; h++)
            bad[h] |= NOT_FINITE(*(const half_at *)(x + h * WIDTH));
    }
    return all_finite(bad, 2 * HALVES);
}

bool checksum_finite(const float *x, size_t n)
{
    const word *words = (const word *)x;
    size_t whole = n / (2 * COLUMNS) * (2 * COLUMNS);
    bool all = finite_rows(words, whole);

    for (size_t i = whole; i < n; i++)
        all = all && (words[i] & EXPONENT) != EXPONENT;
    return all;
}

uint32_t checksum_part(const float *x, size_t n, uint64_t at, bool *finite)
{
    const word *words = (const word *)x;
    uint64_t sum = 0;

    while (n > 0) {
        uint32_t first = (uint32_t)(at % CHUNK);
        uint32_t here = n < CHUNK - first ? (uint32_t)n : CHUNK - first;

        sum += sum_chunk(words, first, here, finite) % CHECKSUM_MODULUS * checksum_key(at / CHUNK) %
               CHECKSUM_MODULUS;
        words += here;
        at += here;
        n -= here;
    }
    return (uint32_t)(sum < CHECKSUM_MODULUS ? sum : sum % CHECKSUM_MODULUS); /* one chunk needs no division */
}
