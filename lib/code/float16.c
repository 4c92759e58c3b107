/* float16.c - IEEE 754 half floats with a scale for each block; see code.h.
 *
 * The scale is a power of two, so the multiplications with it are exact, and the largest number of a block
 * never overflows: its half float is at most 2^15. */
#include "base/clones.h"
#include "code/code_priv.h"

enum {
    HEAD = 4, /* bytes of the scale */
    BLOCK_BYTES = HEAD + 2 * CODE_BLOCK,
    TOP = 14, /* max is moved to [2^TOP, 2^(TOP + 1)) */
};

/* Returns the half float that is nearest to x, |x| <= 2^15; of two, the even one. */
static inline __attribute__((always_inline)) uint16_t narrow(float x)
{
    uint32_t u = code_bits(x), size = u & 0x7fffffffu, sign = u >> 16 & 0x8000u;
    /* 2^-14 and above: drops 13 bits of the fraction */
    uint32_t normal = (size - 0x38000000u + 0xfffu + (size >> 13 & 1u)) >> 13;
    /* below: the addition rounds to a multiple of 2^-24, the unit in the last place of 0.5 */
    uint32_t small = code_bits(code_float(size) + 0.5f) - 0x3f000000u;

    return (uint16_t)(sign | (size >= 0x38800000u ? normal : small));
}

/* Exact. The encoder writes no infinity and no NaN: exponent 31 is one more binade. */
static inline __attribute__((always_inline)) float widen(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, size = h & 0x7fffu;
    float normal = code_float((size << 13) + (112u << 23)), small = (float)(int32_t)size * 0x1p-24f;

    return code_float(sign | code_bits(size >= 0x400u ? normal : small));
}

CLONES static void encode(const struct code_key *key, uint64_t element, const float *restrict x,
                          size_t n, uint8_t *restrict out)
{
    (void)key;
    (void)element;
    for (size_t b = 0; b < n; b++, x += CODE_BLOCK, out += BLOCK_BYTES) {
        uint32_t max = code_max(x, CODE_BLOCK);
        code_u16 *to = (code_u16 *)(out + HEAD);
        int32_t shift = (int32_t)(max >> 23) - 127 - TOP;
        float up;

        if (!code_is_finite(max) || code_float(max) < CODE_TINY) {
            memset(out, 0, BLOCK_BYTES);
            code_put_f32(out, code_is_finite(max) ? 0 : code_nan());
            continue;
        }
        code_put_f32(out, code_float((uint32_t)(127 + shift) << 23));
        up = code_float((uint32_t)(127 - shift) << 23);
        for (size_t i = 0; i < CODE_BLOCK; i++)
            to[i] = narrow(x[i] * up);
    }
}

CLONES static void decode(const uint8_t *restrict in, size_t n, float *restrict y)
{
    for (size_t b = 0; b < n; b++, in += BLOCK_BYTES, y += CODE_BLOCK) {
        const code_u16 *from = (const code_u16 *)(in + HEAD);
        float scale = code_get_f32(in);

        for (size_t i = 0; i < CODE_BLOCK; i++)
            y[i] = scale * widen(from[i]);
    }
}

const struct code_def code_float16 = { "float16", BLOCK_BYTES, encode, decode };
