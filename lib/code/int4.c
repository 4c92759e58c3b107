/* int4.c - integers from -7 to 7 with a scale for 64 numbers, rounded at random; see code.h.
 *
 * With 15 values, rounding to nearest would lose every number below max / 14. x is rounded to floor(x + u)
 * with u uniform in [0, 1): the expected value is x. */
#include "base/clones.h"
#include "base/rng.h"
#include "code/code_priv.h"

enum {
    PART = CODE_INT4_PART,
    HALF = PART / 2,
    HEAD = 4, /* bytes of the scale */
    PART_BYTES = HEAD + HALF,
    BLOCK_BYTES = CODE_BLOCK / PART * PART_BYTES,
};

CLONES static void encode_part(const float *restrict x, const uint32_t *restrict words,
                               uint8_t *restrict out)
{
    uint32_t max = code_max(x, PART);
    uint8_t *to = out + HEAD;
    float inverse;

    if (!code_has_scale(max)) {
        memset(out, 0, PART_BYTES);
        code_put_f32(out, code_no_scale(max));
        return;
    }
    code_put_f32(out, code_scale(max, CODE_INT4_MOST));
    inverse = code_inverse(max, CODE_INT4_MOST);
    for (size_t i = 0; i < HALF; i++) {
        uint32_t low = code_to_int4(x[i] * inverse, words[i]);
        uint32_t high = code_to_int4(x[i + HALF] * inverse, words[i + HALF]);

        to[i] = (uint8_t)(low | high << 4);
    }
}

static void encode(const struct code_key *key, uint64_t element, const float *x, size_t n,
                   uint8_t *out)
{
    const struct rng_key rng = {
        .seed = key->seed, .step = key->step, .lane = key->place, .stream = CODE_STREAM
    };
    uint32_t words[CODE_BLOCK];

    for (size_t b = 0; b < n; b++) {
        rng_blocks(&rng, (uint32_t)(element / 4 + b * (CODE_BLOCK / 4)), CODE_BLOCK / 4, words);
        for (size_t i = 0; i < CODE_BLOCK; i += PART, x += PART, out += PART_BYTES)
            encode_part(x, words + i, out);
    }
}

CLONES static void decode(const uint8_t *restrict in, size_t n, float *restrict y)
{
    for (size_t p = 0; p < n * (CODE_BLOCK / PART); p++, in += PART_BYTES, y += PART) {
        const uint8_t *from = in + HEAD;
        float scale = code_get_f32(in);

        for (size_t i = 0; i < HALF; i++) {
            y[i] = scale * code_of_int4(from[i] & 15u);
            y[i + HALF] = scale * code_of_int4(from[i] >> 4);
        }
    }
}

const struct code_def code_int4 = { "int4", BLOCK_BYTES, encode, decode };
