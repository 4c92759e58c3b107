/* int8.c - integers from -127 to 127 with a scale for each block; see code.h. */
#include "base/clones.h"
#include "code/code_priv.h"

enum {
    HEAD = 4, /* bytes of the scale */
    BLOCK_BYTES = HEAD + CODE_BLOCK,
    MOST = 127,
};

/* Adding 1.5 * 2^23 rounds |x| < 2^22 to the nearest integer, of two the even one, and leaves it in the
 * low bits: every instruction set has this addition, but not a vector of rintf(). */
#define ROUNDER 0x1.8p23f

CLONES static void encode(const struct code_key *key, uint64_t element, const float *restrict x,
                          size_t n, uint8_t *restrict out)
{
    (void)key;
    (void)element;
    for (size_t b = 0; b < n; b++, x += CODE_BLOCK, out += BLOCK_BYTES) {
        uint32_t max = code_max(x, CODE_BLOCK);
        uint8_t *to = out + HEAD;
        float inverse;

        if (!code_is_finite(max) || code_float(max) < CODE_TINY) {
            memset(out, 0, BLOCK_BYTES);
            code_put_f32(out, code_is_finite(max) ? 0 : code_nan());
            continue;
        }
        code_put_f32(out, code_float(max) / MOST);
        inverse = MOST / code_float(max);
        for (size_t i = 0; i < CODE_BLOCK; i++)
            to[i] = (uint8_t)code_bits(x[i] * inverse + ROUNDER);
    }
}

CLONES static void decode(const uint8_t *restrict in, size_t n, float *restrict y)
{
    for (size_t b = 0; b < n; b++, in += BLOCK_BYTES, y += CODE_BLOCK) {
        const int8_t *from = (const int8_t *)(in + HEAD);
        float scale = code_get_f32(in);

        for (size_t i = 0; i < CODE_BLOCK; i++)
            y[i] = scale * (float)from[i];
    }
}

const struct code_def code_int8 = { "int8", BLOCK_BYTES, encode, decode };
