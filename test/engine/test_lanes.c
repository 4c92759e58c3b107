/* test_lanes.c - the tree along which lanes (micro-batches) are added. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/check.h"
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
        uint32_t n;
        const char *sum;
    } rows[] = {
        { 1, "0" },
        { 2, "(0+1)" },
        { 3, "((0+1)+2)" },
        { 4, "((0+1)+(2+3))" },
        { 5, "(((0+1)+(2+3))+4)" },
        { 6, "(((0+1)+(2+3))+(4+5))" },
        { 7, "(((0+1)+(2+3))+((4+5)+6))" },
        { 8, "(((0+1)+(2+3))+((4+5)+(6+7)))" },
    };

    (void)state;
    for (size_t r = 0; r < COUNT_OF(rows); r++) {
        char stack[8][256];
        uint32_t top = 0;

        for (uint32_t i = 0; i < rows[r].n; i++) {
            snprintf(stack[top++], sizeof(stack[0]), "%u", i);
            for (uint32_t m = tree_merges(i, rows[r].n); m > 0; m--, top--)
                add_text(stack[top - 2], stack[top - 1]);
        }
        assert_int_equal(top, 1);
        assert_string_equal(stack[0], rows[r].sum);
    }
}

/* The stack of a replica has as many arenas as tree_depth() says. */
static void stack_of_lanes_is_never_deeper_than_the_tree(void **state)
{
    (void)state;
    for (uint32_t n = 1; n <= 300; n++) {
        uint32_t top = 0, most = 0;

        for (uint32_t i = 0; i < n; i++) {
            top++;
            most = top > most ? top : most;
            top -= tree_merges(i, n);
        }
        assert_int_equal(top, 1);
        assert_in_range(most, 1, tree_depth(n));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lanes_of_any_number_are_added_along_the_binary_tree),
        cmocka_unit_test(stack_of_lanes_is_never_deeper_than_the_tree),
    };

    return cmocka_run_group_tests_name("engine/lanes", tests, NULL, NULL);
}
