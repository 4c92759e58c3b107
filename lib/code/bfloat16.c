/* bfloat16.c - the upper half of each float32; see code.h. */
#include "base/clones.h"
#include "code/code_priv.h"

CLONES static void encode(const struct code_key *key, uint64_t element, const float *restrict x,
                          size_t n, uint8_t *restrict out)
{
    code_u16 *to = (code_u16 *)out;

    (void)key;
    (void)element;
    for (size_t i = 0; i < n * CODE_BLOCK; i++) {
        uint32_t u = code_bits(x[i]);
        /* the fraction of a NaN must not become 0 */
        uint32_t nan = u >> 16 | 0x40u, rounded = (u + 0x7fffu + (u >> 16 & 1u)) >> 16;

        to[i] = (uint16_t)((u & 0x7fffffffu) > 0x7f800000u ? nan : rounded);
    }
}

CLONES static void decode(const uint8_t *restrict in, size_t n, float *restrict y)
{
    const code_u16 *from = (const code_u16 *)in;

    for (size_t i = 0; i < n * CODE_BLOCK; i++)
        y[i] = code_float((uint32_t)from[i] << 16);
}

const struct code_def code_bfloat16 = { "bfloat16", 2 * CODE_BLOCK, encode, decode };
