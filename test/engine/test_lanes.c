/* test_lanes.c - the tree along which lanes (micro-batches) are added. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/check.h"
#include "base/lane_tree.h"
#include "engine/lanes.h"

/* A symbolic sum: the additions of the stack, written with brackets. */
static void add_text(char *dst, const char *src)
{
    char both[256];

    snprintf(both, sizeof(both), "(%s+%s)", dst, src);
    strcpy(dst, both);
}

static void lanes_of_any_number_are_added_along_the_binary_tree(void **state)
{
    static const struct {
        uint32_t factors[2]; /* 0: a plain tree */
        uint32_t n;          /* of a subtree */
        const char *sum;
    } rows[] = {
        { { 0 }, 1, "0" },
        { { 0 }, 2, "(0+1)" },
        { { 0 }, 3, "((0+1)+2)" },
        { { 0 }, 4, "((0+1)+(2+3))" },
        { { 0 }, 5, "(((0+1)+(2+3))+4)" },
        { { 0 }, 6, "(((0+1)+(2+3))+(4+5))" },
        { { 0 }, 7, "(((0+1)+(2+3))+((4+5)+6))" },
        { { 0 }, 8, "(((0+1)+(2+3))+((4+5)+(6+7)))" },
        { { 3, 3 }, 9, "((((0+1)+2)+((3+4)+5))+((6+7)+8))" },
        { { 3, 3 }, 6, "(((0+1)+2)+((3+4)+5))" },
        { { 3, 3 }, 3, "((0+1)+2)" },
        { { 3, 3 }, 1, "0" },
        { { 2, 5 }, 10, "((((0+1)+(2+3))+4)+(((5+6)+(7+8))+9))" },
    };

    (void)state;
    for (size_t r = 0; r < COUNT_OF(rows); r++) {
        struct lane_tree t = { .n_blocks = 0 };
        char stack[8][256];
        uint32_t top = 0;

        if (rows[r].factors[0] > 0)
            assert_int_equal(lane_tree_make(rows[r].factors, 2, &t, NULL), 0);
        for (uint32_t i = 0; i < rows[r].n; i++) {
            snprintf(stack[top++], sizeof(stack[0]), "%u", i);
            for (uint32_t m = tree_merges(&t, i, rows[r].n); m > 0; m--, top--)
                add_text(stack[top - 2], stack[top - 1]);
        }
        assert_int_equal(top, 1);
        assert_string_equal(stack[0], rows[r].sum);
    }
}

/* The stack of a replica has as many arenas as tree_depth() says, and no more: an arena is as large as the model. */
static void stack_of_lanes_is_as_deep_as_the_tree(void **state)
{
    static const struct lane_tree trees[] = { { .n_blocks = 0 },
                                              { 1, { 3 }, 4 },
                                              { 2, { 15, 3 }, 32 } };

    (void)state;
    for (size_t k = 0; k < COUNT_OF(trees); k++)
        for (uint32_t n = 1, most = 0; n <= 300; n++) {
            uint32_t top = 0;

            for (uint32_t i = 0; i < n; i++) {
                top++;
                most = top > most ? top : most;
                top -= tree_merges(&trees[k], i, n);
            }
            assert_int_equal(top, 1);
            assert_int_equal(most, tree_depth(&trees[k], n));
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lanes_of_any_number_are_added_along_the_binary_tree),
        cmocka_unit_test(stack_of_lanes_is_as_deep_as_the_tree),
    };

    return cmocka_run_group_tests_name("engine/lanes", tests, NULL, NULL);
}
