/* test_rack_tree.c - when a tree over lanes (micro-batches) is advised, and which one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/check.h"
#include "base/group_view.h"
#include "base/lane_tree.h"
#include "daemon/rack_tree.h"

enum { TASKS = 300 };

struct group {
    struct group_view view;
    struct group_member members[TASKS];
    char hosts[TASKS][8], locations[TASKS][16];
};

/* "aab|c": a task each, in the racks a, a, b, c; '|' is between two zones. devices: of each task. */
static void make_group(struct group *g, const char *layout, uint32_t devices)
{
    uint32_t n = 0;
    char zone = '1';

    for (; *layout != '\0'; layout++) {
        if (*layout == '|') {
            zone++;
            continue;
        }
        snprintf(g->hosts[n], sizeof(g->hosts[n]), "h%u", n);
        snprintf(g->locations[n], sizeof(g->locations[n]), "z%c/%c/%u", zone, *layout, n);
        g->members[n] = (struct group_member){ .name = "worker",
                                               .host_key = g->hosts[n],
                                               .n_devices = devices,
                                               .location = g->locations[n] };
        n++;
    }
    g->view = (struct group_view){ .members = g->members, .n_members = n };
}

static void tree_is_advised_where_racks_are_no_subtrees(void **state)
{
    static const struct {
        const char *layout;
        uint32_t devices, lanes, factors[2]; /* factors[0] 0: the present tree is plain */
        const char *advice;                  /* NULL: none */
    } rows[] = {
        { "aaabbbccc", 1, 9, { 0 }, "over 9 lanes: a rack sends 2 gradients in each step; with \"lane_tree\": [3, 3] in "
                                    "/train of the job it sends 1.33 (33 % less)" },
        { "aaabbb", 1, 6, { 0 }, "sends 1.5 gradients in each step; with \"lane_tree\": [2, 3] in /train of the job it sends 1 " },
        { "aaabbb", 1, 12, { 0 }, "\"lane_tree\": [2, 6]" },
        { "aaabbb", 2, 24, { 0 }, "\"lane_tree\": [2, 12]" },
        { "aaabbb", 1, 18, { 0 }, "\"lane_tree\": [2, 3, 3]" },
        { "aaabbb", 1, 18, { 6, 3 }, "\"lane_tree\": [2, 3, 3]" }, /* equal shares, but no racks */
        { "aaa|bbb|ccc", 1, 9, { 0 }, "\"lane_tree\": [3, 3]" },
        { "aaabbb|cccddd", 1, 12, { 0 }, "\"lane_tree\": [4, 3]" },
        { "aaabbbccc", 1, 9, { 3, 3 }, NULL }, /* has it */
        { "aabbcc", 1, 6, { 0 }, NULL },       /* racks are subtrees */
        { "aabb", 1, 4, { 0 }, NULL },
        { "aaabb", 1, 5, { 0 }, NULL },        /* unequal racks */
        { "abcdef", 1, 6, { 0 }, NULL },       /* a task each */
        { "aaaaaa", 1, 6, { 0 }, NULL },       /* one rack */
        { "aaabbb", 2, 16, { 0 }, NULL },      /* tasks of other numbers of devices have joined */
    };
    static struct group g;

    (void)state;
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct lane_tree present = { .n_blocks = 0 };
        char text[RACK_TREE_TEXT_BYTES] = "";
        bool found;

        make_group(&g, rows[i].layout, rows[i].devices);
        if (rows[i].factors[0] > 0)
            assert_int_equal(lane_tree_make(rows[i].factors, 2, &present, NULL), 0);
        found = rack_tree_advise(&g.view, &present, rows[i].lanes, true, text);
        if (found != (rows[i].advice != NULL) || (found && strstr(text, rows[i].advice) == NULL))
            fail_msg("%s, %u lanes: '%s'", rows[i].layout, rows[i].lanes, text);
    }
}

static void tree_of_more_tasks_than_the_limit_is_not_examined(void **state)
{
    static struct group g;
    const struct lane_tree plain = { .n_blocks = 0 };
    char layout[TASKS + 1], text[RACK_TREE_TEXT_BYTES];

    (void)state;
    for (uint32_t n = 255; n <= 258; n += 3) { /* 3 racks of 85 tasks, then of 86 */
        for (uint32_t i = 0; i < n; i++)
            layout[i] = (char)('a' + i * 3 / n);
        layout[n] = '\0';
        make_group(&g, layout, 1);
        assert_int_equal(rack_tree_advise(&g.view, &plain, n, true, text), n <= 256);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tree_is_advised_where_racks_are_no_subtrees),
        cmocka_unit_test(tree_of_more_tasks_than_the_limit_is_not_examined),
    };

    return cmocka_run_group_tests_name("daemon/rack_tree", tests, NULL, NULL);
}
