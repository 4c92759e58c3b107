/* top_k.c - see top_k.h. The k-th largest absolute value of a block is found by its bits, from the highest down: with
 * each bit, how many numbers are at least that large? Non-negative floats have the order of their bits. A pass
 * over a block in the first-level cache costs less than the look-ups of a histogram, and most blocks need 10 to 15. */
#include "code/top_k.h"

#include <stdbool.h>
#include <string.h>

#include "base/check.h"
#include "base/clones.h"
#include "code/code_priv.h"
#include "code/top_k_formula.h"

_Static_assert(TOP_K_BLOCK == 1 << TOP_K_INDEX_BITS, "an index has 12 bits");

uint32_t top_k_sent(double fraction, size_t n)
{
    CHECK(fraction > 0 && fraction <= 1 && n > 0 && n <= TOP_K_BLOCK);
    return top_k_count(fraction, n);
}

size_t top_k_bytes(double fraction, size_t n)
{
    size_t bytes = n / TOP_K_BLOCK * top_k_block_bytes(top_k_sent(fraction, TOP_K_BLOCK));

    return n % TOP_K_BLOCK == 0 ? bytes
                                : bytes + top_k_block_bytes(top_k_sent(fraction, n % TOP_K_BLOCK));
}

CLONES static void sizes_of(const float *restrict x, size_t n, uint32_t *restrict sizes)
{
    for (size_t i = 0; i < n; i++)
        sizes[i] = float_bits(x[i]) & 0x7fffffffu;
}

CLONES static uint32_t count_from(const uint32_t *sizes, size_t n, uint32_t least)
{
    uint32_t count = 0;

    for (size_t i = 0; i < n; i++)
        count += sizes[i] >= least;
    return count;
}

/* Returns the smallest size that is sent if k of n are sent. *equal: how many of that size are sent, at most. */
static uint32_t threshold(const uint32_t *sizes, size_t n, uint32_t k, uint32_t *equal)
{
    uint32_t found = 0;

    for (uint32_t bit = 1u << 30; bit > 0; bit /= 2) {
        uint32_t count = count_from(sizes, n, found | bit);

        if (count >= k)
            found |= bit;
        if (count == k) {
            *equal = k;
            return found;
        }
    }
    *equal = k - count_from(sizes, n, found + 1);
    return found;
}

static void encode_nonfinite(uint32_t k, uint8_t *out)
{
    for (uint32_t i = 0; i < k; i++) {
        code_put_f32(out + i * sizeof(float), code_no_scale(UINT32_MAX));
        top_k_put_index(out + k * sizeof(float), i, i);
    }
}

static void encode_block(float *x, size_t n, uint32_t k, uint8_t *out)
{
    uint32_t sizes[TOP_K_BLOCK], least, equal, sent = 0;

    memset(out, 0, top_k_block_bytes(k));
    if (!code_is_finite(code_max(x, n))) {
        encode_nonfinite(k, out);
        return;
    }
    sizes_of(x, n, sizes);
    least = threshold(sizes, n, k, &equal);
    for (size_t i = 0; i < n; i++) {
        if (sizes[i] < least || (sizes[i] == least && equal == 0))
            continue;
        equal -= sizes[i] == least;
        code_put_f32(out + sent * sizeof(float), x[i]);
        top_k_put_index(out + k * sizeof(float), sent++, (uint32_t)i);
        x[i] = 0;
    }
    CHECK(sent == k);
}

static size_t block_at(size_t at, size_t n)
{
    return n - at < TOP_K_BLOCK ? n - at : TOP_K_BLOCK;
}

void top_k_encode(double fraction, float *x, size_t n, uint8_t *out)
{
    size_t m;

    for (size_t at = 0; at < n; at += m) {
        uint32_t k;

        m = block_at(at, n);
        k = top_k_sent(fraction, m);
        encode_block(x + at, m, k, out);
        out += top_k_block_bytes(k);
    }
}

static void decode_block(const uint8_t *in, size_t n, uint32_t k, float *y)
{
    bool is_valid = true;

    memset(y, 0, n * sizeof(*y));
    for (uint32_t i = 0; i < k; i++) {
        uint32_t index = top_k_get_index(in + k * sizeof(float), i);

        if (index < n)
            y[index] = code_get_f32(in + i * sizeof(float));
        else
            is_valid = false;
    }
    if (!is_valid)
        y[0] = code_no_scale(UINT32_MAX);
}

void top_k_decode(double fraction, const uint8_t *in, size_t n, float *y)
{
    size_t m;

    for (size_t at = 0; at < n; at += m) {
        uint32_t k;

        m = block_at(at, n);
        k = top_k_sent(fraction, m);
        decode_block(in, m, k, y + at);
        in += top_k_block_bytes(k);
    }
}
