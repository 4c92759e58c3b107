/* code.h - codes of gradients on the wire: blocks of float32 numbers to fewer bytes and back.
 *
 *   code       bytes of a block of 256 numbers
 *   bfloat16    512   u16 each: the upper half of the float32, rounded to nearest even
 *   float16     516   f32 scale, a power of two; f16 each. x = scale * f16
 *   int8        260   f32 scale = max / 127; i8 each. x = scale * i8, rounded to nearest even
 *   int4        144   4 times: f32 scale = max / 7 of 64 numbers; 32 bytes, byte j: number j in the low half,
 *                     number j + 32 in the high half, two's complement. x = scale * i4, rounded up or down at
 *                     random, so that the mean over many steps is x
 *
 * max is the largest absolute value that the scale applies to. If it is below 1e-30, the scale is 0 and
 * all numbers become 0: the inverse of a subnormal scale would be infinite. If it is infinite or NaN, the
 * scale is NaN, and so are all numbers of the block, which a check for non-finite gradients finds.
 * bfloat16 keeps infinities and NaN as they are. bfloat16 rounds numbers above 3.39e38 to infinity, float16
 * those above 3.40e38. The scale of float16 moves max to [2^14, 2^15), so numbers down to max / 2^39 do not become 0.
 *
 * The exact formulas, in float32, each operation rounded to nearest even:
 *   int8   i8 = round(x * (127 / max)): x is multiplied by the rounded quotient, not divided by the scale
 *   int4   i4 = floor(x * (7 / max) + u + 8) - 8, limited to [-7, 7]; the sums round from left to right. u = (word >> 8) / 2^24,
 *          where `word` is the word (element mod 4) of the block (element / 4) of Philox 4x32-10 (base/rng.h) with the key
 *          (seed, step, lane = place, stream = CODE_STREAM). code_formula.h has the functions for all devices.
 *
 * The same input has the same bytes with every instruction set. Bytes may come from the network: any bytes
 * decode to some numbers, possibly not finite. Numbers and scales are little-endian.
 *
 * Start here: code.c has the table of the codes, and one file has each code. map.h applies a code to a
 * vector in which some blocks stay float32. Threads: any; pure functions. */
#ifndef CODE_CODE_H
#define CODE_CODE_H

#include <stddef.h>
#include <stdint.h>

#include "opts/code.h"

enum {
    CODE_BLOCK = 256,                                 /* numbers */
    CODE_RAW_BYTES = CODE_BLOCK * (int)sizeof(float), /* of a block that is not coded */
    CODE_LEAST_BYTES = 144,                           /* of a coded block */
};

/* Identifies a rounding: no two have the same random numbers. */
struct code_key {
    uint64_t seed; /* of the job */
    uint32_t step; /* low 32 bits of the step */
    /* what is rounded: the sum of group `place`, or with `place` the number of groups the sum of all */
    uint32_t place;
};

const char *code_name(enum code_kind kind); /* "int8"; not of CODE_NONE */

/* The functions below: `kind` codes blocks. */

/* Bytes of a coded block: below CODE_RAW_BYTES, and a multiple of 4. */
size_t code_block_bytes(enum code_kind kind);
/* Encodes n blocks. `element`: index of x[0] in the whole gradient, a multiple of CODE_BLOCK, below
 * 2^34. out [n * code_block_bytes()], any alignment; does not overlap x. */
void code_encode(enum code_kind kind, const struct code_key *key, uint64_t element, const float *x,
                 size_t n, uint8_t *out);
/* Decodes n blocks to y [n * CODE_BLOCK]. `in` may have any alignment. */
void code_decode(enum code_kind kind, const uint8_t *in, size_t n, float *y);

#endif
