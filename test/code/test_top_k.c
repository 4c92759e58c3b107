/* The code top_k, against an oracle that sorts, and against bytes that were written by hand from code/top_k.h. The e2e test
 * compares the steps of a job with numpy. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/check.h"
#include "code/residual.h"
#include "code/top_k.h"

enum { N_MAX = 2 * TOP_K_BLOCK + 100 };

static float x[N_MAX], left[N_MAX], y[N_MAX];
static uint8_t code[8 * N_MAX];

static uint32_t bits(float v)
{
    uint32_t u;

    memcpy(&u, &v, sizeof(u));
    return u;
}

static void encode(double fraction, size_t n)
{
    memcpy(left, x, n * sizeof(*x));
    memset(code, 0xa5, sizeof(code));
    top_k_encode(fraction, left, n, code);
    assert_int_equal(code[top_k_bytes(fraction, n)], 0xa5);
    memset(y, 0xa5, sizeof(y));
    top_k_decode(fraction, code, n, y);
    if (n < N_MAX)
        assert_int_equal(bits(y[n]), 0xa5a5a5a5);
}

static int by_size(const void *a, const void *b)
{
    uint32_t i = *(const uint32_t *)a, j = *(const uint32_t *)b;
    float p = fabsf(x[i]), q = fabsf(x[j]);

    return p != q ? (p < q) - (p > q) : (i > j) - (i < j);
}

/* Sorts each block, by size and then by index. */
static void check_with_sorting(double fraction, size_t n)
{
    static uint32_t order[TOP_K_BLOCK];
    size_t m;

    encode(fraction, n);
    for (size_t at = 0; at < n; at += m) {
        size_t k;

        m = n - at < TOP_K_BLOCK ? n - at : TOP_K_BLOCK;
        k = (size_t)ceil(fraction * (double)m);
        for (size_t i = 0; i < m; i++)
            order[i] = (uint32_t)(at + i);
        qsort(order, m, sizeof(*order), by_size);
        for (size_t i = 0; i < m; i++) {
            uint32_t e = order[i];

            assert_int_equal(bits(y[e]), i < k ? bits(x[e]) : 0);
            assert_int_equal(bits(left[e]), i < k ? 0 : bits(x[e]));
        }
    }
}

static void fill(uint32_t seed, int levels)
{
    uint32_t s = seed;

    for (size_t i = 0; i < N_MAX; i++) {
        s = 1664525 * s + 1013904223;
        x[i] = levels > 0 ? (float)((int)(s >> 16) % (2 * levels + 1) - levels)
                          : (float)ldexp((double)(s >> 8) / 0x1p24 - 0.5, (int)(s >> 3 & 63) - 40);
    }
}

static void largest_numbers_are_those_of_an_oracle_that_sorts(void **state)
{
    static const size_t sizes[] = { 1, 2, 5, 256, 4095, 4096, 4097, 6144, N_MAX };
    static const double fractions[] = { 1e-9, 0.001, 0.01, 0.3, 0.5, 1 };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(sizes); i++)
        for (size_t f = 0; f < COUNT_OF(fractions); f++) {
            fill((uint32_t)(17 * i + f), 0);
            check_with_sorting(fractions[f], sizes[i]);
        }
}

static void equal_numbers_are_sent_from_the_lowest_index_on(void **state)
{
    (void)state;
    for (int levels = 1; levels < 9; levels++) {
        fill((uint32_t)levels, levels);
        check_with_sorting(0.1, N_MAX);
    }
    memset(x, 0, sizeof(x)); /* nothing but zeros */
    check_with_sorting(0.1, 5000);
}

static void subnormal_numbers_are_ordered_too(void **state)
{
    (void)state;
    for (size_t i = 0; i < 4096; i++)
        x[i] = (i % 2 == 0 ? 1 : -1) * 0x1p-149f * (float)(i * 37 % 4096);
    check_with_sorting(0.02, 4096);
}

static void bytes_are_those_of_the_definition(void **state)
{
    static const float numbers[] = { 1, -3, 3, 0.5f, 2, -3 };
    static const uint8_t want[] = {
        0, 0, 0x40, 0xc0, 0, 0, 0x40, 0x40, 0, 0, 0x40, 0xc0, /* -3, 3, -3 */
        0x01, 0x20, 0x00, 0x05, 0x00,                         /* indices 001, 002, 005 */
        0, 0, 0,
    };

    (void)state;
    memcpy(x, numbers, sizeof(numbers));
    assert_int_equal(top_k_sent(0.5, 6), 3);
    assert_int_equal(top_k_bytes(0.5, 6), sizeof(want));
    encode(0.5, 6);
    assert_memory_equal(code, want, sizeof(want));
    memset(x, 0, sizeof(x)); /* indices with 12 bits: abc, fff */
    x[0xabc] = 1;
    x[0xfff] = -2;
    encode(2.0 / 4096, 4096);
    assert_int_equal(top_k_bytes(2.0 / 4096, 4096), 12);
    assert_memory_equal(code + 8, "\xbc\xfa\xff\0", 4);
    assert_int_equal(top_k_bytes(0.01, 4096), 228);
    assert_int_equal(top_k_bytes(0.01, 4096 + 100), 228 + 8);
}

static void block_with_infinity_or_nan_is_nan_and_others_are_not(void **state)
{
    static const float bad[] = { INFINITY, -INFINITY, NAN };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        fill(3, 0);
        x[5000] = bad[i];
        encode(0.01, N_MAX);
        for (size_t k = 0; k < N_MAX; k++)
            if (k >= 4096 && k < 4096 + 41)
                assert_true(isnan(y[k]));
            else
                assert_true(isfinite(y[k]));
        assert_false(isfinite(left[5000])); /* found in the residual too */
    }
}

static void index_that_the_block_does_not_have_makes_its_first_number_nan(void **state)
{
    (void)state;
    for (int i = 0; i < 10; i++)
        x[i] = 1;
    encode(0.2, 10);
    code[8] = 10; /* after the last number of the block */
    top_k_decode(0.2, code, 10, y);
    assert_true(isnan(y[0]) && y[1] == 1 && y[9] == 0);
}

static void small_numbers_of_sums_become_zero(void **state)
{
    const float g[] = { 1e-31f, -1e-31f, 2, 0x1p-149f, -0.0f, INFINITY, NAN, -1e-30f, 5 };
    const float r[] = { 2e-31f, -2e-31f, 3, 0, 0, 1, 1, 0, -5 };
    const float want[] = { 0, 0, 5, 0, 0, INFINITY, NAN, -1e-30f, 0 };
    float sum[COUNT_OF(g)];

    (void)state;
    code_residual_add(g, r, COUNT_OF(g), sum);
    for (size_t i = 0; i < COUNT_OF(g); i++)
        assert_true(bits(sum[i]) == bits(want[i]) || (isnan(sum[i]) && isnan(want[i])));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(largest_numbers_are_those_of_an_oracle_that_sorts),
        cmocka_unit_test(equal_numbers_are_sent_from_the_lowest_index_on),
        cmocka_unit_test(subnormal_numbers_are_ordered_too),
        cmocka_unit_test(bytes_are_those_of_the_definition),
        cmocka_unit_test(block_with_infinity_or_nan_is_nan_and_others_are_not),
        cmocka_unit_test(index_that_the_block_does_not_have_makes_its_first_number_nan),
        cmocka_unit_test(small_numbers_of_sums_become_zero),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
