/* code_warp.cuh - a warp encodes and decodes one block of CODE_BLOCK numbers. Thread t has numbers
 * [8 t, 8 t + 8), and 1 to 4 words of the code; a scale is known by all threads whose numbers it applies to.
 * All threads of the warp make each call. A code is aligned to 4 bytes, as its parts are. */
#ifndef CODE_CODE_WARP_CUH
#define CODE_CODE_WARP_CUH

#include "device/device_cuda.cuh"

extern "C" {
#include "code/code.h"
}
#include "base/rng_formula.h"
#include "code/code_formula.h"

constexpr unsigned CODE_WARP = 32, CODE_OWN = CODE_BLOCK / CODE_WARP, CODE_WORDS = CODE_OWN / 2;
constexpr unsigned CODE_PART_THREADS = CODE_INT4_PART / CODE_OWN;

struct code_numbers {
    float v[CODE_OWN];
};
struct alignas(16) code_quad {
    float v[4];
};
struct code_words {
    float scale;
    uint32_t w[CODE_WORDS]; /* bfloat16, float16: two numbers each; int8: four; int4: eight half bytes */
};
struct code_place { /* of the random numbers */
    uint64_t seed, element; /* element: the first one of the block */
    uint32_t step, place;
};

/* x: of the first number of the block, aligned to 16 bytes. */
__device__ static __forceinline__ code_numbers code_load(const float *x, unsigned t)
{
    code_numbers n;

    for (unsigned i = 0; i < CODE_OWN; i += 4) {
        code_quad q = *(const code_quad *)(x + t * CODE_OWN + i);

        for (unsigned k = 0; k < 4; k++)
            n.v[i + k] = q.v[k];
    }
    return n;
}

__device__ static __forceinline__ void code_store(const code_numbers &n, float *x, unsigned t)
{
    for (unsigned i = 0; i < CODE_OWN; i += 4) {
        code_quad q;

        for (unsigned k = 0; k < 4; k++)
            q.v[k] = n.v[i + k];
        *(code_quad *)(x + t * CODE_OWN + i) = q;
    }
}

/* The largest code_size() of the numbers that have a scale in common. */
template <int KIND>
__device__ static __forceinline__ uint32_t code_common_max(const code_numbers &x)
{
    constexpr unsigned together = KIND == CODE_INT4 ? CODE_PART_THREADS : CODE_WARP;
    uint32_t max = 0;

    for (unsigned i = 0; i < CODE_OWN; i++) {
        uint32_t size = code_size(x.v[i]);

        max = size > max ? size : max;
    }
    for (unsigned d = 1; d < together; d *= 2) {
        uint32_t size = __shfl_xor_sync(0xffffffffu, max, d);

        max = size > max ? size : max;
    }
    return max;
}

__device__ static __forceinline__ void code_pack_int4(const code_numbers &x, const code_place &at,
                                                      float inverse, unsigned t, code_words *c)
{
    const struct rng_key key = { at.seed, at.step, at.place, CODE_STREAM };
    uint32_t random[CODE_OWN];

    for (unsigned i = 0; i < CODE_OWN; i += 4)
        rng_words(&key, (uint32_t)((at.element + t * CODE_OWN + i) / 4), random + i);
    for (unsigned i = 0; i < CODE_OWN; i++)
        c->w[0] |= code_to_int4(x.v[i] * inverse, random[i]) << 4 * i;
}

template <int KIND>
__device__ static __forceinline__ code_words code_pack(const code_numbers &x, const code_place &at,
                                                       unsigned t)
{
    code_words c = {};

    if constexpr (KIND == CODE_BFLOAT16) {
        for (unsigned i = 0; i < CODE_OWN; i++)
            c.w[i / 2] |= (uint32_t)float_to_bfloat16(x.v[i]) << 16 * (i % 2);
    } else {
        uint32_t max = code_common_max<KIND>(x);
        float inverse;

        c.scale = code_no_scale(max);
        if (!code_has_scale(max))
            return c;
        if constexpr (KIND == CODE_FLOAT16) {
            c.scale = code_float16_scale(max);
            inverse = code_float16_inverse(max);
            for (unsigned i = 0; i < CODE_OWN; i++)
                c.w[i / 2] |= (uint32_t)code_to_float16(x.v[i] * inverse) << 16 * (i % 2);
        } else if constexpr (KIND == CODE_INT8) {
            c.scale = code_scale(max, CODE_INT8_MOST);
            inverse = code_inverse(max, CODE_INT8_MOST);
            for (unsigned i = 0; i < CODE_OWN; i++)
                c.w[i / 4] |= (uint32_t)code_to_int8(x.v[i] * inverse) << 8 * (i % 4);
        } else {
            c.scale = code_scale(max, CODE_INT4_MOST);
            code_pack_int4(x, at, code_inverse(max, CODE_INT4_MOST), t, &c);
        }
    }
    return c;
}

