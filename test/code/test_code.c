/* The codes of gradients, against numpy (reference.h), and against a scalar oracle in double that is written
 * from the definitions in code/code.h. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "code/code.h"
#include "code/reference.h"

enum { BLOCKS_MAX = 4, N_MAX = BLOCKS_MAX * CODE_BLOCK, BYTES_MAX = BLOCKS_MAX * CODE_RAW_BYTES };

static const struct code_key key = {
    .seed = REFERENCE_SEED, .step = REFERENCE_STEP, .place = REFERENCE_PLACE
};

static uint32_t bits(float x)
{
    uint32_t u;

    memcpy(&u, &x, sizeof(u));
    return u;
}

static bool same(float a, float b)
{
    return bits(a) == bits(b) || (isnan(a) && isnan(b));
}

static void reference_numbers(float x[2 * CODE_BLOCK])
{
    uint32_t s = 1;

    for (int i = 0; i < 2 * CODE_BLOCK; i++) {
        int power = i < CODE_BLOCK ? 0 : i % CODE_BLOCK % 40 - 30;

        s = 1664525 * s + 1013904223;
        x[i] = (float)ldexp((double)(s >> 8) / 0x1p24 - 0.5, power);
    }
}

static void codes_equal_those_of_numpy(void **state)
{
    float x[2 * CODE_BLOCK];
    uint8_t out[BYTES_MAX];
    char text[2 * BYTES_MAX + 1];

    (void)state;
    reference_numbers(x);
    for (int kind = CODE_BFLOAT16; kind < CODE_KINDS; kind++) {
        size_t bytes = 2 * code_block_bytes((enum code_kind)kind);

        code_encode((enum code_kind)kind, &key, REFERENCE_ELEMENT, x, 2, out);
        for (size_t i = 0; i < bytes; i++)
            snprintf(text + 2 * i, 3, "%02x", out[i]);
        assert_string_equal(text, references[kind]);
    }
}

/* ---- the oracle: number i of a block of code `kind`, decoded from its code ---- */

/* The half float nearest to x by the definition, as a number: a multiple of 2^-24 and of 2^-10 of the
 * binade. rint() rounds to even. */
static double nearest_half(double x)
{
    int exponent;

    if (x == 0)
        return x;
    frexp(x, &exponent);
    exponent = exponent - 11 < -24 ? -24 : exponent - 11;
    return ldexp(rint(ldexp(x, -exponent)), exponent);
}

static double largest(const float *x, int n)
{
    double most = 0;

    for (int i = 0; i < n; i++)
        most = isnan(x[i]) || fabs(x[i]) > most ? fabs(x[i]) : most;
    return most;
}

static float by_bfloat16(const float *x, int i, uint64_t element)
{
    int exponent;

    (void)element;
    if (!isfinite(x[i]) || x[i] == 0)
        return x[i];
    frexp(x[i], &exponent);
    exponent = exponent - 8 < -133 ? -133 : exponent - 8; /* the smallest subnormal of bfloat16 */
    return (float)ldexp(rint(ldexp(x[i], -exponent)), exponent);
}

/* Returns false if the block is decoded to *y whatever the number is. */
static bool has_scale(double most, float *y)
{
    *y = isfinite(most) ? 0 : NAN;
    return isfinite(most) && most >= 1e-30f;
}

static float by_float16(const float *x, int i, uint64_t element)
{
    double most = largest(x, CODE_BLOCK);
    int exponent;
    float y;

    (void)element;
    if (!has_scale(most, &y))
        return y;
    frexp(most, &exponent); /* most in [2^(exponent - 1), 2^exponent) */
    return (float)ldexp(nearest_half(ldexp(x[i], 15 - exponent)), exponent - 15);
}

static float by_int8(const float *x, int i, uint64_t element)
{
    float most = (float)largest(x, CODE_BLOCK), y;

    (void)element;
    if (!has_scale(most, &y))
        return y;
    return (float)rint(x[i] * (127 / most)) * (most / 127);
}

static float by_int4(const float *x, int i, uint64_t element)
{
    const struct rng_key rng = { key.seed, key.step, key.place, 0x636f6465 };
    float most = (float)largest(x + i / 64 * 64, 64), y, v;
    double q;

    if (!has_scale(most, &y))
        return y;
    v = x[i] * (7 / most);
    v += rng_f32(&rng, element + (uint64_t)i);
    v += 8;
    q = floor(v) - 8;
    return (float)(q > 7 ? 7 : q < -7 ? -7 : q) * (most / 7);
}

static float (*const oracles[CODE_KINDS])(const float *x, int i, uint64_t element) = {
    [CODE_BFLOAT16] = by_bfloat16,
    [CODE_FLOAT16] = by_float16,
    [CODE_INT8] = by_int8,
    [CODE_INT4] = by_int4,
};

