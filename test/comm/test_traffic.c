/* test_traffic.c - what an all-reduce sends between groups of members, for orders with and without locations. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <cmocka.h>

#include "base/check.h"
#include "base/group_view.h"
#include "base/lane_tree.h"
#include "comm/traffic.h"

enum { MEMBERS = 12 };

static void traffic_is_that_of_the_formulas(void **state)
{
    /* a letter is the group of a member; located: its location is that of its group */
    static const struct {
        const char *groups;
        uint32_t lanes, block; /* lanes of a block of the tree; 0: a plain tree */
        bool is_located;
        double vectors;
    } rows[] = {
        { "aabb", 4, 0, false, 1 },           { "abab", 4, 0, false, 2 },   /* halving/doubling */
        { "aaabbb", 6, 0, false, 3 },         { "ababab", 6, 0, false, 3 }, /* all with all: 2 m (N - m) / N */
        { "aaabbb", 6, 0, true, 1.5 },        { "aabbcc", 6, 0, true, 4.0 / 3 },
        { "aaabbb", 8, 0, true, 1 },          { "aaaa", 4, 0, false, 0 },
        { "aaabbbccc", 9, 0, true, 2 },       { "aaabbbccc", 9, 0, false, 4 },
        { "aaaabbbbcccc", 12, 0, true, 4.0 / 3 },
        { "aaabbb", 6, 3, true, 1 },          { "aaabbb", 12, 6, true, 1 },
        { "aaabbb", 24, 12, true, 1 },        { "aaabbbccc", 9, 3, true, 4.0 / 3 },
        { "aaabbccc", 9, 3, true, 4.0 / 3 },  { "aaabbbccc", 27, 9, true, 4.0 / 3 },
    };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct group_member m[MEMBERS] = { { 0 } };
        struct group_view v = { .members = m };
        char hosts[MEMBERS][4], locations[MEMBERS][8];
        uint32_t groups[MEMBERS];
        const uint32_t factors[] = { rows[i].block > 0 ? rows[i].lanes / rows[i].block : rows[i].lanes,
                                     rows[i].block > 0 ? rows[i].block : 1 };
        struct lane_tree tree;
        double found = -1;

        assert_int_equal(lane_tree_make(factors, 2, &tree, NULL), 0);
        for (uint32_t k = 0; rows[i].groups[k] != '\0'; k++, v.n_members++) {
            groups[k] = (uint32_t)rows[i].groups[k];
            snprintf(hosts[k], sizeof(hosts[k]), "h%u", k);
            snprintf(locations[k], sizeof(locations[k]), "%c/%u", rows[i].groups[k], k);
            m[k] = (struct group_member){ .name = "worker",
                                          .host_key = hosts[k],
                                          .n_devices = 1,
                                          .location = rows[i].is_located ? locations[k] : "" };
        }
        assert_int_equal(comm_traffic(&v, &tree, rows[i].lanes, true, groups, &found, NULL), 0);
        if (found < rows[i].vectors - 0.01 || found > rows[i].vectors + 0.01)
            fail_msg("%s, %u lanes: %g vectors, expected %g", rows[i].groups, rows[i].lanes, found,
                     rows[i].vectors);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(traffic_is_that_of_the_formulas),
    };

    return cmocka_run_group_tests_name("comm/traffic", tests, NULL, NULL);
}
