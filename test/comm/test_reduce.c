#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/check.h"
#include "comm/reduce.h"

enum { SOURCES_MAX = 21, COUNT = 2500 };

static uint64_t bits_of(double x)
{
    uint64_t b;

    memcpy(&b, &x, sizeof(b));
    return b;
}

/* Fixed values of very different size and sign. */
static double value(uint32_t source, size_t i)
{
    return sin((double)(source * 7919 + i * 31 + 1)) * pow(10, (double)((source + i) % 13) - 6);
}

/* The tree level by level: neighbours are paired, and the odd one moves up alone. */
static double by_levels(const double *x, uint32_t n, bool is_float)
{
    double v[SOURCES_MAX];

    memcpy(v, x, n * sizeof(*v));
    for (; n > 1; n = n / 2 + n % 2)
        for (uint32_t i = 0; i < n; i += 2) {
            double sum = i + 1 == n ? v[i] : v[i] + v[i + 1];

            v[i / 2] = is_float ? (float)sum : sum; /* exact: a float sum rounds once from double */
        }
    return v[0];
}

static void sums_follow_the_tree_to_the_bit_for_any_number_of_sources(void **state)
{
    static float f[SOURCES_MAX][COUNT + 1];
    static double d[SOURCES_MAX][COUNT + 1];

    (void)state;
    for (uint32_t n = 1; n <= SOURCES_MAX; n++) {
        const void *from_f[SOURCES_MAX], *from_d[SOURCES_MAX];
        void *to_f[SOURCES_MAX], *to_d[SOURCES_MAX];
        double want_f[COUNT], want_d[COUNT];

        for (uint32_t s = 0; s < n; s++) {
            for (size_t i = 0; i <= COUNT; i++)
                f[s][i] = (float)(d[s][i] = value(s, i));
            from_f[s] = to_f[s] = f[s];
            from_d[s] = to_d[s] = d[s];
        }
        for (size_t i = 0; i < COUNT; i++) {
            double x[SOURCES_MAX], y[SOURCES_MAX];

            for (uint32_t s = 0; s < n; s++)
                x[s] = f[s][i], y[s] = d[s][i];
            want_f[i] = by_levels(x, n, true);
            want_d[i] = by_levels(y, n, false);
        }
        reduce(to_f, n, from_f, n, NULL, COUNT, TENSOR_F32, COMM_SUM);
        reduce(to_d, n, from_d, n, NULL, COUNT, TENSOR_F64, COMM_SUM);
        for (uint32_t s = 0; s < n; s++) {
            for (size_t i = 0; i < COUNT; i++) {
                assert_int_equal(bits_of(f[s][i]), bits_of(want_f[i]));
                assert_int_equal(bits_of(d[s][i]), bits_of(want_d[i]));
            }
            assert_true(f[s][COUNT] == (float)value(s, COUNT)); /* no write after the end */
            assert_true(d[s][COUNT] == value(s, COUNT));
        }
    }
}

/* Sources that are sums of several leaves give the bits of the leaves. */
static void sums_of_subtrees_give_the_bits_of_the_leaves(void **state)
{
    static const uint32_t cuts[][8] = { { 0, 2, 3, 4 }, { 0, 4, 6, 7 }, { 0, 1, 2, 4, 8, 10, 11 },
                                        { 0, 8, 12, 13 } };
    static const uint32_t n[] = { 3, 3, 6, 3 };

    (void)state;
    for (size_t k = 0; k < COUNT_OF(n); k++) {
        uint32_t all = cuts[k][n[k]];
        static float f[SOURCES_MAX][COUNT], part[8][COUNT], want[COUNT], got[COUNT];
        const void *from[SOURCES_MAX], *parts[8];
        void *to = want;

        for (uint32_t s = 0; s < all; s++) {
            for (size_t i = 0; i < COUNT; i++)
                f[s][i] = (float)value(s, i);
            from[s] = f[s];
        }
        reduce(&to, 1, from, all, NULL, COUNT, TENSOR_F32, COMM_SUM);
        for (uint32_t p = 0; p < n[k]; p++) {
            to = part[p];
            reduce(&to, 1, from + cuts[k][p], cuts[k][p + 1] - cuts[k][p], NULL, COUNT, TENSOR_F32,
                   COMM_SUM);
            parts[p] = part[p];
        }
        to = got;
        reduce(&to, 1, parts, n[k], cuts[k], COUNT, TENSOR_F32, COMM_SUM);
        assert_memory_equal(got, want, sizeof(got));
    }
}

static void integers_wrap_around_and_maxima_are_maxima(void **state)
{
    int64_t a[3] = { INT64_MAX, -5, INT64_MIN }, b[3] = { 1, 7, -1 }, out[3];
    const void *from[2] = { a, b };
    void *to[1] = { out };

    (void)state;
    reduce(to, 1, from, 2, NULL, 3, TENSOR_I64, COMM_SUM);
    assert_true(out[0] == INT64_MIN && out[1] == 2 && out[2] == INT64_MAX);
    reduce(to, 1, from, 2, NULL, 3, TENSOR_I64, COMM_MAX);
    assert_true(out[0] == INT64_MAX && out[1] == 7 && out[2] == -1);
}

