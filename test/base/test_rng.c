#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/rng.h"

static void rng_block_matches_the_published_vectors(void **state)
{
    /* Random123, kat_vectors, philox4x32 with 10 rounds: counter, key, result */
    static const struct {
        uint32_t counter[4], key[2], out[4];
    } cases[] = {
        { { 0, 0, 0, 0 }, { 0, 0 }, { 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8 } },
        { { ~0u, ~0u, ~0u, ~0u },
          { ~0u, ~0u },
          { 0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd } },
        { { 0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344 },
          { 0xa4093822, 0x299f31d0 },
          { 0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1 } },
    };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        const uint32_t *c = cases[i].counter;
        struct rng_key key = { .seed = (uint64_t)cases[i].key[1] << 32 | cases[i].key[0],
                               .step = c[1],
                               .lane = c[2],
                               .stream = c[3] };
        uint32_t out[4];

        rng_block(&key, c[0], out);
        assert_memory_equal(out, cases[i].out, sizeof(out));
        for (uint64_t k = 0; k < 4; k++)
            assert_int_equal(rng_u32(&key, 4 * (uint64_t)c[0] + k), cases[i].out[k]);
    }
}

static void rng_blocks_equals_single_blocks(void **state)
{
    static const uint32_t counts[] = { 0, 1, 15, 16, 17, 64, 65, 150 };
    const struct rng_key key = { .seed = 0x123456789abcdef0, .step = 5, .lane = 1, .stream = 9 };
    uint32_t many[4 * 150 + 1], one[4], i, k;

    (void)state;
    for (i = 0; i < COUNT_OF(counts); i++) {
        many[4 * counts[i]] = 77;
        rng_blocks(&key, UINT32_MAX - 3, counts[i], many); /* the counter wraps around */
        for (k = 0; k < counts[i]; k++) {
            rng_block(&key, UINT32_MAX - 3 + k, one);
            assert_memory_equal(many + 4 * k, one, sizeof(one));
        }
        assert_int_equal(many[4 * counts[i]], 77);
    }
}

static void rng_f32_is_uniform(void **state)
{
    const struct rng_key key = { .seed = 3, .step = 5, .lane = 1, .stream = 9 };
    unsigned tenth[10] = { 0 };

    (void)state;
    for (uint64_t i = 0; i < 100000; i++) {
        float x = rng_f32(&key, i);

        assert_true(x >= 0 && x < 1);
        assert_true(x * 0x1p24f == (float)(rng_u32(&key, i) >> 8));
        tenth[(int)(x * 10)]++;
    }
    for (int i = 0; i < 10; i++) /* 10000 expected, five standard deviations are 474 */
        assert_in_range(tenth[i], 9526, 10474);
}

static void assert_bijection(uint64_t seed, uint64_t n)
{
    uint8_t *seen = calloc(n, 1);

    assert_non_null(seen);
    for (uint64_t i = 0; i < n; i++) {
        uint64_t p = rng_permute(seed, 1, n, i);

        assert_true(p < n);
        assert_int_equal(seen[p]++, 0);
    }
    free(seen);
}

static void rng_permute_is_a_bijection(void **state)
{
    (void)state;
    for (uint64_t n = 1; n < 300; n++)
        for (uint64_t seed = 0; seed < 3; seed++)
            assert_bijection(seed, n);
    assert_bijection(1, 4095);
    assert_bijection(2, 4096);
    assert_bijection(3, 4097);
    assert_bijection(4, 100003);
}

static void rng_permute_of_a_huge_range_stays_in_range(void **state)
{
    static const uint64_t sizes[] = { UINT64_MAX, ((uint64_t)1 << 63) + 1, (uint64_t)1 << 62,
                                      ((uint64_t)1 << 32) + 1, 1000000000000 };

    (void)state;
    for (size_t k = 0; k < COUNT_OF(sizes); k++)
        for (uint64_t i = 0; i < 100; i++) {
            assert_true(rng_permute(7, i, sizes[k], i) < sizes[k]);
            assert_true(rng_permute(7, i, sizes[k], sizes[k] - 1 - i) < sizes[k]);
        }
}

