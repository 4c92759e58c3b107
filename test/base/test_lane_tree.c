/* test_lane_tree.c - the tree along which lanes (micro-batches) are added, against a recursive construction. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/check.h"
#include "base/err.h"
#include "base/lane_tree.h"

enum { LANES = 64, TEXT = 2048 };

/* Writes the sum of the lanes [*lane, ...) of a tree with these factors: "((0+1)+2)". A plain tree of `n` children, each
 * of which is the tree of the other factors. */
static void sum_of(const uint32_t *factors, uint32_t n_factors, uint32_t n, uint32_t *lane,
                   char *out)
{
    uint32_t half = 1;

    if (n_factors == 0) {
        snprintf(out, TEXT, "%u", (*lane)++);
    } else if (n == 1) {
        sum_of(factors + 1, n_factors - 1, n_factors > 1 ? factors[1] : 0, lane, out);
    } else {
        char left[TEXT], right[TEXT];

        while (half * 2 < n)
            half *= 2;
        sum_of(factors, n_factors, half, lane, left);
        sum_of(factors, n_factors, n - half, lane, right);
        assert_true(snprintf(out, TEXT, "(%s+%s)", left, right) < TEXT);
    }
}

/* Writes the sum along lane_tree_left(). */
static void sum_by_halves(const struct lane_tree *t, uint32_t first, uint32_t n, char *out)
{
    if (n == 1) {
        snprintf(out, TEXT, "%u", first);
    } else {
        uint32_t left = lane_tree_left(t, n);
        char a[TEXT], b[TEXT];

        assert_in_range(left, 1, n - 1);
        sum_by_halves(t, first, left, a);
        sum_by_halves(t, first + left, n - left, b);
        assert_true(snprintf(out, TEXT, "(%s+%s)", a, b) < TEXT);
    }
}

/* Writes the sum along the plain tree over leaves: the highest bit in which the first leaves of the lanes differ. */
static void sum_by_leaves(const struct lane_tree *t, uint32_t first, uint32_t n, char *out)
{
    if (n == 1) {
        snprintf(out, TEXT, "%u", first);
    } else {
        uint32_t a = lane_tree_leaf(t, first), b = lane_tree_leaf(t, first + n - 1), left = 1;
        uint32_t bit = 1u << (31 - __builtin_clz(a ^ b));
        char l[TEXT], r[TEXT];

        while (lane_tree_leaf(t, first + left) < b / bit * bit)
            left++;
        sum_by_leaves(t, first, left, l);
        sum_by_leaves(t, first + left, n - left, r);
        assert_true(snprintf(out, TEXT, "(%s+%s)", l, r) < TEXT);
    }
}

/* The leaves of a lane, and of a block, are a whole subtree of the plain tree, except at the end of the tree. */
static void check_leaves(const struct lane_tree *t, uint32_t lanes)
{
    uint32_t all = lane_tree_leaf(t, lanes);

    assert_int_equal(lane_tree_leaf(t, 0), 0);
    for (uint32_t i = 0; i < lanes; i++) {
        uint32_t first = lane_tree_leaf(t, i), n = lane_tree_leaf(t, i + 1) - first;

        assert_true(n > 0 && (n & (n - 1)) == 0 && first % n == 0 && first + n <= all);
    }
    for (uint32_t b = 0; b < t->n_blocks; b++)
        for (uint32_t i = 0; i < lanes; i += t->blocks[b]) {
            uint32_t first = lane_tree_leaf(t, i), n = lane_tree_leaf(t, i + t->blocks[b]) - first;

            assert_true((n & (n - 1)) == 0 && first % n == 0);
        }
}

static void check_tree(const uint32_t *factors, uint32_t n, uint32_t lanes)
{
    static char expected[TEXT], found[TEXT];
    struct lane_tree t;
    uint32_t lane = 0;

    assert_int_equal(lane_tree_make(factors, n, &t, NULL), 0);
    sum_of(factors, n, factors[0], &lane, expected);
    assert_int_equal(lane, lanes);
    sum_by_halves(&t, 0, lanes, found);
    assert_string_equal(found, expected);
    sum_by_leaves(&t, 0, lanes, found);
    assert_string_equal(found, expected);
    check_leaves(&t, lanes);
}

/* Makes all lists of factors whose product is at most LANES. Returns their number. */
static uint32_t check_all(uint32_t *factors, uint32_t n, uint32_t lanes)
{
    uint32_t count = 0;

    if (n > 0) {
        check_tree(factors, n, lanes);
        count = 1;
    }
    for (uint32_t f = 2; n < LANE_TREE_FACTORS && lanes * f <= LANES; f++) {
        factors[n] = f;
        count += check_all(factors, n + 1, lanes * f);
    }
    return count;
}

static void trees_of_all_factors_are_those_of_the_recursion(void **state)
{
    uint32_t factors[LANE_TREE_FACTORS];

    (void)state;
    assert_int_equal(check_all(factors, 0, 1), 440);
}

