/* code_priv.h - what the files of the codes for CPUs share. */
#ifndef CODE_CODE_PRIV_H
#define CODE_CODE_PRIV_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/clones.h"
#include "code/code.h"
#include "code/code_formula.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "codes are little-endian, as in memory");

struct code_def {
    const char *name;
    size_t block_bytes;
    /* As code_encode() and code_decode(). */
    void (*encode)(const struct code_key *key, uint64_t element, const float *x, size_t n, uint8_t *out);
    void (*decode)(const uint8_t *in, size_t n, float *y);
};

extern const struct code_def code_bfloat16, code_float16, code_int8, code_int4;

/* 16-bit numbers of a code, which may have any address. */
typedef uint16_t code_u16 __attribute__((may_alias, aligned(1)));

/* Returns the largest code_size() of n numbers. */
INLINED uint32_t code_max(const float *x, size_t n)
{
    uint32_t most = 0;

    for (size_t i = 0; i < n; i++) {
        uint32_t size = code_size(x[i]);

        most = size > most ? size : most;
    }
    return most;
}

INLINED void code_put_f32(uint8_t *to, float x)
{
    memcpy(to, &x, sizeof(x));
}

INLINED float code_get_f32(const uint8_t *from)
{
    float x;

    memcpy(&x, from, sizeof(x));
    return x;
}

#endif
