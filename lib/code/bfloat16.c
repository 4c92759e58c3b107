/* bfloat16.c - the upper half of each float32; see code.h. */
#include "base/clones.h"
#include "code/code_priv.h"

CLONES static void encode(const struct code_key *key, uint64_t element, const float *restrict x,
                          size_t n, uint8_t *restrict out)
{
    code_u16 *to = (code_u16 *)out;

    (void)key;
    (void)element;
    for (size_t i = 0; i < n * CODE_BLOCK; i++)
        to[i] = float_to_bfloat16(x[i]);
}

CLONES static void decode(const uint8_t *restrict in, size_t n, float *restrict y)
{
    const code_u16 *from = (const code_u16 *)in;

    for (size_t i = 0; i < n * CODE_BLOCK; i++)
        y[i] = float_of_bfloat16(from[i]);
}

const struct code_def code_bfloat16 = { "bfloat16", 2 * CODE_BLOCK, encode, decode };
