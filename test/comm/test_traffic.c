/* test_traffic.c - what an all-reduce sends between groups of members, for orders with and without locations. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <cmocka.h>

#include "base/check.h"
#include "base/group_view.h"
#include "comm/traffic.h"

enum { MEMBERS = 12 };

static void traffic_is_that_of_the_formulas(void **state)
{
    /* a letter is the group of a member; located: its location is that of its group */
    static const struct {
        const char *groups;
        uint32_t lanes;
        bool is_located;
        double vectors;
    } rows[] = {
        { "aabb", 4, false, 1 },           { "abab", 4, false, 2 },   /* halving/doubling */
        { "aaabbb", 6, false, 3 },         { "ababab", 6, false, 3 }, /* all with all: 2 m (N - m) / N */
        { "aaabbb", 6, true, 1.5 },        { "aabbcc", 6, true, 4.0 / 3 },
        { "aaabbb", 8, true, 1 },          { "aaaa", 4, false, 0 },
        { "aaabbbccc", 9, true, 2 },       { "aaabbbccc", 9, false, 4 },
        { "aaaabbbbcccc", 12, true, 4.0 / 3 },
    };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct group_member m[MEMBERS] = { { 0 } };
        struct group_view v = { .members = m };
        char hosts[MEMBERS][4], locations[MEMBERS][8];
        uint32_t groups[MEMBERS];
        double found = -1;

        for (uint32_t k = 0; rows[i].groups[k] != '\0'; k++, v.n_members++) {
            groups[k] = (uint32_t)rows[i].groups[k];
            snprintf(hosts[k], sizeof(hosts[k]), "h%u", k);
            snprintf(locations[k], sizeof(locations[k]), "%c/%u", rows[i].groups[k], k);
            m[k] = (struct group_member){ .name = "worker",
                                          .host_key = hosts[k],
                                          .n_devices = 1,
                                          .location = rows[i].is_located ? locations[k] : "" };
        }
        assert_int_equal(comm_traffic(&v, rows[i].lanes, true, groups, &found, NULL), 0);
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