static void bits_of_all_sources_are_joined(void **state)
{
    static int64_t v[SOURCES_MAX][COUNT];

    (void)state;
    for (uint32_t n = 1; n <= SOURCES_MAX; n++) {
        const void *from[SOURCES_MAX];
        void *to[1] = { v[n - 1] };

        for (uint32_t s = 0; s < n; s++) {
            from[s] = v[s];
            for (size_t i = 0; i < COUNT; i++)
                v[s][i] = (int64_t)((uint64_t)1 << (s * 3 + i) % 64);
        }
        reduce(to, 1, from, n, NULL, COUNT, TENSOR_I64, COMM_OR);
        for (size_t i = 0; i < COUNT; i++) {
            uint64_t want = 0;

            for (uint32_t s = 0; s < n; s++)
                want |= (uint64_t)1 << (s * 3 + i) % 64;
            assert_true((uint64_t)v[n - 1][i] == want);
        }
    }
}

static void nan_in_any_source_gives_nan(void **state)
{
    (void)state;
    for (uint32_t n = 1; n < 9; n++)
        for (uint32_t which = 0; which < n; which++)
            for (int op = COMM_SUM; op <= COMM_MAX; op++) {
                float v[8] = { 1, 2, INFINITY, 4, -5, 6, 7, 8 }, out = 0;
                const void *from[8];
                void *to[1] = { &out };

                v[which] = NAN;
                for (uint32_t s = 0; s < n; s++)
                    from[s] = &v[s];
                reduce(to, 1, from, n, NULL, 1, TENSOR_F32, (enum comm_op)op);
                assert_true(isnan(out));
            }
}

static void any_alignment_and_length_is_reduced(void **state)
{
    static float a[300], b[300], out[300];

    (void)state;
    for (size_t i = 0; i < 300; i++)
        a[i] = (float)i, b[i] = 1000 - 2 * (float)i;
    for (size_t start = 0; start < 17; start++)
        for (size_t n = 0; n < 80; n++) {
            const void *from[2] = { a + start, b + 3 };
            void *to[1] = { out + 5 };

            memset(out, 0, sizeof(out));
            reduce(to, 1, from, 2, NULL, n, TENSOR_F32, COMM_SUM);
            for (size_t i = 0; i < 200; i++)
                assert_true(out[i] == (i >= 5 && i < 5 + n ? a[start + i - 5] + b[3 + i - 5] : 0));
        }
}

/* The stack of reduce_merges(), with numbers: at most as deep as promised, and the bits of the tree. */
static void stack_of_merges_gives_the_bits_of_the_tree(void **state)
{
    (void)state;
    for (uint32_t n = 1; n <= SOURCES_MAX; n++) {
        uint8_t merges[SOURCES_MAX];
        double stack[REDUCE_DEPTH_MAX], x[SOURCES_MAX];
        uint32_t top = 0;

        reduce_merges(NULL, n, merges);
        for (uint32_t s = 0; s < n; s++) {
            assert_true(top < REDUCE_DEPTH_MAX);
            stack[top++] = x[s] = value(s, n);
            for (uint32_t m = merges[s]; m > 0; m--, top--)
                stack[top - 2] += stack[top - 1];
        }
        assert_int_equal(top, 1);
        assert_true(bits_of(stack[0]) == bits_of(by_levels(x, n, false)));
    }
}

/* ((0 1 2 3) (4 5)) of sources with 4, 1 and 1 leaves. */
static void merges_of_unequal_subtrees_follow_their_leaves(void **state)
{
    static const uint32_t leaves[] = { 0, 4, 5, 6 };
    uint8_t merges[3];

    (void)state;
    reduce_merges(leaves, 3, merges);
    assert_int_equal(merges[0], 0);
    assert_int_equal(merges[1], 0);
    assert_int_equal(merges[2], 2);
}

static void supported_types_are_reported(void **state)
{
    (void)state;
    for (int op = COMM_SUM; op <= COMM_MAX; op++) {
        enum comm_op o = (enum comm_op)op;

        assert_true(reduce_can(TENSOR_F32, o) && reduce_can(TENSOR_F64, o) &&
                    reduce_can(TENSOR_I64, o));
        assert_false(reduce_can(TENSOR_NONE, o) || reduce_can(TENSOR_U8, o) ||
                     reduce_can(TENSOR_BF16, o));
    }
    assert_true(reduce_can(TENSOR_I64, COMM_OR));
    assert_false(reduce_can(TENSOR_F32, COMM_OR) || reduce_can(TENSOR_F64, COMM_OR));
    assert_false(reduce_can((enum tensor_dtype)1000, COMM_SUM));
    assert_false(reduce_can(TENSOR_I64, (enum comm_op)1000));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_follow_the_tree_to_the_bit_for_any_number_of_sources),
        cmocka_unit_test(sums_of_subtrees_give_the_bits_of_the_leaves),
        cmocka_unit_test(integers_wrap_around_and_maxima_are_maxima),
        cmocka_unit_test(bits_of_all_sources_are_joined),
        cmocka_unit_test(nan_in_any_source_gives_nan),
        cmocka_unit_test(any_alignment_and_length_is_reduced),
        cmocka_unit_test(stack_of_merges_gives_the_bits_of_the_tree),
        cmocka_unit_test(merges_of_unequal_subtrees_follow_their_leaves),
        cmocka_unit_test(supported_types_are_reported),
    };

    return cmocka_run_group_tests_name("comm/reduce", tests, NULL, NULL);
}