/* Over many keys, every position gets every element equally often: chi-square test against the
 * uniform distribution. */
static void rng_permute_of_small_ranges_is_uniform(void **state)
{
    enum { KEYS = 20000 };

    (void)state;
    for (uint64_t n = 2; n <= 9; n++) {
        unsigned hits[9][9] = { 0 };
        double chi = 0, expected = (double)KEYS / (double)n;

        for (uint64_t key = 0; key < KEYS; key++)
            for (uint64_t i = 0; i < n; i++)
                hits[i][rng_permute(key / 100, key % 100, n, i)]++;
        for (uint64_t i = 0; i < n; i++)
            for (uint64_t p = 0; p < n; p++)
                chi += (hits[i][p] - expected) * (hits[i][p] - expected) / expected;
        /* (n-1)^2 degrees of freedom: mean (n-1)^2, variance 2 (n-1)^2; six standard deviations */
        assert_true(chi < (double)((n - 1) * (n - 1)) + 6 * 1.4142136 * (double)(n - 1));
    }
}

static void rng_permute_of_three_yields_all_orders(void **state)
{
    unsigned count[27] = { 0 }, orders = 0;

    (void)state;
    for (uint64_t epoch = 0; epoch < 6000; epoch++)
        count[9 * rng_permute(1, epoch, 3, 0) + 3 * rng_permute(1, epoch, 3, 1) +
              rng_permute(1, epoch, 3, 2)]++;
    for (int i = 0; i < 27; i++) {
        orders += count[i] > 0;
        if (count[i] > 0) /* 1000 expected; five deviations are 144 */
            assert_in_range(count[i], 856, 1144);
    }
    assert_int_equal(orders, 6);
}

/* Tests for remaining order: positions against values, differences between neighbours, and two
 * epochs against each other must look random. */
static void rng_permute_of_a_large_range_has_no_order(void **state)
{
    enum { N = 10007 };
    double same_side = 0, near = 0, fixed = 0, as_before = 0;

    (void)state;
    for (uint64_t i = 0; i < N; i++) {
        uint64_t p = rng_permute(42, 3, N, i), q = rng_permute(42, 3, N, (i + 1) % N);

        same_side += (i < N / 2) == (p < N / 2);
        near += p - q + 100 < 200; /* modulo 2^64: within 100 of each other */
        fixed += p == i;
        as_before += rng_permute(42, 4, N, i) == p;
    }
    assert_true(same_side > N * 0.475 && same_side < N * 0.525); /* five deviations */
    assert_true(near > 120 && near < 280);                       /* 199 expected, deviation 14 */
    assert_true(fixed <= 8);                                     /* 1 expected */
    assert_true(as_before <= 8);
}

static void rng_os_returns_different_bytes_each_time(void **state)
{
    uint8_t a[64] = { 0 }, b[64] = { 0 };

    (void)state;
    assert_int_equal(rng_os(a, sizeof(a)), 0);
    assert_int_equal(rng_os(b, sizeof(b)), 0);
    assert_memory_not_equal(a, b, sizeof(a));
    assert_int_equal(rng_os(a, 0), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rng_block_matches_the_published_vectors),
        cmocka_unit_test(rng_blocks_equals_single_blocks),
        cmocka_unit_test(rng_f32_is_uniform),
        cmocka_unit_test(rng_permute_is_a_bijection),
        cmocka_unit_test(rng_permute_of_a_huge_range_stays_in_range),
        cmocka_unit_test(rng_permute_of_small_ranges_is_uniform),
        cmocka_unit_test(rng_permute_of_three_yields_all_orders),
        cmocka_unit_test(rng_permute_of_a_large_range_has_no_order),
        cmocka_unit_test(rng_os_returns_different_bytes_each_time),
    };

    return cmocka_run_group_tests_name("base/rng", tests, NULL, NULL);
}