static void compare(const float *x, size_t n, uint64_t element)
{
    float y[N_MAX];
    uint8_t code[BYTES_MAX + 1];

    for (int kind = CODE_BFLOAT16; kind < CODE_KINDS; kind++) {
        uint8_t *at = code + kind % 2; /* any alignment */

        code_encode((enum code_kind)kind, &key, element, x, n, at);
        code_decode((enum code_kind)kind, at, n, y);
        for (size_t i = 0; i < n * CODE_BLOCK; i++) {
            size_t b = i / CODE_BLOCK;
            float want =
                oracles[kind](x + b * CODE_BLOCK, (int)(i % CODE_BLOCK), element + b * CODE_BLOCK);

            /* the sign of a zero that a scale of 0 makes is not defined */
            if (!same(y[i], want) && !(y[i] == 0 && want == 0))
                fail_msg("%s: number %zu is %a, decoded %a, expected %a",
                         code_name((enum code_kind)kind), i, (double)x[i], (double)y[i],
                         (double)want);
        }
    }
}

static uint64_t next(uint64_t *s)
{
    *s = *s * 6364136223846793005u + 1442695040888963407u;
    return *s >> 20;
}

/* Numbers whose exponents spread over `spread` binades from 2^base on. */
static void fill(float *x, size_t n, int base, int spread, uint64_t *s)
{
    for (size_t i = 0; i < n; i++) {
        double size = ldexp(1 + (double)(next(s) % (1 << 23)) / (1 << 23),
                            base + (int)(next(s) % (unsigned)spread));

        x[i] = (float)(next(s) % 2 == 0 ? size : -size);
        if (next(s) % 16 == 0)
            x[i] = 0;
    }
}

static void decoded_numbers_equal_the_scalar_oracle(void **state)
{
    /* the exponent of max; 127: at most the largest float32 */
    const int tops[] = { -150, -101, -99, -98, -60, -20, -1, 0, 1, 13, 40, 100, 126, 127 };
    uint64_t s = 1;
    float x[N_MAX];

    (void)state;
    for (size_t t = 0; t < sizeof(tops) / sizeof(tops[0]); t++)
        for (int spread = 1; spread <= 50; spread += 7) {
            fill(x, N_MAX, tops[t] - spread + 1, spread, &s);
            compare(x, BLOCKS_MAX, (next(&s) << 8) % (UINT64_C(1) << 34));
        }
}

static void halfway_numbers_round_to_even(void **state)
{
    float x[CODE_BLOCK] = { 0 };

    (void)state;
    x[0] = 127; /* int8: scale 1. float16: scale 2^-8 */
    for (int i = 1; i < CODE_BLOCK; i++)
        x[i] = (float)(i % 127) + 0.5f;
    compare(x, 1, 0);
    x[0] = 0x1p14f; /* float16: scale 1 */
    for (int i = 1; i < CODE_BLOCK; i++)
        x[i] = i < 128 ? (float)(2 * i + 1) * 0x1p-25f : 0x1p3f + (float)(2 * i + 1) * 0x1p-8f;
    compare(x, 1, 0);
}

static void equal_numbers_keep_their_value(void **state)
{
    const float values[] = { 1, -1, 0, 0x1p-90f, 3e38f, -1.5f };
    float x[CODE_BLOCK], y[CODE_BLOCK];
    uint8_t code[CODE_RAW_BYTES];

    (void)state;
    for (size_t v = 0; v < sizeof(values) / sizeof(values[0]); v++) {
        for (int i = 0; i < CODE_BLOCK; i++)
            x[i] = values[v];
        compare(x, 1, 0);
        for (int kind = CODE_BFLOAT16; kind < CODE_KINDS; kind++) {
            code_encode((enum code_kind)kind, &key, 0, x, 1, code);
            code_decode((enum code_kind)kind, code, 1, y);
            for (int i = 0; i < CODE_BLOCK; i++)
                assert_true(fabsf(y[i] - x[i]) <=
                            fabsf(x[i]) * (kind == CODE_BFLOAT16 ? 0x1p-8f : 0x1p-10f));
        }
    }
}

