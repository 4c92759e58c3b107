/* int8.c - integers from -127 to 127 with a scale for each block; see code.h. */
#include "base/clones.h"
#include "code/code_priv.h"

enum {
    HEAD = 4, /* bytes of the scale */
    BLOCK_BYTES = HEAD + CODE_BLOCK,
};

CLONES static void encode(const struct code_key *key, uint64_t element, const float *restrict x,
                          size_t n, uint8_t *restrict out)
{
    (void)key;
    (void)element;
    for (size_t b = 0; b < n; b++, x += CODE_BLOCK, out += BLOCK_BYTES) {
        uint32_t max = code_max(x, CODE_BLOCK);
        uint8_t *to = out + HEAD;
        float inverse;

        if (!code_has_scale(max)) {
            memset(out, 0, BLOCK_BYTES);
            code_put_f32(out, code_no_scale(max));
            continue;
        }
        code_put_f32(out, code_scale(max, CODE_INT8_MOST));
        inverse = code_inverse(max, CODE_INT8_MOST);
        for (size_t i = 0; i < CODE_BLOCK; i++)
            to[i] = code_to_int8(x[i] * inverse);
    }
}

CLONES static void decode(const uint8_t *restrict in, size_t n, float *restrict y)
{
    for (size_t b = 0; b < n; b++, in += BLOCK_BYTES, y += CODE_BLOCK) {
        const uint8_t *from = in + HEAD;
        float scale = code_get_f32(in);

        for (size_t i = 0; i < CODE_BLOCK; i++)
            y[i] = scale * code_of_int8(from[i]);
    }
}

const struct code_def code_int8 = { "int8", BLOCK_BYTES, encode, decode };