static void lanes_of_a_block_of_three_have_leaves_of_a_whole_subtree(void **state)
{
    static const struct {
        uint32_t factors[3], n, lanes;
        const char *leaves; /* of all lanes, then the number */
    } rows[] = {
        { { 3, 3 }, 2, 9, "0 1 2 4 5 6 8 9 10 12" },
        { { 2, 3 }, 2, 6, "0 1 2 4 5 6 8" },
        { { 2, 5, 2 }, 3, 20, "0 1 2 3 4 5 6 7 8 12 16 17 18 19 20 21 22 23 24 28 32" },
        { { 5 }, 1, 5, "0 1 2 3 4 5" },
        { { 3, 2 }, 2, 6, "0 1 2 3 4 5 6" },
    };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        char text[256] = "";
        size_t at = 0;
        struct lane_tree t;

        assert_int_equal(lane_tree_make(rows[i].factors, rows[i].n, &t, NULL), 0);
        for (uint32_t k = 0; k <= rows[i].lanes; k++)
            at += (size_t)snprintf(text + at, sizeof(text) - at, "%s%u", k > 0 ? " " : "",
                                   lane_tree_leaf(&t, k));
        assert_string_equal(text, rows[i].leaves);
    }
}

static void shares_of_lanes_become_shares_of_leaves(void **state)
{
    static const uint32_t factors[] = { 3, 3 }, shares[] = { 2, 1, 3, 1, 1, 1 };
    static const uint32_t expected[] = { 2, 2, 4, 1, 1, 2 };
    uint32_t leaves[6];
    struct lane_tree t;

    (void)state;
    assert_int_equal(lane_tree_make(factors, 2, &t, NULL), 0);
    lane_tree_leaves(&t, shares, 6, leaves);
    assert_memory_equal(leaves, expected, sizeof(leaves));
    memcpy(leaves, shares, sizeof(leaves));
    lane_tree_leaves(&t, leaves, 6, leaves); /* in place */
    assert_memory_equal(leaves, expected, sizeof(leaves));
    lane_tree_leaves(NULL, shares, 6, leaves);
    assert_memory_equal(leaves, shares, sizeof(leaves));
}

/* Powers of two are no levels, so a tree has one representation and one text. */
static void factors_of_equal_trees_make_equal_structs(void **state)
{
    static const struct {
        uint32_t factors[4], n;
        const char *text;
    } rows[] = {
        { { 12 }, 1, "[12]" },         { { 3, 4 }, 2, "[12]" },      { { 3, 2, 2 }, 3, "[12]" },
        { { 1, 3, 4, 1 }, 4, "[12]" }, { { 4, 3 }, 2, "[4, 3]" },    { { 2, 2, 3 }, 3, "[4, 3]" },
        { { 2, 6 }, 2, "[2, 6]" },     { { 2, 3, 2 }, 3, "[2, 6]" }, { { 1, 12 }, 2, "[12]" },
        { { 1 }, 1, "[1]" },           { { 8, 8 }, 2, "[64]" },       { { 1, 3, 3 }, 3, "[3, 3]" },
    };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        uint32_t lanes = 1;
        char text[LANE_TREE_TEXT_BYTES];
        struct lane_tree t;

        for (uint32_t k = 0; k < rows[i].n; k++)
            lanes *= rows[i].factors[k];
        assert_int_equal(lane_tree_make(rows[i].factors, rows[i].n, &t, NULL), 0);
        assert_string_equal(lane_tree_text(&t, lanes, text), rows[i].text);
        for (size_t k = 0; k < i; k++)
            if (strcmp(rows[k].text, rows[i].text) == 0) {
                struct lane_tree same;

                assert_int_equal(lane_tree_make(rows[k].factors, rows[k].n, &same, NULL), 0);
                assert_memory_equal(&t, &same, sizeof(t));
            }
    }
}

static void factors_without_a_tree_are_refused(void **state)
{
    static const struct {
        uint32_t factors[LANE_TREE_FACTORS], n;
        const char *why; /* NULL: there is a tree */
    } rows[] = {
        { { 3, 0 }, 2, "factor 1 is 0; expected 1 or more" },
        { { 0 }, 1, "factor 0 is 0; expected 1 or more" },
        { { 65536 }, 1, NULL },
        { { 65537 }, 1, "65537 lanes or more; expected at most 65536" },
        { { 256, 257 }, 2, "65792 lanes or more" },
        { { 65536, 65536, 65536, 65536, 65536, 65536, 65536, 65536 }, 8, "4294967296 lanes or more" },
        { { UINT32_MAX, UINT32_MAX }, 2, "4294967295 lanes or more" },
        { { 4, 3, 3, 3, 3, 3, 3, 3 }, 8, NULL }, /* 65536 leaves */
        { { 5, 3, 3, 3, 3, 3, 3, 3 }, 8, "plain binary tree of 81920 leaves or more" },
    };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct lane_tree t = { .n_blocks = 99 };
        struct err err = { .text = "" };
        int rc = lane_tree_make(rows[i].factors, rows[i].n, &t, &err);

        assert_int_equal(rc, rows[i].why == NULL ? 0 : ERR_INPUT);
        if (rows[i].why != NULL && (strstr(err.text, rows[i].why) == NULL || t.n_blocks != 99))
            fail_msg("'%s', expected '%s'", err.text, rows[i].why);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(trees_of_all_factors_are_those_of_the_recursion),
        cmocka_unit_test(lanes_of_a_block_of_three_have_leaves_of_a_whole_subtree),
        cmocka_unit_test(shares_of_lanes_become_shares_of_leaves),
        cmocka_unit_test(factors_of_equal_trees_make_equal_structs),
        cmocka_unit_test(factors_without_a_tree_are_refused),
    };

    return cmocka_run_group_tests_name("base/lane_tree", tests, NULL, NULL);
}
