/* The checksum by which replicas compare gradients and weights. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/checksum.h"

enum { N = 3 * 4096 + 517 };
static float x[N];

static void fill(void)
{
    uint32_t state = 5;

    for (size_t i = 0; i < N; i++) {
        state = 1664525 * state + 1013904223;
        x[i] = (float)(int32_t)state * 1e-9f;
    }
}

/* The definition of checksum.h without optimisations and without the key of the chunk. */
static uint32_t reference_chunk(const float *chunk)
{
    static const uint32_t primes[16] = { 257, 263, 269, 271, 277, 281, 283, 293,
                                         307, 311, 313, 317, 331, 337, 347, 349 };
    uint64_t sum = 0;

    for (uint32_t i = 0; i < 4096; i++) {
        uint32_t word;

        memcpy(&word, &chunk[i], sizeof(word));
        sum += (uint64_t)(word % CHECKSUM_MODULUS) * (256 - i / 16) % CHECKSUM_MODULUS *
               primes[i % 16] % CHECKSUM_MODULUS;
    }
    return (uint32_t)(sum % CHECKSUM_MODULUS);
}

static uint32_t checksum_of_all(void)
{
    bool finite = true;
    uint32_t sum = checksum_part(x, N, 0, &finite);

    assert_true(finite);
    assert_true(sum < CHECKSUM_MODULUS);
    return sum;
}

/* Derives the key of chunk 0 from a vector with the single nonzero word 1, of weight 256 * 257. */
static uint64_t find_key(void)
{
    static float ones[4096];
    bool finite = true;
    uint64_t key = 0, one;

    memset(ones, 0, sizeof(ones));
    ones[0] = 1.4012985e-45f;
    one = checksum_part(ones, 4096, 0, &finite);
    while (key < CHECKSUM_MODULUS && key * 256 * 257 % CHECKSUM_MODULUS != one)
        key++;
    assert_true(key > 0 && key < CHECKSUM_MODULUS);
    return key;
}

static void checksum_of_a_chunk_matches_the_definition(void **state)
{
    bool finite = true;

    (void)state;
    fill();
    assert_int_equal(checksum_part(x, 4096, 0, &finite),
                     reference_chunk(x) * find_key() % CHECKSUM_MODULUS);
}

/* Words for which a sum that wraps around, or a carry between the two halves, changes the
 * result. */
static void checksum_of_extreme_words_does_not_overflow(void **state)
{
    static const uint32_t words[][2] = { { UINT32_MAX, UINT32_MAX }, { 0xffff, 0xffff },
                                         { 0xffff0000, 0xffff0000 }, { 0xffff, 0xffff0000 },
                                         { UINT32_MAX, 0 },          { 0x80000000, 0x8000 } };
    static float chunk[4096];
    uint64_t key = find_key();

    (void)state;
    for (size_t k = 0; k < sizeof(words) / sizeof(words[0]); k++)
        for (uint32_t period = 1; period <= 2048; period *= 2) {
            uint32_t sum = 0;
            bool finite = true;

            for (size_t i = 0; i < 4096; i++)
                memcpy(&chunk[i], &words[k][i / period % 2], sizeof(chunk[i]));
            assert_int_equal(checksum_part(chunk, 4096, 0, &finite),
                             reference_chunk(chunk) * key % CHECKSUM_MODULUS);
            for (size_t at = 0; at < 4096; at += 333)
                sum = checksum_add(
                    sum, checksum_part(chunk + at, 4096 - at < 333 ? 4096 - at : 333, at, &finite));
            assert_int_equal(sum, reference_chunk(chunk) * key % CHECKSUM_MODULUS);
        }
}

static void checksums_of_parts_add_up_to_that_of_the_whole(void **state)
{
    static const size_t sizes[] = { 1, 3, 16, 17, 31, 50, 64, 100, 255, 256, 1000, 4096, 5000, N };
    uint32_t expected;

    (void)state;
    fill();
    expected = checksum_of_all();
    for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++) {
        uint32_t sum = 0;
        bool finite = true;

        for (size_t at = 0; at < N; at += sizes[s]) {
            size_t n = N - at < sizes[s] ? N - at : sizes[s];

            sum = checksum_add(sum, checksum_part(x + at, n, at, &finite));
        }
        assert_int_equal(sum, expected);
    }
}

static void single_bit_flip_changes_the_checksum(void **state)
{
    uint32_t expected;

    (void)state;
    fill();
    expected = checksum_of_all();
    for (size_t i = 0; i < N; i += i < 64 || (i > 4000 && i < 4200) ? 1 : 97)
        for (int bit = 0; bit < 32; bit++) {
            bool finite = true;
            uint32_t word;

            memcpy(&word, &x[i], sizeof(word));
            word ^= UINT32_C(1) << bit;
            memcpy(&x[i], &word, sizeof(word));
            assert_int_not_equal(checksum_part(x, N, 0, &finite), expected);
            word ^= UINT32_C(1) << bit;
            memcpy(&x[i], &word, sizeof(word));
        }
    assert_int_equal(checksum_of_all(), expected);
}

static void exchanged_ranges_change_the_checksum(void **state)
{
    static const size_t sizes[] = { 1, 4, 16, 64, 256, 4096 };
    uint32_t expected;

    (void)state;
    fill();
    expected = checksum_of_all();
    for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++)
        for (size_t i = 0; i + 2 * sizes[s] <= N; i += sizes[s] < 64 ? 997 : sizes[s]) {
            bool finite = true;
            float saved[4096];
            size_t bytes = sizes[s] * sizeof(float);

            memcpy(saved, x + i, bytes);
            memmove(x + i, x + i + sizes[s], bytes);
            memcpy(x + i + sizes[s], saved, bytes);
            assert_int_not_equal(checksum_part(x, N, 0, &finite), expected);
            fill();
        }
}

static void non_finite_element_at_any_position_is_detected(void **state)
{
    static const uint32_t bad[] = { 0x7f800000, 0xff800000, /* infinity */
                                    0x7fc00000, 0xffc00000, /* NaN as produced by arithmetic */
                                    0x7f800001, 0xff800001, 0x7fffffff, 0xffffffff };
    static const uint32_t good[] = { 0x7f7fffff, 0xff7fffff, 1, 0x80000001, 0, 0x80000000,
                                     0x00800000, 0x807fffff };

    (void)state;
    fill();
    for (size_t i = 0; i < N; i += i + 40 < N ? 13 : 1) {
        float saved = x[i];
        bool finite = true;

        memcpy(&x[i], &bad[i / 13 % 8], sizeof(x[i]));
        (void)checksum_part(x, N, 0, &finite);
        assert_false(finite);
        assert_false(checksum_finite(x, N));
        memcpy(&x[i], &good[i / 13 % 8], sizeof(x[i]));
        finite = true;
        (void)checksum_part(x, N, 0, &finite);
        assert_true(finite);
        assert_true(checksum_finite(x, N));
        x[i] = saved;
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(checksum_of_a_chunk_matches_the_definition),
        cmocka_unit_test(checksum_of_extreme_words_does_not_overflow),
        cmocka_unit_test(checksums_of_parts_add_up_to_that_of_the_whole),
        cmocka_unit_test(single_bit_flip_changes_the_checksum),
        cmocka_unit_test(exchanged_ranges_change_the_checksum),
        cmocka_unit_test(non_finite_element_at_any_position_is_detected),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