template <int KIND> __device__ static __forceinline__ code_numbers code_unpack(const code_words &c)
{
    code_numbers x;

    for (unsigned i = 0; i < CODE_OWN; i++)
        if constexpr (KIND == CODE_BFLOAT16)
            x.v[i] = float_of_bfloat16((uint16_t)(c.w[i / 2] >> 16 * (i % 2)));
        else if constexpr (KIND == CODE_FLOAT16)
            x.v[i] = c.scale * code_of_float16((uint16_t)(c.w[i / 2] >> 16 * (i % 2)));
        else if constexpr (KIND == CODE_INT8)
            x.v[i] = c.scale * code_of_int8((uint8_t)(c.w[i / 4] >> 8 * (i % 4)));
        else
            x.v[i] = c.scale * code_of_int4(c.w[0] >> 4 * i & 15u);
    return x;
}

/* ---- int4: byte j of a part of 64 numbers has number j and number j + 32, which the thread four further has ---- */

/* The half bytes of `word`, each in the low half of a byte: of the first four, or the last four. */
__device__ static __forceinline__ uint32_t code_spread(uint32_t word, unsigned half)
{
    uint32_t v = word >> 16 * half & 0xffffu;

    return (v & 0xfu) | (v & 0xf0u) << 4 | (v & 0xf00u) << 8 | (v & 0xf000u) << 12;
}

/* The opposite. */
__device__ static __forceinline__ uint32_t code_gather(uint32_t bytes)
{
    return (bytes & 0xfu) | (bytes >> 4 & 0xf0u) | (bytes >> 8 & 0xf00u) | (bytes >> 12 & 0xf000u);
}

__device__ static __forceinline__ void code_write_int4(const code_words &c, uint32_t *out,
                                                       unsigned t)
{
    constexpr unsigned half = CODE_PART_THREADS / 2, words = 1 + CODE_INT4_PART / 8;
    uint32_t further = __shfl_xor_sync(0xffffffffu, c.w[0], half);
    unsigned k = t % CODE_PART_THREADS;

    out += t / CODE_PART_THREADS * words;
    if (k == 0)
        out[0] = float_bits(c.scale);
    for (unsigned i = 0; k < half && i < 2; i++)
        out[1 + 2 * k + i] = code_spread(c.w[0], i) | code_spread(further, i) << 4;
}

__device__ static __forceinline__ code_words code_read_int4(const uint32_t *in, unsigned t)
{
    constexpr unsigned half = CODE_PART_THREADS / 2, words = 1 + CODE_INT4_PART / 8;
    unsigned k = t % CODE_PART_THREADS;
    code_words c = {};

    in += t / CODE_PART_THREADS * words;
    c.scale = float_of_bits(in[0]);
    for (unsigned i = 0; i < 2; i++)
        c.w[0] |= code_gather(in[1 + 2 * (k % half) + i] >> 4 * (k / half)) << 16 * i;
    return c;
}

/* ---- codes in memory ---- */

template <int KIND>
__device__ static __forceinline__ void code_write(const code_words &c, uint8_t *code, unsigned t)
{
    constexpr unsigned words = KIND == CODE_INT8 ? CODE_OWN / 4 : CODE_WORDS;
    uint32_t *out = (uint32_t *)code;

    if constexpr (KIND == CODE_INT4) {
        code_write_int4(c, out, t);
    } else {
        if (KIND != CODE_BFLOAT16 && t == 0)
            out[0] = float_bits(c.scale);
        out += KIND != CODE_BFLOAT16;
        for (unsigned i = 0; i < words; i++)
            out[t * words + i] = c.w[i];
    }
}

template <int KIND>
__device__ static __forceinline__ code_words code_read(const uint8_t *code, unsigned t)
{
    constexpr unsigned words = KIND == CODE_INT8 ? CODE_OWN / 4 : CODE_WORDS;
    const uint32_t *in = (const uint32_t *)code;
    code_words c = {};

    if constexpr (KIND == CODE_INT4) {
        c = code_read_int4(in, t);
    } else {
        if (KIND != CODE_BFLOAT16)
            c.scale = float_of_bits(*in++);
        for (unsigned i = 0; i < words; i++)
            c.w[i] = in[t * words + i];
    }
    return c;
}

#endif