static void blocks_with_nan_or_infinity_are_not_finite_and_their_neighbours_are(void **state)
{
    const float bad[] = { NAN, INFINITY, -INFINITY, -NAN };
    uint64_t s = 2;
    float x[3 * CODE_BLOCK], y[3 * CODE_BLOCK];
    uint8_t code[3 * CODE_RAW_BYTES];

    (void)state;
    for (size_t v = 0; v < sizeof(bad) / sizeof(bad[0]); v++)
        for (int at = CODE_BLOCK; at < 2 * CODE_BLOCK; at += 51) {
            fill(x, 3 * CODE_BLOCK, -3, 6, &s);
            x[at] = bad[v];
            compare(x, 3, 0);
            for (int kind = CODE_BFLOAT16; kind < CODE_KINDS; kind++) {
                code_encode((enum code_kind)kind, &key, 0, x, 3, code);
                code_decode((enum code_kind)kind, code, 3, y);
                assert_false(isfinite(y[at]));
                for (int i = 0; i < CODE_BLOCK; i++)
                    assert_true(isfinite(y[i]) && isfinite(y[2 * CODE_BLOCK + i]));
            }
        }
}

static void tiny_blocks_become_zero(void **state)
{
    const float sizes[] = { 1e-45f, 1e-39f, 1.1e-38f, 0.99e-30f };
    float x[CODE_BLOCK], y[CODE_BLOCK];
    uint8_t code[CODE_RAW_BYTES];

    (void)state;
    for (size_t v = 0; v < sizeof(sizes) / sizeof(sizes[0]); v++) {
        for (int i = 0; i < CODE_BLOCK; i++)
            x[i] = i % 2 == 0 ? sizes[v] : -sizes[v];
        for (int kind = CODE_FLOAT16; kind < CODE_KINDS; kind++) {
            code_encode((enum code_kind)kind, &key, 0, x, 1, code);
            code_decode((enum code_kind)kind, code, 1, y);
            for (int i = 0; i < CODE_BLOCK; i++)
                assert_true(y[i] == 0);
        }
    }
    for (int i = 0; i < CODE_BLOCK; i++)
        x[i] = 1.01e-30f;
    compare(x, 1, 0);
}

/* The mean of many roundings is the number: the standard error of 4096 roundings is at most 0.5 / 64 steps. */
static void stochastic_rounding_is_unbiased_and_keyed(void **state)
{
    enum { ROUNDS = 4096 };
    float x[CODE_BLOCK], y[CODE_BLOCK];
    double sums[CODE_BLOCK] = { 0 };
    uint8_t code[CODE_RAW_BYTES], other[CODE_RAW_BYTES];
    struct code_key k = { .seed = 5 };

    (void)state;
    for (int i = 0; i < CODE_BLOCK; i++)
        x[i] = i % 64 == 0 ? 7 : -7 + 14 * (float)(i % 64) / 64; /* scale 1 */
    for (k.step = 0; k.step < ROUNDS; k.step++) {
        code_encode(CODE_INT4, &k, 0, x, 1, code);
        code_decode(CODE_INT4, code, 1, y);
        for (int i = 0; i < CODE_BLOCK; i++)
            sums[i] += y[i];
    }
    for (int i = 0; i < CODE_BLOCK; i++)
        assert_true(fabs(sums[i] / ROUNDS - x[i]) < 5 * 0.5 / 64);
    k.step = 1;
    code_encode(CODE_INT4, &k, 0, x, 1, code);
    for (int what = 0; what < 4; what++) {
        struct code_key changed = k;

        changed.seed += what == 0;
        changed.step += what == 1;
        changed.place += what == 2;
        code_encode(CODE_INT4, &changed, what == 3 ? CODE_BLOCK : 0, x, 1, other);
        assert_memory_not_equal(code, other, code_block_bytes(CODE_INT4));
    }
}

static void pieces_have_the_bytes_of_the_whole(void **state)
{
    uint64_t s = 3;
    float x[N_MAX];
    uint8_t whole[BYTES_MAX], piece[CODE_RAW_BYTES];

    (void)state;
    fill(x, N_MAX, -10, 12, &s);
    for (int kind = CODE_BFLOAT16; kind < CODE_KINDS; kind++) {
        size_t bytes = code_block_bytes((enum code_kind)kind);

        code_encode((enum code_kind)kind, &key, 1024, x, BLOCKS_MAX, whole);
        for (size_t b = 0; b < BLOCKS_MAX; b++) {
            code_encode((enum code_kind)kind, &key, 1024 + b * CODE_BLOCK, x + b * CODE_BLOCK, 1,
                        piece);
            assert_memory_equal(piece, whole + b * bytes, bytes);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(codes_equal_those_of_numpy),
        cmocka_unit_test(decoded_numbers_equal_the_scalar_oracle),
        cmocka_unit_test(halfway_numbers_round_to_even),
        cmocka_unit_test(equal_numbers_keep_their_value),
        cmocka_unit_test(blocks_with_nan_or_infinity_are_not_finite_and_their_neighbours_are),
        cmocka_unit_test(tiny_blocks_become_zero),
        cmocka_unit_test(stochastic_rounding_is_unbiased_and_keyed),
        cmocka_unit_test(pieces_have_the_bytes_of_the_whole),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
