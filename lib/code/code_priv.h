/* code_priv.h - what the files of the codes share. */
#ifndef CODE_CODE_PRIV_H
#define CODE_CODE_PRIV_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "code/code.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "codes are little-endian, as in memory");

struct code_def {
    const char *name;
    size_t block_bytes;
    /* As code_encode() and code_decode(). */
    void (*encode)(const struct code_key *key, uint64_t element, const float *x, size_t n, uint8_t *out);
    void (*decode)(const uint8_t *in, size_t n, float *y);
};

extern const struct code_def code_bfloat16, code_float16, code_int8, code_int4;

#define CODE_TINY 1e-30f /* a smaller max encodes as scale 0 */

/* 16-bit numbers of a code, which may have any address. */
typedef uint16_t code_u16 __attribute__((may_alias, aligned(1)));

static inline __attribute__((always_inline)) uint32_t code_bits(float x)
{
    uint32_t u;

    memcpy(&u, &x, sizeof(u));
    return u;
}

static inline __attribute__((always_inline)) float code_float(uint32_t u)
{
    float x;

    memcpy(&x, &u, sizeof(x));
    return x;
}

/* Returns the bits of the largest absolute value of n numbers. Integers compare as the absolute values
 * do, with NaN above infinity. */
static inline __attribute__((always_inline)) uint32_t code_max(const float *x, size_t n)
{
    uint32_t most = 0;

    for (size_t i = 0; i < n; i++) {
        uint32_t size = code_bits(x[i]) & 0x7fffffffu;

        most = size > most ? size : most;
    }
    return most;
}

static inline __attribute__((always_inline)) bool code_is_finite(uint32_t max_bits)
{
    return max_bits < 0x7f800000u;
}

static inline __attribute__((always_inline)) void code_put_f32(uint8_t *to, float x)
{
    memcpy(to, &x, sizeof(x));
}

static inline __attribute__((always_inline)) float code_get_f32(const uint8_t *from)
{
    float x;

    memcpy(&x, from, sizeof(x));
    return x;
}

/* The scale of a block whose max is not finite, in front of zeros. */
static inline float code_nan(void)
{
    return code_float(0x7fc00000u);
}

#endif
